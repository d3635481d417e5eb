# Tests: test/passes/plan/tree/test_search.py
"""All nests of an interval, and of those the good ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from frustum.dialects.axes.classes import Class
from frustum.passes.plan.tree.forest import SearchLimits
from frustum.passes.plan.tree.intervals import LayerInterval, cut_of, steps_of
from frustum.passes.plan.tree.nest import Interior, LoopNest, NestWays
from frustum.passes.plan.tree.passes import Passes
from frustum.passes.plan.tree.prices import Chosen, NestPrices
from frustum.passes.plan.tree.spans import Extents, Floats

NEAR = 1.02
"""A nest within 2 % of the best one may be the best where other tensors are in SRAM already. 2026-11-28."""


def nest_ways(own: LayerInterval, extents: Extents, limits: SearchLimits) -> list[list[NestWays]]:
    """Under no loop, under one, under two: each with all steps."""
    levels, longest = dict[tuple[Class, bool], Passes](), dict[Class, int]()
    for group, is_windowed in own.classes:
        steps = steps_of(own, group, extents, limits.steps)
        if steps:
            cut = cut_of(own, group, steps, extents, is_rolling=is_windowed)
            levels[group, is_windowed] = Passes(own, cut, extents)
            longest[group] = extents[own.reference(group)]
    pairs = sorted(levels, key=lambda each: -longest[each[0]])[: limits.paired]
    found = [[NestWays.of()], [NestWays.of(passes) for passes in levels.values()], []]
    for outer, inner in itertools.permutations(pairs, 2):
        found[2].append(NestWays.of(levels[outer], levels[inner]))
        if outer[1]:
            again = outer[0], False
            if again not in levels:
                levels[again] = Passes(own, replace(levels[outer].cut, is_rolling=False), extents)
            found[2].append(NestWays.of(levels[again], levels[inner]))
    return [some for some in found if some]


def good_nests(own: LayerInterval, extents: Extents, room: Floats, limits: SearchLimits) -> NestPrices:
    """Those candidates that are best for some size of SRAM where nothing is there before, or everything.  Of two loops
    the steps are coarse first, then near the good ones."""
    nothing, everything = np.zeros(len(own.touched)), np.array([float(t in own.outside) for t in own.touched])
    best, interior = (_Best(nothing, room), _Best(everything, room)), Interior(own, extents)
    for ways in nest_ways(own, extents, limits):
        coarse = [NestWays.of(*way.levels, stride=max(1, len(way.levels))) for way in ways]
        nest = LoopNest(interior, coarse)
        good = [each.add(nest.prices) for each in best]
        if nest.is_large.any():
            other = LoopNest(interior, coarse, streams_little=True).prices
            good += [each.add(other) for each in best]
        if len(nest.along) > 1:
            chosen = np.unique(np.concatenate(good))
            fine = [way.near(nest.of_way(number, chosen)) for number, way in enumerate(coarse)]
            if any(way.index.size for way in fine):
                nest = LoopNest(interior, [way for way in fine if way.index.size])
                for each in best:
                    each.add(nest.prices)
                    if nest.is_large.any():
                        each.add(LoopNest(interior, nest.ways, streams_little=True).prices)
    return best[0].joined(best[1])


class _Best:
    """The best of many nests for every size of SRAM."""

    def __init__(self, shares: Floats, room: Floats) -> None:
        self.shares, self.room = shares, room
        self.curve, self.top = np.full(len(room), np.inf), len(room)
        self.found: list[tuple[NestPrices, Chosen, Floats]] = []

    def add(self, prices: NestPrices) -> Chosen:
        """The candidates that are good so far."""
        priced = prices.priced(self.shares, self.room[: self.top])
        at = priced.argmin(axis=1)
        lowest = priced[np.arange(self.top), at]
        self.found.append((prices, at, lowest))
        self.curve[: self.top] = np.minimum(self.curve[: self.top], lowest)
        least = prices.whole @ np.where(prices.outside, 1.0 - self.shares, 0.0)
        self.top = max(1, int((self.curve > least * (1 + 1e-9)).sum()))  # no nest is better above
        return self.good()[-1]

    def good(self) -> list[Chosen]:
        return [np.unique(at[(low <= NEAR * self.curve[: len(at)]) & np.isfinite(low)]) for _, at, low in self.found]

    def joined(self, other: _Best) -> NestPrices:
        """The good candidates of both."""
        chosen = [np.union1d(a, b) for a, b in zip(self.good(), other.good(), strict=True)]
        good = [prices.only(some) for (prices, _, _), some in zip(self.found, chosen, strict=True) if len(some)]
        return NestPrices.joined(good or [self.found[0][0]])
