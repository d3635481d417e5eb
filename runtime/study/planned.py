# Tests: test/runtime/tools/test_plan.py
"""The plan of a model as a tree, and DRAM bytes against SRAM capacity: `frustum plan` and `frustum curve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from frustum.dialects.axes.network import AxisNetwork
    from frustum.dialects.plan.count import Counted
    from frustum.dialects.plan.tree import Node, Resident
    from frustum.dialects.target import Target


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
        """As a file has it, with a comment behind each line: bytes over DRAM port and links, and the most SRAM."""
        from frustum.dialects.plan.text import plan_text

        def comment(node: Node | Resident) -> str:
            counted = self.counted
            sizes = {"moved": counted.moved, "received over links": counted.received, "held": counted.held}
            return ", ".join(f"{found:,} B {what}" for what, each in sizes.items() if (found := each.get(id(node), 0)))

        return plan_text(self.network.name, self.target.name, self.tree, comment)


def planned(
    network: AxisNetwork, target: Target, tree: Node | None = None, *, cache: bool = False
) -> CountedPlan:  # fmt: skip
    """The plan with the fewest DRAM bytes on all clusters, or a given one; PlanError where it is none of the network or
    for more clusters, DoesNotFit where it takes more SRAM than there is.

    `cache`: take the one that was found before, and keep what is found now.
    """
    from frustum.dialects.plan.clusters import check_clusters
    from frustum.dialects.plan.count import count

    if tree is None:
        return _searched(network, target, cache=cache)
    counted = count(network, tree)
    check_clusters(tree, target)
    counted.check_fit(f"plan @{network.name}", target.cluster.sram.capacity_bytes)
    return CountedPlan(network, target, tree, counted)


def _searched(network: AxisNetwork, target: Target, *, cache: bool) -> CountedPlan:
    from frustum.runtime.study.kept import PLAN, KeptSearch

    place = KeptSearch.of(network, target, PLAN) if cache else None
    before = place.plan() if place else None
    if before is not None:
        return CountedPlan(network, target, *before, cached=True)
    from frustum.passes.plan.tree.trace import fitting_plan

    found, counted = fitting_plan(network, target.cluster.sram.capacity_bytes, target.chip.clusters)
    if place:
        place.keep_plan(found, counted)
    return CountedPlan(network, target, found, counted)


@dataclass(frozen=True)
class Curve:
    """DRAM bytes for shares of an SRAM: `capacities` and `moved`, from the least share for which there is a plan."""

    name: str
    capacities: Sequence[int]
    moved: Sequence[int]
    compulsory_bytes: int

    def rows(self) -> list[tuple[int, int, float]]:
        return [(c, m, m / self.compulsory_bytes) for c, m in zip(self.capacities, self.moved, strict=True)]

    def text(self) -> str:
        """A line for each capacity: bytes, times the compulsory ones, and a bar."""
        most = max(self.moved)
        lines = [f"{self.name}: compulsory {self.compulsory_bytes:,} B", "  SRAM bytes    DRAM bytes  ratio"]
        for capacity, moved, ratio in self.rows():
            lines.append(f"{capacity:>12,}  {moved:>12,}  {ratio:5.3f}  {'#' * max(1, round(30 * moved / most))}")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        lines = [f"{c},{m},{self.compulsory_bytes}" for c, m in zip(self.capacities, self.moved, strict=True)]
        return "\n".join(["sram_bytes,dram_bytes,compulsory_bytes", *lines]) + "\n"

    def svg(self) -> str:
        """Both axes are logarithmic; the dashed line is what any plan moves."""
        width, height, edge = 640, 360, 48
        x, y = np.log(self.capacities), np.log([*self.moved, self.compulsory_bytes])
        across = edge + (x - x[0]) / max(x[-1] - x[0], 1e-9) * (width - 2 * edge)
        up = height - edge - (y - y.min()) / max(float(np.ptp(y)), 1e-9) * (height - 2 * edge)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=False))
        low = up[-1]
        words = [
            f'<text x="{edge}" y="{height - 16}">{self.capacities[0]:,} B of SRAM</text>',
            f'<text x="{width - edge}" y="{height - 16}" text-anchor="end">{self.capacities[-1]:,} B</text>',
            f'<text x="{edge}" y="{edge - 12}">{self.moved[0]:,} B of DRAM</text>',
            f'<text x="{width - edge}" y="{low + 16:.1f}" text-anchor="end">{self.compulsory_bytes:,} B</text>',
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
            f'<line x1="{edge}" x2="{width - edge}" y1="{low:.1f}" y2="{low:.1f}" stroke="gray" stroke-dasharray="4"/>'
            f'<polyline points="{points}" fill="none" stroke="black" stroke-width="2"/>{"".join(words)}</svg>\n'
        )


def curve_of(network: AxisNetwork, target: Target, *, cache: bool = False) -> Curve:
    """One search answers all shares of the cluster's SRAM; `cache` as for `planned`."""
    from frustum.runtime.study.kept import CURVE, KeptSearch

    place = KeptSearch.of(network, target, CURVE) if cache else None
    found = place.curve() if place else None
    if found is None:
        found = _searched_curve(network, target)
        if place:
            place.keep_curve(*found)
    return Curve(network.name, *found, network.compulsory_bytes)


def _searched_curve(network: AxisNetwork, target: Target) -> tuple[list[int], list[int]]:
    from frustum.passes.plan.tree.search import searches
    from frustum.passes.plan.tree.trace import no_plan
    from frustum.passes.plan.tree.units import LEVELS, NEARLY

    found = list(searches(network, target.cluster.sram.capacity_bytes, range(LEVELS + 1), target.chip.clusters))
    curve = np.minimum.reduce([search.curve for search in found])
    is_there = np.isfinite(curve)
    if not is_there.any():
        raise no_plan(network, target.cluster.sram.capacity_bytes)
    capacities, moved = found[0].room[is_there].astype(int).tolist(), curve[is_there] / NEARLY
    return capacities, np.ceil(moved).astype(int).tolist()
