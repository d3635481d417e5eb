"""Tiles between DRAM and SRAM, and from one cluster's SRAM to another's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box
from frustum.passes.lower.unit.blocks import Part, by_blocks, whole_part
from frustum.passes.lower.unit.memory_map import Placed, at_levels, box_at_levels, dram_view, four, is_shared
from frustum.passes.lower.unit.piece_stores import Leaving
from frustum.passes.lower.unit.raster import parts_of

if TYPE_CHECKING:
    from frustum.passes.lower.unit.unit import UnitLowering


def load(unit: UnitLowering, op: t.LoadOp) -> None:
    """A tile's region from DRAM, in the body of the loop that moves it or its buffer."""
    region = op.region.data
    source = unit.tensors[op.source]
    view = source.view(op.view.data)
    placed = unit.tiles.place(op.result, region)
    depth = max(unit.depth_of(*placed.start), unit.program.homes[op.result].depth)
    fill = None if op.fill is None else op.fill.value.data
    tags = cast(Any, unit.tags(layer_of_load(unit, op)))

    def copy(part: Part, stage: int, own: Placed) -> isa.CopyOp:
        seen = dram_view(placed.element, view, part.start, ELEMENT_BYTES[placed.element])
        return isa.CopyOp(
            "gdma", source.buffer, own.buffer, src_view=seen, dst_view=own.view(part.start), box=part.box,
            fill=fill, multicast=is_shared(placed.start, unit.clusters), stage=stage, **tags,
        )  # fmt: skip

    whole = whole_part(placed.start, region)
    for own, start, box in parts_of(placed, placed.start, whole.box):
        by_blocks(unit.bodies[depth], partial(copy, own=own), Part(start, box), view.block, depth, 0)


def layer_of_load(unit: UnitLowering, op: t.LoadOp) -> int:
    """Number of the layer that first reads a loaded tile."""
    layers = [o for o in unit.unit.body.block.ops if isinstance(o, t.ComputeOp)]
    user = next((i for i, o in enumerate(layers) if op.result in o.operands), 0)
    return unit.first_layer + user


def stored(unit: UnitLowering, op: t.StoreOp) -> Leaving:
    """A tile's region to DRAM."""
    placed, region = unit.tiles[op.tile], op.region.data
    target = unit.program.declared.buffers[unit.unit.results[op.output.value.data]]
    view = target.view(op.view.data)
    start = box_at_levels(region, unit.levels)
    tags = cast(Any, unit.tags(unit.last_layer))

    def copy(part: Part, stage: int, own: Placed = placed) -> isa.CopyOp:
        seen = dram_view(placed.element, view, part.start, ELEMENT_BYTES[placed.element])
        return isa.CopyOp(
            "gdma", own.buffer, target.buffer, src_view=own.view(part.start), dst_view=seen, box=part.box,
            stage=stage, **tags,
        )  # fmt: skip

    strides = four([s * ELEMENT_BYTES[placed.element] for s in view.near])
    least = unit.target.memory("dram").minimum_run_bytes
    return Leaving(placed, whole_part(start, region).box, view.block, strides, least, copy)


def sent(unit: UnitLowering, op: t.SendOp) -> Leaving:
    """Part of a tile to the same place of the map in another cluster's SRAM."""
    if unit.target.chip.cluster.cdma is None:
        raise PassFailedException(
            f"unit {unit.unit.unit_name.data} sends between clusters; the target has no cdma"
        )
    placed, region, by = unit.tiles[op.tile], op.region.data, op.by.value.data
    start = box_at_levels(region, unit.levels)
    limit = tuple(None if x is None else at_levels(x, unit.levels) for x in region.limit)
    tags = cast(Any, unit.tags(unit.last_layer))

    def copy(part: Part, stage: int, own: Placed = placed) -> isa.CopyOp:
        return isa.CopyOp(
            "cdma", own.buffer, own.buffer, src_view=own.view(part.start), dst_view=own.view(part.start, by),
            box=part.box, peer=Affine(by, cluster=1), stage=stage, **tags,
        )  # fmt: skip

    box = Box(cast(Any, start), region.extent, region.bound, cast(Any, limit))
    least = unit.target.memory("sram").minimum_run_bytes
    return Leaving(placed, box, 1, placed.strides, least, copy)


def leave(unit: UnitLowering, leaving: Leaving) -> None:
    """All of a region at once, behind what has been written of the innermost body."""
    depth, box = len(unit.loops), leaving.region
    for own, first, part in parts_of(leaving.tile, box.start, box):
        by_blocks(unit.innermost, partial(leaving.copy, own=own), Part(first, part), leaving.block, depth, unit.stage)
