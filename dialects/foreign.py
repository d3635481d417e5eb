"""Which operations are ours, and which belong to other dialects in the same module."""

from __future__ import annotations

from xdsl.dialects.builtin import UnregisteredOp
from xdsl.ir import Operation

__all__ = ["is_foreign", "name_of"]

OURS = frozenset({"fgraph", "funit", "ftile", "fisa"})


def name_of(op: Operation) -> str:
    """The operation's name as it is written, that of an unregistered one too."""
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name


def is_foreign(op: Operation) -> bool:
    """Whether the operation belongs to another dialect."""
    return name_of(op).partition(".")[0] not in OURS
