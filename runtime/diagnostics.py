"""Errors of MLIR text, shown where they are: the parser notes every place, an error finds it again.

    source = SourceText(file, text)
    with located_errors(source):
        module = source.parse(ctx)
        module.verify()
"""

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    LocationAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue
from xdsl.parser import Parser, ParserState, UnresolvedOperand
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.lexer import Input, Span

from frustum.dialects.diagnostic import did_you_mean, one_line, render
from frustum.dialects.errors import Error
from frustum.dialects.foreign import name_of
from frustum.dialects.lexer import Lexer

AttributeT = TypeVar("AttributeT", bound=Attribute)


class Reported(Error):
    """An error that is ready to print: its text is all the user needs."""


@dataclass
class SourceText:
    """One MLIR text and, once parsed, where in it each operation and each location stands."""

    file: str
    text: str
    places: dict[Operation | LocationAttr, Span] = field(default_factory=dict)
    has_locations: bool = False
    """Whether the text gives locations itself."""

    @classmethod
    def read(cls, file: str, data: bytes) -> Self:
        """The text in these bytes.  Raises `Reported` where they are not UTF-8."""
        source = cls(file, data.decode(errors="replace"))
        try:
            data.decode()
        except UnicodeDecodeError as error:
            before = data[: error.start].decode()
            place = Span(len(before), len(before) + 1, Input(source.text, file))
            raise Reported(source.error_at(place, "this is not UTF-8 text")) from error
        return source

    def parse(self, ctx: Context, implicit_module: bool = True) -> ModuleOp:
        """The module; every operation has a location (its own, or its place in the text)."""
        parser = LocParser(ctx, self)
        try:
            module = parser.parse_module(implicit_module)
            parser.check_definitions(module)
            return module
        except ParseError as error:
            raise parser.sharpened(error) from None
        except RecursionError:
            raise ParseError(parser.here, "regions are nested too deeply") from None
        except (DiagnosticException, ValueError, struct.error) as error:  # an attribute refuses its value
            raise ParseError(parser.here, str(error)) from error

    def error_at(self, span: Span, message: str) -> str:
        """The message, with file, line, column, source line and caret."""
        place = span.get_location()
        first_line = span.text.split("\n")[0]
        return render(self.file, self.text, place.line, place.col, message, max(len(first_line), 1))

    def error_in(self, op: Operation | None, message: str) -> str:
        """The message at the operation, or at the nearest one around it that came from this text."""
        around = op
        while around is not None and (span := self._place(around)) is None:
            around = around.parent_op() if hasattr(around, "parent") else None  # without, it is not complete
        if around is None:
            return render(self.file, self.text, 1, 1, message)
        assert span is not None
        return self.error_at(span, message)

    def place_of(self, op: Operation) -> str:
        """`FILE:LINE:COL` of an operation of this text; the file alone where it is not of it."""
        span = self._place(op)
        if span is None:
            return self.file
        place = span.get_location()
        return f"{self.file}:{place.line}:{place.col}"

    def _place(self, op: Operation) -> Span | None:
        return self.places.get(op, self.places.get(getattr(op, "location", op)))


class LocParser(Parser):
    """The parser of xDSL, which in addition notes the place of every operation."""

    def __init__(self, ctx: Context, source: SourceText) -> None:
        super().__init__(ctx, "", source.file)
        self._parser_state = ParserState(Lexer(Input(source.text, source.file)))
        self._source = source
        self._names: list[Span] = []
        self._first_uses: dict[str, Span] = {}
        self.attribute_aliases: _Aliases = _Aliases(self._parse_alias_at, source.text)

    @property
    def here(self) -> Span:
        """The token that is read next."""
        return self._current_token.span

    def sharpened(self, error: ParseError) -> ParseError:
        """The error; one about values without definition points at the first of them, not at the end."""
        if not error.msg.startswith("values used but not defined"):
            return error
        name = next(iter(self.forward_ssa_references))
        return ParseError(self._first_uses[name], f"value %{name} is not defined")

    def check_definitions(self, module: ModuleOp) -> None:
        """ParseError where an operand is no value of the module: xDSL leaves those of some regions open."""
        for op in module.walk():
            for operand in op.operands:
                if not isinstance(operand, OpResult | BlockArgument):
                    name = operand.name_hint or ""
                    raise ParseError(self._first_uses.get(name, self.here), f"value %{name} is not defined")

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeT) -> SSAValue[AttributeT]:
        value = super().resolve_operand(operand, type)
        self._first_uses.setdefault(operand.operand_name, operand.span)
        return value

    def _parse_op_result_list(self) -> list[tuple[Span, int]]:
        results = super()._parse_op_result_list()
        self._names.append(self.here)  # as in MLIR, an operation stands where its name does
        return results

    def _get_op_by_name(self, name: str) -> type[Operation]:
        try:
            return super()._get_op_by_name(name)
        except ParseError as error:
            known = [op.name for op in self.ctx.loaded_ops] + sorted(self.ctx.registered_dialect_names)
            raise ParseError(self._names[-1], error.msg + did_you_mean(name, known)) from None

    def _parse_alias_def(self) -> None:
        self.attribute_aliases.forget(self._current_token.text)
        super()._parse_alias_def()

    def _parse_alias_at(self, start: int) -> Attribute:
        """The attribute that is defined behind the `=` of an alias, out of turn."""
        token = self._current_token
        self._resume_from(start)
        try:
            return self.parse_attribute()
        finally:
            self._resume_from(token.span.start)

    def parse_operation(self) -> Operation:
        op = super().parse_operation()
        name = self._names.pop()
        if isinstance(op.location, UnknownLoc):
            place = name.get_location()
            op.location = FileLineColLoc(StringAttr(place.file), IntAttr(place.line), IntAttr(place.col))
        else:
            self._source.has_locations = True
        self._source.places[op] = name
        self._source.places.setdefault(op.location, name)
        return op


class _Aliases(dict[str, Attribute]):
    """Aliases of attributes, also those that are defined behind their first use: MLIR writes those of locations at the
    end of the file."""

    DEFINITION = re.compile(r"^(#[\w$.-]+)\s*=", re.MULTILINE)

    def __init__(self, parse_at: Callable[[int], Attribute], text: str) -> None:
        super().__init__()
        self._parse_at = parse_at
        self._behind: dict[str, int] = {}
        for found in self.DEFINITION.finditer(text):
            self._behind.setdefault(found[1], found.end())
        self._early: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name) and name in self._behind:
            assert isinstance(name, str)
            self._early.add(name)
            self[name] = self._parse_at(self._behind.pop(name))
        return super().__contains__(name)

    def forget(self, name: str) -> None:
        """The definition comes now: what was read of it early is no other definition of the same name."""
        self._behind.pop(name, None)
        if name in self._early:
            self._early.remove(name)
            del self[name]


@contextmanager
def located_errors(source: SourceText, doing: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn what goes wrong inside into `Reported`, located in the source.

    `doing` says which step is under way.  Errors of Python's own
    classes are bugs, not messages: they pass.
    """
    try:
        yield
    except ParseError as error:
        if debugging():
            raise
        raise Reported(source.error_at(error.span, one_line(error.msg))) from error
    except Exception as error:
        if not is_message(error):
            raise
        if debugging():
            raise
        op = operation_at_fault(error)
        raise Reported(source.error_in(op, _say(op, error, doing()))) from error


def is_message(error: BaseException) -> bool:
    """Whether the error speaks to the user: xDSL's diagnostics and every class of ours do."""
    return isinstance(error, DiagnosticException) or type(error).__module__.startswith("frustum.")


def operation_at_fault(error: BaseException) -> Operation | None:
    """The innermost operation that a `self` or `op` on the way to the error names."""
    found = None
    for frame in _frames(error.__traceback__):
        for name in ("op", "self"):
            if isinstance(value := frame.tb_frame.f_locals.get(name), Operation):
                found = value
    return found


def node_name(location: Attribute) -> str | None:
    """The name in a location: for operations that came from a model file, the ONNX node."""
    if isinstance(location, NameLoc):
        return location.desc.data
    if isinstance(location, FusedLoc) and isinstance(location.locations, ArrayAttr):
        return next(filter(None, map(node_name, location.locations)), None)
    return None


def debugging() -> bool:
    """Whether errors show their traceback."""
    return os.environ.get("FRUSTUM_DEBUG") == "1"


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _say(op: Operation | None, error: Exception, doing: str) -> str:
    message = one_line(error) if isinstance(error, DiagnosticException) else str(error)
    if op is not None and not isinstance(op, ModuleOp) and name_of(op) not in message:
        node = node_name(op.location)
        message = f"'{name_of(op)}' op" + (f' ("{node}")' if node else "") + f": {message}"
    return f"{doing}: {message}" if doing else message
