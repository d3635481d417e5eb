# Tests: test/pipeline/test_raster_units.py
"""Tiles of which rows and columns are kept: bands of rows in two rings along the columns, each copied by itself.

Source: docs/techniques/frustum.md, "Borders" (the first frustum is the largest, later ones are steps), line buffers as
in Fused-layer CNN accelerators (Alwani et al., MICRO 2016) along both dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import Affine, Box, Span, Starts, View, Wrap
from frustum.dialects.tile import Tile
from frustum.passes.lower.unit.memory_map import Placed, byte_strides

ROWS, COLUMNS = 2, 3


@dataclass
class RowBand:
    """Rows of a tile that lie in one ring: where they begin, how many, and how they lie."""

    first: Affine
    rows: int
    placed: Placed


@dataclass
class RasterPlaced(Placed):
    """A tile in bands, the rows of passes before first; no view shows all of it."""

    bands: tuple[RowBand, ...] = ()

    def view(self, start: Sequence[Affine], clusters_on: int = 0) -> View:
        raise PassFailedException("a tile of which rows and columns are kept is copied by bands of rows alone")


def kept_tile(tile: Tile) -> Tile | None:
    """The ring of the rows that later passes read; None where there are none."""
    raster = tile.raster
    assert raster is not None
    return ring_of(tile, raster.kept, raster.columns) if raster.kept else None


def fresh_tile(tile: Tile) -> Tile | None:
    """The ring of the other rows."""
    assert tile.raster is not None
    rows = tile.extents[ROWS] - tile.raster.kept
    return ring_of(tile, rows, tile.extents[COLUMNS]) if rows else None


def ring_of(tile: Tile, rows: int, columns: int) -> Tile:
    return replace(tile, extents=(*tile.extents[:ROWS], rows, columns), raster=None)


def in_bands(
    plain: Placed, tile: Tile, origin: Starts, passes: Affine, kept: SSAValue, fresh: SSAValue
) -> RasterPlaced:
    """A tile that begins at `origin` in this pass, `passes` along the rows after the first, in its two buffers."""
    raster, rows = tile.raster, tile.extents[ROWS]
    assert raster is not None
    n, c, top, _ = origin
    bands = []

    def band(part: Tile, buffer: SSAValue, first: Affine, back: int) -> None:
        columns = part.extents[COLUMNS]
        base = (passes.base - back) * raster.width % columns
        phase = Affine(base, tuple(k * raster.width % columns for k in passes.loops))
        own = Placed(
            tile.element, plain.start, plain.extent, plain.bound, byte_strides(part), buffer,
            origin=(n, c, first, Affine()), wrap=Wrap(COLUMNS, columns, phase),
        )  # fmt: skip
        bands.append(RowBand(first, part.extents[ROWS], own))

    whole, rest = kept_tile(tile), fresh_tile(tile)
    if whole is not None:
        for back in range(raster.back, 0, -1):
            band(whole, kept, top + (rows * (1 - back) - raster.kept), back)
    if rest is not None:
        band(rest, fresh, top, 0)
    if whole is not None:
        band(whole, kept, top + (rows - raster.kept), 0)
    strides = bands[-1].placed.strides
    return RasterPlaced(tile.element, plain.start, plain.extent, plain.bound, strides, kept, origin, bands=tuple(bands))


def parts_of(placed: Placed, box: Box) -> list[tuple[Placed, Box]]:
    """What must be copied of a box, by where it lies."""
    if not isinstance(placed, RasterPlaced):
        return [(placed, box)]
    found: list[tuple[Placed, Box]] = []
    top = box.start[ROWS]
    extent = rows_within(box, top)
    for band in placed.bands:
        offset = exactly_apart(band.first, top)
        low, high = max(0, offset), min(extent, offset + band.rows)
        if low < high:
            rows = Span(top + low, high - low, box.bound[ROWS])
            found.append((band.placed, Box.of(*replaced(box.spans, ROWS, rows))))
    return found


def rows_within(box: Box, top: Affine) -> int:
    """Rows of a box up to its limit."""
    limit = box.limit[ROWS]
    return box.extent[ROWS] if limit is None else min(box.extent[ROWS], exactly_apart(limit, top))


def exactly_apart(a: Affine, b: Affine) -> int:
    """How far one position is behind another in every pass; raises where that differs."""
    gap = a - b
    if not gap.is_constant:
        raise PassFailedException(
            f"where rows and columns are kept, pieces hold all rows of a pass; found one that begins at row {b}"
        )
    return gap.base
