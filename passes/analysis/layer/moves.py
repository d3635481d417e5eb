"""Operations that only move data, as copies, and those of them that are layers among others in a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.graph.views import CHANNELS_LAST
from frustum.dialects.tile import SAME, Access, Axis, TensorView, Whole
from frustum.passes.analysis.layer.nest import (
    CONCAT,
    RANK,
    SAME4,
    Layer,
    MapOperand,
    dense,
    four,
    refused,
)


@dataclass(frozen=True)
class Move:
    """One copy of a moving layer: which operand, its view in the loops' coordinates, where it goes in the result."""

    operand: int
    dims: Extents
    source: TensorView
    target: TensorView
    fill: float | None = None
    low: Extents = (0, 0, 0, 0)
    bound: Extents = (0, 0, 0, 0)


def _move(
    operand: int,
    dims: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
    source_offset: int = 0,
    target_offset: int = 0,
) -> Move:
    d = four(dims, 1)
    return Move(
        operand,
        d,
        TensorView(source_offset, four(source, 0)),
        TensorView(target_offset, four(target, 0)),
        bound=d,
    )


def shuffle(op: g.ShuffleOp) -> Layer:
    """Channels in another order: every piece has all of them."""
    dims = four(g.shape_of(op.x), 1)
    view = TensorView(0, four(dense(dims), 0))
    maps = (MapOperand(0, dims, view, (SAME, Whole(dims[1]), SAME, SAME)),)
    return Layer("shuffle", dims, view, maps, {"groups": op.groups}, axes_all=(1,))


def pick(op: g.PickOp) -> Layer:
    """Every steps-th position from starts on: pieces are read with longer strides."""
    dims, out = four(g.shape_of(op.x), 1), four(g.shape_of(op.result), 1)
    n, c, h, w = (Axis(step, 1, start, 0) for start, step in zip(op.starts, op.steps, strict=True))
    maps = (MapOperand(0, dims, TensorView(0, four(dense(dims), 0)), (n, c, h, w)),)
    return Layer("pick", out, TensorView(0, four(dense(out), 0)), maps, {"steps": op.steps})


def turn(op: g.TurnOp) -> Layer:
    """A copy, of which one tensor lies with the channels last."""
    shape = g.shape_of(op.x)
    is_outward = op.perm == CHANNELS_LAST
    n, c, h, w = shape if is_outward else (shape[i] for i in op.perm)
    dims = (n, c, h, w)
    first, last = TensorView(0, four(dense(dims), 0)), TensorView(0, (h * w * c, 1, w * c, c))
    source, target = (first, last) if is_outward else (last, first)
    return Layer("pick", dims, target, (MapOperand(0, dims, source, SAME4),), {"steps": (1, 1, 1, 1)})


def side_by_side(op: g.ConcatOp) -> Layer:
    """A concatenation along the channels of maps, in a unit; raises `Unsupported` for any other."""
    out = g.shape_of(op.result)
    if len(out) != RANK or op.axis != 1:
        raise refused(
            op, f"axis {op.axis} of {len(out)} is concatenated; in a unit it must be axis 1 of {RANK}"
        )
    maps = []
    for index, x in enumerate(op.xs):
        dims = four(g.shape_of(x), 1)
        access: Access = (SAME, Whole(dims[1]), SAME, SAME)
        maps.append(MapOperand(index, dims, TensorView(0, four(dense(dims), 0)), access))
    return Layer(CONCAT, four(out, 1), TensorView(0, four(dense(out), 0)), tuple(maps), axes_all=(1,))


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


def pad(op: g.PadOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    if len(shape) > RANK:
        raise refused(op, f"{len(shape)} dimensions, at most {RANK} run on the device")
    low = four([-p for p in op.low], 0)
    view = TensorView(0, four(dense(shape), 0))
    return [
        Move(0, four(out, 1), view, TensorView(0, four(dense(out), 0)), float(op.value), low, four(shape, 1))
    ]


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
            result.append(
                Move(
                    0,
                    move.dims,
                    TensorView(move.source.offset + i * source[smallest], move.source.strides),
                    TensorView(move.target.offset + i * target[smallest], move.target.strides),
                    bound=move.bound,
                )
            )
    return result


def interleave(op: g.InterleaveOp) -> list[Move]:
    out = g.shape_of(op.result)
    n, c, h, w = dense(out)
    fh, fw = op.factor
    return [
        _move(i, g.shape_of(x), dense(g.shape_of(x)), (n, c, h * fh, w * fw), 0, (i // fw) * h + (i % fw) * w)
        for i, x in enumerate(op.parts)
        if math.prod(g.shape_of(x))
    ]
