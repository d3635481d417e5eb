"""What the operations share: attribute constraints, and checks of results, elements and biases."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, IntegerAttr, TensorType, UnitAttr, f32, f64, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, eq
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph.attributes import Ints, shape_of, tensor_of, tensor_type

INTS = DenseArrayBase.constr(i64)
FLOATS = DenseArrayBase.constr(f64)
INT = IntegerAttr.constr(type=eq(i64))
FLOAT = FloatAttr.constr(eq(f64))


def i64_attr(value: int) -> IntegerAttr[Any]:
    return IntegerAttr(value, i64)


def unit(holds: bool) -> UnitAttr | None:
    return UnitAttr() if holds else None


def check_result(op: IRDLOperation, expected: Ints) -> None:
    found = shape_of(op.results[0])
    if found != expected:
        raise VerifyException(f"the result's shape is {found}, expected {expected}")


def check_elements(*values: SSAValue) -> None:
    """Raises unless all have one element type."""
    first, *others = (tensor_of(value).element_type for value in values)
    for other in others:
        if other != first:
            raise VerifyException(f"element types {first} and {other} differ")


def check_bias(x: SSAValue, bias: SSAValue | None, length: int) -> None:
    """A bias is a vector, in the operand's type or in f32 (the machine keeps it so)."""
    if bias is None:
        return
    if shape_of(bias) != (length,):
        raise VerifyException(f"the bias has shape {shape_of(bias)}, expected {(length,)}")
    element, own = tensor_of(bias).element_type, tensor_of(x).element_type
    if element not in (f32, own):
        raise VerifyException(f"the bias has elements of {element}, expected f32 or {own}")


def like(x: SSAValue, shape: Ints) -> TensorType[Any]:
    """A tensor of x's elements."""
    return tensor_type(tensor_of(x).element_type, shape)
