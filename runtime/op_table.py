"""Writes docs/operations.md from the definitions: `python -m frustum.runtime.op_table FILE`."""

import sys
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from pathlib import Path

from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import (
    IRDLOperation,
    OpDef,
    OptOperandDef,
    OptPropertyDef,
    OptResultDef,
    VarOperandDef,
    VarResultDef,
)

from frustum.runtime.universe import DIALECTS, load

HEAD = """# All operations

Written by `make docs` from the definitions in `dialects/`; edit those.
`x?` may be absent, `x*` is any number of values."""


def op_table() -> str:
    """The whole page."""
    return "\n\n".join([HEAD, *(_section(load(place)) for _, place in DIALECTS)]) + "\n"


def _section(dialect: Dialect) -> str:
    operations = [_operation(op) for op in dialect.operations if issubclass(op, IRDLOperation)]
    attributes = [_attribute(attribute) for attribute in dialect.attributes]
    parts = [f"## `{dialect.name}`"]
    if operations:
        parts.append(_table(("operation", "operands", "results", "attributes", "meaning"), operations))
    if attributes:
        parts.append(_table(("attribute or type", "meaning"), attributes))
    return "\n\n".join(parts)


def _operation(op: type[IRDLOperation]) -> Sequence[str]:
    definition = op.get_irdl_definition()
    return (
        f"`{op.name}`",
        _names((name, _mark(kind)) for name, kind in definition.operands),
        _names((name, _mark(kind)) for name, kind in definition.results),
        _names(_fields(definition)),
        _meaning(op),
    )


def _attribute(attribute: type[Attribute]) -> Sequence[str]:
    return f"`{attribute.name}`", _meaning(attribute)


def _fields(definition: OpDef) -> Iterable[tuple[str, str]]:
    # How many operands of each kind there are is no choice of whoever writes the operation.
    shown = (name for name in definition.properties if not name.endswith("SegmentSizes"))
    return ((name, _mark(definition.properties[name])) for name in shown)


def _mark(kind: object) -> str:
    if isinstance(kind, OptOperandDef | OptResultDef | OptPropertyDef):
        return "?"
    return "*" if isinstance(kind, VarOperandDef | VarResultDef) else ""


def _names(named: Iterable[tuple[str, str]]) -> str:
    return ", ".join(name.rstrip("_") + mark for name, mark in named) or "-"


def _meaning(defined: type[Operation] | type[Attribute]) -> str:
    """The first paragraph of its own docstring, or the words that it stands for."""
    text = vars(defined).get("__doc__") or ""
    words = getattr(defined, "enum_type", ()) if issubclass(defined, EnumAttribute) else ()
    if words:
        text = "one of " + ", ".join(words)
    elif text.startswith(f"{defined.__name__}("):  # written by `dataclass`
        text = ""
    return " ".join(cleandoc(text).split("\n\n")[0].split()).replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(op_table())
