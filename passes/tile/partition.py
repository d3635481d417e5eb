"""Decide every unit's tiles and every layer's pieces, by the model of `plan_unit`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects.extents import replaced
from frustum.dialects.module import MAPS, TILED
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit, Resource
from frustum.dialects.tile import ConvLayer, Whole
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import Layer, MapOperand
from frustum.passes.analysis.module import node_name, target_of
from frustum.passes.analysis.project import UnitLayers, unit_layers
from frustum.passes.analysis.unit_layers import Unprojectable
from frustum.passes.plan.cost import CutUnit
from frustum.passes.plan.network.given_units import plan_given
from frustum.passes.plan.partitions import alignment, splits_channels
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
        plan = found or plan_unit(unit_layers(unit), target, Budget(sram_bytes, most, self.search))
        if plan is None:
            raise does_not_fit(unit, target, sram_bytes)
        return plan


def write(unit: UnitOp, plan: UnitPlan) -> None:
    """The unit's partition, and the maps of its layers; a unit that is tried again has another partition already."""
    layers = unit_layers(unit)
    annotate(unit, layers.ops, plan, is_small=plan.partition.tile == layers.out.out_dims)


# ---------------------------------------------------------------- why nothing fits


@dataclass(frozen=True)
class Shortage:
    """Bytes that the smallest piece of a layer needs in one memory."""

    memory: Resource
    layer: int
    needed_bytes: int
    available_bytes: int


def shortage(unit: UnitLayers, target: Target, sram_bytes: int) -> Shortage:
    """The memory that is furthest from holding the smallest piece of any layer of a unit that does not fit."""
    nram, wram = target.core.nram.capacity_bytes, target.core.wram.capacity_bytes
    found = [Shortage("sram", len(unit.layers) - 1, smallest_tile_bytes(unit, target), sram_bytes)]
    for j, layer in enumerate(unit.layers):
        found.insert(-1, Shortage("nram", j, smallest_piece_bytes(layer), nram))
        found.insert(-1, Shortage("wram", j, smallest_weights_bytes(layer), wram))
    return max(found, key=lambda s: s.needed_bytes / s.available_bytes)


def smallest_piece_bytes(layer: Layer) -> int:
    """NRAM bytes of one output position with all that it needs of the maps; of input channels one."""
    out = [layer.out_dims[d] if d in layer.axes_all else 1 for d in range(4)]
    maps = sum(smallest_operand(layer, operand) * operand.element_bytes for operand in layer.maps)
    return maps + math.prod(out) * layer.out_bytes


def smallest_operand(layer: Layer, operand: MapOperand) -> int:
    """Elements of a map that one output position needs."""
    elements = 1
    for d, axis in enumerate(operand.access):
        summed = layer.kind.cuts_operand or (layer.is_matrix and d == 1)
        if not (summed and isinstance(axis, Whole)):
            elements *= axis.extent(1)
    return elements


def smallest_weights_bytes(layer: Layer) -> int:
    """WRAM bytes of one kernel of one input and one output channel, with its bias."""
    if not isinstance(layer.kind, ConvLayer):
        return 0
    return math.prod(layer.kind.kernel) * layer.weight_bytes + sum(layer.channel_bytes)


def smallest_tile_bytes(unit: UnitLayers, target: Target) -> int:
    """SRAM bytes of the smallest tile of the unit's output with all maps behind it; of all of it where no smaller tile
    goes evenly with those of other outputs."""
    align, dims, whole = alignment(unit), unit.out.out_dims, unit.out.axes_all
    tile = tuple(dims[d] if d in whole else min(align[d], dims[d]) for d in range(4))
    partition = Partition(tile if splits_channels(unit) else replaced(tile, 1, dims[1]), 2, 2)
    try:
        cut = CutUnit.of(unit, partition, target)
    except Unprojectable:
        cut = CutUnit.of(unit, Partition(dims, 2, 2), target)
    return cut.footprint().map_bytes


def does_not_fit(unit: UnitOp, target: Target, sram_bytes: int) -> DoesNotFit:
    """The error that names the unit, the node, the memory and the bytes."""
    layers = unit_layers(unit)
    found = shortage(layers, target, sram_bytes)
    where = f"unit {unit.unit_name.data}: {describe(layers.ops[found.layer])}"
    what, needed = "its smallest piece", f"{found.needed_bytes} B"
    if found.needed_bytes <= found.available_bytes:
        what, needed = f"{what} with double buffers and weights", f"more than {found.available_bytes} B"
    available = f"{found.available_bytes} B of {found.memory.upper()}"
    return DoesNotFit(what, where, needed, available, found.memory)


def describe(op: Operation) -> str:
    """The model's node, and the kind of operation."""
    return f"node '{node_name(op)}' ({op.name})" if node_name(op) else f"({op.name})"
