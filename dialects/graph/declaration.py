"""A layer of the graph level is declared once: each line of its class is an operand or a property, an argument of the
constructor, and what the operation gives back as a plain Python value.

    @operation
    class TransposeOp(LayerOp):
        name = "fgraph.transpose"
        x: SSAValue = operand()
        perm: Ints = prop(INTS)

        def inferred(self) -> Ints:
            return shapes.transpose_shape(shape_of(self.x), self.perm)
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from xdsl import irdl
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    LocationAttr,
    NoneAttr,
    TensorType,
    UnitAttr,
    bf16,
    f16,
    f32,
    f64,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Block, OpResult, OpTraits, Region, SSAValue, SSAValues
from xdsl.irdl import IRDLOperation, IRDLOption, ParsePropInAttrDict, eq, irdl_op_definition
from xdsl.rewriter import Rewriter
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph.attributes import (
    ActAttr,
    Ints,
    float_array,
    float_attr,
    int_array,
    shape_of,
    tensor_of,
    tensor_type,
)
from frustum.dialects.graph.scales import ScaleAttr

Layer = TypeVar("Layer", bound="LayerOp")
NEEDED: Any = Parameter.empty


@dataclass(frozen=True)
class Kind:
    """How a property holds a plain value: the constraint of its attribute, the way to it and back, and what the value
    is where there is no attribute."""

    constraint: Any
    made: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda found: found
    absent: Any = None

    def attribute_of(self, value: Any) -> Attribute | None:
        return None if value is self.absent else self.made(value)

    def value_of(self, attribute: Attribute | None) -> Any:
        return self.absent if attribute is None else self.read(attribute)


def word(attribute: type[EnumAttribute[Any]]) -> Kind:
    """A word of an enumeration, which may be given as text."""
    return Kind(attribute, lambda value: attribute(attribute.enum_type(value)), lambda found: found.data)


INTS = Kind(DenseArrayBase.constr(i64), int_array, lambda found: tuple(found.get_values()))
FLOATS = Kind(DenseArrayBase.constr(f64), float_array, INTS.read)
INT = Kind(IntegerAttr.constr(type=eq(i64)), lambda value: IntegerAttr(value, i64), lambda found: found.value.data)
FLOAT = Kind(FloatAttr.constr(eq(f64)), float_attr, INT.read)
FLAG = Kind(UnitAttr, lambda holds: UnitAttr() if holds else None, lambda found: True, absent=False)
ACT = Kind(ActAttr)
FLOAT_TYPES = (f32, f16, bf16)
"""Of the elements that the machine computes with as numbers."""
SCALES = Kind(ArrayAttr[ScaleAttr], lambda scales: ArrayAttr(scales) if scales else None, lambda found: found.data)


@dataclass(frozen=True)
class Field:
    """One line of a class: what xDSL is told, and the argument of the constructor."""

    definition: Any
    default: Any = NEEDED
    kw_only: bool = False
    kind: Kind | None = None  # of a property
    ir_name: str | None = None
    type_of: Callable[[Any, Any], Attribute] | None = None  # of an argument that says the result's type

    def parameter(self, name: str) -> Parameter:
        kind = Parameter.KEYWORD_ONLY if self.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        return Parameter(name, kind, default=self.default)


def operand(constraint: Any = TensorType, *, default: Any = NEEDED, kw_only: bool = False) -> Any:
    """One value; with the default None it may be absent."""
    return Field((irdl.operand_def if default is NEEDED else irdl.opt_operand_def)(constraint), default, kw_only)


def operands() -> Any:
    """Any number of values."""
    return Field(irdl.var_operand_def(TensorType))


def prop(kind: Kind, *, default: Any = NEEDED, kw_only: bool = False, ir_name: str | None = None) -> Any:
    """A property; a flag, and one with the default None, may be absent."""
    define = irdl.opt_prop_def if default is None or kind is FLAG else irdl.prop_def
    return Field(define(kind.constraint, prop_name=ir_name), default, kw_only, kind, ir_name)


def given(type_of: Callable[[Any, Any], Attribute], value_of: Callable[[Any], Any], *, default: Any = NEEDED) -> Any:
    """An argument that says the result's type, and is read from there."""
    return Field(property(value_of), default, type_of=type_of)


def element_of_result(*, default: Attribute | None, kw_only: bool) -> Any:
    """The type of the result's elements; None: the widest of the operands'."""
    return Field(
        property(lambda op: tensor_of(op.result).element_type), default, kw_only,
        type_of=lambda op, element: tensor_type(element or widest(*op.operands), op.inferred()),
    )  # fmt: skip


def widest(*values: SSAValue) -> Attribute:
    """f32 where one of several types of floats is, and where f16 and bf16 meet; the type of all else."""
    first, *others = (tensor_of(value).element_type for value in values)
    same = all(other == first for other in others)
    return first if same or first not in FLOAT_TYPES else f32


def result_shape() -> Any:
    """The shape of the result, whose elements are those of the first operand."""
    return given(lambda op, shape: like(op.operands[0], shape), lambda op: shape_of(op.result))


def _of_xdsl(*, init: bool) -> Any: ...


@dataclass_transform(
    eq_default=False, field_specifiers=(operand, operands, prop, given, element_of_result, result_shape, _of_xdsl)
)
class _Declared(IRDLOperation):
    """Whose lines are, to type checkers, what a dataclass's are."""


class LayerOp(_Declared):
    """An operation with one result, whose shape follows from operands and properties."""

    if TYPE_CHECKING:  # the fields of xDSL's own class are no arguments
        _operands: Any = _of_xdsl(init=False)
        _operand_uses: Any = _of_xdsl(init=False)
        results: SSAValues[OpResult] = _of_xdsl(init=False)
        _successors: Any = _of_xdsl(init=False)
        _successor_uses: Any = _of_xdsl(init=False)
        properties: dict[str, Attribute] = _of_xdsl(init=False)
        attributes: dict[str, Attribute] = _of_xdsl(init=False)
        location: LocationAttr = _of_xdsl(init=False)
        regions: tuple[Region, ...] = _of_xdsl(init=False)
        parent: Block | None = _of_xdsl(init=False)
        _next_op: Any = _of_xdsl(init=False)
        _prev_op: Any = _of_xdsl(init=False)

    # `typing.ClassVar`, here and wherever an operation has one of a small name: xDSL refuses `ClassVar` of these.
    __fields__: typing.ClassVar[MappingProxyType[str, Field]] = MappingProxyType({})
    __signature__: typing.ClassVar[Signature] = Signature()
    result: typing.ClassVar[OpResult[TensorType]] = irdl.result_def(TensorType)
    traits: typing.ClassVar[OpTraits] = irdl.traits_def(Pure())
    irdl_options: typing.ClassVar[tuple[IRDLOption, ...]] = (ParsePropInAttrDict(),)

    def __init_subclass__(cls) -> None:
        own = {name: found for name, found in vars(cls).items() if isinstance(found, Field)}
        cls.__fields__ = MappingProxyType({**own, **cls.__fields__})
        for name, field in own.items():
            setattr(cls, name, field.definition)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        bound = self.__signature__.bind(*arguments, **named)
        bound.apply_defaults()
        values, fields = bound.arguments, self.__fields__
        super().__init__(
            operands=[values[name] for name, _ in self.get_irdl_definition().operands],
            properties={f.ir_name or n: f.kind.attribute_of(values[n]) for n, f in fields.items() if f.kind},
            result_types=[NoneAttr()],
        )
        try:
            said = [f.type_of(self, values[n]) for n, f in fields.items() if f.type_of]
            if said:
                Rewriter.replace_value_with_new_type(self.result, said[0])
            shape = self.inferred()
            if not said:
                Rewriter.replace_value_with_new_type(self.result, self.result_type(shape))
        except VerifyException:
            self.drop_all_references()
            raise

    def inferred(self) -> Ints:
        """The shape of the result.  Raises VerifyException where operands and properties do not fit."""
        return shape_of(self.operands[0])

    def result_type(self, shape: Ints) -> TensorType[Any]:
        return like(self.operands[0], shape)

    def verify_(self) -> None:
        check_result(self, self.inferred())
        check_elements(*self.operands, self.result)


class MixedOp(LayerOp):
    """A layer of floats of any types, whose result is of a type of its own: what is computed is rounded to it once."""

    def verify_(self) -> None:
        check_result(self, self.inferred())
        values = (*self.operands, self.result)
        if any(tensor_of(value).element_type not in FLOAT_TYPES for value in values):
            check_elements(*values)


def operation(cls: type[Layer]) -> type[Layer]:
    """The class as an operation of xDSL, whose properties read as plain values."""
    made = irdl_op_definition(cls)
    for name, field in cls.__fields__.items():
        if field.kind:
            setattr(made, name, _plain(field.kind, field.ir_name or name))
    parameters = [field.parameter(name) for name, field in cls.__fields__.items()]
    made.__signature__ = Signature(sorted(parameters, key=lambda parameter: parameter.kind))
    return made


def declared_in(module: ModuleType) -> list[type[LayerOp]]:
    """The operations of a module, in the order in which they stand there."""
    found = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, LayerOp))
    return [each for each in found if "name" in vars(each)]


def _plain(kind: Kind, name: str) -> property:
    def read(op: IRDLOperation) -> Any:
        return kind.value_of(op.properties.get(name))

    def write(op: IRDLOperation, value: Any) -> None:
        attribute = kind.attribute_of(value)
        if attribute is not None:
            op.properties[name] = attribute
        else:
            op.properties.pop(name, None)

    return property(read, write)


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


def like(x: SSAValue, shape: Ints) -> TensorType[Any]:
    """A tensor of x's elements."""
    return tensor_type(tensor_of(x).element_type, shape)
