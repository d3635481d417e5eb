"""Why no partition of a unit fits: the memory that is too small even for the smallest piece, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

from frustum.dialects.extents import Extents
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit, Resource
from frustum.dialects.tile import ConvLayer, Whole
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer, MapOperand
from frustum.passes.analysis.project import UnitLayers, project
from frustum.passes.plan.cost import footprint
from frustum.passes.plan.unit import Budget, alignment, splits_channels


@dataclass(frozen=True)
class Shortage:
    """Bytes that the smallest piece of a layer needs in one memory."""

    memory: Resource
    layer: int
    needed_bytes: int
    available_bytes: int


def shortage(unit: UnitLayers, target: Target, budget: Budget) -> Shortage:
    """The memory that is furthest from holding the smallest piece of any layer of a unit that does not fit."""
    core = target.core
    found = []
    for j, layer in enumerate(unit.layers):
        nram = smallest_piece_bytes(layer)
        found.append(Shortage("nram", j, nram, core.nram.capacity_bytes))
        wram = smallest_weights_bytes(layer)
        found.append(Shortage("wram", j, wram, core.wram.capacity_bytes))
    found.append(
        Shortage("sram", len(unit.layers) - 1, smallest_tile_bytes(unit, target), budget.sram_bytes)
    )
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
    """SRAM bytes of the smallest tile of the unit's output with all maps behind it."""
    align, dims, whole = alignment(unit), unit.out.out_dims, unit.out.axes_all
    tile = [dims[d] if d in whole else min(align[d], dims[d]) for d in range(4)]
    if not splits_channels(unit):
        tile[1] = dims[1]
    n, c, h, w = tile
    extents: Extents = (n, c, h, w)
    partition = Partition(extents, 2, 2)
    return footprint(unit, partition, project(unit, partition, target.chip.clusters)).map_bytes


def does_not_fit(unit_name: str, unit: UnitLayers, found: Shortage) -> DoesNotFit:
    """The error that names the unit, the node, the memory and the bytes."""
    where = f"unit {unit_name}: {describe(unit.ops[found.layer])}"
    if found.needed_bytes > found.available_bytes:
        what = "its smallest piece"
        return DoesNotFit(
            what, where, f"{found.needed_bytes} B", f"{found.available_bytes} B of {found.memory.upper()}", found.memory
        )
    what = "its smallest piece with double buffers and weights"
    available = f"{found.available_bytes} B of {found.memory.upper()}"
    return DoesNotFit(what, where, f"more than {found.available_bytes} B", available, found.memory)


def describe(op: Operation) -> str:
    node = f"node '{op.location.desc.data}' " if isinstance(op.location, NameLoc) else ""
    return f"{node}({op.name})"
