# Tests: test/pipeline/test_stops_agree.py
"""The tiles of one unit in SRAM: when their buffers are allocated, how rings go around."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Starts, Wrap
from frustum.passes.analysis.project import ROWS
from frustum.passes.lower.unit import memory_map as mm
from frustum.passes.lower.unit.homes import Home
from frustum.passes.lower.unit.raster import COLUMNS, fresh_tile, in_bands, kept_tile
from frustum.passes.lower.unit.tile_loops import TileLoops


@dataclass
class Tiles:
    """Where the tiles of a unit lie; `homes` of all tiles of the network; `body` of the program."""

    loops: TileLoops
    homes: Mapping[SSAValue, Home]
    body: Block
    placed: dict[SSAValue, mm.Placed] = field(default_factory=dict)
    fresh: dict[Home, SSAValue] = field(default_factory=dict)
    """Of tiles of which rows and columns are kept: the buffer of the rows that no later pass reads."""
    kept_bytes: int = 0
    """SRAM bytes of one cluster that hold what later passes of the unit read again."""

    def __getitem__(self, value: SSAValue) -> mm.Placed:
        return self.placed[value]

    def place(self, value: SSAValue, region: Box) -> mm.Placed:
        """The place of a tile of which each pass makes or loads the region; its home is allocated with its first."""
        loops, home = self.loops, self.homes[value]
        start, tile = mm.box_at_levels(region, loops.levels), home.tile
        origin = start if tile.origin is None else tuple(mm.at_levels(o, loops.levels) for o in tile.origin)
        if home.buffer is None:
            least = loops.least_depth(region.start if tile.origin is None else tile.origin)
            self.allocate(home, origin, least, region, is_loaded=isinstance(value.owner, t.LoadOp))
        if tile.origin is None:
            self.check_together(home, start)
        placed = mm.Placed(tile.element, start, region.extent, region.bound, mm.byte_strides(tile), home.buffer)
        if tile.origin is not None or not home.is_alone:
            placed.origin = replaced(origin, mm.CHANNELS, origin[mm.CHANNELS] - home.channels[value])
        if tile.ring:
            placed = self.rolled(placed, tile.ring, tile.extents[tile.ring], region.start[tile.ring])
        elif tile.raster is not None:
            assert home.buffer is not None
            placed = in_bands(placed, tile, origin, loops.passes_outside(COLUMNS), home.buffer, self.fresh[home])
        self.placed[value] = placed
        return placed

    # ------------------------------------------------------------ allocation

    @property
    def fixed(self) -> set[SSAValue]:
        """Loaded tiles that are there for all sweeps."""
        return {v for v in self.placed if isinstance(v.owner, t.LoadOp) and self.homes[v].buffer is not None}

    def forget(self, depth: int) -> None:
        """The buffers of tiles that lie deeper inside loops."""
        for value in list(self.placed):
            home = self.homes[value]
            if not home.is_resident and home.depth > depth:
                home.buffer = None

    def allocate(self, home: Home, origin: Starts, least: int, step: Box, *, is_loaded: bool) -> None:
        """Memory for a home: two copies of what loads or stores of the next tile overlap with; rings of one piece.

        `step`: what one pass makes or loads of the first tile in it.
        """
        loops, tile = self.loops, home.tile
        rings = [ring for ring in (kept_tile(tile), fresh_tile(tile)) if ring] if tile.raster else [tile]
        rolls = not home.is_resident and bool(tile.raster or (tile.ring and len(loops)))
        body, copies = self.body, 1
        if not home.is_resident:
            home.depth = len(loops) if rolls else max(least, self.depth(home, origin, is_loaded=is_loaded))
            body = loops.bodies[home.depth]
            copies = loops.copies(home.depth) if home.has(t.LoadOp, t.StoreOp) else 1
        depth, rolling = (1, copies if len(loops) else None) if rolls else (copies, None)
        sizes = [mm.tile_bytes(ring) for ring in rings]
        allocs = [isa.AllocOp("sram", size, depth, rolling=rolling) for size in sizes]
        body.add_ops(allocs)
        home.buffer, self.fresh[home], home.start = allocs[0].buffer, allocs[-1].buffer, origin
        if rolls:  # neither the rows and columns that a pass itself makes are kept, nor room for those of the next
            around = (ROWS, COLUMNS) if tile.raster else (tile.ring,)
            own = math.prod(step.extent[d] if d in around else size for d, size in enumerate(tile.extents))
            self.kept_bytes += max(0, sum(sizes) - copies * own * ELEMENT_BYTES[tile.element])

    def depth(self, home: Home, origin: Starts, *, is_loaded: bool) -> int:
        """How many tile loops are open where a home is allocated that does not roll: those that move it; all, where
        it is computed anew in each pass."""
        anew = home.tile.origin is None and not (is_loaded and home.is_alone)
        return len(self.loops) if anew else self.loops.depth_of(origin)

    def check_together(self, home: Home, start: Starts) -> None:
        """Tiles without an origin that lie in one buffer are of one region."""
        assert home.start is not None
        name = self.loops.unit.unit_name.data
        if any(a != b for d, (a, b) in enumerate(zip(start, home.start, strict=True)) if d != mm.CHANNELS):
            raise PassFailedException(
                f"unit {name}: a concatenation of tiles without an origin takes one region of "
                f"each, found them at {tuple(map(str, start))} and {tuple(map(str, home.start))}"
            )

    # ------------------------------------------------------------ rings

    def rolled(self, placed: mm.Placed, d: int, rows: int, start: Affine) -> mm.Placed:
        """A tile whose rows (or columns: dimension d) go around a ring of `rows`, on from one image or strip to the
        next, forward or, where `start` goes back from step to step, backward; a ring of all rows of the map needs no
        turn."""
        assert placed.origin is not None
        outer = self.loops.passes_outside(d)
        if not outer.loops and rows >= placed.bound[d]:
            return replace(placed, origin=replaced(placed.origin, d, Affine()))
        on = placed.extent[d] * self.loops.unit.tile_counts[d] * (-1 if min(start.loops, default=0) < 0 else 1)
        phase = Affine(0, tuple(k * on % rows for k in outer.loops))
        return replace(placed, wrap=Wrap(d, rows, phase))


def joined(parts: Sequence[mm.Placed]) -> mm.Placed:
    """The place of tiles side by side along d1; of each dimension the part that ends first, where all move alike.  A
    part that has all of a dimension ends with the map: nothing is read behind that."""
    start, extent = list(parts[0].start), list(parts[0].extent)
    for d in (0, 2, 3):
        first, *others = [part for part in parts if not has_all(part, d)] or parts
        start[d], extent[d] = first.start[d], first.extent[d]
        for part in others:
            gap = part.start[d] + part.extent[d] - start[d] - extent[d]
            if not gap.is_constant:
                raise PassFailedException(
                    f"a concatenation of tiles that move differently along d{d}: {part.start[d]} and {start[d]}"
                )
            extent[d] += min(0, gap.base)
    extent[mm.CHANNELS] = sum(p.extent[mm.CHANNELS] for p in parts)
    bound = replaced(parts[0].bound, mm.CHANNELS, sum(p.bound[mm.CHANNELS] for p in parts))
    return replace(parts[0], start=tuple(start), extent=tuple(extent), bound=bound)


def has_all(part: mm.Placed, d: int) -> bool:
    """Whether a tile has all positions of its map along a dimension, in every pass."""
    start = part.start[d]
    return start.is_constant and start.base <= 0 and start.base + part.extent[d] >= part.bound[d]


def resident(placed: mm.Placed, tile: t.Tile) -> mm.Placed:
    """A tile that stays, as later units find it: all of its box."""
    if tile.origin is None or tile.ring or any(o.loops for o in tile.origin):
        raise PassFailedException(
            f"a tile that stays in SRAM lies at one place of its map, found {t.TileType(tile)}"
        )
    return replace(placed, start=tile.origin, extent=tile.extents)
