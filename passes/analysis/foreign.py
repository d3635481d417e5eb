# Tests: test/pipeline/test_foreign.py
"""Operations of other dialects among our layers: which layers must stand behind which of them.

Operations of others are never moved.  A layer moves up behind the last of them that it depends on, so that what lies
between two of them on which layers depend is one *section*: layers of one section can run one after the other, and
nothing of another dialect has to come in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.foreign import is_foreign

FIXED = (g.NetworkOp, g.OutputOp, g.CallOp)
"""Operations of the graph level that are no layers and stay where they are."""


def is_movable(op: Operation) -> bool:
    """Whether the operation is a layer, a reshape or a constant."""
    return op.name.startswith("fgraph.") and not isinstance(op, FIXED)


def others_in(block: Block) -> list[Operation]:
    """The operations of other dialects in a block, in order."""
    return [op for op in block.ops if is_foreign(op)]


def sections_of(block: Block) -> dict[Operation, Operation | None]:
    """Of every layer, reshape and constant of a block its section, called by the operation behind which it begins: the
    last one, among all that do not move, that the layer depends on, directly or through others (None: on none)."""
    fixed: list[Operation | None] = [None]
    ready: dict[SSAValue, int] = {}
    found: dict[Operation, Operation | None] = {}
    for op in block.ops:
        if is_movable(op):
            place = max((ready.get(operand, 0) for operand in op.operands), default=0)
            found[op] = fixed[place]
        else:
            place = len(fixed)
            fixed.append(op)
        ready.update(dict.fromkeys(op.results, place))
    return found


def gather(block: Block) -> dict[Operation | None, list[Operation]]:
    """Move layers up so that those of a section follow each other; the sections in order, constants in the first.

    A block without operations of others stays as it is.
    """
    section_of = sections_of(block)
    sections: dict[Operation | None, list[Operation]] = {None: []}
    for op in block.ops:
        if op in section_of:
            sections.setdefault(section_of[op], []).append(op)
    if others_in(block):
        for op in section_of:
            op.detach()
        for behind, ops in sections.items():
            if behind is not None:
                block.insert_ops_after(ops, behind)
            elif block.first_op is not None:
                block.insert_ops_before(ops, block.first_op)
            else:
                block.add_ops(ops)
    return {behind: sections[behind] for behind in [None, *block.ops] if behind in sections}


def is_read_by_others(value: SSAValue) -> bool:
    """Whether an operation of another dialect reads the value, perhaps inside one of its regions."""
    return any(is_foreign(op) for use in value.uses for op in _with_parents(use.operation, value))


def _with_parents(op: Operation, value: SSAValue) -> Iterator[Operation]:
    """The operation and those around it, inside the block that the value belongs to."""
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent
    around: Operation | None = op
    while around is not None:
        yield around
        if around.parent is block:
            return
        around = around.parent_op()
