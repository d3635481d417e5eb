# Tests: test/passes/plan/test_rounds.py
"""Say of products in which type their sums may wait."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.dialects import graph as g
from frustum.dialects.choices import Carry
from frustum.dialects.module import CARRY


@dataclass(frozen=True)
class NoteCarry(ModulePass):
    """Note on every product, and attention, of f16 or bf16 whose sums are to be f32 as long as they wait that they are:
    it is then never cut into rounds of input channels, between which sums wait in the type of the result.  Scores are
    sums, too.

    Before: networks in the types of the device.  After: `frustum.carry` on them, where `carry` is f32.
    """

    name = "frustum-graph-note-carry"

    carry: Carry = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.carry != "f32":
            return
        for each in op.walk():
            if isinstance(each, g.ConvOp | g.MatmulOp | g.AttentionOp):
                each.attributes[CARRY] = StringAttr("f32")
