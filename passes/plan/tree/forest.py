# Tests: test/passes/plan/tree/test_search.py
"""Units one after the other: a dynamic programme over the cuts between them.

The state at a cut is the set of tensors that stay in SRAM, with the share of each.  Of every state the curve says the
fewest DRAM bytes so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.passes.plan.tree.bounds import ForestBounds
from frustum.passes.plan.tree.spans import Extents, Floats
from frustum.passes.plan.tree.units import LEVELS, PlacedInterval, UnitPrices, shifted, wanted_below
from frustum.passes.plan.tree.wishes import Stretches

Kept: TypeAlias = tuple[tuple[Tensor, float], ...]
"""Tensors that lie in SRAM, and the share of each, in the order in which they came."""
WEIGHT_SHARE = 4
"""A weight that later units read too stays only if it takes at most this part of SRAM. 2026-11-28."""


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
    moved: Floats


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


class Forest(ForestBounds):
    """Units over layers [first, stop), below `most`.  `record`: where it notes what it tries."""

    record: ForestRecord | None
    news: int
    """Tensors that one unit may begin to keep."""
    most_states: int
    has_shares: bool
    may_stay: NDArray[np.bool_]
    top: int
    """The most memory for which a plan is wanted."""

    def __init__(
        self, search: UnitPrices, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        record: ForestRecord | None, most: Floats | None = None, stretches: Stretches | None = None,
    ) -> None:  # fmt: skip
        super().__init__(search, first, stop, extents, resident, depth, most, stretches)
        limits = search.limits
        self.record = record
        self.news = limits.news if stretches is None or stretches.is_crossed else 0
        self.most_states = limits.states if depth == limits.depth else limits.states // 2
        self.has_shares = bool(limits.shares)
        self.top = int(max(np.flatnonzero(self.most > -np.inf), default=LEVELS))
        self.may_stay = np.zeros(len(self.free), np.bool_)
        """Of every tensor of the network whether it may lie in SRAM from some unit on."""
        index = search.reads.index
        self.may_stay[[index[t] for t, size in self.sizes.items() if self.has_room(t, size)]] = True

    def curve(self) -> Floats:
        length = self.stop - self.first
        cuts: list[dict[Kept, Floats]] = [{} for _ in range(length + 1)]
        cuts[0][()] = np.zeros(LEVELS + 1)
        if not self.find():
            return np.full(LEVELS + 1, np.inf)
        for here in range(self.first, self.stop):
            bound = self.most - self.least_after[here - self.first]
            states = {s: c for s, c in cuts[here - self.first].items() if (c <= bound).any()}
            if len(states) > self.most_states:
                ranked = sorted(states, key=lambda s: self.rank(s, states[s], here))
                states = {s: states[s] for s in ranked[: self.most_states]}
            for end in self.ends(here):
                if states:
                    self.extend(here, end, states, cuts[end - self.first])
        if self.record is not None:
            self.record.cuts = cuts
        return cuts[-1].get((), np.full(LEVELS + 1, np.inf))

    def rank(self, kept: Kept, curve: Floats, here: int) -> tuple[float, float]:
        """Bytes so far, less those of later reads of what is kept."""
        saved = sum(share * self.saved_from(t, here) for t, share in kept)
        return curve[self.top] - saved, curve[self.top // 2] - saved

    def saved_from(self, tensor: Tensor, here: int) -> float:
        """Bytes of later reads of a tensor that stays."""
        return self.bytes[tensor] * sum(k >= here for k in self.uses[tensor])

    def extend(self, here: int, end: int, states: dict[Kept, Floats], target: dict[Kept, Floats]) -> None:
        """From all states through the unit [here, end)."""
        placed, after = self.search.placed(here, end, self.extents), self.least_after[end - self.first]
        own, sizes = placed.own, placed.sizes
        rest = self.bare[here, end] + (after - self.most)
        if rest.min() > placed.once:
            return
        may_stay = self.may_stay[own.at] & ((self.last_use[own.at] >= end) | own.may_replace)
        fresh = [t for t, stays in zip(own.outside, may_stay.tolist(), strict=True) if stays]
        fresh.sort(key=lambda t: -self.saved_from(t, end))
        gains = {t: self.gain(t, placed) for t in fresh}
        moved = self.moved(placed)
        unit = UnitPlace(placed, here, end, target, gains, list(self.storage(own, here)), moved)
        least = float(moved.sum())
        for kept, curve in states.items():
            known = dict(kept)
            over = np.minimum.accumulate((curve + rest)[::-1])[::-1]
            """By how much the bound is exceeded, with so many levels of SRAM taken, but for what tensors there save."""
            over -= sum(share * sizes[t] for t, share in kept if t in sizes)
            news = [t for t in fresh if t not in known][: self.news]
            if over[0] > sum(gains[t] for t in news if gains[t] > 0):
                continue
            has_part = any(share < 1 for share in known.values())
            state = StatePlace(
                kept, known, curve, sum(share * self.sizes[t] for t, share in kept), over, self.most - after - curve,
                least - sum(share * moved[own.places[t]] for t, share in kept if t in own.places),
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

    def sent(self, tensor: Tensor) -> float:
        """What it costs that each cluster sends others what it made of a tensor that stays."""
        costs, size = self.search.costs, self.search.zones.sent(tensor) if self.is_outermost else 0.0
        return costs.sent(size) if costs is not None and size else 0.0

    def is_read_from(self, tensor: Tensor, end: int) -> bool:
        return self.uses[tensor][-1] >= end

    def has_room(self, tensor: Tensor, size: float) -> bool:
        """Whether a tensor that is not there before may lie in SRAM from some unit on."""
        if tensor in self.resident:
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
            if self.search.zones.is_dealt(tensor):
                continue
            for part in self.search.limits.shares if self.is_read_from(tensor, end) else ():
                axis = part_axis(tensor, self.extents)
                if axis is not None:
                    positions = int(capacity / part / self.sizes[tensor] * axis.extent)
                    if 0 < positions < axis.extent:
                        yield tuple((t, positions / axis.extent if t is tensor else 1.0) for t in new)

    def step(self, unit: UnitPlace, state: StatePlace, new: Kept) -> None:
        """One unit from one state, with these tensors kept from now on."""
        search, own = self.search, unit.placed.own
        size, storage = self.room(unit, state, new)
        if size > search.capacity:
            return
        levels, extra, gain, least = search.levels(size), 0.0, 0.0, state.least
        for tensor, share in new:
            gain += share * unit.gains[tensor]
            least -= share * unit.moved[own.places[tensor]]
            if tensor not in own.makers or tensor in self.outside:
                extra += share * self.bytes[tensor]
            if tensor in own.makers:
                extra += share * self.sent(tensor)
        if state.over[levels if not storage else 0] > gain:
            return
        search.spend(1)
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

    def room(self, unit: UnitPlace, state: StatePlace, new: Kept) -> tuple[float, dict[Tensor, Tensor]]:
        """Bytes of what stays while the unit runs, and which new tensors lie where others lay."""
        size, storage = state.taken, dict[Tensor, Tensor]()
        for tensor, share in new:
            size += share * self.sizes[tensor]
        for tensor, old in unit.storage:
            share = dict(new).get(tensor, 0.0)
            if share and state.known.get(old, 0.0) >= share and old not in storage.values():
                size -= share * self.sizes[tensor]
                storage[tensor] = old
        return size, storage
