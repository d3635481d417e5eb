# Tests: test/passes/graph/composites/test_order_rows.py
"""Moves of whole rows (all of a tensor's last axis): which row is where behind a chain of them, and in which boxes.

Windows of a map are the usual case: its rows and columns are rolled around its ends, and cut into windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.graph.views import BOX_RANK

MOST_ROWS = 1 << 20
"""A tensor of more rows is left as it is: the place of each is looked at."""
MOST_BOXES = 24
"""What comes to more boxes stays the chain that it was: each box is copies of its own."""
Places = NDArray[np.int64]
Part = tuple[tuple[int, ...], Extents, Extents]
"""A box of an array in which numbers rise evenly: its first index, its extents, and by how much along each axis."""


@dataclass(frozen=True)
class MovedRows:
    """The rows of a value as those of another, the `root`: `places` has of each its number there.  `shapes` are those
    in which the value's rows lie in their order, `root_shapes` those of the root's."""

    root: SSAValue
    places: Places
    shapes: Sequence[Extents]
    root_shapes: Sequence[Extents]
    chain: Sequence[Operation]

    @property
    def moves(self) -> int:
        """Operations of the chain that are more than another shape."""
        return sum(not isinstance(op, g.ReshapeOp) for op in self.chain)


def moves_rows(op: object) -> bool:
    """Whether an operation moves rows, each as a whole."""
    match op:
        case g.ReshapeOp():
            return g.shape_of(op.x)[-1:] == g.shape_of(op.result)[-1:]
        case g.TransposeOp():
            return op.perm[-1] == len(op.perm) - 1
        case g.SliceOp():
            return g.shape_of(op.x)[-1] == g.shape_of(op.result)[-1] and min(op.steps) > 0
        case g.ConcatOp():
            return op.axis < len(g.shape_of(op.result)) - 1
        case _:
            return False


def rows_of(value: SSAValue) -> MovedRows | None:
    """What a chain of moves makes of the rows of one other tensor, if each of them is there once; None for others."""
    chain: list[Operation] = []
    roots = list(dict.fromkeys(roots_of(value, chain)))
    if not chain or len(roots) != 1 or len(g.shape_of(roots[0])) < 2:
        return None
    root = roots[0]
    count = math.prod(g.shape_of(root)[:-1])
    if not 1 < count <= MOST_ROWS or math.prod(g.shape_of(value)[:-1]) != count:
        return None
    whole = np.arange(count)
    known: dict[SSAValue, Places] = {root: whole.reshape(g.shape_of(root)[:-1])}
    for op in chain:
        known[op.results[0]] = after(op, known)
    places = known[value].ravel()
    if not np.array_equal(np.sort(places), whole):
        return None
    return MovedRows(root, places, shapes_of(known, places), shapes_of(known, whole), chain)


def shapes_of(known: dict[SSAValue, Places], places: Places) -> list[Extents]:
    """The shapes of values that have these rows in this order."""
    return list(dict.fromkeys(each.shape for each in known.values() if np.array_equal(each.ravel(), places)))


def roots_of(value: SSAValue, chain: list[Operation]) -> Iterator[SSAValue]:
    """What a value's rows come from; the moves between are added to the chain, each behind what it reads."""
    op = value.owner
    if not isinstance(op, Operation) or not moves_rows(op):
        yield value
        return
    for x in op.operands:
        if x.owner not in chain:
            yield from roots_of(x, chain)
    if op not in chain:
        chain.append(op)


def after(op: Operation, known: dict[SSAValue, Places]) -> Places:
    """The places of a move's rows."""
    match op:
        case g.ReshapeOp():
            return known[op.x].reshape(g.shape_of(op.result)[:-1])
        case g.TransposeOp():
            return known[op.x].transpose(op.perm[:-1])
        case g.SliceOp():
            each = list(zip(op.starts, op.steps, g.shape_of(op.result), strict=True))[:-1]
            return known[op.x][tuple(slice(s, s + t * (n - 1) + 1, t) for s, t, n in each)]
        case g.ConcatOp():
            return np.concatenate([known[x] for x in op.xs], op.axis)
    raise AssertionError(f"{op.name} moves no rows")


def boxes_of(rows: MovedRows, width: int) -> list[int] | None:
    """The numbers of the boxes of a rearrangement (`fgraph.rearrange`) that moves rows of `width` elements so, in as
    few boxes as any shape of either side gives; None where these are too many."""
    back = np.argsort(rows.places)
    sides = [(shape, rows.places, False) for shape in rows.shapes] + [(shape, back, True) for shape in rows.root_shapes]
    found: list[list[int]] = []
    for shape, places, from_root in sides:
        parts = even_parts(places.reshape(shape), (0,) * len(shape))
        if len(shape) < BOX_RANK and parts is not None:
            found.append([number for part in parts for number in box(part, places.reshape(shape), width, from_root)])
    return min(found, key=len, default=None)


def even_parts(array: Places, start: tuple[int, ...], most: int = MOST_BOXES) -> list[Part] | None:
    """An array in boxes in each of which numbers rise evenly along all axes; None where that takes more than `most`."""
    if most < 1:
        return None
    cut = uneven_at(array)
    if cut is None:
        seconds = [tuple(int(k == axis) for k in range(array.ndim)) for axis in range(array.ndim)]
        pairs = zip(seconds, array.shape, strict=True)
        steps = tuple(int(array[second] - array.flat[0]) if size > 1 else 0 for second, size in pairs)
        return [(start, array.shape, steps)]
    axis, place = cut
    low, high = np.split(array, [place], axis)
    first = even_parts(low, start, most - 1)
    if first is None:
        return None
    moved = (*start[:axis], start[axis] + place, *start[axis + 1 :])
    second = even_parts(high, moved, most - len(first))
    return None if second is None else first + second


def uneven_at(array: Places) -> tuple[int, int] | None:
    """Axis and place of a cut between numbers that do not rise alike; None where all do.

    A cut along another axis than that of the uneven rise is first: it keeps longer boxes."""
    own: tuple[int, int] | None = None
    for axis in range(array.ndim):
        rise = np.diff(array, axis=axis)
        if rise.size == 0 or (rise == rise.flat[0]).all():
            continue
        for other in range(array.ndim):
            change = np.diff(rise, axis=other) != 0
            places = np.flatnonzero(change.any(axis=tuple(k for k in range(array.ndim) if k != other)))
            if len(places) and other != axis:
                return other, int(places[0]) + 1
            if len(places):
                own = own or (axis, int(places[0]) + 2)
    return own


def box(part: Part, array: Places, width: int, from_root: bool) -> list[int]:
    """The numbers of a box of rows; `from_root`: the array has of each row of the root where it goes."""
    start, extents, steps = part
    strides = [math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    here, there = sum(s * t for s, t in zip(start, strides, strict=True)), int(array[start])
    firsts, both = ((here, there), (strides, steps)) if from_root else ((there, here), (steps, strides))
    pad = BOX_RANK - array.ndim - 1
    numbers = [first * width for first in firsts] + [1] * pad + [*extents, width]
    for each in both:
        numbers += [0] * pad + [step * width for step in each] + [1]
    return numbers
