"""Inputs of which clusters read strips that overlap: each part is loaded once, and sent to the clusters next to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.dialects.choices import Optimise
from frustum.dialects.graph import networks_of
from frustum.dialects.module import COST_PARTS, numbers, numbers_of
from frustum.dialects.target import Target
from frustum.dialects.unit import Partition, PartitionAttr, UnitOp
from frustum.passes.analysis.module import target_of, value_bytes
from frustum.passes.analysis.project import map_of, unit_layers
from frustum.passes.analysis.unit_layers import UnitLayers
from frustum.passes.plan.cost import CostParts, CutUnit
from frustum.passes.plan.model import BUDGET


@dataclass(frozen=True)
class HandInputs(ModulePass):
    """Let clusters hand each other the borders of inputs, where each would load its own from DRAM.

    Before: units with partitions, layers with maps.  After: the partitions of units say it (`handed`), those first that
    load the most bytes less so, until the network moves no more than `model.BUDGET` times what it would if all did;
    with another aim than `time` all do.  Only units whose rows or columns are dealt to the clusters in one strip each,
    and that do not load an input in rounds, or whole.
    Source: docs/techniques/frustum.md, "Borders" (clusters hand kept rows over through CDMA, nothing through DRAM).
    """

    name = "frustum-tile-hand-inputs"
    optimise: Optimise = "time"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        if target.chip.clusters == 1 or target.cluster.cdma is None:
            return
        for network in networks_of(op):
            units = [unit for unit in network.body.block.ops if isinstance(unit, UnitOp)]
            hand(units, target, BUDGET if self.optimise == "time" else 1.0)


def hand(units: Sequence[UnitOp], target: Target, budget: float) -> None:
    """Let the clusters hand over inputs of as few units as take the bytes that all move into the budget."""
    saved = {unit: size for unit in units if (size := saved_bytes(unit, target)) > 0}
    moved = sum(map(moved_bytes, units))
    most = budget * (moved - sum(saved.values()))
    for unit, size in sorted(saved.items(), key=lambda each: -each[1]):
        if moved <= most:
            return
        assert unit.partition is not None
        unit.properties["partition"] = PartitionAttr(replace(unit.partition.data, handed=True))
        if noted := numbers_of(unit, COST_PARTS):
            parts = CostParts(*noted)
            unit.attributes[COST_PARTS] = numbers(astuple(replace(parts, loaded_bytes=parts.loaded_bytes - size)))
        moved -= size


def moved_bytes(unit: UnitOp) -> int:
    """What a unit moves over the DRAM port, as its planner has noted it; of others what they read and write."""
    if noted := numbers_of(unit, COST_PARTS):
        parts = CostParts(*noted)
        return parts.weight_bytes + parts.loaded_bytes + parts.stored_bytes
    return sum(map(value_bytes, (*unit.operands, *unit.results)))


def saved_bytes(unit: UnitOp, target: Target) -> int:
    """What a unit loads less where its inputs are handed over; 0 where they cannot be."""
    if unit.partition is None:
        return 0
    partition, layers = unit.partition.data, unit_layers(unit)
    if partition.shared or partition.bands or partition.has_owned_tiles or partition.borders == "raster":
        return 0
    working = (op for op, layer in zip(layers.ops, layers.layers, strict=True) if not layer.kind.is_place)
    if any(submap is None or submap.in_rounds for submap in map(map_of, working)):
        return 0
    handed = replace(partition, handed=True)
    return loaded_bytes(layers, partition, target) - loaded_bytes(layers, handed, target)


def loaded_bytes(layers: UnitLayers, partition: Partition, target: Target) -> int:
    """What a unit loads of its inputs in all."""
    sizes = CutUnit.of(layers, partition, target).loaded_bytes
    return sum(size for own, size in zip(layers.inputs, sizes, strict=True) if not own.resident)
