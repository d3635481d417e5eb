"""Borders of a map's own elements in units: every level gives the same, in checked mode, in pieces and in steps."""

from __future__ import annotations

import pytest
from agreement import check_agreement
from networks import Net
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects import tile as t
from frustum.dialects.functions import Border


@pytest.mark.slow
@pytest.mark.parametrize("way", ["default optimal f32", "edge optimal f16", "tiny greedy f32", "tiny none f32"])
@pytest.mark.parametrize("mode", Border)
def test_every_level_agrees(mode, way):
    target, policy, dtype = way.split()
    net = Net()
    x = net.conv(net.input(2, 3, 17, 9), 4)
    uneven = net.layer(graph.BorderOp(mode, x, (3, 0), (1, 2)))
    module, inputs = net.module(net.conv(uneven, 5, 3, pads=(0, 0, 0, 0)))
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy=policy))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    check_agreement(found, dtype)
    assert not any(isinstance(op, t.MoveOp) for op in modules["placed"].walk())
