# Tests: test/runtime/report/test_report_schema.py
"""Writes the table of keys of docs/report.md from `schema.py`: `python -m frustum.runtime.report.key_table FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from frustum.runtime.files import with_part
from frustum.runtime.report.schema import Key, ReportData


class Row(NamedTuple):
    """A key by its name and its path (`units[].waits[].cycles`, `engines.ENGINE.busy`), and what it says."""

    name: str
    path: str
    key: Key
    is_optional: bool
    """Whether it may be absent."""
    is_nullable: bool
    kind: Any
    """Of its value, or of each entry of a list or dictionary; null left out."""


def rows(declared: Any = ReportData, path: str = "") -> Iterator[Row]:
    """Every key of a typed dictionary that stands at the path, and of those in it."""
    for row in own_rows(declared, path):
        yield row
        if is_typeddict(row.kind):
            yield from rows(row.kind, f"{row.path}.")


def own_rows(declared: Any, path: str) -> Iterator[Row]:
    """Its own keys alone."""
    for name, kind in get_type_hints(declared, include_extras=True).items():
        is_optional = get_origin(kind) is NotRequired
        kind, key = get_args(get_args(kind)[0] if is_optional else kind)
        kind, is_nullable = without_null(kind)
        here = f"{path}{name}"
        if get_origin(kind) is list:
            here, kind = f"{here}[]", get_args(kind)[0]
        elif get_origin(kind) is dict:
            here, kind = f"{here}.{key.each}", get_args(kind)[1]
        yield Row(name, here, key, is_optional, is_nullable, kind)


def without_null(kind: Any) -> tuple[Any, bool]:
    """A type without None, and whether None was in it."""
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    others = [each for each in get_args(kind) if each is not NoneType]
    assert len(others) == 1, f"a key of the report is of one type, or null, found {kind}"
    return others[0], True


KINDS: dict[type, str] = {str: "text", bool: "true or false"}


def key_table() -> str:
    """The table."""
    lines = ["| key | unit | what it says |", "|---|---|---|"]
    for row in rows():
        unit = row.key.unit or KINDS.get(row.kind, "")
        notes = ["may be absent"] * row.is_optional + ["or null"] * row.is_nullable
        lines.append(f"| `{row.path}` | {', '.join(filter(None, [unit, *notes]))} | {row.key.says} |")
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- keys: written by `make docs` -->\n", "<!-- end of keys -->\n"


def with_table(page: str) -> str:
    """A page with the table as it is now between its two marks."""
    return with_part(page, BEGIN, key_table(), END)


if __name__ == "__main__":
    file: Path = Path(sys.argv[1])
    file.write_text(with_table(file.read_text()))
