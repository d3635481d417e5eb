"""Ways to look for the unit map: the tile that is as large as fits.  Pure functions over a predicate `fits(tile)`.

Dimensions are tried in the order n, h, w, then c (one layer's output channels), because n causes no dependence between
tiles and c splits a convolution.
Source: docs/techniques/tfu.md, "On-chip unit map".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from frustum.dialects.extents import Extents, aligned, ceil_div, replaced
from frustum.dialects.unit import Partition

Search: TypeAlias = Literal["all", "halvings", "fixed", "exhaust", "shrinking", "small-to-large"]
"""`all` is no search: every halving of every dimension is a candidate, what the searches find too, and the cost model
chooses, of plans with no more DRAM bytes than any search's; `halvings` is the first half of that, quicker."""
SEARCHES: tuple[Search, ...] = ("fixed", "exhaust", "shrinking", "small-to-large")
Fits: TypeAlias = Callable[[Extents], bool]
ORDER = (0, 2, 3, 1)
COPIES = 2  # of a tile that is copied: load of the next one and store of this one overlap


def find_tile(search: Search, whole: Extents, least: Extents, fits: Fits) -> Extents | None:
    """The tile that a search finds between the whole map and the least tile; None where none fits.

    Extents are multiples of `least` or whole.
    """
    if search == "small-to-large":
        return grown(whole, least, fits)
    steps = {"fixed": fixed, "exhaust": exhaust, "shrinking": shrinking}[search]
    return next((tile for tile in steps(whole, least) if fits(tile)), None)


def fixed(whole: Extents, least: Extents) -> Iterator[Extents]:
    """Large to small: halve the dimensions in turn; output channels only when nothing else is left."""
    tile = whole
    yield tile
    while tile != least:
        for turn in (ORDER[:3], ORDER[3:]):
            open_dims = [d for d in turn if tile[d] > least[d]]
            if open_dims:
                break
        for d in open_dims:
            tile = replaced(tile, d, rounded(tile[d] / 2, least[d]))
            yield tile


def exhaust(whole: Extents, least: Extents) -> Iterator[Extents]:
    """Large to small: halve one dimension to its minimum before the next."""
    return one_by_one(whole, least, lambda step: 1 / 2)


def shrinking(whole: Extents, least: Extents) -> Iterator[Extents]:
    """Large to small, one dimension after the other, in ever smaller steps: to 1/2, then to 3/4 of that, 4/5 ..."""
    return one_by_one(whole, least, lambda step: 1 / 2 if step == 0 else (step + 2) / (step + 3))


def one_by_one(whole: Extents, least: Extents, ratio: Callable[[int], float]) -> Iterator[Extents]:
    tile = whole
    yield tile
    for d in ORDER:
        step, exact = 0, float(tile[d])
        while tile[d] > least[d]:
            exact *= ratio(step)
            step += 1
            extent = min(rounded(exact, least[d]), tile[d] - 1)  # small steps of small extents still go on
            tile = replaced(tile, d, max(least[d], extent // least[d] * least[d]))
            yield tile


def grown(whole: Extents, least: Extents, fits: Fits) -> Extents | None:
    """Small to large: from one whole image more images; where that is too large, rows of one; then columns, channels.

    The extent after which the next step does not fit is found by doubling and halving: tiles are taken to fit if a
    larger one does.
    """
    tile = replaced(whole, 0, least[0])
    for d in ORDER:
        tile = replaced(tile, d, least[d])
        if fits(tile):
            return replaced(tile, d, largest(tile, d, whole[d], fits))
    return None


def largest(tile: Extents, d: int, most: int, fits: Fits) -> int:
    """The largest extent of a dimension that fits, of a tile that does."""
    unit = tile[d]
    if fits(replaced(tile, d, most)):
        return most
    low, high = 1, math.ceil(most / unit)  # in steps of the least extent: fits, does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(replaced(tile, d, middle * unit)) else (low, middle)
    return low * unit


def rounded(extent: float, least: int) -> int:
    """Down to a multiple of the least extent, but not below it."""
    return max(least, int(extent) // least * least)


def plan_move(
    dims: Extents, element_bytes: int, clusters: int, sram_bytes: int, dealt: int | None = None
) -> Partition | None:
    """Tiles of a copy through SRAM (concatenation, slice, transpose ...): the slowest dimension that is large enough,
    or the one that is asked for, is dealt to the clusters, then the slowest dimensions are halved until `COPIES` tiles
    fit; None where not even one element does."""
    large = [d for d in range(len(dims)) if dims[d] >= clusters]
    first = large[0] if large else max(range(len(dims)), key=lambda d: dims[d])
    if dealt is None:
        dealt = next((d for d in large if dims[d] > 1), first)
    tile = replaced(dims, dealt, ceil_div(dims[dealt], clusters))
    while COPIES * aligned(math.prod(tile) * element_bytes) > sram_bytes:
        d = next((d for d, extent in enumerate(tile) if extent > 1), None)
        if d is None:
            return None
        tile = replaced(tile, d, ceil_div(tile[d], 2))
    return Partition(tile, dealt, COPIES)
