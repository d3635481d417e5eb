"""Tiles between DRAM and SRAM, and from one cluster's SRAM to another's; tensors from DRAM to DRAM through SRAM."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Operation, Region
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, View
from frustum.dialects.unit import Partition
from frustum.passes.analysis.module import element_of
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.unit.memory_map import (
    CHANNELS,
    Placed,
    at_levels,
    box_at_levels,
    byte_strides,
    dram_view,
    four,
    is_shared,
    tile_bytes,
)
from frustum.passes.lower.unit.piece_stores import Leaving, Part, whole_part
from frustum.passes.lower.unit.program import Window
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
    tags = unit.tags(layer_of_load(unit, op))

    def copy(part: Part, stage: int, own: Placed) -> Operation:
        seen = dram_view(placed.element, view, part.start, ELEMENT_BYTES[placed.element])
        moved = isa.Copy(
            engine="gdma", src_view=seen, dst_view=own.view(part.start), box=part.box, fill=fill,
            multicast=is_shared(placed.start, unit.clusters),
        )  # fmt: skip
        return isa.emit(moved, source.buffer, own.buffer, stage=stage, **tags)

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
    tags = unit.tags(unit.last_layer)

    def copy(part: Part, stage: int, own: Placed = placed) -> Operation:
        seen = dram_view(placed.element, view, part.start, ELEMENT_BYTES[placed.element])
        moved = isa.Copy(engine="gdma", src_view=own.view(part.start), dst_view=seen, box=part.box)
        return isa.emit(moved, own.buffer, target.buffer, stage=stage, **tags)

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
    tags = unit.tags(unit.last_layer)

    def copy(part: Part, stage: int, own: Placed = placed) -> Operation:
        moved = isa.Copy(
            engine="cdma", src_view=own.view(part.start), dst_view=own.view(part.start, by), box=part.box,
            peer=Affine(by, cluster=1),
        )  # fmt: skip
        return isa.emit(moved, own.buffer, own.buffer, stage=stage, **tags)

    box = Box(cast(Any, start), region.extent, region.bound, cast(Any, limit))
    least = unit.target.memory("sram").minimum_run_bytes
    return Leaving(placed, box, 1, placed.strides, least, copy)


def leave(unit: UnitLowering, leaving: Leaving) -> None:
    """All of a region at once, behind what has been written of the innermost body."""
    depth, box = len(unit.loops), leaving.region
    for own, first, part in parts_of(leaving.tile, box.start, box):
        by_blocks(
            unit.innermost,
            partial(leaving.copy, own=own),
            Part(first, part),
            leaving.block,
            depth,
            unit.stage,
        )


Starts = tuple[Affine, Affine, Affine, Affine]


def lower_move(
    op: t.MoveOp, source: Window, result: Window, clusters: int, tags: dict[str, int]
) -> list[Operation]:
    """The operations that copy from one tensor to the other."""
    partition = op.partition.data
    dims = four([int(v) for v in op.dims.get_values()])
    low = [int(v) for v in op.low.get_values()]
    bound = four([int(v) for v in op.bound.get_values()])
    element = element_of(cast(TensorType[Any], op.source.type).element_type)
    size = ELEMENT_BYTES[element]
    loops, start = move_loops(dims, partition, clusters)
    shifted = cast(Starts, tuple(s + x for s, x in zip(start, low, strict=True)))
    from_view, to_view = source.view(op.source_view.data), result.view(op.target_view.data)
    tile = t.Tile(element, partition.tile, memory_order(from_view.strides, bound))
    alloc = isa.AllocOp("sram", tile_bytes(tile), 2 if loops else 1)
    local = View(element, Affine(), byte_strides(tile))
    read = isa.Copy(
        engine="gdma",
        src_view=dram_view(element, from_view, shifted, size),
        dst_view=local,
        box=Box(shifted, partition.tile, bound),
        fill=None if op.fill is None else op.fill.value.data,
        multicast=is_shared(shifted, clusters),
    )
    to_dram = dram_view(element, to_view, start, size)
    write = isa.Copy(engine="gdma", src_view=local, dst_view=to_dram, box=Box(start, partition.tile, dims))
    ops = [
        alloc,
        isa.emit(read, source.buffer, alloc.buffer, **tags),
        isa.emit(write, alloc.buffer, result.buffer, stage=1 if loops else 0, **tags),
    ]
    return nested(ops, [count for _, count in loops])


def move_loops(dims: Extents, partition: Partition, clusters: int) -> tuple[list[tuple[int, int]], Starts]:
    """The loops over the tiles (dimension, count), and where a tile starts in terms of their levels."""
    dealt = [clusters if d == partition.clusters else 1 for d in range(4)]
    counts = [math.ceil(math.ceil(dims[d] / partition.tile[d]) / dealt[d]) for d in range(4)]
    loops = [d for d in range(4) if counts[d] > 1]
    start = []
    for d in range(4):
        own = Affine.index(loops.index(d), partition.tile[d] * dealt[d]) if d in loops else Affine()
        start.append(own + Affine(cluster=partition.tile[d]) if dealt[d] > 1 else own)
    return [(d, counts[d]) for d in loops], cast(Starts, tuple(start))


def nested(ops: list[Operation], counts: list[int]) -> list[Operation]:
    """The operations inside loops, outermost first."""
    for count in reversed(counts):
        block = Block()
        block.add_ops(ops)
        ops = [isa.RepeatOp(count, Region(block))]
    return ops


def by_blocks(
    body: Block, copy: Callable[[Part, int], Operation], whole: Part, block: int, level: int, stage: int
) -> None:
    """Append the copy of a part, or, of several blocks, a loop at nesting `level` over the copies of each."""
    extent = whole.box.extent[CHANNELS]
    count = -(-extent // block) if block > 1 else 1
    if count == 1:
        body.add_op(copy(whole, stage))
        return
    n, c, h, w = whole.start
    start = (n, c + Affine.index(level, block), h, w)
    n_extent, _, h_extent, w_extent = whole.box.extent
    limit = c + extent if extent % block else None
    box = Box(start, (n_extent, block, h_extent, w_extent), whole.box.bound, (None, limit, None, None))
    inner = Block()
    inner.add_op(copy(Part(start, box), 0))
    body.add_op(isa.RepeatOp(count, Region(inner), stage=stage))
