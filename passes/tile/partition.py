"""Decide every unit's tiles and every layer's pieces, by the model of `plan_unit`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr
from xdsl.passes import ModulePass

from frustum.dialects.graph import ConcatOp
from frustum.dialects.target import Target
from frustum.dialects.tile import MapAttr
from frustum.dialects.unit import PartitionAttr, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import unit_layers
from frustum.passes.tile.plan_unit import MAPS, SRAM_BYTES, Budget, plan_unit
from frustum.passes.tile.search import Search
from frustum.passes.tile.shortage import does_not_fit, shortage

TILED = "frustum.tiled"
"""Module attribute: this pass has run.  Policy `optimal` leaves partitions too."""


@dataclass(frozen=True)
class PartitionUnits(ModulePass):
    """Give every unit its partition and every layer its map.

    Before: units of layers.  After: they also have `partition`, their layers `frustum.map`.
    `sram` is the share of each cluster's SRAM that a unit may use; less where the allocator found holes.
    `search` is how the tile of a unit is looked for: `all` tries every halving (docs/fusion.md).
    Raises `DoesNotFit` for a unit that no partition makes fit.
    """

    name = "frustum-tile-partition"
    sram: float = 1.0
    search: Search = "all"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        budget = Budget(int(target.cluster.sram.capacity_bytes * self.sram), search=self.search)
        op.attributes[TILED] = UnitAttr()
        for unit in [o for o in op.walk() if isinstance(o, UnitOp)]:
            if unit.partition is None and not is_move(unit.body.block.ops):
                partition_unit(unit, target, within(unit, budget))


def within(unit: UnitOp, budget: Budget) -> Budget:
    """The budget, with the limits that the unit was fused for."""
    maps, sram = unit.attributes.get(MAPS), unit.attributes.get(SRAM_BYTES)
    return Budget(
        min(budget.sram_bytes, sram.value.data) if isinstance(sram, IntegerAttr) else budget.sram_bytes,
        maps.value.data if isinstance(maps, IntegerAttr) else budget.maps,
        budget.search,
    )


def partition_unit(unit: UnitOp, target: Target, budget: Budget) -> None:
    layers = unit_layers(unit)
    plan = plan_unit(layers, target, budget)
    if plan is None:
        found = shortage(layers, target, budget)
        raise does_not_fit(unit.unit_name.data, layers, found)
    unit.properties["partition"] = PartitionAttr(plan.partition)
    unit.properties["mode"] = StringAttr("small" if plan.partition.tile == layers.out.out_dims else "large")
    for op, submap in zip(layers.ops, plan.maps, strict=True):
        if not isinstance(op, ConcatOp):
            op.attributes["frustum.map"] = MapAttr(submap)
