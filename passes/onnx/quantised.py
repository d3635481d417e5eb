"""What the converters of quantised operators read: scales, zero points, integers; each checked and named."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.ir import Attribute, SSAValue

from frustum.dialects.graph import ScaleAttr, is_integer, tensor_of
from frustum.passes.element_types import INTEGERS, numpy_of
from frustum.passes.onnx.node import Ints, Node, Refused
from frustum.passes.weights import Array

__all__ = ["Quantised", "along", "element_of", "operand_of", "scale_of", "signed", "signed_zero"]

UNSIGNED = {np.dtype(np.uint8): 128, np.dtype(np.uint16): 32768}
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
    return INTEGERS[np.dtype(f"i{dtype.itemsize}")]


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
