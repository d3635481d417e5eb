"""The check that xDSL's verifier leaves out: every operand is defined before it is used."""

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException


def check_dominance(root: Operation) -> None:
    """Raise `VerifyException` at the first use before its definition.

    For regions of one block; blocks of one region count as run in the order they are written.
    """
    _visit(root, set())


def _visit(op: Operation, defined: set[SSAValue]) -> None:
    for position, operand in enumerate(op.operands):
        if operand not in defined:
            raise VerifyException(f"{op.name}: operand {position} is used before it is defined")
    for region in op.regions:
        inside = set(defined)  # what a region defines ends with it
        for block in region.blocks:
            inside.update(block.args)
            for inner in block.ops:
                _visit(inner, inside)
                inside.update(inner.results)
