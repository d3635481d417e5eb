# Tests: test/passes/lower/unit/test_attention.py
"""Attention on one tile: pieces of one group of heads and some rows of queries, which go through the keys in blocks.

Of each block the matrix unit makes scores, the vector unit weights, with a running maximum and sum, and the matrix unit
adds the weighted values to what there is, which the vector unit makes smaller where the maximum has grown.  Scores and
weights never leave the core.  The steps stand in stages, so that both units work at a time: on different blocks, or,
where one block has all keys, on different pieces.  Of scores that are made `twice` (`SubMap`) the vector unit looks for
maxima only, and adds up the powers of e that the matrix unit gives when it makes them again.

In a core's boxes d1 are keys, or channels of values, d2 the heads of the group, d3 rows of queries.
Source: Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xdsl.ir import Block, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects.isa.program import (
    ZERO,
    Act,
    Box,
    Element,
    Instruction,
    Scale,
    Scales,
    Span,
    View,
)
from frustum.dialects.tile import AttentionLayer
from frustum.passes.lower.unit.layer_nest import LayerNest, PieceLoad, copies
from frustum.passes.lower.unit.memory_map import (
    CoreBuffer,
    Placed,
    allocate,
    copied,
)
from frustum.passes.lower.unit.piece_stores import Leaving, Part, part_of_pieces
from frustum.passes.lower.unit.prefetch import set_stage
from frustum.passes.lower.unit.raster import parts_of
from frustum.passes.lower.unit.streamed.boxes import KEYS, POSITION, QUERIES, VALUES, AttentionBoxes
from frustum.passes.plan.attention.attention_pieces import SCORE_COPIES, WIDE_COPIES

LEAST_INTEGER = -128
WEIGHT_LEVELS = 255
"""What weights of integers are parts of: the largest, 1, is the greatest integer, 0 the least."""
LOWEST: dict[Element, float] = {"f16": -65504.0, "bf16": -(2.0**128 - 2.0**120), "f32": -(2.0**128 - 2.0**104)}
"""The least number of each type.  No maximum is less, so that a row that has seen no key yet is a number; a row whose
keys are all hidden by this number, not by infinity, sees all of them alike."""
COARSE = 32000.0
"""From here on a highest score is rounded by so much that others, in f32, may be far above it ..."""
MARGIN: dict[Element, float] = {"f16": 5.0, "bf16": 40.0}
"""... so that powers would exceed their type: of these the exponent is so much less.  Half a step of f16 is 16 at most
there, and e ** 11 a number of f16; of bf16 it is 128 below 65,536, and e ** 88 a number."""
LEAST_SUM = 1e-30
"""A row that sees no key is 0 divided by this; of others the sum is 1 at least, or e less the margin."""
IDENTITY_KERNEL: dict[str, Any] = {"kernel": (1, 1), "strides": (1, 1), "dilations": (1, 1)}


class AttentionLowering(AttentionBoxes):
    """Builds the nest of one `ftile.compute` of attention."""

    def __init__(self, nest: LayerNest):
        super().__init__(nest)
        self.leaving: list[tuple[Leaving, Part]] = []

    def takes(self, leaving: Leaving) -> bool:
        """Whether what is stored or sent of the result can go piece by piece, as part of this layer, and then does."""
        own = self.own
        part = part_of_pieces(leaving, own.share, own.out, own.site.cores) if self.depth else None
        if part is not None:
            self.leaving.append((leaving, part))
        return part is not None

    # ---------------------------------------------------------------- the nest

    def emit(self, block: Block) -> None:
        """Append the whole layer to a block."""
        self.queries: PieceLoad = self.query_piece()
        self.key_block: PieceLoad = self.key_piece(KEYS)
        self.value_block: PieceLoad = self.key_piece(VALUES)
        self.mask_block: PieceLoad | None = self.mask_piece() if self.has_mask else None
        self.body(block, 0, self.own.site.stage)

    def body(self, block: Block, depth: int, stage: int) -> None:
        """The body at this depth: what is loaded there, one pass before the inner loop, or the steps of a piece."""
        if depth == self.depth:
            self.piece(block, stage)
            return
        found = [load for load in self.loads() if load.depth == depth]
        for load in found:
            put(block, load.ops, stage)
        inner = Block()
        self.body(inner, depth + 1, 0)
        later = stage + (1 if found and depth else 0)
        block.add_op(isa.RepeatOp(self.own.nest.loops[depth][1], Region(inner), stage=later))

    def loads(self) -> list[PieceLoad]:
        every = (self.queries, self.key_block, self.value_block, self.mask_block)
        return [load for load in every if load is not None]

    def piece(self, block: Block, stage: int) -> None:
        """The innermost body of the nest: what a piece needs, its blocks of keys, the division by the sums."""
        steps = PieceSteps(self)
        is_looped, here = self.depth > 0, [load for load in self.loads() if load.depth == self.depth]
        first = stage + (1 if is_looped and here else 0)
        if not self.is_in_blocks:
            scores, weights, sums = (first + n * is_looped for n in range(3))
            wanted = {id(self.value_block): sums - is_looped, id(self.mask_block): self.mask_stage(scores, weights)}
            for load in here:
                put(block, load.ops, wanted.get(id(load), stage))
            block.add_ops(steps.buffers)
            put(block, steps.scores(), scores)
            self.with_weights(block, steps, weights, sums)
            self.finish(block, steps, sums)
            return
        for load in here:
            put(block, load.ops, stage)
        block.add_ops(steps.buffers)
        put(block, steps.scaled(), first)
        inner = Block()
        self.block_body(inner, steps)
        block.add_op(isa.RepeatOp(self.blocks, Region(inner), stage=first))
        self.finish(block, steps, first)

    def mask_stage(self, scores: int, weights: int) -> int:
        """One pass before it is added: on the way out of the scores, or after their cap."""
        return max(0, (weights if self.kind.softcap > 0 else scores) - (1 if self.depth or self.is_in_blocks else 0))

    def block_body(self, block: Block, steps: PieceSteps) -> None:
        """One block of keys: its scores, weights, and values one pass after the other."""
        block.add_ops(steps.block_buffers)
        put(block, self.key_block.ops, 0)
        if self.mask_block is not None and self.mask_block.depth > self.depth:
            put(block, self.mask_block.ops, self.mask_stage(1, 2))
        put(block, self.value_block.ops, 2)
        put(block, steps.rescaled(), 3)
        put(block, steps.scores(), 1)
        self.with_weights(block, steps, 2, 3)

    def with_weights(self, block: Block, steps: PieceSteps, weights: int, sums: int) -> None:
        """Weights, and values by them.  Made again in a loop, they come behind the values of the block before, while
        which the vector unit looks for maxima."""
        put(block, steps.weights(), weights)
        is_looped = sums > weights
        if self.twice and not is_looped:
            put(block, steps.powers_again(), weights)
        if self.twice:
            put(block, steps.added(), sums)
        put(block, steps.values(), sums)
        if self.twice and is_looped:
            put(block, steps.powers_again(), weights)

    def finish(self, block: Block, steps: PieceSteps, stage: int) -> None:
        """Values by sums, to SRAM and on."""
        block.add_op(allocate(self.result, "nram", copies(self.depth)))
        put(block, steps.divided(), stage)
        own = self.own
        put(block, [copied("mvdma", self.result, place, box, own.site.tags)
                    for place, box in parts_of(own.out, own.result_box)], stage)
        block.add_ops([leaving.copy(part, stage) for leaving, part in self.leaving])


def put(block: Block, ops: Sequence[Operation], stage: int) -> None:
    set_stage(ops, stage)
    block.add_ops(ops)


class PieceSteps:
    """The instructions of a piece, on buffers of its own: `buffers` are those of the piece, `block_buffers` those of a
    block of keys, where there are several."""

    def __init__(self, low: AttentionLowering):
        self.low = low
        self.kind: AttentionLayer = low.kind
        count, is_in_blocks = copies(low.depth), low.is_in_blocks
        each = 2 if is_in_blocks else count
        scores = self.held_scores(is_looped=is_in_blocks or low.depth > 0)
        self.highest: CoreBuffer = low.held(1, low.score_element, 1)
        self.total: CoreBuffer = low.held(1, "f32", count)
        self.sums: CoreBuffer = low.held(low.kind.value_size, "f32", count)
        self.before: CoreBuffer = low.held(1, "f32" if low.twice else low.score_element, 1)
        self.shrink: CoreBuffer = low.held(1, "f32", each)
        self.buffers: list[Operation] = [self.highest.alloc, self.total.alloc, self.sums.alloc]
        self.block_buffers: list[Operation] = [*scores, self.before.alloc, self.shrink.alloc]
        self.start: CoreBuffer = low.held(1, "f32", 1)
        """What sums begin with that become powers, if scores are made twice: the highest, negative."""
        self.beyond: CoreBuffer = low.held(1, "f32", 1)
        if low.twice:
            self.buffers += [self.start.alloc, self.beyond.alloc]
        if not is_in_blocks:
            self.buffers += scores
        self.scale: float = low.kind.score_scale
        self.scales: Scales = low.kind.scales or ()
        """Of queries, keys, values and the result, where these are integers."""
        self.power_scale: Scale | None = Scale(1 / WEIGHT_LEVELS, LEAST_INTEGER) if self.scales else None
        self.scaled_queries: Placed | None = None
        if low.is_scaled_before:
            own = low.queries.placed
            self.scaled_queries = low.packed(own, own.start, own.extent)
            self.buffers.append(allocate(self.scaled_queries, "nram", count))
        self.level: int | None = low.level if is_in_blocks else None

    def held_scores(self, *, is_looped: bool) -> list[Operation]:
        """Buffers for scores, and for their powers: the same, but where scores are wider."""
        low, copies = self.low, SCORE_COPIES if is_looped else 1
        if low.score_element == low.element:
            self.made: CoreBuffer = low.held(low.keys, low.element, copies)
            self.powers: CoreBuffer = self.made
            return [self.made.alloc]
        self.made, self.powers = (
            low.held(low.keys, element, min(copies, WIDE_COPIES)) for element in (low.score_element, low.element)
        )
        return [self.made.alloc, self.powers.alloc]

    def do(self, instruction: Instruction, *buffers: isa.AllocOp | SSAValue | None) -> Operation:
        return isa.emit(instruction, *buffers, **self.low.own.site.tags)

    def scaled(self) -> list[Operation]:
        """Queries by the scale, where something else is done with scores on their way out."""
        if self.scaled_queries is None:
            return []
        own, cap = self.low.queries.placed, self.kind.softcap
        factor = self.scale / cap if cap > 0 else self.scale
        scale = isa.Unary(
            kind="affine", alpha=factor, in_view=own.own_view, out_view=self.scaled_queries.own_view,
            box=Box(own.start, own.extent, own.bound, self.low.own.limits_of(QUERIES)),
        )  # fmt: skip
        return [self.do(scale, own.buffer, self.scaled_queries.buffer)]

    def scores(self) -> list[Operation]:
        """Queries by keys; what is added to them is, if nothing comes between."""
        before = [] if self.low.is_in_blocks else self.scaled()
        act = None if self.low.is_scaled_before else Act("affine", self.scale)
        return [*before, self.product(self.made, Act("tanh") if self.kind.softcap > 0 else act)]

    def powers_again(self) -> list[Operation]:
        """The same once more, in sums that begin with the highest so far, to the power of e on their way out."""
        return [self.product(self.powers, Act("exp"), self.start)]

    def product(self, out: CoreBuffer, act: Act | None, start: CoreBuffer | None = None) -> Operation:
        """Queries by keys, and a mask that is added; from `start` on, one number for each row."""
        low, kind = self.low, self.kind
        queries, keys = self.scaled_queries or low.queries.placed, low.key_block.placed
        _, channel, _, row = queries.strides
        first = self.scales[0] if self.scales else Scale()
        residual = low.mask_block.placed if low.mask_block is not None and kind.softcap == 0 else None
        made = isa.Conv(
            in_view=View(low.element, ZERO, (0, channel, kind.size * channel, row)),
            weight_view=View(low.element, keys.own_view.offset, (keys.strides[POSITION], keys.strides[1], 0, 0)),
            acc_view=None if start is None else start.along(d1=0),
            out_view=out.view,
            channels=Span(ZERO, kind.size, kind.size),
            box=low.scores_box,
            rows=replace(low.heads, limit=None),
            cols=low.columns,
            in_zero=first.zero,
            continues=start is not None,
            act=act,
            residual_view=None if residual is None else self.mask_view(residual),
            **IDENTITY_KERNEL,
        )
        begun = None if start is None else start.alloc.buffer
        buffers = (queries.buffer, keys.buffer, None, begun, out.alloc.buffer, None, None)
        return self.do(made, *buffers, None if residual is None else residual.buffer)

    def mask_view(self, mask: Placed) -> View:
        """What is added, with keys as d1 and heads as d2; where it has one position for all it stays there."""
        _, heads, keys, rows = (0 if bound == 1 else own for bound, own in zip(mask.bound, mask.strides, strict=True))
        return View(mask.element, ZERO, (0, keys, heads, rows))

    def adjusted(self) -> list[Operation]:
        """Scores with their cap, what is added behind it, and later keys hidden."""
        low, kind, scores, ops = self.low, self.kind, self.made, list[Operation]()
        buffer = scores.alloc.buffer
        if kind.softcap > 0:
            capped = isa.Unary(kind="affine", alpha=kind.softcap, in_view=scores.view, out_view=scores.view,
                               box=low.scores_box)
            ops.append(self.do(capped, buffer, buffer))
            if low.mask_block is not None:
                mask = low.mask_block.placed
                added = isa.Binary(kind="add", a_view=scores.view, b_view=self.mask_view(mask), out_view=scores.view,
                                   box=low.scores_box)
                ops.append(self.do(added, buffer, mask.buffer, buffer))
        if kind.causal_from is not None:
            hide = isa.Hide(in_view=scores.view, out_view=scores.view, ahead=kind.causal_from, box=low.scores_box)
            ops.append(self.do(hide, buffer, buffer))
        return ops

    def weights(self) -> list[Operation]:
        """Scores to the power of e, less the highest so far, and their sums; by how much what came before shrinks."""
        if self.low.twice:
            return self.highest_of_block()
        low, scores, own, ops = self.low, self.made, self.power_scale, self.adjusted()
        buffer, highest, ranked = scores.alloc.buffer, self.highest.alloc.buffer, self.highest.along(d1=0)
        later, before, shrink = low.made_box(1, is_later=True), self.before, self.shrink
        if low.is_in_blocks:
            keep = isa.Unary(kind="identity", in_view=ranked, out_view=before.view, box=later)
            ops.append(self.do(keep, highest, before.alloc.buffer))
        ops += self.found()
        if low.is_in_blocks:
            less = isa.Binary(kind="sub", act=Act("exp"), a_view=before.view, b_view=ranked, out_view=shrink.view,
                              box=later)
            ops.append(self.do(less, before.alloc.buffer, highest, shrink.alloc.buffer))
        power = isa.Binary(kind="sub", act=Act("exp"), a_view=scores.view, b_view=ranked, out_view=self.powers.view,
                           box=low.scores_box, scales=None if own is None else (Scale(), Scale(), own))
        return [*ops, self.do(power, buffer, highest, self.powers.alloc.buffer), *self.added()]

    def found(self) -> list[Operation]:
        """The highest scores so far."""
        low, highest, ranked = self.low, self.highest.alloc.buffer, self.highest.along(d1=0)
        find = isa.Reduce(kind="max", in_view=self.made.view, out_view=ranked, axes=(1,), box=low.scores_box,
                          accumulate=self.level)
        floor = isa.Unary(kind="clip", alpha=LOWEST[low.score_element], beta=-LOWEST[low.score_element], in_view=ranked,
                          out_view=ranked, box=low.made_box(1))
        return [self.do(find, self.made.alloc.buffer, highest), self.do(floor, highest, highest)]

    def highest_of_block(self) -> list[Operation]:
        """What sums begin with that become powers, and by how much what came before shrinks."""
        low, before, shrink = self.low, self.before, self.shrink
        ranked, start, one = self.highest.along(d1=0), self.start.along(d1=0), low.made_box(1)
        highest, begun = self.highest.alloc.buffer, self.start.alloc.buffer
        later, margin, ops = low.made_box(1, is_later=True), MARGIN.get(low.score_element, 0.0), list[Operation]()
        if low.is_in_blocks:
            keep = isa.Unary(kind="identity", in_view=start, out_view=before.view, box=later)
            ops.append(self.do(keep, begun, before.alloc.buffer))
        negative = isa.Unary(kind="affine", alpha=-1, beta=COARSE if margin else 0, in_view=ranked, out_view=start,
                             box=one)
        ops += [*self.found(), self.do(negative, highest, begun)]
        if margin:
            beyond, size = self.beyond.view, self.beyond.alloc.buffer
            far = isa.Unary(kind="abs", in_view=ranked, out_view=beyond, box=one)
            cut = isa.Unary(kind="clip", alpha=COARSE, beta=COARSE + margin, in_view=beyond, out_view=beyond, box=one)
            less = isa.Binary(kind="sub", a_view=start, b_view=beyond, out_view=start, box=one)
            ops += [self.do(far, highest, size), self.do(cut, size, size), self.do(less, begun, size, begun)]
        if low.is_in_blocks:
            less = isa.Binary(kind="sub", act=Act("exp"), a_view=start, b_view=before.view, out_view=shrink.view,
                              box=later)
            ops.append(self.do(less, begun, before.alloc.buffer, shrink.alloc.buffer))
        return ops

    def added(self) -> list[Operation]:
        """The sums of weights, with those of earlier blocks, as much smaller as the highest score has grown."""
        low, own, total, ops = self.low, self.power_scale, self.total.alloc.buffer, list[Operation]()
        summed, shrink = self.total.along(d1=0), self.shrink
        if low.is_in_blocks:
            smaller = isa.Binary(kind="mul", a_view=summed, b_view=shrink.view, out_view=summed,
                                 box=low.made_box(1, is_later=True))
            ops.append(self.do(smaller, total, shrink.alloc.buffer, total))
        add = isa.Reduce(kind="sum", in_view=self.powers.view, out_view=summed, axes=(1,), box=low.scores_box,
                         accumulate=self.level, scales=None if own is None else (own, Scale()))
        return [*ops, self.do(add, self.powers.alloc.buffer, total)]

    def rescaled(self) -> list[Operation]:
        """What earlier blocks have added up, as much smaller as the highest score has grown."""
        sums, shrink = self.sums, self.shrink
        smaller = isa.Binary(kind="mul", a_view=sums.view, b_view=shrink.along(d1=0), out_view=sums.view,
                             box=self.low.made_box(self.kind.value_size, is_later=True))
        return [self.do(smaller, sums.alloc.buffer, shrink.alloc.buffer, sums.alloc.buffer)]

    def values(self) -> list[Operation]:
        """Weights by values, added to those of earlier blocks."""
        low, values, sums = self.low, self.low.value_block.placed, self.sums
        added = isa.Conv(
            in_view=self.powers.view,
            weight_view=View(low.element, ZERO, (values.strides[1], values.strides[POSITION], 0, 0)),
            out_view=sums.view,
            acc_view=sums.view if self.level is not None else None,
            channels=low.key_span,
            box=low.made_box(self.kind.value_size),
            rows=replace(low.heads, limit=None),
            cols=low.columns,
            in_zero=LEAST_INTEGER if self.scales else 0,
            accumulate=self.level,
            **IDENTITY_KERNEL,
        )
        kept = sums.alloc.buffer if self.level is not None else None
        return [self.do(added, self.powers.alloc.buffer, values.buffer, None, kept, sums.alloc.buffer)]

    def divided(self) -> list[Operation]:
        """Values by sums, in the element type, as they lie in the result."""
        low, total, result = self.low, self.total, self.low.result
        summed = total.along(d1=0)
        least = isa.Unary(kind="clip", alpha=LEAST_SUM, beta=-LOWEST["f32"], in_view=summed, out_view=summed,
                          box=low.made_box(1))
        _, channel, _, row = result.strides
        out = View(result.element, ZERO, (0, channel, self.kind.value_size * channel, row))
        box = low.made_box(self.kind.value_size)
        scales = None
        if self.scales:  # of weights and values sums have the steps of both
            _, _, value, made = self.scales
            scales = (Scale(), Scale(), Scale(made.scale * WEIGHT_LEVELS / value.scale, made.zero))
        divide = isa.Binary(kind="div", a_view=self.sums.view, b_view=summed, out_view=out, box=box, scales=scales)
        buffer = total.alloc.buffer
        return [self.do(least, buffer, buffer), self.do(divide, self.sums.alloc.buffer, buffer, result.buffer)]
