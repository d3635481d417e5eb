# Tests: test/passes/plan/tree/test_wishes.py
"""What is asked of a plan beside that it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frustum.dialects.axes.network import Layer
from frustum.dialects.choices import Carry, Optimise
from frustum.dialects.errors import Error
from frustum.dialects.plan.check import ELEMENTS, PlanError
from frustum.dialects.plan.count import Counted
from frustum.dialects.target import Target

IDLE = 0.75, 0.05
"""A cycle in which the DRAM port waits for cores counts as such a part of one in which it moves: of plans that take
nearly as long, one that moves fewer bytes is better; and as such a part where bytes come first.  2026-11-29."""


class WishError(Error):
    """What is asked of a plan has no meaning on the machine; the text says why, and what to change."""


@dataclass(frozen=True)
class GivenCuts:
    """Layers after which units of the outermost sequence end; they end nowhere else.  `is_crossed`: tensors may stay in
    SRAM across a cut."""

    after: frozenset[str]
    is_crossed: bool = True


@dataclass(frozen=True)
class Stretches:
    """Units that are given: where each ends, by where it begins.  `is_crossed` as for cuts."""

    ends: Mapping[int, int]
    is_crossed: bool = True

    @staticmethod
    def of(layers: Sequence[Layer], cuts: GivenCuts | None) -> Stretches | None:
        """None without cuts.  PlanError where a cut is after no layer."""
        if cuts is None:
            return None
        unknown = sorted(cuts.after - {layer.name for layer in layers})
        if unknown:
            raise PlanError(f"cut after {unknown[0]}: no layer is called {unknown[0]}")
        ends = [k + 1 for k, layer in enumerate(layers) if layer.name in cuts.after]
        ends += [len(layers)] if len(layers) not in ends else []
        return Stretches(dict(zip([0, *ends], ends, strict=False)), cuts.is_crossed)


@dataclass(frozen=True)
class Most:
    """DRAM bytes that a plan may move, and cycles that it may take as the evaluator counts."""

    dram_bytes: float
    cycles: float

    def allows(self, counted: Counted) -> bool:
        """Whether a plan that counts so takes no more."""
        return counted.dram_bytes <= self.dram_bytes and counted.cycles <= self.cycles


@dataclass(frozen=True)
class Wishes:
    """`optimise`: what there should be least of; time and energy are those of `target`.  `carry`: the type of sums that
    wait between passes (`auto`: the element type, which moves the fewest bytes).  `cuts`: the units of the outermost
    sequence; None: those that are best.  `idle`: what a cycle in which the DRAM port waits is worth, of one in which it
    moves; `ahead`: whether what passes of a loop load and store has room for a second copy, so that they overlap;
    `work`: where the narrowest search that finds a plan is enough, of layers in the order of the file,
    it ends after so much, with a plan or without; 0: the best plan is looked for.  `most`: of what takes more
    nothing is wanted."""

    optimise: Optimise = "bytes"
    target: Target | None = None
    carry: Carry = "auto"
    cuts: GivenCuts | None = None
    idle: float = IDLE[0]
    ahead: bool = False
    work: int = 0
    most: Most | None = None
    patient: bool = False
    """Whether the first plan below the most is not enough, while there is work left."""
    next_dealing: bool = False
    """Whether clusters deal what comes next to the best, as narrow searches judge."""

    @property
    def is_quick(self) -> bool:
        """Whether any good plan is enough."""
        return self.work > 0

    @property
    def sum_bits(self) -> int:
        """Of sums that wait; 0: as many as of elements."""
        return ELEMENTS.get(self.carry, 0)


NO_WISHES = Wishes()
