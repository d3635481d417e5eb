"""Images one after the other: the same numbers, of each image as much stays in SRAM, and the network is as it was where
that is no better."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from networks import Net
from searches import with_sram
from squeezed import squeezed
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.isa.sync import AllocOp
from frustum.dialects.module import TENSOR
from frustum.passes.plan.network.layer_order import ops_of_section, order_of, outputs_of_section
from frustum.passes.plan.network.trials.images_apart import images_apart, images_of
from frustum.runtime.reference.graph import network_of

IMAGES = 3


def order(network):
    return order_of(ops_of_section(network), outputs_of_section(network, None))


def layers(network):
    """All but constants, in their order."""
    return [op for op in network.walk() if not isinstance(op, g.WeightOp)]


def test_images_are_copies_and_are_undone():
    module, given = squeezed(IMAGES, size=12)
    network = network_of(module)
    (wanted,), before = run_module(module, given).values(), layers(network)
    (made,) = images_apart(order(network), network)
    network.verify()
    parts = [op for op in network.walk() if isinstance(op, g.PartOp)]
    assert [(op.start, op.count) for op in parts] == [(k, 1) for k in range(IMAGES)]
    assert sum(isinstance(op, g.ConvOp) for op in network.walk()) == 3 * IMAGES
    assert images_of(order(network), network) == 1  # once is enough
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    made.undo()
    network.verify()
    assert layers(network) == before


def mixed():
    """Images side by side."""
    net = Net()
    x = net.conv(net.input(2, 4, 8, 8), 4)
    return net.module(net.conv(net.layer(g.ReshapeOp(x, (1, 8, 8, 8))), 4))


def of_two_counts():
    """An input of one image for all."""
    net = Net()
    return net.module(net.binary("add", net.conv(net.input(2, 4, 8, 8), 4), net.input(1, 4, 8, 8)))


@pytest.mark.parametrize("build", [mixed, of_two_counts, lambda: squeezed(1, size=12)])
def test_others_stay_together(build):
    network = network_of(build()[0])
    before = str(network)
    assert images_apart(order(network), network) == []
    assert str(network) == before


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_part_of_each_image_stays(dtype):
    module, given = squeezed(IMAGES)
    where = with_sram("edge", 80 if dtype == "f32" else 40)
    modules = modules_at_stops(module, where, Choices(dtype=dtype, policy="optimal", optimise="bytes"))
    assert any(isinstance(op, g.PartOp) for op in modules["fused"].walk())
    held = [op.attributes.get(TENSOR) for op in modules["lowered"].walk() if isinstance(op, AllocOp)]
    assert sum(name is not None and ".held" in name.data for name in held) == IMAGES
    found = {stop: run_module(modules[stop], given, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    check_agreement(found, dtype)
