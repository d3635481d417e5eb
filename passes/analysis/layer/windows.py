"""Layers on one map with windows: pools, local normalisation, resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.tile import SAME, Access, AnyAxis, Axis, Plain, TensorView, Whole
from frustum.passes.analysis.layer.nest import (
    Layer,
    MapOperand,
    dense,
    four,
    window,
)
from frustum.passes.analysis.layer.parameters import act_params, scales_params


def spatial(
    op: Operation,
    x: SSAValue,
    kind: str,
    access: Access,
    params: Mapping[str, Plain],
    align: Extents = (1, 1, 1, 1),
    cropped: Extents = (0, 0, 0, 0),
) -> Layer:
    """A layer on one 4-D map with windows; `cropped`: how much of the map's end it never sees."""
    shape, out = g.shape_of(x), g.shape_of(op.results[0])
    dims = four([extent - c for extent, c in zip(shape, cropped, strict=True)], 1)
    return Layer(
        kind,
        four(out, 1),
        TensorView(0, four(dense(out), 0)),
        (MapOperand(0, dims, TensorView(0, four(dense(shape), 0)), access),),
        params,
        align=align,
    )


def pool(op: g.PoolOp) -> Layer:
    top, left, bottom, right = op.pads
    (kh, kw), (sh, sw), (dh, dw) = op.kernel, op.strides, op.dilations
    access = (SAME, SAME, window(kh, sh, top, dh), window(kw, sw, left, dw))
    return spatial(
        op,
        op.x,
        "pool",
        access,
        {
            "kind": str(op.kind),
            "kernel": op.kernel,
            "strides": op.strides,
            "dilations": op.dilations,
            "include_pad": int(op.count_include_pad),
            "pad_low": (max(0, top), max(0, left)),
            "pad_high": (max(0, bottom), max(0, right)),
            **act_params(op),
            **scales_params(op),
        },
        cropped=(0, 0, max(0, -bottom), max(0, -right)),
    )


def lrn(op: g.LrnOp) -> Layer:
    access = (SAME, Axis(1, 1, -((op.size - 1) // 2), op.size - 1), SAME, SAME)
    return spatial(
        op,
        op.x,
        "lrn",
        access,
        {"size": op.size, "alpha": op.alpha, "beta": op.beta, "bias": op.bias, **scales_params(op)},
    )


MAX_DENOMINATOR = 64


def resize_axis(scale: float, offset: float, size: int, out: int) -> tuple[AnyAxis, int]:
    """The rows a piece needs, and what its starts must be multiples of; the whole axis for uneven scales."""
    ratio = Fraction(scale).limit_denominator(MAX_DENOMINATOR)
    if out == size and scale == 1.0 and offset == 0.0:
        return SAME, 1
    if abs(float(ratio) - scale) * out > 1e-3 or ratio.denominator >= out or ratio.numerator == 0:
        return Whole(size), 1
    low = math.floor(offset) - 1  # one more on either side: rounding, the second tap
    return Axis(ratio.numerator, ratio.denominator, low, 4), ratio.denominator


def resize(op: g.ResizeOp) -> Layer:
    x, out = g.shape_of(op.x), g.shape_of(op.result)
    (rows, align_h), (cols, align_w) = (
        resize_axis(op.scale[i], op.offset[i], x[2 + i], out[2 + i]) for i in (0, 1)
    )
    return spatial(
        op,
        op.x,
        "resize",
        (SAME, SAME, rows, cols),
        {
            "mode": str(op.mode),
            "rounding": str(op.rounding),
            "scale": op.scale,
            "offset": op.offset,
            **scales_params(op),
        },
        align=(1, 1, align_h, align_w),
    )
