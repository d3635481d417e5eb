"""Attributes and types of `fisa`: each wraps one small value of `program.py`, which is its `.data`.

| text | wraps |
|---|---|
| `!fisa.buffer<sram>` | a memory |
| `#fisa.affine<16 + 4*i0 - 8*i2 + 512*core>` | `Affine` |
| `#fisa.view<f32, 64*i0, [0, 3136, 56, 4]>` | `View` |
| `#fisa.view<f32, 0, [0, 3136, 56, 4], wrap 2 + 24*i0 mod 10>` | ... with `Wrap`: dimension, phase, size |
| `#fisa.span<-1 + 8*i0 : 10 in 56 to 8*i1>` | `Span`: start : extent in bound to limit |
| `#fisa.box<0 : 1 in 1, 0 : 64 in 64, ...>` | `Box`: four spans |
| `#fisa.waits<own 3 at 1 + 1*i0, cores 2 at 4>` | tuple of `Wait`: scope slot at value |
| `#fisa.act<clip, 0.0, 6.0>` | `Act` |
| `#fisa.scales<0.5 -128, 0.25 0>` | tuple of `Scale`: scale, zero point |
| `#fisa.real<0.5>`, `#fisa.reals<0.5, 2.0>` | float (may be infinite), pair of floats |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from xdsl.ir import Attribute, Data, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa import program as p

INDEX_NAMES = tuple(f"i{level}" for level in range(p.MAX_LOOPS))
Word = TypeVar("Word", bound=str)


@irdl_attr_definition
class BufferType(Data[p.Memory], TypeAttribute):
    """Bytes in one memory."""

    name = "fisa.buffer"

    @property
    def memory(self) -> p.Memory:
        return self.data

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> p.Memory:
        with parser.in_angle_brackets():
            return _one_of(parser, p.MEMORIES)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")

    def verify(self) -> None:
        if self.data not in p.MEMORIES:
            raise VerifyException(f"unknown memory '{self.data}', expected one of {', '.join(p.MEMORIES)}")


DRAM, SRAM, NRAM, WRAM = (BufferType(memory) for memory in p.MEMORIES)
BUFFER_TYPES: dict[p.Memory, BufferType] = {type_.data: type_ for type_ in (DRAM, SRAM, NRAM, WRAM)}


@irdl_attr_definition
class AffineAttr(Data[p.Affine]):
    name = "fisa.affine"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> p.Affine:
        with parser.in_angle_brackets():
            return parse_affine(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")

    def verify(self) -> None:
        check_affine(self.data)


@irdl_attr_definition
class ViewAttr(Data[p.View]):
    name = "fisa.view"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> p.View:
        with parser.in_angle_brackets():
            element = _one_of(parser, p.ELEMENTS)
            parser.parse_punctuation(",")
            offset = parse_affine(parser)
            parser.parse_punctuation(",")
            strides = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            wrap = _wrap(parser) if parser.parse_optional_punctuation(",") is not None else None
            return p.View(element, offset, _four(parser, strides), wrap=wrap)

    def print_parameter(self, printer: Printer) -> None:
        view = self.data
        strides = ", ".join(map(str, view.strides))
        wrap = "" if view.wrap is None else f", wrap {view.wrap}"
        printer.print_string(f"<{view.element}, {view.offset}, [{strides}]{wrap}>")

    def verify(self) -> None:
        view = self.data
        if view.element not in p.ELEMENTS:
            raise VerifyException(f"unknown element '{view.element}', expected one of {', '.join(p.ELEMENTS)}")
        if view.memory is not None or view.ring is not None:
            raise VerifyException("a view in the IR is relative to its buffer: it has no memory and no ring")
        if len(view.strides) != p.DIMENSIONS:
            raise VerifyException(f"a view has {p.DIMENSIONS} strides, found {len(view.strides)}")
        check_affine(view.offset)
        if view.wrap is not None:
            check_wrap(view.wrap)


@irdl_attr_definition
class SpanAttr(Data[p.Span]):
    name = "fisa.span"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> p.Span:
        with parser.in_angle_brackets():
            return parse_span(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")

    def verify(self) -> None:
        check_span(self.data)


@irdl_attr_definition
class BoxAttr(Data[p.Box]):
    name = "fisa.box"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> p.Box:
        spans = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: parse_span(parser))
        if len(spans) != p.DIMENSIONS:
            parser.raise_error(f"expected {p.DIMENSIONS} spans, found {len(spans)}")
        return p.Box.of(*spans)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")

    def verify(self) -> None:
        for field in (self.data.start, self.data.extent, self.data.bound, self.data.limit):
            if len(field) != p.DIMENSIONS:
                raise VerifyException(f"a box has {p.DIMENSIONS} dimensions, found {len(field)}")
        for span in self.data.spans:
            check_span(span)


@irdl_attr_definition
class WaitsAttr(Data[tuple[p.Wait, ...]]):
    name = "fisa.waits"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[p.Wait, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _wait(parser)))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<" + ", ".join(str(wait) for wait in self.data) + ">")

    def verify(self) -> None:
        for wait in self.data:
            if wait.scope not in p.SCOPES:
                raise VerifyException(f"unknown scope '{wait.scope}', expected one of {', '.join(p.SCOPES)}")
            if wait.slot < 0:
                raise VerifyException(f"a slot is not negative, found {wait.slot}")
            check_affine(wait.value)


@irdl_attr_definition
class ActAttr(Data[p.Act]):
    name = "fisa.act"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> p.Act:
        with parser.in_angle_brackets():
            kind = _one_of(parser, p.UNARY_KINDS)
            values: list[float] = []
            while len(values) < 2 and parser.parse_optional_punctuation(",") is not None:
                values.append(parse_real(parser))
            return p.Act(kind, *values)

    def print_parameter(self, printer: Printer) -> None:
        act = self.data
        values = f", {real_text(act.alpha)}, {real_text(act.beta)}" if act.alpha or act.beta else ""
        printer.print_string(f"<{act.kind}{values}>")

    def verify(self) -> None:
        if self.data.kind not in p.UNARY_KINDS:
            raise VerifyException(f"unknown activation '{self.data.kind}'")


@irdl_attr_definition
class ScalesAttr(Data[tuple[p.Scale, ...]]):
    """Of each operand, then of the result."""

    name = "fisa.scales"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[p.Scale, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _scale(parser)))

    def print_parameter(self, printer: Printer) -> None:
        texts = (f"{real_text(each.scale)} {each.zero}" for each in self.data)
        printer.print_string("<" + ", ".join(texts) + ">")

    def verify(self) -> None:
        for each in self.data:
            if not (math.isfinite(each.scale) and each.scale > 0):
                raise VerifyException(f"a scale is a positive finite number, found {each.scale}")


@irdl_attr_definition
class RealAttr(Data[float]):
    """A number of type f64, infinities included."""

    name = "fisa.real"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> float:
        with parser.in_angle_brackets():
            return parse_real(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{real_text(self.data)}>")


@irdl_attr_definition
class RealsAttr(Data[tuple[float, ...]]):
    name = "fisa.reals"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[float, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: parse_real(parser)))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<" + ", ".join(map(real_text, self.data)) + ">")


ALL: list[type[Attribute]] = [
    BufferType, AffineAttr, ViewAttr, SpanAttr, BoxAttr, WaitsAttr, ActAttr, ScalesAttr, RealAttr, RealsAttr
]  # fmt: skip

# ------------------------------------------------------------------------------------------ text


def real_text(value: float) -> str:
    """The shortest text that MLIR's lexer reads back as the same number."""
    text = repr(float(value))
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}" if e and "." not in mantissa else text


def parse_real(parser: AttrParser) -> float:
    sign = -1.0 if parser.parse_optional_punctuation("-") is not None else 1.0
    for word in ("inf", "nan"):
        if parser.parse_optional_keyword(word) is not None:
            return math.copysign(float(word), sign)
    return math.copysign(float(parser.parse_number()), sign)


def parse_affine(parser: AttrParser) -> p.Affine:
    """Terms `number`, `number*name` or `name`, with + or - between them."""
    return parse_terms(parser, -1 if parser.parse_optional_punctuation("-") is not None else 1)


def parse_terms(parser: AttrParser, sign: int) -> p.Affine:
    """An affine function of which the sign of the first term is known."""
    total = _term(parser, sign)
    while True:
        if parser.parse_optional_punctuation("+") is not None:
            total += _term(parser, 1)
        elif parser.parse_optional_punctuation("-") is not None:
            total += _term(parser, -1)
        else:
            return total


def _term(parser: AttrParser, sign: int) -> p.Affine:
    number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
    if number is not None and parser.parse_optional_punctuation("*") is None:
        return p.Affine(sign * number)
    factor = sign if number is None else sign * number
    name = parser.parse_identifier(": expected a number, i0 to i5, core or cluster")
    if name == "core":
        return p.Affine(core=factor)
    if name == "cluster":
        return p.Affine(cluster=factor)
    if name not in INDEX_NAMES:
        parser.raise_error(f"unknown index '{name}', expected i0 to i{p.MAX_LOOPS - 1}, core or cluster")
    return p.Affine.index(INDEX_NAMES.index(name), factor)


def parse_span(parser: AttrParser) -> p.Span:
    start = parse_affine(parser)
    parser.parse_punctuation(":")
    extent = parser.parse_integer(allow_boolean=False)
    parser.parse_keyword("in")
    bound = parser.parse_integer(allow_boolean=False)
    limit = parse_affine(parser) if parser.parse_optional_keyword("to") is not None else None
    return p.Span(start, extent, bound, limit)


def _wrap(parser: AttrParser) -> p.Wrap:
    parser.parse_keyword("wrap")
    dim = parser.parse_integer(allow_boolean=False, allow_negative=False)
    phase = p.Affine()
    if parser.parse_optional_keyword("mod") is None:
        minus = parser.parse_optional_punctuation("-") is not None
        if not minus:
            parser.parse_punctuation("+")
        phase = parse_terms(parser, -1 if minus else 1)
        parser.parse_keyword("mod")
    return p.Wrap(dim, parser.parse_integer(allow_boolean=False), phase)


def _wait(parser: AttrParser) -> p.Wait:
    scope = _one_of(parser, p.SCOPES)
    slot = parser.parse_integer(allow_boolean=False)
    parser.parse_keyword("at")
    return p.Wait(slot, scope, parse_affine(parser))


def _scale(parser: AttrParser) -> p.Scale:
    scale = parse_real(parser)
    return p.Scale(scale, parser.parse_integer(allow_boolean=False))


def _one_of(parser: AttrParser, words: Sequence[Word]) -> Word:
    word = parser.parse_identifier()
    for known in words:
        if word == known:
            return known
    return parser.raise_error(f"unknown '{word}', expected one of {', '.join(words)}")


def _four(parser: AttrParser, values: Sequence[int]) -> p.Four:
    if len(values) != p.DIMENSIONS:
        parser.raise_error(f"expected {p.DIMENSIONS} integers, found {len(values)}")
    return tuple(values)


# ------------------------------------------------------------------------------------------ checks


def check_affine(affine: p.Affine) -> None:
    if len(affine.loops) > p.MAX_LOOPS:
        raise VerifyException(f"loops nest at most {p.MAX_LOOPS} deep, found {len(affine.loops)} coefficients")


def check_wrap(wrap: p.Wrap) -> None:
    if not 0 <= wrap.dim < p.DIMENSIONS or wrap.size < 1:
        raise VerifyException(
            f"a view wraps along a dimension 0 to {p.DIMENSIONS - 1}, around at least one position, found {wrap}"
        )
    check_affine(wrap.phase)


def check_span(span: p.Span) -> None:
    if span.extent < 0 or span.bound < 0:
        raise VerifyException(f"extent and bound are not negative, found {span}")
    check_affine(span.start)
    if span.limit is not None:
        check_affine(span.limit)
