# Tests: test/passes/lower/unit/test_streamed_attention.py
"""Pieces of rows with one block of keys: what blocks before made of the rows comes to a core, grows, and goes back.

In the element type it is divided by the sums so far in each block; in f32 (`is_wide`) weights by values are added up,
and divided behind all blocks, so that the result may lie where the queries lay.  Of these the last channels may stay in
the cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from xdsl.ir import Block, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import (
    ZERO,
    Act,
    Affine,
    Box,
    Limits,
    Span,
    View,
)
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.lower.unit import memory_map as mm
from frustum.passes.lower.unit.attention import (
    IDENTITY_KERNEL,
    LEAST_SUM,
    LOWEST,
    AttentionLowering,
    PieceSteps,
    put,
)
from frustum.passes.lower.unit.layer_nest import LayerNest, PieceLoad, copies, filled
from frustum.passes.lower.unit.layer_pieces import map_piece
from frustum.passes.lower.unit.streamed.boxes import POSITION, QUERIES
from frustum.passes.plan.attention.attention_pieces import SUM_COPIES


class SeenBefore(Enum):
    """Whether blocks are the first that rows see: all of them, the first of a loop, none."""

    FIRST, MIXED, LATER = range(3)


@dataclass(frozen=True)
class RowState:
    """What is kept of every row between blocks, in SRAM: its highest score, its sum, its result so far; of wide results
    the last channels are in the cores."""

    highest: mm.Placed
    total: mm.Placed
    result: mm.Placed
    in_core: mm.CoreBuffer | None = None


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
        steps = (WideRowSteps if self.kind.is_wide else RowSteps)(self)
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
        self.highest: mm.CoreBuffer = low.held(1, low.score_element, count)
        self.old_highest: mm.CoreBuffer = low.held(1, low.score_element, count)
        self.old_total: mm.CoreBuffer = low.held(1, "f32", count)
        self.before: mm.CoreBuffer = low.held(1, "f32", 1)
        self.shrink: mm.CoreBuffer = low.held(1, "f32", 1)
        held = (self.highest, self.total, self.before, self.shrink, self.old_highest, self.old_total)
        self.buffers: list[Operation] = [*scores, *(each.alloc for each in held), *self.held_results(count)]
        if self.scaled_queries is not None:
            self.buffers.append(mm.allocate(self.scaled_queries, "nram", count))

    def held_results(self, count: int) -> list[Operation]:
        """Buffers for results: what there was of them, what the block adds, both by the sums."""
        low = self.low
        self.inverse: mm.CoreBuffer = low.held(1, "f32", 1)
        self.result: mm.Placed = mm.packed(low.own.out, low.result.start, low.result.extent)
        self.old: mm.Placed = replace(self.result)
        placed = [mm.allocate(each, "nram", count) for each in (self.result, self.old)]
        return [self.sums.alloc, self.inverse.alloc, *placed]

    @property
    def is_first(self) -> bool:
        return self.low.rule is SeenBefore.FIRST

    # ---------------------------------------------------------------- to and from SRAM

    @property
    def result_box(self) -> Box:
        box = self.low.own.result_box
        return replace(box, limit=self.low.limits_if_seen(box))

    def kept(self, *, is_taken: bool) -> list[tuple[mm.Placed, mm.CoreBuffer, Box]]:
        """Maxima and sums of the piece's rows: where they lie, here, and their box."""
        low = self.low
        box = low.later_box(1) if is_taken else low.made_box(1)
        held = (self.old_highest, self.old_total) if is_taken else (self.highest, self.total)
        return [(low.state.highest, held[0], box), (low.state.total, held[1], box)]

    def taken(self) -> list[Operation]:
        """What blocks before have made of the rows."""
        if self.is_first:
            return []
        found = self.kept(is_taken=True)
        return [*(taken(self.low, *each) for each in found), *self.taken_results()]

    def taken_results(self) -> list[Operation]:
        low, box = self.low, self.result_box
        if low.rule is SeenBefore.MIXED:
            box = replace(box, limit=replaced(box.limit, 2, Affine.index(low.level)))
        return [mm.copied("mvdma", low.state.result, self.old, box, low.own.site.tags)]

    def given_back(self) -> list[Operation]:
        ops = list[Operation]()
        for state, held, box in self.kept(is_taken=False):
            copy = isa.Copy(engine="mvdma", src_view=held.view, dst_view=state.view(box.start), box=box)
            ops.append(self.do(copy, held.alloc.buffer, state.buffer))
        return [*ops, *self.given_back_results()]

    def given_back_results(self) -> list[Operation]:
        return [mm.copied("mvdma", self.result, self.low.own.out, self.result_box, self.low.own.site.tags)]

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
        old, box = self.old_highest, self.low.later_box(1)
        highest, shrink, before = self.highest, self.shrink, self.before
        less = isa.Binary(kind="sub", act=Act("exp"), a_view=old.view, b_view=highest.view, out_view=shrink.view,
                          box=box)
        fewer = isa.Binary(kind="mul", a_view=self.old_total.view, b_view=shrink.view, out_view=before.view, box=box)
        return [
            self.do(less, old.alloc.buffer, highest.alloc.buffer, shrink.alloc.buffer),
            self.do(fewer, self.old_total.alloc.buffer, shrink.alloc.buffer, before.alloc.buffer),
            *self.shrunk_results(),
        ]

    def shrunk_results(self) -> list[Operation]:
        """Results before by the sums before."""
        again = isa.Binary(
            kind="mul", a_view=self.of_result(self.old), b_view=self.before.along(d1=0), out_view=self.sums.view,
            box=self.low.later_box(self.kind.value_size),
        )  # fmt: skip
        return [self.do(again, self.old.buffer, self.before.alloc.buffer, self.sums.alloc.buffer)]

    def values(self) -> list[Operation]:
        """Weights by values, added to what there was: from the second pass of the loop on, or always."""
        low, values, sums = self.low, self.low.value_block.placed, self.sums
        rule, size = low.rule, self.kind.value_size
        added = isa.Conv(
            in_view=self.powers.view,
            weight_view=View(low.element, values.own_view.offset, (values.strides[1], values.strides[POSITION], 0, 0)),
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
        divide = isa.Binary(kind="mul", a_view=self.sums.view, b_view=inverse.along(d1=0),
                            out_view=self.of_result(result), box=low.made_box(self.kind.value_size))
        buffer = inverse.alloc.buffer
        return [
            self.do(least, self.total.alloc.buffer, buffer), self.do(turned, buffer, buffer),
            self.do(divide, self.sums.alloc.buffer, buffer, result.buffer),
        ]  # fmt: skip


class WideRowSteps(RowSteps):
    """The same where results so far are f32: what weights by values add up to, which is divided behind all blocks."""

    def held_results(self, count: int) -> list[Operation]:
        low = self.low
        self.sums: mm.CoreBuffer = low.held(self.kind.value_size, "f32", SUM_COPIES if count > 1 else 1)
        self.first: int = low.state.result.extent[1]
        """Channels whose sums come from SRAM and go back there; the others' are in the core."""
        return [self.sums.alloc]

    @property
    def in_core(self) -> tuple[int, View, View, SSAValue] | None:
        """How many channels' sums stay in the core: where they are added up, where they stay, and in which buffer."""
        held = self.low.state.in_core
        if held is None:
            return None
        here = behind(self.sums.view, self.first)
        return self.kind.value_size - self.first, here, self.low.of_piece(held), held.alloc.buffer

    def kept(self, *, is_taken: bool) -> list[tuple[mm.Placed, mm.CoreBuffer, Box]]:
        box = self.low.later_box(self.first) if is_taken else self.low.made_box(self.first)
        return [*super().kept(is_taken=is_taken), (self.low.state.result, self.sums, box)]

    def taken_results(self) -> list[Operation]:
        return []

    def given_back_results(self) -> list[Operation]:
        if self.in_core is None:
            return []
        channels, here, there, buffer = self.in_core
        stay = isa.Unary(kind="identity", in_view=here, out_view=there, box=self.low.made_box(channels))
        return [self.do(stay, self.sums.alloc.buffer, buffer)]

    def shrunk_results(self) -> list[Operation]:
        low, sums, shrink = self.low, self.sums, self.shrink
        less = isa.Binary(kind="mul", a_view=sums.view, b_view=shrink.along(d1=0), out_view=sums.view,
                          box=low.later_box(self.first))
        ops = [self.do(less, sums.alloc.buffer, shrink.alloc.buffer, sums.alloc.buffer)]
        if self.in_core is not None:
            channels, here, there, buffer = self.in_core
            own = isa.Binary(kind="mul", a_view=there, b_view=shrink.along(d1=0), out_view=here,
                             box=low.later_box(channels))
            ops.append(self.do(own, buffer, shrink.alloc.buffer, sums.alloc.buffer))
        return ops

    def divided(self) -> list[Operation]:
        return []


class FinishedRows(AttentionLowering):
    """The loop over pieces of rows behind all blocks, where results so far are wide: these by their sums."""

    def __init__(self, nest: LayerNest, state: RowState):
        super().__init__(nest)
        self.state = state

    def emit_at(self, block: Block, stage: int) -> None:
        """Append the loop, or what it has inside, to a block."""
        state, first, count = self.state, self.state.result.extent[1], copies(self.depth)
        sums, total = self.held(first, "f32", count), self.held(1, "f32", count)
        result = self.result
        body, start = (Block(), 0) if self.depth else (block, stage)
        body.add_ops([sums.alloc, total.alloc, mm.allocate(result, "nram", count)])
        put(body, [taken(self, state.total, total, self.made_box(1)),
                   taken(self, state.result, sums, self.made_box(first))], start)
        _, channel, _, row = result.strides
        out = View(result.element, ZERO, (0, channel, self.kind.value_size * channel, row))
        least = isa.Unary(kind="clip", alpha=LEAST_SUM, beta=-LOWEST["f32"], in_view=total.view, out_view=total.view,
                          box=self.made_box(1))
        buffer, tags = total.alloc.buffer, self.own.site.tags
        ops = [isa.emit(least, buffer, buffer, **tags)]
        parts = [(first, sums.view, sums.alloc.buffer, out)]
        if state.in_core is not None:
            last = self.kind.value_size - first
            parts.append((last, self.of_piece(state.in_core), state.in_core.alloc.buffer, behind(out, first)))
        for channels, view, source, target in parts:
            divide = isa.Binary(kind="div", a_view=view, b_view=total.along(d1=0), out_view=target,
                                box=self.made_box(channels))
            ops.append(isa.emit(divide, source, buffer, result.buffer, **tags))
        put(body, ops, start + (self.depth > 0))
        put(body, [mm.copied("mvdma", result, self.own.out, self.own.result_box, tags)], start + (self.depth > 0))
        if self.depth:
            ((_, times),) = self.own.nest.loops
            block.add_op(isa.RepeatOp(times, Region(body), stage=stage))


def taken(low: AttentionLowering, state: mm.Placed, held: mm.CoreBuffer, box: Box) -> Operation:
    """A copy of what is kept of rows to a core."""
    copy = isa.Copy(engine="mvdma", src_view=state.view(box.start), dst_view=held.view, box=box)
    return isa.emit(copy, state.buffer, held.alloc.buffer, **low.own.site.tags)


def behind(view: View, channels: int) -> View:
    """The view of what lies so many channels behind."""
    return replace(view, offset=view.offset + channels * view.strides[1])
