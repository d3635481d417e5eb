# Tests: test/passes/plan/network/test_groups.py
"""The shapes that tiles of a group's last layer may have, as arrays over all of them.

Source: docs/optimal.md, "What is searched".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import Extents, aligned, ceil_div
from frustum.dialects.unit import Borders, Partition
from frustum.passes.plan.model import EVEN_STRIPS, FEWEST_COLUMNS, RASTER_COLUMNS, RASTER_ROWS, STRIPS
from frustum.passes.plan.piece_extents import halves

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
BY_IMAGES, BY_CHANNELS, BY_ROWS, BY_COLUMNS = 0, 1, 2, 3
"""The dimension that is dealt to the clusters."""
SMALL_HEIGHTS = (1, 2, 4, 8)
"""Rows of a tile that are tried beside the halves of the map's height."""


class Mode(IntEnum):
    """One tile for each cluster or so many images; tiles that compute their borders again; rows that roll and keep
    them; rows and columns that are kept."""

    SINGLE = 0
    OVERLAP = 1
    ROLL = 2
    RASTER = 3


class TileShape(NamedTuple):
    """One shape: how borders are handled, the dimension that is dealt to the clusters, extents of a tile, copies of
    what is loaded and stored, and whether inputs are loaded whole, once for all clusters."""

    mode: Mode
    dealt: int
    rows: int
    columns: int
    images: int
    depth: int = 2
    shared: bool = False


@dataclass(frozen=True)
class TileShapes:
    """Tile shapes of a last layer: the fields of `TileShape`, and how many tiles there are."""

    mode: Ints
    dealt: Ints
    rows: Ints
    columns: Ints
    images: Ints
    depth: Ints
    """Copies of what is loaded and stored: 1 where load, computation and store of tiles follow each other."""
    shared: Mask
    """Inputs are loaded with all rows and columns, once for all clusters: borders are not read again."""
    counts: tuple[Ints, Ints, Ints]
    """Trip counts over images, rows (of rolling ones not known yet: 1), columns (of raster ones not known yet: 1)."""
    tiles: tuple[Ints, Ints]
    """Tiles along rows and columns, of all clusters together."""

    @cached_property
    def is_roll(self) -> Mask:
        """Rows are kept."""
        return self.mode >= Mode.ROLL

    @cached_property
    def is_raster(self) -> Mask:
        """Columns are kept too."""
        return self.mode == Mode.RASTER

    @cached_property
    def passes(self) -> Ints:
        """Trip counts of all dimensions together; of rolling ones those of one step."""
        return self.counts[0] * self.counts[1] * self.counts[2]

    def partition(self, k: int, channels: int, steps: int) -> Partition:
        """Shape `k` in so many steps of rows, with so many channels."""
        tile: Extents = (int(self.images[k]), channels, int(self.rows[k]), int(self.columns[k]))
        many = steps * int(self.counts[0][k]) * int(self.counts[2][k]) > 1
        kept: Borders = "raster" if self.is_raster[k] else "exchange"
        borders: Borders = kept if self.is_roll[k] else "overlap"
        depth = int(self.depth[k]) if many else 1
        return Partition(tile, int(self.dealt[k]), depth, borders, shared=bool(self.shared[k]))


@lru_cache(maxsize=256)
def shapes_of(
    dims: Extents,
    whole: Extents,
    borders: str,
    clusters: int = 1,
    grains: Extents = (1,),
    *,
    raster: int = 0,
    fewest: int = FEWEST_COLUMNS,
    in_slices: bool = False,
) -> TileShapes:
    """The whole map, or each cluster's share of it; rows at a time, in column strips, rolling or overlapping; image by
    image, or some images at a time; dimensions in `whole` are not cut.  Shares and strips are also multiples of
    `grains`; a strip has so many columns at least (`fewest`).  With `raster`, of one image and one cluster also rows
    and columns that are both kept, in steps of at least so many positions.  `in_slices`: rows of all images at a time,
    too, of which layers read several."""
    images, _, height, width = dims
    found: list[TileShape] = []
    for share, its_grains in shares_of(dims, whole, clusters, grains):
        rolls = borders in ("auto", "exchange") and (clusters == 1 or share.dealt != BY_ROWS)
        overlaps = borders in ("auto", "overlap")
        rolls_below = height if rolls else 0
        cuts = list(cuts_of(share, whole, its_grains, rolls_below=rolls_below, overlaps=overlaps, fewest=fewest))
        found += cuts
        if in_slices and images > 1 and share.images == images:
            found += [each._replace(images=images) for each in cuts if each.images == 1 and each != share]
    every = found + [shape._replace(depth=1) for shape in found if shape.mode != Mode.SINGLE]
    if raster and borders == "auto" and clusters == 1 and images == 1:
        every += rasters_of(dims, whole, raster)  # what is loaded is a small part of them: two copies of it always
    if clusters > 1:
        singles = (s for s in found if s.mode == Mode.SINGLE and s.dealt != BY_IMAGES)
        every += [shape._replace(shared=True) for shape in singles]
    fields = np.ascontiguousarray(np.array(every, np.int64).T)
    mode, dealt, rows, columns, some, depth, shared = fields
    in_turn = (
        ceil_div(images, some),
        np.where(mode >= Mode.ROLL, 1, ceil_div(height, rows)),
        np.where(mode == Mode.RASTER, 1, ceil_div(width, columns)),
    )
    spread = [np.where(dealt == d, clusters, 1) for d in (BY_IMAGES, BY_ROWS, BY_COLUMNS)]
    one, down, right = (ceil_div(count, by) for count, by in zip(in_turn, spread, strict=True))
    tiles = down * spread[1], right * spread[2]  # a cluster without work loads its borders too
    return TileShapes(mode, dealt, rows, columns, some, depth, shared > 0, (one, down, right), tiles)


def shares_of(
    dims: Extents, whole: Extents, clusters: int, grains: Extents
) -> Iterator[tuple[TileShape, Extents]]:
    """What one cluster makes, each as one tile, with the multiples that its strips may have; of equal ones the first is
    taken: the one with fewer borders."""
    images, _, height, width = dims
    if clusters > 1 and images > 1 and BY_IMAGES not in whole:
        yield TileShape(Mode.SINGLE, BY_IMAGES, height, width, ceil_div(images, clusters)), (1,)
    across = (BY_COLUMNS, BY_ROWS) if width > height else (BY_ROWS, BY_COLUMNS)
    dealings = [d for d in across if d not in whole] if clusters > 1 else [BY_ROWS]
    sides = (BY_ROWS, height), (BY_COLUMNS, width)
    sizes = [
        (d, *(aligned(ceil_div(size, clusters), grain) if d == own else size for own, size in sides))
        for d in dealings
        for grain in grains
    ]
    for dealt, tall, wide in dict.fromkeys(sizes or [(BY_ROWS, height, width)]):
        yield TileShape(Mode.SINGLE, dealt, tall, wide, images), grains


def cuts_of(
    share: TileShape, whole: Extents, grains: Extents, *, rolls_below: int, overlaps: bool, fewest: int
) -> Iterator[TileShape]:
    """A share as one tile, some of its images at a time, or rows of one image at a time in column strips: rolling where
    they are fewer than `rolls_below`, and overlapping."""
    tall, wide = share.rows, share.columns
    yield share
    yield from (share._replace(mode=Mode.OVERLAP, images=some) for some in halves(share.images)[1:])
    heights = [tall] if BY_ROWS in whole else sorted({*halves(tall), *(r for r in SMALL_HEIGHTS if r < tall)})
    strips = [s for s in STRIPS if s == 1 or wide >= s * fewest]
    strips += [s for s in EVEN_STRIPS if wide % s == 0 and wide >= s * fewest]
    widths = {aligned(ceil_div(wide, s), grain) for s in strips for grain in grains}
    for rows in heights:
        for columns in [wide] if BY_COLUMNS in whole else sorted(c for c in widths if c <= wide):
            cut = share._replace(rows=rows, columns=columns, images=1)
            if rows < rolls_below:
                yield cut._replace(mode=Mode.ROLL)
            if overlaps and (rows, columns) != (tall, wide):
                yield cut._replace(mode=Mode.OVERLAP)


def rasters_of(dims: Extents, whole: Extents, least: int) -> Iterator[TileShape]:
    """Few rows of a part of the width at a time, both kept; at least so many positions."""
    images, _, height, width = dims
    if BY_ROWS in whole or BY_COLUMNS in whole:
        return
    for rows in (r for r in RASTER_ROWS if r < height):
        for columns in (c for c in RASTER_COLUMNS if c < width and rows * c >= least):
            yield TileShape(Mode.RASTER, BY_ROWS, rows, columns, images)
