"""What a unit with a partition costs: SRAM bytes as the lowering will allocate them, DRAM bytes, and cycles.

Layers of a pass follow each other; every layer is computed once for each pass in which it has something to do.
Source: docs/techniques/frustum.md, "Sizing" (weights, adjacent tiles, kept borders, skip tiles until their last use)
and "Borders" (with exchange nothing is read twice, with overlap the boxes of all tiles are); docs/techniques/tfu.md,
rules 12 to 15 and "Running a unit" (boxes are clipped to the map, and loaded when a loop moves them).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from frustum.dialects.extents import ALIGNMENT_BYTES, Extents, aligned, ceil_div
from frustum.dialects.tile import ROLLING_LOOPS, TILE_LOOPS
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import Projection, Region, UnitLayers, places_of
from frustum.passes.plan.model import CHUNK_SHARE, HIDDEN, SMALLEST_CHUNK_BYTES, WAITED
from frustum.passes.plan.pieces import LayerPlan

Number = Any  # a number, or a numpy array of them


@dataclass(frozen=True)
class Footprint:
    """Bytes of one cluster's SRAM that a unit holds at its fullest."""

    crossing_bytes: int
    """Maps that are loaded or stored, with their copies."""
    kept_bytes: int
    """Rings of maps inside."""
    inside_bytes: int
    """Maps inside that live from layer to layer: as many as live at a time."""
    weight_bytes: int
    """Weights that stay, and all vectors with one number per channel."""
    stream_bytes: int
    """Two chunks of streamed weights."""

    @property
    def total_bytes(self) -> int:
        return (
            self.crossing_bytes + self.kept_bytes + self.inside_bytes + self.weight_bytes + self.stream_bytes
        )


def footprint(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    plans: Sequence[LayerPlan | None],
    kept: Collection[int] = (),
) -> Footprint:
    """What a unit needs; `plans` has None for what is no work (a concatenation).

    `kept` are the layers whose maps stay in SRAM after the unit: these, like resident inputs, are not counted here.
    """
    count = len(unit.layers)
    places = places_of(unit, projection, partition.depth)
    crossing = rings = 0
    live = [0] * count
    for root in {place.root for place in places}:
        members = unit.groups.get(root, (root,))
        loaded = [m for m in members if m >= count]
        if (loaded and unit.inputs[loaded[0] - count].resident) or root in kept:
            continue
        place, stored = places[root], [m for m in members if m in unit.stored]
        size = aligned(place.elements * unit.bytes_of(root))
        moves = any(not projection.region_of(m).is_fixed for m in (*loaded, *stored))
        if loaded or stored:
            crossing += size * (partition.depth if moves and not place.ring else 1)
        elif place.ring:
            rings += size
        else:
            made = [m for m in members if m < count]
            for j in range(min(made), max(unit.last_use(m) for m in made) + 1):
                live[j] += size
    copies = 2 if projection.counts[1] > 1 else 1
    weights = sum(
        copies
        * (
            vector_bytes(layer, region.extent[1], ALIGNMENT_BYTES)
            + (aligned(held_bytes(layer, region.extent[1])) if is_held(plan) else 0)
        )
        for layer, region, plan in zip(unit.layers, projection.outputs, plans, strict=True)
    )
    streams = max((plan.stream_bytes for plan in plans if plan is not None), default=0)
    return Footprint(crossing, rings, max(live, default=0), weights, streams)


def is_held(plan: LayerPlan | None) -> bool:
    return plan is not None and plan.map.weights == "unit"


def weight_bytes(layer: Layer, channels: int) -> int:
    """Bytes of the weights that make `channels` output channels."""
    if not layer.is_matrix:
        return 0
    kernel, per_group = layer.params["kernel"], layer.params["channels"]
    assert isinstance(kernel, tuple) and isinstance(per_group, int)
    return channels * per_group * math.prod(kernel) * layer.weight_bytes


def held_bytes(layer: Layer, channels: int) -> int:
    """The same as SRAM and DRAM hold them: compressed, where they are to be."""
    held, whole = layer.held
    return int(ceil_div(weight_bytes(layer, channels) * held, whole))


def vector_bytes(layer: Layer, channels: int, grain: int = 1) -> int:
    """Bytes of the bias, and of all else that has one number per output channel, each in whole `grain`s."""
    return sum(int(aligned(channels * size, grain)) for size in layer.channel_bytes)


def chunk_bytes(sram_bytes: int) -> int:
    """The most that a chunk of streamed weights takes, where pieces of so many exist."""
    return max(SMALLEST_CHUNK_BYTES, sram_bytes // CHUNK_SHARE)


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
            total += vector_bytes(layer, layer.out_dims[1])
    return total


def loaded_elements(region: Region, dims: Extents, counts: Extents, clusters: int, order: Extents) -> int:
    """Elements that all clusters load of a map over all tiles, whose loops are in `order` from the outermost (a load
    that all clusters share counts once)."""
    innermost = max(
        (order.index(d) for d in range(4) if any(len(s.loops) > d and s.loops[d] for s in region.start)), default=-1
    )
    total = 0
    dealt = range(clusters) if any(s.cluster for s in region.start) else range(1)
    for k in dealt:
        elements = 1
        for position, d in enumerate(order):
            start, size = region.start[d], dims[d]
            step = start.loops[d] if len(start.loops) > d else 0
            passes = counts[d] if position <= innermost else 1
            first = start.base + k * start.cluster
            if step:
                elements *= clipped(first, step, passes, region.extent[d], size)
            else:
                elements *= passes * clipped(first, 1, 1, region.extent[d], size)
        total += elements
    return total


@lru_cache(maxsize=65536)
def clipped(start: int, step: int, passes: int, extent: int, bound: int) -> int:
    """Positions of `passes` intervals, each clipped to the map, summed."""
    return sum(
        max(0, min(first + extent, bound) - max(first, 0))
        for first in range(start, start + step * passes, step)
    )


def overlapped(
    compute: Number, transfer: Number, maps: Number, weights: Number, passes: Number, is_in_turn: Number
) -> Number:
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
