# Tests: test/passes/plan/tree/test_search.py
"""What no plan of a forest is below, so that only those of use are looked for.

With tensors in SRAM a unit saves no more than these bytes against the unit without them in as much memory as both take.
So the curves of units with nothing there, less what may stay across each cut, bound what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

SURE = 0.8
"""A unit of fewer layers may move so many bytes of this one's: limits of repeated work are relative. 2026-11-28."""


class ForestBounds:
    """Of units over layers [first, stop).  `most`: what a plan has to be below to be of use, by shares of SRAM."""

    search: UnitPrices
    first: int
    stop: int
    extents: Extents
    resident: Mapping[Tensor, float]
    depth: int
    sizes: dict[Tensor, float]
    """Of tensors in SRAM."""
    bytes: dict[Tensor, float]
    """Over the DRAM port."""
    uses: dict[Tensor, list[int]]
    outside: dict[Tensor, None]
    most: NDArray[np.float64]
    bare: dict[tuple[int, int], Floats]
    """No unit with more in SRAM moves fewer bytes than these less those of what is there."""
    least_after: list[Floats]
    """The fewest DRAM bytes of layers from each on, whatever lies in SRAM before."""

    def __init__(
        self, search: UnitPrices, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        most: Floats | None,
    ) -> None:  # fmt: skip
        self.search, self.first, self.stop = search, first, stop
        self.extents, self.resident, self.depth = extents, resident, depth
        own = search.placed(first, stop, extents).own
        self.sizes = {t: own.reads.size(t, extents) * own.shares[t] for t in own.touched}
        self.bytes = {t: size * own.reads.copies(t) for t, size in self.sizes.items()}
        self.uses = {t: [k for k in search.users[t] if first <= k < stop] for t in own.touched}
        self.outside = own.outside
        self.most = np.full(LEVELS + 1, NO_BOUND) if most is None else np.minimum(most * NEARLY, NO_BOUND)
        self.bare, self.least_after = {}, []
        place = {layer: k for k, layer in enumerate(search.layers)} if search.reads.cycles else {}
        self.cycles = [(place[each.layers[0]], place[each.layers[-1]] + 1) for each in search.reads.cycles]
        """Where those of the whole network begin and end."""

    def last_end(self, here: int) -> int:
        """Where the longest unit from here ends: not inside of what carries states."""
        end = here + self.search.limits.longest
        while inside := [stop for first, stop in self.cycles if first < end < stop]:
            end = max(inside)
        return min(self.stop, end)

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
            for end in range(here + 1, self.last_end(here) + 1):
                placed = self.search.placed(here, end, self.extents)
                after, saved = self.least_after[end - self.first], self.most_saved(placed, here, end)
                bound = self.most - (before[here - self.first] + after - saved)
                self.bare[here, end] = found = self.of_bare(placed, here, end, bound)
                best = np.minimum(best, found - saved + after)
            self.least_after[here - self.first] = np.maximum(self.least_after[here - self.first], best)
        return bool((self.least_after[0] <= self.most).any())

    def of_bare(self, placed: PlacedInterval, here: int, end: int, bound: Floats) -> Floats:
        """What no unit of these layers is below; its curve where that is below the bound."""
        resident = {t: s for t in placed.own.outside if (s := self.resident.get(t, 0.0))}
        least = self.least_of(placed, here, end)
        if not (least <= bound).any():
            return least
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
        sizes = self.moved(placed)
        found = np.full(LEVELS + 1, sum(sizes.values()))
        for first, stop in ((here + 1, end), (here, end - 1)):
            known = self.bare.get((first, stop))
            if known is None or stop - first == 1:
                continue
            sub = self.search.placed(first, stop, self.extents)
            if sub.own.is_connected and not sub.own.cuts_a_cycle:
                part = self.moved(sub)
                more = sum(size for t, size in sizes.items() if t not in part)
                less = sum(size for t, size in part.items() if t not in sizes)
                np.maximum(found, SURE * known + (more - MOST_REPEATED * less), out=found)
        return found

    def moved(self, placed: PlacedInterval) -> dict[Tensor, float]:
        """The fewest bytes of each tensor from outside that is not in SRAM before."""
        if not self.resident:
            return placed.least
        return {t: size * (1.0 - self.resident.get(t, 0.0)) for t, size in placed.least.items()}

    def most_saved(self, placed: PlacedInterval, here: int, end: int) -> Floats:
        """Bytes that tensors in SRAM may save a unit: all of them lie there together."""
        read = made = 0.0
        for tensor, size in placed.sizes.items():
            if self.resident.get(tensor, 0.0) < 1.0:
                if self.uses[tensor][0] < here:
                    read += size
                elif tensor in placed.own.makers and tensor not in self.outside:
                    made += size
        room = self.search.room * self.search.reads.dealt.clusters
        if any(layer.storage_of is not None for layer in placed.own.layers):
            return np.minimum(room, read) + np.minimum(room, made)  # one may lie where the other lay
        return np.minimum(room, read + made)

    def storage(self, own: LayerInterval, here: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Results of a unit that may lie where an operand lay, which nobody reads behind; and the operand."""
        for new, maker in own.makers.items():
            old = self.search.reads.storage_of(maker)
            if old is None or old not in self.uses or old.is_output or self.sizes[old] < self.sizes[new]:
                continue
            if [self.search.layers[k] for k in self.uses[old] if k >= here] == [maker]:
                yield new, old
