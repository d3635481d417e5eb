"""Copies from DRAM to DRAM through SRAM, in a nest of loops of their own."""

from __future__ import annotations

import math
from typing import Any, cast

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Region

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, View
from frustum.dialects.unit import Partition
from frustum.passes.analysis.module import element_of
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.unit.declarations import Window
from frustum.passes.lower.unit.memory_map import byte_strides, dram_view, four, is_shared, tile_bytes

Starts = tuple[Affine, Affine, Affine, Affine]


def lower_move(
    op: t.MoveOp, source: Window, result: Window, clusters: int, tags: dict[str, int]
) -> list[isa.AllocOp | isa.CopyOp | isa.RepeatOp]:
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
    read = isa.CopyOp(
        "gdma",
        source.buffer,
        alloc.buffer,
        src_view=dram_view(element, from_view, shifted, size),
        dst_view=local,
        box=Box(shifted, partition.tile, bound),
        fill=None if op.fill is None else op.fill.value.data,
        multicast=is_shared(shifted, clusters),
        **cast(Any, tags),
    )
    write = isa.CopyOp(
        "gdma",
        alloc.buffer,
        result.buffer,
        src_view=local,
        dst_view=dram_view(element, to_view, start, size),
        box=Box(start, partition.tile, dims),
        stage=1 if loops else 0,
        **cast(Any, tags),
    )
    return nested([alloc, read, write], [count for _, count in loops])


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


def nested(
    ops: list[isa.AllocOp | isa.CopyOp | isa.RepeatOp], counts: list[int]
) -> list[isa.AllocOp | isa.CopyOp | isa.RepeatOp]:
    """The operations inside loops, outermost first."""
    for count in reversed(counts):
        block = Block()
        block.add_ops(ops)
        ops = [isa.RepeatOp(count, Region(block))]
    return ops
