"""A concatenation that stays in SRAM: its buffer has room for all that is loaded and made of its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import check_agreement
from networks import Net
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects import graph

pytestmark = pytest.mark.slow


def with_sram(name, kib):
    whole = target(name)
    sram = replace(whole.cluster.sram, capacity_bytes=kib * 1024)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


def test_a_part_that_is_read_with_borders_beside_a_concatenation_that_stays():
    """Clusters hold columns: of the input two more on either side than of the concatenation that it is a part of."""
    net = Net()
    x = net.input(1, 2, 8, 8)
    first = net.conv(x, 8, bias=False)
    joined = net.layer(graph.ConcatOp([net.pool("avg", first, 3, 1, pads=(1,) * 4), x], 1))
    last = net.binary("add", net.conv(joined, 4, 1), net.conv(net.conv(joined, 2, 1), 4))
    module, inputs = net.module(last, first)
    modules = modules_at_stops(module, with_sram("default", 2), Choices(policy="optimal"))
    stops = ("typed", "fused", "placed", "fixed")
    check_agreement({s: run_module(modules[s], inputs, checked=s == "fixed") for s in stops}, "f32")
