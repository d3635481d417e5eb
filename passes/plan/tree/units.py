# Tests: test/passes/plan/tree/test_search.py
"""What a forest knows of its units: how wide the search is, where an interval lies, curves and their bounds.

A curve says for each of `LEVELS` shares of SRAM the fewest DRAM bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.passes.plan.tree.costs import NestCosts
from frustum.passes.plan.tree.intervals import LayerInterval
from frustum.passes.plan.tree.spans import Extents, Floats, Reads
from frustum.passes.plan.tree.zones import Zones

LEVELS = 64
"""Shares of SRAM of which a curve tells: a share is about what the least tiles take. 2026-11-28."""
SMALL = 8
"""What takes less than this part of SRAM is little: what units hand each other needs no loop around them then.
2026-11-28."""
NOTHING_WANTED = np.full(LEVELS + 1, -np.inf)
MOST_REPEATED = 2.0
"""Times that work may be done.  Plans for bytes alone would else trade any work for a byte. 2026-11-28."""
NEARLY = 1 + 1e-7
"""Bytes so close are the same: sums of products of shares are rounded. 2026-11-28."""
NO_BOUND = float(np.finfo(np.float64).max) / LEVELS
"""Above all curves, and a number: arrays of bounds are subtracted."""


@dataclass(frozen=True)
class SearchLimits:
    """How wide the search is: the same for all networks."""

    longest: int = 24
    """Layers of a unit; those that are never cut apart count as one."""
    is_sparse: bool = False
    """Whether units have 1, 2, 3, 4, 6, 8, 12 ... layers: powers of two and three times as many."""
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
        """DRAM bytes of what the interval touches of each tensor from outside, and what waiting for them costs."""
        traffic, shares = self.own.reads.traffic, self.own.shares
        return {t: traffic(t, self.extents) * shares[t] + self.own.wait(t) for t in self.own.outside}

    @cached_property
    def least(self) -> dict[Tensor, float]:
        """The same, without what lies between the positions that are read."""
        traffic, shares = self.own.reads.traffic, self.own.least_shares
        return {t: traffic(t, self.extents) * shares[t] for t in self.own.outside}

    @cached_property
    def all_sizes(self) -> Floats:
        """`sizes` in the order of the tensors from outside."""
        return np.fromiter(self.sizes.values(), np.float64)

    @cached_property
    def all_least(self) -> Floats:
        """`least` in the order of the tensors from outside."""
        return np.fromiter(self.least.values(), np.float64)

    @cached_property
    def once(self) -> float:
        """Bytes of each tensor from outside once."""
        return sum(self.sizes.values())

    @cached_property
    def inside(self) -> dict[Tensor, float]:
        """Bytes of SRAM of what layers hand each other."""
        own = self.own
        return {t: own.reads.size(t, self.extents) for t in own.makers if t not in own.lasting}

    @cached_property
    def handed_on(self) -> float:
        return sum(self.inside.values())

    def resident_key(self, resident: Mapping[Tensor, float]) -> tuple[tuple[int, float], ...]:
        """What of these tensors concerns the interval, without names."""
        numbers = self.own.numbers
        return tuple(sorted((numbers[t], share) for t, share in resident.items() if t in numbers)) if resident else ()


class UnitPrices(Protocol):
    """What a forest is told of its units: the search."""

    capacity: int
    limits: SearchLimits
    layers: tuple[Layer, ...]
    reads: Reads
    zones: Zones
    users: Mapping[Tensor, list[int]]
    room: Floats
    costs: NestCosts | None
    cuts_apart: frozenset[int]
    """Places in the order at which units may end."""

    def placed(self, first: int, stop: int, extents: Extents) -> PlacedInterval:
        """Layers [first, stop)."""
        ...

    def levels(self, size: float) -> int:
        """Shares of SRAM that so many bytes take."""
        ...

    def spend(self, work: int) -> None:
        """Notes work, which may end the search."""
        ...

    def unit(
        self, first: int, stop: int, extents: Extents, resident: Mapping[Tensor, float], depth: int,
        most: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """The curve of an interval as one unit."""
        ...


def levels_of(size: float, capacity: int) -> int:
    """Shares of SRAM that so many bytes take."""
    return math.ceil(size * LEVELS / capacity - 1e-9)


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
