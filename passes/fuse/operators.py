# Tests: test/passes/fuse/test_rules.py
"""The operators of a unit as the network file has them: what was folded into a layer is one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.passes.analysis.project import UnitLayers

OperatorKind = Literal["main", "scalar", "vector", "other"]
SCALARS = ("add", "sub", "mul", "keep", "drop", "equal", "less", "less_equal")
PLANE = 2  # dimensions of an image, the last ones


@dataclass(frozen=True)
class Operator:
    """An operator of the network: what kind of layer it is, and which operators of the unit it reads."""

    kind: OperatorKind
    reads: tuple[int, ...]
    is_activation: bool = False


def operators_of(unit: UnitLayers) -> tuple[Operator, ...]:
    """All operators of a unit's layers, in order."""
    found: list[Operator] = []
    last: list[int] = []
    for op, layer, sources in zip(unit.ops, unit.layers, unit.sources, strict=True):
        inside = {
            operand.index: last[source.layer]
            for operand, source in zip(layer.maps, sources, strict=True)
            if source.layer is not None
        }
        residual = residual_place(op)
        reads = tuple(n for place, n in inside.items() if place != residual)
        found.append(Operator(kind_of(op), reads, isinstance(op, g.UnaryOp)))
        if residual is not None:
            added = (inside[residual],) if residual in inside else ()
            found.append(Operator("scalar", (len(found) - 1, *added)))
        if isinstance(op.properties.get("act"), g.ActAttr) and not isinstance(op, g.UnaryOp):
            found.append(Operator("vector", (len(found) - 1,), is_activation=True))
        last.append(len(found) - 1)
    return tuple(found)


def residual_place(op: Operation) -> int | None:
    """The number of the operand that is added on the way out."""
    value = op.residual if isinstance(op, g.ConvOp | g.MatmulOp) else None
    return None if value is None else next(i for i, operand in enumerate(op.operands) if operand is value)


def kind_of(op: Operation) -> OperatorKind:
    """A main layer moves much data, a scalar layer joins two maps, a vector layer works on one."""
    if is_main(op):
        return "main"
    if isinstance(op, g.UnaryOp):
        return "vector"
    if isinstance(op, g.BinaryOp):
        kind = str(op.kind)
        if kind in SCALARS:
            is_scale = any(isinstance(operand.owner, g.WeightOp) for operand in op.operands)
            return "vector" if is_scale else "scalar"
        return "vector" if kind in ("prelu", "mask") else "other"
    return "other"


def is_main(op: Operation) -> bool:
    """Matrix product, convolution or pooling; a reduction over the whole plane is a global pooling."""
    return isinstance(op, g.ConvOp | g.MatmulOp | g.PoolOp) or is_global_pool(op)


def is_global_pool(op: Operation) -> bool:
    if not isinstance(op, g.ReduceOp):
        return False
    rank = len(g.shape_of(op.x))
    return rank == PLANE + 2 and tuple(op.axes) == tuple(range(PLANE, rank))


def opens_units(op: Operation) -> bool:
    """What start rule S2 looks for: a convolution or a pooling."""
    return isinstance(op, g.ConvOp | g.PoolOp) or is_global_pool(op)
