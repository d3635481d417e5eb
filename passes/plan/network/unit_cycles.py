"""Cycles of a unit: computing, DRAM transfers, and what of both does not overlap.

Layers of a pass follow each other; every layer is computed once for each pass in which it has something to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frustum.passes.analysis.project import Projection, UnitLayers
from frustum.passes.plan.loaded import clipped
from frustum.passes.plan.pieces import LayerPlan

HIDDEN = 0.05  # share of both that shows although they overlap; prefers less work on chip at equal DRAM time
WAITED = 0.3  # share of weights that nothing is computed meanwhile: before the first of several passes, or streamed
Cycles = Any  # a number, or a numpy array of them


def overlapped(
    compute: Cycles, transfer: Cycles, maps: Cycles, weights: Cycles, passes: Cycles, is_in_turn: Cycles
) -> Cycles:
    """Cycles of a unit that computes (`compute`) and moves all (`transfer`), of it its maps and the weights that are
    waited for, as far as they are.

    Nothing is computed during the first load and the last store; with one copy of tiles during none.
    """
    is_one = passes == 1
    edge = maps / (passes + is_in_turn * (1 - passes))
    busy = compute + edge + WAITED * weights
    moving = transfer + compute / passes * (1 - is_one)
    longer = busy + (moving - busy) * (moving > busy)
    return longer + HIDDEN * (compute + transfer)


def compute_cycles(
    unit: UnitLayers, projection: Projection, plans: Sequence[LayerPlan | None], clusters: int
) -> float:
    """Cycles in which the cluster with the most work computes all passes."""
    return max(
        sum(
            plan.cycles * times(unit, projection, j, cluster)
            for j, plan in enumerate(plans)
            if plan is not None
        )
        for cluster in range(clusters)
    )


def times(unit: UnitLayers, projection: Projection, j: int, cluster: int) -> float:
    """How many whole passes of layer j a cluster's clipped ones are."""
    layer = unit.layers[j]
    is_reduced = layer.kind == "reduce"
    region = projection.operands[j][0] if is_reduced else projection.outputs[j]
    dims = layer.maps[0].dims if is_reduced else layer.out_dims
    total = 1.0
    for d, (start, extent, size) in enumerate(zip(region.start, region.extent, dims, strict=True)):
        count = projection.counts[d]
        step = start.loops[d] if len(start.loops) > d else 0
        first = start.base + cluster * start.cluster
        if step and count > 1:
            total *= clipped(first, step, count, extent, size) / extent
        else:
            total *= count * max(0, min(first + extent, size) - max(first, 0)) / extent
    return total
