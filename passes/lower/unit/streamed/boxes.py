# Tests: test/passes/lower/unit/test_attention.py
"""What a piece of attention needs of every operand, where that lies in a core, and what is made there: for attention
with all keys in SRAM (`../attention.py`) and for such that sees them block by block (`rows.py`).

In a core's boxes d1 are keys, or channels of values, d2 the heads of the group, d3 rows of queries.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents, Int, aligned, ceil_div, replaced
from frustum.dialects.isa.program import ELEMENT_BYTES, ZERO, Affine, Box, Element, Memory, Span, Starts, View
from frustum.dialects.tile import AttentionLayer
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.lower.unit.layer_nest import LayerNest, PieceLoad, filled, spread
from frustum.passes.lower.unit.memory_map import CHANNELS, CoreBuffer, Placed, byte_strides, exactly, packed
from frustum.passes.lower.unit.raster import parts_of

QUERIES, KEYS, VALUES, MASK = range(4)
"""The operands."""
POSITION = 3
"""The dimension of rows: of queries, of keys and of values."""
IN_ORDER = (0, 1, 2, 3)


class AttentionBoxes:
    """Boxes, buffers and loads of a piece of one `ftile.compute` of attention."""

    def __init__(self, nest: LayerNest):
        kind = nest.kind
        assert isinstance(kind, t.AttentionLayer)
        self.own = nest
        self.kind: AttentionLayer = kind
        self.keys: int = nest.map.channels
        self.blocks: Int = ceil_div(kind.keys, self.keys)
        self.depth: int = len(nest.nest.loops)
        self.level: int = nest.site.level + self.depth
        self.rows: int = nest.map.extent[kind.position] * kind.width
        """Of queries."""
        self.element: Element = nest.tiles[QUERIES].element
        self.twice: bool = nest.map.twice
        self.score_element: Element = kind.score_element(self.element)
        self.mask_at: int = 1 if kind.is_batched else MASK
        self.has_mask: bool = len(nest.tiles) > self.mask_at
        self.is_scaled_before: bool = self.has_mask or kind.softcap > 0 or self.twice
        self.is_in_blocks: Any = self.blocks > 1
        self.result: Placed = self.packed(nest.out, nest.result_box.start, nest.share.extent)

    def packed(self, like: Placed, start: Starts, extent: Extents) -> Placed:
        """A box of a map in a core; where its positions are those of a plane they follow each other."""
        if self.kind.widths is None:
            return packed(like, start, extent)
        return Placed(like.element, start, extent, like.bound, byte_strides(t.Tile(like.element, extent, IN_ORDER)))

    # ---------------------------------------------------------------- boxes

    @property
    def key(self) -> Affine:
        """The first key of the block."""
        return Affine.index(self.level, self.keys) if self.is_in_blocks else ZERO

    @property
    def key_row(self) -> Affine:
        """The first row of keys of the block."""
        return exactly(self.key, self.kind.key_width)

    @property
    def key_span(self) -> Span:
        """The keys of the block that rows of the piece see."""
        return Span(self.key, self.keys, self.kind.keys, self.seen_keys(self.query_span.start, 1))

    def seen_keys(self, first: Affine, cores: int) -> Affine | None:
        """Where the keys end that the pieces of so many cores see, of which the first begins at row `first`; None where
        they may see all, or some row none: then something must be there to be hidden."""
        ahead = self.kind.causal_from
        return None if ahead is None or ahead < 0 else first + (cores * self.rows + ahead)

    @property
    def heads(self) -> Span:
        """The heads of the group; none where the core has no group."""
        channels, size = self.own.piece.box.spans[CHANNELS], self.kind.value_size
        limit = None if channels.limit is None else exactly(channels.limit, size)
        return Span(exactly(channels.start, size), self.kind.share, channels.bound // size, limit)

    @property
    def query_span(self) -> Span:
        """Rows of queries of the piece."""
        own, width = self.own.piece.box.spans[self.kind.position], self.kind.width
        limit = None if own.limit is None else own.limit * width
        return Span(own.start * width, own.extent * width, own.bound * width, limit)

    @property
    def columns(self) -> Span:
        """Rows of queries that a product reads."""
        return replace(self.query_span, limit=None)

    def box(self, channels: Span) -> Box:
        """Of the piece's heads and rows."""
        return Box.of(self.own.piece.box.spans[0], channels, self.heads, self.query_span)

    @property
    def scores_box(self) -> Box:
        return self.box(self.key_span)

    def made_box(self, channels: int, *, is_later: bool = False) -> Box:
        """Of so many channels; `is_later`: empty in the first block."""
        return self.box(Span(ZERO, channels, channels, Affine.index(self.level, channels) if is_later else None))

    # ---------------------------------------------------------------- buffers

    def held(self, channels: int, element: Element, count: int, memory: Memory = "nram") -> CoreBuffer:
        """A buffer for so many channels of all heads and rows of a piece, rows innermost."""
        size, queries = ELEMENT_BYTES[element], self.kind.share * self.rows
        strides = (0, queries * size, self.rows * size, size)
        alloc = isa.AllocOp(memory, aligned(channels * queries * size), count)
        return CoreBuffer(alloc, View(element, ZERO, strides))

    @property
    def all_rows(self) -> int:
        """Of queries, in all pieces of a core."""
        return self.rows * math.prod(count for _, count in self.own.nest.loops)

    def held_of_all_rows(self, channels: int) -> CoreBuffer:
        """A buffer of sums for so many channels of all pieces of a core, which one loop goes through."""
        size = ELEMENT_BYTES["f32"]
        strides = (0, self.kind.share * self.all_rows * size, self.all_rows * size, size)
        return CoreBuffer(isa.AllocOp("nram", aligned(channels * strides[1]), 1), View("f32", ZERO, strides))

    def of_piece(self, held: CoreBuffer) -> View:
        """Where the piece's rows are in such a buffer."""
        step = self.rows * held.view.strides[POSITION]
        return replace(held.view, offset=Affine.index(self.own.site.level, step) if self.depth else ZERO)

    def key_piece(self, k: int) -> PieceLoad:
        """A block of keys or values, in WRAM as it lies in SRAM."""
        own = self.own
        tile = own.tiles[k]
        start, extent = nests.needs(own.access[k], own.piece)
        along, width = self.kind.position, self.kind.key_width
        start, extent = replaced(start, along, self.key_row), replaced(extent, along, ceil_div(self.keys, width))
        engine, first, limit = spread(own, *start), self.query_span.start, None
        if self.is_in_blocks:
            together = (replace(first, core=0), own.site.cores) if engine == "bus" else (first, 1)
            limit = self.seen_keys(*together)
        box = Box(start, extent, tile.bound, replaced(own.limits_of(k), along, limit))
        depth = self.depth + 1 if self.is_in_blocks else own.nest.depth(nests.depends(own.access[k]))
        further = self.further(depth) if k == KEYS else 0
        return filled(own, depth, "wram", self.packed(tile, start, extent), engine, parts_of(tile, box), further)

    def further(self, depth: int) -> int:
        """Passes of the innermost loop, in which it is loaded, that read what makes scores behind the first."""
        return int(self.twice and depth > 0 and depth == self.depth + self.is_in_blocks)

    def query_piece(self) -> PieceLoad:
        """The piece's queries, in NRAM."""
        own, access = self.own, self.own.access[QUERIES]
        tile, (start, extent) = own.tiles[QUERIES], nests.needs(access, own.piece)
        box = Box(start, extent, tile.bound, own.limits_of(QUERIES))
        depth = own.nest.depth(nests.depends(access))
        return filled(own, depth, "nram", self.packed(tile, start, extent), "mvdma", parts_of(tile, box))

    def mask_piece(self) -> PieceLoad:
        """What is added to the scores of a block; d2 are its keys."""
        own = self.own
        tile, access = own.tiles[self.mask_at], own.access[self.mask_at]
        start, extent = nests.needs(access, own.piece)
        depth = own.nest.depth(nests.depends(access))
        if tile.bound[2] > 1 and self.is_in_blocks:
            start, extent, depth = replaced(start, 2, self.key), replaced(extent, 2, self.keys), self.depth + 1
        box = Box(start, extent, tile.bound, own.limits_of(self.mask_at))
        placed = packed(tile, start, extent)
        return filled(own, depth, "nram", placed, "mvdma", parts_of(tile, box), self.further(depth))
