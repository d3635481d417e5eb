"""Which layers can share a unit, as far as the tile level can run it.  To be widened as the lowering learns more."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, OpResult

from frustum.dialects import graph as g
from frustum.passes.analysis.layer import BUILDERS, MOVES, RANK
from frustum.passes.analysis.project import UnitLayers

JOINING = (g.ConvOp, g.PoolOp, g.UnaryOp, g.BinaryOp, g.LrnOp, g.ResizeOp, g.QuantizeOp, g.DequantizeOp)
"""Layers that work on a map position by position, or by windows of it: their tiles can be cut along n, h and w."""


def can_join(op: Operation) -> bool:
    """The layer may share a unit with others; of concatenations those of images' channels."""
    if isinstance(op, g.ConcatOp):
        return len(g.shape_of(op.result)) == RANK and op.axis == 1
    return isinstance(op, JOINING)


def is_layer(op: Operation) -> bool:
    """The operation must end in a unit: it computes, or it moves data."""
    return type(op) in BUILDERS or type(op) in MOVES


def name_of(op: Operation) -> str:
    return op.name.removeprefix("fgraph.")


def outputs_of(ops: Sequence[Operation]) -> list[OpResult]:
    """Results that are read outside (or by nobody)."""
    inside = set(ops)
    results = (op.results[0] for op in ops)
    return [r for r in results if not r.uses or any(use.operation not in inside for use in r.uses)]


def seam(unit: UnitLayers) -> str | None:
    """Why the tile level cannot hand a map of this unit from layer to layer; None: it can.

    Each layer must read a map in the form in which the other has made it, and never as weights.
    """
    numbers = {op.results[0]: j for j, op in enumerate(unit.ops)}
    for op, layer in zip(unit.ops, unit.layers, strict=True):
        maps = {operand.index for operand in layer.maps}
        if any(value in numbers and place not in maps for place, value in enumerate(op.operands)):
            return f"{name_of(op)} reads computed weights"
    if unit.other_form is not None:
        return f"{name_of(unit.ops[unit.other_form[0]])} sees the map in another form"
    return None
