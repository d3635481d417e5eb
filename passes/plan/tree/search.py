"""One search for all networks: a dynamic programme over the layer order, of curves.

A *curve* says for each of `LEVELS` shares of SRAM the fewest DRAM bytes.  In sequence: add.  Resident meanwhile: shift.
Loop: multiply.  Choice: the lesser, level by level.

unit: an interval of layers as one nest, or as a loop around a forest of them with smaller extents.
forest: units one after the other; the state at a cut is the set of tensors that stay, with the share of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.plan.tree import Copy
from frustum.passes.plan.tree.again import alternatives
from frustum.passes.plan.tree.best import NEAR, bare_nest, good_nests
from frustum.passes.plan.tree.bounds import SURE
from frustum.passes.plan.tree.costs import NestCosts
from frustum.passes.plan.tree.deal import dealings
from frustum.passes.plan.tree.forest import Forest, ForestRecord
from frustum.passes.plan.tree.intervals import IntervalKeys, LayerInterval, cuts_apart, steps_of
from frustum.passes.plan.tree.known import EnoughWork, KnownParts
from frustum.passes.plan.tree.orders import other_orders
from frustum.passes.plan.tree.passes import KnownPasses
from frustum.passes.plan.tree.prices import NestPrices
from frustum.passes.plan.tree.spans import Extents, Floats, Reads
from frustum.passes.plan.tree.units import (
    LEVELS,
    NEARLY,
    SMALL,
    PlacedInterval,
    SearchLimits,
    levels_of,
    shifted,
)
from frustum.passes.plan.tree.wishes import NO_WISHES, Stretches, Wishes
from frustum.passes.plan.tree.zones import Dealing, Zones

MOST_ABOVE = 3
"""Tensors, the largest first, that may lie in SRAM for all passes of a loop around a forest. 2026-11-28."""
MOST_WORK = 220_000
"""Units that are tried for one network, some half a minute: what wider searches find in more is little. 2026-11-28."""
NEST_WORK, BARE_WORK = 150, 20
"""All nests of an interval take as long as so many units of a forest; where the one without loops is enough, as so
many. 2026-11-30."""
LADDER: tuple[dict[str, Any], ...] = (
    {"longest": 3, "states": 4, "news": 1, "shares": (), "depth": 0},
    {"is_sparse": True, "states": 4, "news": 1, "shares": (), "depth": 0},
    {"is_sparse": True, "states": 12, "depth": 0},
    {"states": 6, "news": 2, "shares": (), "depth": 0},
    {"longest": 12, "states": 3, "news": 1, "shares": (), "outer_steps": 3},
    {"longest": 12, "states": 6, "news": 2, "shares": ()},
)
"""Narrower searches, each of which bounds the next: what they have found is not looked for again.  The first is for
quick searches. 2026-11-30."""
QUICK, NARROW = (replace(SearchLimits(), **rung) for rung in LADDER[:2])
"""What chooses between orders of layers, and between classes that are dealt to clusters: of a quick search, and of
others.  Quick ones look no further than these two unless they are patient."""


@dataclass(frozen=True)
class LoopWay:
    """A loop around a forest."""

    group: Class
    step: int
    count: int
    above: tuple[Tensor, ...]
    """Tensors that lie in SRAM for all passes."""
    extents: Extents
    levels: int
    """Of SRAM that they take."""
    weights: float
    once: float

    def with_weights(self, curve: Floats, capacity: int) -> Floats:
        """The curve with some of the weights that every pass would load in SRAM for all passes."""
        best = curve
        for k in range(1, min(LEVELS, levels_of(self.weights, capacity)) + 1):
            saved = (self.count - 1) * min(k * capacity / LEVELS, self.weights)
            best = np.minimum(best, shifted(curve, k) - saved)
        return best

    def least(
        self, own: LayerInterval, free: list[Tensor], resident: Mapping[Tensor, float], room: Floats
    ) -> Floats:  # fmt: skip
        """Everything moves once at least in each pass, weights but for those that lie in SRAM for all passes.  `free`:
        what is not there before; `room`: bytes of each share of SRAM."""
        moving, bytes_of = (t for t in free if t not in self.above), own.reads.traffic
        moved = sum(bytes_of(t, self.extents) * own.least_shares[t] * (1 - resident.get(t, 0.0)) for t in moving)
        found = self.once + self.count * moved - (self.count - 1) * np.minimum(self.weights, room)
        found[: self.levels + 1] = np.inf
        return found

    def most(self, best: Floats, capacity: int) -> Floats:
        """Of one pass, for the loop to be below these bounds: with as many weights in SRAM as each leaves room for."""
        found = np.full(LEVELS + 1, -np.inf)
        for k in range(min(LEVELS - self.levels, levels_of(self.weights, capacity)) + 1):
            saved = (self.count - 1) * min(k * capacity / LEVELS, self.weights)
            levels = self.levels + k
            here = found[: LEVELS + 1 - levels]
            np.maximum(here, (best[levels:] - self.once + saved) / self.count, out=here)
        return found


class PlanSearch:
    """Of one network in a memory of `capacity` bytes.  `curve`: the fewest DRAM bytes for each of its 64 shares; exact
    for those that are `wanted`, no fewer than that for the others."""

    network: AxisNetwork
    capacity: int
    limits: SearchLimits
    widest: SearchLimits
    wishes: Wishes
    wanted: NDArray[Any]
    reads: Reads
    layers: tuple[Layer, ...]
    zones: Zones
    extents: Extents
    record: ForestRecord
    may_end: bool
    """Whether there is a plan already."""
    is_done: bool
    """Whether nothing is looked for any more but the way of the best plan."""
    known: KnownParts
    costs: NestCosts | None
    cuts_apart: frozenset[int]

    def __init__(
        self, network: AxisNetwork, capacity: int, limits: SearchLimits | None = None,
        wanted: Sequence[int] = (LEVELS,), known: KnownParts | None = None, dealing: Dealing | None = None,
        wishes: Wishes = NO_WISHES,
    ) -> None:  # fmt: skip
        self.network, self.capacity, self.wishes = network, capacity, wishes
        self.limits = self.widest = limits or SearchLimits()
        self.wanted = np.array(wanted)
        self.known = known or KnownParts()
        self.costs = NestCosts.of(wishes, self.known.costs)
        self.reads = Reads(network, wishes.sum_bits, 0.0 if self.costs is None else self.costs.wait)
        self.layers = tuple(network.layers)
        self.room: Floats = np.arange(LEVELS + 1) * np.float64(capacity / LEVELS)
        self.found: Floats = np.full(LEVELS + 1, np.inf)
        """The fewest bytes that have been found."""
        self.zones = Zones(self.reads, self.layers, dealing or Dealing.of_one(self.layers), self.known.numbers)
        self.extents = self.zones.extents
        number = {layer: k for k, layer in enumerate(self.layers)}
        self.users: Mapping[Tensor, list[int]] = {
            t: sorted(number[layer] for layer in users) for t, users in self.reads.users.items()
        }
        self.cuts_apart = cuts_apart(self.reads)
        self.copies: tuple[Copy, ...] = ()
        """Layers of the network that are others made again."""
        self.record = ForestRecord()
        """How the units of the best plans follow each other."""
        self.may_end = self.is_done = False
        self.bound: Floats = np.full(LEVELS + 1, self.most_wanted)
        """Plans that are no better are of no use."""
        self._keys = IntervalKeys(self.reads, self.layers, self.known.numbers)
        """Of intervals of several zones."""
        self._intervals: dict[tuple[int, int], LayerInterval] = {}
        self._passes: KnownPasses = {}
        self._placed: dict[tuple[int, int, int], PlacedInterval] = {}

    @cached_property
    def curve(self) -> Floats:
        """The fewest DRAM bytes of the network for every share of SRAM: a plan for less is one for more."""
        found = np.full(LEVELS + 1, np.inf)
        found[self.wanted] = self.most[self.wanted]
        found[self.most >= self.bound] = np.inf
        return np.minimum.accumulate(found)

    @property
    def most_wanted(self) -> float:
        """The price of a plan that takes the most that is wanted."""
        most = self.wishes.most
        if most is None:
            return np.inf
        return most.dram_bytes if self.costs is None else self.costs.together(most.dram_bytes, most.cycles / SURE)

    def root(self, most: Floats, record: ForestRecord | None = None) -> Forest:
        """The units of the whole network, below `most` where that is wanted."""
        wanted = np.where(np.isin(np.arange(LEVELS + 1), self.wanted), most, -np.inf)
        stretches = Stretches.of(self.layers, self.wishes.cuts)
        return Forest(self, 0, len(self.layers), self.extents, {}, self.limits.depth, record, wanted, stretches)

    @cached_property
    def most(self) -> Floats:
        """The fewest bytes that narrower searches, then this one, find; each of use bounds the next.  `limits` are
        then those of the last of use.  Where so much work is done, or nothing is left to save, the rest is left
        out."""
        ladder = LADDER[0 if self.wishes.is_quick else 1 :]
        rungs = [replace(self.widest, **narrow) for narrow in (*ladder, dict[str, Any]())]
        if np.isfinite(self.found[self.wanted]).any() and self.limits in rungs:
            rungs = rungs[rungs.index(self.limits) + 1 :]  # so far it is done
        best, found = self.limits, np.minimum(self.bound, self.found)
        has_plan = self.may_end or bool((found < self.bound)[self.wanted].any())
        is_short = self.wishes.is_quick and not self.wishes.patient
        for limits in rungs:
            is_wide = limits not in (QUICK, NARROW)  # before, longer units of the same price may make longer chains
            if is_wide and (is_short or (found[self.judged] <= self.enough).all()):
                break
            self.limits, self.may_end = limits, has_plan
            try:
                curve = self.root(found, record := ForestRecord()).curve()
            except EnoughWork:
                break
            is_little = has_plan and self.costs is not None and (curve * NEAR >= found)[self.judged].all()
            if ((curve <= found * NEARLY) | (np.minimum(curve, found) >= self.bound))[self.wanted].all():
                best, found, self.record = self.limits, np.minimum(found, curve), record
            has_plan |= bool((found < self.bound)[self.wanted].any())
            if is_little and not self.wishes.patient:  # prices of time are rougher than what wider searches would find
                break
        self.limits, self.may_end = best, False
        return found

    @property
    def judged(self) -> list[int]:
        """The shares of the memory whose plans have to be good: of time and energy the largest one that is wanted."""
        return list(self.wanted) if self.costs is None else [max(self.wanted)]

    @cached_property
    def enough(self) -> float:
        """Plans with more than this may be made better."""
        moved = self.network.compulsory_bytes
        if self.costs is None:
            return moved * NEARLY
        whole = [(layer, self.zones.zone(layer).extents) for layer in self.layers]
        return self.costs.least(whole, moved) * NEAR

    def spend(self, work: int) -> None:
        """Notes work; EnoughWork where there is a plan already, or is to be soon, and no more may be done."""
        if self.is_done:
            return
        self.known.effort.units += work
        most = self.wishes.work or MOST_WORK
        if self.wishes.is_quick:
            most //= 1 + (self.may_end and not self.wishes.patient)  # what is left is for other wishes
        if (self.may_end or self.wishes.is_quick) and self.known.effort.units > most:
            raise EnoughWork

    def narrowly(self) -> float:
        """Bytes that one search finds, without a ladder, in all of the memory; infinite where that is too much work."""
        with suppress(EnoughWork):
            curve = self.root(self.bound, record := ForestRecord()).curve()
            self.record, self.found = record, np.minimum(self.bound, curve)
            return float(curve[LEVELS])
        return np.inf

    # ------------------------------------------------------------ small things

    def levels(self, size: float) -> int:
        return levels_of(size, self.capacity)

    def interval(self, first: int, stop: int) -> LayerInterval:
        """Layers [first, stop)."""
        if (first, stop) not in self._intervals:
            zone = self.zones.of(first, stop)
            reads = self.reads if zone is None else zone.reads
            self._intervals[first, stop] = LayerInterval(self.network, reads, self.layers[first:stop])
        return self._intervals[first, stop]

    def placed(self, first: int, stop: int, extents: Extents) -> PlacedInterval:
        """Layers [first, stop)."""
        own, zone = self.interval(first, stop), self.zones.of(first, stop)
        keys, extents = self._keys if zone is None else zone.keys, self.extents_of(first, stop, extents)
        key = first, stop, keys.of(first, own, extents)
        found = self._placed.get(key)
        if found is None:
            found = self._placed[key] = PlacedInterval(own, extents, key[2])
        return found

    def extents_of(self, first: int, stop: int, extents: Extents) -> Extents:
        """Of layers [first, stop): where no loop is around them, the shares of one cluster."""
        zone = self.zones.of(first, stop)
        return extents if zone is None or extents is not self.extents else zone.extents

    # ------------------------------------------------------------ nests

    def nest(self, placed: PlacedInterval, resident: Mapping[Tensor, float]) -> Floats:
        """The curve of the best nest; infinite where a cluster needs what others make inside, and where no loop has
        all steps of what is carried."""
        if not placed.own.may_be_dealt or not placed.own.may_be_nest:
            return np.full(LEVELS + 1, np.inf)
        key = placed.number, placed.resident_key(resident)
        if key not in self.known.nests:
            shares = np.array([resident.get(t, 0.0) for t in placed.own.touched])
            self.known.nests[key] = self.good_nests(placed).priced(shares, self.room).min(axis=1)
        return self.known.nests[key]

    def good_nests(self, placed: PlacedInterval) -> NestPrices:
        """`best.good_nests`, found once for equal intervals."""
        if placed.number not in self.known.good:
            self.spend(BARE_WORK)
            found = bare_nest(placed, self.room, self.costs) if self.is_little(placed) else None
            if found is None:
                self.spend(NEST_WORK)
                found = good_nests(placed, self.room, self.limits, self._passes, self.costs)
            self.known.good[placed.number] = found
        return self.known.good[placed.number]

    def is_little(self, placed: PlacedInterval) -> bool:
        """Whether an interval has little of what the network must move: of that loops may hide the first part."""
        made = self.network.maker
        moved = sum(size for t, size in placed.sizes.items() if t not in made or t.is_output)
        return moved <= self.network.compulsory_bytes / SMALL

    # ------------------------------------------------------------ loops around forests

    def loops(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        best: list[Floats], most: Floats | None,
    ) -> Iterator[tuple[Floats, LoopWay]]:  # fmt: skip
        """Loops over a class around a forest that may be better than `best[0]`, and below `most`."""
        own = self.interval(first, stop)
        free = [t for t in own.outside if resident.get(t, 0.0) < 1.0]
        ways = list(self._loop_ways(own, extents, resident))
        least = [way.least(own, free, resident, self.room) for way in ways]
        wanted = LEVELS if most is None else max(np.flatnonzero(most > -np.inf), default=LEVELS)
        for k in sorted(range(len(ways)), key=lambda k: float(least[k][wanted])):
            way, bound = ways[k], best[0] if most is None else np.minimum(best[0], most)
            if (bound > least[k] * (1 + 1e-9)).any():
                inside = {**resident, **dict.fromkeys(way.above, 1.0)}
                body = self.forest(first, stop, way.extents, inside, depth - 1, way.most(bound, self.capacity))
                curve = shifted(way.count * body, way.levels) + way.once
                yield way.with_weights(curve, self.capacity), way

    def _loop_ways(self, own: LayerInterval, extents: Extents, resident: Mapping[Tensor, float]) -> Iterator[LoopWay]:
        free = [t for t in own.outside if resident.get(t, 0.0) < 1.0]
        for group in own.scalable:
            if not (own.may_be_dealt or own.reads.dealt.axes.isdisjoint(group)):
                continue
            still = [t for t in free if not any(axis in group for axis in t.axes)]
            weights = sum(own.reads.size(t, extents) * own.shares[t] for t in still if t.kind is Kind.WEIGHT)
            maps = [t for t in still if t.kind is not Kind.WEIGHT]
            maps.sort(key=lambda t: -own.reads.size(t, extents))
            wide = {t: own.reads.widening(t) if t in own.makers else 1.0 for t in maps}
            axis = own.reference(group)
            for step in steps_of(own, group, extents, self.limits.outer_steps):
                count = -(-extents[axis] // step)
                smaller = Extents(extents)
                for each in group:
                    smaller[each] = -(-extents[each] * step // extents[axis])
                for k in range(min(len(maps), MOST_ABOVE) + 1):
                    above = tuple(maps[:k])
                    size = sum(own.reads.size(t, extents) * wide[t] for t in above)
                    waits = count > 1 and any(t in own.makers and t not in above for t in maps)
                    if size <= self.capacity and not waits:  # sums do not wait in DRAM
                        once = sum(own.reads.traffic(t, extents) for t in above)
                        yield LoopWay(group, step, count, above, smaller, self.levels(size), weights, once)

    def unit(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        most: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """The curve of an interval as one nest, or as a loop around a forest.  Where it is not below `most`, it may be
        higher than the best."""
        extents = self.extents_of(first, stop, extents)
        placed = self.placed(first, stop, extents)
        nest = self.nest(placed, resident)
        if depth == 0 or placed.own.cuts_a_recurrence or not self._may_loop(placed, resident):
            return nest
        key = "unit", self.limits, placed.number, depth, placed.resident_key(resident)
        most, known = self._known(key, most)
        if known is None:
            best = [nest]
            for found, _ in self.loops(first, stop, extents, resident, depth, best, most):
                best[0] = np.minimum(best[0], found)
            known = best[0]
            self.known.bounded[key] = most, known
        return known

    def _may_loop(self, placed: PlacedInterval, resident: Mapping[Tensor, float]) -> bool:
        """Whether a loop around several units may pay: it makes smaller what they hand each other."""
        held = sum(placed.inside.get(t, 0.0) for t in resident)
        is_whole = all(share == 1.0 for share in resident.values())
        return is_whole and placed.handed_on - held > self.capacity / SMALL

    def forest(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        most: Floats | None = None, record: ForestRecord | None = None,
    ) -> Floats:  # fmt: skip
        """The curve of units one after the other; `most` as for a unit."""
        placed = self.placed(first, stop, extents)
        resident = {t: share for t, share in resident.items() if t in placed.own.numbers}
        key = "forest", self.limits, placed.number, depth, placed.resident_key(resident)
        most, known = self._known(key, most)
        if known is None or record is not None:
            known = Forest(self, first, stop, extents, resident, depth, record, most).curve()
            self.known.bounded[key] = most, known
        return known

    def _known(self, key: object, most: Floats | None) -> tuple[Floats, Floats | None]:
        """A curve that was found for these bounds, or wider ones; without one, the bounds to find it for."""
        bound = np.full(LEVELS + 1, np.inf) if most is None else most
        if key not in self.known.bounded:
            return bound, None
        known, curve = self.known.bounded[key]
        if (known >= bound).all():
            return known, curve
        return np.maximum(known, bound), None


Judge: TypeAlias = Callable[[PlanSearch], float]


def searched(
    network: AxisNetwork, capacity: int, clusters: int = 1, wishes: Wishes = NO_WISHES,
    wanted: Sequence[int] = (LEVELS,), known: KnownParts | None = None, judge: Judge = PlanSearch.narrowly,
) -> PlanSearch:  # fmt: skip
    """The search with the fewest bytes in all of the memory: of the network, or of one that makes layers again.
    `judge`: what there should be least of, of what narrow searches find with one class or another dealt to clusters."""
    found = searches(network, capacity, wanted, clusters, wishes, known, judge)
    return min(found, key=lambda search: float(search.curve[LEVELS]))


def searches(
    network: AxisNetwork, capacity: int, wanted: Sequence[int], clusters: int, wishes: Wishes = NO_WISHES,
    known: KnownParts | None = None, judge: Judge = PlanSearch.narrowly,
) -> Iterator[PlanSearch]:  # fmt: skip
    """Of the network in each order of its layers, and of those that make layers again, each below what those before it
    have found.  The order in which a narrow search moves the fewest bytes is first: work may end before the others.
    Units that are given are of the file's order; a layer is made again by a unit that reads it, so not where units have
    nothing of each other."""
    known, orders = (known or KnownParts()).for_others(is_quick=wishes.is_quick), [network]
    if wishes.cuts is None and not wishes.is_quick:
        orders += other_orders(network)
    if len(orders) > 1:
        orders.sort(key=lambda order: PlanSearch(order, capacity, NARROW, wanted, known).narrowly())
        known.effort.units = 0
    networks = [(order, tuple[Copy, ...]()) for order in orders]
    is_thorough = wishes.patient or not wishes.is_quick
    if is_thorough and (wishes.cuts is None or wishes.cuts.is_crossed):
        networks += alternatives(orders[0], capacity / SMALL)
    bound = np.full(LEVELS + 1, np.inf)
    for other, copies in networks:
        search = _dealt(other, capacity, wanted, clusters, known, wishes, judge, may_end=bool(np.isfinite(bound).any()))
        search.copies, search.bound = copies, np.minimum(search.bound, bound)
        yield search
        bound = np.minimum(bound, search.curve)


def _dealt(
    network: AxisNetwork, capacity: int, wanted: Sequence[int], clusters: int, known: KnownParts, wishes: Wishes,
    judge: Judge, *, may_end: bool,
) -> PlanSearch:  # fmt: skip
    """The search with the classes of axes dealt to clusters, of which narrow searches find the best; given units may
    have no plan but loops around forests."""
    narrow = QUICK if wishes.is_quick else NARROW
    if wishes.cuts is not None:
        narrow = replace(SearchLimits(), **LADDER[-1])
    key = tuple(network.layers)
    ways = known.ranked.get(key) or dealings(network, clusters, wishes)
    ranked = [PlanSearch(network, capacity, None, wanted, known, way, wishes) for way in ways]
    for search in ranked:
        search.limits, search.may_end = narrow, may_end
    if key not in known.ranked and len(ranked) > 1:
        ranked.sort(key=judge)
        if wishes.is_quick:
            known.ranked[key] = [search.zones.dealing for search in ranked]
    return ranked[min(int(wishes.next_dealing), len(ranked) - 1)]
