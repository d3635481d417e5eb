# Tests: test/passes/onnx/test_import_integers.py
"""Between real numbers and integers: QuantizeLinear, DequantizeLinear, Cast; and what all converters of quantised
operators read: scales, zero points, integers, each checked and named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import (
    DequantizeOp,
    QuantizeOp,
    ScaleAttr,
    WeightOp,
    is_integer,
    shape_of,
    tensor_of,
)
from frustum.passes.dequantised import Dequantised
from frustum.passes.errors import Refused
from frustum.passes.onnx.folding import computed
from frustum.passes.onnx.loading import BOOL, DEVICE_TYPES, FLOATS
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.weights import DEVICE_INTEGERS, Array, numpy_of

UNSIGNED: dict[np.dtype[Any], int] = {np.dtype(np.uint8): 128, np.dtype(np.uint16): 32768}
"""What the device's signed integers are less than the model's."""


@dataclass(frozen=True)
class Quantised:
    """Scales and zero points (as the device has them), one or one for each channel, and the model's type."""

    scale: Array
    zero: Array
    dtype: np.dtype

    @property
    def element(self) -> Attribute:
        return element_of(self.dtype)

    @property
    def is_unsigned(self) -> bool:
        return self.dtype in UNSIGNED

    @property
    def attribute(self) -> ScaleAttr:
        """The only scale; Refused where there are several."""
        if self.scale.size != 1:
            raise Refused(f"{self.scale.size} scales are not supported here: one is")
        return ScaleAttr.of(float(self.scale[0]), int(self.zero[0]))


def scale_of(node: Node, place: int, what: str, *, dtype: np.dtype | None = None, zero: int = -1) -> Quantised:
    """The scale at input `place` and the zero point at `zero` (or after it) of the operand called `what`.

    `dtype` is the type of the operand, where the zero point may be left out or must agree.
    """
    place_of_zero = zero if zero >= 0 else place + 1
    scale = node.constant(place, f"the scale of {what}")
    if scale is None:
        raise Refused(f"the scale of {what} is missing")
    scale = scale.astype(np.float32).reshape(-1)
    bad = scale[~(np.isfinite(scale) & (scale > 0))]
    if bad.size:
        raise Refused(f"the scale of {what} is {bad[0]}: a scale is a positive finite number")
    zeros = node.constant(place_of_zero, f"the zero point of {what}")
    if zeros is None:
        zeros = np.zeros(1, dtype or np.uint8)
    if dtype is not None and zeros.dtype != dtype:
        raise Refused(f"{what} has elements of {dtype}, its zero point is {zeros.dtype}: the types must agree")
    if zeros.dtype not in INTEGERS_OF_MODELS:
        raise Refused(f"{what} is of {zeros.dtype}: supported are {', '.join(map(str, INTEGERS_OF_MODELS))}")
    if zeros.size not in (1, scale.size):
        raise Refused(f"{what} has {scale.size} scales and {zeros.size} zero points")
    return Quantised(scale, signed_zero(zeros.reshape(-1)), zeros.dtype)


INTEGERS_OF_MODELS = {np.dtype(name): None for name in ("int8", "uint8", "int16", "uint16", "int32")}


def signed_zero(zeros: Array) -> Array:
    return zeros.astype(np.int64) - UNSIGNED.get(zeros.dtype, 0)


def signed(array: Array) -> Array:
    """The integers of a constant as the device has them."""
    shift = UNSIGNED.get(array.dtype)
    if shift is None:
        return array
    return (array.astype(np.int64) - shift).astype(f"i{array.itemsize}")


def element_of(dtype: np.dtype) -> Attribute:
    """The device's type for integers of a model's type."""
    return DEVICE_INTEGERS[np.dtype(f"i{dtype.itemsize}")]


def operand_of(node: Node, index: int, what: str) -> tuple[SSAValue, np.dtype]:
    """An operand of integers, and its type in the model; a constant becomes a weight of integers."""
    if not node.has(index):
        raise Refused(f"{what} is missing")
    operand = node.operands[index]
    if isinstance(operand, np.ndarray):
        if operand.dtype not in INTEGERS_OF_MODELS:
            raise Refused(f"{what} has elements of {operand.dtype}: integers of 8, 16 or 32 bits are supported")
        return node.network.integers(operand, signed(operand), node.proto.input[index]), operand.dtype
    assert isinstance(operand, SSAValue)
    if not is_integer(operand):
        raise Refused(f"{what} has elements of {tensor_of(operand).element_type}: integers are expected")
    own = numpy_of(tensor_of(operand).element_type)
    return operand, np.dtype(f"u{own.itemsize}") if operand in node.network.unsigned else own


def along(values: Array, shape: Ints, axis: int, what: str) -> Array:
    """One value per element of an axis, in the shape that broadcasts along it."""
    if values.size == 1:
        return values.reshape(())
    if values.size != shape[axis]:
        raise Refused(f"{what}: {values.size} values for axis {axis} of extent {shape[axis]}")
    return values.reshape([-1 if place == axis else 1 for place in range(len(shape))])


IN_FLOATS = {onnx.TensorProto.INT32, onnx.TensorProto.INT64}
"""Integers of a model that are kept as whole numbers in floating point once they are computed with."""


def quantize(node: Node) -> Result:
    """With one scale an operation of its own; with one for each channel a division before it."""
    _refuse_blocks(node)
    q = _target(node)
    operand = node.operands[0] if node.has(0) else None
    if isinstance(operand, np.ndarray):
        return _quantized(node, operand, q)
    x = node.value(0)
    _need_f32(node, x)
    if q.scale.size == 1:
        result = node.emit(QuantizeOp(x, q.attribute, q.element))
    else:
        shape, axis = shape_of(x), _axis(node, len(shape_of(x)))
        scaled = node.binary("div", x, node.weight(along(q.scale, shape, axis, "y_scale"), "scales"))
        zeros = along(q.zero, shape, axis, "y_zero_point")
        if np.any(q.zero):
            scaled = node.binary("add", node.unary("round", scaled), node.weight(zeros.astype(np.float32), "zeros"))
        result = node.emit(QuantizeOp(scaled, ScaleAttr.of(1.0), q.element))
    return node.marked(result, q.is_unsigned)


def _target(node: Node) -> Quantised:
    named = node.get("output_dtype", 0)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(named) if named else None
    if dtype is not None and dtype not in INTEGERS_OF_MODELS:
        raise Refused(f"quantising to {dtype} is not supported: {', '.join(map(str, INTEGERS_OF_MODELS))} are")
    q = scale_of(node, 1, "y", dtype=dtype)
    if q.dtype.itemsize > 2:
        raise Refused(f"quantising to {q.dtype} is not supported: integers of 8 and 16 bits are")
    return q


def _quantized(node: Node, x: Array, q: Quantised) -> Array:
    """A constant, in the model's own type."""
    axis = _axis(node, x.ndim) if q.scale.size > 1 else 0
    zero = along(q.zero + UNSIGNED.get(q.dtype, 0), x.shape, axis, "y_zero_point")
    scaled = np.rint(x.astype(np.float32) / along(q.scale, x.shape, axis, "y_scale")) + zero
    ends = np.iinfo(q.dtype)
    return np.clip(scaled, ends.min, ends.max).astype(q.dtype)


def dequantize(node: Node) -> Result:
    """Constants keep the integers they came from beside them; activations with several scales become products."""
    if all(isinstance(operand, np.ndarray) for operand in node.operands if operand is not None):
        found = _stored(node)
        return computed(node)[0] if found is None else node.network.dequantized(found, node.name)
    _refuse_blocks(node)
    x, dtype = operand_of(node, 0, "x")
    q = scale_of(node, 1, "x", dtype=dtype)
    _need_f32(node)
    if q.scale.size == 1:
        return node.emit(DequantizeOp(x, q.attribute))
    shape, axis = shape_of(x), _axis(node, len(shape_of(x)))
    result = node.emit(DequantizeOp(x, ScaleAttr.of(1.0)))
    if np.any(q.zero):
        zeros = along(q.zero, shape, axis, "x_zero_point").astype(np.float32)
        result = node.binary("sub", result, node.weight(zeros, "zeros"))
    return node.binary("mul", result, node.weight(along(q.scale, shape, axis, "x_scale"), "scales"))


def _stored(node: Node) -> Dequantised | None:
    """What a constant is dequantised from, in the types of the file, integers less half their range where they are
    unsigned; None where these are no such numbers."""
    x, scales, *rest = (each for each in node.operands if isinstance(each, np.ndarray))
    zeros = rest[0] if rest else np.zeros(1, x.dtype)
    bits, half = _bits_of(x.dtype)
    block = int(node.get("block_size", 0))
    axis = _axis(node, x.ndim) if scales.size > 1 else 0
    whole = [ceil_div(n, block) if block and d == axis else n for d, n in enumerate(x.shape)]
    wanted = tuple(whole) if block else (whole[axis],) if x.ndim else ()
    is_one = scales.size == 1
    element = onnx.helper.np_dtype_to_tensor_dtype(scales.dtype)
    if not bits or zeros.dtype != x.dtype or element not in DEVICE_TYPES or node.get("output_dtype", element) not in (
        0, element,
    ) or not (is_one or scales.shape == wanted) or zeros.size not in (1, scales.size):  # fmt: skip
        return None
    integers = np.ascontiguousarray((x.astype(np.int64) - half).astype(f"i{max(8, bits) // 8}"))
    zeros = (zeros.astype(np.int64) - half).reshape(-1 if zeros.size == 1 else scales.shape)
    return Dequantised(integers, scales.reshape(-1) if is_one else scales, zeros, axis, bits, 0 if is_one else block)


def _bits_of(dtype: np.dtype) -> tuple[int, int]:
    """How many bits integers have, and half their range where they are unsigned; (0, 0) where they are none."""
    if dtype.kind == "f" or dtype.kind == "b":
        return 0, 0
    try:
        ends = ml_dtypes.iinfo(dtype)
    except ValueError:
        return 0, 0
    return ends.bits, (int(ends.max) + 1) // 2 if ends.min == 0 else 0


def _axis(node: Node, rank: int) -> int:
    return node.axis(int(node.get("axis", 1)), rank)


def _refuse_blocks(node: Node) -> None:
    if node.get("block_size", 0):
        raise Refused("scales of blocks are not supported: one scale, or one for each channel, is")


def _need_f32(node: Node, x: SSAValue | None = None) -> None:
    found = node.network.element if x is None else tensor_of(x).element_type
    if found != f32:
        raise Refused(f"integers stand for f32 numbers, found {found}")


def cast(node: Node) -> Result:
    """To a 16-bit type of floating point a rounding, unless the network is of it; to others nothing; integers to floats
    their value; floats to integers their whole part, kept in floats."""
    target = node.get("to") if node.op_type == "Cast" else _element_like(node)
    x = node.value(0)
    if target == BOOL:
        return _truth(node, from_integers(node, 0, None) if is_integer(x) else x)
    if is_integer(x):
        return from_integers(node, 0, target)
    if x in node.network.boolean:
        x = node.unary("identity", x)
    elif target in DEVICE_TYPES:
        x = rounded(node, x, target)
    if target is None or target in FLOATS:
        return node.whole(x, False)
    if target not in IN_FLOATS:
        name = onnx.TensorProto.DataType.Name(target)
        raise Refused(f"casts of floating point to {name} are not supported: INT32, INT64, BOOL and floating point are")
    return node.whole(x if x in node.network.whole else truncated(node, x), True)


def rounded(node: Node, x: SSAValue, target: int) -> SSAValue:
    """The nearest numbers of a 16-bit type, kept in the network's type: nothing where it is that type."""
    element = DEVICE_TYPES[target]
    if element in (f32, node.network.element):
        return x
    if isinstance(x.owner, WeightOp):
        with np.errstate(over="ignore"):
            array = node.network.store[x.owner.key.data].astype(numpy_of(element))
        return node.weight(array, str(element))
    return node.unary(f"round_{element}", x)


def _element_like(node: Node) -> int | None:
    """The type of CastLike's second operand; None for floating point of the network."""
    like = node.operands[1] if node.has(1) else None
    if isinstance(like, np.ndarray):
        return int(onnx.helper.np_dtype_to_tensor_dtype(like.dtype))
    if like is not None and is_integer(like):
        own = numpy_of(tensor_of(like).element_type)
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(f"u{own}") if like in node.network.unsigned else own))
    return BOOL if like in node.network.boolean else onnx.TensorProto.INT64 if like in node.network.whole else None


def _truth(node: Node, x: SSAValue) -> SSAValue:
    """Whether it is not 0; what is no number is true."""
    if x in node.network.boolean:
        return x
    return node.negated(node.binary("equal", x, node.scalar(0.0, "zero")))


def truncated(node: Node, x: SSAValue) -> SSAValue:
    """Towards zero: of the floor what is positive, of the ceiling what is negative."""
    positive = node.unary("relu", node.unary("floor", x))
    return node.binary("add", positive, node.unary("clip", node.unary("ceil", x), -np.inf, 0.0))


def from_integers(node: Node, index: int, target: int | None) -> SSAValue:
    """An operand of integers as numbers of the model's type `target`; of floating point where that is None."""
    x, dtype = operand_of(node, index, "the operand")
    if target is not None and onnx.helper.tensor_dtype_to_np_dtype(target) == dtype:
        return x
    if target is not None and target not in FLOATS and target not in IN_FLOATS:
        raise Refused(f"casts of {dtype} to {onnx.TensorProto.DataType.Name(target)} are not supported")
    if target in IN_FLOATS and dtype.itemsize > 1:
        _need_f32(node)  # others do not have all of them
    zero = int(signed_zero(np.zeros(1, dtype))[0])
    numbers = node.emit(DequantizeOp(x, ScaleAttr.of(1.0, zero), node.network.element))
    if dtype.itemsize > 1 and target in DEVICE_TYPES:
        numbers = rounded(node, numbers, target)
    return node.whole(numbers, target in IN_FLOATS)


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "Cast": cast,
    "CastLike": cast,
}
