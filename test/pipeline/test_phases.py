"""Phases of maps in units: every level gives the same, in checked mode, and nothing but inputs and outputs is moved."""

from __future__ import annotations

import pytest
from agreement import check_agreement
from networks import Net
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects import tile as t


def up(net, x, factor, apart, crop=(0, 0)):
    """A convolution, and the map whose phases it makes."""
    n, c, h, w = graph.shape_of(x)
    own = 4 * c
    phases = net.conv(x, own * factor[0] * factor[1], 1)
    shape = (n, own, h * factor[0] - crop[0], w * factor[1] - crop[1])
    return net.layer(graph.DepthToSpaceOp(phases, factor, 1 if apart == 1 else own, shape))


def between(net):
    """Convolutions before and behind: regions with borders begin at whole periods."""
    x = net.conv(net.input(1, 2, 7, 9), 2)
    return net.conv(up(net, x, (2, 3), 1, crop=(1, 2)), 5)


def beside(net):
    """A map that is made of phases beside another one (a U-Net)."""
    x = net.input(2, 2, 12, 10)
    low = net.conv(net.pool("max", x, 2, 2), 2)
    return net.conv(net.layer(graph.ConcatOp([up(net, low, (2, 2), 0), net.conv(x, 3)], 1)), 4)


def down(net):
    """To phases and back."""
    x = net.conv(net.input(1, 3, 12, 8), 4)
    near = net.layer(graph.SpaceToDepthOp(x, (3, 2), 1))
    far = net.layer(graph.SpaceToDepthOp(x, (3, 2), 4))
    return [net.conv(near, 6), net.unary("relu", net.layer(graph.DepthToSpaceOp(far, (3, 2), 4, (1, 4, 12, 8))))]


@pytest.mark.slow
@pytest.mark.soak(but=4)
@pytest.mark.parametrize("way", ["default optimal f32", "edge optimal f16", "tiny greedy f32", "tiny none f32"])
@pytest.mark.parametrize("build", [between, beside, down], ids=lambda build: build.__name__)
def test_every_level_agrees(build, way):
    target, policy, dtype = way.split()
    net = Net()
    outputs = build(net)
    module, inputs = net.module(*(outputs if isinstance(outputs, list) else [outputs]))
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy=policy))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    check_agreement(found, dtype)


@pytest.mark.slow
def test_phases_are_written_in_place_on_chip():
    """Nothing is moved through DRAM: one load, one store."""
    net = Net()
    module, _ = net.module(between(net))
    modules = modules_at_stops(module, "edge", Choices(dtype="f16", policy="optimal"))
    ops = list(modules["placed"].walk())
    assert not any(isinstance(op, t.MoveOp) for op in ops)
    assert sum(isinstance(op, t.StoreOp) for op in ops) == sum(isinstance(op, t.LoadOp) for op in ops) == 1
