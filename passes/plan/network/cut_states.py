# Tests: test/passes/plan/network/test_optimal.py
"""What the search over cuts knows of each cut: its states, the ways that lead there, how far back groups may begin."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.kept import NOTHING, Resident
from frustum.passes.plan.network.tile_shapes import Ints


@dataclass
class CutState:
    """A way to a cut with some maps in SRAM: bytes and cycles so far, the last unit and what is before."""

    bytes: int
    cycles: int
    maps: Resident = NOTHING
    before: CutState | None = None
    choice: UnitChoice | None = None


class Cut:
    """The states of a cut, those with the same maps in SRAM together."""

    def __init__(self, states: Sequence[CutState]):
        together: dict[Resident, list[CutState]] = {}
        for state in states:
            together.setdefault(state.maps, []).append(state)
        self.maps: list[Resident] = list(together)
        self.states: list[CutState] = [s for same in together.values() for s in same]
        self.counts: Ints = np.array([len(same) for same in together.values()], np.int64)
        self.starts: Ints = np.cumsum(self.counts) - self.counts
        self.bytes: Ints = np.array([s.bytes for s in self.states], np.int64)
        self.cycles: Ints = np.array([s.cycles for s in self.states], np.int64)
        self.least: Ints = np.minimum.reduceat(self.bytes, self.starts) if together else self.bytes
        """Bytes, for each set of maps."""

    def with_maps(self, maps: Resident) -> list[CutState]:
        """The states with just these maps in SRAM."""
        if maps not in self.maps:
            return []
        k = self.maps.index(maps)
        return self.states[self.starts[k] : self.starts[k] + self.counts[k]]


@dataclass(frozen=True)
class Lengths:
    """How long groups may be: at most so many layers; chains that are not cut apart (`seams` is where cuts are looked
    for, None: everywhere) count once."""

    longest: int
    seams: frozenset[int] | None

    def farthest(self, stop: int) -> int:
        """The first layer of the longest group behind which a cut is."""
        if self.seams is None:
            return max(0, stop - self.longest)
        return self.where[max(0, bisect_left(self.where, stop) - self.longest)]

    @cached_property
    def reaching(self) -> int:
        """More layers than any group has."""
        gaps = [b - a for a, b in itertools.pairwise(self.where)]
        return self.longest * (1 if self.seams is None else max(gaps))

    @cached_property
    def where(self) -> list[int]:
        """Cuts are looked for."""
        return sorted(self.seams or ())
