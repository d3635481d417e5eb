"""Queries, keys and values that one product makes are made apart, and the same."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.passes.graph.composites.part_products import PartProducts
from frustum.passes.graph.patterns.product_slices import channel_slices


def network(*, rows=5, width=24, **rest):
    """Attention whose operands are parts of one product."""
    net = Net()
    x, w = net.input(2, rows, 8), net.weight(width, 8)
    packed = net.layer(g.MatmulOp(x, w, net.weight(width), trans_b=True))
    op = g.AttentionOp(packed, packed, packed, heads=(2, 1), sizes=(6, 4), firsts=(2, 14, 20), scale=0.4, **rest)
    return net, packed, net.layer(op)


def parted(module, target="default"):
    module = aimed(module, target)
    PartProducts().apply(Context(), module)
    module.verify()
    return module, [g.shape_of(op.result)[-1] for op in module.walk() if isinstance(op, g.MatmulOp)]


@pytest.mark.parametrize("causal_from", [None, 1])
def test_each_part_has_a_product(causal_from):
    net, _, y = network(causal_from=causal_from, is_merged=True)
    module, inputs = net.module(y)
    made, widths = parted(module)
    assert widths == [12, 6, 4]
    (wanted,), (got,) = (run_module(each, inputs).values() for each in (module, made))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_others_read_too_stays():
    net, packed, y = network()
    module, _ = net.module(y, packed)
    assert parted(module)[1] == [24]


def test_what_is_too_large_to_stay_is_left():
    net, _, y = network(rows=6000)
    module, _ = net.module(y)
    assert parted(module, "edge")[1] == [24]
    assert parted(module)[1] == [12, 6, 4]


def test_what_is_made_head_by_head_is_parted_however_large():
    net, _, y = network(rows=3000)
    module, _ = net.module(y)
    assert parted(module, "edge")[1] == [12, 6, 4]


@pytest.mark.parametrize("is_of_rows", [True, False])
def test_a_convolution_of_positions_is_parted(is_of_rows):
    """Channels first, as planes or behind a reshape to rows."""
    net = Net()
    packed = net.conv(net.input(2, 8, 3, 4), 24, 1)
    seen = net.layer(g.ReshapeOp(packed, (2, 24, 12))) if is_of_rows else packed
    sizes = {"heads": (2, 1), "sizes": (6, 4), "firsts": (2, 14, 20)}
    module, inputs = net.module(net.layer(g.AttentionOp(seen, seen, seen, scale=0.4, is_channels_first=True, **sizes)))
    made = aimed(module, "default")
    PartProducts().apply(Context(), made)
    made.verify()
    assert [g.shape_of(op.result)[1] for op in made.walk() if isinstance(op, g.ConvOp)] == [12, 6, 4]
    (wanted,), (got,) = (run_module(each, inputs).values() for each in (module, made))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [1, 3])
def test_windows_and_what_others_read_stay_whole(kernel):
    net = Net()
    packed = net.conv(net.input(1, 8, 3, 4), 24, kernel)
    seen = net.layer(g.ReshapeOp(packed, (1, 24, 12)))
    sizes = {"heads": (2, 2), "sizes": (4, 4), "firsts": (0, 8, 16)}
    y = net.layer(g.AttentionOp(seen, seen, seen, scale=0.4, is_channels_first=True, **sizes))
    outputs = (y, net.unary("relu", packed)) if kernel == 1 else (y,)
    made = aimed(net.module(*outputs)[0], "default")
    PartProducts().apply(Context(), made)
    assert [g.shape_of(op.result)[1] for op in made.walk() if isinstance(op, g.ConvOp)] == [24]


def moved(net, packed, order, number):
    """One of three that lie side by side in the channels of [tokens, batch, 3 * heads * size], as exporters take it."""
    tokens, batch, _ = g.shape_of(packed)
    apart = net.layer(g.TransposeOp(net.layer(g.ReshapeOp(packed, (tokens, batch, 3, 2, 4))), order))
    (_, *rest) = g.shape_of(apart)
    part = net.layer(g.SliceOp(apart, (number, 0, 0, 0, 0), (1, *rest)))
    return net.unary("exp", net.layer(g.ReshapeOp(part, tuple(rest))))


@pytest.mark.parametrize("order", [(2, 0, 1, 3, 4), (2, 1, 3, 0, 4)])
@pytest.mark.parametrize("numbers", [(0, 1, 2), (1,)])
def test_slices_behind_a_transposition_of_the_whole(order, numbers):
    """In the order of the product, and heads first: nothing is made that nobody reads."""
    net = Net()
    packed = net.layer(g.MatmulOp(net.input(5, 3, 8), net.weight(8, 24), net.weight(24)))
    module, inputs = net.module(*(moved(net, packed, order, number) for number in numbers))
    made, widths = parted(module)
    assert widths == [8] * len(numbers)
    assert not any(isinstance(op, g.SliceOp) for op in made.walk())
    assert any(isinstance(op, g.TransposeOp) for op in made.walk()) == (order != (2, 0, 1, 3, 4))
    for wanted, got in zip(run_module(module, inputs).values(), run_module(made, inputs).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_slices_come_in_the_order_of_their_channels():
    """Not in one that differs from process to process, which plans would follow."""
    net = Net()
    product = net.layer(g.MatmulOp(net.input(1, 5, 8), net.weight(8, 48)))
    apart = net.layer(g.TransposeOp(net.layer(g.ReshapeOp(product, (5, 12, 4))), (1, 0, 2)))
    for number in range(12):
        net.layer(g.SliceOp(apart, (number, 0, 0), (1, 5, 4)))
    assert [part.first for part in channel_slices(product.owner)] == list(range(0, 48, 4))


def test_what_is_read_otherwise_too_is_not_taken_apart():
    net = Net()
    packed = net.layer(g.MatmulOp(net.input(5, 3, 8), net.weight(8, 24), net.weight(24)))
    module, _ = net.module(moved(net, packed, (2, 0, 1, 3, 4), 0), packed)
    assert parted(module)[1] == [24]
