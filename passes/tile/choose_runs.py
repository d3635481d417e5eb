"""Let consecutive layers of a unit follow each other in the cores, where that is cheaper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.extents import aligned
from frustum.dialects.graph import networks_of
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.module import IN_CORE
from frustum.dialects.target import Target
from frustum.dialects.tile import TileType
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import map_of, unit_layers
from frustum.passes.analysis.unit_layers import Unprojectable
from frustum.passes.plan.cost import CutUnit
from frustum.passes.plan.unit import UnitPlan, maps_of
from frustum.passes.plan.unit_ops import annotate
from frustum.passes.plan.unit_runs import RUNS, Runs, Wanted, choose_runs
from frustum.passes.tile.kept_maps import KeptMaps, concat_of, cut_of


@dataclass(frozen=True)
class ChooseRuns(ModulePass):
    """Mark the layers whose maps stay in the core (`frustum.in_core`), with the pieces of every run.

    Before: units with partitions, layers with maps.  After: some of the maps between layers are never in SRAM; the
    partition of a unit whose rows roll may have changed.
    `runs`: `auto`, those that the model finds cheaper; `longest`, as many layers as fit; `none`.  `overlap`: borders of
    pieces may be made again.  `sram`: the share of each cluster's SRAM that a unit may use.
    """

    name = "frustum-tile-choose-runs"
    runs: Runs = "auto"
    overlap: bool = True
    sram: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.runs not in RUNS:
            raise PassFailedException(f"runs is one of {', '.join(RUNS)}, found {self.runs}")
        target, wanted = target_of(op), Wanted(self.runs, self.overlap)
        if self.runs == "none":
            return
        usable = int(target.cluster.sram.capacity_bytes * self.sram)
        for network in networks_of(op):
            units = [unit for unit in network.body.block.ops if isinstance(unit, UnitOp)]
            for unit, held in zip(units, held_bytes(units, target), strict=True):
                if not is_move(unit.body.block.ops):
                    choose(unit, target, wanted, usable - held)


def held_bytes(units: Sequence[UnitOp], target: Target) -> list[int]:
    """SRAM of one cluster that maps which stay between units take while each unit runs."""
    number, found, kept = {unit: i for i, unit in enumerate(units)}, [0] * len(units), KeptMaps(target)
    for i, unit in enumerate(units):
        if not unit.kept or concat_of(unit) is not None:
            continue
        types = kept.results_of(unit, cut_of(unit, target)).types
        for result, kind in zip(unit.results, types, strict=False):
            if isinstance(kind, TileType):
                size = aligned(math.prod(kind.data.extents) * ELEMENT_BYTES[kind.data.element])
                for j in range(i, last_reader(result, number) + 1):
                    found[j] += size
    return found


def last_reader(value: SSAValue, number: dict[UnitOp, int]) -> int:
    """The last unit that reads a map that stays, or one of which it is a part."""
    readers = [use.operation for use in value.uses if use.operation in number]
    ends = [last_reader(reader.results[0], number) if concat_of(reader) else number[reader] for reader in readers]
    return max(ends, default=-1)


def may_have_runs(partition: Partition) -> bool:
    """Not in bands, where owners hand over borders, where columns are kept, or where steps do not go down."""
    is_plain = not partition.bands and not partition.owners and partition.way == "down"
    return is_plain and partition.borders != "raster"


def choose(unit: UnitOp, target: Target, wanted: Wanted, free_bytes: int) -> None:
    """The runs of one unit, if it is to have some."""
    partition = None if unit.partition is None else unit.partition.data
    if partition is None or not may_have_runs(partition):
        return
    layers = unit_layers(unit)
    maps = [map_of(op) for op in layers.ops]
    works = zip(maps, layers.layers, strict=True)
    if len(maps) < 2 or any(submap is None and not layer.kind.is_place for submap, layer in works):
        return
    try:
        cut = CutUnit.of(layers, partition, target, layers.kept)
    except Unprojectable as reason:
        raise PassFailedException(f"unit {unit.unit_name.data} cannot be cut as {unit.partition}: {reason}") from reason
    found = choose_runs(cut, maps, wanted, free_bytes)
    if found is None:
        return
    plan = UnitPlan(found.cut.partition, maps_of(found.plans), found.cost)
    annotate(unit, layers.ops, plan, is_small=plan.partition.tile == layers.out.out_dims)
    for j in found.cut.in_core:
        layers.ops[j].attributes[IN_CORE] = UnitAttr()
