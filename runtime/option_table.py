# Tests: test/runtime/model/test_options.py
"""Writes the tables of options of docs/commands.md: `python -m frustum.runtime.option_table docs/commands.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from frustum.runtime.files import with_part
from frustum.runtime.model.options import (
    COMPILED,
    IMPORTED,
    CommandOption,
    CompileOptions,
    Keywords,
    Request,
    RunOptions,
    Told,
    flag_of,
    options_of,
)
from frustum.runtime.tools.cli import COMMANDS

HEAD = ["| option | of the API | what it says | allowed | if not said | has no effect |", "|---|---|---|---|---|---|"]
SHORT_HEAD = ["| option | what it says | allowed | if not said |", "|---|---|---|---|"]
OTHERS = {name: kind for name, (kind, _) in COMMANDS.items() if kind is not RunOptions}


def tables() -> str:
    """The options of `run` with keywords of `frustum.compile`, and what the other commands have beside or instead."""
    lines = [*HEAD]
    for each, said in options_of(RunOptions):
        keyword = f"`{each.name}`" if each.name in {known.name for known in fields(Keywords)} else "-"
        first, *others = cells(each, said)
        lines.append(_row(first, keyword, *others, _no_effect(said)))
    for name, kind in OTHERS.items():
        own = [(each, said) for each, said in options_of(kind) if not is_shared(each, kind)]
        shared = " Those of `compile` down to `--no-cache`, and:" if issubclass(kind, Request) else ""
        shared = " Those of `run` down to `-v`, and:" if kind is CompileOptions else shared
        lines += ["", f"### `frustum {name}`", "", f"{(kind.__doc__ or '').strip()}{shared}", ""]
        lines += [*SHORT_HEAD, *(_row(*cells(*pair)) for pair in own)] if own else ["It has no options."]
    return "\n".join(lines) + "\n"


def is_shared(option: Field[Any], kind: type[Any]) -> bool:
    """Whether an option of a command is one of all that compile."""
    shared = Told if issubclass(kind, Told) else Request
    return issubclass(kind, shared) and option.name in {each.name for each in fields(shared)}


def cells(option: Field[Any], said: CommandOption) -> Iterator[str]:
    """How it is typed, what it says, what is allowed, what holds where nobody says it."""
    flag = flag_of(option)
    value = said.metavar or "|".join(said.choices or ())
    typed = f"{flag}[={value}]" if said.bare else f"{flag} {value}".strip()
    yield f"`{typed}`" if said.is_typed else "-"
    yield said.help.replace("%%", "%")
    yield allowed(option, said)
    yield unsaid(option, said)


def allowed(option: Field[Any], said: CommandOption) -> str:
    """Which values it takes."""
    if said.choices:
        return ", ".join(f"`{each}`" for each in said.choices)
    if option.default is False:
        return "a flag" if said.is_typed else "`True`, `False`"
    return (said.read and said.read.__doc__) or (f"`{said.metavar}`" if said.metavar else "arrays by input name")


def unsaid(option: Field[Any], said: CommandOption) -> str:
    """What holds where nobody says it."""
    if said.unsaid:
        return said.unsaid
    if option.default is MISSING and option.default_factory is MISSING:
        return "must be said"
    return "not so" if option.default is False else f"`{option.default}`"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _no_effect(said: CommandOption) -> str:
    """Where it is an error to say it."""
    late = {None: "", IMPORTED: "on stages and what is compiled", COMPILED: "on what is compiled"}
    places = late.get(said.until, f"from stop `{said.until}` on"), said.beside_pipeline and "beside `--pipeline`"
    return ", ".join(filter(None, places)) or "-"


BEGIN, END = "<!-- options: written by `make docs` -->\n", "<!-- end of options -->\n"


def with_tables(page: str) -> str:
    """A page with the tables as they are now between its two marks."""
    return with_part(page, BEGIN, tables(), END)


if __name__ == "__main__":
    file: Path = Path(sys.argv[1])
    file.write_text(with_tables(file.read_text()))
