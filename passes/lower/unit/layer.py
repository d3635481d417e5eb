# Tests: test/pipeline/test_stops_agree.py
"""One layer on one tile: pieces loaded into the cores, computed, stored back to SRAM, as a nest of loops.

Stages of a loop body: streamed weights arrive in SRAM (0), pieces arrive in NRAM and WRAM (1), the rest (2); stages
that a body does not need are left out, so that loads run ahead of computing by one pass.

The instruction that computes one piece is said by the layer's kind; what is not of one kind alone stands here.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import singledispatch
from typing import Any

from xdsl.ir import Block, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import Box, Instruction, Scale, Span, View
from frustum.passes.analysis.piece_nest import CHANNELS_IN
from frustum.passes.lower.unit import borders, phases
from frustum.passes.lower.unit.layer_nest import Before, set_copies
from frustum.passes.lower.unit.layer_pieces import OUTPUTS, LayerPieces
from frustum.passes.lower.unit.memory_map import CHANNELS, StagedTags, copied
from frustum.passes.lower.unit.piece_stores import Leaving, Part, part_of_pieces
from frustum.passes.lower.unit.prefetch import set_stage
from frustum.passes.lower.unit.raster import parts_of


class LayerLowering:
    """Builds the nest of one `ftile.compute`; `before`: what a run makes before it; `leaving`: what is stored or sent
    of its result piece by piece."""

    def __init__(self, pieces: LayerPieces, before: Before | None = None):
        self.pieces = pieces
        self.before: Before = before or Before()
        self.leaving: list[tuple[Leaving, Part]] = []

    def takes(self, leaving: Leaving) -> bool:
        """Whether what is stored or sent of the result can go piece by piece, as part of this layer, and then does."""
        own = self.pieces
        if own.reduced or not own.out_depth or own.waits_in_tile:
            return False
        part = part_of_pieces(leaving, own.share, own.out, own.site.cores)
        if part is not None:
            self.leaving.append((leaving, part))
        return part is not None

    def emit(self, block: Block) -> None:
        """Append the whole layer to a block."""
        self.body(block, 0, self.pieces.site.stage)

    def body(self, block: Block, depth: int, stage: int) -> None:
        """The body at this depth: streams, loads, then the inner loop or the computation, then the store."""
        own, before = self.pieces, self.before
        kinds = ([op for load in loads if load.depth == depth for op in load.ops] for loads in (own.streams, own.loads))
        arriving = [ops for ops in kinds if ops]
        last = max(len(arriving), before.stages.get(depth, 0)) if depth else 0
        for at, op in before.steps.get(depth, ()):
            set_stage([op], stage + min(last, max(0, last - 1) if at is None else at))
            block.add_op(op)
        for alloc, written in before.read.get(depth, ()):
            set_copies(alloc, max(1, last - written + 1))
        for number, ops in enumerate(reversed(arriving), start=1):
            set_stage(ops, stage + max(0, last - number))
        for ops in arriving:
            block.add_ops(ops)
        stage += last
        if depth == own.out_depth:
            block.add_ops(own.results)
        if depth < len(own.nest.loops):
            inner = Block()
            self.body(inner, depth + 1, 0)
            block.add_op(isa.RepeatOp(own.nest.loops[depth][1], Region(inner), stage=stage))
        elif not own.kind.is_copied:
            block.add_ops(computed(own, StagedTags(stage=stage, **own.site.tags)))
        if depth == own.out_depth:
            stored = self.stored()
            set_stage(stored, stage)
            block.add_ops(stored)
            block.add_ops([leaving.copy(part, stage) for leaving, part in self.leaving])

    def stored(self) -> list[Operation]:
        """The result of a piece to SRAM; partial sums of a reduction are narrowed first, those of the cores added."""
        own = self.pieces
        parts = parts_of(own.out, own.result_box)
        narrowed = [self.narrowed()] if own.reduced and own.acc is not None else []
        if own.sums is not None:
            residual = own.pieces[1] if len(own.pieces) > 1 else None
            assert isinstance(own.kind, t.ConvLayer)
            narrowed = own.sums.meeting()
            narrowed += own.sums.added(own.result, own.vector_pieces.get("bias"), residual, own.kind.act)
        return [*narrowed, *(copied("mvdma", own.result, place, box, own.site.tags) for place, box in parts)]

    def narrowed(self) -> Operation:
        own = self.pieces
        assert own.acc is not None
        scales = None if own.kind.scales is None else (Scale(), own.kind.scales[-1])
        acc, out = own.acc.own_view, own.result.own_view
        narrow = isa.Unary(kind="identity", in_view=acc, out_view=out, box=own.result_box, scales=scales)
        return isa.emit(narrow, own.acc.buffer, own.result.buffer, **own.site.tags)


FLOATS = ("f32", "f16", "bf16")

def computed(low: LayerPieces, common: StagedTags) -> list[Operation]:
    """The instructions of a piece on its buffers."""
    match low.kind:
        case t.PhasesLayer():
            several = phases.instructions(low.kind, low)
        case t.BorderLayer():
            several = borders.instructions(low.kind, low, low.pieces[0], low.result)
        case _:
            made = instruction(low.kind, low)
            each = shared_by_units(made, low) if isinstance(made, isa.Depthwise) and low.map.beside else [made]
            return [emitted(own, low, common) for own in each]
    return [isa.emit(made, low.pieces[0].buffer, low.result.buffer, **common) for made in several]


def shared_by_units(made: isa.Depthwise, low: LayerPieces) -> list[Instruction]:
    """A depthwise convolution of which the matrix unit makes the last channels while the vector unit makes the others:
    both read the same pieces, and write parts of one."""
    beside = low.map.beside
    first = low.map.extent[CHANNELS] - beside
    rest: dict[str, Any] = {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    for name, value in rest.items():
        if isinstance(value, View):
            stride = value.strides[OUTPUTS if name == "weight_view" else CHANNELS]
            rest[name] = replace(value, offset=value.offset + first * stride)
    start, limit = made.box.start[CHANNELS], made.box.limit
    own = replace(made.box, extent=replaced(made.box.extent, CHANNELS, first))
    other = replace(
        made.box, start=replaced(made.box.start, CHANNELS, start + first),
        extent=replaced(made.box.extent, CHANNELS, beside), limit=limit,
    )  # fmt: skip
    channels = Span(low.nest.chunk, low.map.channels, 1)
    return [replace(made, box=own), isa.Conv(**rest | {"box": other}, channels=channels, groups=beside)]


def emitted(made: Instruction, low: LayerPieces, common: StagedTags) -> Operation:
    """An instruction on the layer's buffers; partial sums go where they are kept."""
    operands: list[SSAValue | None] = [piece.buffer for piece in low.pieces]
    if not isinstance(made, isa.Conv | isa.Depthwise):
        if isinstance(made, isa.Normalise):
            operands += [None] * (NORMALISED_BY - len(operands))
        return isa.emit(made, *operands, (low.acc or low.result).buffer, **common)
    assert low.weight_piece is not None
    extra = {name: placed.buffer for name, placed in low.vector_pieces.items() if low.sums is None}
    residual = operands[1] if has_residual(low) else None
    sums = [low.acc.buffer if low.acc else None] if isinstance(made, isa.Conv) else []
    return isa.emit(
        made, operands[0], low.weight_piece.buffer, extra.get("bias"), *sums, low.made.buffer,
        extra.get("weight_zero"), extra.get("multiplier"), residual, **common,
    )  # fmt: skip


def has_residual(low: LayerPieces) -> bool:
    """Something is added on the way out of a convolution."""
    return len(low.pieces) > 1 and low.sums is None


@singledispatch
def instruction(layer: t.LayerKind, low: LayerPieces) -> Instruction:
    """The instruction for a piece of a layer of this kind, which `low` lowers."""
    assert isinstance(layer, t.VectorLayer), f"no instruction computes a layer {layer}"
    wanted = layer.INSTRUCTION
    names = {field.name for field in fields(wanted)}
    views = ("a_view", "b_view") if "b_view" in names else ("in_view",)
    found: dict[str, Any] = {name: operand_view(low, k) for k, name in enumerate(views)}
    found |= {"out_view": low.result.own_view, "box": low.piece.box}
    found |= {name: low.span(d) for d, name in enumerate(SPANS, start=1) if name in names}
    if isinstance(layer, t.PoolLayer) and layer.slices:
        found = {name: images_as_rows(value) for name, value in found.items()} | {"rows": low.span(0)}
    return wanted(**found, **layer.numbers)


def images_as_rows(value: View | Box | Span) -> View | Box | Span:
    """A view or a box of which images and rows have changed places; what has no dimensions as it is."""
    match value:
        case View():
            n, c, h, w = value.strides
            return View(value.element, value.offset, (h, c, n, w))
        case Box(spans=(images, channels, rows, columns)):
            return Box.of(rows, channels, images, columns)
        case _:
            return value


NORMALISED_BY = 3
"""The map, the scale and the shift."""


@instruction.register(t.NormaliseLayer)
def normalise(p: t.NormaliseLayer, low: LayerPieces) -> Instruction:
    """There may be a scale, and with it a shift."""
    names = ("in_view", "scale_view", "shift_view")[: len(low.pieces)]
    views: dict[str, Any] = {name: operand_view(low, k) for k, name in enumerate(names)}
    return isa.Normalise(**views, out_view=low.result.own_view, box=low.piece.box, **p.numbers)


SPANS = ("channels", "rows", "cols")
"""What an instruction calls the positions that a piece needs of its operand, along d1, d2 and d3."""


def operand_view(low: LayerPieces, k: int) -> View:
    """The view of an operand; of one of several it may have one position along a dimension where the map has more.
    Where the map has one too, the position stays: a piece in a run may begin before the map."""
    view = low.pieces[k].own_view
    if len(low.pieces) == 1:
        return view
    sizes = zip(view.strides, low.tiles[k].bound, low.out.bound, strict=True)
    strides = tuple(0 if there == 1 < here else s for s, there, here in sizes)
    return View(view.element, view.offset, strides)


@instruction.register(t.ConvLayer)
def conv(p: t.ConvLayer, low: LayerPieces) -> Instruction:
    pieces, weights = low.pieces, low.weight_piece
    assert weights is not None
    is_whole = p.groups > 1 and not low.nest.part_of_group
    views = {name: placed.own_view for name, placed in low.vector_pieces.items() if low.sums is None}
    of_both: dict[str, Any] = {
        "in_view": pieces[0].own_view,
        "weight_view": weights.own_view,
        "out_view": low.made.own_view,
        "bias_view": views.get("bias"),
        "weight_zero_view": views.get("weight_zero"),
        "multiplier_view": views.get("multiplier"),
        "residual_view": pieces[1].own_view if has_residual(low) else None,
        "box": low.piece.box,
        "rows": low.span(2),
        "cols": low.span(3),
        "kernel": p.kernel,
        "strides": p.strides,
        "dilations": p.dilations,
        "act": p.act if low.sums is None else None,
        "in_zero": p.in_zero or 0,
        "out_zero": p.out_zero or 0,
        "scales": p.scales,
    }
    if low.map.on_vector:
        return isa.Depthwise(**of_both)
    return isa.Conv(
        **of_both,
        acc_view=low.acc.own_view if low.acc else None,
        channels=Span(low.nest.chunk, low.map.channels, p.channels),
        groups=low.map.extent[1] // (low.out.bound[1] // p.groups) if is_whole else 1,
        accumulate=low.nest.level(CHANNELS_IN),
        continues=low.continues,
    )


@instruction.register(t.PickLayer)
def pick(p: t.PickLayer, low: LayerPieces) -> Instruction:
    """Elements as they are: read every steps-th position along each dimension."""
    view = low.pieces[0].own_view
    strides = tuple(stride * step for stride, step in zip(view.strides, p.steps, strict=True))
    is_integral = low.out.element not in FLOATS
    return isa.Unary(
        in_view=View(view.element, view.offset, strides),
        out_view=low.result.own_view,
        box=low.piece.box,
        kind="identity",
        scales=(Scale(), Scale()) if is_integral else None,
    )


@instruction.register(t.ReduceLayer)
def reduce(p: t.ReduceLayer, low: LayerPieces) -> Instruction:
    """Partial sums are numbers: what they stand for is said when they are narrowed."""
    levels = [level for d in p.axes if (level := low.nest.level(d)) is not None]
    numbers = p.numbers
    if p.scales and low.acc:
        numbers["scales"] = (p.scales[0], Scale())
    return isa.Reduce(
        in_view=low.pieces[0].own_view,
        out_view=(low.acc or low.result).own_view,
        box=low.piece.box,
        accumulate=max(levels, default=None),
        **numbers,
    )
