"""SRAM bytes of a unit with a partition, as the lowering will allocate them.

Source: docs/techniques/frustum.md, "Sizing" (weights, adjacent tiles, kept borders, skip tiles until their last use);
docs/techniques/tfu.md, rules 12 to 15.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import Projection, Region, UnitLayers, places_of
from frustum.passes.plan.pieces import LayerPlan


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


def aligned(size: int) -> int:
    return -(-size // 16) * 16


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
        copies * (vector_bytes(layer, region) + (weight_bytes(layer, region) if is_held(plan) else 0))
        for layer, region, plan in zip(unit.layers, projection.outputs, plans, strict=True)
    )
    streams = max((plan.stream_bytes for plan in plans if plan is not None), default=0)
    return Footprint(crossing, rings, max(live, default=0), weights, streams)


def is_held(plan: LayerPlan | None) -> bool:
    return plan is not None and plan.map.weights == "unit"


def weight_bytes(layer: Layer, region: Region) -> int:
    """Bytes of the weights that make a region's channels, as they are held."""
    if not layer.is_matrix:
        return 0
    kernel, per_group = layer.params["kernel"], layer.params["channels"]
    assert isinstance(kernel, tuple) and isinstance(per_group, int)
    held, whole = layer.held
    return aligned(-(-region.extent[1] * per_group * math.prod(kernel) * layer.weight_bytes * held // whole))


def vector_bytes(layer: Layer, region: Region) -> int:
    """Bytes of the bias, and of all else that has one number per output channel."""
    return sum(aligned(region.extent[1] * size) for size in layer.channel_bytes)
