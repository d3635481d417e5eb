"""What layers read, against numpy: a view has the elements that its operation has, and the part of an operand that a
layer asks for is enough for its part of the result."""

import random

import numpy as np
import pytest
from xdsl.dialects.builtin import f32
from xdsl.ir import Block

from frustum.dialects import graph as g
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.graph.axes import NEEDS_ALL, OPERATIONS
from frustum.dialects.graph.axes.reader import Reader
from frustum.dialects.graph.declaration import declared_in
from frustum.runtime.reference.axes import gathered, view_array
from frustum.runtime.reference.layers import evaluated


def block(*shapes):
    return Block(arg_types=[g.tensor_type(f32, shape) for shape in shapes])


def numbered(*shape):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


MOVES = {
    "reshape": lambda x: g.ReshapeOp(x(4, 6, 5), (2, 2, 3, 10)),
    "transpose": lambda x: g.TransposeOp(x(4, 6, 5), (2, 0, 1)),
    "slice": lambda x: g.SliceOp(x(4, 6, 5), (1, 0, 4), (3, 3, 5), (1, 2, -1)),
    "pad": lambda x: g.PadOp(x(4, 6), (1, -2), (2, 3), 7.0),
    "reflect": lambda x: g.BorderOp("reflect", x(1, 2, 4, 5), (1, 3), (2, 1)),
    "edge": lambda x: g.BorderOp("edge", x(1, 2, 4, 5), (3, 3), (2, 5)),
    "wrap": lambda x: g.BorderOp("wrap", x(1, 2, 4, 5), (1, 3), (2, 1)),
    "concat": lambda x: g.ConcatOp([x(2, 3, 4), x(2, 5, 4), x(2, 1, 4)], 1),
    "shuffle": lambda x: g.ShuffleOp(x(1, 12, 3, 2), 4),
    "part": lambda x: g.PartOp(x(5, 3, 2), 2, 2),
    "volume": lambda x: g.VolumeOp(x(3, 4, 2, 5)),
    "stack": lambda x: g.StackOp(x(6, 2, 3, 3), 3, 2, (1, 2), 1),
    "stack of a volume": lambda x: g.StackOp(x(2, 6, 3, 3), 3, 1, (1, 1), 1, True),
    "space to depth": lambda x: g.SpaceToDepthOp(x(1, 3, 4, 6), (2, 3), 1),
    "space to depth, apart": lambda x: g.SpaceToDepthOp(x(1, 3, 4, 6), (2, 3), 3),
    "depth to space": lambda x: g.DepthToSpaceOp(x(1, 12, 3, 2), (2, 3), 1, (1, 2, 6, 6)),
    "depth to space, a row less": lambda x: g.DepthToSpaceOp(x(1, 12, 3, 2), (2, 3), 2, (1, 2, 5, 6)),
    "interleave": lambda x: g.InterleaveOp([x(1, 2, 3, 2), x(1, 2, 3, 2)], (2, 1)),
    "interleave, a row less": lambda x: g.InterleaveOp([x(1, 2, 3, 2), x(1, 2, 2, 2)], (2, 1)),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_is_a_view_of_the_same_elements(name):
    values, reader, arrays = [], Reader(), {}

    def value(*shape):
        own = block(shape).args[0]
        reader.views[own] = reader.root(f"x{len(values)}", own, Kind.INPUT)
        arrays[reader.tensors[-1]] = numbered(*shape) + 1000 * len(values)
        values.append(own)
        return own

    op = MOVES[name](value)
    before = len(reader.layers)
    reader.read(op)
    assert len(reader.layers) == before, "no layer"
    found = view_array(reader.views[op.results[0]], arrays)
    wanted = evaluated(op, [arrays[reader.views[v].pieces[0].tensor] for v in op.operands])
    np.testing.assert_array_equal(found, wanted)


def test_a_roll_of_windows_is_a_view():
    """Slices, a concatenation and two reshapes, as shifted windows are exported."""
    (x,) = block((12, 3)).args
    tail, head = g.SliceOp(x, (3, 0), (9, 3)), g.SliceOp(x, (0, 0), (3, 3))
    rolled = g.ConcatOp([tail.result, head.result], 0)
    windows = g.ReshapeOp(rolled.result, (3, 4, 3))
    back = g.SliceOp(g.ReshapeOp(windows.result, (12, 3)).result, (2, 0), (7, 3))
    reader = Reader()
    reader.views[x] = reader.root("x", x, Kind.INPUT)
    for op in (tail, head, rolled, windows, back.x.owner, back):
        reader.read(op)
    assert not reader.layers
    found = view_array(reader.views[back.result], {reader.tensors[0]: numbered(12, 3)})
    np.testing.assert_array_equal(found, np.roll(numbered(12, 3), -3, 0)[2:9])


def shuffled(x, count):
    """Channels dealt to two halves, and the first of these."""
    shuffle = g.ShuffleOp(x, 2)
    return [shuffle, g.SliceOp(shuffle.result, (0, 0, 0, 0), (1, count // 2, 2, 1), (1, 1, 1, 1))]


COPIES = {
    "a reshape of no common factors": lambda x: [g.ReshapeOp(x, (1, 6, 2, 1))],
    "a part of dealt channels that cuts a group": lambda x: [
        shuffle := g.ShuffleOp(x, 2), g.SliceOp(shuffle.result, (0, 1, 0, 0), (1, 4, 1, 1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_what_is_read_at_rounded_positions_is_copied(name):
    """The copy says of every position what it reads: it may be made in parts."""
    (x,) = block((1, 3, 4, 1) if "reshape" in name else (1, 6, 1, 1)).args
    turned = g.TransposeOp(x, (0, 2, 1, 3)) if "reshape" in name else g.ReshapeOp(x, (1, 6, 1, 1))
    ops, reader = [turned, *COPIES[name](turned.result)], Reader()
    reader.views[x] = reader.root("x", x, Kind.INPUT)
    for op in ops:
        reader.read(op)
    (layer,) = reader.layers
    array = numbered(*g.shape_of(x))
    values = {x: array}
    for op in ops:
        values[op.results[0]] = evaluated(op, [values[v] for v in op.operands])
    (operand,) = layer.operands
    assert not operand.is_all and str(layer.source.kind) == "identity"
    found = gathered(operand.pieces, layer.axes, {reader.tensors[0]: array})
    np.testing.assert_array_equal(found.reshape(-1), values[ops[-1].results[0]].reshape(-1))


def test_parts_of_dealt_channels_are_views_where_groups_stay_whole():
    """Two shuffles of concatenations, as shuffle networks have them: the first part is a view, the second a copy."""
    a, b, c = block(*[(1, 6, 2, 1)] * 3).args
    both = g.ConcatOp([a, b], 1)
    first = shuffled(both.result, 12)
    again = g.ConcatOp([first[-1].result, c], 1)
    second = shuffled(again.result, 12)
    third = g.ConcatOp([second[-1].result, b], 1)
    ops, reader, values = [both, *first, again, *second, third], Reader(), {}
    for k, own in enumerate((a, b, c)):
        reader.views[own] = reader.root(f"x{k}", own, Kind.INPUT)
        values[own] = numbered(1, 6, 2, 1) + 100 * k
    counts = []
    for op in ops:
        reader.read(op)
        values[op.results[0]] = evaluated(op, [values[v] for v in op.operands])
        counts.append(len(reader.layers))
    assert counts == [0, 0, 0, 0, 0, 1, 1]
    assert not any(operand.is_all for layer in reader.layers for operand in layer.operands)
    arrays = {tensor: values[own].reshape(6, 2) for tensor, own in zip(reader.tensors, (a, b, c), strict=False)}
    (copy,) = reader.layers
    found = gathered(copy.operands[0].pieces, copy.axes, arrays)
    arrays[copy.result] = found
    np.testing.assert_array_equal(view_array(reader.views[third.result], arrays), values[third.result])


LAYERS = {
    "conv": lambda a: g.ConvOp(a[0], a[1], a[2], (2, 1), (1, 2, 0, 1), (1, 2), 1),
    "groups": lambda a: g.ConvOp(a[0], a[1], None, (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "pool": lambda a: g.PoolOp("avg", a[0], (3, 2), (2, 1), (1, 0, 1, 1)),
    "matmul": lambda a: g.MatmulOp(a[0], a[1], trans_b=True),
    "batched": lambda a: g.MatmulOp(a[0], a[1]),
    "reduce": lambda a: g.ReduceOp("mean", a[0], (1, 3), False),
    "resize": lambda a: g.ResizeOp("linear", a[0], (7, 9), scale=(5 / 7, 6 / 9), offset=(-0.1, 0.2)),
    "nearest": lambda a: g.ResizeOp(
        "nearest", a[0], (7, 4), rounding="round_prefer_ceil", scale=(5 / 7, 1.5), offset=(0, 0)
    ),
    "broadcast": lambda a: g.BinaryOp("mul", a[0], a[1]),
}
SHAPES = {
    "conv": [(1, 3, 9, 8), (4, 3, 3, 3), (4,)], "groups": [(2, 4, 6, 5), (6, 2, 3, 3)], "pool": [(1, 3, 9, 8)],
    "matmul": [(2, 5, 6), (7, 6)],
    "batched": [(2, 1, 5, 6), (3, 6, 4)],
    "reduce": [(2, 4, 5, 6)],
    "resize": [(1, 2, 5, 6)],
    "nearest": [(1, 2, 5, 6)], "broadcast": [(2, 1, 5, 6), (4, 1, 6)],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", LAYERS)
def test_the_part_that_is_asked_for_is_enough(name, seed):
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    arguments = block(*SHAPES[name]).args
    op = LAYERS[name](arguments)
    reader = Reader()
    for k, own in enumerate(arguments):
        reader.views[own] = reader.root(f"x{k}", own, Kind.INPUT)
    reader.read(op)
    (layer,) = reader.layers
    assert not any(operand.is_all for operand in layer.operands)
    ranges = {}
    for axis in layer.result.axes:
        start = draw.randrange(axis.extent)
        ranges[axis] = start, draw.randrange(start, axis.extent) + 1
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES[name]]
    masked = []
    for boxes, array in zip(layer.part(ranges), arrays, strict=True):
        kept = np.full_like(array, np.nan).reshape(
            [axis.extent for box in boxes[:1] for axis in box[0].axes] or array.shape
        )
        for tensor, box in boxes:
            place = tuple(slice(*box_of(box, leaf)) for leaf in tensor.axes)
            kept[place] = array.reshape(kept.shape)[place]
        masked.append(kept.reshape(array.shape))
    here = tuple(slice(*ranges[axis]) for axis in layer.result.axes)
    shape = [axis.extent for axis in layer.result.axes]
    wanted, found = (evaluated(op, each).reshape(shape)[here] for each in (arrays, masked))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def box_of(box, leaf):
    (found,) = [(axis, span) for axis, span in box.items() if leaf in axis.leaves]
    axis, span = found
    return span if axis is leaf else (0, leaf.extent)


def test_every_operation_of_the_level_is_known():
    from frustum.dialects.graph import attention, layers, products, views

    operations = {op for module in (products, attention, layers, views) for op in declared_in(module)}
    assert operations - set(OPERATIONS) == set(NEEDS_ALL)
