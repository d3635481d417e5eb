# Tests: test/backend/waits/test_regions.py
"""The count that a consumer waits for at each of its indices, as an affine function.

A wait's value is affine in the loops around the consumer; what is needed is a table of any shape.  Looked for is an
integer function that is nowhere below the table, so that what is needed is waited for; nowhere above what has been
signalled before the consumer in the program order, so that nothing waits for ever; and that is as small as can be.

Values are relative to the count after the last execution that could be needed.  More than that has been signalled
where the consumer's own executions signal the same slot: then a function that goes beyond, for the window of the last
piece would if the map did not end, waits for little more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.isa.program import Affine

SWEEPS = 2
"""Over the loops, each of which gets the best slope beside those of the others."""
SLOPES = 12
"""Tried in a loop at most."""
EARLIER = 8
"""How much worse it is to wait for one more execution of the producer than for one of the consumer's own engine."""
NEVER = 1 << 40


class Threshold(NamedTuple):
    """A function of the loops, and how much more than the table it waits for."""

    value: Affine
    cost: int


def least_count(wanted: Sequence[int], nothing: int, most: Affine, counts: Sequence[int]) -> Threshold:
    """The function in loops of these counts; entries of `wanted` that are `nothing` need not be reached, and no
    function that does not exceed 0 there is any better.  `most` is nowhere below 0."""
    loops = (*most.loops, *[0] * (len(counts) - len(most.loops)))
    base, slopes, cost = _fitted(tuple(wanted), nothing, most.base, loops, tuple(counts))
    return Threshold(Affine(base, slopes), cost)


@lru_cache(maxsize=1024)
def _fitted(
    wanted: tuple[int, ...], nothing: int, base: int, loops: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[int, tuple[int, ...], int]:
    table = _Table(np.array(wanted, np.int64).reshape(counts), nothing, base, loops)
    slopes = [0] * len(counts)
    cost = table.cost(slopes)
    for _ in range(SWEEPS if len(counts) > 1 else 1):
        before = cost
        for loop, count in enumerate(counts):
            for slope in table.slopes(loop) if count > 1 and cost else ():
                tried = [*slopes[:loop], slope, *slopes[loop + 1 :]]
                found = table.cost(tried)
                if found < cost:
                    slopes, cost = tried, found
        if cost == before:
            break
    return table.start(slopes), tuple(slopes), cost


class _Table:
    """What is wanted at each index, and the most that may be."""

    def __init__(self, wanted: NDArray[np.int64], nothing: int, base: int, loops: Sequence[int]) -> None:
        self.wanted, self.needed = wanted, wanted != nothing
        self.steps = np.indices(wanted.shape, np.int64)
        self.most = self.along(loops) + base

    def along(self, slopes: Sequence[int]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.tensordot(np.array(slopes, np.int64), self.steps, 1)
        return found

    def start(self, slopes: Sequence[int]) -> int:
        """The least start with which the function with these slopes is nowhere below the table."""
        return int((self.wanted - self.along(slopes))[self.needed].max())

    def cost(self, slopes: Sequence[int]) -> int:
        """How much more than wanted the function with these slopes waits for; NEVER where it is too much."""
        values = self.along(slopes) + self.start(slopes)
        if (values > self.most).any():
            return NEVER
        more = np.maximum(np.minimum(values, 0) - self.wanted, 0)
        return int(EARLIER * more.sum() + np.maximum(values, 0).sum())

    def slopes(self, loop: int) -> list[int]:
        """Slopes of a loop's greatest entries, from one to the next and from each to the last and the first."""
        greatest = self.wanted.max(axis=tuple(axis for axis in range(self.wanted.ndim) if axis != loop)).tolist()
        last = len(greatest) - 1
        found: set[int] = set()
        for n in range(last):
            for m, k in ((n, n + 1), (n, last), (0, n + 1)):
                rise, run = greatest[k] - greatest[m], k - m
                found |= {rise // run, -(-rise // run)}
        ordered = sorted(found - {0}, key=abs)
        return ordered[:: -(-len(ordered) // SLOPES)] if ordered else []
