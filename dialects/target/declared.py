"""Plain data checked against frozen dataclasses that declare their fields.

A field is declared once, as `name: Annotated[int, Parameter(doc, low, high, unit)]`; a field whose type is
another declared class is a section.  The checker, the messages of its errors and the tables of the
documentation are all derived from that declaration.  Nothing is guessed: what is not declared is refused,
what has no default must be given, and all problems are found in one go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from frustum.dialects.diagnostic import did_you_mean

D = TypeVar("D")
Path = tuple[str, ...]

MULTIPLES = {  # what may stand behind a number instead of writing it out
    "B": {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "Hz": {"kHz": 10**3, "MHz": 10**6, "GHz": 10**9},
}

SHOWN = 80
"""Letters of what is found, in messages."""
MOST_DIGITS = 20
"""No whole number that is allowed anywhere has more."""


@dataclass(frozen=True)
class Parameter:
    """What a declared field means and what it may hold: numbers in `[low, high]`, or one of `choices`."""

    doc: str
    low: float = 0
    high: float = 0
    unit: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """One field of a declared class: `kind` is int, float, str or (a section) another declared class."""

    name: str
    kind: type
    optional: bool  # null, or in IR and JSON also absence, is a value
    required: bool  # must be written out
    parameter: Parameter

    @property
    def is_section(self) -> bool:
        return dataclasses.is_dataclass(self.kind)

    @property
    def doc(self) -> str:
        return self.parameter.doc or (self.kind.__doc__ or "").split("\n")[0]

    @property
    def allowed(self) -> str:
        """The allowed values in words: `a whole number, 256 B to 2 MiB`."""
        parameter = self.parameter
        if parameter.choices:
            words = ", ".join(parameter.choices)
        elif self.is_section:
            words = "a section"
        elif self.kind is str:
            words = "text that is not empty"
        else:
            kind = "a whole number" if self.kind is int else "a number"
            words = f"{kind}, {_range(parameter)}"
        return f"{words}, or null" if self.optional else words


@dataclass(frozen=True)
class FieldProblem:
    """Something wrong at `path`; `on_key` when it is the key there that is wrong, not its value."""

    path: Path
    message: str
    on_key: bool = False


def declared(owner: type) -> Mapping[str, Declared]:
    """The declared fields of a class by name, in order."""
    key: Any = owner  # mypy takes classes of dataclasses for unhashable
    return _declared(key)


def build(owner: type[D], data: object, path: Path = ()) -> tuple[D | None, list[FieldProblem]]:
    """The object that nested mappings describe, or None and every problem found in them."""
    if not isinstance(data, Mapping):
        return None, [FieldProblem(path, f"{_where(path)} must be a section with keys, found {_found(data)}")]
    fields, values, problems = declared(owner), {}, _unknown_keys(owner, data, path)
    for field in fields.values():
        if field.name in data:
            values[field.name], found = _value(field, data[field.name], (*path, field.name))
            problems += found
        elif field.required:
            problems.append(FieldProblem(path, _missing(field, path)))
    return (None if problems else owner(**values)), problems


def read_value(field: Declared, data: object) -> tuple[Any, list[FieldProblem]]:
    """The value that a file's text or number says for a field, or None and what is wrong with it."""
    return _value(field, data, (field.name,))


def plain(value: Any) -> Any:
    """A declared object as nested dictionaries of numbers and text: what `build` reads."""
    if not dataclasses.is_dataclass(value):
        return value
    return {name: plain(getattr(value, name)) for name in declared(type(value))}


def walk(owner: type, path: Path = ()) -> Iterator[tuple[Path, Declared]]:
    """Every declared field below a class with its path, sections before what they hold."""
    for field in declared(owner).values():
        here = (*path, field.name)
        yield here, field
        if field.is_section:
            yield from walk(field.kind, here)


@cache
def _declared(owner: type) -> Mapping[str, Declared]:
    hints = get_type_hints(owner, include_extras=True)
    return {field.name: _declare(field, hints[field.name]) for field in dataclasses.fields(owner)}


def _declare(field: dataclasses.Field[Any], hint: Any) -> Declared:
    inner, *notes = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    members = [member for member in _members(inner) if member is not type(None)]
    assert len(members) == 1, f"{field.name}: one type, or that type and None"
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    parameter = next((note for note in notes if isinstance(note, Parameter)), Parameter(""))
    return Declared(field.name, members[0], len(_members(inner)) > 1, not has_default, parameter)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _unknown_keys(owner: type, data: Mapping[Any, Any], path: Path) -> list[FieldProblem]:
    fields = declared(owner)
    return [
        FieldProblem((*path, str(key)), f"{_where(path)} has no key {key!r}{_nearest(str(key), fields)}", True)
        for key in data
        if key not in fields
    ]


def _nearest(key: str, fields: Mapping[str, Declared]) -> str:
    return did_you_mean(key, list(fields)) or "; known: " + ", ".join(fields)


def _missing(field: Declared, path: Path) -> str:
    return f"{_where(path)} lacks the key {field.name!r} ({field.allowed}): {field.doc}"


def _value(field: Declared, data: object, path: Path) -> tuple[Any, list[FieldProblem]]:
    if data is None and field.optional:
        return None, []
    if field.is_section:
        return build(field.kind, data, path)
    value = _READ[field.kind](field, data)
    if value is None:
        allowed = f"{field.allowed}{_hint(field, data)}"
        return None, [FieldProblem(path, f"{_where(path)}: found {_found(data)}, allowed {allowed}")]
    return value, []


def _hint(field: Declared, data: object) -> str:
    """What may have been meant: a choice of nearly this name, a number with another multiple."""
    if isinstance(data, str) and field.kind is int and field.parameter.unit in MULTIPLES:
        return f" (with {', '.join(MULTIPLES[field.parameter.unit])})"
    return did_you_mean(data, list(field.parameter.choices)) if isinstance(data, str) else ""


def _read_text(field: Declared, data: object) -> str | None:
    choices = field.parameter.choices
    if isinstance(data, str) and data.strip() and (not choices or data in choices):
        return data
    return None


def _read_integer(field: Declared, data: object) -> int | None:
    if isinstance(data, str):
        unit = field.parameter.unit
        data = _with_multiple(data, {unit: 1, **MULTIPLES[unit]} if unit in MULTIPLES else {})
    if isinstance(data, int) and not isinstance(data, bool) and _in_range(field, data):
        return data
    return None


def _read_real(field: Declared, data: object) -> float | None:
    if isinstance(data, int | float) and not isinstance(data, bool) and _in_range(field, data):
        return float(data)
    return None


_READ: dict[type, Callable[[Declared, object], Any]] = {
    str: _read_text,
    int: _read_integer,
    float: _read_real,
}


def _in_range(field: Declared, value: float) -> bool:
    return field.parameter.low <= value <= field.parameter.high


def _with_multiple(text: str, multiples: Mapping[str, int]) -> int | None:
    number, _, multiple = text.strip().rpartition(" ")
    is_number = number.strip().isascii() and number.strip().isdigit() and len(number) <= MOST_DIGITS
    if multiple in multiples and is_number:
        return int(number) * multiples[multiple]
    return None


def _where(path: Path) -> str:
    return ".".join(path) or "the description"


def _found(data: object) -> str:
    if isinstance(data, Mapping):
        return "a section"
    if isinstance(data, list):
        return "a list"
    if isinstance(data, int) and abs(data) >= 10**MOST_DIGITS:
        return f"a number of more than {MOST_DIGITS} digits"
    shown = "nothing" if data is None else repr(data)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def _range(parameter: Parameter) -> str:
    if parameter.unit in MULTIPLES:
        return " to ".join(_quantity(value, parameter.unit) for value in (parameter.low, parameter.high))
    return f"{_digits(parameter.low)} to {_digits(parameter.high)} {parameter.unit}".rstrip()


def _quantity(value: float, unit: str) -> str:
    """As it would be written in a file: `2 MiB` rather than `2097152 B`."""
    for multiple, factor in reversed(MULTIPLES[unit].items()):
        if value >= factor and value % factor == 0:
            return f"{int(value) // factor} {multiple}"
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
