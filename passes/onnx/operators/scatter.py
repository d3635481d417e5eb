# Tests: test/passes/onnx/test_import_scatter.py
"""Moves of elements by constant indices: GatherND, GatherElements, ScatterND, ScatterElements, Trilu; and CumSum.

Every position of a result is a position of an operand that is known when importing.  Along one axis these are runs of
equally spaced positions, each a slice: they are concatenated, or, where the pattern repeats every few positions,
interleaved (`picked`).  Indices along several axes are taken axis by axis where they are all pairs of some positions of
each axis; otherwise the axes are seen as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import InterleaveOp, ReduceOp, is_integer, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.moves import MOST_PIECES, bordered, cut, joined
from frustum.passes.onnx.operators.resizing import along
from frustum.passes.weights import Array

MOST_APART = 16
"""Positions after which a pattern is looked for to repeat: so many parts are interleaved."""
PLANE = 4
"""Axes of what is interleaved."""
MOST_STEPPED = 16
"""Terms added up by steps: no term meets one that it is not added to, as in a product with zeros, where what is
infinite would spoil all."""
MOST_TRIANGLE = 64
"""Terms that are added up by one product."""


# --- along one axis ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picks:
    """Positions of a result along an axis: each is position `index` of operand number `source`."""

    source: Array
    index: Array

    @staticmethod
    def of(index: Array) -> Picks:
        """Of one operand."""
        return Picks(np.zeros(len(index), np.int64), index)

    def every(self, step: int, start: int) -> Picks:
        return Picks(self.source[start::step], self.index[start::step])

    def runs(self) -> list[tuple[int, int, int, int]]:
        """(source, start, length, step) of maximal runs of equally spaced positions, in order."""
        count, step = len(self.index), np.diff(self.index)
        is_one = (np.diff(self.source) == 0) & (step != 0)
        ends = np.flatnonzero(~is_one)
        turns = np.flatnonzero(np.diff(step) != 0) + 1
        found = []
        place = 0
        while place < count:
            last = min((*ends[np.searchsorted(ends, place) :][:1], count - 1))
            if last > place:
                last = min((*turns[np.searchsorted(turns, place + 1) :][:1], last))
            by = int(step[place]) if last > place else 1
            found.append((int(self.source[place]), int(self.index[place]), int(last) - place + 1, by))
            place = int(last) + 1
            if len(found) > MOST_PIECES:
                break
        return found


def picked(node: Node, sources: Sequence[SSAValue], axis: int, picks: Picks) -> SSAValue:
    """The picked positions along an axis, of operands that are alike along the others; Refused where they make too many
    pieces."""
    ways = [
        [picks.every(apart, first).runs() for first in range(apart)]
        for apart in range(1, min(MOST_APART, len(picks.index)) + 1)
    ]
    parts = min(ways, key=lambda way: sum(map(len, way)))
    count = sum(map(len, parts))
    if count > MOST_PIECES:
        raise Refused(f"its indices make more than {MOST_PIECES} runs: at most so many are supported")
    columns = [joined(node, [cut(node, sources[s], axis, *run) for s, *run in runs], axis) for runs in parts]
    return interleaved(node, columns, axis)


def interleaved(node: Node, columns: Sequence[SSAValue], axis: int) -> SSAValue:
    """Position by position one of each in turn."""
    if len(columns) == 1:
        return columns[0]
    shape = list(shape_of(columns[0]))
    shape[axis] = sum(shape_of(each)[axis] for each in columns)
    factor = (1, len(columns)) if axis == len(shape) - 1 else (len(columns), 1)
    if len(shape) == PLANE and axis >= PLANE - 2:
        return node.emit(InterleaveOp(columns, factor))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    ends = (1, 1, outer) if factor[0] == 1 else (outer, 1)
    planes = [
        node.reshape(each, (*ends, shape_of(each)[axis], *(() if factor[0] == 1 else (inner,)))) for each in columns
    ]
    return node.reshape(node.emit(InterleaveOp(planes, factor)), tuple(shape))


# --- along several axes -----------------------------------------------------------------------------------


def block(node: Node, x: SSAValue, places: Sequence[Array]) -> SSAValue:
    """The elements at all pairs of places of each of the first axes."""
    for axis, own in enumerate(places):
        x = picked(node, [x], axis, Picks.of(own))
    return x


def merged(node: Node, x: SSAValue, new: SSAValue, places: Sequence[Array]) -> SSAValue:
    """`x` with the block of `new` in the (ascending) places of each of the first axes."""
    shape = shape_of(x)
    open_axes = [axis for axis, own in enumerate(places) if len(own) < shape[axis]]
    if not open_axes:
        return new
    axis, *rest = open_axes
    if rest:
        inside = picked(node, [x], axis, Picks.of(places[axis]))
        within = [np.arange(len(own)) if k == axis else own for k, own in enumerate(places)]
        new = merged(node, inside, new, within)
    source, index = np.zeros(shape[axis], np.int64), np.arange(shape[axis])
    source[places[axis]], index[places[axis]] = 1, np.arange(len(places[axis]))
    return picked(node, [x, new], axis, Picks(source, index))


def pairs(rows: Array, shape: Ints) -> list[Array] | None:
    """The places of each axis of which these (ascending, different) positions are all pairs; else None."""
    places = [np.unique(own) for own in np.unravel_index(rows, shape)]
    return places if math.prod(map(len, places)) == len(rows) else None


def levels(rows: Array, kind: str) -> Iterator[tuple[Array, Array]]:
    """Which updates go to which rows, ascending: of those of one row the last, or, where they are combined, one after
    the other."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    if not kind:
        lasts = np.append(starts[1:], len(rows)) - 1
        yield order[lasts], ordered[lasts]
        return
    turn = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    if turn.max() >= MOST_APART:
        raise Refused(f"{turn.max() + 1} updates of one element are not supported: at most {MOST_APART} are")
    for each in range(turn.max() + 1):
        yield order[turn == each], ordered[turn == each]


def written(node: Node, x: SSAValue, new: SSAValue, places: Sequence[Array], kind: str) -> SSAValue:
    """The block combined with what is there, if it is, in its place."""
    if kind:
        new = node.binary(kind, block(node, x, places), new)
    return merged(node, x, new, places)


# --- operators --------------------------------------------------------------------------------------------

REDUCTIONS = {"none": "", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def scatter_nd(node: Node) -> Result:
    indices, kind = _indices(node, 1), _kind(node)
    x = node.value(0)
    if not indices.size:
        return x
    shape, depth = shape_of(x), indices.shape[-1]
    rows = _rows(np.moveaxis(indices, -1, 0), shape[:depth])
    rest = shape[depth:]
    updates = node.reshape(node.value(2), (rows.size, *rest))
    result = x
    for which, own in levels(rows.reshape(-1), kind):
        new, places = picked(node, [updates], 0, Picks.of(which)), pairs(own, shape[:depth])
        if places is None:
            result = node.reshape(result, (math.prod(shape[:depth]), *rest))
            places = [own]
        else:
            result = node.reshape(result, shape)
        new = node.reshape(new, (*map(len, places), *rest))
        result = written(node, result, new, places, kind)
    return node.like(node.reshape(result, shape), x, updates)


def scatter_elements(node: Node) -> Result:
    indices, kind = _indices(node, 1), _kind(node)
    x = node.value(0)
    if not indices.size:
        return x
    updates, shape = node.value(2), shape_of(x)
    span = JointAxes.of(node, indices, shape)
    result = node.reshape(x, span.joint(shape))
    updates = node.reshape(updates, span.joint(indices.shape))
    for which, own in levels(span.rows, kind):
        new = picked(node, [updates], span.first, Picks.of(which))
        places = [np.arange(extent) for extent in shape_of(new)]
        places[span.first] = own
        result = written(node, result, new, places, kind)
    return node.like(node.reshape(result, shape), x, updates)


def gather_nd(node: Node) -> Result:
    indices, batch = _some(_indices(node, 1)), int(node.get("batch_dims", 0))
    x = node.value(0)
    shape, depth = shape_of(x), batch + indices.shape[-1]
    outer = np.indices(indices.shape[:-1])[:batch]
    rows = _rows([*outer, *np.moveaxis(indices, -1, 0)], shape[:depth]).reshape(-1)
    rest = shape[depth:]
    places = pairs(np.unique(rows), shape[:depth])
    if places is None:
        x = node.reshape(x, (math.prod(shape[:depth]), *rest))
    else:
        x = node.reshape(block(node, x, places), (math.prod(map(len, places)), *rest))
        rows = np.unique(rows, return_inverse=True)[1].reshape(-1)
    return node.reshape(picked(node, [x], 0, Picks.of(rows)), (*indices.shape[:-1], *rest))


def gather_elements(node: Node) -> Result:
    indices = _some(_indices(node, 1))
    x = node.value(0)
    shape = shape_of(x)
    span = JointAxes.of(node, indices, shape)
    x = node.reshape(x, span.joint(shape))
    for axis, extent in enumerate(span.joint(indices.shape)):
        if axis != span.first:
            x = cut(node, x, axis, 0, extent)
    return node.reshape(picked(node, [x], span.first, Picks.of(span.rows)), indices.shape)


@dataclass(frozen=True)
class JointAxes:
    """The axes from `first` to `last` that indices of elements depend on, seen as one; `rows` are the positions in
    it."""

    first: int
    last: int
    rows: Array

    @staticmethod
    def of(node: Node, indices: Array, shape: Ints) -> JointAxes:
        if indices.ndim != len(shape):
            raise Refused(f"indices of {indices.shape} are not of the rank of {shape}")
        axis = node.axis(int(node.get("axis", 0)), len(shape))
        changes = [k for k in range(len(shape)) if np.any(indices != np.take(indices, [0], k))]
        first, last = min((axis, *changes)), max((axis, *changes))
        own = tuple(slice(None) if first <= k <= last else 0 for k in range(len(shape)))
        inner = indices[own]
        places: list[Array] = list(np.indices(inner.shape))
        places[axis - first] = inner
        return JointAxes(first, last, _rows(places, shape[first : last + 1]).reshape(-1))

    def joint(self, shape: Ints) -> Ints:
        return (*shape[: self.first], math.prod(shape[self.first : self.last + 1]), *shape[self.last + 1 :])


def _indices(node: Node, index: int) -> Array:
    found = node.constant(index, "the indices")
    if found is None:
        raise Refused("the indices are missing")
    return found.astype(np.int64)


def _some(indices: Array) -> Array:
    if not indices.size:
        raise Refused(f"its result would be empty: the indices are {indices.shape}")
    return indices


def _kind(node: Node) -> str:
    reduction = node.get("reduction", "none")
    if reduction not in REDUCTIONS:
        raise Refused(f"reduction is '{reduction}': {', '.join(REDUCTIONS)} are supported")
    return REDUCTIONS[reduction]


def _rows(coordinates: Sequence[Array] | Array, shape: Ints) -> Array:
    """Positions in a tensor seen as one axis; an index may count from the end."""
    own = []
    for index, extent in zip(coordinates, shape, strict=True):
        if np.any((index < -extent) | (index >= extent)):
            raise Refused(f"indices are not inside [{-extent}, {extent})")
        own.append(index % extent)
    return np.ravel_multi_index(tuple(own), shape)


def trilu(node: Node) -> Result:
    """What is kept of the last two axes is a constant."""
    x, k = node.value(0), node.constant(1, "k")
    if is_integer(x):
        raise Refused("a triangle of integers is not supported")
    diagonal = 0 if k is None else int(k.reshape(()))
    keep = np.triu if node.get("upper", 1) else np.tril
    mask = keep(np.ones(shape_of(x)[-2:], np.float32), diagonal)
    return node.like(node.binary("mask", x, node.weight(mask, "triangle")), x)


def cumsum(node: Node) -> Result:
    x, given = node.value(0), node.constant(1, "the axis")
    if given is None or is_integer(x):
        raise Refused("the axis is missing" if given is None else "sums of integers are not supported")
    shape = shape_of(x)
    axis, images = node.axis(int(given.reshape(())), len(shape)), node.network.images
    if images is not None and images.axis_of(x) == axis:
        raise images.along(axis, shape)
    flat = node.reshape(x, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
    found = _summed(node, flat, bool(node.get("exclusive", 0)), bool(node.get("reverse", 0)))
    return node.whole(node.reshape(found, shape), x in node.network.whole)


def _summed(node: Node, x: SSAValue, exclusive: bool, is_back: bool) -> SSAValue:
    """Sums along the middle axis: a short one by steps, a longer one by a product with a triangle of ones; of a long
    one those of blocks, and to each those of the blocks before it."""
    outer, extent, inner = shape_of(x)
    if extent <= MOST_STEPPED:
        return _by_steps(node, x, exclusive, is_back)
    if extent <= MOST_TRIANGLE:
        return along(node, x, 1, _triangle(extent, exclusive, is_back))
    size = next((k for k in range(MOST_TRIANGLE, MOST_STEPPED, -1) if extent % k == 0), MOST_TRIANGLE)
    count = ceil_div(extent, size)
    filled = x if count * size == extent else bordered(node, x, (0, 0, 0), (0, count * size - extent, 0), 0.0)
    blocks = node.reshape(filled, (outer, count, size, inner))
    within = along(node, blocks, 2, _triangle(size, exclusive, is_back))
    before = _summed(node, node.emit(ReduceOp("sum", blocks, (2,), False)), True, is_back)
    found = node.binary("add", within, node.reshape(before, (outer, count, 1, inner)))
    return cut(node, node.reshape(found, (outer, count * size, inner)), 1, 0, extent)


def _triangle(extent: int, exclusive: bool, is_back: bool) -> Array:
    """[results, operands]: 1 where an operand is a term."""
    ones = np.ones((extent, extent))
    return np.triu(ones, exclusive) if is_back else np.tril(ones, -exclusive)


def _by_steps(node: Node, x: SSAValue, exclusive: bool, is_back: bool) -> SSAValue:
    """Sums with what is 1, 2, 4, .. positions earlier."""
    result = _moved(node, x, 1, is_back) if exclusive else x
    step = 1
    while step < shape_of(x)[1]:
        result = node.binary("add", result, _moved(node, result, step, is_back))
        step *= 2
    return result


def _moved(node: Node, x: SSAValue, step: int, is_back: bool) -> SSAValue:
    """Each element so many positions later (earlier, if it goes back), after zeros."""
    extent = shape_of(x)[1]
    if step >= extent:
        return node.binary("mask", x, node.scalar(0.0, "nothing"))
    left = cut(node, x, 1, step if is_back else 0, extent - step)
    none, ends = (0, 0, 0), (0, step, 0)
    return bordered(node, left, none if is_back else ends, ends if is_back else none, 0.0)


CONVERTERS: dict[str, Converter] = {
    "CumSum": cumsum,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Trilu": trilu,
}
