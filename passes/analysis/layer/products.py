"""Convolutions and matrix products."""

from __future__ import annotations

import math

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.tile import SAME, Access, AnyAxis, Axis, Plain, TensorView, Whole
from frustum.passes.analysis.layer.nest import (
    MATRIX,
    SAME4,
    Layer,
    MapOperand,
    dense,
    four,
    refused,
    window,
)
from frustum.passes.analysis.layer.parameters import product_params


def place_of(op: Operation, value: SSAValue | None) -> int | None:
    """Number of an operand that may be absent."""
    return None if value is None else next(i for i, operand in enumerate(op.operands) if operand is value)


def residual_of(op: g.ConvOp | g.MatmulOp, dims: Extents, view: TensorView) -> tuple[MapOperand, ...]:
    """What is added on the way out: it lies as the result does."""
    place = place_of(op, op.residual)
    return () if place is None else (MapOperand(place, dims, view, SAME4),)


def conv(op: g.ConvOp) -> Layer:
    n, c, h, w = g.shape_of(op.x)
    out = g.shape_of(op.result)
    m, per_group, kh, kw = g.shape_of(op.w)
    top, left, _, _ = op.pads
    per_group_out = m // op.groups
    channels: AnyAxis = Whole(c) if op.groups == 1 else Axis(per_group, per_group_out, 0, per_group - 1)
    access: Access = (
        SAME,
        channels,
        window(kh, op.strides[0], top, op.dilations[0]),
        window(kw, op.strides[1], left, op.dilations[1]),
    )
    params: dict[str, Plain] = {
        "kernel": (kh, kw),
        "strides": op.strides,
        "dilations": op.dilations,
        "groups": op.groups,
        "channels": per_group,
        "weight_strides": (per_group * kh * kw, kh * kw, kw, 1),
        "weight_batch": 0,
        **product_params(op),
    }
    out_view = TensorView(0, four(dense(out), 0))
    return Layer(
        MATRIX,
        four(out, 1),
        out_view,
        (
            MapOperand(0, (n, c, h, w), TensorView(0, four(dense((n, c, h, w)), 0)), access),
            *residual_of(op, four(out, 1), out_view),
        ),
        params,
        weight=1,
        bias=place_of(op, op.bias),
        multiplier=place_of(op, op.multiplier),
        weight_zero=place_of(op, op.w_zero),
        macs=math.prod(out) * per_group * kh * kw,
    )


def matmul(op: g.MatmulOp) -> Layer:
    """Positions (d3) are the rows of a, channels (d1) the columns of b, d0 the batch of products."""
    a, b, out = g.shape_of(op.a), g.shape_of(op.b), g.shape_of(op.result)
    if len(a) == 1 or len(b) == 1:
        raise refused(op, "vectors must be given as matrices")
    k = a[-2] if op.trans_a else a[-1]
    rows, columns = out[-2], out[-1]
    batch = math.prod(out[:-2])
    b_batch = math.prod(b[:-2])
    a_batch = math.prod(a[:-2])
    if b_batch == 1 and not op.trans_a and a_batch == batch:
        rows, batch = rows * batch, 1
    elif a_batch not in (1, batch) or b_batch not in (1, batch):
        raise refused(op, f"batches {a[:-2]} and {b[:-2]} broadcast dimension by dimension")
    row, column = (1, a[-1]) if not op.trans_a else (a[-1], 1)  # strides of k, of rows
    a_view = TensorView(0, (a[-2] * a[-1] if batch > 1 and a_batch > 1 else 0, row, 0, column))
    access: Access = (SAME if a_batch > 1 or batch == 1 else Whole(1), Whole(k), SAME, SAME)
    co, ci = (b[-1], 1) if op.trans_b else (1, b[-1])
    params: dict[str, Plain] = {
        "kernel": (1, 1),
        "strides": (1, 1),
        "dilations": (1, 1),
        "groups": 1,
        "channels": k,
        "weight_strides": (co, ci, 0, 0),
        "weight_batch": b[-2] * b[-1] if b_batch > 1 else 0,
        **product_params(op),
    }
    a_dims = (batch if a_batch > 1 else 1, k, 1, rows)
    out_dims, out_view = (batch, columns, 1, rows), TensorView(0, (rows * columns, 1, 0, columns))
    return Layer(
        MATRIX,
        out_dims,
        out_view,
        (MapOperand(0, a_dims, a_view, access), *residual_of(op, out_dims, out_view)),
        params,
        weight=1,
        bias=place_of(op, op.bias),
        multiplier=place_of(op, op.multiplier),
        weight_zero=place_of(op, op.w_zero),
        macs=batch * rows * columns * k,
    )
