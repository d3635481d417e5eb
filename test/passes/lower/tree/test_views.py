"""Networks whose layers read views, and whose outputs are views, lowered: values are the network's, bytes those of the
plan, and those of the outputs that no layer makes."""

from itertools import pairwise

import lowered_plans
import pytest

from frustum.dialects import graph as g
from frustum.dialects.graph import shape_of
from frustum.passes.plan.tree.good_plans import fitting_plan

FLOAT = 4


def moved(build, kib=512, cores=4):
    """Bytes of the found plan's program beyond those that it is counted to move. Buffers are of 16 B and lie apart: a
    plan for little memory has half as much more."""
    target = lowered_plans.machine(sram_bytes=kib * 1536, cores=cores)
    found = lowered_plans.case(build)
    found.plan, _ = fitting_plan(found.axes, kib * 1024)
    moved_bytes, counted = lowered_plans.check_lowered(found, target)
    return moved_bytes - counted


def slices(net, x, axis, *edges):
    """Parts of a dimension between neighbouring edges."""
    shape, made = list(shape_of(x)), []
    for start, stop in pairwise(edges):
        starts, sizes = [0] * len(shape), list(shape)
        starts[axis], sizes[axis] = start, stop - start
        made.append(net.layer(g.SliceOp(x, tuple(starts), tuple(sizes), (1,) * len(shape))))
    return made


def cat(net, *xs, axis=1):
    return net.layer(g.ConcatOp(list(xs), axis))


# ------------------------------------------------------------ what layers read


def shuffled(net):
    """Two blocks of a shuffle network: the second reads channels that the first has dealt."""
    x, rest = net.conv(net.input(1, 4, 8, 6), 10), net.conv(net.input(1, 4, 8, 6), 10, 1)
    for _ in range(2):
        dealt = net.layer(g.ShuffleOp(cat(net, x, rest), 2))
        first, rest = slices(net, dealt, 1, 0, 10, 20)
        x = net.conv(first, 10)
    return cat(net, x, rest)


def rolled(net):
    x = net.conv(net.input(1, 4, 10, 8), 6)
    head, tail = slices(net, x, 2, 0, 3, 10)
    return net.unary("relu", cat(net, tail, head, axis=2))


def windows(net):
    """Shifted windows and back: slices that cut rows of windows."""
    x = net.conv(net.input(1, 4, 6, 8), 6)
    head, tail = slices(net, x, 2, 0, 2, 6)
    cut = net.unary("relu", net.layer(g.ReshapeOp(cat(net, tail, head, axis=2), (1, 6, 2, 24))))
    whole = net.layer(g.ReshapeOp(cut, (1, 6, 6, 8)))
    head, tail = slices(net, whole, 2, 0, 4, 6)
    return net.binary("add", x, cat(net, tail, head, axis=2))


def bordered(mode):
    def build(net):
        x = net.conv(net.input(1, 3, 9, 8), 5)
        return net.conv(net.layer(g.BorderOp(mode, x, (1, 2), (2, 1))), 6, pads=(0, 0, 0, 0))

    return build


def upsampled(net):
    x = net.conv(net.input(1, 3, 6, 5), 4)
    skip = net.conv(net.input(1, 3, 12, 10), 4)
    scale = {"scale": (0.5, 0.5), "offset": (-0.25, -0.25)}
    up = net.layer(g.ResizeOp("linear", x, (12, 10), **scale))
    return net.conv(cat(net, up, skip), 5)


def transposed(net):
    """Phases of a transposed convolution, read by windows."""
    x = net.input(1, 4, 6, 5)
    phases = [net.conv(x, 3, 2, pads=(0, 0, 1, 1)) for _ in range(4)]
    return net.conv(net.layer(g.InterleaveOp(phases, (2, 2))), 5)


def reshaped(net):
    """No factors in common: rows of 15 of what was rows of 9."""
    x = net.unary("relu", net.input(1, 10, 9))
    turned = net.layer(g.TransposeOp(x, (0, 2, 1)))
    y = net.layer(g.ReshapeOp(turned, (1, 6, 15)))
    return net.layer(g.MatmulOp(y, net.weight(15, 8)))


def pooled(net):
    """Pads of a value, and beyond them those of a maximum."""
    x = net.unary("relu", net.input(1, 3, 9, 8))
    padded = net.layer(g.PadOp(x, (0, 0, 1, 1), (0, 0, 0, 1), 0.5))
    return net.layer(g.PoolOp("max", padded, (3, 3), (2, 2), (1, 1, 1, 1)))


def dealt(net):
    """Rows and columns of two maps as one dimension, side by side."""
    made = []
    for rows, columns in ((6, 5), (3, 4)):
        x = net.conv(net.input(1, 4, rows, columns), 6, 1)
        last = net.layer(g.TransposeOp(x, (0, 2, 3, 1)))
        made.append(net.layer(g.ReshapeOp(last, (1, rows * columns * 3, 2))))
    return net.layer(g.SoftmaxOp(cat(net, *made), 2))


READ = {
    "shuffled": shuffled, "rolled": rolled, "windows": windows, "reflected": bordered("reflect"),
    "repeated ends": bordered("edge"), "upsampled": upsampled, "transposed": transposed, "reshaped": reshaped,
    "pooled": pooled, "dealt": dealt,
}  # fmt: skip


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("name", READ)
def test_what_layers_read(name, cores):
    assert moved(READ[name], cores=cores) == 0


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("kib", [2, 4])
@pytest.mark.parametrize("name", ["transposed", "upsampled", "reflected", "reshaped", "pooled"])
def test_what_layers_read_in_little_memory(name, kib):
    """Loops: a pass of the program makes several of the plan where positions are rounded."""
    assert moved(READ[name], kib) == 0


# ------------------------------------------------------------ outputs


def padded(net):
    return net.layer(g.PadOp(net.conv(net.input(1, 3, 6, 5), 4), (0, 0, 1, 2), (0, 0, 2, 1), 3.0))


def side_by_side(net):
    x = net.input(1, 3, 6, 5)
    return cat(net, net.conv(x, 4), net.conv(x, 2), net.unary("relu", x))


def phases(net):
    x = net.input(1, 3, 6, 5)
    return net.layer(g.InterleaveOp([net.conv(x, 4) for _ in range(4)], (2, 2)))


def appended(net):
    """A cache that grows by a row, and a product that reads it."""
    past, new = net.input(1, 2, 7, 6), net.input(1, 2, 1, 6)
    cache = cat(net, past, new, axis=2)
    return net.layer(g.MatmulOp(net.input(1, 2, 1, 6), cache, trans_b=True)), cache


def part(net):
    (x,) = slices(net, net.conv(net.input(1, 3, 6, 5), 4), 2, 1, 4)
    return x


def backwards(net):
    return net.layer(g.SliceOp(net.conv(net.input(1, 3, 6, 5), 4), (0, 3, 0, 0), (1, 3, 6, 5), (1, -1, 1, 1)))


def twice(net):
    x = net.conv(net.input(1, 3, 6, 5), 4)
    return net.layer(g.TransposeOp(x, (0, 2, 3, 1))), x


def edges(net):
    x = net.conv(net.input(1, 3, 6, 5), 4)
    return net.layer(g.BorderOp("edge", x, (1, 1), (1, 1)))


def dealt_outputs(net):
    """Rows and columns as one dimension, and channels that several tensors share."""
    x = net.input(1, 3, 6, 5)
    both = cat(net, net.conv(x, 4), net.conv(x, 1))
    return net.layer(g.ReshapeOp(net.layer(g.TransposeOp(both, (0, 2, 3, 1))), (1, 30, 5)))


OUTPUTS = {
    "values around it are written": (padded, (9 * 8 - 6 * 5) * 4),
    "each tensor has its place": (side_by_side, 0),
    "phases have strides": (phases, 0),
    "a cache is written as it is loaded": (appended, 2 * 8 * 6),
    "of a part a copy is written": (part, 0),
    "of a part backwards nothing else is written": (backwards, -6 * 5),
    "two outputs of one tensor": (twice, 6 * 5 * 4),
    "ends are written again": (edges, (8 * 7 - 6 * 5) * 4),
    "dimensions of several axes": (dealt_outputs, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_views(name):
    """Beside what is counted: elements that no layer makes, or that stand in several places; less those of which no
    output has any."""
    build, elements = OUTPUTS[name]
    assert moved(build) == elements * FLOAT


def test_an_input_that_is_loaded_in_parts_is_passed_on_through_sram():
    """Two layers load it: the output is a copy of its own."""

    def build(net):
        x = net.input(1, 8, 16)
        return cat(net, x, net.unary("relu", x)), net.unary("tanh", x)

    assert moved(build) in (128 * FLOAT, 2 * 128 * FLOAT)


# ------------------------------------------------------------ what is resized


def resized(net, x):
    return net.layer(g.ResizeOp("nearest", x, (8, 6), scale=(0.5, 0.5), offset=(0.0, 0.0), rounding="floor"))


def in_pairs(net):
    """Rows are of two axes, since a pool takes two at a time: of one row that is read there are both."""
    skip = net.conv(net.input(1, 2, 8, 6), 4)
    return net.conv(net.binary("add", skip, resized(net, net.conv(net.pool("max", skip), 4))), 3)


def of_two(net):
    x = net.input(1, 2, 4, 3)
    return resized(net, cat(net, net.unary("relu", x), net.conv(x, 3)))


@pytest.mark.parametrize("build", [in_pairs, of_two])
def test_resizes(build):
    found = lowered_plans.case(build)
    names = ", ".join(f'"{layer.name}"' for layer in found.axes.layers)
    found = lowered_plans.case(build, f"compute {names}")
    moved_bytes, counted = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved_bytes == counted


# ------------------------------------------------------------ what pools read


def pooled_of_a_pad(net):
    """As many rows as before the pad: its zeros stand where no padding of a window is."""
    x = net.layer(g.PadOp(net.input(1, 2, 4, 4), low=(0, 0, -1, 0), high=(0, 0, 1, 0), value=0.0))
    return net.layer(g.PoolOp("max", x, kernel=(2, 1), strides=(1, 1)))


def test_the_zeros_of_a_pad_are_no_padding_of_a_pool():
    found = lowered_plans.case(pooled_of_a_pad, "compute pool_2")
    moved_bytes, counted = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved_bytes == counted


def test_a_window_of_which_there_is_one_place_comes_first():
    """Rows have padding, columns none; the window along columns is no axis of the result."""

    def build(net):
        numbers = {"pads": (0, 0, 1, 1), "dilations": (2, 2), "ceil_pads": (1, 1)}
        return net.layer(g.PoolOp("avg", net.input(3, 4, 11, 7), kernel=(2, 4), strides=(3, 3), **numbers))

    found = lowered_plans.case(build, "compute pool_1")
    moved_bytes, counted = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved_bytes == counted


def test_of_an_input_that_is_read_by_a_copy_all_is_known():
    """Channels are three groups to the first norm, two to the second, and no axis is both."""

    def build(net):
        x = net.input(2, 6, 5, 9)
        return tuple(net.layer(g.NormaliseOp(x, axes=(1,), epsilon=1e-2, groups=groups)) for groups in (3, 2))

    assert moved(build) == 0


def test_what_is_made_of_a_pad_does_not_lie_where_it_is_padded():
    """Its last row would lie where the next channel's first one is read."""

    def build(net):
        x = net.unary("tanh", net.input(1, 6, 5, 4))
        x = net.layer(g.PadOp(x, low=(0, 0, -1, 0), high=(0, 0, 2, 0), value=0.0))
        return net.unary("relu", net.unary("abs", x))

    found = lowered_plans.case(build, "compute unary_1, unary_3, unary_4")
    moved_bytes, counted = lowered_plans.check_lowered(found, lowered_plans.machine(cores=1))
    assert moved_bytes == counted
