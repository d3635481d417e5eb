"""The tiles of one unit in SRAM: when their buffers are allocated, how rings go around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Starts, Wrap
from frustum.passes.analysis.project import ROWS
from frustum.passes.lower.unit.homes import Home
from frustum.passes.lower.unit.memory_map import (
    CHANNELS,
    Placed,
    at_levels,
    box_at_levels,
    byte_strides,
    tile_bytes,
)
from frustum.passes.lower.unit.raster import COLUMNS, fresh_tile, in_bands, kept_tile, raster_bytes
from frustum.passes.lower.unit.tile_loops import TileLoops


@dataclass
class Tiles:
    """Where the tiles of a unit lie; `homes` of all tiles of the network; `body` of the program."""

    loops: TileLoops
    homes: Mapping[SSAValue, Home]
    body: Block
    placed: dict[SSAValue, Placed] = field(default_factory=dict)
    fresh: dict[Home, SSAValue] = field(default_factory=dict)
    """Of tiles of which rows and columns are kept: the buffer of the rows that no later pass reads."""
    kept_bytes: int = 0
    """SRAM bytes of one cluster that hold what later passes of the unit read again."""

    def __getitem__(self, value: SSAValue) -> Placed:
        return self.placed[value]

    def place(self, value: SSAValue, region: Box) -> Placed:
        """The place of a tile of which each pass makes or loads the region; its home is allocated with its first."""
        loops, home = self.loops, self.homes[value]
        start, tile = box_at_levels(region, loops.levels), home.tile
        origin = start if tile.origin is None else tuple(at_levels(o, loops.levels) for o in tile.origin)
        if home.buffer is None:
            least = loops.least_depth(region.start if tile.origin is None else tile.origin)
            self.allocate(home, origin, least, region, is_loaded=isinstance(value.owner, t.LoadOp))
        if tile.origin is None:
            self.check_together(home, start)
        placed = Placed(tile.element, start, region.extent, region.bound, byte_strides(tile), home.buffer)
        if tile.origin is not None or not home.is_alone:
            placed.origin = (origin[0], origin[CHANNELS] - home.channels[value], *origin[2:])
        if tile.ring:
            placed = self.rolled(placed, tile.extents[ROWS])
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
        loops, size = self.loops, tile_bytes(home.tile)
        moves = home.has(t.LoadOp, t.StoreOp)
        if home.is_resident:
            alloc, body = isa.AllocOp("sram", size), self.body
        elif home.tile.raster is not None:
            self.allocate_raster(home, loops.copies(len(loops)) if moves else 1)
            self.note_kept(home, step, raster_bytes(home.tile))
            return
        elif home.tile.ring and len(loops):
            home.depth = len(loops)
            self.note_kept(home, step, size)
            alloc = isa.AllocOp("sram", size, rolling=loops.copies(home.depth) if moves else 1)
            body = loops.innermost
        else:
            home.depth = max(least, self.depth(home, origin, is_loaded=is_loaded))
            alloc = isa.AllocOp("sram", size, loops.copies(home.depth) if moves else 1)
            body = loops.bodies[home.depth]
        body.add_op(alloc)
        home.buffer, home.start = alloc.buffer, origin

    def note_kept(self, home: Home, step: Box, size: int) -> None:
        """Of a ring: what is not the rows and columns that a pass itself makes, nor room for those of the next."""
        _, _, rows, columns = step.extent
        n, c, _, width = home.tile.extents
        own = n * c * rows * (columns if home.tile.raster else width) * ELEMENT_BYTES[home.tile.element]
        copies = self.loops.copies(home.depth) if home.has(t.LoadOp, t.StoreOp) else 1
        self.kept_bytes += max(0, size - copies * own)

    def allocate_raster(self, home: Home, copies: int) -> None:
        """Both rings of a tile of which rows and columns are kept (one, where the other would be empty)."""
        loops = self.loops
        home.depth = len(loops)
        buffers = []
        for ring in (kept_tile(home.tile), fresh_tile(home.tile)):
            if ring is not None:
                alloc = isa.AllocOp("sram", tile_bytes(ring), rolling=copies if len(loops) else None)
                loops.innermost.add_op(alloc)
                buffers.append(alloc.buffer)
        home.buffer, self.fresh[home] = buffers[0], buffers[-1]

    def depth(self, home: Home, origin: Starts, *, is_loaded: bool) -> int:
        """How many tile loops are open where a home is allocated that does not roll: those that move it; all, where
        it is computed anew in each pass."""
        anew = home.tile.origin is None and not (is_loaded and home.is_alone)
        return len(self.loops) if anew else self.loops.depth_of(origin)

    def check_together(self, home: Home, start: Starts) -> None:
        """Tiles without an origin that lie in one buffer are of one region."""
        assert home.start is not None
        name = self.loops.unit.unit_name.data
        if any(a != b for d, (a, b) in enumerate(zip(start, home.start, strict=True)) if d != CHANNELS):
            raise PassFailedException(
                f"unit {name}: a concatenation of tiles without an origin takes one region of "
                f"each, found them at {tuple(map(str, start))} and {tuple(map(str, home.start))}"
            )

    # ------------------------------------------------------------ rings

    def rolled(self, placed: Placed, rows: int) -> Placed:
        """A tile whose rows go around a ring of `rows`, on from one image or strip to the next; a ring of all rows of
        the map needs no turn."""
        assert placed.origin is not None
        outer = self.loops.passes_outside(ROWS)
        n, c, _, w = placed.origin
        if not outer.loops and rows >= placed.bound[ROWS]:
            return replace(placed, origin=(n, c, Affine(), w))
        on = placed.extent[ROWS] * self.loops.unit.tile_counts[ROWS]
        phase = Affine(0, tuple(k * on % rows for k in outer.loops))
        return replace(placed, wrap=Wrap(ROWS, rows, phase))


def joined(parts: Sequence[Placed]) -> Placed:
    """The place of tiles side by side along d1; of each dimension the part that ends first."""
    first = parts[0]
    start, extent = list(first.start), list(first.extent)
    for d in (0, 2, 3):
        for part in parts[1:]:
            gap = part.start[d] + part.extent[d] - start[d] - extent[d]
            if not gap.is_constant:
                raise PassFailedException(
                    f"a concatenation of tiles that move differently along d{d}: {part.start[d]} and {start[d]}"
                )
            extent[d] += min(0, gap.base)
    extent[CHANNELS] = sum(p.extent[CHANNELS] for p in parts)
    n, _, h, w = first.bound
    bound = (n, sum(p.bound[CHANNELS] for p in parts), h, w)
    return replace(first, start=tuple(start), extent=tuple(extent), bound=bound)


def resident(placed: Placed, tile: t.Tile) -> Placed:
    """A tile that stays, as later units find it: all of its box."""
    if tile.origin is None or tile.ring or any(o.loops for o in tile.origin):
        raise PassFailedException(
            f"a tile that stays in SRAM lies at one place of its map, found {t.TileType(tile)}"
        )
    return replace(placed, start=tile.origin, extent=tile.extents)
