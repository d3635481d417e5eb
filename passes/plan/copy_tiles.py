"""How a copy through SRAM (concatenation, slice, transpose ...) is cut into tiles."""

from __future__ import annotations

from frustum.dialects.extents import Extents
from frustum.dialects.unit import Partition

COPIES = 2  # load of the next tile and store of this one overlap


def plan_move(dims: Extents, element_bytes: int, clusters: int, sram_bytes: int) -> Partition | None:
    """Tiles of a copy: the slowest dimension that is large enough is dealt to the clusters, then the slowest
    dimensions are halved until `COPIES` tiles fit; None where not even one element does."""
    large = [d for d in range(len(dims)) if dims[d] >= clusters]
    dealt = large[0] if large else max(range(len(dims)), key=lambda d: dims[d])
    for d in large:
        if dims[d] > 1:
            dealt = d
            break
    tile = list(dims)
    tile[dealt] = -(-dims[dealt] // clusters)
    d = 0
    while COPIES * bytes_of(tile, element_bytes) > sram_bytes:
        while d < len(dims) and tile[d] == 1:
            d += 1
        if d == len(dims):
            return None
        tile[d] = -(-tile[d] // 2)
    n, c, h, w = tile
    return Partition((n, c, h, w), dealt, COPIES)


def bytes_of(tile: list[int], element_bytes: int) -> int:
    elements = 1
    for extent in tile:
        elements *= extent
    return -(-elements * element_bytes // 16) * 16
