"""Modelled DRAM bytes of a unit with a partition.

Source: docs/techniques/tfu.md, "Running a unit"; docs/techniques/frustum.md, "Borders" (with exchange nothing is read
twice, with overlap the boxes of all tiles are).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from frustum.dialects.tile import ROLLING_LOOPS, TILE_LOOPS
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import Projection, UnitLayers
from frustum.passes.plan.loaded import loaded_elements
from frustum.passes.plan.pieces import LayerPlan
from frustum.passes.plan.unit import bias_bytes, held_bytes


def traffic(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    plans: Sequence[LayerPlan | None],
    clusters: int,
    kept: Collection[int] = (),
) -> int:
    """Bytes over the DRAM port: boxes of the inputs that are not resident, weights as often as they are loaded, what is
    stored; `kept` are layers whose maps stay in SRAM instead."""
    order = ROLLING_LOOPS if partition.borders == "exchange" else TILE_LOOPS
    total = sum(
        math.prod(unit.layers[j].out_dims) * unit.layers[j].out_bytes for j in unit.stored if j not in kept
    )
    for own, region in zip(unit.inputs, projection.inputs, strict=True):
        if not own.resident:
            total += loaded_elements(region, own.dims, projection.counts, clusters, order) * own.element_bytes
    passes = projection.counts[0] * projection.counts[2] * projection.counts[3]
    for layer, plan in zip(unit.layers, plans, strict=True):
        if plan is not None:
            times = passes if plan.map.weights == "stream" else 1
            total += times * held_bytes(layer, layer.out_dims[1])
            total += bias_bytes(layer, layer.out_dims[1])
    return total
