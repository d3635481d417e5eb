# Tests: test/passes/graph/composites/test_find_attention.py
"""What is added to the scores of an attention, as the masks that it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.passes.graph.patterns.attention_scores import HIDES
from frustum.passes.graph.patterns.strided import Strided, constant_of, joined, moved, regrouped
from frustum.passes.weights import Array, WeightStore


@dataclass(frozen=True)
class ScoreAxes:
    """The scores of all heads: batches, heads, rows, keys; and their shape as a product."""

    extents: Extents
    product: Extents
    has_keys_last: bool

    def of(self, seen: Strided) -> Strided | None:
        """What is seen of a mask by the product's axes, by axes of the grid."""
        *outer, row, key = seen.axes
        axes = (row, key) if self.has_keys_last else (key, row)
        split = regrouped([digit for axis in outer for digit in axis], self.extents[:2])
        return None if split is None else Strided((*split, *axes), seen.offset)


def mask_of(
    mask: SSAValue, shape: Extents, grid: ScoreAxes, store: WeightStore
) -> tuple[SSAValue | Array, Extents] | None:
    """A tensor, or the numbers of a constant, that is the mask in a shape that broadcasts to the grid.

    `shape`: of the scores that the mask is added to.  None where it broadcasts in no such way.
    """
    array = constant_of(mask, store)
    if array is not None:
        return constant_mask(array, shape, grid)
    for value, seen in behind(mask, store):
        whole = seen.broadcast(shape).shaped(grid.product)
        placed = None if whole is None else grid.of(whole)
        if placed is None or placed.offset:
            continue
        pairs = list(zip(placed.axes, grid.extents, strict=True))
        own = tuple(1 if axis == ((n, 0),) else n for axis, n in pairs)
        kept = [digit for axis, n in pairs if axis != ((n, 0),) for digit in axis]
        total = math.prod(g.shape_of(value))
        if math.prod(own) == total and joined(kept) == (((total, 1),) if total > 1 else ()):
            return value, own
    return None


def behind(value: SSAValue, store: WeightStore) -> list[tuple[SSAValue, Strided]]:
    """The tensors behind the moves that make this one, farthest first."""
    chain: list[Operation] = []
    values = [value]
    while isinstance(values[-1].owner, Operation) and (before := moved(values[-1].owner, store)) is not None:
        chain.append(values[-1].owner)
        values.append(before)
    found = []
    for start in range(len(chain), -1, -1):
        seen: Strided | None = Strided.whole(g.shape_of(values[start]))
        for op in chain[:start][::-1]:
            seen = None if seen is None else seen.after(op, store)
        if seen is not None:
            found.append((values[start], seen))
    return found


def constant_mask(array: Array, shape: Extents, grid: ScoreAxes) -> tuple[Array, Extents] | None:
    whole = np.broadcast_to(array.astype(np.float32), shape).reshape(grid.product)
    if not grid.has_keys_last:
        whole = whole.swapaxes(-1, -2)
    whole = whole.reshape(grid.extents)
    for axis in range(4):
        first = whole.take([0], axis)
        if np.array_equal(whole, np.broadcast_to(first, whole.shape)):
            whole = first
    return whole, whole.shape


def causal_from(array: Array, extents: Extents) -> int | None:
    """Of a mask that only hides the keys behind those up to i + n from query i, n >= 0; None for others."""
    if array.shape != (1, 1, *extents[2:]):
        return None
    rows = array[0, 0]
    seen = np.count_nonzero(rows[0] == 0) - 1
    if seen < 0:
        return None
    is_hidden = np.arange(extents[3]) > np.arange(extents[2])[:, np.newaxis] + seen
    return int(seen) if np.all(rows[~is_hidden] == 0) and np.all(rows[is_hidden] <= HIDES) else None
