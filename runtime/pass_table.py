"""Writes docs/passes.md from the passes themselves: `python -m frustum.runtime.pass_table FILE`."""

import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from pathlib import Path
from typing import Any

from xdsl.passes import ModulePass, get_pass_option_infos

from frustum.runtime.universe import PASSES, load

HEAD = """# All passes

Written by `make docs` from the passes; edit their docstrings.

A pass takes a module from one form to the next. The passes stand in the order in which the compiler runs them; those
that no option asks for are left out of a run. `frustum-opt FILE -p 'PASS{option=value},...'` runs passes over MLIR
text,
`frustum run MODEL --pipeline ...` changes which ones compile a model
([Commands](../docs/commands.md), "Choosing").
`backend/pipeline.py` has the whole pipeline on one page, [the stops](../docs/stops.md) one network between its parts.
"""


def pass_table() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(load(place)) for _, place in PASSES)])


def _section(kind: type[ModulePass]) -> str:
    text = cleandoc(kind.__doc__ or "").replace("<", "&lt;")
    rows = list(_options(kind))
    table = "\n".join(["| option | type | default |", "| --- | --- | --- |", *rows])
    return f"## `{kind.name}`\n\n{text}\n\n{table if rows else 'It has no options.'}\n"


def _options(kind: type[ModulePass]) -> Iterator[str]:
    declared: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    for info in get_pass_option_infos(kind):
        kinds = str(info.expected_type).replace("|", "\\|")
        yield f"| `{info.name}` | `{kinds}` | {_default(declared[info.name.replace('-', '_')])} |"


def _default(option: Field[Any]) -> str:
    """What the option is where nobody gives it."""
    if option.default_factory is not MISSING:
        found = option.default_factory()
    elif option.default is not MISSING:
        found = option.default
    else:
        return "must be given"
    return "-" if found is None or found == "" or found == () else f"`{str(found).lower()}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(pass_table())
