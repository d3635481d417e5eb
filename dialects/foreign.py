"""Which operations are ours, which belong to other dialects, and whether all values are defined before they are used.

xDSL's verifier leaves the last out.  The check takes time linear in the number of operations.  It covers the
operations of this project, whose regions have one block each, and what operations of other dialects read from around
them; what happens inside regions of other dialects is for these dialects to say (they may have several blocks, or no
order at all).
"""

from __future__ import annotations

from xdsl.dialects.builtin import UnregisteredOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

OURS = frozenset({"fgraph", "fplan", "funit", "ftile", "fisa"})


def name_of(op: Operation) -> str:
    """The operation's name as it is written, that of an unregistered one too."""
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name


def is_foreign(op: Operation) -> bool:
    """Whether the operation belongs to another dialect."""
    return name_of(op).partition(".")[0] not in OURS



def check_dominance(root: Operation) -> None:
    """Raise `VerifyException` at the first operation inside `root`, an operation of ours that is isolated from what is
    around it, that uses a value before its definition."""
    _check_regions(root, set())


def _check_regions(op: Operation, defined: set[SSAValue]) -> None:
    for region in op.regions:
        inside: list[SSAValue] = []
        for block in region.blocks:
            inside += block.args
            defined.update(block.args)
            for inner in block.ops:
                _check_operation(inner, defined)
                inside += inner.results
                defined.update(inner.results)
        defined.difference_update(inside)  # what a region defines ends with it


def _check_operation(op: Operation, defined: set[SSAValue]) -> None:
    for number, operand in enumerate(op.operands):
        if operand not in defined:
            raise VerifyException(f"'{name_of(op)}': operand {number} is used before it is defined")
    if op.regions and is_foreign(op):
        _check_captured(op, defined)
    elif op.regions:
        _check_regions(op, defined)


def _check_captured(op: Operation, defined: set[SSAValue]) -> None:
    """What regions of another dialect read must be defined inside them or before."""
    inner = [each for each in op.walk() if each is not op]
    own = {result for each in inner for result in each.results}
    own.update(a for each in (op, *inner) for region in each.regions for block in region.blocks for a in block.args)
    for each in inner:
        if any(operand not in defined and operand not in own for operand in each.operands):
            raise VerifyException(f"'{name_of(op)}': a value is used inside before it is defined")
