# Tests: test/passes/plan/tree/test_search.py
"""All nests of an interval, and of those the good ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from frustum.passes.plan.tree.costs import NestCosts
from frustum.passes.plan.tree.intervals import cut_of, steps_of
from frustum.passes.plan.tree.nest import Interior, LoopNest, NestLoops
from frustum.passes.plan.tree.passes import KnownPasses, Passes
from frustum.passes.plan.tree.prices import Chosen, NestPrices
from frustum.passes.plan.tree.spans import Floats
from frustum.passes.plan.tree.units import LEVELS, NEARLY, SMALL, PlacedInterval, SearchLimits

NEAR = 1.02
"""A nest within 2 % of the best one may be the best where other tensors are in SRAM already. 2026-11-28."""


NO_LOOPS = np.zeros((2, 1), np.int64)
"""The one nest without loops."""


@dataclass(frozen=True, eq=False)
class NestWays:
    """The nests of an interval: with at most one loop; and pairs of levels that may make two."""

    interior: Interior
    loops: NestLoops
    singles: NDArray[np.int64]
    pairs: list[tuple[int, int]]

    def of_two(self, stride: int) -> NDArray[np.int64]:
        """Nests of two loops, with every so many steps of each."""
        grids = [
            np.meshgrid(self.loops.steps(outer, stride), self.loops.steps(inner, stride), indexing="ij")
            for outer, inner in self.pairs
        ]
        return np.concatenate([np.array(grid).reshape(2, -1) for grid in grids], axis=-1)


def nest_ways(
    placed: PlacedInterval, limits: SearchLimits, known: KnownPasses, costs: NestCosts | None = None
) -> list[NestWays]:  # fmt: skip
    """Under no loop, under one, under two: each with all steps.  Where cores count, and what is summed may come in
    slices: once more without such slices."""
    own, extents = placed.own, placed.extents
    levels, longest = list[Passes](), list[int]()
    for group, is_windowed in own.classes:
        steps = steps_of(own, group, extents, limits.steps)
        if steps:
            cut = cut_of(own, group, steps, extents, is_rolling=is_windowed)
            levels.append(Passes(own, cut, extents, known))
            longest.append(extents[own.reference(group)])
    steps_at = [k for k, level in enumerate(levels) if level.makes_steps]
    some = sorted(range(len(levels)), key=lambda k: (k not in steps_at, -longest[k]))[: limits.paired]
    pairs, single = list(itertools.permutations(some, 2)), len(levels)
    for outer in some if len(some) > 1 else ():
        if levels[outer].cut.is_rolling:
            levels.append(Passes(own, replace(levels[outer].cut, is_rolling=False), extents, known))
            pairs += [(len(levels) - 1, inner) for inner in some if inner != outer]
    for k in steps_at:  # every nest has the loop over what layers carry
        pairs = [pair for pair in pairs if k in pair]
    found = list[NestWays]()
    for interior in interiors_of(placed, costs):
        loops = NestLoops.of(interior, levels)
        numbers = loops.steps(steps_at[-1]) if steps_at else np.arange(loops.first[single])
        found.append(NestWays(interior, loops, np.array([np.zeros_like(numbers), numbers]), pairs))
    return found


def interiors_of(placed: PlacedInterval, costs: NestCosts | None) -> list[Interior]:
    """Where cores count, and what is summed may come in slices: also without such slices."""
    first = Interior(placed, costs)
    return [first, Interior(placed, costs, sums_in_slices=False)] if costs is not None and first.sliced else [first]


def bare_nest(placed: PlacedInterval, room: Floats, costs: NestCosts | None) -> NestPrices | None:
    """The nest without loops, where hardly any takes less time but in very little of the memory; None where others are
    to be looked at."""
    own = placed.own
    reads_all = all(own.shares[t] <= own.least_shares[t] * NEARLY for t in own.outside)  # passes may leave gaps out
    if costs is None or costs.is_energy or own.in_step or not reads_all:
        return None
    ways = list(bare_ways(placed, costs))
    best = _begun(ways[0].interior, room)
    for each in ways:
        _add(best, each, each.singles)
    return _Best.joined(*best) if all(each.needs_no_loop for each in best) else None


def bare_ways(placed: PlacedInterval, costs: NestCosts | None) -> Iterator[NestWays]:
    """The nest without loops; none of layers that carry states from pass to pass."""
    for each in interiors_of(placed, costs) if not placed.own.in_step else ():
        yield NestWays(each, NestLoops.of(each, ()), NO_LOOPS, [])


def good_nests(
    placed: PlacedInterval, room: Floats, limits: SearchLimits, known: KnownPasses, costs: NestCosts | None = None
) -> NestPrices:  # fmt: skip
    """Those candidates that are best for some size of SRAM where nothing is there before, or everything.  Of two loops
    the steps are coarse first, then near the good ones."""
    found = nest_ways(placed, limits, known, costs)
    best = _begun(found[0].interior, room)
    for ways in found:
        _add(best, ways, ways.singles)
        if ways.pairs and not all(each.is_enough for each in best):
            coarse = ways.of_two(stride=3)
            good = _add(best, ways, coarse)
            near = ways.loops.near(good, coarse)
            if near.size:
                _add(best, ways, near)
    return _Best.joined(*best)


def _begun(interior: Interior, room: Floats) -> tuple[_Best, _Best]:
    """Of no nests yet, where nothing is in SRAM before, and where everything is."""
    own, costs, busy, begins = interior.own, interior.costs, 0.0, (0.0, 0.0)
    if costs is not None and not costs.is_energy:
        busy = float(LoopNest(interior, NestLoops.of(interior, ()), NO_LOOPS).busy[0])
        begins = costs.between, costs.first
    nothing, everything = np.zeros(len(own.touched)), np.array([float(t in own.outside) for t in own.touched])
    return _Best(nothing, room, busy, begins), _Best(everything, room, busy, begins)


def _add(best: tuple[_Best, _Best], ways: NestWays, nests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Prices these nests, and says which are good so far."""
    parts = LoopNest.all_of(ways.interior, ways.loops, nests)
    prices, numbers = parts[0].prices, np.concatenate([part.nests for part in parts], axis=-1)
    if len(parts) > 1:
        prices = NestPrices.joined([part.prices for part in parts])
    return numbers[:, np.union1d(*(each.add(prices) for each in best))]


class _Best:
    """The best of many nests for every size of SRAM."""

    def __init__(self, shares: Floats, room: Floats, busy: float, begins: tuple[float, float]) -> None:
        self.shares, self.room, self.busy, self.begins = shares, room, busy, begins
        self.curve, self.top = np.full(len(room), np.inf), len(room)
        self.found: list[tuple[NestPrices, Chosen, Floats]] = []

    def add(self, prices: NestPrices) -> Chosen:
        """The candidates that are good so far."""
        priced = prices.priced(self.shares, self.room[: self.top])
        at = priced.argmin(axis=1)
        lowest = priced[np.arange(self.top), at]
        self.found.append((prices, at, lowest))
        self.curve[: self.top] = np.minimum(self.curve[: self.top], lowest)
        least = float(prices.whole @ np.where(prices.outside, 1.0 - self.shares, 0.0))
        self.least = least + max(0.0, self.busy - least) * prices.idle
        self.top = max(1, self.above(self.least * (NEAR if self.busy else NEARLY)))  # none is better above
        return self.good()[-1]

    def above(self, most: float) -> int:
        """Sizes of the memory for which the best so far costs more."""
        return int((self.curve > most).sum())

    @property
    def is_enough(self) -> bool:
        """Whether hardly any nest takes less time, but in very little of the memory."""
        return self.busy > 0 and self.top <= LEVELS // SMALL

    @property
    def needs_no_loop(self) -> bool:
        """The same of one without loops: of what the first pass waits for loops may save all."""
        once, share = self.begins
        return self.busy > 0 and self.above(self.least * (NEAR + share) + once) <= LEVELS // SMALL

    def good(self) -> list[Chosen]:
        return [np.unique(at[(low <= NEAR * self.curve[: len(at)]) & np.isfinite(low)]) for _, at, low in self.found]

    def joined(self, other: _Best) -> NestPrices:
        """The good candidates of both."""
        chosen = [np.union1d(a, b) for a, b in zip(self.good(), other.good(), strict=True)]
        good = [prices.only(some) for (prices, _, _), some in zip(self.found, chosen, strict=True) if len(some)]
        return NestPrices.joined(good or [self.found[0][0]])
