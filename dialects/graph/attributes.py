"""Attributes of the graph level, and short ways between them and plain Python values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from xdsl.dialects import builtin
from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, TensorType, i64
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Data, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_attr_definition
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.functions import (
    Arithmetic,
    Border,
    Function,
    Interpolation,
    Pooling,
    Reduction,
    Rounding,
)

Ints: TypeAlias = tuple[int, ...]
Floats: TypeAlias = tuple[float, ...]


class Act(NamedTuple):
    """A function with its parameters; of clip alpha is the lower, beta the upper end."""

    kind: Function
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def parameters(self) -> Floats:
        return (self.alpha, self.beta)[: self.kind.parameters]


@irdl_attr_definition
class ActAttr(Data[Act]):
    """A function as an attribute: `#fgraph.act<clip, 0.0, 6.0>`."""

    name = "fgraph.act"

    @staticmethod
    def of(kind: str, alpha: float = 0.0, beta: float = 0.0) -> ActAttr:
        return ActAttr(Act(Function(kind), float(alpha), float(beta)))

    @property
    def kind(self) -> Function:
        return self.data.kind

    @property
    def alpha(self) -> float:
        return self.data.alpha

    @property
    def beta(self) -> float:
        return self.data.beta

    def verify(self) -> None:
        count = self.kind.parameters
        if any((self.alpha, self.beta)[count:]):
            raise VerifyException(f"{self.kind} takes {count} parameters, found {self.alpha} and {self.beta}")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Act:
        with parser.in_angle_brackets():
            kind = parser.parse_str_enum(Function)
            values = []
            for _ in range(kind.parameters):
                parser.parse_punctuation(",")
                values.append(parse_float(parser))
        return Act(kind, *values)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(", ".join([self.kind, *map(float_text, self.data.parameters)]))


@irdl_attr_definition
class PoolingAttr(EnumAttribute[Pooling], SpacedOpaqueSyntaxAttribute):
    name = "fgraph.pooling"


@irdl_attr_definition
class ReductionAttr(EnumAttribute[Reduction], SpacedOpaqueSyntaxAttribute):
    name = "fgraph.reduction"


@irdl_attr_definition
class ArithmeticAttr(EnumAttribute[Arithmetic], SpacedOpaqueSyntaxAttribute):
    name = "fgraph.arithmetic"


@irdl_attr_definition
class InterpolationAttr(EnumAttribute[Interpolation], SpacedOpaqueSyntaxAttribute):
    name = "fgraph.interpolation"


@irdl_attr_definition
class BorderAttr(EnumAttribute[Border], SpacedOpaqueSyntaxAttribute):
    name = "fgraph.border_mode"


@irdl_attr_definition
class RoundingAttr(EnumAttribute[Rounding], SpacedOpaqueSyntaxAttribute):
    name = "fgraph.rounding"


@lru_cache(maxsize=4096)
def int_array(values: Ints) -> DenseArrayBase[Any]:
    return DenseArrayBase.from_list(i64, values)


def float_array(values: Sequence[float]) -> DenseArrayBase[Any]:
    return DenseArrayBase.from_list(builtin.f64, [float(value) for value in values])


def float_attr(value: float) -> FloatAttr[Any]:
    return FloatAttr(float(value), builtin.f64)


@lru_cache(maxsize=4096)
def tensor_type(element_type: Attribute, shape: Ints) -> TensorType[Any]:
    return TensorType(element_type, shape)


def tensor_of(value: SSAValue) -> TensorType[Any]:
    """The type of a value that the caller knows to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def shape_of(value: SSAValue) -> Ints:
    """The shape of a tensor; raises VerifyException where it is not static."""
    if not isinstance(value.type, TensorType):
        raise VerifyException(f"expected a tensor, found {value.type}")
    shape = value.type.get_shape()
    if any(extent < 0 for extent in shape):
        raise VerifyException(f"expected a static shape, found {value.type}")
    return shape


def parse_float(parser: AttrParser) -> float:
    negative = parser.parse_optional_punctuation("-") is not None
    infinite = parser.parse_optional_keyword("inf") is not None
    value = math.inf if infinite else float(parser.parse_number(allow_boolean=False))
    return -value if negative else value


def float_text(value: float) -> str:
    """The shortest text that reads back as the same number: `1.0e-05`, `-inf`."""
    mantissa, exponent, power = repr(float(value)).partition("e")
    return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else repr(float(value))


@irdl_custom_directive
class Number(CustomDirective):
    """An f64 attribute in an assembly format; xDSL's own form cannot read infinities back."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.value.set(state, float_attr(parse_float(parser)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        value = self.value.get(op)
        assert isinstance(value, FloatAttr)
        state.print_whitespace(printer)
        printer.print_string(float_text(value.value.data))
