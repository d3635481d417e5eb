"""What all instructions of `fisa` share: the fields of scheduling, views of operands, fast construction, text.

An operation is built from the plain values of `program.py`; `attribute_of` wraps them, `value_of` unwraps them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias, TypedDict

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, eq, opt_prop_def, prop_def
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
from frustum.dialects.isa.program import (
    CORE_ENGINES,
    Act,
    Affine,
    Box,
    Element,
    Engine,
    Scale,
    Scales,
    Span,
    View,
    Wait,
)

INTEGER = IntegerAttr.constr(eq(i64))
INTEGERS = DenseArrayBase.constr(eq(i64))
COMMON = (
    " (`stage` $stage^)? (`waits` $waits^)? (`signal` $signal^)? (`layer` $layer^)? (`unit` $unit^)? attr-dict"
)
"""The end of every instruction's assembly format."""

Value: TypeAlias = Any
"""A plain value of `program.py`: int, float, bool, str, a tuple of numbers, a small dataclass or None."""


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
NO_WAITS = WaitsAttr(())


def _of_tuple(values: tuple[Any, ...]) -> Attribute:
    if values and isinstance(values[0], float):
        return RealsAttr(values)
    if values and isinstance(values[0], Scale):
        return ScalesAttr(values)
    if not values or isinstance(values[0], Wait):
        return WaitsAttr(values) if values else NO_WAITS
    return integers(values)


_WRAP: dict[type, Any] = {
    int: integer,
    float: RealAttr,
    str: word,
    bool: lambda _: UNIT,
    tuple: _of_tuple,
    View: ViewAttr,
    Box: BoxAttr,
    Span: SpanAttr,
    Affine: AffineAttr,
    Act: ActAttr,
}


def attribute_of(value: Value) -> Attribute:
    """The attribute that carries a plain value (never None or False: those are absence)."""
    attribute: Attribute = _WRAP[type(value)](value)
    return attribute


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
    return attribute.data  # type: ignore[attr-defined]  # all others are Data


class CommonFields(TypedDict, total=False):
    """Keyword arguments every instruction takes."""

    stage: int
    waits: tuple[Wait, ...]
    signal: int | None
    layer: int
    unit: int


class Instruction(IRDLOperation, ABC):
    """One instruction.  It moves, computes or orders something, so it is never dead: it declares no purity."""

    ENGINE: ClassVar[Engine | None] = None
    VIEWS: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(name of an operand, name of its view)."""
    WRAPS: ClassVar[bool] = False
    """Whether its views may wrap."""

    stage = prop_def(INTEGER, default_value=integer(0))
    waits = opt_prop_def(WaitsAttr)
    signal = opt_prop_def(INTEGER)
    layer = prop_def(INTEGER, default_value=integer(0))
    unit = prop_def(INTEGER, default_value=integer(0))

    def engine_of(self) -> Engine | None:
        """The engine that runs it; None for a barrier, which is every engine's."""
        return self.ENGINE

    def set_waits(self, waits: tuple[Wait, ...]) -> None:
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

    def set_common(self, **common: Any) -> None:
        """Replace `stage`, `layer` or `unit`."""
        self.properties.update((name, integer(value)) for name, value in common.items())

    def fill_in(
        self,
        operands: Sequence[SSAValue | Operation | None],
        common: CommonFields,
        fields: dict[str, Value],
    ) -> None:
        """Fast initialisation: values of None, False and () stay absent."""
        properties: dict[str, Attribute] = {"stage": integer(0), "layer": integer(0), "unit": integer(0)}
        for source in (fields, common):
            for name, value in source.items():
                if value is not None and value is not False and value != ():
                    properties[name] = attribute_of(value)
        present = [SSAValue.get(o) for o in operands if o is not None]
        if len(present) < len(operands) or self._has_segments():
            properties["operandSegmentSizes"] = segments(tuple(o is not None for o in operands))
        Operation.__init__(self, operands=present, properties=properties)

    def _has_segments(self) -> bool:
        return bool(self.get_irdl_definition().options)

    def verify_(self) -> None:
        for name in ("stage", "signal", "layer", "unit"):
            attribute = self.properties.get(name)
            if attribute is not None and value_of(attribute) < 0:
                raise VerifyException(f"'{self.name}': {name} is not negative, found {value_of(attribute)}")
        for operand, view in self.VIEWS:
            if (getattr(self, operand) is None) != (getattr(self, view) is None):
                raise VerifyException(f"'{self.name}': {operand} and {view} come together")
            if not self.WRAPS and getattr(self, view) is not None and getattr(self, view).data.wrap is not None:
                raise VerifyException(f"'{self.name}': {view} wraps, and only those of copies do")
        engine = self.engine_of()
        if self.waits is not None and engine is not None:
            for wait in self.waits.data:
                check_scope(self.name, engine, wait)
        self.check()

    def check(self) -> None:
        """What holds for this operation alone."""


def check_scope(name: str, engine: Engine, wait: Wait) -> None:
    """`cluster` is for core instructions: a cluster engine's own counters are its cluster's."""
    on_core = engine in CORE_ENGINES
    if wait.scope == "cluster" and not on_core:
        raise VerifyException(f"'{name}': engine {engine} is the cluster's: its own counters are scope own")


def check_word(name: str, field: str, attribute: StringAttr, allowed: Sequence[str]) -> None:
    if attribute.data not in allowed:
        raise VerifyException(
            f"'{name}': unknown {field} '{attribute.data}', expected one of {', '.join(allowed)}"
        )


def check_pair(name: str, field: str, attribute: DenseArrayBase[Any], least: int) -> None:
    values = attribute.get_values()
    if len(values) != 2 or min(values) < least:
        raise VerifyException(f"'{name}': {field} is [h, w], each at least {least}, found {list(values)}")


INTEGER_BITS: dict[Element, int] = {"i8": 8, "i16": 16, "i32": 32}


def check_scales(name: str, scales: Scales | None, elements: Sequence[Element], *, needed: bool) -> None:
    """One scale for each operand and the result where any of them holds integers that stand for numbers."""
    has_integers = any(element in INTEGER_BITS for element in elements)
    if scales is None:
        if has_integers and needed:
            raise VerifyException(f"'{name}': operands of {', '.join(elements)} need scales")
        return
    if not has_integers:
        raise VerifyException(f"'{name}': scales belong to integers, found {', '.join(elements)}")
    if len(scales) != len(elements):
        raise VerifyException(f"'{name}': {len(elements)} scales are needed, found {len(scales)}")
    for scale, element in zip(scales, elements, strict=True):
        check_zero(name, scale.zero, element)


def check_zero(name: str, zero: int, element: Element) -> None:
    """A zero point is a number of its type; floating-point operands have none."""
    half = 1 << INTEGER_BITS[element] - 1 if element in INTEGER_BITS else 0
    if zero and not -half <= zero < half:
        raise VerifyException(f"'{name}': {zero} is no zero point of {element}")


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
