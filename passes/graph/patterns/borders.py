# Tests: test/passes/graph/patterns/test_borders.py
"""Borders of a map that are made of its own elements: what puts slices of a map before and behind it is one layer.

    concat(reverse(x[1:3]), x, reverse(x[-3:-1]))  ->  border(x) reflect         along any axis but channels of maps
    concat(x[:1], x[:1], x)                        ->  border(x) edge            the first and the last repeated
    concat(x[-2:], x, x[:1])                       ->  border(x) wrap            those of the other end

A tensor of another rank, or its first axis, is seen as a map of which that axis is rows or columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.functions import Border

MAP_RANK, CHANNELS, ROWS, COLUMNS = 4, 1, 2, 3


def find_borders(module: ModuleOp) -> None:
    """Write concatenations of a map with slices of it as borders, those of rows and of columns together."""
    for op in [each for each in module.walk() if isinstance(each, g.ConcatOp)]:
        made = border_of(op)
        if made is None:
            continue
        slices = [x.owner for x in op.xs if isinstance(x.owner, g.SliceOp)]
        border = next(each for each in made if isinstance(each, g.BorderOp))
        inner = border.x.owner
        for each in made:
            each.location = op.location
        Rewriter.replace_op(op, made)
        for each in dict.fromkeys(slices):
            if not each.result.uses:
                Rewriter.erase_op(each)
        if isinstance(inner, g.BorderOp) and inner.result.has_one_use():
            join(border, inner)


def border_of(op: g.ConcatOp) -> list[Operation] | None:
    """The border that a concatenation makes of what its parts are of, between reshapes where that is no map; None where
    it makes none."""
    axis, shape = op.axis, g.shape_of(op.result)
    x = next((part.owner.x for part in op.xs if isinstance(part.owner, g.SliceOp)), op.xs[0])
    if (axis == CHANNELS and len(shape) == MAP_RANK) or not all(is_part(part, x, axis) for part in op.xs):
        return None
    extent, places = g.shape_of(x)[axis], [place for part in op.xs for place in places_of(part, x, axis)]
    for mode, low, high in ways(places, extent):
        if max(low, high) > 0 and places == [place_of(i, extent, mode) for i in range(-low, extent + high)]:
            seen, rows = as_map(g.shape_of(x), axis)
            ends = ((low, 0), (high, 0)) if rows else ((0, low), (0, high))
            return bordered(x, seen, shape, mode, ends)
    return None


def ways(places: Sequence[int], extent: int) -> Iterator[tuple[Border, int, int]]:
    """Modes, with the positions before and behind, that the first of all positions allows."""
    lows = [(Border.EDGE, places.count(0) - 1), (Border.WRAP, -places[0] % extent)]
    if 0 in places:
        lows.insert(1, (Border.REFLECT, places.index(0)))
    for mode, low in lows:
        high = len(places) - low - extent
        if low >= 0 and high >= 0 and (mode != Border.WRAP or high <= extent):
            yield mode, low, high


def as_map(shape: Extents, axis: int) -> tuple[Extents, bool]:
    """The map [N, C, H, W] as which a tensor is seen whose axis gets borders, and whether the axis is its rows."""
    rank = len(shape)
    if rank == MAP_RANK and axis >= ROWS:
        return shape, axis == ROWS
    if rank == MAP_RANK - 1 and axis == rank - 1:  # as convolutions with one spatial axis see it
        return (*shape[:2], 1, shape[2]), False
    if axis < rank - 2 or rank == 1:
        return (1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])), True
    return (1, math.prod(shape[:-2]), *shape[-2:]), axis == rank - 2


def bordered(
    x: SSAValue, seen: Extents, shape: Extents, mode: Border, ends: tuple[Extents, Extents]
) -> list[Operation]:
    """The border of a tensor seen as a map, as a tensor of `shape`."""
    if seen == g.shape_of(x):
        return [g.BorderOp(mode, x, *ends)]
    inner = x.owner
    if isinstance(inner, g.ReshapeOp) and isinstance(inner.x.owner, g.BorderOp) and g.shape_of(inner.x) == seen:
        border = g.BorderOp(mode, inner.x, *ends)
        return [border, g.ReshapeOp(border.result, shape)]
    flat = g.ReshapeOp(x, seen)
    border = g.BorderOp(mode, flat.result, *ends)
    return [flat, border, g.ReshapeOp(border.result, shape)]


def places_of(part: SSAValue, x: SSAValue, axis: int) -> Iterable[int]:
    """The positions of x along an axis that are in a part."""
    if part is x:
        return range(g.shape_of(x)[axis])
    cut = part.owner
    assert isinstance(cut, g.SliceOp)
    return (cut.starts[axis] + k * cut.steps[axis] for k in range(g.shape_of(part)[axis]))


def place_of(index: int, extent: int, mode: Border) -> int:
    """The position that a border shows at one before or behind the map; outside of it where one mirror is too few."""
    if mode == Border.WRAP:
        return index % extent
    if mode == Border.EDGE:
        return min(max(index, 0), extent - 1)
    return extent - 1 - abs(extent - 1 - abs(index))


def is_part(part: SSAValue, x: SSAValue, axis: int) -> bool:
    """x, or a slice of it along this axis alone."""
    if part is x:
        return True
    cut = part.owner
    if not isinstance(cut, g.SliceOp) or cut.x is not x:
        return False
    whole, made = g.shape_of(x), g.shape_of(part)
    others = [i for i in range(len(whole)) if i != axis]
    return all((cut.starts[i], cut.steps[i], made[i]) == (0, 1, whole[i]) for i in others)


def join(outer: g.BorderOp, inner: g.BorderOp) -> None:
    """Borders along rows and along columns as one."""
    along = [[low or high for low, high in zip(op.low, op.high, strict=True)] for op in (outer, inner)]
    if any(a and b for a, b in zip(*along, strict=True)) or outer.mode != inner.mode:
        return
    low, high = (tuple(map(max, *ends)) for ends in ((outer.low, inner.low), (outer.high, inner.high)))
    both = g.BorderOp(outer.mode, inner.x, low, high)
    both.location = outer.location
    Rewriter.replace_op(outer, both)
    Rewriter.erase_op(inner)
