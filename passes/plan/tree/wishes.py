# Tests: test/passes/plan/tree/test_wishes.py
"""What is asked of a plan beside that it fits."""

from __future__ import annotations

from dataclasses import dataclass

from frustum.dialects.choices import Carry, Optimise
from frustum.dialects.plan.check import ELEMENTS
from frustum.dialects.target import Target


@dataclass(frozen=True)
class Wishes:
    """`optimise`: what there should be least of; time and energy are those of `target`.  `carry`: the type of sums that
    wait between passes (`auto`: the element type, which moves the fewest bytes).  `cuts`: the places in the order of
    layers at which units of the outermost sequence begin, beside the first; None: where it is best."""

    optimise: Optimise = "bytes"
    target: Target | None = None
    carry: Carry = "auto"
    cuts: frozenset[int] | None = None

    @property
    def sum_bits(self) -> int:
        """Of sums that wait; 0: as many as of elements."""
        return ELEMENTS.get(self.carry, 0)


NO_WISHES = Wishes()
