# Tests: test/passes/lower/unit/test_streamed_attention.py
"""Attention whose keys and values do not fit SRAM: all rows of a tile see a block of them before the next comes.

The rows' results so far lie in the result's tile, or in f32 beside it, and with them sums and maxima; each block takes
them to the cores and back, piece by piece (`streamed/rows.py`).  The first blocks stay in SRAM while the rows of a head
change, the others come from DRAM, one block ahead; where there is only one core these may come to it directly, and some
stay there.
Source: Dao et al., FlashAttention, 2022, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Block, Operation, Region

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import ceil_div, replaced
from frustum.dialects.isa.program import (
    ELEMENT_BYTES,
    ZERO,
    Affine,
    Box,
    CopyEngine,
    Element,
    Memory,
    Starts,
)
from frustum.dialects.tile import AttentionLayer
from frustum.passes.lower.unit import memory_map as mm
from frustum.passes.lower.unit.attention import AttentionLowering, put
from frustum.passes.lower.unit.layer_nest import LayerNest, PieceLoad, Site, copies
from frustum.passes.lower.unit.piece_stores import Leaving
from frustum.passes.lower.unit.program import Window
from frustum.passes.lower.unit.streamed.boxes import POSITION
from frustum.passes.lower.unit.streamed.rows import FinishedRows, RowsOfBlock, RowState, SeenBefore
from frustum.passes.lower.unit.tile_loops import TileLoops

ORDER = (0, 2, 3, 1)
"""Of keys and values on chip: channels of a row follow each other."""
CHANNELS_FIRST = (0, 2, 1, 3)
"""The same where they lie so in DRAM: rows of a channel do."""


@dataclass(frozen=True)
class KeyBlocks:
    """Blocks of keys that one loop goes through: the first key, where they end; where they stay (keys, then values),
    in SRAM or WRAM, None where they come from DRAM."""

    first: int
    end: int
    held: tuple[mm.Placed, mm.Placed] | None = None
    memory: Memory = "sram"


class StreamedAttention:
    """Builds the nests of one `ftile.compute` of attention, whose keys and values are tensors in `windows`."""

    def __init__(
        self,
        op: t.ComputeOp,
        tiles: Sequence[mm.Placed],
        out: mm.Placed,
        site: Site,
        windows: tuple[Window, Window],
        loops: TileLoops,
    ):
        kind = op.layer
        assert isinstance(kind, t.AttentionLayer)
        self.op = op
        self.tiles = tiles
        self.out = out
        self.site = site
        self.kind: AttentionLayer = kind
        self.windows = windows
        self.loops = loops
        self.keys: int = op.map.data.channels
        self.chunk: int = op.map.data.chunk
        self.direct: int = op.map.data.direct
        self.in_wram: int = op.map.data.in_wram * self.chunk
        self.held: int = self.in_wram + op.map.data.held * self.chunk

    def takes(self, leaving: Leaving) -> bool:
        """The result is done with the last block."""
        return False

    def emit(self, block: Block) -> None:
        """Append the layer to the body of the tile loops."""
        state = self.state(block)
        found = [self.stay(0, self.in_wram, "wram"), self.stay(self.in_wram, self.held, "sram")]
        found = [own for own in found if own.end > own.first] + [KeyBlocks(self.held, self.kind.keys)]
        for number, own in enumerate(found):
            self.phase(block, own, state, is_first=number == 0)
        if self.kind.is_wide:
            FinishedRows(self.nest(0), state).emit_at(block, self.site.stage)

    def nest(self, loops: int) -> LayerNest:
        """The pieces of rows, inside so many loops of the layer."""
        return LayerNest(self.op, self.tiles, self.out, replace(self.site, level=self.site.level + loops))

    # ---------------------------------------------------------------- in SRAM

    def state(self, block: Block) -> RowState:
        """The maxima, sums and results of all rows of a tile; these are in the result's tile, unless they are wider."""
        out, rows, kind = self.out, self.out.extent[POSITION], self.kind
        head = mm.exactly(out.start[1], kind.value_size)

        def of_rows(element: Element, channels: int = 1) -> mm.Placed:
            size = ELEMENT_BYTES[element]
            start = (out.start[0], ZERO, head, out.start[POSITION])
            bound = (out.bound[0], channels, out.bound[1] // kind.value_size, out.bound[POSITION])
            strides = (0, kind.share * rows * size, rows * size, size)
            placed = mm.Placed(element, start, (1, channels, kind.share, rows), bound, strides)
            block.add_op(mm.allocate(placed, "sram", 1))
            return placed

        scores, sums = of_rows("f32" if kind.has_wide_scores else out.element), of_rows("f32")
        if not kind.is_wide:
            return RowState(scores, sums, out)
        last = self.op.map.data.in_core
        in_core = AttentionLowering(self.nest(0)).held_of_all_rows(last) if last else None
        block.add_ops([in_core.alloc] if in_core is not None else [])
        return RowState(scores, sums, of_rows("f32", kind.value_size - last), in_core)

    def part(self, k: int, key: Affine, keys: int) -> mm.Placed:
        """So many keys of the tile's heads (k 0), or values (k 1), without gaps; it has no buffer yet."""
        kind, out = self.kind, self.out
        size = (kind.size, kind.value_size)[k]
        group = mm.exactly(out.start[1], kind.group_channels)
        start: Starts = (out.start[0], group * size, ZERO, key)
        bound = (out.bound[0], out.bound[1] // kind.group_channels * size, 1, kind.keys)
        extent = (1, size, 1, keys)
        seen = (kind.key_view, kind.value_view)[k]
        assert seen is not None
        _, _, channel, row, block = seen
        is_channels_first = block == 1 and channel > row
        strides = mm.byte_strides(t.Tile(out.element, extent, CHANNELS_FIRST if is_channels_first else ORDER))
        return mm.Placed(out.element, start, extent, bound, strides)

    def loaded(self, k: int, placed: mm.Placed, memory: Memory = "sram") -> Operation:
        """Keys or values from DRAM, for all clusters at a time that want the same; or for the only core."""
        seen = (self.kind.key_view, self.kind.value_view)[k]
        assert seen is not None
        offset, image, channel, row, block = seen
        window, size = self.windows[k], ELEMENT_BYTES[placed.element]
        view = window.view(t.TensorView(offset, (image, channel, 0, row), block))
        copy = isa.Copy(
            engine="iodma" if memory == "wram" else "gdma",
            src_view=mm.dram_view(placed.element, view, placed.start, size),
            dst_view=placed.own_view,
            box=Box(placed.start, placed.extent, placed.bound),
            multicast=mm.is_shared(placed.start, self.loops.clusters),
        )  # fmt: skip
        return isa.emit(copy, window.buffer, placed.buffer, **self.site.tags)

    def stay(self, first: int, end: int, memory: Memory) -> KeyBlocks:
        """The blocks that stay in a memory, if any do, in the body of the loop that moves to other heads."""
        found = [self.part(k, Affine(first), end - first) for k in range(2)]
        depth = self.loops.depth_of(found[0].start)
        for k, placed in enumerate(found):
            if end > first:
                alloc = mm.allocate(placed, memory, self.loops.copies(depth))
                self.loops.bodies[depth].add_ops([alloc, self.loaded(k, placed, memory)])
        return KeyBlocks(first, end, (found[0], found[1]), memory)

    # ---------------------------------------------------------------- loops

    def phase(self, block: Block, own: KeyBlocks, state: RowState, *, is_first: bool) -> None:
        """A loop over blocks, in each of which a loop over pieces of rows."""
        count = ceil_div(own.end - own.first, self.keys)
        is_looped = count > 1
        rule = SeenBefore.LATER if not is_first else SeenBefore.MIXED if is_looped else SeenBefore.FIRST
        level = self.site.level
        key = Affine(own.first) + (Affine.index(level, self.keys) if is_looped else ZERO)
        nest = self.nest(int(is_looped))
        body, stage = (Block(), 0) if is_looped else (block, self.site.stage)
        pieces = [self.part(k, key, self.keys) for k in range(2)]
        is_here = own.held is not None and own.memory == "wram"
        if own.held is not None and is_here:
            pieces = [replace(held, start=piece.start, extent=piece.extent, origin=held.start)
                      for held, piece in zip(own.held, pieces, strict=True)]  # fmt: skip
        else:
            at_a_time = self.direct if self.direct and is_looped else copies(is_looped)
            body.add_ops([mm.allocate(piece, "wram", at_a_time) for piece in pieces])
        if own.held is not None and not is_here:
            moved = zip(own.held, pieces, strict=True)
            put(body, [self.to_cores(held, piece, own.end) for held, piece in moved], stage)
        elif not is_here and self.direct:
            put(body, [self.loaded(k, piece, "wram") for k, piece in enumerate(pieces)], stage)
        elif not is_here:
            self.chunks(body, key, pieces, level + is_looped, stage)
        rows = RowsOfBlock(nest, (key, own.end), level if is_looped else None, rule, state)
        rows.key_block, rows.value_block = (PieceLoad(0, piece, ()) for piece in pieces)
        is_ahead = is_looped and not is_here and self.direct != 1
        rows.emit_at(body, stage + is_ahead)
        if is_looped:
            block.add_op(isa.RepeatOp(count, Region(body), stage=self.site.stage))

    def chunks(self, block: Block, key: Affine, pieces: Sequence[mm.Placed], level: int, stage: int) -> None:
        """A block from DRAM to the cores, in a loop over chunks of it, which need little of SRAM."""
        count = self.keys // self.chunk
        is_looped = count > 1
        body, first = (Block(), 0) if is_looped else (block, stage)
        start = key + Affine.index(level, self.chunk) if is_looped else key
        parts = [self.part(k, start, self.chunk) for k in range(2)]
        body.add_ops([mm.allocate(part, "sram", 2) for part in parts])
        put(body, [self.loaded(k, part) for k, part in enumerate(parts)], first)
        moved = [self.to_cores(part, piece, self.kind.keys) for part, piece in zip(parts, pieces, strict=True)]
        put(body, moved, first + (1 if is_looped else 0))
        if is_looped:
            block.add_op(isa.RepeatOp(count, Region(body), stage=stage))

    def to_cores(self, source: mm.Placed, piece: mm.Placed, end: int) -> Operation:
        """What SRAM has of a block of keys or values, up to key `end`, to WRAM of all cores."""
        box = min((source, piece), key=lambda placed: placed.extent[POSITION])
        bound = replaced(box.bound, POSITION, end)
        engine: CopyEngine = "bus" if self.site.cores > 1 else "mvdma"
        return mm.copied(engine, source, piece, Box(box.start, box.extent, bound), self.site.tags)
