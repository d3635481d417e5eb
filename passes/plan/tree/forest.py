# Tests: test/passes/plan/tree/test_search.py
"""Units one after the other: a dynamic programme over the cuts between them.

The state at a cut is the set of tensors that stay in SRAM, with the share of each.  Of every state the curve says the
fewest DRAM bytes so far, for each of `LEVELS` shares of SRAM.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.passes.plan.tree.intervals import LayerInterval
from frustum.passes.plan.tree.spans import Extents, Floats, Reads

LEVELS = 64
"""Shares of SRAM of which a curve tells: a share is about what the least tiles take. 2026-11-28."""
Kept: TypeAlias = tuple[tuple[Tensor, float], ...]
"""Tensors that lie in SRAM, and the share of each, in the order in which they came."""
NOTHING_WANTED = np.full(LEVELS + 1, -np.inf)
MOST_REPEATED = 2.0
"""Times that work may be done.  Plans for bytes alone would else trade any work for a byte. 2026-11-28."""
NEARLY = 1 + 1e-7
"""Bytes so close are the same: sums of products of shares are rounded. 2026-11-28."""
SURE = 0.8
"""A unit of fewer layers may move so many bytes of this one's: limits of repeated work are relative. 2026-11-28."""
NO_BOUND = 1e300
"""Above all curves, and a number: arrays of bounds are subtracted. 2026-11-28."""
WEIGHT_SHARE = 4
"""A weight that later units read too stays only if it takes at most this part of SRAM. 2026-11-28."""


@dataclass(frozen=True)
class SearchLimits:
    """How wide the search is: the same for all networks."""

    longest: int = 24
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


@dataclass(frozen=True, eq=False)
class PlacedInterval:
    """Layers [first, stop) where axes have these extents.  `number`: the same for all that are equal but for names."""

    own: LayerInterval
    extents: Extents
    number: int

    @cached_property
    def sizes(self) -> dict[Tensor, float]:
        """DRAM bytes of what the interval touches of each tensor from outside."""
        reads, shares = self.own.reads, self.own.shares
        return {t: reads.size(t, self.extents) * reads.copies(t) * shares[t] for t in self.own.outside}

    @cached_property
    def once(self) -> float:
        """Bytes of each tensor from outside once."""
        return sum(self.sizes.values())

    def resident_key(self, resident: Mapping[Tensor, float]) -> tuple[tuple[int, float], ...]:
        """What of these tensors concerns the interval, without names."""
        numbers = self.own.numbers
        return tuple(sorted((numbers[t], share) for t, share in resident.items() if t in numbers))


class UnitPrices(Protocol):
    """What a forest is told of its units: the search."""

    capacity: int
    limits: SearchLimits
    layers: tuple[Layer, ...]
    reads: Reads
    users: Mapping[Tensor, list[int]]
    room: Floats

    def placed(self, first: int, stop: int, extents: Extents) -> PlacedInterval:
        """Layers [first, stop)."""
        ...

    def levels(self, size: float) -> int:
        """Shares of SRAM that so many bytes take."""
        ...

    def unit(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        most: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """The curve of an interval as one unit."""
        ...


@dataclass
class UnitStep:
    """A unit of a forest, from one state to another one."""

    first: int
    kept: Kept
    new: Kept
    storage: dict[Tensor, Tensor]
    size: float
    resident: dict[Tensor, float]
    cost: Floats
    """Of the unit alone."""
    curve: Floats


@dataclass
class ForestRecord:
    """What a forest tried, for the one who traces its best plan."""

    cuts: list[dict[Kept, Floats]] = field(default_factory=list)
    steps: dict[tuple[int, Kept], list[UnitStep]] = field(default_factory=dict)


def shifted(curve: Floats, levels: int) -> Floats:
    """The curve where so many levels of SRAM are taken."""
    if levels <= 0:
        return curve
    found = np.full_like(curve, np.inf)
    found[levels:] = curve[: max(0, len(curve) - levels)]
    return found


def wanted_below(bound: Floats, levels: int) -> Floats:
    """The bound for what runs where so many levels of SRAM are taken."""
    return bound if levels <= 0 else np.concatenate([bound[levels:], NOTHING_WANTED[:levels]])


def part_axis(tensor: Tensor, extents: Extents, busy: Collection[Axis] = ()) -> Axis | None:
    """The longest axis that no loop cuts: along it a part of the tensor stays."""
    free = [axis for axis in tensor.axes if extents[axis] == axis.extent and axis not in busy]
    return max(free, key=lambda axis: axis.extent, default=None)


@dataclass(frozen=True, eq=False)
class UnitPlace:
    """A unit of a forest, before it is known from which state: where the states after it go; what each tensor that it
    may keep saves; pairs that may share storage; bytes of what is not in SRAM whatever the state."""

    placed: PlacedInterval
    here: int
    end: int
    target: dict[Kept, Floats]
    gains: Mapping[Tensor, float]
    storage: list[tuple[Tensor, Tensor]]
    moved: Mapping[Tensor, float]


@dataclass(frozen=True, eq=False)
class StatePlace:
    """A state before a unit: its tensors, bytes of SRAM that they take, bounds of what follows, the fewest bytes that
    the unit moves from there."""

    kept: Kept
    known: dict[Tensor, float]
    curve: Floats
    taken: float
    over: Floats
    left: Floats
    least: float


class Forest:
    """Units over layers [first, stop).  `most`: what a plan has to be below to be of use, by shares of SRAM.

    Bounds: with tensors in SRAM a unit saves no more than these bytes against the unit without them in as much memory
    as both take.  So the curves of units with nothing there, less what may stay across each cut, bound what is left.
    """

    search: UnitPrices
    first: int
    stop: int
    extents: Extents
    resident: Mapping[Tensor, float]
    depth: int
    record: ForestRecord | None
    most_states: int
    has_shares: bool
    sizes: dict[Tensor, float]
    """Of tensors in SRAM."""
    bytes: dict[Tensor, float]
    """Over the DRAM port."""
    uses: dict[Tensor, list[int]]
    outside: dict[Tensor, None]
    most: NDArray[np.float64]
    top: int
    """The most memory for which a plan is wanted."""
    bare: dict[tuple[int, int], Floats]
    """No unit with more in SRAM moves fewer bytes than these less those of what is there."""
    least_after: list[Floats]
    """The fewest DRAM bytes of layers from each on, whatever lies in SRAM before."""

    def __init__(
        self, search: UnitPrices, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        record: ForestRecord | None, most: Floats | None = None,
    ) -> None:  # fmt: skip
        self.search, self.first, self.stop = search, first, stop
        self.extents, self.resident, self.depth, self.record = extents, resident, depth, record
        whole, limits = search.placed(first, stop, extents), search.limits
        own = whole.own
        self.most_states = limits.states if depth == limits.depth else limits.states // 2
        self.has_shares = bool(limits.shares)
        self.sizes = {t: own.reads.size(t, extents) * own.shares[t] for t in own.touched}
        self.bytes = {t: size * own.reads.copies(t) for t, size in self.sizes.items()}
        self.uses = {t: [k for k in search.users[t] if first <= k < stop] for t in own.touched}
        self.outside = own.outside
        self.most = np.full(LEVELS + 1, NO_BOUND) if most is None else np.minimum(most * NEARLY, NO_BOUND)
        self.bare, self.least_after = {}, []
        self.top = int(max(np.flatnonzero(self.most > -np.inf), default=LEVELS))

    def curve(self) -> Floats:
        length = self.stop - self.first
        cuts: list[dict[Kept, Floats]] = [{} for _ in range(length + 1)]
        cuts[0][()] = np.zeros(LEVELS + 1)
        if not self.find_bounds():
            return np.full(LEVELS + 1, np.inf)
        for here in range(self.first, self.stop):
            bound = self.most - self.least_after[here - self.first]
            states = {s: c for s, c in cuts[here - self.first].items() if (c <= bound).any()}
            if len(states) > self.most_states:
                ranked = sorted(states, key=lambda s: self.rank(s, states[s], here))
                states = {s: states[s] for s in ranked[: self.most_states]}
            for end in range(here + 1, self.last_end(here) + 1):
                if states:
                    self.extend(here, end, states, cuts[end - self.first])
        if self.record is not None:
            self.record.cuts = cuts
        return cuts[-1].get((), np.full(LEVELS + 1, np.inf))

    def rank(self, kept: Kept, curve: Floats, here: int) -> tuple[float, float]:
        """Bytes so far, less those of later reads of what is kept."""
        saved = sum(share * self.bytes[t] * sum(k >= here for k in self.uses[t]) for t, share in kept)
        return curve[self.top] - saved, curve[self.top // 2] - saved

    def last_end(self, here: int) -> int:
        return min(self.stop, here + self.search.limits.longest)

    # ------------------------------------------------------------ bounds

    def find_bounds(self) -> bool:
        """Whether any plan may be of use."""
        search, room = self.search, self.search.room
        length = self.stop - self.first
        once, before = np.zeros(length + 1), np.zeros(length + 1)
        for tensor in self.outside:
            size = self.bytes[tensor] * (1.0 - self.resident.get(tensor, 0.0))
            once[: self.uses[tensor][0] - self.first + 1] += size
            before[self.uses[tensor][0] - self.first + 1 :] += size
        if not (once[0] <= self.most).any():
            return False
        self.least_after = [np.full(LEVELS + 1, each) for each in once]
        for here in range(self.stop - 1, self.first - 1, -1):
            best = np.full(LEVELS + 1, np.inf)
            for end in range(here + 1, self.last_end(here) + 1):
                placed = search.placed(here, end, self.extents)
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
                    unit = self.search.unit(here, end, self.extents, held, self.depth, wanted_below(bound - both, levels))
                    found = np.minimum(found, shifted(unit, levels) + both)
        return found

    def least_of(self, placed: PlacedInterval, here: int, end: int) -> Floats:
        """Bytes that a unit moves at least: everything once; and what all but its first or last layer move, less what
        the two hand each other, which may be made twice."""
        sizes = self.moved(placed)
        found = np.full(LEVELS + 1, sum(sizes.values()))
        for first, stop in ((here + 1, end), (here, end - 1)):
            known = self.bare.get((first, stop))
            sub = None if known is None else self.search.placed(first, stop, self.extents)
            if known is not None and sub is not None and stop - first > 1 and sub.own.is_connected:
                part = self.moved(sub)
                more = sum(size for t, size in sizes.items() if t not in part)
                less = sum(size for t, size in part.items() if t not in sizes)
                np.maximum(found, SURE * known + (more - MOST_REPEATED * less), out=found)
        return found

    def moved(self, placed: PlacedInterval) -> dict[Tensor, float]:
        """Bytes of each tensor from outside that is not in SRAM before."""
        if not self.resident:
            return placed.sizes
        return {t: size * (1.0 - self.resident.get(t, 0.0)) for t, size in placed.sizes.items()}

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

    # ------------------------------------------------------------ units

    def extend(self, here: int, end: int, states: dict[Kept, Floats], target: dict[Kept, Floats]) -> None:
        """From all states through the unit [here, end)."""
        placed, after = self.search.placed(here, end, self.extents), self.least_after[end - self.first]
        own, sizes = placed.own, placed.sizes
        rest = self.bare[here, end] + (after - self.most)
        if rest.min() > placed.once:
            return
        fresh = [t for t in own.outside if t not in self.resident and self.may_stay(t, own, end)]
        gains = {t: self.gain(t, placed) for t in fresh}
        unit = UnitPlace(placed, here, end, target, gains, list(self.storage(own, here)), self.moved(placed))
        for kept, curve in states.items():
            known = dict(kept)
            over = np.minimum.accumulate((curve + rest)[::-1])[::-1]
            """By how much the bound is exceeded, with so many levels of SRAM taken, but for what tensors there save."""
            over -= sum(share * sizes[t] for t, share in kept if t in sizes)
            news = [t for t in fresh if t not in known][: self.search.limits.news]
            if over[0] > sum(gains[t] for t in news if gains[t] > 0):
                continue
            has_part = any(share < 1 for share in known.values())
            state = StatePlace(
                kept, known, curve, sum(share * self.sizes[t] for t, share in kept), over, self.most - after - curve,
                sum(size * (1.0 - known.get(t, 0.0)) for t, size in unit.moved.items()),
            )  # fmt: skip
            for k in range(len(news) + 1):
                for new in itertools.combinations(news, k):
                    if over[0] > sum(gains[t] for t in new if gains[t] > 0):
                        continue
                    for way in self.ways(new, has_part, end):
                        self.step(unit, state, way)

    def gain(self, tensor: Tensor, placed: PlacedInterval) -> float:
        """What the unit saves by keeping the tensor from now on, at most."""
        if tensor in placed.own.makers and tensor not in self.outside:
            return placed.sizes[tensor]
        return placed.sizes[tensor] - self.bytes[tensor]

    def is_read_from(self, tensor: Tensor, end: int) -> bool:
        return self.uses[tensor][-1] >= end

    def may_stay(self, tensor: Tensor, own: LayerInterval, end: int) -> bool:
        """Whether a tensor that a unit uses may lie in SRAM from then on."""
        maker, size = own.makers.get(tensor), self.sizes[tensor]
        if not self.is_read_from(tensor, end) and (maker is None or maker.storage_of is None):
            return False
        if tensor.kind is Kind.WEIGHT:
            return size <= self.search.capacity / WEIGHT_SHARE
        return self.has_shares or size <= self.search.capacity

    def ways(self, new: tuple[Tensor, ...], has_part: bool, end: int) -> Iterator[Kept]:
        """These tensors whole, or one of them in part."""
        capacity = self.search.capacity
        large = [t for t in new if self.sizes[t] > capacity]
        if not large:
            yield tuple((t, 1.0) for t in new)
        if not self.has_shares or has_part or len(large) > 1:
            return
        for tensor in large or new:
            if self.search.reads.dealt.has(tensor):
                continue
            for part in self.search.limits.shares if self.is_read_from(tensor, end) else ():
                axis = part_axis(tensor, self.extents)
                if axis is not None:
                    positions = int(capacity / part / self.sizes[tensor] * axis.extent)
                    if 0 < positions < axis.extent:
                        yield tuple((t, positions / axis.extent if t is tensor else 1.0) for t in new)

    def step(self, unit: UnitPlace, state: StatePlace, new: Kept) -> None:
        """One unit from one state, with these tensors kept from now on."""
        search, own, sizes = self.search, unit.placed.own, self.sizes
        size, storage = state.taken, dict[Tensor, Tensor]()
        for tensor, share in new:
            size += share * sizes[tensor]
        for tensor, old in unit.storage:
            share = dict(new).get(tensor, 0.0)
            if share and state.known.get(old, 0.0) >= share and old not in storage.values():
                size -= share * sizes[tensor]
                storage[tensor] = old
        if size > search.capacity:
            return
        levels, extra, gain, least = search.levels(size), 0.0, 0.0, state.least
        for tensor, share in new:
            gain += share * unit.gains[tensor]
            least -= share * unit.moved[tensor]
            if tensor not in own.makers or tensor in self.outside:
                extra += share * self.bytes[tensor]
        if state.over[levels if not storage else 0] > gain:
            return
        left = wanted_below(state.left - extra, levels)
        if not left.max() >= least:
            return
        during = state.known | dict(new)
        resident = {t: s for t in own.outside if (s := during.get(t, self.resident.get(t, 0.0)))}
        cost = search.unit(unit.here, unit.end, self.extents, resident, self.depth, left)
        found = state.curve + shifted(cost, levels) + extra
        if not (found + self.least_after[unit.end - self.first] <= self.most).any():
            return
        after = tuple((t, s) for t, s in during.items() if self.is_read_from(t, unit.end))
        old_curve = unit.target.get(after)
        unit.target[after] = found if old_curve is None else np.minimum(old_curve, found)
        if self.record is not None:
            made = UnitStep(unit.here, state.kept, new, storage, size, resident, cost, found)
            self.record.steps.setdefault((unit.end, after), []).append(made)

    def storage(self, own: LayerInterval, here: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Results of a unit that may lie where an operand lay, which nobody reads after their layers; and the operand."""
        for new, maker in own.makers.items():
            old = self.search.reads.storage_of(maker)
            if old is not None and old in self.uses and not old.is_output and self.sizes[old] >= self.sizes[new]:
                if [self.search.layers[k] for k in self.uses[old] if k >= here] == [maker]:
                    yield new, old
