# Tests: test/passes/lower/unit/test_streamed_attention.py
"""How attention is cut whose keys and values do not fit SRAM: tiles of as many rows of queries as fit, in as few passes
over the keys as possible; in memory that is left blocks of keys and values stay over all passes.  Where no other core
wants them, the others come from DRAM to WRAM directly, of which some may hold keys that stay, too.

Source: Dao et al., FlashAttention, 2022, section 3.1 (rows of queries in SRAM, blocks of keys); what stays of the keys
while rows change takes from every pass but the first what it would read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from frustum.dialects.extents import Extents, aligned, ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import AttentionLayer, SubMap, Whole
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import UnitLayers, tile_counts
from frustum.passes.plan.attention.attention_pieces import (
    CHANNELS,
    IMAGES,
    ROWS,
    SCORE_COPIES,
    SUM_COPIES,
    WIDE,
    copied,
    is_scaled_before,
    matrix_cycles,
    row_counts,
    score_bytes,
    score_size,
    vector_cycles,
)
from frustum.passes.plan.cost import CostParts, CutUnit, Footprint, UnitCost
from frustum.passes.plan.layer_work import LayerWork, work_of
from frustum.passes.plan.model import MOST_STEPS, PIECE_CYCLES
from frustum.passes.plan.piece_extents import halves

LEAST_KEYS = 8
"""Of a block."""
MORE_BYTES = 1.006
"""Times the fewest bytes that a plan may move which takes fewer cycles: one head of 2048 x 64 in f16 on `edge` moves
1.333 MB in 2.3 M cycles with blocks of 16 keys, 1.327 MB in 4.5 M with blocks of 8."""
ROUNDING = 128
"""Bytes that buffers of a tile lose to alignment."""
FURTHER = 2
"""Numbers of passes that are looked at: the least, and one more, which leaves room for larger blocks."""


@dataclass(frozen=True)
class StreamedPlan:
    """A partition with its sub-map, and what it costs."""

    partition: Partition
    map: SubMap
    cost: UnitCost
    steps: int
    """Times that a core sees a block of keys with a piece of rows."""


def plan_streamed(
    unit: UnitLayers, target: Target, sram_bytes: int, given: Partition | None = None
) -> StreamedPlan | None:
    """The fastest of those that move next to the fewest bytes, with the partition that is `given`, if one is; None
    where nothing fits.  Keys that come to the core directly leave its pieces fewer rows: of sums in the element's type,
    which move next to nothing more without, only where cycles rise by no larger factor than bytes fall."""
    (layer,) = unit.layers
    kind = layer.kind
    assert isinstance(kind, AttentionLayer)
    partitions = [given] if given is not None else list(partitions_of(layer, kind, target, sram_bytes))
    found: list[StreamedPlan] = []
    for partition in partitions:
        if partition.tile[:2] == (1, kind.group_channels) and partition.borders == "overlap":
            cut = CutUnit.of(unit, partition, target)
            found += (plan for plan in plans_of(cut, layer, kind, sram_bytes) if plan is not None)
    if not found:
        return None
    found = [plan for plan in found if plan.steps <= MOST_STEPS] or found
    best, through_sram = fastest(found), [plan for plan in found if not plan.map.direct]
    if kind.is_wide or not through_sram:
        return best
    return min(best, fastest(through_sram), key=lambda plan: plan.cost.cycles * plan.cost.dram_bytes)


def fastest(found: Sequence[StreamedPlan]) -> StreamedPlan:
    """Of those that move next to the fewest bytes."""
    most = MORE_BYTES * min(plan.cost.dram_bytes for plan in found)
    return min((plan for plan in found if plan.cost.dram_bytes <= most), key=lambda plan: plan.cost.cycles)


def partitions_of(layer: Layer, kind: AttentionLayer, target: Target, sram_bytes: int) -> Iterator[Partition]:
    """Tiles of one group of heads, of as many rows as fit, for each dimension that may be dealt to the clusters."""
    rows, clusters = layer.out_dims[ROWS], target.chip.clusters
    row, fixed = tile_bytes(layer, kind)
    room = sram_bytes - fixed - 2 * block_bytes(layer, kind, LEAST_KEYS)
    most = room // row
    if is_direct(target):
        room += 2 * block_bytes(layer, kind, LEAST_KEYS)
    if most < 1:
        return
    in_cores = kind.is_wide * target.cluster.cores * target.core.nram.capacity_bytes
    at_best = min((room + in_cores) // row, room // (row - kind.is_wide * kind.group_channels * WIDE))
    groups = layer.out_dims[1] // kind.group_channels
    for dealt, count in ((ROWS, rows), (CHANNELS, groups), (IMAGES, layer.out_dims[0])):
        if dealt != ROWS and (count == 1 or clusters == 1):
            continue
        own = ceil_div(rows, clusters) if dealt == ROWS else rows
        for passes in range(ceil_div(own, at_best), ceil_div(own, most) + FURTHER):
            yield Partition((1, kind.group_channels, 1, ceil_div(own, passes)), dealt, 1)


def is_direct(target: Target) -> bool:
    """Whether keys and values may come from DRAM to WRAM without waiting in SRAM: where no other core wants them."""
    return target.chip.clusters * target.cluster.cores == 1


def tile_bytes(layer: Layer, kind: AttentionLayer) -> tuple[int, int]:
    """SRAM of one row of a tile: of its operands, its result, its maxima and sums; and what is so for any rows."""
    size = layer.out_bytes
    state = score_size(kind, size) + WIDE
    result = 0 if is_in_place(layer, kind) else size
    row, fixed = kind.share * (kind.value_size * (result + WIDE * kind.is_wide) + state), 0
    for operand in layer.maps:
        extents = [axis.extent(own) for axis, own in zip(operand.access, (1, kind.group_channels, 1, 1), strict=True)]
        own = math.prod(extents) * operand.element_bytes
        row, fixed = (row, fixed + own) if isinstance(operand.access[ROWS], Whole) else (row + own, fixed)
    return row, fixed + ROUNDING


def is_in_place(layer: Layer, kind: AttentionLayer) -> bool:
    """Whether results lie where queries lay: wide ones do not until all blocks have been seen."""
    queries, *mask = layer.maps
    is_alike = kind.size == kind.value_size and queries.element_bytes == layer.out_bytes
    return kind.is_wide and not mask and is_alike and queries.view == layer.out_view


def state_bytes(layer: Layer, kind: AttentionLayer, rows: int, in_core: int) -> int:
    """SRAM of what lies there of a tile's rows between blocks: maxima, sums, and results that are wider than the
    result's tile, but for the last channels of these."""
    sums = aligned(rows * kind.share * score_size(kind, layer.out_bytes)) + aligned(rows * kind.share * WIDE)
    return int(sums + kind.is_wide * aligned(rows * kind.share * (kind.value_size - in_core) * WIDE))


def maps_footprint(cut: CutUnit, layer: Layer, kind: AttentionLayer) -> Footprint:
    """SRAM of the tile of queries, that of the result, and a mask."""
    plain = cut.footprint()
    if not is_in_place(layer, kind):
        return plain
    result = aligned(cut.projection.outputs[0].elements * layer.out_bytes)
    return replace(plain, crossing_bytes=plain.crossing_bytes - result)


def block_bytes(layer: Layer, kind: AttentionLayer, keys: int) -> int:
    size = layer.out_bytes
    return int(aligned(keys * kind.size * size) + aligned(keys * kind.value_size * size))


def plans_of(cut: CutUnit, layer: Layer, kind: AttentionLayer, sram_bytes: int) -> Iterator[StreamedPlan | None]:
    """With blocks of so many keys, and pieces of so many rows, the most blocks that can stay."""
    cores, core = cut.target.cluster.cores, cut.target.core
    rows = cut.partition.tile[ROWS]
    work = work_of(layer, cut.projection.outputs[0].extent)
    fixed = maps_footprint(cut, layer, kind).total_bytes
    for keys, chunk in chunks_of(layer, kind, core.wram.capacity_bytes):
        for piece in row_counts(ceil_div(rows, cores), core.matrix.lines, kind.share):
            pieces = ceil_div(rows, piece * cores)
            room = core.nram.capacity_bytes - nram_bytes(work, kind, piece, keys, is_looped=pieces > 1)
            if room < 0:
                continue
            most = min(kind.value_size - 1, room // (kind.share * pieces * piece * WIDE)) if kind.is_wide else 0
            for in_core in {0, most}:
                left = sram_bytes - fixed - state_bytes(layer, kind, rows, in_core)
                submap = SubMap(
                    (1, kind.group_channels, 1, piece), ROWS, keys, weights="stream", chunk=chunk,
                    in_place=is_in_place(layer, kind), in_core=in_core,
                )  # fmt: skip
                for own in with_held(cut, layer, kind, submap, left):
                    yield costed(cut, layer, kind, work, own)


def with_held(cut: CutUnit, layer: Layer, kind: AttentionLayer, submap: SubMap, left: int) -> Iterator[SubMap]:
    """With as many chunks of keys that stay from pass to pass as have room, in so many bytes of SRAM, and, where blocks
    come to the only core directly, beside one or two of these in its WRAM too."""
    size, passes = block_bytes(layer, kind, submap.chunk), row_passes(cut)
    most = ceil_div(kind.keys, submap.chunk) - 1 if passes > 1 else 0
    in_turn = 2 * block_bytes(layer, kind, submap.channels)
    if left >= 2 * size and in_turn <= cut.target.core.wram.capacity_bytes:
        yield replace(submap, held=min((left - 2 * size) // size, most))
    groups = layer.out_dims[0] * layer.out_dims[1] // kind.group_channels
    for copies in (1, 2) if left >= 0 and is_direct(cut.target) else ():
        free = cut.target.core.wram.capacity_bytes - copies * block_bytes(layer, kind, submap.channels)
        if free >= 0:
            in_wram = min(free // size // (2 if groups > 1 else 1), most)
            yield replace(submap, held=min(left // size, most - in_wram), in_wram=in_wram, direct=copies)


def chunks_of(layer: Layer, kind: AttentionLayer, wram_bytes: int) -> Iterator[tuple[int, int]]:
    """Keys of a block, of which one fits WRAM, and of a chunk, in which they come there."""
    for chunk in halves(kind.keys, LEAST_KEYS):
        for times in (1, 2, 4, 8, 16):
            keys = chunk * times
            if keys < kind.keys and block_bytes(layer, kind, keys) <= wram_bytes:
                yield keys, chunk


def row_passes(cut: CutUnit) -> int:
    """Passes over the keys of one group of heads."""
    return cut.projection.counts[ROWS]


def nram_bytes(work: LayerWork, kind: AttentionLayer, rows: int, keys: int, *, is_looped: bool) -> int:
    """What a piece needs of a core."""
    size, queries = work.map_bytes[0], kind.share * rows
    copies, blocks = (2, SCORE_COPIES) if is_looped else (1, 1)
    total = copies * aligned(queries * kind.size * size) * (2 if is_scaled(work, kind) else 1)
    total += score_bytes(kind, queries, keys, size, blocks)
    wide = aligned(queries * kind.value_size * WIDE)
    sums = SUM_COPIES if is_looped else 1
    total += sums * wide if kind.is_wide else 2 * copies * aligned(queries * kind.value_size * size) + copies * wide
    total += 2 * copies * aligned(queries * score_size(kind, size)) + (2 * copies + 3) * aligned(queries * WIDE)
    if len(work.accesses) > 1:
        total += copies * aligned(keys * queries * size)
    return int(total)


def is_scaled(work: LayerWork, kind: AttentionLayer) -> bool:
    """Whether queries are scaled before the product."""
    return len(work.accesses) > 1 or is_scaled_before(replace(work, accesses=()), kind)


def costed(
    cut: CutUnit, layer: Layer, kind: AttentionLayer, work: LayerWork, submap: SubMap
) -> StreamedPlan | None:
    """What a sub-map costs: SRAM, DRAM bytes, cycles."""
    target, keys, rows = cut.target, submap.channels, submap.extent[ROWS]
    tile_rows = cut.partition.tile[ROWS]
    blocks, block, chunk = ceil_div(kind.keys, keys), block_bytes(layer, kind, keys), submap.chunk
    size = block_bytes(layer, kind, chunk)
    state = state_bytes(layer, kind, tile_rows, submap.in_core)
    plain = maps_footprint(cut, layer, kind)
    footprint = replace(plain, kept_bytes=plain.kept_bytes + state, weight_bytes=submap.held * size,
                        stream_bytes=0 if submap.direct else 2 * size)  # fmt: skip
    counts: Extents = tile_counts(layer.out_dims, cut.partition, target.chip.clusters)
    read = kind.keys + (counts[ROWS] - 1) * (kind.keys - (submap.held + submap.in_wram) * chunk)
    groups = layer.out_dims[0] * layer.out_dims[1] // kind.group_channels
    streamed = groups * read * (kind.size + kind.value_size) * layer.out_bytes
    maps = cut.traffic(is_alone=True)
    pieces = ceil_div(tile_rows, rows * target.cluster.cores)
    matrix = matrix_cycles(work, kind, target, rows, keys)
    vector = vector_cycles(work, kind, target, rows, keys, 2)
    cores = target.cluster.cores
    size = layer.out_bytes
    results = 2 * (WIDE * (kind.value_size - submap.in_core) if kind.is_wide else kind.value_size * size)
    sums = 2 * (score_size(kind, size) + WIDE)
    moved = copied(target, kind.share * rows * (kind.size * size + results + sums), cores)
    block_load = copied(target, block, 1)
    if submap.direct:
        block_load = block / min(target.core.iodma.bytes_per_cycle, cut.port_bytes_per_cycle)
    busiest = max(matrix, vector, moved)
    of_block = pieces * (busiest + PIECE_CYCLES) + matrix + vector if pieces > 1 else matrix + vector + moved
    with_load = of_block + block_load if submap.direct == 1 else max(of_block, block_load) + block_load / 4
    work_cycles = math.prod(counts) * blocks * with_load
    port = (maps + streamed) / cut.port_bytes_per_cycle
    cycles = max(work_cycles, port) + maps / cut.port_bytes_per_cycle
    stored = maps - sum(cut.loaded_bytes)
    parts = CostParts(
        math.ceil(work_cycles), streamed, maps - stored, stored, cut.passes, footprint.total_bytes, 0,
        stream_cycles=math.ceil(max(work_cycles, streamed / cut.port_bytes_per_cycle)),
    )  # fmt: skip
    steps = math.prod(counts) * blocks * pieces
    return StreamedPlan(cut.partition, submap, UnitCost(footprint, maps + streamed, cycles, parts), steps)
