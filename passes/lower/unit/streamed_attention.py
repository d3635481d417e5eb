# Tests: test/passes/lower/unit/test_streamed_attention.py
"""Attention whose keys and values do not fit SRAM: all rows of a tile see a block of them before the next comes.

The rows' results so far lie in the result's tile, divided by the sums so far, which with the maxima lie beside it; each
block takes them to the cores and back, piece by piece.  The first blocks stay in SRAM while the rows of a head change,
the others come from DRAM, one block ahead.
Source: Dao et al., FlashAttention, 2022, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from xdsl.ir import Block, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import ceil_div, replaced
from frustum.dialects.isa.program import (
    ELEMENT_BYTES,
    ZERO,
    Act,
    Affine,
    Box,
    CopyEngine,
    Element,
    Limits,
    Span,
    Starts,
    View,
)
from frustum.dialects.tile import AttentionLayer
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.lower.unit import memory_map as mm
from frustum.passes.lower.unit.attention import (
    IDENTITY_KERNEL,
    LEAST_SUM,
    LOWEST,
    POSITION,
    QUERIES,
    AttentionLowering,
    CoreBuffer,
    PieceSteps,
    put,
)
from frustum.passes.lower.unit.layer_nest import LayerNest, PieceLoad, Site, copies, filled
from frustum.passes.lower.unit.layer_pieces import map_piece
from frustum.passes.lower.unit.piece_stores import Leaving
from frustum.passes.lower.unit.program import Window
from frustum.passes.lower.unit.tile_loops import TileLoops

ORDER = (0, 2, 3, 1)
"""Of keys and values on chip: channels of a row follow each other."""
CHANNELS_FIRST = (0, 2, 1, 3)
"""The same where they lie so in DRAM: rows of a channel do."""


class SeenBefore(Enum):
    """Whether blocks are the first that rows see: all of them, the first of a loop, none."""

    FIRST, MIXED, LATER = range(3)


@dataclass(frozen=True)
class KeyBlocks:
    """Blocks of keys that one loop goes through: the first key, where they end; where they stay in SRAM (keys, then
    values), None where they come from DRAM."""

    first: int
    end: int
    held: tuple[mm.Placed, mm.Placed] | None


@dataclass(frozen=True)
class RowState:
    """What is kept of every row between blocks, in SRAM: its highest score, its sum, its result so far."""

    highest: mm.Placed
    total: mm.Placed
    result: mm.Placed


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
        self.held: int = op.map.data.held * self.chunk

    def takes(self, leaving: Leaving) -> bool:
        """The result is done with the last block."""
        return False

    def emit(self, block: Block) -> None:
        """Append the layer to the body of the tile loops."""
        state = self.state(block)
        found = [KeyBlocks(0, self.held, self.stay())] if self.held else []
        found.append(KeyBlocks(self.held, self.kind.keys, None))
        for number, own in enumerate(found):
            self.phase(block, own, state, is_first=number == 0)

    # ---------------------------------------------------------------- in SRAM

    def state(self, block: Block) -> RowState:
        """The maxima, sums and results of all rows of a tile; these are in the result's tile, unless they are wider."""
        out, rows, share = self.out, self.out.extent[POSITION], self.kind.share
        head = mm.exactly(out.start[1], self.kind.value_size)

        def of_rows(element: Element) -> mm.Placed:
            size = ELEMENT_BYTES[element]
            start = (out.start[0], ZERO, head, out.start[POSITION])
            bound = (out.bound[0], 1, out.bound[1] // self.kind.value_size, out.bound[POSITION])
            placed = mm.Placed(element, start, (1, 1, share, rows), bound, (0, 0, rows * size, size))
            block.add_op(mm.allocate(placed, "sram", 1))
            return placed

        results = out
        if self.kind.is_wide:
            results = mm.packed(out, out.start, out.extent, "f32")
            block.add_op(mm.allocate(results, "sram", 1))
        return RowState(of_rows("f32" if self.kind.has_wide_scores else out.element), of_rows("f32"), results)

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

    def loaded(self, k: int, placed: mm.Placed) -> Operation:
        """Keys or values from DRAM, for all clusters at a time that want the same."""
        seen = (self.kind.key_view, self.kind.value_view)[k]
        assert seen is not None
        offset, image, channel, row, block = seen
        window, size = self.windows[k], ELEMENT_BYTES[placed.element]
        view = window.view(t.TensorView(offset, (image, channel, 0, row), block))
        copy = isa.Copy(
            engine="gdma", src_view=mm.dram_view(placed.element, view, placed.start, size), dst_view=placed.own_view,
            box=Box(placed.start, placed.extent, placed.bound),
            multicast=mm.is_shared(placed.start, self.loops.clusters),
        )  # fmt: skip
        return isa.emit(copy, window.buffer, placed.buffer, **self.site.tags)

    def stay(self) -> tuple[mm.Placed, mm.Placed]:
        """The blocks that stay, in the body of the loop that moves to other heads."""
        found = [self.part(k, ZERO, self.held) for k in range(2)]
        depth = self.loops.depth_of(found[0].start)
        for k, placed in enumerate(found):
            alloc = mm.allocate(placed, "sram", self.loops.copies(depth))
            self.loops.bodies[depth].add_ops([alloc, self.loaded(k, placed)])
        return found[0], found[1]

    # ---------------------------------------------------------------- loops

    def phase(self, block: Block, own: KeyBlocks, state: RowState, *, is_first: bool) -> None:
        """A loop over blocks, in each of which a loop over pieces of rows."""
        count = ceil_div(own.end - own.first, self.keys)
        is_looped = count > 1
        rule = SeenBefore.LATER if not is_first else SeenBefore.MIXED if is_looped else SeenBefore.FIRST
        level = self.site.level
        key = Affine(own.first) + (Affine.index(level, self.keys) if is_looped else ZERO)
        nest = LayerNest(self.op, self.tiles, self.out, replace(self.site, level=level + is_looped))
        body, stage = (Block(), 0) if is_looped else (block, self.site.stage)
        pieces = [self.part(k, key, self.keys) for k in range(2)]
        body.add_ops([mm.allocate(piece, "wram", copies(is_looped)) for piece in pieces])
        if own.held is not None:
            moved = zip(own.held, pieces, strict=True)
            put(body, [self.to_cores(held, piece, own.end) for held, piece in moved], stage)
        else:
            self.chunks(body, key, pieces, level + is_looped, stage)
        rows = RowsOfBlock(nest, (key, own.end), level if is_looped else None, rule, state)
        rows.key_block, rows.value_block = (PieceLoad(0, piece, ()) for piece in pieces)
        rows.emit_at(body, stage + is_looped)
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


class RowsOfBlock(AttentionLowering):
    """The loop over pieces of rows, with one block of the keys `keys` (first, end), which the loop at `level` moves, if
    one does."""

    def __init__(
        self, nest: LayerNest, keys: tuple[Affine, int], level: int | None, rule: SeenBefore, state: RowState
    ):
        super().__init__(nest)
        self.first_key: Affine = keys[0]
        self.end: int = keys[1]
        self.rule = rule
        self.state = state
        self.is_in_blocks: bool = False
        self.level: int = level if level is not None else 0

    @property
    def key(self) -> Affine:
        return self.first_key

    @property
    def key_span(self) -> Span:
        return replace(super().key_span, bound=self.end)

    def box(self, channels: Span) -> Box:
        found = super().box(channels)
        return replace(found, limit=self.limits_if_seen(found))

    def limits_if_seen(self, box: Box) -> Limits:
        """The limits of a box that is empty, by its images, where rows of the piece see no key of the block."""
        seen = self.seen_keys(self.own.piece.start[POSITION], 1)
        return box.limit if seen is None else replaced(box.limit, 0, box.start[0] + (seen - self.key))

    def mask_piece(self) -> PieceLoad:
        own = self.own
        tile, access = own.tiles[self.mask_at], own.access[self.mask_at]
        start, extent = nests.needs(access, own.piece)
        if tile.bound[2] > 1:
            start, extent = replaced(start, 2, self.key), replaced(extent, 2, self.keys)
        box = Box(start, extent, tile.bound, own.limits_of(self.mask_at))
        return filled(own, self.depth, "nram", mm.packed(tile, start, extent), "mvdma", [(tile, box)])

    def emit_at(self, block: Block, stage: int) -> None:
        """Append the loop, or what it has inside, to a block."""
        self.queries: PieceLoad = map_piece(self.own, QUERIES)
        self.mask_block: PieceLoad | None = self.mask_piece() if self.has_mask else None
        is_looped = self.depth > 0
        body, first = (Block(), 0) if is_looped else (block, stage)
        steps = RowSteps(self)
        body.add_ops(steps.buffers)
        scores, weights, sums = (first + n * is_looped for n in (1, 2, 3))
        put(body, self.queries.ops, first)
        if self.mask_block is not None:
            put(body, self.mask_block.ops, weights - is_looped if self.kind.softcap > 0 else first)
        put(body, steps.taken(), scores)
        put(body, steps.scores(), scores)
        put(body, steps.weights(), weights)
        put(body, steps.values(), sums)
        put(body, steps.divided(), sums)
        put(body, steps.given_back(), sums)
        if is_looped:
            ((_, count),) = self.own.nest.loops
            block.add_op(isa.RepeatOp(count, Region(body), stage=stage))

    def later_box(self, channels: int) -> Box:
        """Of so many channels, empty where the block is the first."""
        return self.made_box(channels, is_later=self.rule is SeenBefore.MIXED)


class RowSteps(PieceSteps):
    """The instructions of a piece of rows with one block: what there was of the rows comes in and goes out again."""

    low: RowsOfBlock

    def __init__(self, low: RowsOfBlock):
        super().__init__(low)
        count = copies(low.depth)
        scores = self.held_scores(is_looped=low.depth > 0)
        self.highest: CoreBuffer = low.held(1, low.score_element, count)
        self.old_highest: CoreBuffer = low.held(1, low.score_element, count)
        self.old_total: CoreBuffer = low.held(1, "f32", count)
        self.before: CoreBuffer = low.held(1, "f32", 1)
        self.inverse: CoreBuffer = low.held(1, "f32", 1)
        self.shrink: CoreBuffer = low.held(1, "f32", 1)
        result = low.result
        self.result: mm.Placed = mm.packed(low.own.out, result.start, result.extent, result.element)
        self.wide: mm.Placed = mm.packed(low.own.out, result.start, result.extent, low.state.result.element)
        self.old: mm.Placed = replace(self.wide)
        held = (self.highest, self.total, self.sums, self.before, self.inverse, self.shrink)
        self.buffers: list[Operation] = [*scores, *(each.alloc for each in held)]
        self.buffers += [self.old_highest.alloc, self.old_total.alloc]
        placed = [self.result, self.old, *([self.wide] if self.kind.is_wide else [])]
        self.buffers += [mm.allocate(each, "nram", count) for each in placed]
        if self.scaled_queries is not None:
            self.buffers.append(mm.allocate(self.scaled_queries, "nram", count))

    @property
    def is_first(self) -> bool:
        return self.low.rule is SeenBefore.FIRST

    # ---------------------------------------------------------------- to and from SRAM

    @property
    def result_box(self) -> Box:
        box = self.low.own.result_box
        return replace(box, limit=self.low.limits_if_seen(box))

    def kept(self, *, is_taken: bool) -> list[tuple[mm.Placed, CoreBuffer, Box]]:
        """Maxima and sums of the piece's rows: where they lie, here, and their box."""
        low = self.low
        box = low.later_box(1) if is_taken else low.made_box(1)
        held = (self.old_highest, self.old_total) if is_taken else (self.highest, self.total)
        return [(low.state.highest, held[0], box), (low.state.total, held[1], box)]

    def taken(self) -> list[Operation]:
        """What blocks before have made of the rows."""
        if self.is_first:
            return []
        low, ops = self.low, list[Operation]()
        for state, held, box in self.kept(is_taken=True):
            copy = isa.Copy(engine="mvdma", src_view=state.view(box.start), dst_view=held.view, box=box)
            ops.append(self.do(copy, state.buffer, held.alloc.buffer))
        box = self.result_box
        if low.rule is SeenBefore.MIXED:
            box = replace(box, limit=replaced(box.limit, 2, Affine.index(low.level)))
        return [*ops, mm.copied("mvdma", low.state.result, self.old, box, low.own.site.tags)]

    def given_back(self) -> list[Operation]:
        low, ops = self.low, list[Operation]()
        for state, held, box in self.kept(is_taken=False):
            copy = isa.Copy(engine="mvdma", src_view=held.view, dst_view=state.view(box.start), box=box)
            ops.append(self.do(copy, held.alloc.buffer, state.buffer))
        if self.kind.is_wide:
            ops.append(mm.copied("mvdma", self.wide, low.state.result, self.result_box, low.own.site.tags))
        return [*ops, mm.copied("mvdma", self.result, low.own.out, self.result_box, low.own.site.tags)]

    # ---------------------------------------------------------------- computing

    def of_result(self, placed: mm.Placed) -> View:
        """The piece of the result as channels of one head, heads and rows."""
        _, channel, _, row = placed.strides
        return View(placed.element, ZERO, (0, channel, self.kind.value_size * channel, row))

    def weights(self) -> list[Operation]:
        """Weights of the block's keys; what there was of the rows, as much smaller as the highest score has grown."""
        low, scores, ops = self.low, self.made, self.adjusted()
        buffer, highest, total = scores.alloc.buffer, self.highest.alloc.buffer, self.total.alloc.buffer
        ranked, summed = self.highest.along(d1=0), self.total.along(d1=0)
        old, one = self.old_highest, low.made_box(1)
        find = isa.Reduce(kind="max", in_view=scores.view, out_view=ranked, axes=(1,), box=low.scores_box)
        ops.append(self.do(find, buffer, highest))
        if not self.is_first:
            larger = isa.Binary(kind="max", a_view=ranked, b_view=old.view, out_view=ranked, box=low.later_box(1))
            ops.append(self.do(larger, highest, old.alloc.buffer, highest))
        floor = isa.Unary(kind="clip", alpha=LOWEST[low.score_element], beta=-LOWEST[low.score_element], in_view=ranked,
                          out_view=ranked, box=one)
        ops.append(self.do(floor, highest, highest))
        if not self.is_first:
            ops += self.shrunk()
        powers = self.powers.alloc.buffer
        power = isa.Binary(kind="sub", act=Act("exp"), a_view=scores.view, b_view=ranked, out_view=self.powers.view,
                           box=low.scores_box)
        add = isa.Reduce(kind="sum", in_view=self.powers.view, out_view=summed, axes=(1,), box=low.scores_box)
        ops += [self.do(power, buffer, highest, powers), self.do(add, powers, total)]
        if not self.is_first:
            both = isa.Binary(kind="add", a_view=summed, b_view=self.before.view, out_view=summed, box=low.later_box(1))
            ops.append(self.do(both, total, self.before.alloc.buffer, total))
        return ops

    def shrunk(self) -> list[Operation]:
        """The sums before, and what these were multiplied with, for the new maximum."""
        low, old, box = self.low, self.old_highest, self.low.later_box(1)
        highest, shrink, before = self.highest, self.shrink, self.before
        less = isa.Binary(kind="sub", act=Act("exp"), a_view=old.view, b_view=highest.view, out_view=shrink.view,
                          box=box)
        fewer = isa.Binary(kind="mul", a_view=self.old_total.view, b_view=shrink.view, out_view=before.view, box=box)
        again = isa.Binary(
            kind="mul", a_view=self.of_result(self.old), b_view=before.along(d1=0), out_view=self.sums.view,
            box=low.later_box(self.kind.value_size),
        )  # fmt: skip
        return [
            self.do(less, old.alloc.buffer, highest.alloc.buffer, shrink.alloc.buffer),
            self.do(fewer, self.old_total.alloc.buffer, shrink.alloc.buffer, before.alloc.buffer),
            self.do(again, self.old.buffer, before.alloc.buffer, self.sums.alloc.buffer),
        ]

    def values(self) -> list[Operation]:
        """Weights by values, added to what there was: from the second pass of the loop on, or always."""
        low, values, sums = self.low, self.low.value_block.placed, self.sums
        rule, size = low.rule, self.kind.value_size
        added = isa.Conv(
            in_view=self.powers.view,
            weight_view=View(low.element, ZERO, (values.strides[1], values.strides[POSITION], 0, 0)),
            out_view=sums.view,
            acc_view=sums.view if rule is SeenBefore.MIXED else None,
            residual_view=sums.view if rule is SeenBefore.LATER else None,
            channels=low.key_span,
            box=low.made_box(size),
            rows=replace(low.heads, limit=None),
            cols=low.columns,
            accumulate=low.level if rule is SeenBefore.MIXED else None,
            **IDENTITY_KERNEL,
        )
        here = sums.alloc.buffer
        acc: SSAValue | None = here if rule is SeenBefore.MIXED else None
        residual: SSAValue | None = here if rule is SeenBefore.LATER else None
        return [self.do(added, self.powers.alloc.buffer, values.buffer, None, acc, here, None, None, residual)]

    def divided(self) -> list[Operation]:
        """Values by sums so far, in the element type."""
        low, inverse, result = self.low, self.inverse, self.result
        one = low.made_box(1)
        least = isa.Unary(kind="clip", alpha=LEAST_SUM, beta=-LOWEST["f32"], in_view=self.total.view,
                          out_view=inverse.view, box=one)
        turned = isa.Unary(kind="reciprocal", in_view=inverse.view, out_view=inverse.view, box=one)
        buffer, ops = inverse.alloc.buffer, list[Operation]()
        for placed in (result, *([self.wide] if self.kind.is_wide else [])):
            divide = isa.Binary(kind="mul", a_view=self.sums.view, b_view=inverse.along(d1=0),
                                out_view=self.of_result(placed), box=low.made_box(self.kind.value_size))
            ops.append(self.do(divide, self.sums.alloc.buffer, buffer, placed.buffer))
        return [self.do(least, self.total.alloc.buffer, buffer), self.do(turned, buffer, buffer), *ops]
