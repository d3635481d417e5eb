"""A network as a series of layers, and where the series can be cut: arithmetic on positions alone.

A piece of the series is a range of positions [start, stop); a cut at p separates layer p - 1 from layer p.  Layers
stand in an order of execution, so pieces depend on earlier ones only, whatever the graph between them is.
Source: docs/techniques/output-split.md, "Where it is cut".  Each question costs as many steps as the piece has layers
and reads, all on difference arrays and their prefix sums.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Range = tuple[int, int]
"""Positions [start, stop)."""


@dataclass(frozen=True)
class Cuts:
    """Where a piece is cut, and why there."""

    positions: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Series:
    """Layers in an order of execution; every sequence has one entry for each of them."""

    names: Sequence[str]
    reads: Sequence[Sequence[int]]
    """The earlier layers whose results each one reads."""
    outputs: frozenset[int]
    """The layers whose result is an output of the network, and is not only for the host between two pieces of it."""
    result_bytes: Sequence[int]
    weight_bytes: Sequence[int]
    cost: Sequence[int]
    """Multiply-accumulates, and element operations of layers without."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def users(self) -> list[list[int]]:
        """The layers that read each result, in order."""
        users: list[list[int]] = [[] for _ in self.reads]
        for layer, reads in enumerate(self.reads):
            for read in set(reads):
                users[read].append(layer)
        return users

    @cached_property
    def cost_before(self) -> Ints:
        """Of each position the cost of all layers before it; one entry more than there are layers."""
        return np.concatenate(([0], np.cumsum(np.asarray(self.cost, np.int64))))

    def targets(self, piece: Range) -> list[int]:
        """Layers of a piece whose result leaves it as an output, and is read by later layers of it."""
        start, stop = piece
        return [
            layer
            for layer in range(start, stop)
            if (users := self.users[layer])
            and users[0] < stop
            and (layer in self.outputs or users[-1] >= stop)
        ]

    def crossing(self, piece: Range) -> tuple[Ints, Ints]:
        """Of every cut start + 1 .. stop - 1 of a piece: how many of its results cross it, and their bytes."""
        start, stop = piece
        count, size = np.zeros(stop - start + 1, np.int64), np.zeros(stop - start + 1, np.int64)
        for layer in range(start, stop):
            users = self.users[layer]
            last = bisect_left(users, stop)
            if last:  # crosses the cuts layer + 1 .. users[last - 1]
                first, end = layer + 1 - start, users[last - 1] + 1 - start
                count[first] += 1
                count[end] -= 1
                size[first] += self.result_bytes[layer]
                size[end] -= self.result_bytes[layer]
        return np.cumsum(count)[1:-1], np.cumsum(size)[1:-1]

    def from_half(self, piece: Range) -> Ints:
        """Of every cut of a piece, how far it is from half of the cost: twice the cost that one side lacks."""
        start, stop = piece
        before = self.cost_before
        return np.abs(2 * before[start + 1 : stop] - before[start] - before[stop])


def at_outputs(series: Series, piece: Range) -> Cuts | None:
    """Steps 2 and 3: behind every layer whose result is an output and is also read later in the piece."""
    positions = tuple(layer + 1 for layer in series.targets(piece))
    return Cuts(positions, "at output branches") if positions else None


def at_articulation(series: Series, piece: Range) -> Cuts | None:
    """Where at most one result crosses: of all such cuts the one nearest to half of the cost."""
    count, _ = series.crossing(piece)
    narrow = np.flatnonzero(count <= 1)
    if not len(narrow):
        return None
    nearest = narrow[np.argmin(series.from_half(piece)[narrow])]
    return Cuts((piece[0] + 1 + int(nearest),), "at the articulation point nearest to half of its cost")


def at_least_crossing(series: Series, piece: Range) -> Cuts | None:
    """Where the fewest bytes cross; of equals the one nearest to half of the cost."""
    if piece[1] - piece[0] < 2:
        return None
    _, size = series.crossing(piece)
    best = int(np.lexsort((series.from_half(piece), size))[0])
    return Cuts((piece[0] + 1 + best,), f"where the fewest bytes cross ({int(size[best])})")


def cuts_within(series: Series, piece: Range) -> Cuts | None:
    """Step 4: where a piece that does not compile is cut; None for a single layer."""
    return (
        at_outputs(series, piece) or at_articulation(series, piece) or at_least_crossing(series, piece)
    )


def pieces_of(piece: Range, cuts: Cuts | None) -> list[Range]:
    """The parts of a piece that is cut."""
    start, stop = piece
    return list(pairwise((start, *(cuts.positions if cuts else ()), stop)))
