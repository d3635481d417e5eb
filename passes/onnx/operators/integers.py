# Tests: test/passes/onnx/test_import_integers.py
"""Operators on integers: QLinearConv and its kin of ONNX, and those of com.microsoft.

Convolutions and matrix products become products of integers, all else an operation with a scale for each operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects import graph as g
from frustum.dialects.graph.attributes import ActAttr
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.conversions import Quantised, operand_of, scale_of, signed_zero
from frustum.passes.onnx.operators.moves import joined
from frustum.passes.onnx.operators.windows import on_plane, pooled, spatial_rank, windows_of
from frustum.passes.weights import Array

SOFTMAX_CHANGED = 13
"""Softmax was over all axes from its axis on until this opset."""


def qlinear_conv(node: Node) -> Result:
    x, w, y = _read(node, 0, "x"), _read(node, 3, "w"), scale_of(node, 6, "y")
    multiplier = _multiplier(x[1], w[1], y)
    bias = operand_of(node, 8, "the bias")[0] if node.has(8) else None
    zeros = (int(x[1].zero[0]), int(y.zero[0]))
    _same_width(x[1], y)
    result = _conv(node, x[0], w[0], w[1].zero, bias, zeros, multiplier)
    return node.marked(result, y.is_unsigned)


def conv_integer(node: Node) -> Result:
    x, x_zero = _with_zero(node, 0, 2, "x")
    w, w_zero = _with_zero(node, 1, 3, "w")
    return _conv(node, x, w, w_zero, None, (_single(x_zero, "x"), 0), None)


def qlinear_matmul(node: Node) -> Result:
    a, b, y = _read(node, 0, "a"), _read(node, 3, "b"), scale_of(node, 6, "y")
    multiplier = _multiplier(a[1], b[1], y)
    _same_width(a[1], y)
    result = _matmul(node, a[0], b[0], b[1].zero, (_single(a[1].zero, "a"), int(y.zero[0])), multiplier)
    return node.marked(result, y.is_unsigned)


def matmul_integer(node: Node) -> Result:
    a, a_zero = _with_zero(node, 0, 2, "a")
    b, b_zero = _with_zero(node, 1, 3, "b")
    return _matmul(node, a, b, b_zero, (_single(a_zero, "a"), 0), None)


def qgemm(node: Node) -> Result:
    """alpha * a * b + c; with a scale of y integers, without one f32."""
    a, b = _read(node, 0, "a"), _read(node, 3, "b")
    y = scale_of(node, 7, "y") if node.has(7) else None
    alpha = np.float32(node.get("alpha", 1.0))
    columns = node.shape(3)[0 if node.get("transB", 0) else 1]
    bias = None
    if node.has(6):
        if math.prod(node.shape(6)) != columns or node.shape(6)[-1] != columns:
            raise Refused(f"c of shape {node.shape(6)} is not one number for each of {columns} columns")
        bias = node.reshape(operand_of(node, 6, "c")[0], (columns,))
    scale = alpha * a[1].scale * b[1].scale
    multiplier = _vector(node, scale / y.scale, columns, "multiplier") if y else None
    op = g.MatmulOp(
        a[0], b[0], bias,
        trans_a=bool(node.get("transA", 0)), trans_b=bool(node.get("transB", 0)),
        w_zero=_zeros(node, b[0], b[1].zero, columns), multiplier=multiplier,
        zeros=(_single(a[1].zero, "a"), int(y.zero[0]) if y else 0),
    )  # fmt: skip
    result = node.emit(op)
    if y:
        return node.marked(result, y.is_unsigned)
    return node.binary("mul", node.emit(g.DequantizeOp(result, g.ScaleAttr.of(1.0))), node.weight(scale, "scale"))


def _read(node: Node, index: int, what: str) -> tuple[SSAValue, Quantised]:
    """An operand, followed by its scale and its zero point."""
    value, dtype = operand_of(node, index, what)
    return value, scale_of(node, index + 1, what, dtype=dtype)


def _with_zero(node: Node, index: int, place: int, what: str) -> tuple[SSAValue, Array]:
    """An operand and its zero point at another place, 0 where it is left out."""
    value, dtype = operand_of(node, index, what)
    zeros = node.constant(place, f"the zero point of {what}")
    if zeros is None:
        zeros = np.zeros(1, dtype)
    if zeros.dtype != dtype:
        raise Refused(f"{what} has elements of {dtype}, its zero point is {zeros.dtype}: the types must agree")
    return value, signed_zero(zeros.reshape(-1))


def _single(zero: Array, what: str) -> int:
    if zero.size != 1:
        raise Refused(f"{what} has {zero.size} zero points: one is supported")
    return int(zero.reshape(-1)[0])


def _same_width(x: Quantised, y: Quantised) -> None:
    if x.scale.size != 1 or y.scale.size != 1:
        raise Refused("the operand and the result have one scale each")
    if x.dtype.itemsize != y.dtype.itemsize:
        raise Refused(f"the operand is of {x.dtype}, the result of {y.dtype}: they have the same width")


def _multiplier(x: Quantised, w: Quantised, y: Quantised) -> Array:
    """In f32, product first: as onnxruntime does."""
    return x.scale * w.scale / y.scale


def _conv(
    node: Node, x: SSAValue, w: SSAValue, w_zero: Array, bias: SSAValue | None, zeros: Ints, multiplier: Array | None
) -> SSAValue:
    rank = spatial_rank(node)
    shape = g.shape_of(w)
    w = w if len(shape) == 4 else node.reshape(w, (*shape[:2], 1, shape[2]))
    windows, columns = windows_of(node, g.shape_of(w)[2:], g.shape_of(x), rank), shape[0]

    def layer(x: SSAValue) -> SSAValue:
        op = g.ConvOp(
            x, w, bias, windows.strides, windows.pads, windows.dilations, int(node.get("group", 1)),
            w_zero=_zeros(node, w, w_zero, columns), zeros=zeros,
            multiplier=None if multiplier is None else _vector(node, multiplier, columns, "multiplier"),
        )  # fmt: skip
        return node.emit(op)

    return on_plane(node, x, layer)


def _matmul(
    node: Node, a: SSAValue, b: SSAValue, b_zero: Array, zeros: Ints, multiplier: Array | None
) -> SSAValue:
    left, right = g.shape_of(a), g.shape_of(b)
    if len(left) < 2 or len(right) < 2:
        raise Refused(f"operands of shapes {left} and {right}: vectors are not supported, only matrices")
    columns = right[-1]
    op = g.MatmulOp(
        a, b, w_zero=_zeros(node, b, b_zero, columns), zeros=zeros,
        multiplier=None if multiplier is None else _vector(node, multiplier, columns, "multiplier"),
    )  # fmt: skip
    return node.emit(op)


def _zeros(node: Node, w: SSAValue, zero: Array, columns: int) -> SSAValue | None:
    """The zero points of the weights, one per column; None where all are 0."""
    if not zero.any():
        return None
    if zero.size not in (1, columns):
        raise Refused(f"{zero.size} zero points for {columns} output channels")
    values = np.broadcast_to(zero, (columns,)).astype(np.int8)
    return node.network.integers(values, values, f"{node.name}/w_zero")


def _vector(node: Node, values: Array, columns: int, suffix: str) -> SSAValue:
    if values.size not in (1, columns):
        raise Refused(f"{values.size} scales for {columns} output channels")
    return node.weight(np.ascontiguousarray(np.broadcast_to(values.astype(np.float32), (columns,))), suffix)


# --- com.microsoft: dequantise, compute, quantise -----------------------------------------------------------


def qlinear_binary(kind: str) -> Converter:
    def convert(node: Node) -> Result:
        a, b, y = _read(node, 0, "a"), _read(node, 3, "b"), scale_of(node, 6, "y")
        scales = [a[1].attribute, b[1].attribute, y.attribute]
        return node.marked(node.emit(g.BinaryOp(kind, a[0], b[0], scales=scales)), y.is_unsigned)

    return convert


def qlinear_unary(kind: str, **defaults: float) -> Converter:
    def convert(node: Node) -> Result:
        x, y = _read(node, 0, "x"), scale_of(node, 3, "y")
        act = ActAttr.of(kind, *(float(node.get(name, default)) for name, default in defaults.items()))
        op = g.UnaryOp(act, x[0], [x[1].attribute, y.attribute])
        return node.marked(node.emit(op), y.is_unsigned)

    return convert


def qlinear_average_pool(node: Node) -> Result:
    _refuse_channels_last(node)
    x, y = _read(node, 0, "x"), scale_of(node, 3, "y")
    return node.marked(pooled(node, "avg", x[0], [x[1].attribute, y.attribute]), y.is_unsigned)


def qlinear_global_average_pool(node: Node) -> Result:
    _refuse_channels_last(node)
    x, y = _read(node, 0, "x"), scale_of(node, 3, "y")
    axes = tuple(range(2, len(g.shape_of(x[0]))))
    op = g.ReduceOp("mean", x[0], axes, scales=[x[1].attribute, y.attribute])
    return node.marked(node.emit(op), y.is_unsigned)


def _refuse_channels_last(node: Node) -> None:
    if node.get("channels_last", 0):
        raise Refused("channels_last is not supported")


def qlinear_softmax(node: Node) -> Result:
    x, y = _read(node, 0, "x"), scale_of(node, 3, "y")
    shape = g.shape_of(x[0])
    axis = node.axis(int(node.get("axis", -1)), len(shape))
    scales = [x[1].attribute, y.attribute]
    if int(node.get("opset", SOFTMAX_CHANGED)) >= SOFTMAX_CHANGED:
        return node.marked(node.emit(g.SoftmaxOp(x[0], axis, scales)), y.is_unsigned)
    flat = node.reshape(x[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return node.marked(node.reshape(node.emit(g.SoftmaxOp(flat, 1, scales)), shape), y.is_unsigned)


def qlinear_concat(node: Node) -> Result:
    """Operands of another scale are requantised first."""
    y = scale_of(node, 0, "y")
    parts = [_requantised(node, _read(node, index, "an operand"), y) for index in range(2, len(node), 3)]
    axis = node.axis(int(node.get("axis")), len(g.shape_of(parts[0])))
    return node.marked(joined(node, parts, axis), y.is_unsigned)


def _requantised(node: Node, x: tuple[SSAValue, Quantised], y: Quantised) -> SSAValue:
    scales: Sequence[g.ScaleAttr] = [x[1].attribute, y.attribute]
    return x[0] if scales[0] == scales[1] else node.emit(g.UnaryOp("identity", x[0], scales))


CONVERTERS: dict[str, Converter] = {
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": conv_integer,
    "MatMulInteger": matmul_integer,
}
MICROSOFT: dict[str, Converter] = {
    "QGemm": qgemm,
    "QLinearAdd": qlinear_binary("add"),
    "QLinearMul": qlinear_binary("mul"),
    "QLinearSigmoid": qlinear_unary("sigmoid"),
    "QLinearLeakyRelu": qlinear_unary("leaky_relu", alpha=0.01),
    "QLinearAveragePool": qlinear_average_pool,
    "QLinearGlobalAveragePool": qlinear_global_average_pool,
    "QLinearSoftmax": qlinear_softmax,
    "QLinearConcat": qlinear_concat,
}
"""Operators of the domain com.microsoft."""
