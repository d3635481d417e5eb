# Tests: test/passes/onnx/test_import_contributed.py
"""Operators that onnxruntime adds to those of ONNX: functions, sums with a normalisation behind them, products and
convolutions with what is fused to them, and products with weights of a few bits.

Source: onnxruntime, the page of contributed operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from xdsl.ir import SSAValue

from frustum.dialects.graph import MatmulOp, ReduceOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result, Value
from frustum.passes.onnx.operators import elementwise
from frustum.passes.onnx.operators.conversions import dequantize
from frustum.passes.onnx.operators.moves import turned
from frustum.passes.onnx.operators.products import conv, product_of, scaled_factors
from frustum.passes.onnx.operators.reductions import layer_normalization, rms_normalization
from frustum.passes.onnx.operators.transformer import absent, unwanted
from frustum.passes.weights import Array

EPSILON = 1e-12
"""Of normalisations of sums."""
OPSET_OF_BLOCKS = 21
"""The first in which DequantizeLinear has scales of blocks."""


def inner(node: Node, op_type: str, operands: Sequence[Value | None], **attributes: Any) -> Node:
    """Another node in this one's place, with one result."""
    names = [f"{node.name}/{index}" for index in range(len(operands))]
    proto = onnx.helper.make_node(op_type, names, [node.proto.output[0]], **attributes)
    return replace(node, proto=proto, operands=operands)


def first_of(result: Result) -> Value:
    return result if isinstance(result, np.ndarray | SSAValue) else result[0]


# --- functions, and sums before them ----------------------------------------------------------------------


def gelu(kind: str) -> Converter:
    """GELU of the operand and, where there is one, a bias."""

    def converter(node: Node) -> Result:
        x = node.value(0)
        return node.unary(kind, node.binary("add", x, node.value(1)) if node.has(1) else x)

    return converter


def quick_gelu(node: Node) -> Result:
    return elementwise.swish(inner(node, "Swish", [node.value(0)], alpha=float(node.get("alpha", 1.702))))


def skip_normalization(op_type: str, shift: int | None, bias: int) -> Converter:
    """The normalisation of input + skip + bias, and the sum itself; `shift` and `bias` are operands."""
    convert = layer_normalization if shift is not None else rms_normalization

    def converter(node: Node) -> Result:
        unwanted(node, mean=1, inv_std_var=2)
        total = node.binary("add", node.value(0), node.value(1))
        if node.has(bias):
            total = node.binary("add", total, node.value(bias))
        operands = [total, node.operands[2]]
        if shift is not None and node.has(shift):
            operands.append(node.operands[shift])
        epsilon = float(node.get("epsilon", EPSILON))
        result = first_of(convert(inner(node, op_type, operands, axis=-1, epsilon=epsilon)))
        return [result, result, result, total]

    return converter


def simplified_normalization(node: Node) -> Result:
    """RMSNormalization under the name that it had in onnxruntime; what it multiplied by is made where somebody reads
    it."""
    result = first_of(rms_normalization(node))
    if not node.wants(1):
        return result
    x = node.value(0)
    rank = len(shape_of(x))
    axes = tuple(range(node.axis(node.get("axis", -1), rank), rank))
    square = node.emit(ReduceOp("mean", node.binary("mul", x, x), axes))
    epsilon = node.scalar(node.get("epsilon", 1e-5), "epsilon")
    return [result, node.unary("reciprocal", node.unary("sqrt", node.binary("add", square, epsilon)))]


# --- convolutions and products ----------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip
"""By operator: the attributes that `activation_params` are."""


def fused_conv(node: Node) -> Result:
    """A convolution, plus a map (Z), and a function of that."""
    result = first_of(conv(node))
    assert isinstance(result, SSAValue)
    if node.has(3):
        result = node.binary("add", result, node.value(3))
    return activated(node, result)


def activated(node: Node, x: SSAValue) -> Result:
    name, given = node.get("activation", ""), tuple(node.get("activation_params", ()))
    if not name:
        return x
    if name not in ACTIVATIONS or len(given) != len(ACTIVATIONS[name]):
        allowed = ", ".join(f"{each}{parameters or ''}" for each, parameters in ACTIVATIONS.items())
        raise Refused(f"the activation {name} with the parameters {given} is not supported: {allowed} are")
    return elementwise.CONVERTERS[name](inner(node, name, [x], **dict(zip(ACTIVATIONS[name], given, strict=True))))


def fused_matmul(node: Node) -> Result:
    """alpha times a product; `transBatchA` and `transBatchB` say that an operand's first axis is that of its rows, and
    the others before the last are the batch."""
    *factors, alpha = scaled_factors(node, float(node.get("alpha", 1.0)))
    flips = []
    for index, name in enumerate("AB"):
        rank = len(shape_of(factors[index]))
        if node.get(f"transBatch{name}", 0) and rank > 2:
            factors[index] = turned(node, factors[index], (*range(1, rank - 1), 0, rank - 1))
        flips.append(bool(node.get(f"trans{name}", 0)) and rank > 1)
    result = product_of(node, factors[0], factors[1], trans_a=flips[0], trans_b=flips[1])
    return result if alpha == 1.0 else node.binary("mul", result, node.scalar(alpha, "alpha"))


# --- weights of a few bits --------------------------------------------------------------------------------

INTEGERS: dict[int, np.dtype[Any]] = {4: np.dtype(ml_dtypes.uint4), 8: np.dtype(np.uint8)}
SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(ml_dtypes.int4), 8: np.dtype(np.int8)}
"""By bits: what the weights are, and what they are where no zero point is given, so that it is half their range."""


def matmul_n_bits(node: Node) -> Result:
    """A product with what DequantizeLinear makes of weights in blocks along the input channels."""
    absent(node, **{"g_idx (an order of the input channels)": 4})
    bits, block, k, n = (int(node.get(name, 0)) for name in ("bits", "block_size", "K", "N"))
    if bits not in INTEGERS:
        raise Refused(f"weights of {bits} bits are not supported: of 4 and 8 bits are")
    if block < 16 or block & (block - 1):
        raise Refused(f"blocks of {block} weights are not supported: a power of two from 16 on is")
    blocks = -(-k // block)
    packed, scales = node.constant(1, "the weights"), node.constant(2, "the scales")
    if packed is None or scales is None:
        raise Refused("the weights or their scales are missing")
    weights = unpacked(packed.reshape(n, blocks * block * bits // 8), bits)[:, :k].T
    scales = np.ascontiguousarray(scales.reshape(n, blocks).T)
    zeros = zero_points(node, bits, (n, blocks))
    operands: list[Value | None] = [scales]
    if zeros is None:
        weights = (weights.astype(np.int16) - (1 << bits - 1)).astype(SIGNED[bits])
    else:
        operands.append(np.ascontiguousarray(zeros.T))
    blocked = inner(
        node, "DequantizeLinear", [np.ascontiguousarray(weights), *operands], axis=0, block_size=block
    )  # fmt: skip
    known = first_of(dequantize(replace(blocked, opset=max(node.opset, OPSET_OF_BLOCKS))))
    b = node.weight(known, "weights") if isinstance(known, np.ndarray) else known
    return node.emit(MatmulOp(node.value(0), b, node.value(5) if node.has(5) else None))


def unpacked(packed: Array, bits: int) -> Array:
    """The integers along the last axis: those of a byte begin at its lowest bits."""
    if packed.dtype != np.uint8:
        raise Refused(f"weights or zero points packed in {packed.dtype} are not supported: in UINT8 are")
    parts = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1).astype(INTEGERS[bits])


def zero_points(node: Node, bits: int, shape: Ints) -> Array | None:
    """One for each block of each output channel; None where nobody says."""
    given = node.constant(3, "the zero points")
    if given is None:
        return None
    if given.dtype.kind == "f":
        raise Refused(f"zero points of {given.dtype} are not supported: those of the weights' type are")
    return unpacked(given.reshape(shape[0], -1), bits)[:, : shape[1]]


CONVERTERS: dict[str, Converter] = {"SimplifiedLayerNormalization": simplified_normalization}
"""Of the default domain, where onnxruntime has it too."""
MICROSOFT: dict[str, Converter] = {
    "BiasGelu": gelu("gelu"),
    "FastGelu": gelu("gelu_tanh"),
    "FusedConv": fused_conv,
    "FusedMatMul": fused_matmul,
    "Gelu": gelu("gelu"),
    "MatMulNBits": matmul_n_bits,
    "QuickGelu": quick_gelu,
    "SkipLayerNormalization": skip_normalization("LayerNormalization", 3, 4),
    "SkipSimplifiedLayerNormalization": skip_normalization("RMSNormalization", None, 3),
    "TransposeMatMul": fused_matmul,
}
"""Of the domain com.microsoft."""
