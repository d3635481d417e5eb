# Tests: test/passes/graph/composites/test_part_products.py
"""Slices of some channels of what a product makes, behind reshapes and transpositions of the whole.

    slice(transpose(reshape(product)))  ->  transpose(reshape(channels of the product))

Exporters put queries, keys and values of one product on an axis of their own, and that first, and take each from there:
all of them are moved before a layer reads any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.passes.graph.patterns.strided import Strided, joined
from frustum.passes.weights import WeightStore


@dataclass(frozen=True)
class ChannelSlice:
    """A slice that takes `width` channels from `first` on, at every position.

    `extents`: the axes of what it takes as they lie in the product's result; `perm`: their order in the slice.
    """

    op: g.SliceOp
    first: int
    width: int
    extents: tuple[int, ...]
    perm: tuple[int, ...]


def channel_slices(product: g.MatmulOp) -> list[ChannelSlice]:
    """All that is read of a product's result, if that is some channels each, behind at least one transposition; by the
    channels."""
    found: list[ChannelSlice] = []
    is_moved = False
    waiting: list[tuple[SSAValue, Strided]] = [(product.result, Strided.whole(g.shape_of(product.result)))]
    while waiting:
        value, seen = waiting.pop()
        for op in dict.fromkeys(use.operation for use in value.uses):
            after = seen.after(op, WeightStore()) if isinstance(op, Move) else None
            if after is None:
                return []
            is_moved |= isinstance(op, g.TransposeOp)
            if not isinstance(op, g.SliceOp):
                waiting.append((op.results[0], after))
                continue
            part = as_channels(op, after, g.shape_of(product.result))
            if part is None:
                return []
            found.append(part)
    return sorted(found, key=lambda part: part.first) if is_moved else []


Move = g.ReshapeOp | g.TransposeOp | g.SliceOp


def as_channels(op: g.SliceOp, seen: Strided, shape: tuple[int, ...]) -> ChannelSlice | None:
    """A slice of a tensor of this shape as one of its last axis; None where it is another."""
    digits = [digit for axis in seen.axes for digit in axis]
    order = sorted(range(len(digits)), key=lambda i: digits[i][1], reverse=True)
    width = math.prod(g.shape_of(op.result)) // math.prod(shape[:-1])
    wanted = Strided.whole(shape).axes[:-1]
    own = joined([*(digit for axis in wanted for digit in axis), *(((width, 1),) if width > 1 else ())])
    if not 0 < width < shape[-1] or seen.offset + width > shape[-1] or joined(digits[i] for i in order) != own:
        return None
    extents = tuple(digits[i][0] for i in order)
    return ChannelSlice(op, seen.offset, width, extents, tuple(order.index(i) for i in range(len(order))))


def moved_as(part: ChannelSlice, made: SSAValue) -> list[Operation]:
    """The moves that bring a product's channels to where a slice has them; the last makes the slice's tensor."""
    moves: list[Operation] = []
    if part.perm != tuple(range(len(part.perm))):
        moves.append(g.ReshapeOp(made, part.extents))
        moves.append(g.TransposeOp(moves[-1].results[0], part.perm))
    moves.append(g.ReshapeOp(moves[-1].results[0] if moves else made, g.shape_of(part.op.result)))
    for move in moves:
        move.location = part.op.location
    return moves
