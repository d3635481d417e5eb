# Tests: test/passes/plan/tree/test_search.py
"""Units one after the other: a dynamic programme over the cuts between them.

The state at a cut is the set of tensors that stay in SRAM, with the share of each.  Of every state the curve says the
fewest DRAM bytes so far, for each of `LEVELS` shares of SRAM.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.passes.plan.tree.intervals import LayerInterval
from frustum.passes.plan.tree.spans import Extents, Floats, Reads

LEVELS = 64
Kept: TypeAlias = tuple[tuple[Tensor, float], ...]
"""Tensors that lie in SRAM, and the share of each, in the order in which they came."""
NOTHING_WANTED = np.full(LEVELS + 1, -np.inf)
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


class UnitPrices(Protocol):
    """What a forest is told of its units: the search."""

    capacity: int
    limits: SearchLimits
    layers: tuple[Layer, ...]
    reads: Reads
    users: Mapping[Tensor, list[int]]

    def interval(self, first: int, stop: int) -> LayerInterval:
        """Layers [first, stop)."""
        ...

    def levels(self, size: float) -> int:
        """Shares of SRAM that so many bytes take."""
        ...

    def size(self, tensor: Tensor, extents: Extents) -> float:
        """Bytes of all of a tensor."""
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


def part_axis(tensor: Tensor, extents: Extents, busy: Collection[Axis] = ()) -> Axis | None:
    """The longest axis that no loop cuts: along it a part of the tensor stays."""
    free = [axis for axis in tensor.axes if extents[axis] == axis.extent and axis not in busy]
    return max(free, key=lambda axis: axis.extent, default=None)


class Forest:
    """Units over layers [first, stop).  `most`: what a plan has to be below to be of use, by shares of SRAM."""

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
    uses: dict[Tensor, list[int]]
    outside: dict[Tensor, None]
    most: NDArray[np.float64] | None
    least_after: NDArray[np.float64]

    def __init__(
        self, search: UnitPrices, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        record: ForestRecord | None, most: Floats | None = None,
    ) -> None:  # fmt: skip
        self.search, self.first, self.stop = search, first, stop
        self.extents, self.resident, self.depth, self.record = extents, resident, depth, record
        own, limits = search.interval(first, stop), search.limits
        self.most_states = limits.states if depth == limits.depth else limits.states // 2
        self.has_shares = not resident and (depth == limits.depth or stop - first == len(search.layers))
        self.sizes = {t: search.size(t, extents) * own.shares[t] for t in own.touched}
        self.uses = {t: [k for k in search.users[t] if first <= k < stop] for t in own.touched}
        self.outside = own.outside
        self.most = None if most is None else most * (1 + 1e-9)
        self.least_after = np.zeros(stop - first + 1)
        """DRAM bytes of what layers from each on are the first to use."""
        for tensor in own.outside:
            size = self.sizes[tensor] * (1.0 - resident.get(tensor, 0.0))
            self.least_after[: self.uses[tensor][0] - first + 1] += size

    def curve(self) -> Floats:
        length = self.stop - self.first
        cuts: list[dict[Kept, Floats]] = [{} for _ in range(length + 1)]
        cuts[0][()] = np.zeros(LEVELS + 1)
        for here in range(self.first, self.stop):
            states = {s: c for s, c in cuts[here - self.first].items() if self.may_win(c, 0.0, here)}
            if len(states) > self.most_states:
                ranked = sorted(states, key=lambda s: (states[s][-1], states[s][LEVELS // 2]))
                states = {s: states[s] for s in ranked[: self.most_states]}
            for end in range(here + 1, min(self.stop, here + self.search.limits.longest) + 1):
                if states:
                    self.extend(here, end, states, cuts[end - self.first])
        if self.record is not None:
            self.record.cuts = cuts
        return cuts[-1].get((), np.full(LEVELS + 1, np.inf))

    def may_win(self, curve: Floats, more: float, end: int) -> bool:
        """Whether a plan that begins so, and moves at least so many bytes more until `end`, may be of use."""
        if self.most is None:
            return True
        return bool((curve + (more + self.least_after[end - self.first]) <= self.most).any())

    def left(self, curve: Floats, extra: float, end: int, levels: int) -> Floats | None:
        """What a unit from a state with this curve has to be below, where so many levels of SRAM are taken."""
        if self.most is None:
            return None
        with np.errstate(invalid="ignore"):  # no curve is -inf where nothing is wanted
            found = self.most - curve - (extra + self.least_after[end - self.first])
        return found if levels <= 0 else np.concatenate([found[levels:], NOTHING_WANTED[:levels]])

    def extend(self, here: int, end: int, states: dict[Kept, Floats], target: dict[Kept, Floats]) -> None:
        """From all states through the unit [here, end)."""
        own = self.search.interval(here, end)
        fresh = [t for t in own.outside if t not in self.resident and self.may_stay(t, own, end)]
        for kept, curve in states.items():
            known = dict(kept)
            news = [t for t in fresh if t not in known][: self.search.limits.news]
            has_part = any(share < 1 for share in known.values())
            for k in range(len(news) + 1):
                for new in itertools.combinations(news, k):
                    for way in self.ways(new, has_part, end):
                        self.step(here, end, kept, curve, way, target)

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
            for part in self.search.limits.shares if self.is_read_from(tensor, end) else ():
                axis = part_axis(tensor, self.extents)
                if axis is not None:
                    positions = int(capacity / part / self.sizes[tensor] * axis.extent)
                    if 0 < positions < axis.extent:
                        yield tuple((t, positions / axis.extent if t is tensor else 1.0) for t in new)

    def step(
        self, here: int, end: int, kept: Kept, curve: Floats, new: Kept, target: dict[Kept, Floats]
    ) -> None:  # fmt: skip
        """One unit from one state, with these tensors kept from now on."""
        search, own = self.search, self.search.interval(here, end)
        during = dict(kept) | dict(new)
        size, storage = self.room(here, own, during, dict(kept), dict(new))
        if size > search.capacity:
            return
        resident = {t: s for t in own.outside if (s := during.get(t, self.resident.get(t, 0.0)))}
        extra = sum(share * self.sizes[t] for t, share in new if t not in own.makers or t in self.outside)
        moved = ((t, 1.0 - resident.get(t, 0.0)) for t in own.outside)
        least = extra + sum(search.size(t, self.extents) * own.shares[t] * share for t, share in moved)
        if not self.may_win(curve, least, end):
            return
        left = self.left(curve, extra, end, search.levels(size))
        cost = search.unit(here, end, self.extents, resident, self.depth, left)
        if not np.isfinite(cost[-1]):
            return
        found = curve + shifted(cost, search.levels(size)) + extra
        after = tuple((t, s) for t, s in during.items() if self.is_read_from(t, end))
        old = target.get(after)
        target[after] = found if old is None else np.minimum(old, found)
        if self.record is not None:
            made = UnitStep(here, kept, new, storage, size, resident, found)
            self.record.steps.setdefault((end, after), []).append(made)

    def room(
        self, here: int, own: LayerInterval, during: Mapping[Tensor, float], kept: Mapping[Tensor, float],
        new: Mapping[Tensor, float],
    ) -> tuple[float, dict[Tensor, Tensor]]:  # fmt: skip
        """Bytes of what stays while the unit runs; a new tensor may lie where its operand, which ends here, lay."""
        search, storage = self.search, dict[Tensor, Tensor]()
        size = sum(share * self.sizes[t] for t, share in during.items())
        for tensor in new:
            maker = own.makers.get(tensor)
            old = None if maker is None else search.reads.storage_of(maker)
            if maker is None or old is None or old in storage.values() or kept.get(old, 0.0) < during[tensor]:
                continue
            is_last = [search.layers[k] for k in self.uses[old] if k >= here] == [maker]
            if is_last and self.sizes[old] >= self.sizes[tensor] and not old.is_output:
                size -= during[tensor] * self.sizes[tensor]
                storage[tensor] = old
        return size, storage
