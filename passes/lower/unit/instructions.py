"""The instruction that computes one piece of a layer, for every kind of layer."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation

from frustum.dialects import isa
from frustum.dialects.isa.program import Instruction, Scale, Span, View
from frustum.passes.analysis.piece_nest import CHANNELS_IN
from frustum.passes.lower.unit.layer_pieces import LayerPieces
from frustum.passes.lower.unit.memory_map import Common


def compute(low: LayerPieces, common: Common) -> Operation:
    """The instruction on its buffers; partial sums go where they are kept."""
    instruction, operands = COMPUTE[low.kind](low), [piece.buffer for piece in low.pieces]
    if not isinstance(instruction, isa.Conv):
        return isa.emit(instruction, *operands, (low.acc or low.result).buffer, **common)
    assert low.weight_piece is not None
    extra = {name: placed.buffer for name, placed in low.vector_pieces.items()}
    residual, acc = operands[1] if len(operands) > 1 else None, low.acc.buffer if low.acc else None
    return isa.emit(
        instruction, operands[0], low.weight_piece.buffer, extra.get("bias"), acc, low.result.buffer,
        extra.get("weight_zero"), extra.get("multiplier"), residual, **common,
    )  # fmt: skip


def conv(low: LayerPieces) -> Instruction:
    p, pieces, weights = low.params, low.pieces, low.weight_piece
    assert weights is not None
    is_whole = p["groups"] > 1 and not low.nest.part_of_group
    views = {name: placed.own_view for name, placed in low.vector_pieces.items()}
    return isa.Conv(
        in_view=pieces[0].own_view,
        weight_view=weights.own_view,
        out_view=low.result.own_view,
        bias_view=views.get("bias"),
        acc_view=low.acc.own_view if low.acc else None,
        weight_zero_view=views.get("weight_zero"),
        multiplier_view=views.get("multiplier"),
        residual_view=pieces[1].own_view if len(pieces) > 1 else None,
        box=low.piece.box,
        channels=Span(low.nest.chunk, low.map.channels, p["channels"]),
        rows=low.span(2),
        cols=low.span(3),
        kernel=p["kernel"],
        strides=p["strides"],
        dilations=p["dilations"],
        groups=low.map.extent[1] // (low.out.bound[1] // p["groups"]) if is_whole else 1,
        accumulate=low.nest.level(CHANNELS_IN),
        act=low.act,
        in_zero=p.get("in_zero", 0),
        out_zero=p.get("out_zero", 0),
        scales=low.scales,
    )


def pool(low: LayerPieces) -> Instruction:
    p = low.params
    return isa.Pool(
        in_view=low.pieces[0].own_view,
        out_view=low.result.own_view,
        box=low.piece.box,
        rows=low.span(2),
        cols=low.span(3),
        kind=p["kind"],
        kernel=p["kernel"],
        strides=p["strides"],
        dilations=p["dilations"],
        include_pad=bool(p["include_pad"]),
        pad_low=p["pad_low"],
        pad_high=p["pad_high"],
        act=low.act,
        scales=low.scales,
    )


def unary(low: LayerPieces) -> Instruction:
    p = low.params
    return isa.Unary(
        in_view=low.pieces[0].own_view,
        out_view=low.result.own_view,
        box=low.piece.box,
        kind=p["kind"],
        alpha=p["alpha"],
        beta=p["beta"],
        scales=low.scales,
    )


def pick(low: LayerPieces) -> Instruction:
    """Elements as they are: read every steps-th position along each dimension."""
    view = low.pieces[0].own_view
    strides = tuple(stride * step for stride, step in zip(view.strides, low.params["steps"], strict=True))
    is_integral = low.out.element not in FLOATS
    return isa.Unary(
        in_view=View(view.element, view.offset, strides),
        out_view=low.result.own_view,
        box=low.piece.box,
        kind="identity",
        scales=(Scale(), Scale()) if is_integral else None,
    )


def broadcast_view(low: LayerPieces, k: int) -> View:
    """The view of an operand that may have one position along a dimension of the piece."""
    view = low.pieces[k].own_view
    strides = [0 if low.tiles[k].bound[d] == 1 else s for d, s in enumerate(view.strides)]
    return View(view.element, view.offset, tuple(strides))


def binary(low: LayerPieces) -> Instruction:
    return isa.Binary(
        a_view=broadcast_view(low, 0),
        b_view=broadcast_view(low, 1),
        out_view=low.result.own_view,
        box=low.piece.box,
        kind=low.params["kind"],
        act=low.act,
        scales=low.scales,
    )


def softmax(low: LayerPieces) -> Instruction:
    return isa.Softmax(
        in_view=low.pieces[0].own_view,
        out_view=low.result.own_view,
        box=low.piece.box,
        axis=low.params["axis"],
        scales=low.scales,
    )


def reduce(low: LayerPieces) -> Instruction:
    p = low.params
    levels = [level for d in low.reduced if (level := low.nest.level(d)) is not None]
    return isa.Reduce(
        in_view=low.pieces[0].own_view,
        out_view=(low.acc or low.result).own_view,
        box=low.piece.box,
        kind=p["kind"],
        axes=tuple(p["axes"]),
        scale=p["scale"],
        accumulate=max(levels, default=None),
        scales=reduce_scales(low),
    )


def reduce_scales(low: LayerPieces) -> tuple[Scale, ...] | None:
    """Partial sums are numbers: what they stand for is said when they are narrowed."""
    if low.scales is None or low.acc is None:
        return low.scales
    return (low.scales[0], Scale())


def lrn(low: LayerPieces) -> Instruction:
    p = low.params
    return isa.Lrn(
        in_view=low.pieces[0].own_view,
        out_view=low.result.own_view,
        box=low.piece.box,
        channels=low.span(1),
        size=p["size"],
        alpha=p["alpha"],
        beta=p["beta"],
        bias=p["bias"],
        scales=low.scales,
    )


def resize(low: LayerPieces) -> Instruction:
    p = low.params
    return isa.Resize(
        in_view=low.pieces[0].own_view,
        out_view=low.result.own_view,
        box=low.piece.box,
        rows=low.span(2),
        cols=low.span(3),
        mode=p["mode"],
        rounding=p["rounding"],
        scale=p["scale"],
        offset=p["offset"],
        scales=low.scales,
    )


FLOATS = ("f32", "f16", "bf16")
COMPUTE: dict[str, Callable[[LayerPieces], Instruction]] = {
    "conv": conv,
    "pool": pool,
    "unary": unary,
    "binary": binary,
    "softmax": softmax,
    "reduce": reduce,
    "lrn": lrn,
    "resize": resize,
    "pick": pick,
}
