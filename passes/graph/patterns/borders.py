# Tests: test/passes/graph/patterns/test_borders.py
"""Borders of a map that are made of its own elements: what puts slices of a map before and behind it is one layer.

    concat(reverse(x[1:3]), x, reverse(x[-3:-1]))  ->  border(x) mirrored        along rows, columns or both
    concat(x[:1], x[:1], x)                        ->  border(x)                 the first and the last repeated
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g

MAP_RANK, ROWS = 4, 2


def find_borders(module: ModuleOp) -> None:
    """Write concatenations of a map with slices of it as borders, those of rows and of columns together."""
    for op in [each for each in module.walk() if isinstance(each, g.ConcatOp)]:
        border = border_of(op)
        if border is None:
            continue
        slices = [x.owner for x in op.xs if isinstance(x.owner, g.SliceOp)]
        inner = border.x.owner
        border.location = op.location
        Rewriter.replace_op(op, border)
        for each in dict.fromkeys(slices):
            if not each.result.uses:
                Rewriter.erase_op(each)
        if isinstance(inner, g.BorderOp) and inner.result.has_one_use():
            join(border, inner)


def border_of(op: g.ConcatOp) -> g.BorderOp | None:
    """The border that a concatenation makes of the map that its parts are of; None where it makes none."""
    axis = op.axis
    if axis not in (ROWS, ROWS + 1) or len(g.shape_of(op.result)) != MAP_RANK:
        return None
    x = next((part.owner.x for part in op.xs if isinstance(part.owner, g.SliceOp)), None)
    if x is None or not all(is_part(part, x, axis) for part in op.xs):
        return None
    extent, places = g.shape_of(x)[axis], [place for part in op.xs for place in places_of(part, x, axis)]
    if 0 not in places:
        return None
    for mirrored, low in ((False, places.count(0) - 1), (True, places.index(0))):
        high = len(places) - low - extent
        shown = [place_of(i, extent, mirrored=mirrored) for i in range(-low, extent + high)]
        if high >= 0 and max(low, high) > 0 and places == shown:
            ends = ((low, 0), (high, 0)) if axis == ROWS else ((0, low), (0, high))
            return g.BorderOp(x, *ends, mirrored=mirrored)
    return None


def places_of(part: SSAValue, x: SSAValue, axis: int) -> Iterable[int]:
    """The positions of x along an axis that are in a part."""
    if part is x:
        return range(g.shape_of(x)[axis])
    cut = part.owner
    assert isinstance(cut, g.SliceOp)
    return (cut.starts[axis] + k * cut.steps[axis] for k in range(g.shape_of(part)[axis]))


def place_of(index: int, extent: int, *, mirrored: bool) -> int:
    """The position that a border shows at one before or behind the map; outside of it where one mirror is too few."""
    if 0 <= index < extent:
        return index
    if mirrored:
        return -index if index < 0 else 2 * (extent - 1) - index
    return 0 if index < 0 else extent - 1


def is_part(part: SSAValue, x: SSAValue, axis: int) -> bool:
    """x, or a slice of it along this axis alone."""
    if part is x:
        return True
    cut = part.owner
    if not isinstance(cut, g.SliceOp) or cut.x is not x:
        return False
    others = [i for i in range(MAP_RANK) if i != axis]
    whole, made = g.shape_of(x), g.shape_of(part)
    return all((cut.starts[i], cut.steps[i], made[i]) == (0, 1, whole[i]) for i in others)


def join(outer: g.BorderOp, inner: g.BorderOp) -> None:
    """Borders along rows and along columns as one."""
    along = [[low or high for low, high in zip(op.low, op.high, strict=True)] for op in (outer, inner)]
    if any(a and b for a, b in zip(*along, strict=True)) or outer.mirrored != inner.mirrored:
        return
    low, high = (tuple(map(max, *ends)) for ends in ((outer.low, inner.low), (outer.high, inner.high)))
    both = g.BorderOp(inner.x, low, high, mirrored=outer.mirrored)
    both.location = outer.location
    Rewriter.replace_op(outer, both)
    Rewriter.erase_op(inner)
