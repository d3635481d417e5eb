"""How many elements of a map all clusters load over the tiles of a unit.

Source: docs/techniques/tfu.md, "Running a unit": boxes are clipped to the map, and loaded when a loop moves them.
"""

from __future__ import annotations

from functools import lru_cache

from frustum.dialects.extents import Extents
from frustum.passes.analysis.project import Region


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
