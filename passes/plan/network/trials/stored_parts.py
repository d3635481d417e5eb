# Tests: test/passes/plan/network/test_units.py
"""Concatenations of which units store only the parts that they make."""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.module import PLACE
from frustum.passes.analysis.layer import is_side_by_side
from frustum.passes.plan.network.layer_order import LayerOrder


@dataclass(frozen=True)
class Again:
    """A concatenation inside a unit that is read behind it, and the one that names its parts there."""

    inside: g.ConcatOp
    behind: g.ConcatOp

    def undo(self) -> None:
        """The network as it was."""
        if self.inside.parent is None:
            block = self.behind.parent
            assert block is not None
            block.insert_op_before(self.inside, self.behind)
        self.behind.result.replace_all_uses_with(self.inside.result)
        self.behind.detach()
        self.behind.erase()


def name_parts(order: LayerOrder, first: int, stop: int, in_sram: Set[int]) -> list[Again]:
    """Let what stands behind layers [first, stop) read the parts of their concatenations that are stored, where some
    part is in DRAM before; `in_sram` are maps that the layers find or leave there."""
    nodes, maps = order.nodes, order.maps
    inside = {nodes[k].op for k in range(first, stop)}
    found = []
    for k in range(first, stop):
        op, map_ = nodes[k].op, maps[k]
        if not isinstance(op, g.ConcatOp) or not is_side_by_side(op) or stop - first == 1:
            continue
        if map_.is_output or map_.needs_dram or map_.last_use < stop or k in in_sram:
            continue
        parts = parts_of(op, inside)
        makers = [part.owner for part in parts]
        if all(maker in inside for maker in makers) or len(set(parts)) < len(parts):
            continue
        numbers = [order.number_of(part) for part in parts]
        if None not in numbers and in_sram.isdisjoint(numbers):
            found.append(behind(op, parts, inside, nodes[stop - 1].op))
    return found


def parts_of(concat: g.ConcatOp, inside: Collection[Operation]) -> list[SSAValue]:
    """What a concatenation and those in it, of some layers, lay side by side."""
    parts: list[SSAValue] = []
    for x in concat.xs:
        maker = x.owner
        if isinstance(maker, g.ConcatOp) and maker in inside and is_side_by_side(maker):
            parts += parts_of(maker, inside)
        else:
            parts.append(x)
    return parts


def behind(op: g.ConcatOp, parts: list[SSAValue], inside: Collection[Operation], last: Operation) -> Again:
    """The concatenation of these parts behind the last layer, for readers that are not among the layers."""
    again = g.ConcatOp(parts, 1)
    again.location = op.location
    again.attributes[PLACE] = UnitAttr()
    block = last.parent
    assert block is not None
    block.insert_op_after(again, last)
    op.result.replace_uses_with_if(again.result, lambda use: use.operation not in inside)
    if not op.result.uses:
        op.detach()
    return Again(op, again)
