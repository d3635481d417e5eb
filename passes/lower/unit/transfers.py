# Tests: test/pipeline/test_stops_agree.py
"""What the GDMA and CDMA move for a unit: tiles and held weights between DRAM and SRAM, tiles from one cluster to
another, tensors from DRAM to DRAM through SRAM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from xdsl.ir import Block, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Span, Starts, View
from frustum.dialects.unit import Partition
from frustum.passes.analysis.module import element_in
from frustum.passes.analysis.piece_nest import CHANNELS_IN, GROUP, LoopName, build
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.unit import memory_map as mm
from frustum.passes.lower.unit.layer_nest import Site, WeightSource
from frustum.passes.lower.unit.piece_stores import Leaving, Part
from frustum.passes.lower.unit.program import Window
from frustum.passes.lower.unit.raster import parts_of
from frustum.passes.lower.unit.tile_loops import TileLoops


def load(loops: TileLoops, op: t.LoadOp, source: Window, placed: mm.Placed, depth: int, tags: mm.Tags) -> None:
    """A tile's region from DRAM, in the body of the loop that moves it or its buffer."""
    view, size = source.view(op.view.data), ELEMENT_BYTES[placed.element]

    def copy(part: Part, stage: int, own: mm.Placed) -> Operation:
        moved = isa.Copy(
            engine="gdma", src_view=mm.dram_view(own.element, view, part.start, size), dst_view=own.view(part.start),
            box=part.box, fill=None if op.fill is None else op.fill.value.data,
            multicast=mm.is_shared(placed.start, loops.clusters),
        )  # fmt: skip
        return isa.emit(moved, source.buffer, own.buffer, stage=stage, **tags)

    region = op.region.data
    for own, box in parts_of(placed, Box(placed.start, region.extent, region.bound)):
        by_blocks(loops.bodies[depth], partial(copy, own=own), Part(box.start, box), view.block, depth, 0)


def stored(loops: TileLoops, op: t.StoreOp, placed: mm.Placed, target: Window, least: int, tags: mm.Tags) -> Leaving:
    """A tile's region to DRAM."""
    view, size, region = target.view(op.view.data), ELEMENT_BYTES[placed.element], op.region.data

    def copy(part: Part, stage: int, own: mm.Placed = placed) -> Operation:
        there = mm.dram_view(own.element, view, part.start, size)
        moved = isa.Copy(engine="gdma", src_view=own.view(part.start), dst_view=there, box=part.box)
        return isa.emit(moved, own.buffer, target.buffer, stage=stage, **tags)

    box = Box(mm.box_at_levels(region, loops.levels), region.extent, region.bound)
    return Leaving(placed, box, view.block, tuple(s * size for s in view.near), least, copy)


def sent(loops: TileLoops, op: t.SendOp, placed: mm.Placed, least: int, tags: mm.Tags) -> Leaving:
    """Part of a tile to the same place of the map in another cluster's SRAM."""
    region, by = op.region.data, op.by.value.data

    def copy(part: Part, stage: int, own: mm.Placed = placed) -> Operation:
        here, there = own.view(part.start), own.view(part.start, by)
        moved = isa.Copy(engine="cdma", src_view=here, dst_view=there, box=part.box, peer=Affine(by, cluster=1))
        return isa.emit(moved, own.buffer, own.buffer, stage=stage, **tags)

    limit = tuple(None if x is None else mm.at_levels(x, loops.levels) for x in region.limit)
    box = Box(mm.box_at_levels(region, loops.levels), region.extent, region.bound, limit)
    return Leaving(placed, box, 1, placed.strides, least, copy)


def leave(loops: TileLoops, leaving: Leaving, stage: int, depth: int | None = None) -> None:
    """All of a region at once, behind what has been written of a loop's body: the innermost one's, or at `depth`."""
    depth = len(loops) if depth is None else depth
    for own, box in parts_of(leaving.tile, leaving.region):
        copy = partial(leaving.copy, own=own)
        by_blocks(loops.bodies[depth], copy, Part(box.start, box), leaving.block, depth, stage)


def by_blocks(
    body: Block, copy: Callable[[Part, int], Operation], whole: Part, block: int, level: int, stage: int
) -> None:
    """Append the copy of a part whose channels may lie in blocks: of several, a loop at nesting `level` over the copies
    of each."""
    channels, first = whole.box.spans[mm.CHANNELS], whole.start[mm.CHANNELS]
    count = ceil_div(channels.extent, block) if block > 1 else 1
    if count == 1:
        body.add_op(copy(whole, stage))
        return
    limit = first + channels.extent if channels.extent % block else None
    own = Span(first + Affine.index(level, block), block, channels.bound, limit)
    box = Box.of(*(replaced(whole.box.spans, mm.CHANNELS, own)))
    inner = Block([copy(Part(box.start, box), 0)])
    body.add_op(isa.RepeatOp(count, Region(inner), stage=stage))


# -------------------------------------------------------------------- weights


def hold(
    loops: TileLoops, op: t.ComputeOp, tensors: Mapping[SSAValue, Window], site: Site, *, always: bool
) -> tuple[WeightSource | None, dict[str, mm.Placed]]:
    """The weights of a layer (in SRAM, or to be streamed later), and by name what else it has per output channel;
    `always`: in SRAM even where each piece is used once."""
    conv, region = op.layer, op.region.data
    if not isinstance(conv, t.ConvLayer):
        return None, {}
    channels, bound, batch = mm.at_levels(region.start[1], loops.levels), region.bound, conv.weight_batch

    def held(source: mm.Placed, start: Starts, extent: Extents) -> mm.Placed:
        """Part of a weight tensor in SRAM, in the order in which it lies in DRAM."""
        placed, depth = mm.packed(source, start, extent), loops.depth_of(start)
        alloc = mm.allocate(placed, "sram", loops.copies(depth))
        box = Box(start, extent, source.bound)
        copy = mm.copied("gdma", source, placed, box, site.tags, multicast=mm.is_shared(start, loops.clusters))
        loops.bodies[depth].add_ops([alloc, copy])
        return placed

    def tensor(value: SSAValue, dims: Extents, strides: Extents) -> mm.Placed:
        return mm.in_dram(tensors[value].buffer, element_in(value), dims, strides)

    dims, strides = (bound[1], conv.channels, *conv.kernel), conv.weight_strides
    if batch:
        dims, strides = (*dims[:3], bound[0]), (*strides[:3], batch)
    weights, own = tensor(op.tensors[0], dims, strides), None
    is_whole = op.map.data.weights == "unit"
    if is_whole and (always or len(loops) or batch or not is_read_once(loops, op, site.cores)):
        own = held(weights, (channels, *weights.start[1:]), (region.extent[1], *dims[1:]))
    start, others = (Affine(), channels, Affine(), Affine()), op.tensors[1:]
    vectors = {
        name: held(tensor(value, (1, bound[1], 1, 1), (0, 1, 0, 0)), start, (1, region.extent[1], 1, 1))
        for name, value in zip(conv.vector_names, others, strict=bool(others))
    }
    return WeightSource(weights, own, bool(batch)), vectors


def is_read_once(loops: TileLoops, op: t.ComputeOp, cores: int) -> bool:
    """Whether the cores take the weights in several pieces, each of them once: then they need not be in SRAM whole,
    and the first pieces are used, and the memory of the last layer's is free, before all have come."""
    region = op.region.data
    start = mm.box_at_levels(region, loops.levels)
    nest = build(op.map.data, start, region.extent, region.bound, op.layer, cores, 0)
    names: list[LoopName] = [GROUP, 1, CHANNELS_IN]
    depth = nest.depth(names)
    return depth > 0 and all(name in names for name, _ in nest.loops[:depth])


# -------------------------------------------------------------------- from DRAM to DRAM


def lower_move(op: t.MoveOp, source: Window, result: Window, clusters: int, tags: mm.Tags) -> list[Operation]:
    """The operations that copy from one tensor to the other."""
    partition, element = op.partition.data, element_in(op.source)
    dims, low, bound = (tuple(map(int, each.get_values())) for each in (op.dims, op.low, op.bound))
    loops, start = move_loops(dims, partition, clusters)
    shifted = tuple(s + x for s, x in zip(start, low, strict=True))
    from_view, to_view = source.view(op.source_view.data), result.view(op.target_view.data)
    tile = t.Tile(element, partition.tile, memory_order(from_view.strides, bound))
    alloc = isa.AllocOp("sram", mm.tile_bytes(tile), 2 if loops else 1)
    local, size = View(element, Affine(), mm.byte_strides(tile)), ELEMENT_BYTES[element]
    read = isa.Copy(
        engine="gdma", src_view=mm.dram_view(element, from_view, shifted, size), dst_view=local,
        box=Box(shifted, partition.tile, bound), fill=None if op.fill is None else op.fill.value.data,
        multicast=mm.is_shared(shifted, clusters),
    )  # fmt: skip
    there, stage = mm.dram_view(element, to_view, start, size), 1 if loops else 0
    write = isa.Copy(engine="gdma", src_view=local, dst_view=there, box=Box(start, partition.tile, dims), stage=stage)
    ops: list[Operation] = [
        alloc,
        isa.emit(read, source.buffer, alloc.buffer, **tags),
        isa.emit(write, alloc.buffer, result.buffer, **tags),
    ]
    for count in reversed(loops):
        ops = [isa.RepeatOp(count, Region(Block(ops)))]
    return ops


def move_loops(dims: Extents, partition: Partition, clusters: int) -> tuple[list[int], Starts]:
    """The trip counts of the loops over the tiles, and where a tile starts in terms of their levels."""
    counts, start = list[int](), list[Affine]()
    for d, (size, tile) in enumerate(zip(dims, partition.tile, strict=True)):
        dealt = clusters if d == partition.clusters else 1
        count = ceil_div(ceil_div(size, tile), dealt)
        own = Affine.index(len(counts), tile * dealt) if count > 1 else Affine()
        start.append(own + Affine(cluster=tile) if dealt > 1 else own)
        counts += [count] if count > 1 else []
    return counts, tuple(start)
