"""How integers stand for real numbers: scales and zero points, and what operations on integers must say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from xdsl.dialects import builtin
from xdsl.dialects.builtin import IntegerType, Signedness, i8, i16, i32
from xdsl.ir import Attribute, Data, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.functions import Function
from frustum.dialects.graph.attributes import (
    ActAttr,
    Ints,
    float_text,
    parse_float,
    shape_of,
    tensor_of,
)

PRODUCT_TYPES = (i8, i16)
"""Integers that layers compute with."""


class Scale(NamedTuple):
    """An integer q stands for scale * (q - zero)."""

    scale: float
    zero: int = 0


@irdl_attr_definition
class ScaleAttr(Data[Scale]):
    """What integers stand for, scale * (q - zero): `#fgraph.scale<0.5, -128>`."""

    name = "fgraph.scale"

    @staticmethod
    def of(scale: float, zero: int = 0) -> ScaleAttr:
        return ScaleAttr(Scale(float(scale), int(zero)))

    @property
    def scale(self) -> float:
        return self.data.scale

    @property
    def zero(self) -> int:
        return self.data.zero

    def verify(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise VerifyException(f"a scale is a positive finite number, found {self.scale}")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Scale:
        with parser.in_angle_brackets():
            scale = parse_float(parser)
            parser.parse_punctuation(",")
            zero = parser.parse_integer(allow_boolean=False)
        return Scale(scale, zero)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{float_text(self.scale)}, {self.zero}")


Scales: TypeAlias = Sequence[ScaleAttr]
"""Of each operand, then of the result."""


def is_integer(value: SSAValue) -> bool:
    """Whether a tensor's elements are integers."""
    return isinstance(tensor_of(value).element_type, IntegerType)


def bounds(element: Attribute) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    if not isinstance(element, IntegerType) or element.signedness.data is Signedness.UNSIGNED:
        raise VerifyException(f"integers are i8, i16 or i32, found {element}")
    half = 1 << (element.width.data - 1)
    return -half, half - 1


def check_zero(zero: int, element: Attribute) -> None:
    low, high = bounds(element)
    if not low <= zero <= high:
        raise VerifyException(f"the zero point {zero} is not inside [{low}, {high}] of {element}")


def check_integer(value: float, element: Attribute) -> None:
    low, high = bounds(element)
    if not (low <= value <= high and float(value).is_integer()):
        raise VerifyException(f"the value {value} is no integer inside [{low}, {high}] of {element}")


def check_scales(scales: Scales | None, *values: SSAValue) -> None:
    """On integers: one scale for each of the values (operands, result), whose zero point the type has; else none."""
    element = tensor_of(values[0]).element_type
    if not isinstance(element, IntegerType):
        if scales is not None:
            raise VerifyException(f"scales belong to integers, found elements of {element}")
        return
    if element not in PRODUCT_TYPES:
        raise VerifyException(f"computing is with i8, i16 and floating-point numbers, found {element}")
    found = len(scales) if scales is not None else 0
    if scales is None or found != len(values):
        raise VerifyException(
            f"operands of {element} need a scale of each operand and of the result: {len(values)}, found {found}"
        )
    for scale in scales:
        check_zero(scale.zero, element)


def check_no_scales(op_scales: Scales | None, act: ActAttr | None, x: SSAValue) -> None:
    """Of what only chooses among its integers."""
    if op_scales is not None:
        raise VerifyException("it chooses among its operand's elements, which needs no scales")
    if act is not None and is_integer(x):
        raise VerifyException(f"on integers it takes no activation, found {act.kind}")


def check_product(
    operands: tuple[SSAValue, SSAValue],
    result: SSAValue,
    columns: int,
    extras: tuple[SSAValue | None, SSAValue | None, SSAValue | None],
    zeros: Ints | None,
    act: ActAttr | None,
) -> None:
    """What a product of integers says; `extras` are bias, w_zero, multiplier, one number per column each."""
    element = tensor_of(operands[0]).element_type
    bias, w_zero, multiplier = extras
    if element not in PRODUCT_TYPES:
        raise VerifyException(f"products are of i8, i16 and floating-point numbers, found {element}")
    if tensor_of(operands[1]).element_type != element:
        raise VerifyException(f"element types {element} and {tensor_of(operands[1]).element_type} differ")
    if multiplier is None and element != i8:
        raise VerifyException(f"accumulators of {element} do not fit i32: a multiplier is required")
    kinds = ("bias", bias, i32), ("w_zero", w_zero, element), ("multiplier", multiplier, None)
    for name, value, expected in kinds:
        _check_vector(name, value, columns, expected)
    result_type = i32 if multiplier is None else element
    if tensor_of(result).element_type != result_type:
        raise VerifyException(f"the result has elements of {tensor_of(result).element_type}, expected {result_type}")
    if zeros is None or len(zeros) != 2:
        raise VerifyException("a product of integers needs zeros = [of x, of the result]")
    for zero in zeros:
        check_zero(zero, element)
    if multiplier is None and (zeros[1] or act is not None):
        raise VerifyException("an accumulator has neither zero point nor activation")
    _check_clip(act, element)


def _check_vector(name: str, value: SSAValue | None, length: int, element: Attribute | None) -> None:
    if value is None:
        return
    if shape_of(value) != (length,):
        raise VerifyException(f"the {name} has shape {shape_of(value)}, expected {(length,)}")
    if tensor_of(value).element_type != (element or builtin.f32):
        raise VerifyException(
            f"the {name} has elements of {tensor_of(value).element_type}, expected {element or builtin.f32}"
        )


def _check_clip(act: ActAttr | None, element: Attribute) -> None:
    if act is None:
        return
    if act.kind != Function.CLIP:
        raise VerifyException(f"the activation of a product of integers is clip, found {act.kind}")
    low, high = bounds(element)
    if not all(end.is_integer() for end in (act.alpha, act.beta)) or not low <= act.alpha <= act.beta <= high:
        raise VerifyException(
            f"clip of integers has ordered integers inside [{low}, {high}], found {act.alpha} and {act.beta}"
        )
