"""What all instructions of `fisa` share: the operation made of a declaration, the fields of scheduling, text, checks.

`@operation(p.Pool)` gives a class its name and a property for each field that `program.py` declares and the class does
not.  An operation is built from the plain value (`emit`) or from the names of its fields, and gives it back (`plain`).
By hand remain operands, the text format, and `check`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, Data, Operation, SSAValue
from xdsl.irdl import IRDLOperation, eq, irdl_op_definition, opt_prop_def, prop_def
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa import program as p
from frustum.dialects.isa.attributes import (
    ActAttr,
    AffineAttr,
    BoxAttr,
    RealAttr,
    RealsAttr,
    ScalesAttr,
    SpanAttr,
    ViewAttr,
    WaitsAttr,
    parse_real,
    real_text,
)
from frustum.dialects.isa.format import FIELDS_OF_TYPE, DeclaredField

INTEGER = IntegerAttr.constr(eq(i64))
INTEGERS = DenseArrayBase.constr(eq(i64))
COMMON = " (`stage` $stage^)? (`waits` $waits^)? (`signal` $signal^)? (`layer` $layer^)? (`unit` $unit^)? attr-dict"
"""The end of every instruction's assembly format."""
SEGMENTS = "operandSegmentSizes"

Value: TypeAlias = Any
"""A plain value of `program.py`: int, float, bool, str, a tuple of numbers, a small dataclass or None."""
Buffer: TypeAlias = SSAValue | Operation | None


@lru_cache(maxsize=4096)
def integer(value: int) -> IntegerAttr[Any]:
    return IntegerAttr(value, i64)


@lru_cache(maxsize=4096)
def integers(values: tuple[int, ...]) -> DenseArrayBase[Any]:
    return DenseArrayBase.from_list(i64, values)


@lru_cache(maxsize=64)
def word(value: str) -> StringAttr:
    return StringAttr(value)


@lru_cache(maxsize=64)
def segments(present: tuple[bool, ...]) -> DenseArrayBase[Any]:
    """Operand segments of single and optional operands."""
    return DenseArrayBase.from_list(i32, [int(p) for p in present])


UNIT = UnitAttr()
CARRIERS: dict[Any, tuple[Any, Callable[[Any], Attribute]]] = {
    int: (INTEGER, integer),
    float: (RealAttr, lambda value: RealAttr(float(value))),
    str: (StringAttr, word),
    bool: (UnitAttr, lambda _: UNIT),
    p.View: (ViewAttr, ViewAttr),
    p.Box: (BoxAttr, BoxAttr),
    p.Span: (SpanAttr, SpanAttr),
    p.Affine: (AffineAttr, AffineAttr),
    p.Act: (ActAttr, ActAttr),
    p.Scales: (ScalesAttr, ScalesAttr),
    tuple[float, float]: (RealsAttr, lambda values: RealsAttr(tuple(map(float, values)))),
}
"""By the type of a field: what a property that carries it must be, how it is made.  Other tuples are of integers."""


def attribute_of(value: Value) -> Attribute:
    """The attribute that carries a plain value other than a tuple (never None or False: those are absence)."""
    return CARRIERS[type(value)][1](value)


def value_of(attribute: Attribute) -> Value:
    """The plain value an attribute carries."""
    if isinstance(attribute, IntegerAttr):
        return attribute.value.data
    if isinstance(attribute, DenseArrayBase):
        return tuple(attribute.get_values())
    if isinstance(attribute, UnitAttr):
        return True
    if isinstance(attribute, ArrayAttr):
        return tuple(value_of(a) for a in attribute.data)
    assert isinstance(attribute, Data)
    return attribute.data


# ------------------------------------------------------------------------------------------ text


@irdl_custom_directive
class Word(CustomDirective):
    """A string property written as a bare word."""

    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.attribute.set(state, word(parser.parse_identifier()))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        attribute = self.attribute.get(op)
        assert isinstance(attribute, StringAttr)
        printer.print_string(attribute.data)


@irdl_custom_directive
class Real(CustomDirective):
    """A `RealAttr` written as a bare number."""

    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.attribute.set(state, RealAttr(parse_real(parser)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        attribute = self.attribute.get(op)
        assert isinstance(attribute, RealAttr)
        printer.print_string(real_text(attribute.data))


# ------------------------------------------------------------------------------------------ the operation


class Instruction(IRDLOperation, ABC):
    """One instruction.  It moves, computes or orders something, so it is never dead: it declares no purity."""

    PLAIN: ClassVar[Any]
    """Its declaration in `program.py`."""
    VIEWS: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(name of an operand, name of its view)."""
    CARRIED: ClassVar[tuple[tuple[str, Callable[[Any], Attribute], Value], ...]] = ()
    """Of each field: name, how its property is made, the value that is absence (None: only None is)."""
    WRAPS: ClassVar[bool] = False
    """Whether its views may wrap."""

    stage: IntegerAttr = prop_def(INTEGER, default_value=integer(0))
    waits: WaitsAttr | None = opt_prop_def(WaitsAttr)
    signal: IntegerAttr | None = opt_prop_def(INTEGER)
    layer: IntegerAttr = prop_def(INTEGER, default_value=integer(0))
    unit: IntegerAttr = prop_def(INTEGER, default_value=integer(0))

    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (Word, Real)

    def __init__(self, *buffers: Buffer, **fields: Value) -> None:
        """`buffers` in the order of the operands, None for one that is absent; `fields` as they are declared."""
        operands, properties = self._parts(self.PLAIN(**fields), buffers)
        Operation.__init__(self, operands=operands, properties=properties)

    if TYPE_CHECKING:  # the properties that `operation` makes

        def __getattr__(self, name: str) -> Any: ...

    def plain(self, **changed: Value) -> p.Instruction:
        """The plain instruction; its views are relative to their buffers unless they are given."""
        values = {name: value_of(each) for name, each in self.properties.items() if name != SEGMENTS}
        instruction: p.Instruction = self.PLAIN(**{**values, **changed})
        return instruction

    def engine_of(self) -> p.Engine | None:
        """The engine that runs it; None for a barrier, which is every engine's."""
        engine: p.Engine | None = self.engine.data if "engine" in self.properties else self.PLAIN.engine
        return engine

    def set_waits(self, waits: tuple[p.Wait, ...]) -> None:
        """Replace the waits."""
        if waits:
            self.properties["waits"] = WaitsAttr(waits)
        else:
            self.properties.pop("waits", None)

    def set_signal(self, slot: int | None) -> None:
        """Replace the signal."""
        if slot is not None:
            self.properties["signal"] = integer(slot)
        else:
            self.properties.pop("signal", None)

    @classmethod
    def _parts(
        cls, plain: p.Common, buffers: Sequence[Buffer]
    ) -> tuple[list[SSAValue], dict[str, Attribute]]:
        """Operands and properties of a plain instruction on these buffers."""
        properties: dict[str, Attribute] = {
            "stage": integer(plain.stage), "layer": integer(plain.layer), "unit": integer(plain.unit)
        }  # fmt: skip
        if plain.waits:
            properties["waits"] = WaitsAttr(plain.waits)
        if plain.signal is not None:
            properties["signal"] = integer(plain.signal)
        for name, carried, absent in cls.CARRIED:
            value = getattr(plain, name)
            if value is not None and value != absent:
                properties[name] = carried(value)
        if cls.get_irdl_definition().options:
            present = [buffer is not None for buffer in buffers]
            absent_last = [False] * (len(cls.VIEWS) - len(present))
            properties[SEGMENTS] = segments((*present, *absent_last))
        return [SSAValue.get(buffer) for buffer in buffers if buffer is not None], properties

    def verify_(self) -> None:
        for name in ("stage", "signal", "layer", "unit"):
            attribute = self.properties.get(name)
            if attribute is not None and value_of(attribute) < 0:
                raise VerifyException(f"'{self.name}': {name} is not negative, found {value_of(attribute)}")
        for operand, view in self.VIEWS:
            if (getattr(self, operand) is None) != (getattr(self, view) is None):
                raise VerifyException(f"'{self.name}': {operand} and {view} come together")
            if (
                not self.WRAPS
                and getattr(self, view) is not None
                and getattr(self, view).data.wrap is not None
            ):
                raise VerifyException(f"'{self.name}': {view} wraps, and only those of copies do")
        for field in FIELDS_OF_TYPE[self.PLAIN]:
            if field.words and field.name in self.properties:
                check_word(self.name, field.name, getattr(self, field.name), field.words)
        engine = self.engine_of()
        if self.waits is not None and engine is not None:
            for wait in self.waits.data:
                check_scope(self.name, engine, wait)
        self.check()

    def check(self) -> None:
        """What holds for this operation alone."""


OPERATIONS: dict[type[p.Common], type[Instruction]] = {}
"""The operation of each instruction, in the order of their definitions."""
SomeInstruction = TypeVar("SomeInstruction", bound=Instruction)


def operation(plain: type[p.Common]) -> Callable[[type[SomeInstruction]], type[SomeInstruction]]:
    """Make a class the operation of `plain`, a class of `program.py`: with its name and a property for each field that
    the class has not.

    A default is the property's own; one that says nothing (None, False, empty) is its absence, as is that of a field
    for which the class has an optional property.
    """

    def define(cls: type[SomeInstruction]) -> type[SomeInstruction]:
        cls.name = f"fisa.{plain.NAME}"
        declared = FIELDS_OF_TYPE[plain]
        for field in declared:
            if field.name not in vars(cls):
                setattr(cls, field.name, _property(field))
        irdl_op_definition(cls)
        definition = cls.get_irdl_definition()
        defaults = {field.name: field.default for field in declared if field.default is not MISSING}
        for name, kind in definition.properties.items():
            if getattr(kind, "default_value", None) is not None:
                defaults.pop(name, None)
        cls.PLAIN = plain
        cls.VIEWS = tuple((name, f"{name.rstrip('_')}_view") for name, _ in definition.operands)
        cls.CARRIED = tuple((field.name, _carrier(field)[1], defaults.get(field.name)) for field in declared)
        OPERATIONS[plain] = cls
        return cls

    return define


def _carrier(field: DeclaredField) -> tuple[Any, Callable[[Any], Attribute]]:
    return CARRIERS.get(field.type, (INTEGERS, integers))


def _property(field: DeclaredField) -> Any:
    constraint, carried = _carrier(field)
    if field.default is MISSING:
        return prop_def(constraint)
    if field.default is None or field.default is False or field.default == ():
        return opt_prop_def(constraint)
    return prop_def(constraint, default_value=carried(field.default))


def emit(plain: p.Instruction, *buffers: Buffer, **common: int) -> Instruction:
    """The operation of a plain instruction on these buffers, in the order of its operands (None: absent).

    `common`: `stage`, `layer` and `unit`, where they are not those of `plain`.
    """
    made = OPERATIONS[type(plain)]
    operands, properties = made._parts(plain, buffers)
    properties.update({name: integer(value) for name, value in common.items()})
    return made.create(operands=operands, properties=properties)


# ------------------------------------------------------------------------------------------ checks


def check_scope(name: str, engine: p.Engine, wait: p.Wait) -> None:
    """`cluster` is for core instructions: a cluster engine's own counters are its cluster's."""
    on_core = engine in p.CORE_ENGINES
    if wait.scope == "cluster" and not on_core:
        raise VerifyException(f"'{name}': engine {engine} is the cluster's: its own counters are scope own")


def check_word(name: str, field: str, attribute: StringAttr, allowed: Sequence[str]) -> None:
    if attribute.data not in allowed:
        raise VerifyException(
            f"'{name}': unknown {field} '{attribute.data}', expected one of {', '.join(allowed)}"
        )


def check_pair(op: Instruction, field: str, least: int) -> None:
    values = value_of(op.properties[field])
    if len(values) != 2 or min(values) < least:
        raise VerifyException(f"'{op.name}': {field} is [h, w], each at least {least}, found {list(values)}")


def check_at_least(op: Instruction, field: str, least: int) -> None:
    value = value_of(op.properties[field])
    if value < least:
        raise VerifyException(f"'{op.name}': {field} is at least {least}, found {value}")


def check_scales(op: Instruction, elements: Sequence[p.Element], *, needed: bool = True) -> None:
    """One scale for each operand and the result where any of them holds integers that stand for numbers."""
    has_integers = any(element in p.INTEGER_BITS for element in elements)
    if op.scales is None:
        if has_integers and needed:
            raise VerifyException(f"'{op.name}': operands of {', '.join(elements)} need scales")
        return
    scales: p.Scales = op.scales.data
    if not has_integers:
        raise VerifyException(f"'{op.name}': scales belong to integers, found {', '.join(elements)}")
    if len(scales) != len(elements):
        raise VerifyException(f"'{op.name}': {len(elements)} scales are needed, found {len(scales)}")
    for scale, element in zip(scales, elements, strict=True):
        check_zero(op.name, scale.zero, element)


def check_zero(name: str, zero: int, element: p.Element) -> None:
    """A zero point is a number of its type; floating-point operands have none."""
    half = 1 << p.INTEGER_BITS[element] - 1 if element in p.INTEGER_BITS else 0
    if zero and not -half <= zero < half:
        raise VerifyException(f"'{name}': {zero} is no zero point of {element}")
