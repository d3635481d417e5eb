# Tests: test/passes/plan/test_rounds.py
"""A product whose operand does not fit SRAM beside the result: input channels in rounds, sums in the result's tile.

Each round takes some input channels of the map and of the weights from DRAM, and adds their products to all of the
tile: so a tile may be as large as SRAM, and map and weights are read once for each tile.  A residual comes in the last
round, piece by piece.  Sums wait between rounds in
the element type: where they are to wait in f32 (`--carry f32`) a product of f16 or bf16 is cut otherwise.

Source: Smith, Lowery, Langou, van de Geijn (arXiv 1702.02017): a product moves fewest bytes where the result stays and
both factors stream; sums "rounded to the element type go back in" as the machine has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import ConvLayer, SubMap
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import SAME4
from frustum.passes.analysis.project import UnitLayers, Unprojectable
from frustum.passes.plan.core_weights import loops_of, work_in
from frustum.passes.plan.cost import CutUnit, UnitCost, stored_bytes, stream_bytes
from frustum.passes.plan.layer_work import LayerPlan, LayerWork, may_add_sums
from frustum.passes.plan.model import LOOKED_AT, MOST_ROUNDS, ROUND_RUN_BYTES
from frustum.passes.plan.piece_extents import halves
from frustum.passes.plan.pieces import plan_layer

WIDE = 4
"""Bytes of f32."""
Chunks = Callable[[Target, int], Target]
"""The target as pieces must see it to stream weights in chunks of at most so many bytes."""


def may_round(unit: UnitLayers) -> bool:
    """Whether a unit is one product of floats of one image, whose map is not in SRAM and is read once."""
    if len(unit.layers) != 1 or not isinstance(unit.out.kind, ConvLayer):
        return False
    layer, first = unit.out, unit.sources[0][0]
    alone = first.input is not None and all(s.value is not first.value for s in unit.sources[0][1:])
    if layer.keeps_sums_wide and layer.out_bytes < WIDE:
        return False
    plain = all(view.block == 1 for view in (layer.out_view, *(m.view for m in layer.maps)))
    return alone and plain and may_add_sums(layer, unit.out.kind) and not unit.inputs[0].resident


def cuts_in_rounds(
    unit: UnitLayers, partitions: Iterable[Partition], target: Target, sram_bytes: int, most_bytes: int
) -> list[tuple[CutUnit, int]]:
    """The unit cut in these ways with one copy of each tile, where tiles fit and fewer than `most_bytes` move; with
    these bytes, those with the fewest first."""
    found: dict[Partition, tuple[CutUnit, int]] = {}
    for partition in partitions:
        one = partition if partition.depth == 1 else replace(partition, depth=1)
        if one in found:
            continue
        try:
            cut = replace(CutUnit.of(unit, one, target), in_rounds=True)
        except Unprojectable:
            continue
        moved = cut.traffic(("stream",), is_alone=True)
        if moved < most_bytes and cut.footprint().total_bytes < sram_bytes:
            found[one] = cut, moved
    return sorted(found.values(), key=lambda each: each[1])[:LOOKED_AT]


def plan_rounds(
    cut: CutUnit, target: Target, sram_bytes: int, chunks: Chunks, *, in_place: bool = False
) -> LayerPlan | None:
    """The pieces of a round and how many channels it takes, the most that fit; None where none do.  `in_place`: sums
    continue what is added, in its place."""
    layer, size = cut.unit.out, cut.unit.inputs[0].element_bytes
    work, left = work_in(cut, 0), sram_bytes - cut.footprint().total_bytes
    if in_place:
        work = replace(work, accesses=work.accesses[:1], map_bytes=work.map_bytes[:1])
    region = cut.projection.inputs[0]
    positions = region.elements // region.extent[1]
    least = min(work.channels, ceil_div(ROUND_RUN_BYTES, size))
    for inputs in halves(work.channels, least=least)[1:]:
        rounds = ceil_div(work.channels, inputs)
        of_map = 2 * aligned(positions * inputs * size)
        if of_map >= left or rounds > MOST_ROUNDS:
            continue
        room = (left - of_map) // 2
        whole = layer.out_dims[1] * inputs * math.prod(work.kernel) * work.weight_bytes
        plan = pieces_of_round(work, inputs, chunks(target, min(room, max(aligned(whole), 1))), loops_of(cut) - 1)
        held = 0 if plan is None else plan.stream_bytes + of_map + added_bytes(cut, plan.map)
        if plan is not None and held <= left:
            submap = replace(plan.map, in_rounds=True)
            cycles = rounds * plan.cycles
            return LayerPlan(submap, cycles, held, 0, rounds * plan.own_cycles)
    return None


def added_bytes(cut: CutUnit, submap: SubMap) -> int:
    """SRAM for both copies of what all cores add to their pieces, as it comes from DRAM in the last round."""
    dealt = math.prod(submap.extent) * cut.target.cluster.cores
    loaded = (m for m, source in zip(cut.unit.out.maps[1:], cut.unit.sources[0][1:], strict=True)
              if source.input is not None and not cut.unit.inputs[source.input].resident)  # fmt: skip
    return sum(2 * aligned(dealt * m.element_bytes) for m in loaded)


def pieces_of_round(work: LayerWork, inputs: int, target: Target, loops: int) -> LayerPlan | None:
    """The fastest pieces of a round of `inputs` channels, with the sums that come and go; None where the channels of a
    piece are fewer, a core has one piece only, or its buffers do not fit it with two copies of each."""
    sums = replace(
        work,
        channels=inputs,
        accesses=(*work.accesses, SAME4),
        map_bytes=(*work.map_bytes, work.out_bytes),
        may_add_sums=False,
        may_compact=False,
        steps=(),
    )
    plan = plan_layer(sums, target, "stream", loops)
    if plan is None or plan.map.channels < inputs:
        return None
    extent, core = plan.map.extent, target.core
    counts = [ceil_div(size, piece) for size, piece in zip(work.extent, extent, strict=True)]
    counts[plan.map.cores] = ceil_div(counts[plan.map.cores], target.cluster.cores)
    read = [axis.extent(size) for axis, size in zip(work.accesses[0], extent, strict=True)]
    in_bytes = aligned(math.prod(read) // read[1] * inputs * work.map_bytes[0])
    made = sum(aligned(math.prod(extent) * each) for each in (work.out_bytes, *work.map_bytes[1:]))
    vectors = sum(aligned(extent[1] * each) for each in work.channel_bytes)
    weights = aligned(extent[1] * inputs * math.prod(work.kernel) * work.weight_bytes)
    fits = 2 * (in_bytes + made + vectors) <= core.nram.capacity_bytes
    fits &= 2 * (weights + vectors) <= core.wram.capacity_bytes
    return plan if fits and math.prod(counts) > 1 else None


def kept_in_rounds(
    unit: UnitLayers, target: Target, sram_bytes: int, chunks: Chunks, *, in_place: bool
) -> tuple[Partition, SubMap, UnitCost] | None:
    """A product on one cluster in rounds, whose result stays in SRAM beside `sram_bytes` for the rest, or `in_place` of
    what it adds; None where it is none, or no pieces fit."""
    if target.chip.clusters > 1 or not may_round(unit):
        return None
    partition = Partition(unit.out.out_dims, 3, 1)
    cut = replace(CutUnit.of(unit, partition, target, {0}), in_rounds=True)
    plan = plan_rounds(cut, target, sram_bytes, chunks, in_place=in_place)
    return None if plan is None else (partition, plan.map, cost_of(cut, plan, cut.traffic(("stream",))))


def cost_of(cut: CutUnit, plan: LayerPlan, moved: int) -> UnitCost:
    """What the unit costs with these pieces.  The result goes when the last round is over: nothing is computed then."""
    left = 0 if cut.kept else stored_bytes(cut.unit.out) / cut.port_bytes_per_cycle
    cycles = cut.in_turn_cycles([plan], moved + short_chunks(cut, plan)) + left
    sram = cut.footprint(("stream",), stream_bytes([plan]))
    return UnitCost(sram, moved, cycles, cut.parts([plan]))


def short_chunks(cut: CutUnit, plan: LayerPlan) -> int:
    """Bytes for which the port is busy beside those that move: channels of a round, and of a piece of what is added,
    lie apart in each position."""
    least, total, unit = cut.target.chip.dram.minimum_run_bytes, 0, cut.unit
    channels = plan.map.channels, plan.map.extent[1]
    for operand, own, count, moved in zip(unit.out.maps, unit.inputs, channels, cut.loaded_bytes, strict=False):
        run = count * operand.element_bytes
        if operand.view.strides[1] == 1 and run < least and not own.resident:
            total += moved * (least - run) // run
    return total
