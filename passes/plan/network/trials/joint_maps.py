# Tests: test/passes/plan/network/trials/test_joint_maps.py
"""Attention that reads parts of one map as it was made.

One product often makes queries, keys and values side by side, or keys and values.  Attention sees each as a map of its
own, which no layer has made, so that what was made goes through DRAM.  Seen as all of one map, of which it reads some
channels, it may stay in SRAM: whole, though the heads of a tile need a part of it only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from frustum.dialects import graph as g
from frustum.dialects.module import JOINT, STREAMED, VALUE_PARTS
from frustum.passes.analysis.module import value_bytes
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import made_in_dram
from frustum.passes.plan.network.layer_order import LayerOrder


@dataclass(frozen=True)
class JointMaps:
    """Attention that sees whole maps."""

    attention: g.AttentionOp

    def undo(self) -> None:
        """The network as it was."""
        del self.attention.attributes[JOINT]


def joint_maps(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int
) -> list[JointMaps]:
    """Let attention see the maps as they were made of which it reads several parts, and which go through DRAM in these
    units though so many bytes of SRAM could hold them; what was done."""
    through = made_in_dram(order, units)
    found = []
    for op in [node.op for node in order.nodes]:
        if not isinstance(op, g.AttentionOp) or not op.is_merged or {STREAMED, VALUE_PARTS, JOINT} & set(op.attributes):
            continue
        read = (op.q, op.k, op.v)
        parted = {value for value in read if read.count(value) > 1 and value.owner in through}
        are_rows = all(len(g.shape_of(value)) == len("brc") for value in read)
        if parted and are_rows and sum(map(value_bytes, parted)) < sram_bytes:
            op.attributes[JOINT] = UnitAttr()
            found.append(JointMaps(op))
    return found
