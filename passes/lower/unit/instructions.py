"""The instruction that computes one piece of a layer, for every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from xdsl.ir import Operation

from frustum.dialects import isa
from frustum.dialects.isa.program import Affine, Element, Scale, Span, View
from frustum.passes.analysis.piece_nest import CHANNELS_IN
from frustum.passes.lower.unit.memory_map import four

if TYPE_CHECKING:
    from frustum.passes.lower.unit.layer import LayerLowering


def conv(low: LayerLowering, common: dict[str, int]) -> Operation:
    p, pieces, weights = low.params, low.pieces, low.weight_piece
    assert weights is not None
    per_group = p["channels"]
    groups = (
        1
        if p["groups"] == 1 or low.nest.part_of_group
        else low.map.extent[1] // (low.out.bound[1] // p["groups"])
    )
    channels = Span(low.nest.chunk, low.map.channels, per_group)
    return isa.ConvOp(
        pieces[0].buffer,
        weights.buffer,
        low.out_buffer,
        acc=low.acc_buffer,
        **extra_operands(low),
        in_view=pieces[0].own_view,
        weight_view=weights.own_view,
        acc_view=View(low.wide, Affine(), low.acc_strides) if low.acc_buffer is not None else None,
        out_view=low.out_view,
        box=low.piece.box,
        channels=channels,
        rows=low.span(2),
        cols=low.span(3),
        kernel=p["kernel"],
        strides=p["strides"],
        dilations=p["dilations"],
        groups=groups,
        accumulate=low.nest.level(CHANNELS_IN),
        act=low.act,
        in_zero=p.get("in_zero", 0),
        out_zero=p.get("out_zero", 0),
        scales=low.scales,
        **cast(Any, common),
    )


def extra_operands(low: LayerLowering) -> dict[str, Any]:
    """Numbers per output channel, and what is added on the way out, with their views."""
    extras = dict(low.vector_pieces)
    if len(low.pieces) > 1:
        extras["residual"] = low.pieces[1]
    operands: dict[str, Any] = {name: placed.buffer for name, placed in extras.items()}
    return {**operands, **{f"{name}_view": placed.own_view for name, placed in extras.items()}}


def pool(low: LayerLowering, common: dict[str, int]) -> Operation:
    p = low.params
    return isa.PoolOp(
        p["kind"],
        low.pieces[0].buffer,
        low.out_buffer,
        in_view=low.pieces[0].own_view,
        out_view=low.out_view,
        box=low.piece.box,
        rows=low.span(2),
        cols=low.span(3),
        kernel=p["kernel"],
        strides=p["strides"],
        dilations=p["dilations"],
        include_pad=bool(p["include_pad"]),
        pad_low=p["pad_low"],
        pad_high=p["pad_high"],
        act=low.act,
        scales=low.scales,
        **cast(Any, common),
    )


def unary(low: LayerLowering, common: dict[str, int]) -> Operation:
    p = low.params
    return isa.UnaryOp(
        p["kind"],
        low.pieces[0].buffer,
        low.out_buffer,
        in_view=low.pieces[0].own_view,
        out_view=low.out_view,
        box=low.piece.box,
        alpha=p["alpha"],
        beta=p["beta"],
        scales=low.scales,
        **cast(Any, common),
    )


def pick(low: LayerLowering, common: dict[str, int]) -> Operation:
    """Elements as they are: read every steps-th position along each dimension."""
    view = low.pieces[0].own_view
    strides = four([stride * step for stride, step in zip(view.strides, low.params["steps"], strict=True)])
    is_integral = low.out.element not in FLOATS
    return isa.UnaryOp(
        "identity",
        low.pieces[0].buffer,
        low.out_buffer,
        in_view=View(view.element, view.offset, strides),
        out_view=low.out_view,
        box=low.piece.box,
        alpha=0.0,
        beta=0.0,
        scales=(Scale(), Scale()) if is_integral else None,
        **cast(Any, common),
    )


def broadcast_view(low: LayerLowering, k: int) -> View:
    """The view of an operand that may have one position along a dimension of the piece."""
    view = low.pieces[k].own_view
    strides = [0 if low.tiles[k].bound[d] == 1 else s for d, s in enumerate(view.strides)]
    return View(view.element, view.offset, four(strides))


def binary(low: LayerLowering, common: dict[str, int]) -> Operation:
    a, b = low.pieces
    return isa.BinaryOp(
        low.params["kind"],
        a.buffer,
        b.buffer,
        low.out_buffer,
        a_view=broadcast_view(low, 0),
        b_view=broadcast_view(low, 1),
        out_view=low.out_view,
        box=low.piece.box,
        act=low.act,
        scales=low.scales,
        **cast(Any, common),
    )


def softmax(low: LayerLowering, common: dict[str, int]) -> Operation:
    return isa.SoftmaxOp(
        low.pieces[0].buffer,
        low.out_buffer,
        in_view=low.pieces[0].own_view,
        out_view=low.out_view,
        box=low.piece.box,
        axis=low.params["axis"],
        scales=low.scales,
        **cast(Any, common),
    )


def reduce(low: LayerLowering, common: dict[str, int]) -> Operation:
    p = low.params
    levels = [level for d in low.reduced if (level := low.nest.level(d)) is not None]
    level = max(levels, default=None)
    wide = low.acc_buffer if low.acc_buffer is not None else low.out_buffer
    element, strides = (
        ("f32", low.acc_strides) if low.acc_buffer is not None else (low.out.element, low.out_strides)
    )
    kept = four([0 if d in low.reduced else s for d, s in enumerate(strides)])
    return isa.ReduceOp(
        p["kind"],
        low.pieces[0].buffer,
        wide,
        in_view=low.pieces[0].own_view,
        out_view=View(cast(Element, element), Affine(), kept),
        box=low.piece.box,
        axes=tuple(p["axes"]),
        scale=p["scale"],
        accumulate=level,
        scales=reduce_scales(low),
        **cast(Any, common),
    )


def reduce_scales(low: LayerLowering) -> tuple[Scale, ...] | None:
    """Partial sums are numbers: what they stand for is said when they are narrowed."""
    if low.scales is None or low.acc_buffer is None:
        return low.scales
    return (low.scales[0], Scale())


def lrn(low: LayerLowering, common: dict[str, int]) -> Operation:
    p = low.params
    return isa.LrnOp(
        low.pieces[0].buffer,
        low.out_buffer,
        in_view=low.pieces[0].own_view,
        out_view=low.out_view,
        box=low.piece.box,
        channels=low.span(1),
        size=p["size"],
        alpha=p["alpha"],
        beta=p["beta"],
        bias=p["bias"],
        scales=low.scales,
        **cast(Any, common),
    )


def resize(low: LayerLowering, common: dict[str, int]) -> Operation:
    p = low.params
    return isa.ResizeOp(
        p["mode"],
        p["rounding"],
        low.pieces[0].buffer,
        low.out_buffer,
        in_view=low.pieces[0].own_view,
        out_view=low.out_view,
        box=low.piece.box,
        rows=low.span(2),
        cols=low.span(3),
        scale=p["scale"],
        offset=p["offset"],
        scales=low.scales,
        **cast(Any, common),
    )


FLOATS = ("f32", "f16", "bf16")
COMPUTE: dict[str, Callable[[LayerLowering, dict[str, int]], Operation]] = {
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
