# Tests: test/runtime/tools/test_plan.py
"""The plan of a model as a tree, and DRAM bytes against SRAM capacity: `frustum plan` and `frustum curve`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from frustum.dialects.choices import Optimise

if TYPE_CHECKING:
    from frustum.dialects.axes.network import AxisNetwork
    from frustum.dialects.plan.count import Counted
    from frustum.dialects.plan.tree import Node, Resident
    from frustum.dialects.target import Target
    from frustum.passes.plan.tree.wishes import Wishes


@dataclass(frozen=True)
class CountedPlan:
    """A tree for a network, and what it was counted to move and hold."""

    network: AxisNetwork
    target: Target
    tree: Node
    counted: Counted
    cached: bool = field(default=False, compare=False)
    """Whether it was found before, and taken from the cache."""

    def text(self) -> str:
        """As a file has it, with a comment behind each line: bytes over DRAM port and links, the most SRAM, cycles."""
        from frustum.dialects.plan.text import plan_text

        def comment(node: Node | Resident) -> str:
            counted = self.counted
            sizes = {"moved": counted.moved, "received over links": counted.received, "held": counted.held}
            found = [f"{size:,} B {what}" for what, each in sizes.items() if (size := each.get(id(node), 0))]
            cycles = math.ceil(counted.taken.get(id(node), 0.0))
            return ", ".join([*found, f"{cycles:,} cycles"] if cycles else found)

        return plan_text(self.network.name, self.target.name, self.tree, comment)


def planned(
    network: AxisNetwork, target: Target, tree: Node | None = None, *, wishes: Wishes | None = None, cache: bool = False
) -> CountedPlan:  # fmt: skip
    """The plan with the fewest DRAM bytes on all clusters (one, where they have no links), or what `wishes` ask for, or
    a given one; PlanError where it is none of the network or for more clusters, DoesNotFit where it takes more SRAM
    than there is.

    `cache`: take the one that was found before, and keep what is found now.
    """
    from frustum.dialects.plan.clusters import check_clusters
    from frustum.dialects.plan.cycles import timed

    if tree is None:
        return _searched(network, target, wishes, cache=cache)
    assert wishes is None, "a plan that is given is as it is"
    check_clusters(tree, target)
    counted = timed(network, tree, target)
    counted.check_fit(f"plan @{network.name}", target.cluster.sram.capacity_bytes)
    return CountedPlan(network, target, tree, counted)


def _searched(network: AxisNetwork, target: Target, wishes: Wishes | None, *, cache: bool) -> CountedPlan:
    from frustum.dialects.plan.clusters import linked_clusters
    from frustum.runtime.study.kept import PLAN, KeptSearch

    place = KeptSearch.of(network, target, PLAN, wishes) if cache else None
    before = place.plan() if place else None
    if before is not None:
        return CountedPlan(network, target, *before, cached=True)
    from frustum.passes.plan.tree.good_plans import fitting_plan

    sram = target.cluster.sram.capacity_bytes
    found, counted = fitting_plan(network, sram, linked_clusters(target), _of_target(wishes, target))
    if place:
        place.keep_plan(found, counted)
    return CountedPlan(network, target, found, counted)


def _of_target(wishes: Wishes | None, target: Target) -> Wishes:
    """With the machine whose time and energy they are."""
    from frustum.passes.plan.tree.wishes import NO_WISHES

    return replace(wishes or NO_WISHES, target=target)


UNITS: dict[Optimise, tuple[str, str]] = {"bytes": ("bytes", "B"), "time": ("cycles", "cycles"), "energy": ("pj", "pJ")}
"""Of what a curve is, in heads of columns and in text."""


@dataclass(frozen=True)
class Curve:
    """DRAM bytes for shares of an SRAM: `capacities` and `moved`, from the least share for which there is a plan.

    With another `optimise` cycles or picojoules as the search prices them, which is rougher than a plan's count;
    `per_byte`: what a byte over the DRAM port takes.
    """

    name: str
    capacities: Sequence[int]
    moved: Sequence[int]
    compulsory_bytes: int
    optimise: Optimise = "bytes"
    per_byte: float = 1.0

    @property
    def compulsory(self) -> int:
        """What compulsory bytes take."""
        return math.ceil(self.compulsory_bytes * self.per_byte)

    def rows(self) -> list[tuple[int, int, float]]:
        return [(c, m, m / self.compulsory) for c, m in zip(self.capacities, self.moved, strict=True)]

    def text(self) -> str:
        """A line for each capacity: bytes, times the compulsory ones, and a bar."""
        most, unit = max(self.moved), UNITS[self.optimise][1]
        what = "DRAM bytes" if self.optimise == "bytes" else unit
        lines = [f"{self.name}: compulsory {self.compulsory:,} {unit}", f"  SRAM bytes  {what:>12}  ratio"]
        for capacity, moved, ratio in self.rows():
            lines.append(f"{capacity:>12,}  {moved:>12,}  {ratio:5.3f}  {'#' * max(1, round(30 * moved / most))}")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        unit = UNITS[self.optimise][0]
        head = f"sram_bytes,{'dram_bytes' if self.optimise == 'bytes' else unit},compulsory_{unit}"
        lines = [f"{c},{m},{self.compulsory}" for c, m in zip(self.capacities, self.moved, strict=True)]
        return "\n".join([head, *lines]) + "\n"

    def svg(self) -> str:
        """Both axes are logarithmic; the dashed line is what any plan moves."""
        width, height, edge = 640, 360, 48
        x, y = np.log(self.capacities), np.log([*self.moved, self.compulsory])
        across = edge + (x - x[0]) / max(x[-1] - x[0], 1e-9) * (width - 2 * edge)
        up = height - edge - (y - y.min()) / max(float(np.ptp(y)), 1e-9) * (height - 2 * edge)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=False))
        low, unit = up[-1], UNITS[self.optimise][1]
        of_dram = f"{unit} of DRAM" if self.optimise == "bytes" else unit
        words = [
            f'<text x="{edge}" y="{height - 16}">{self.capacities[0]:,} B of SRAM</text>',
            f'<text x="{width - edge}" y="{height - 16}" text-anchor="end">{self.capacities[-1]:,} B</text>',
            f'<text x="{edge}" y="{edge - 12}">{self.moved[0]:,} {of_dram}</text>',
            f'<text x="{width - edge}" y="{low + 16:.1f}" text-anchor="end">{self.compulsory:,} {unit}</text>',
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
            f'<line x1="{edge}" x2="{width - edge}" y1="{low:.1f}" y2="{low:.1f}" stroke="gray" stroke-dasharray="4"/>'
            f'<polyline points="{points}" fill="none" stroke="black" stroke-width="2"/>{"".join(words)}</svg>\n'
        )


def curve_of(
    network: AxisNetwork, target: Target, *, wishes: Wishes | None = None, cache: bool = False
) -> Curve:  # fmt: skip
    """One search answers all shares of the cluster's SRAM; `wishes` and `cache` as for `planned`."""
    from frustum.runtime.study.kept import CURVE, KeptSearch

    kept = kept_curve(network, target, wishes) if cache else None
    if kept is not None:
        return kept
    asked = _of_target(wishes, target)
    found = _searched_curve(network, target, asked)
    place = KeptSearch.of(network, target, CURVE, wishes) if cache else None
    if place:
        place.keep_curve(*found)
    return Curve(network.name, *found, network.compulsory_bytes, asked.optimise, per_byte(asked))


def kept_curve(network: AxisNetwork, target: Target, wishes: Wishes | None = None) -> Curve | None:
    """The curve that was found before; nothing is searched."""
    from frustum.runtime.study.kept import CURVE, KeptSearch

    place = KeptSearch.of(network, target, CURVE, wishes)
    found = place.curve() if place else None
    if found is None:
        return None
    asked = _of_target(wishes, target)
    return Curve(network.name, *found, network.compulsory_bytes, asked.optimise, per_byte(asked))


def per_byte(wishes: Wishes) -> float:
    """What a byte over the DRAM port takes of what there should be least of: searches count all else in such bytes."""
    from frustum.dialects.plan.layer_cycles import crossing_pj

    if wishes.optimise == "bytes":
        return 1.0
    assert wishes.target is not None, "time and energy are those of a target"
    if wishes.optimise == "energy":
        return crossing_pj(wishes.target)
    return 1.0 / wishes.target.chip.dram.port_bytes_per_cycle


def _searched_curve(network: AxisNetwork, target: Target, wishes: Wishes) -> tuple[list[int], list[int]]:
    from frustum.dialects.plan.clusters import linked_clusters
    from frustum.passes.plan.tree.search import searches
    from frustum.passes.plan.tree.trace import no_plan
    from frustum.passes.plan.tree.units import LEVELS, NEARLY

    sram = target.cluster.sram.capacity_bytes
    found = list(searches(network, sram, range(LEVELS + 1), linked_clusters(target), wishes))
    curve = np.minimum.reduce([search.curve for search in found])
    is_there = np.isfinite(curve)
    if not is_there.any():
        raise no_plan(network, sram, wishes)
    capacities, moved = found[0].room[is_there].astype(int).tolist(), curve[is_there] / NEARLY * per_byte(wishes)
    return capacities, np.ceil(moved).astype(int).tolist()
