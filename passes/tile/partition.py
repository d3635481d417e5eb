"""Decide every unit's tiles and every layer's pieces, by the model of `plan_unit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.passes import ModulePass

from frustum.dialects.module import MAPS, TILED
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import unit_layers
from frustum.passes.plan.network.optimal import plan_given
from frustum.passes.plan.shortage import does_not_fit, shortage
from frustum.passes.plan.tile_search import Search
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit
from frustum.passes.plan.unit_ops import annotate, units_of


@dataclass(frozen=True)
class PartitionUnits(ModulePass):
    """Give every unit its partition and every layer its map.

    Before: units of layers, some perhaps with partitions.  After: all have `partition`, their layers `frustum.map`.
    `sram` is the share of each cluster's SRAM that a unit may use; less where the allocator found holes.
    `search` is how the tile of a unit is looked for: `all` tries every halving (docs/fusion.md).
    `borders` says which shapes are looked at: `overlap` halvings, `auto` those of policy `optimal` too, `exchange` only
    shapes whose rows roll.
    Raises `DoesNotFit` for a unit that no partition makes fit.
    """

    name = "frustum-tile-partition"
    sram: float = 1.0
    search: Search = "all"
    borders: Literal["overlap", "exchange", "auto"] = "overlap"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        op.attributes[TILED] = UnitAttr()
        for unit in units_of(op):
            if unit.partition is None:
                write(unit, self.plan(unit, target))

    def plan(self, unit: UnitOp, target: Target) -> UnitPlan:
        """The best partition of a unit, with as many images as it was fused for."""
        maps, sram_bytes = unit.attributes.get(MAPS), int(target.cluster.sram.capacity_bytes * self.sram)
        most = maps.value.data if isinstance(maps, IntegerAttr) else 1
        found = None if self.borders == "overlap" else plan_given(unit, target, sram_bytes, self.borders)
        layers, budget = unit_layers(unit), Budget(sram_bytes, most, self.search)
        plan = found or plan_unit(layers, target, budget)
        if plan is None:
            raise does_not_fit(unit.unit_name.data, layers, shortage(layers, target, budget))
        return plan


def write(unit: UnitOp, plan: UnitPlan) -> None:
    """The unit's partition, and the maps of its layers; a unit that is tried again has another partition already."""
    layers = unit_layers(unit)
    annotate(unit, layers.ops, plan, is_small=plan.partition.tile == layers.out.out_dims)


__all__ = ["PartitionUnits", "write"]
