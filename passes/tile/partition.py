"""Decide every unit's tiles and every layer's pieces, by the model of `plan_unit`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.dialects.target import Target
from frustum.dialects.tile import MapAttr
from frustum.dialects.unit import PartitionAttr, UnitOp
from frustum.passes.analysis.layer import MOVES
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import unit_layers
from frustum.passes.tile.plan_unit import Budget, plan_unit
from frustum.passes.tile.shortage import does_not_fit, shortage


@dataclass(frozen=True)
class PartitionUnits(ModulePass):
    """Give every unit its partition and every layer its map.

    Before: units of layers.  After: they also have `partition`, their layers `frustum.map`.
    `sram` is the share of each cluster's SRAM that a unit may use; less where the allocator found holes.
    Raises `DoesNotFit` for a unit that no partition makes fit.
    """

    name = "frustum-tile-partition"
    sram: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        budget = Budget(int(target.cluster.sram.capacity_bytes * self.sram))
        for unit in [o for o in op.walk() if isinstance(o, UnitOp)]:
            if not any(type(inner) in MOVES for inner in unit.body.block.ops):
                partition_unit(unit, target, budget)


def partition_unit(unit: UnitOp, target: Target, budget: Budget) -> None:
    layers = unit_layers(unit)
    plan = plan_unit(layers, target, budget)
    if plan is None:
        found = shortage(layers, target, budget)
        raise does_not_fit(unit.unit_name.data, layers, found)
    unit.properties["partition"] = PartitionAttr(plan.partition)
    unit.properties["mode"] = StringAttr("small" if plan.partition.tile == layers.out.out_dims else "large")
    for op, submap in zip(layers.ops, plan.maps, strict=True):
        op.attributes["frustum.map"] = MapAttr(submap)
