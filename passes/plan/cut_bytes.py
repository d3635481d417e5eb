# Tests: test/passes/plan/test_cost.py
"""SRAM bytes of the maps of a unit that is cut into tiles, and what it loads of them: the same on every machine with as
many clusters."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache

from frustum.dialects.extents import Extents, aligned, ceil_div
from frustum.dialects.tile import CHANNEL_LOOPS, ROLLING_LOOPS, TILE_LOOPS
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import ROWS, Projection, Region, UnitLayers, places_of


def bytes_of_maps(
    unit: UnitLayers, projection: Projection, depth: int, stay: Collection[int], *, in_rounds: bool
) -> tuple[int, int, int]:
    """Of maps that cross the unit's border, with `depth` copies; of rings of those inside; of as many others inside as
    live at a time.  Those that `stay` after the unit or are in the cores alone, and resident inputs, are not counted;
    nor, of a product `in_rounds`, its inputs."""
    places, count = places_of(unit, projection, depth), len(unit.layers)
    crossing = rings = 0
    live = [0] * count
    for root in {place.root for place in places}:
        members = unit.groups.get(root, (root,))
        loaded = [m for m in members if m >= count]
        is_resident = bool(loaded) and unit.inputs[loaded[0] - count].resident
        if is_resident or root in stay or (in_rounds and loaded):
            continue
        place, stored = places[root], [m for m in members if m in unit.stored]
        size = aligned(place.elements * unit.bytes_of(root))
        moves = any(not projection.region_of(m).is_fixed for m in (*loaded, *stored))
        if loaded or stored:
            crossing += size * (depth if moves and not place.ring else 1)
        elif place.ring:
            rings += size
        else:
            made = [m for m in members if m < count]
            for j in range(min(made), max(unit.last_use(m) for m in made) + 1):
                live[j] += size
    return crossing, rings, max(live, default=0)


def bytes_loaded(
    unit: UnitLayers, projection: Projection, partition: Partition, clusters: int, *, in_rounds: bool
) -> tuple[int, ...]:
    """Of each input, over all tiles; of a product `in_rounds` the first again for every tile."""
    rolls = partition.borders == "exchange" and partition.along == ROWS
    order = ROLLING_LOOPS if rolls else CHANNEL_LOOPS if partition.inside else TILE_LOOPS
    counts, pairs = projection.counts, list(zip(unit.inputs, projection.inputs, strict=True))
    sizes = [loaded_elements(region, x.dims, counts, clusters, order) * x.element_bytes for x, region in pairs]
    if in_rounds:
        own, region = pairs[0]
        still = [not any(len(s.loops) > d and s.loops[d] for s in region.start) for d in range(4)]
        moving = tuple(1 if is_still else c for is_still, c in zip(still, counts, strict=True))
        again = math.prod(c for is_still, c in zip(still, counts, strict=True) if is_still)
        once = loaded_elements(region, own.dims, moving, clusters, order)
        sizes[0] = once * again * own.element_bytes
    return tuple(sizes)


def loaded_elements(region: Region, dims: Extents, counts: Extents, clusters: int, order: Extents) -> int:
    """Elements that all clusters load of a map over all tiles, whose loops are in `order` from the outermost (a load
    that all clusters share counts once)."""
    innermost = max(
        (order.index(d) for d in range(4) if any(len(s.loops) > d and s.loops[d] for s in region.start)),
        default=-1,
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
            if step < 0:
                first, step = first + step * (passes - 1), -step
            if step:
                elements *= clipped(first, step, passes, region.extent[d], size)
            else:
                elements *= passes * clipped(first, 1, 1, region.extent[d], size)
        total += elements
    return total


@lru_cache(maxsize=65536)
def clipped(
    start: int, step: int, passes: int, extent: int, bound: int, grain: tuple[int, int] = (1, 1)
) -> int:
    """Positions of `passes` intervals, each clipped to the map, summed; or pieces of so many positions, of the one of
    so many cores that has the most."""
    piece, cores = grain
    return sum(
        ceil_div(ceil_div(max(0, min(first + extent, bound) - max(first, 0)), piece), cores)
        for first in range(start, start + step * passes, step)
    )
