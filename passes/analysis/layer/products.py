# Tests: test/pipeline/test_compressed_weights.py
"""Convolutions and matrix products."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, replaced
from frustum.dialects.tile import SAME, Access, AnyAxis, Axis, ConvLayer, TensorView, Whole
from frustum.passes.analysis.layer import nest


def product(
    op: g.ConvOp | g.MatmulOp,
    first: nest.MapOperand,
    out_dims: Extents,
    out_view: TensorView,
    *,
    channels: int,
    weight_strides: Extents,
    weight_batch: int = 0,
    kernel: Extents = (1, 1),
    strides: Extents = (1, 1),
    dilations: Extents = (1, 1),
    groups: int = 1,
) -> nest.Layer:
    """A layer on the matrix unit.  What is added on the way out lies as the result does; `vectors` names what follows
    the weights where it is not a bias alone."""

    def place(value: SSAValue | None) -> int | None:
        """Number of an operand behind the two that are multiplied (of which one may be added too); it may be absent."""
        behind = (i for i, operand in enumerate(op.operands) if i > 1 and operand is value)
        return None if value is None else next(behind)

    named = ("bias", op.bias), ("weight_zero", op.w_zero), ("multiplier", op.multiplier)
    vectors = " ".join(name for name, value in named if value is not None)
    in_zero, out_zero = op.zeros or (None, None)
    kind = ConvLayer(
        kernel,
        strides,
        dilations,
        groups,
        channels,
        weight_strides,
        weight_batch,
        nest.act_of(op),
        nest.scales_of(op),
        in_zero,
        out_zero,
        vectors if vectors not in ("", "bias") else None,
    )
    residual = place(op.residual)
    return nest.Layer(
        kind,
        out_dims,
        out_view,
        (first,) if residual is None else (first, nest.MapOperand(residual, out_dims, out_view, nest.SAME4)),
        weight=1,
        bias=place(op.bias),
        multiplier=place(op.multiplier),
        weight_zero=place(op.w_zero),
        macs=math.prod(out_dims) * kind.channel_weights,
    )


@nest.builds(g.ConvOp, shares=True)
def conv(op: g.ConvOp) -> nest.Layer:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    m, per_group, kh, kw = g.shape_of(op.w)
    top, left, _, _ = op.pads
    channels: AnyAxis = (
        Whole(shape[1]) if op.groups == 1 else Axis(per_group, m // op.groups, 0, per_group - 1)
    )
    access: Access = (
        SAME,
        channels,
        nest.window(kh, op.strides[0], top, op.dilations[0]),
        nest.window(kw, op.strides[1], left, op.dilations[1]),
    )
    return product(
        op,
        nest.MapOperand(0, tuple(shape), nest.contiguous(shape), access),
        nest.loops(out),
        nest.contiguous(out),
        kernel=(kh, kw),
        strides=op.strides,
        dilations=op.dilations,
        groups=op.groups,
        channels=per_group,
        weight_strides=(per_group * kh * kw, kh * kw, kw, 1),
    )


@nest.builds(g.MatmulOp)
def matmul(op: g.MatmulOp) -> nest.Layer:
    """Positions (d3) are the rows of a, channels (d1) the columns of b, d0 the batch of products."""
    a, b, out = g.shape_of(op.a), g.shape_of(op.b), g.shape_of(op.result)
    if len(a) == 1 or len(b) == 1:
        raise nest.refused(op, "vectors must be given as matrices")
    form = nest.chosen_form(op)
    if form is not None:
        return matmul_in(form, op)
    k = a[-2] if op.trans_a else a[-1]
    rows, columns = out[-2], out[-1]
    batch, a_batch, b_batch = (math.prod(shape[:-2]) for shape in (out, a, b))
    if b_batch == 1 and not op.trans_a and a_batch == batch:
        rows, batch = rows * batch, 1
    elif a_batch not in (1, batch) or b_batch not in (1, batch):
        raise nest.refused(op, f"batches {a[:-2]} and {b[:-2]} broadcast dimension by dimension")
    row, column = (1, a[-1]) if not op.trans_a else (a[-1], 1)  # strides of k, of rows
    a_view = TensorView(0, (a[-2] * a[-1] if batch > 1 and a_batch > 1 else 0, row, 0, column))
    access: Access = (SAME if a_batch > 1 or batch == 1 else Whole(1), Whole(k), SAME, SAME)
    co, ci = (b[-1], 1) if op.trans_b else (1, b[-1])
    return product(
        op,
        nest.MapOperand(0, (batch if a_batch > 1 else 1, k, 1, rows), a_view, access),
        (batch, columns, 1, rows),
        TensorView(0, (rows * columns, 1, 0, columns)),
        channels=k,
        weight_strides=(co, ci, 0, 0),
        weight_batch=b[-2] * b[-1] if b_batch > 1 else 0,
    )


def matmul_in(form: Extents, op: g.MatmulOp) -> nest.Layer:
    """A product with one matrix of weights, where the loops of its positions are chosen."""
    a, b, out = g.shape_of(op.a), g.shape_of(op.b), g.shape_of(op.result)
    assert form[-1] == 1 and not op.trans_a, "channels are the last axis of both maps"
    (_, made), (dims, lie) = nest.formed(out, form), nest.formed(a, form)
    out_dims = (dims[0], out[-1], *dims[2:])
    made, lie = replaced(made, 1, 1), replaced(lie, 1, 1)
    dims = replaced(dims, 1, a[-1])
    co, ci = (b[-1], 1) if op.trans_b else (1, b[-1])
    return product(
        op,
        nest.MapOperand(0, dims, TensorView(0, lie), (SAME, Whole(a[-1]), SAME, SAME)),
        out_dims,
        TensorView(0, made),
        channels=a[-1],
        weight_strides=(co, ci, 0, 0),
    )
