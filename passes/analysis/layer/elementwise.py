"""Layers element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.tile import SAME, Plain, TensorView, Whole
from frustum.passes.analysis.layer.nest import (
    RANK,
    Layer,
    MapOperand,
    access_of,
    dense,
    four,
    refused,
)
from frustum.passes.analysis.layer.parameters import act_params, scales_of, scales_params


def merge(
    op: Operation, shape: Sequence[int], operands: Sequence[Sequence[int]], limit: int = RANK
) -> list[tuple[int, ...]]:
    """The shapes (result first) with neighbouring dimensions merged where all are dense or all broadcast."""
    ranks = len(shape)
    padded = [tuple([1] * (ranks - len(s)) + list(s)) for s in operands]
    dims = [(shape[i], *(p[i] for p in padded)) for i in range(ranks)]
    while len(dims) > limit:
        for i in range(len(dims) - 1):
            a, b = dims[i], dims[i + 1]
            if all(
                (x == a[0]) == (y == b[0]) or (x * y in (1, a[0] * b[0]) and {x, y} <= {1, a[0] * b[0]})
                for x, y in zip(a, b, strict=True)
            ):
                dims[i : i + 2] = [tuple(x * y for x, y in zip(a, b, strict=True))]
                break
        else:
            raise refused(
                op, f"shapes {[tuple(shape), *operands]} have more than {limit} dimensions that differ"
            )
    return [four([d[k] for d in dims], 1) for k in range(len(padded) + 1)]


def elementwise(op: Operation, kind: str, operands: Sequence[SSAValue], params: Mapping[str, Plain]) -> Layer:
    out, *shapes = merge(op, g.shape_of(op.results[0]), [g.shape_of(o) for o in operands])
    out_dims = four(out, 1)
    maps = []
    for index, shape in enumerate(shapes):
        # broadcast along what the result has more of; else the operand lies as any map of its shape does
        near = dense(four(shape, 1))
        strides = tuple(0 if s != o else t for s, o, t in zip(four(shape, 1), out_dims, near, strict=True))
        access = tuple(SAME if s == o else Whole(1) for s, o in zip(shape, out_dims, strict=True))
        maps.append(MapOperand(index, four(shape, 1), TensorView(0, four(strides, 0)), access_of(access)))
    return Layer(kind, out_dims, TensorView(0, four(dense(out_dims), 0)), tuple(maps), params)


def unary(op: g.UnaryOp) -> Layer:
    params = {"kind": str(op.kind), "alpha": op.act.alpha, "beta": op.act.beta, **scales_params(op)}
    return elementwise(op, "unary", [op.x], params)


def quantize(op: g.QuantizeOp) -> Layer:
    return conversion(op, scales_of(g.ScaleAttr.of(1.0), op.to))


def dequantize(op: g.DequantizeOp) -> Layer:
    return conversion(op, scales_of(op.from_, g.ScaleAttr.of(1.0)))


def conversion(op: g.QuantizeOp | g.DequantizeOp, scales: Mapping[str, Plain]) -> Layer:
    """Between integers and the numbers they stand for; the scale of a floating-point side says nothing."""
    return elementwise(op, "unary", [op.x], {"kind": "identity", "alpha": 0.0, "beta": 0.0, **scales})


def binary(op: g.BinaryOp) -> Layer:
    return elementwise(
        op, "binary", [op.a, op.b], {"kind": str(op.kind), **act_params(op), **scales_params(op)}
    )
