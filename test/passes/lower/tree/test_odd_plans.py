"""Plans that random ones have found to go wrong: rows read backwards, parts from the middle, clusters without a range.

Values alone, in checked mode, which says what reads something that nothing wrote, or races with what writes it.
"""

import lowered_plans
import pytest

from frustum.dialects import graph as g


def pool(net, x, kernel, strides, **rest):
    return net.layer(g.PoolOp("avg", x, kernel=kernel, strides=strides, **rest))


def turned(net):
    """The last rows, backwards, of a map that is made row by row."""
    x = net.binary("max", low := net.layer(g.ReduceOp("min", net.input(1, 4, 5, 12), (1, 3), True)), low)
    rows = net.layer(g.SliceOp(x, (0, 0, 4, 0), (1, 1, 4, 1), (1, 1, -1, -1)))
    return net.layer(g.LrnOp(net.layer(g.ConcatOp((rows, rows), 1)), 1, 0.1, 0.75, 2.0))


def turned_channels(net):
    """Every second channel, backwards, of a map that is resized."""
    x = net.layer(g.ResizeOp("linear", net.input(2, 4, 10, 8), (10, 16), scale=(1.0, 0.5), offset=(0.0, 0.0)))
    return pool(net, net.layer(g.SliceOp(x, (0, 2, 1, 11), (2, 2, 1, 6), (1, -2, 1, -1))), (1, 4), (1, 2))


def turned_windows(net):
    """Rows, backwards, of which windows in steps of 3 are read, and which are not resized by whole steps."""
    x = net.unary("gelu", net.input(1, 6, 5, 5))
    rows = net.layer(g.SliceOp(x, (0, 5, 4, 4), (1, 3, 5, 1), (-1, -1, -1, -2)))
    large = net.layer(g.ResizeOp("nearest", rows, (6, 2), scale=(5 / 6, 0.5), offset=(0.0, 0.0)))
    return net.conv(large, 6, (2, 1), pads=(0, 0, -1, 0), groups=3, strides=(3, 1))


def padded_output(net):
    """A convolution whose padded result is an output, and a separate pooling."""
    x = net.input(2, 4, 7, 5)
    y = net.conv(x, 10, (4, 3), pads=(-1, -1, 1, -1), groups=2, act="relu")
    padded = net.layer(g.PadOp(y, (0, 2, 0, 0), (0, 1, 0, 2), 0.0))
    return net.unary("gelu", y), padded, pool(net, x, (4, 1), (3, 3))


def squared(net):
    """A product of a map with itself."""
    y = net.conv(net.input(3, 2, 7, 12), 8, 1, pads=(0, -1, -1, -1), groups=2, strides=(1, 3), act="sigmoid")
    return net.layer(g.MatmulOp(y, y, trans_b=True))


def windows(net):
    """Windows that overlap, of a map that is made from one in SRAM."""
    x = net.conv(net.unary("gelu", net.input(1, 4, 4, 11)), 2, (1, 3), pads=(0, 1, 0, 1), groups=2)
    return pool(net, x, (1, 4), (2, 3), pads=(0, 1, 0, 0))


def cropped(net):
    """Windows that leave out the first and the last columns."""
    return net.conv(net.input(1, 4, 6, 10), 6, (4, 1), pads=(0, -1, -1, -1), groups=2, strides=(2, 1))


CASES = {
    "shares with columns that nobody reads": (
        cropped, 3,
        "resident x0 until conv_1 sharded x0.3 "
        "for conv_1.x step 3 of 8 over clusters recomputed { compute conv_1 }",
    ),
    "rows backwards over clusters": (
        turned, 4,
        "for x0.2 step 4 of 5 over clusters recomputed { resident x0 until reduce_1 compute reduce_1 "
        "resident binary_2 compute binary_2 compute lrn_5.squares, lrn_5 }",
    ),
    "channels backwards beside clusters without a range": (
        turned_channels, 2,
        "for pool_3.part step 2 of 2 over clusters recomputed { resident x0, pool_3 "
        "{ resident resize_1 [x0.2 0:1] compute resize_1, pool_3 } }",
    ),
    "rows backwards that roll": (
        turned_windows, 1,
        'for conv_4.y step 1 of 2 rolling { resident x0, unary_1 compute unary_1 compute resize_3, "resize_3#2" '
        "compute conv_4 }",
    ),
    "an output with parts of what passes make": (
        padded_output, 2,
        "for x0.1.o step 1 of 2 over clusters { resident conv_1 [conv_1.y 3:4] until unary_3 "
        "for conv_1.y step 2 of 4 recomputed { compute conv_1 } compute unary_3 compute pool_4 }",
    ),
    "a part from the middle of some ranges": (
        squared, 2,
        "for x0.0 ranges [0, 1, 3] over clusters { for x0.0 step 2 of 3 { "
        "resident x0 until conv_1 for x0.1 step 2 of 2 { resident conv_1 [conv_1.x 1:3] "
        "for conv_1.x ranges [0, 1, 4] recomputed { compute conv_1 } } "
        "resident matmul_2 compute matmul_2 } }",
    ),
    "results that go through DRAM and are not exchanged": (
        windows, 3,
        "for pool_3.x step 1 of 3 over clusters exchanged { for x0.2 step 1 of 4 { resident unary_1 "
        "for x0.1.o step 1 of 2 { compute unary_1 } } compute conv_2 compute pool_3 }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    build, clusters, text = CASES[name]
    case = lowered_plans.case(build, text)
    lowered_plans.check_lowered(case, lowered_plans.machine("default" if clusters > 1 else "edge", clusters=clusters))
