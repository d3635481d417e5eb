# Tests: test/passes/plan/tree/test_search.py
"""What no plan of a forest is below, so that only those of use are looked for.

With tensors in SRAM a unit saves no more than these bytes against the unit without them in as much memory as both take.
So the curves of units with nothing there, less what may stay across each cut, bound what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.tensor import Tensor
from frustum.passes.plan.tree.intervals import LayerInterval
from frustum.passes.plan.tree.spans import Extents, Floats
from frustum.passes.plan.tree.units import (
    LEVELS,
    MOST_REPEATED,
    NEARLY,
    NO_BOUND,
    PlacedInterval,
    UnitPrices,
    shifted,
    wanted_below,
)
from frustum.passes.plan.tree.wishes import Stretches

SURE = 0.8
"""Prices are as sure as this.  A unit of fewer layers may move so many bytes of this one's, since limits of repeated
work are relative; a count may have so many of the cycles, since it knows chains in the cores. 2026-12-01."""


def is_round(count: int) -> bool:
    """Whether it is a power of two, or three times one."""
    return count.bit_count() == 1 or (count % 3 == 0 and (count // 3).bit_count() == 1)


class ForestBounds:
    """Of units over layers [first, stop).  `most`: what a plan has to be below to be of use, by shares of SRAM."""

    search: UnitPrices
    first: int
    stop: int
    extents: Extents
    resident: Mapping[Tensor, float]
    depth: int
    sizes: dict[Tensor, float]
    """Of tensors in SRAM, sums as wide as they wait."""
    bytes: dict[Tensor, float]
    """Over the DRAM port."""
    uses: dict[Tensor, list[int]]
    outside: dict[Tensor, None]
    is_outermost: bool
    most: NDArray[np.float64]
    bare: dict[tuple[int, int], Floats]
    """No unit with more in SRAM moves fewer bytes than these less those of what is there."""
    least_after: list[Floats]
    """The fewest DRAM bytes of layers from each on, whatever lies in SRAM before."""
    free: Floats
    """Of every tensor of the network how much is not in SRAM before."""
    first_use: NDArray[np.int64]
    """Of every tensor of the network the first layer here that uses it; and the last one."""
    last_use: NDArray[np.int64]
    is_inside: NDArray[np.bool_]
    """Of every tensor of the network whether nothing else makes or wants it."""
    stretches: Stretches | None
    """Its units, where they are given."""

    def __init__(
        self, search: UnitPrices, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        most: Floats | None, stretches: Stretches | None = None,
    ) -> None:  # fmt: skip
        self.search, self.first, self.stop, self.stretches = search, first, stop, stretches
        self.extents, self.resident, self.depth = extents, resident, depth
        placed = search.placed(first, stop, extents)
        own, self.is_outermost = placed.own, extents is search.zones.extents
        reads, stored = own.reads, search.reads.network.maker
        self.bytes = {
            t: reads.traffic(t, placed.extents) * own.shares[t] + reads.wait * (t in stored) for t in own.touched
        }
        self.sizes = {t: self.held(t, placed) * own.shares[t] * own.reads.widening(t) for t in own.touched}
        self.uses = {t: [k for k in search.users[t] if first <= k < stop] for t in own.touched}
        self.outside = own.outside
        self.most = np.full(LEVELS + 1, NO_BOUND) if most is None else np.minimum(most * NEARLY, NO_BOUND)
        self.bare, self.least_after = {}, []
        index = own.reads.index
        self.free = np.ones(len(index))
        self.free[[index[t] for t in resident]] = [1.0 - share for share in resident.values()]
        self.first_use = np.zeros(len(index), np.int64)
        self.first_use[[index[t] for t in own.touched]] = [self.uses[t][0] for t in own.touched]
        self.is_inside = np.ones(len(index), np.bool_)
        self.is_inside[own.at] = False
        self.last_use = np.zeros(len(index), np.int64)
        self.last_use[[index[t] for t in own.touched]] = [self.uses[t][-1] for t in own.touched]
        self._room = search.room * search.zones.dealing.clusters

    def held(self, tensor: Tensor, placed: PlacedInterval) -> float:
        """Bytes of a tensor that one cluster holds between units."""
        return self.search.zones.held(tensor) if self.is_outermost else placed.own.reads.size(tensor, placed.extents)

    def ends(self, here: int) -> Iterable[int]:
        """Where units from here may end: not where nothing is ever cut, unless that is asked for."""
        if self.stretches is not None:
            return [self.stretches.ends[here]] if here in self.stretches.ends else []
        apart = self.search.cuts_apart
        limits = self.search.limits
        stop = min(self.stop, self.search.zones.ends[here])
        ends = [end for end in range(here + 1, stop) if end in apart][: limits.longest]
        if len(ends) < limits.longest:
            ends.append(stop)
        if not limits.is_sparse:
            return ends
        return [end for k, end in enumerate(ends, 1) if is_round(k) or end == stop]

    def find(self) -> bool:
        """Whether any plan may be of use."""
        length = self.stop - self.first
        least = self.search.placed(self.first, self.stop, self.extents).least
        once, before = np.zeros(length + 1), np.zeros(length + 1)
        for tensor in self.outside:
            size = least[tensor] * (1.0 - self.resident.get(tensor, 0.0))
            once[: self.uses[tensor][0] - self.first + 1] += size
            before[self.uses[tensor][0] - self.first + 1 :] += size
        if not (once[0] <= self.most).any():
            return False
        self.least_after = [np.full(LEVELS + 1, each) for each in once]
        for here in range(self.stop - 1, self.first - 1, -1):
            best = np.full(LEVELS + 1, np.inf)
            for end in self.ends(here):
                placed = self.search.placed(here, end, self.extents)
                after, saved = self.least_after[end - self.first], self.most_saved(placed, here)
                bound = self.most - (before[here - self.first] + after - saved)
                self.bare[here, end] = found = self.of_bare(placed, here, end, bound)
                best = np.minimum(best, found - saved + after)
            self.least_after[here - self.first] = np.maximum(self.least_after[here - self.first], best)
        return bool((self.least_after[0] <= self.most).any())

    def of_bare(self, placed: PlacedInterval, here: int, end: int, bound: Floats) -> Floats:
        """What no unit of these layers is below; its curve where that is below the bound."""
        least = self.least_of(placed, here, end)
        if not (least <= bound).any():
            return least
        resident = {t: s for t, s in self.resident.items() if s and t in placed.own.outside}
        found = self.search.unit(here, end, self.extents, resident, self.depth, bound)
        for new, old in self.storage(placed.own, here):
            if new in placed.sizes and old in placed.sizes and not (new in resident or old in resident):
                both, levels = placed.sizes[new] + placed.sizes[old], self.search.levels(self.sizes[old])
                held = {**resident, new: 1.0, old: 1.0}
                if levels <= LEVELS:
                    below = wanted_below(bound - both, levels)
                    unit = self.search.unit(here, end, self.extents, held, self.depth, below)
                    found = np.minimum(found, shifted(unit, levels) + both)
        return found

    def least_of(self, placed: PlacedInterval, here: int, end: int) -> Floats:
        """Bytes that a unit moves at least: everything once; and what all but its first or last layer move, less what
        the two hand each other, which may be made twice."""
        moved = self.moved(placed)
        found = np.full(LEVELS + 1, moved.sum())
        for first, stop in ((here + 1, end), (here, end - 1)):
            known = self.bare.get((first, stop))
            if known is None or stop - first == 1:
                continue
            sub = self.search.placed(first, stop, self.extents)
            if sub.own.is_connected and not sub.own.cuts_a_recurrence:
                more, less = moved @ placed.own.beyond(sub.own), self.moved(sub) @ sub.own.beyond(placed.own)
                np.maximum(found, SURE * known + (more - MOST_REPEATED * less), out=found)
        return found

    def moved(self, placed: PlacedInterval) -> Floats:
        """The fewest bytes of each tensor from outside, as far as it is not in SRAM before."""
        return placed.all_least * self.free[placed.own.at]

    def most_saved(self, placed: PlacedInterval, here: int) -> Floats:
        """Bytes that tensors in SRAM may save a unit: all of them lie there together."""
        own = placed.own
        sizes = placed.all_sizes * (self.free[own.at] > 0)
        is_before = self.first_use[own.at] < here
        read, made = sizes @ is_before, sizes @ (~is_before & own.is_made & self.is_inside[own.at])
        waits = sum(own.wait(t) for t in own.outside)
        if own.replacing:
            return np.minimum(self._room, read) + np.minimum(self._room, made) + waits  # one may lie where another lay
        return np.minimum(self._room, read + made) + waits

    def storage(self, own: LayerInterval, here: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Results of a unit that may lie where an operand lay, which nobody reads behind; and the operand."""
        for new, maker, old in own.replacing:
            if old not in self.uses or old.is_output or self.sizes[old] < self.sizes[new]:
                continue
            if self.is_outermost and not self.search.zones.lie_alike(new, old):
                continue
            if [self.search.layers[k] for k in self.uses[old] if k >= here] == [maker]:
                yield new, old
