"""One search for all networks: a dynamic programme over the layer order, of curves.

A *curve* says for each of `LEVELS` shares of SRAM the fewest DRAM bytes.  In sequence: add.  Resident meanwhile: shift.
Loop: multiply.  Choice: the lesser, level by level.

unit: an interval of layers as one nest, or as a loop around a forest of them with smaller extents.
forest: units one after the other; the state at a cut is the set of tensors that stay, with the share of each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.passes.plan.tree.intervals import Interval, cut_of, steps_of
from frustum.passes.plan.tree.nest import Interior, Nest
from frustum.passes.plan.tree.passes import Passes
from frustum.passes.plan.tree.prices import Chosen, Floats, Prices
from frustum.passes.plan.tree.spans import Extents, Reads

LEVELS = 64
NEAR = 1.02
"""A nest within 2 % of the best one may be the best where other tensors are in SRAM already. 2026-11-28."""
Kept: TypeAlias = tuple[tuple[Tensor, float], ...]
"""Tensors that lie in SRAM, and the share of each, in the order in which they came."""


@dataclass(frozen=True)
class Limits:
    """How wide the search is: the same for all networks."""

    longest: int = 12
    """Layers of a unit."""
    depth: int = 1
    """Loops around forests within each other."""
    states: int = 24
    """Sets of tensors that are followed at a cut."""
    news: int = 3
    """Tensors that one unit may begin to keep."""
    steps: int = 14
    """Steps of a loop of a nest."""
    outer_steps: int = 6
    """Steps of a loop around a forest."""
    paired: int = 4
    """Longest classes of which two may make a nest of two loops."""
    shares: tuple[int, ...] = (8, 4, 2)
    """Of SRAM, that a part of one tensor may take."""


NARROW: dict[str, Any] = {"longest": 8, "states": 4, "news": 1, "shares": (), "depth": 0}
"""Of the search that bounds the others."""


@dataclass(frozen=True)
class LoopWay:
    """A loop around a forest."""

    group: Class
    step: int
    count: int
    above: tuple[Tensor, ...]
    """Tensors that lie in SRAM for all passes."""
    extents: dict[Axis, int]
    levels: int
    """Of SRAM that they take."""
    weights: float
    once: float


@dataclass
class Step:
    """A unit of a forest, from one state to another one."""

    first: int
    kept: Kept
    new: Kept
    storage: dict[Tensor, Tensor]
    size: float
    resident: dict[Tensor, float]
    curve: Floats


@dataclass
class Record:
    """What a forest tried, for the one who traces its best plan."""

    cuts: list[dict[Kept, Floats]] = field(default_factory=list)
    steps: dict[tuple[int, Kept], list[Step]] = field(default_factory=dict)


def shifted(curve: Floats, levels: int) -> Floats:
    """The curve where so many levels of SRAM are taken."""
    if levels <= 0:
        return curve
    found = np.full_like(curve, np.inf)
    found[levels:] = curve[: max(0, len(curve) - levels)]
    return found


class Search:
    """Of one network in a memory of `capacity` bytes.  `curve`: the fewest DRAM bytes for each of its 64 shares; exact
    for those that are `wanted`, no fewer than that for the others."""

    def __init__(
        self, network: AxisNetwork, capacity: int, limits: Limits | None = None, wanted: Sequence[int] = (LEVELS,)
    ) -> None:
        self.network, self.capacity, self.limits = network, capacity, limits or Limits()
        self.wanted = np.array(wanted)
        self.reads = Reads(network)
        self.layers = tuple(network.layers)
        self.room = np.arange(LEVELS + 1) * (capacity / LEVELS)
        self.extents = {axis: axis.extent for layer in self.layers for axis in layer.axes}
        self.extents |= {axis: axis.extent for tensor in network.tensors for axis in tensor.axes}
        number = {layer: k for k, layer in enumerate(self.layers)}
        self.users = {t: [number[layer] for layer in users] for t, users in self.reads.users.items()}
        self._intervals: dict[tuple[int, int], Interval] = {}
        self._curves: dict[object, Floats] = {}
        self._good: dict[object, Prices] = {}
        self.looked_at = 0

    @cached_property
    def curve(self) -> Floats:
        """The fewest DRAM bytes of the network for every share of SRAM."""
        return self.root(None).curve()

    def root(self, record: Record | None) -> _Forest:
        most = self.most[self.wanted] * (1 + 1e-9)
        return _Forest(self, 0, len(self.layers), self.extents, {}, self.limits.depth, record, most)

    @cached_property
    def least_after(self) -> list[float]:
        """DRAM bytes of what layers from each on are the first to read, or make as outputs."""
        found = [0.0] * (len(self.layers) + 1)
        for tensor, users in self.users.items():
            if not users:
                continue
            size = self.size(tensor, self.extents)
            is_made = self.layers[users[0]].result is tensor
            for k in range(users[0] + 1):
                found[k] += size if not is_made or tensor.is_output else 0.0
        return found

    @cached_property
    def most(self) -> Floats:
        """What a narrow search finds: no better plan is worse."""
        narrow = replace(self.limits, **NARROW)
        wide, self.limits = self.limits, narrow
        found = _Forest(self, 0, len(self.layers), self.extents, {}, 0, None).curve()
        self.limits = wide
        return found

    # ------------------------------------------------------------ small things

    def levels(self, size: float) -> int:
        return math.ceil(size * LEVELS / self.capacity - 1e-9)

    def interval(self, first: int, stop: int) -> Interval:
        if (first, stop) not in self._intervals:
            self._intervals[first, stop] = Interval(self.network, self.reads, self.layers[first:stop])
        return self._intervals[first, stop]

    def size(self, tensor: Tensor, extents: Extents) -> float:
        return math.prod(extents[axis] for axis in tensor.axes) * tensor.element_bits / 8

    def key(self, kind: str, own: Interval, extents: Extents, resident: Mapping[Tensor, float], depth: int) -> object:
        numbers = own.numbers
        return (
            kind, own.key, tuple(extents[axis] for axis in own.axes), depth,
            tuple(sorted((numbers[t], share) for t, share in resident.items() if t in numbers)),
        )  # fmt: skip

    # ------------------------------------------------------------ nests

    def nests(self, own: Interval, extents: Extents) -> Iterator[Nest]:
        """All nests of the layers, each for all of its steps at once."""
        interior = Interior(own, extents)
        yield Nest(interior, ())
        levels, longest = dict[tuple[Class, bool], Passes](), dict[Class, int]()
        for group, is_windowed in own.classes:
            steps = steps_of(own, group, extents, self.limits.steps)
            if steps:
                cut = cut_of(own, group, steps, extents, is_rolling=is_windowed)
                levels[group, is_windowed] = Passes(own, cut, extents)
                longest[group] = extents[own.reference(group)]
                yield Nest(interior, (levels[group, is_windowed],))
        pairs = sorted(levels, key=lambda each: -longest[each[0]])[: self.limits.paired]
        for outer, inner in itertools.permutations(pairs, 2):
            yield Nest(interior, (levels[outer], levels[inner]))
            if outer[1]:
                again = outer[0], False
                if again not in levels:
                    cut = levels[outer].cut
                    levels[again] = Passes(own, replace(cut, is_rolling=False), extents)
                yield Nest(interior, (levels[again], levels[inner]))

    def nest(self, own: Interval, extents: Extents, resident: Mapping[Tensor, float]) -> Floats:
        """The curve of the best nest."""
        key = self.key("nest", own, extents, resident, 0)
        if key not in self._curves:
            prices = self.good_nests(own, extents)
            self.looked_at += len(prices.repeated)
            shares = np.array([resident.get(t, 0.0) for t in own.touched])
            self._curves[key] = prices.priced(shares, self.room).min(axis=1)
        return self._curves[key]

    def good_nests(self, own: Interval, extents: Extents) -> Prices:
        """Those candidates that are best for some size of SRAM where nothing is there before, or everything."""
        key = self.key("good", own, extents, {}, 0)
        if key not in self._good:
            nothing, everything = np.zeros(len(own.touched)), np.array([float(t in own.outside) for t in own.touched])
            best = _Best(nothing, self.room), _Best(everything, self.room)
            for nest in self.nests(own, extents):
                found = nest.prices
                self.looked_at += sum(each.add(found) for each in best)
            self._good[key] = best[0].joined(best[1])
        return self._good[key]

    # ------------------------------------------------------------ loops around forests

    def loops(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int, best: list[Floats]
    ) -> Iterator[tuple[Floats, LoopWay]]:  # fmt: skip
        """Loops over a class around a forest that may be better than `best[0]`."""
        own = self.interval(first, stop)
        free = [t for t in own.outside if resident.get(t, 0.0) < 1.0]
        for group, is_windowed in own.classes:
            if is_windowed:
                continue
            still = [t for t in free if not any(axis in group for axis in t.axes)]
            weights = sum(self.size(t, extents) for t in still if t.kind is Kind.WEIGHT)
            maps = sorted((t for t in still if t.kind is not Kind.WEIGHT), key=lambda t: -self.size(t, extents))
            axis = own.reference(group)
            for step in steps_of(own, group, extents, self.limits.outer_steps):
                count = -(-extents[axis] // step)
                smaller = dict(extents)
                for each in group:
                    smaller[each] = -(-extents[each] * step // extents[axis])
                for k in range(min(len(maps), 3) + 1):
                    for above in itertools.combinations(maps[:3], k):
                        way = self._loop_way(own, group, step, count, above, maps, smaller, extents, weights)
                        if way is None or not self._may_pay(way, free, resident, best[0]):
                            continue
                        body = self.forest(first, stop, smaller, {**resident, **dict.fromkeys(above, 1.0)}, depth - 1)
                        curve = shifted(count * body, way.levels) + way.once
                        yield self._with_weights(curve, way), way

    def _loop_way(
        self, own: Interval, group: Class, step: int, count: int, above: tuple[Tensor, ...], maps: list[Tensor],
        smaller: dict[Axis, int], extents: Extents, weights: float,
    ) -> LoopWay | None:  # fmt: skip
        size = sum(self.size(t, extents) for t in above)
        if size > self.capacity:
            return None
        once = size + sum((count - 1) * self.size(t, extents) for t in maps if t in own.makers and t not in above)
        return LoopWay(group, step, count, above, smaller, self.levels(size), weights, once)

    def _may_pay(self, way: LoopWay, free: list[Tensor], resident: Mapping[Tensor, float], best: Floats) -> bool:
        """Everything moves once at least in each pass, weights but for those that lie in SRAM for all passes."""
        moved = sum(self.size(t, way.extents) * (1 - resident.get(t, 0.0)) for t in free if t not in way.above)
        least = way.once + way.count * moved - (way.count - 1) * np.minimum(way.weights, self.room)
        return bool((best > least * (1 + 1e-9))[way.levels + 1 :].any())

    def _with_weights(self, curve: Floats, way: LoopWay) -> Floats:
        """The curve with some of the weights that every pass would load in SRAM for all passes."""
        if not way.weights or not np.isfinite(curve[-1]):
            return curve
        best = curve
        for k in range(1, min(LEVELS, self.levels(way.weights)) + 1):
            saved = (way.count - 1) * min(k * self.capacity / LEVELS, way.weights)
            best = np.minimum(best, shifted(curve, k) - saved)
        return best

    def unit(self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int) -> Floats:
        own = self.interval(first, stop)
        if depth == 0 or stop - first < 2:
            return self.nest(own, extents, resident)
        key = self.key("unit", own, extents, resident, depth)
        if key not in self._curves:
            best = [self.nest(own, extents, resident)]
            for found, _ in self.loops(first, stop, extents, resident, depth, best):
                best[0] = np.minimum(best[0], found)
            self._curves[key] = best[0]
        return self._curves[key]

    # ------------------------------------------------------------ forests

    def forest(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        record: Record | None = None,
    ) -> Floats:  # fmt: skip
        own = self.interval(first, stop)
        resident = {t: share for t, share in resident.items() if t in own.numbers}
        key = self.key("forest", own, extents, resident, depth)
        if record is None and key in self._curves:
            return self._curves[key]
        return self._curves.setdefault(key, _Forest(self, first, stop, extents, resident, depth, record).curve())


class _Best:
    """The best of many nests for every size of SRAM."""

    def __init__(self, shares: Floats, room: Floats) -> None:
        self.shares, self.room = shares, room
        self.curve, self.top = np.full(len(room), np.inf), len(room)
        self.found: list[tuple[Prices, Chosen, Floats]] = []

    def add(self, prices: Prices) -> int:
        """The number of candidates that were looked at."""
        priced = prices.priced(self.shares, self.room[: self.top])
        at = priced.argmin(axis=1)
        lowest = priced[np.arange(self.top), at]
        self.found.append((prices, at, lowest))
        self.curve[: self.top] = np.minimum(self.curve[: self.top], lowest)
        least = prices.whole @ np.where(prices.outside, 1.0 - self.shares, 0.0)
        self.top = max(1, int((self.curve > least * (1 + 1e-9)).sum()))  # no nest is better above
        return priced.shape[1]

    def good(self) -> list[Chosen]:
        return [np.unique(at[(low <= NEAR * self.curve[: len(at)]) & np.isfinite(low)]) for _, at, low in self.found]

    def joined(self, other: _Best) -> Prices:
        """The good candidates of both."""
        chosen = [np.union1d(a, b) for a, b in zip(self.good(), other.good(), strict=True)]
        good = [prices.only(some) for (prices, _, _), some in zip(self.found, chosen, strict=True) if len(some)]
        return Prices.joined(good or [self.found[0][0]])


class _Forest:
    """Units one after the other, over layers [first, stop)."""

    def __init__(
        self, search: Search, first: int, stop: int, extents: Extents, resident: dict[Tensor, float], depth: int,
        record: Record | None, most: Floats | None = None,
    ) -> None:  # fmt: skip
        self.search, self.first, self.stop = search, first, stop
        self.extents, self.resident, self.depth, self.record = extents, resident, depth, record
        limits = search.limits
        self.most_states = limits.states if depth == limits.depth else limits.states // 2
        self.has_shares = not resident and (depth == limits.depth or stop - first == len(search.layers))
        self.most = most

    def curve(self) -> Floats:
        length = self.stop - self.first
        cuts: list[dict[Kept, Floats]] = [{} for _ in range(length + 1)]
        cuts[0][()] = np.zeros(LEVELS + 1)
        for here in range(self.first, self.stop):
            states = self.hopeful(cuts[here - self.first], here)
            if len(states) > self.most_states:
                ranked = sorted(states, key=lambda s: (states[s][-1], states[s][LEVELS // 2]))
                states = {s: states[s] for s in ranked[: self.most_states]}
            for end in range(here + 1, min(self.stop, here + self.search.limits.longest) + 1):
                if states:
                    self.extend(here, end, states, cuts[end - self.first])
        if self.record is not None:
            self.record.cuts = cuts
        return cuts[-1].get((), np.full(LEVELS + 1, np.inf))

    def hopeful(self, states: dict[Kept, Floats], here: int) -> dict[Kept, Floats]:
        """Those that may become the best plan."""
        if self.most is None:
            return states
        wanted, least = self.search.wanted, self.search.least_after[here]
        return {s: curve for s, curve in states.items() if (curve[wanted] + least <= self.most).any()}

    def extend(self, here: int, end: int, states: dict[Kept, Floats], target: dict[Kept, Floats]) -> None:
        """From all states through the unit [here, end)."""
        search, own = self.search, self.search.interval(here, end)
        fresh = [t for t in own.outside if t not in self.resident and self.may_stay(t, own, end)]
        for kept, curve in states.items():
            known = dict(kept)
            news = [t for t in fresh if t not in known][: search.limits.news]
            has_part = any(share < 1 for share in known.values())
            for k in range(len(news) + 1):
                for new in itertools.combinations(news, k):
                    for way in self.ways(new, has_part, end):
                        self.step(here, end, kept, curve, way, target)

    def may_stay(self, tensor: Tensor, own: Interval, end: int) -> bool:
        search, size = self.search, self.search.size(tensor, self.extents)
        is_read_later = any(end <= k < self.stop for k in search.users[tensor])
        maker = own.makers.get(tensor)
        if not is_read_later and (maker is None or maker.storage_of is None):
            return False
        if tensor.kind is Kind.WEIGHT:
            return size <= search.capacity / 4
        return self.has_shares or size <= search.capacity

    def ways(self, new: tuple[Tensor, ...], has_part: bool, end: int) -> Iterator[Kept]:
        """These tensors whole, or one of them in part."""
        search, limits = self.search, self.search.limits
        sizes = {t: search.size(t, self.extents) for t in new}
        if all(size <= search.capacity for size in sizes.values()):
            yield tuple((t, 1.0) for t in new)
        if not self.has_shares or has_part:
            return
        for k, tensor in enumerate(new):
            others = [t for t in new if t is not tensor]
            if any(sizes[t] > search.capacity for t in others):
                continue
            if not any(end <= u < self.stop for u in search.users[tensor]):
                continue
            for part in limits.shares:
                share = search.capacity / part / sizes[tensor]
                if share < 0.95:
                    yield tuple((t, share if j == k else 1.0) for j, t in enumerate(new))

    def step(
        self, here: int, end: int, kept: Kept, curve: Floats, new: Kept, target: dict[Kept, Floats]
    ) -> None:  # fmt: skip
        """One unit from one state, with these tensors kept from now on."""
        search, own = self.search, self.search.interval(here, end)
        during = dict(kept) | dict(new)
        size, storage = self.room(here, own, during, dict(kept), dict(new))
        if size > search.capacity:
            return
        resident = {t: s for t, s in (self.resident | during).items() if t in own.outside}
        extra = 0.0
        for tensor, share in new:
            if tensor not in own.makers or tensor.is_output or any(k >= self.stop for k in search.users[tensor]):
                extra += share * search.size(tensor, self.extents)
        if self.most is not None:
            least = sum(search.size(t, self.extents) * (1.0 - resident.get(t, 0.0)) for t in own.outside)
            least += extra + search.least_after[end]
            if (curve[search.wanted] + least > self.most).all():
                return
        cost = search.unit(here, end, self.extents, resident, self.depth)
        if not np.isfinite(cost[-1]):
            return
        found = curve + shifted(cost, search.levels(size)) + extra
        after = tuple((t, s) for t, s in during.items() if any(end <= k < self.stop for k in search.users[t]))
        old = target.get(after)
        target[after] = found if old is None else np.minimum(old, found)
        if self.record is not None:
            made = Step(here, kept, new, storage, size, resident, found)
            self.record.steps.setdefault((end, after), []).append(made)

    def room(
        self, here: int, own: Interval, during: dict[Tensor, float], kept: dict[Tensor, float],
        new: Collection[Tensor],
    ) -> tuple[float, dict[Tensor, Tensor]]:  # fmt: skip
        """Bytes of what stays while the unit runs; a new tensor may lie where its operand, which ends here, lay."""
        search, storage = self.search, dict[Tensor, Tensor]()
        size = sum(share * search.size(t, self.extents) for t, share in during.items())
        for tensor in new:
            maker = own.makers.get(tensor)
            old = None if maker is None else search.reads.storage_of(maker)
            if maker is None or old is None or old in storage.values() or kept.get(old, 0.0) < during[tensor]:
                continue
            readers = [k for k in search.users[old] if k >= here]
            is_last = [search.layers[k] for k in readers] == [maker]
            if is_last and search.size(old, self.extents) >= search.size(tensor, self.extents):
                size -= during[tensor] * search.size(tensor, self.extents)
                storage[tensor] = old
        return size, storage
