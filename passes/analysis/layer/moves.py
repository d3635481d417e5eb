# Tests: test/passes/onnx/test_images.py
"""Operations that only move data, as copies, and those of them that are layers among others in a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, replaced
from frustum.dialects.functions import Border
from frustum.dialects.graph.views import CHANNELS_LAST
from frustum.dialects.tile import (
    SAME,
    AnyAxis,
    Axis,
    BorderLayer,
    ConcatLayer,
    DepthToSpaceLayer,
    PickLayer,
    ShuffleLayer,
    SpaceToDepthLayer,
    StackLayer,
    TensorView,
    Whole,
    WrapLayer,
)
from frustum.passes.analysis.layer.nest import (
    RANK,
    SAME4,
    Layer,
    MapOperand,
    Move,
    builds,
    chosen_form,
    contiguous,
    copies,
    dense,
    formed,
    loops,
    refused,
    window,
)

CHANNELS = 1


def _move(
    operand: int,
    dims: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
    source_offset: int = 0,
    target_offset: int = 0,
) -> Move:
    views = TensorView(source_offset, loops(source, 0)), TensorView(target_offset, loops(target, 0))
    return Move(operand, loops(dims), *views, bound=loops(dims))


@builds(g.ShuffleOp)
def shuffle(op: g.ShuffleOp) -> Layer:
    """Channels in another order: every piece has all of them."""
    first = all_channels(0, g.shape_of(op.x))
    return Layer(ShuffleLayer(op.groups), first.dims, first.view, (first,), axes_all=(CHANNELS,))


def all_channels(index: int, shape: Sequence[int]) -> MapOperand:
    """An operand of which every piece needs all channels."""
    dims = loops(shape)
    return MapOperand(index, dims, contiguous(dims), replaced(SAME4, CHANNELS, Whole(dims[CHANNELS])))


@builds(g.PickOp)
def pick(op: g.PickOp) -> Layer:
    """Every steps-th position from starts on: pieces are read with longer strides."""
    form = chosen_form(op)
    if form is None:
        dims, out, starts, steps = loops(g.shape_of(op.x)), loops(g.shape_of(op.result)), op.starts, op.steps
        own, made = contiguous(dims), contiguous(out)
    else:
        starts, steps = (tuple(each[form.index(loop)] for loop in range(RANK)) for each in (op.starts, op.steps))
        (dims, of_x), (out, of_result) = (formed(g.shape_of(x), form) for x in (op.x, op.result))
        own, made = TensorView(0, of_x), TensorView(0, of_result)
    access = tuple(Axis(step, 1, start, 0) for start, step in zip(starts, steps, strict=True))
    return Layer(PickLayer(tuple(steps)), out, made, (MapOperand(0, dims, own, access),))


@builds(g.StackOp, shares=True)
def stack(op: g.StackOp) -> Layer:
    """Of a volume the operand's images and channels change places."""
    dims, out = op.slices, g.shape_of(op.result)
    view = swapped(dims) if op.volume else contiguous(dims)
    slices = window(op.kernel, op.stride, op.pads[0], op.dilation)
    kind = StackLayer(op.kernel, op.stride, op.dilation, op.pads[0])
    operand = MapOperand(0, dims, view, (slices, Axis(1, op.kernel), SAME, SAME))
    return Layer(kind, out, contiguous(out), (operand,), align=(1, op.kernel, 1, 1))


def swapped(dims: Extents) -> TensorView:
    """How slices [D, C, H, W] lie in their volume [C, D, H, W]."""
    _, depth, row, column = dense((dims[1], dims[0], *dims[2:]))
    return TensorView(0, (depth, depth * dims[0], row, column))


@builds(g.VolumeOp, shares=True)
def volume(op: g.VolumeOp) -> Layer:
    """A copy of slices to where they lie in their volume."""
    dims = g.shape_of(op.x)
    return Layer(PickLayer((1,) * RANK), dims, swapped(dims), (MapOperand(0, dims, contiguous(dims), SAME4),))


@builds(g.TurnOp)
def turn(op: g.TurnOp) -> Layer:
    """A copy, of which one tensor lies with the channels last."""
    shape = g.shape_of(op.x)
    is_outward = op.perm == CHANNELS_LAST
    dims = tuple(shape) if is_outward else tuple(shape[i] for i in op.perm)
    _, c, h, w = dims
    first, last = contiguous(dims), TensorView(0, (h * w * c, 1, w * c, c))
    source, target = (first, last) if is_outward else (last, first)
    return Layer(PickLayer((1,) * RANK), dims, target, (MapOperand(0, dims, source, SAME4),))


@builds(g.BorderOp, shares=True)
def border(op: g.BorderOp) -> Layer:
    """What is mirrored lies as far on the other side of the map's end; what wraps around, anywhere along the axis."""
    dims, out = loops(g.shape_of(op.x)), loops(g.shape_of(op.result))
    ends = tuple(op.low), tuple(op.high)
    plane: Sequence[AnyAxis]
    kind: BorderLayer | WrapLayer
    if op.mode == Border.WRAP:
        kind, borders = WrapLayer(*ends), map(any, zip(*ends, strict=True))
        plane = [Whole(size) if border else SAME for size, border in zip(dims[2:], borders, strict=True)]
    else:
        kind = BorderLayer(op.mode == Border.REFLECT, *ends)
        times = 2 if kind.mirrored else 1
        plane = [Axis(1, 1, -low - times * high, times * (low + high)) for low, high in zip(*ends, strict=True)]
    return Layer(kind, out, contiguous(out), (MapOperand(0, dims, contiguous(dims), (SAME, SAME, *plane)),))


@builds(g.DepthToSpaceOp, shares=True)
def depth_to_space(op: g.DepthToSpaceOp) -> Layer:
    """Phases next to each other are read as channels next to each other; others all at once."""
    down, across = op.factor
    dims, out = loops(g.shape_of(op.x)), loops(g.shape_of(op.result))
    is_near = op.apart == 1
    channels = Axis(op.phases, 1, 0, op.phases - 1) if is_near else Whole(dims[CHANNELS])
    access = (SAME, channels, Axis(1, down), Axis(1, across))
    return Layer(
        DepthToSpaceLayer(tuple(op.factor), op.apart), out, contiguous(out),
        (MapOperand(0, dims, contiguous(dims), access),),
        axes_all=() if is_near else (CHANNELS,), align=(1, 1, down, across),
    )  # fmt: skip


@builds(g.SpaceToDepthOp, shares=True)
def space_to_depth(op: g.SpaceToDepthOp) -> Layer:
    """Every piece has all channels."""
    down, across = op.factor
    dims, out = loops(g.shape_of(op.x)), loops(g.shape_of(op.result))
    access = (SAME, Whole(dims[CHANNELS]), Axis(down, 1, 0, down - 1), Axis(across, 1, 0, across - 1))
    kind = SpaceToDepthLayer(tuple(op.factor), op.apart)
    return Layer(kind, out, contiguous(out), (MapOperand(0, dims, contiguous(dims), access),), axes_all=(CHANNELS,))


def is_side_by_side(op: g.ConcatOp) -> bool:
    """A concatenation of images' channels, which can be a place in a unit."""
    return op.axis == CHANNELS and len(g.shape_of(op.result)) == RANK


@builds(g.ConcatOp, shares=True)
def side_by_side(op: g.ConcatOp) -> Layer:
    """A concatenation along the channels of maps, in a unit; raises `Unsupported` for any other."""
    out = g.shape_of(op.result)
    if not is_side_by_side(op):
        raise refused(
            op, f"axis {op.axis} of {len(out)} is concatenated; in a unit it must be axis 1 of {RANK}"
        )
    maps = tuple(all_channels(index, g.shape_of(x)) for index, x in enumerate(op.xs))
    return Layer(ConcatLayer(), loops(out), contiguous(out), maps, axes_all=(CHANNELS,))


@copies(g.ConcatOp)
def concat(op: g.ConcatOp) -> list[Move]:
    out = g.shape_of(op.result)
    result, moves = [], 0
    inner = math.prod(out[op.axis + 1 :])
    for index, x in enumerate(op.xs):
        extent = g.shape_of(x)[op.axis]
        dims = (math.prod(out[: op.axis]), extent, inner)
        result.append(_move(index, dims, dense(dims), (out[op.axis] * inner, inner, 1), 0, moves * inner))
        moves += extent
    return result


@copies(g.SliceOp)
def slices(op: g.SliceOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    strides = dense(shape)
    offset = sum(b * s for b, s in zip(op.starts, strides, strict=True))
    source = [s * t for s, t in zip(strides, op.steps, strict=True)]
    dims, source_strides, target_strides = collapse(out, source, dense(out))
    return [_move(0, dims, source_strides, target_strides, offset)]


def collapse(dims: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Dimensions and strides with neighbours merged wherever every stride allows it, and ones dropped."""
    kept: list[tuple[int, ...]] = []
    for entry in zip(dims, *strides, strict=True):
        if entry[0] == 1:
            continue
        if kept and all(a == b * entry[0] for a, b in zip(kept[-1][1:], entry[1:], strict=True)):
            kept[-1] = (kept[-1][0] * entry[0], *entry[1:])
        else:
            kept.append(entry)
    if not kept:
        kept = [(1, *(0 for _ in strides))]
    return tuple(zip(*kept, strict=True))


@copies(g.PadOp)
def pad(op: g.PadOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    if len(shape) > RANK:
        raise refused(op, f"{len(shape)} dimensions, at most {RANK} run on the device")
    low = loops((-p for p in op.low), 0)
    return [Move(0, loops(out), contiguous(shape), contiguous(out), float(op.value), low, loops(shape))]


@copies(g.TransposeOp)
def transpose(op: g.TransposeOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    strides = dense(shape)
    dims, source, target = collapse(out, [strides[p] for p in op.perm], dense(out))
    return nest(dims, source, target)


def nest(dims: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[Move]:
    """Copies of at most four dimensions; further outer ones become copies of their own."""
    if len(dims) <= RANK:
        return [_move(0, dims, source, target)]
    smallest = min(range(len(dims)), key=lambda i: dims[i])
    rest = [[v for i, v in enumerate(values) if i != smallest] for values in (dims, source, target)]
    result = []
    for i in range(dims[smallest]):
        for move in nest(*rest):
            first = replace(move.source, offset=move.source.offset + i * source[smallest])
            then = replace(move.target, offset=move.target.offset + i * target[smallest])
            result.append(replace(move, source=first, target=then))
    return result


@copies(g.InterleaveOp)
def interleave(op: g.InterleaveOp) -> list[Move]:
    out = g.shape_of(op.result)
    n, c, h, w = dense(out)
    fh, fw = op.factor
    return [
        _move(i, g.shape_of(x), dense(g.shape_of(x)), (n, c, h * fh, w * fw), 0, (i // fw) * h + (i % fw) * w)
        for i, x in enumerate(op.parts)
        if math.prod(g.shape_of(x))
    ]


@copies(g.RearrangeOp)
def rearrange(op: g.RearrangeOp) -> list[Move]:
    result = []
    for first, start, extents, steps, made in op.parts:
        for move in nest(*collapse(extents, steps, made)):
            source = replace(move.source, offset=move.source.offset + first)
            target = replace(move.target, offset=move.target.offset + start)
            result.append(replace(move, source=source, target=target))
    return result
