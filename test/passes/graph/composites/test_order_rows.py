"""Blocks of windowed attention: layers between the moves take the windows' order, and numbers stay as they were."""

from __future__ import annotations

import numpy as np
import pytest
from after_pass import after_pass
from agreement import check_agreement
from networks import Net
from stops import modules_at_stops, run_module
from xdsl.utils.exceptions import VerifyException

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.graph.views import BOX
from frustum.passes.graph.composites.order_rows import OrderRows
from frustum.passes.graph.patterns.rows import MOST_BOXES, boxes_of, even_parts, rows_of
from frustum.runtime import kernels

HEIGHT, WIDTH, CHANNELS = 6, 8, 6
WINDOW = 3, 4


def rolled(net, x, by, axis):
    """Positions of an axis moved around its end."""
    shape, parts = graph.shape_of(x), []
    for start, size in ((by, shape[axis] - by), (0, by)):
        starts, sizes = [0] * len(shape), list(shape)
        starts[axis], sizes[axis] = start, size
        parts.append(net.layer(graph.SliceOp(x, tuple(starts), tuple(sizes))))
    return net.layer(graph.ConcatOp(parts, axis))


def into_windows(net, x, shift):
    if shift:
        x = rolled(net, rolled(net, x, shift, 1), shift, 2)
    (rows, columns), width = WINDOW, graph.shape_of(x)[-1]
    down, across = HEIGHT // rows, WIDTH // columns
    apart = net.layer(graph.ReshapeOp(x, (1, down, rows, across, columns, width)))
    turned = net.layer(graph.TransposeOp(apart, (0, 1, 3, 2, 4, 5)))
    return net.layer(graph.ReshapeOp(turned, (down * across, rows * columns, width)))


def back_from_windows(net, x, shift):
    (rows, columns), width = WINDOW, graph.shape_of(x)[-1]
    down, across = HEIGHT // rows, WIDTH // columns
    apart = net.layer(graph.ReshapeOp(x, (1, down, across, rows, columns, width)))
    turned = net.layer(graph.TransposeOp(apart, (0, 1, 3, 2, 4, 5)))
    x = net.layer(graph.ReshapeOp(turned, (1, HEIGHT, WIDTH, width)))
    return rolled(net, rolled(net, x, HEIGHT - shift, 1), WIDTH - shift, 2) if shift else x


def product(net, x, outputs):
    return net.layer(graph.MatmulOp(x, net.weight(graph.shape_of(x)[-1], outputs), net.weight(outputs)))


def norm(net, x):
    scale, shift = net.weight(CHANNELS), net.weight(CHANNELS)
    return net.layer(graph.NormaliseOp(x, scale, shift, axes=(len(graph.shape_of(x)) - 1,), epsilon=1e-5))


def block(net, x, shift, also=None):
    """Norm, windows, a softmax over each window's positions, back, sum, and an MLP."""
    first = norm(net, x)
    if also is not None:
        also.append(first)
    rows = net.layer(graph.SoftmaxOp(product(net, into_windows(net, first, shift), CHANNELS), 1))
    x = net.binary("add", x, back_from_windows(net, product(net, rows, CHANNELS), shift))
    hidden = net.unary("relu", product(net, norm(net, x), 2 * CHANNELS))
    return net.binary("add", x, product(net, hidden, CHANNELS))


def ordered(net, *outputs):
    """The module in windows' order, checked against what it was."""
    found = after_pass(OrderRows(), net, *outputs, rtol=1e-5, atol=1e-6)
    return [op for op in found.walk() if op.name.startswith("fgraph.") and op.results]


def moves_of(ops):
    return [op.name.removeprefix("fgraph.") for op in ops if isinstance(op, MOVES)]


MOVES = graph.SliceOp | graph.ConcatOp | graph.TransposeOp | graph.RearrangeOp


def test_a_shifted_block_is_moved_once_before_and_once_behind():
    net = Net()
    ops = ordered(net, block(net, net.input(1, HEIGHT, WIDTH, CHANNELS), 2))
    assert moves_of(ops) == ["rearrange", "rearrange"]
    layers = [op for op in ops if not isinstance(op, graph.WeightOp | graph.ReshapeOp)]
    assert isinstance(layers[0], graph.RearrangeOp)
    assert isinstance(layers[-1], graph.RearrangeOp)


def test_a_block_of_plain_windows_is_turned_once_before_and_once_behind():
    net = Net()
    assert moves_of(ordered(net, block(net, net.input(1, HEIGHT, WIDTH, CHANNELS), 0))) == ["transpose", "transpose"]


def test_between_two_blocks_rows_are_moved_once():
    net = Net()
    x = block(net, net.input(1, HEIGHT, WIDTH, CHANNELS), 0)
    assert moves_of(ordered(net, block(net, x, 1))) == ["transpose", "rearrange", "rearrange"]


def test_between_two_blocks_of_equal_windows_nothing_is_moved():
    net = Net()
    x = block(net, net.input(1, HEIGHT, WIDTH, CHANNELS), 1)
    assert moves_of(ordered(net, block(net, x, 1))) == ["rearrange", "rearrange"]


def test_what_others_read_too_is_put_back_for_them():
    """The sum goes out: it and what is made of it would both be put back, so the layers behind it stay as they are."""
    net = Net()
    x = net.input(1, HEIGHT, WIDTH, CHANNELS)
    rows = product(net, into_windows(net, norm(net, x), 1), CHANNELS)
    total = net.binary("add", x, back_from_windows(net, rows, 1))
    ops = ordered(net, total, net.unary("relu", norm(net, total)))
    assert moves_of(ops) == ["rearrange", "rearrange"]
    last = next(op for op in ops if isinstance(op, graph.UnaryOp))
    assert graph.shape_of(last.x) == (1, HEIGHT, WIDTH, CHANNELS)


def test_a_norm_that_others_read_stays_before_the_windows():
    net, also = Net(), []
    y = block(net, net.input(1, HEIGHT, WIDTH, CHANNELS), 2, also)
    ops = ordered(net, y, net.unary("relu", also[0]))
    first = next(op for op in ops if isinstance(op, graph.NormaliseOp))
    assert graph.shape_of(first.x) == (1, HEIGHT, WIDTH, CHANNELS)


def test_sums_with_other_orders_of_rows_are_left():
    net = Net()
    x = net.input(1, HEIGHT, WIDTH, CHANNELS)
    turned = net.layer(graph.TransposeOp(net.unary("relu", x), (0, 2, 1, 3)))
    same = net.layer(graph.ReshapeOp(turned, (1, HEIGHT, WIDTH, CHANNELS)))
    ops = ordered(net, net.binary("add", x, same))
    assert [type(op) for op in ops] == [graph.UnaryOp, graph.TransposeOp, graph.ReshapeOp, graph.BinaryOp]


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("way", ["default f32", "edge f16", "units4 f32"])
def test_every_level_agrees_and_dram_has_no_map(way):
    """Numbers at all stops, in checked mode, for two blocks; the moves between go through no DRAM."""
    target, dtype = way.split()
    net = Net()
    x = block(net, net.input(1, HEIGHT, WIDTH, CHANNELS), 0)
    module, inputs = net.module(block(net, x, 2))
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy="optimal"))
    stops = "typed", "placed", "fixed"
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in stops}
    check_agreement(found, dtype)
    assert any(isinstance(op, graph.RearrangeOp) for op in modules["typed"].walk())
    classes = [op.class_.data for op in modules["fixed"].walk() if op.name == "fisa.external"]
    assert "intermediate" not in classes


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_boxes_hold_each_row_once(shift):
    net = Net()
    rows = rows_of(back_from_windows(net, into_windows(net, net.input(1, HEIGHT, WIDTH, CHANNELS), shift), shift))
    assert np.array_equal(rows.places, np.arange(HEIGHT * WIDTH)), "there and back again"
    rows = rows_of(into_windows(net, net.input(1, HEIGHT, WIDTH, CHANNELS), shift))
    boxes = boxes_of(rows, CHANNELS)
    assert len(boxes) // BOX == (4 if shift else 1), "rows and columns that wrap around, and others"
    op = graph.RearrangeOp(rows.root, tuple(boxes), (4, 12, CHANNELS))
    x = np.arange(HEIGHT * WIDTH * CHANNELS)
    wanted = x.reshape(-1, CHANNELS)[rows.places]
    np.testing.assert_array_equal(kernels.rearrange(x, op.parts, (4, 12, CHANNELS)).reshape(-1, CHANNELS), wanted)


def test_rows_in_no_order_are_no_boxes():
    places = np.random.default_rng(0).permutation(64).reshape(8, 8)
    assert even_parts(places, (0, 0)) is None
    assert len(even_parts(np.arange(64).reshape(8, 8), (0, 0))) == 1
    assert len(even_parts(np.roll(np.arange(64), 3), (0,), MOST_BOXES)) == 2


def test_boxes_must_fit_the_map():
    x = Net().input(2, 3)
    whole = [0, 0, 1, 1, 1, 1, 1, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert graph.shape_of(graph.RearrangeOp(x, tuple(whole), (3, 2)).result) == (3, 2)
    with pytest.raises(VerifyException, match="boxes of 20 numbers, found 3"):
        graph.RearrangeOp(x, (0, 0, 1), (3, 2))
    with pytest.raises(VerifyException, match=r"6 elements go to \(2, 2\), of 6"):
        graph.RearrangeOp(x, tuple(whole), (2, 2))
    with pytest.raises(VerifyException, match="a box from 1 to 6 of 6"):
        graph.RearrangeOp(x, (1, *whole[1:]), (3, 2))
