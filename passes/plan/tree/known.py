# Tests: test/passes/plan/tree/test_search.py
"""What searches of one network know of each other's parts, and how much they have looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

from frustum.dialects.axes.network import Layer
from frustum.dialects.plan.cycles import KnownLayers
from frustum.passes.plan.tree.costs import KnownCosts
from frustum.passes.plan.tree.prices import NestPrices
from frustum.passes.plan.tree.spans import Floats
from frustum.passes.plan.tree.zones import Dealing


@dataclass
class SearchEffort:
    """How much has been looked at."""

    units: int = 0
    """Those that forests tried; the nests of an interval are as much as `NEST_WORK`."""


@dataclass
class KnownParts:
    """What is found once for all parts of networks that are equal but for names."""

    numbers: dict[object, int] = field(default_factory=dict)
    costs: KnownCosts = field(default_factory=dict)
    good: dict[int, NestPrices] = field(default_factory=dict)
    nests: dict[object, Floats] = field(default_factory=dict)
    bounded: dict[object, tuple[Floats, Floats]] = field(default_factory=dict)
    """Curves of units and forests, with the bounds that they were found for."""
    ranked: dict[tuple[Layer, ...], list[Dealing]] = field(default_factory=dict)
    """What clusters may deal of these layers, the best first, as a quick search judges."""
    layers: KnownLayers = field(default_factory=dict)
    """What `cycles.timed` knows of the layers."""
    effort: SearchEffort = field(default_factory=SearchEffort)

    def for_others(self, *, is_quick: bool) -> KnownParts:
        """What holds for other sizes of SRAM, and for wishes that weigh the same costs in another way.  Quick searches
        share what they may do."""
        effort = self.effort if is_quick else SearchEffort()
        return KnownParts(self.numbers, self.costs, ranked=self.ranked, layers=self.layers, effort=effort)


class EnoughWork(Exception):
    """A search may not look further."""
