"""Roundings to the element type that the device will have anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g

ROUNDINGS = {"f16": g.Function.ROUND_F16, "bf16": g.Function.ROUND_BF16}


@dataclass(frozen=True)
class RemoveRoundings(ModulePass):
    """Remove roundings to the type `to`, to which `frustum-graph-convert-type` will convert all tensors.

    Before: a Cast of the model to a 16-bit type is a rounding of f32 numbers.  After: every result is rounded to `to`
    where it is stored, so that these layers are gone, and what they stood between is found (attention).
    """

    name = "frustum-graph-remove-roundings"
    to: Literal["f16", "bf16"]

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if isinstance(inner, g.UnaryOp) and inner.kind is ROUNDINGS[self.to] and inner.scales is None:
                Rewriter.replace_op(inner, (), [inner.x])
