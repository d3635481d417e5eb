"""A group of a solution with exact numbers: its partition, its layers' maps, and whether it really fits.

The search works with bounds on what streams and pieces need; here `project`, `plan_layer` and `footprint` decide.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from xdsl.ir import Operation, SSAValue

from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target
from frustum.dialects.tile import ROLLING_LOOPS, TILE_LOOPS, Residency, SubMap
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import ROWS, Projection, UnitLayers, Unprojectable, project
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.cost import (
    Footprint,
    compute_cycles,
    footprint,
    held_bytes,
    loaded_elements,
    overlapped,
    traffic,
    weight_bytes,
)
from frustum.passes.plan.model import OVERLAPPED, PASS_CYCLES
from frustum.passes.plan.pieces import LayerPlan, plan_layer, work_of
from frustum.passes.plan.unit import varies


@dataclass(frozen=True)
class Evaluation:
    """A unit that fits: partition, sub-maps of its layers (None: no work), bytes and cycles."""

    partition: Partition
    maps: tuple[SubMap | None, ...]
    footprint: Footprint
    dram_bytes: int
    cycles: float


def unit_of(
    ops: Sequence[Operation], outputs: Sequence[SSAValue], resident: Collection[SSAValue]
) -> UnitLayers:
    return layers_of(list(ops), list(outputs), resident)


def evaluate(
    unit: UnitLayers,
    partition: Partition,
    streamed: int,
    kept: Collection[int],
    target: Target,
    free_bytes: int,
    chunk_bytes: int,
) -> Evaluation | None:
    """The unit with this partition and its `streamed` largest weights streamed; None where it does not fit.

    Where pieces with small chunks of weights do not exist, or buffers are larger than the search thought, more of the
    weights may be streamed.
    """
    clusters = target.chip.clusters
    try:
        projection = project(unit, partition, clusters)
    except Unprojectable:
        return None
    loops = MAX_LOOPS - sum(count > 1 for count in projection.counts)
    residency = residencies(unit, streamed)
    unplanned = [LayerPlan(SubMap((1, 1, 1, 1), 0, weights=r), 0.0, 0, 0) for r in residency]
    left = free_bytes - footprint(unit, partition, projection, unplanned, kept).total_bytes
    whole = (ROWS,) if partition.borders == "raster" else ()  # bands of rows are told apart when code is made
    plans = plans_of(unit, projection, target, residency, loops, max(chunk_bytes, left // 2), whole)
    if plans is None:
        return None
    needs = footprint(unit, partition, projection, plans, kept)
    if needs.total_bytes > free_bytes:
        return None
    moved = traffic(unit, partition, projection, plans, clusters, kept)
    passes = 1
    for count in projection.counts:
        passes *= count
    compute = passes * (sum(p.cycles for p in plans if p is not None) + PASS_CYCLES)
    transfer = moved / target.chip.dram.port_bytes_per_cycle
    cycles = max(compute, transfer) + OVERLAPPED * (compute + transfer)
    if unit.out.out_dims[0] == 1:
        cycles = one_image_cycles(unit, partition, projection, plans, target, kept, moved)
    cycles += waits(unit, partition, projection, plans, target, kept)
    return Evaluation(partition, tuple(p.map if p else None for p in plans), needs, moved, cycles)


def one_image_cycles(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    plans: Sequence[LayerPlan | None],
    target: Target,
    kept: Collection[int],
    moved: int,
) -> float:
    """Cycles of a unit of one image, by the passes in which each layer has something to do."""
    rate, passes = target.chip.dram.port_bytes_per_cycle, math.prod(projection.counts)
    maps = traffic(unit, partition, projection, [None] * len(plans), target.chip.clusters, kept)
    compute = compute_cycles(unit, projection, plans, target.chip.clusters)
    held = sum(
        weight_bytes(x, x.out_dims[1])
        for x, p in zip(unit.layers, plans, strict=True)
        if p is not None and p.map.weights == "unit"
    )
    padding = short_runs(unit, projection, target, kept)
    waited = held / rate if passes > 1 else 0.0
    return float(
        overlapped(compute, (moved + padding) / rate, (maps + padding) / rate, waited, passes, partition.depth == 1)
    )


def short_runs(unit: UnitLayers, projection: Projection, target: Target, kept: Collection[int]) -> int:
    """Bytes for which the DRAM port is busy in addition where boxes are so narrow that their rows are short runs."""
    least, total = target.chip.dram.minimum_run_bytes, 0
    inputs = zip(projection.inputs, unit.inputs, strict=True)
    stored = zip(projection.stores, unit.stored, strict=False)
    boxes = [(r, x.dims, x.element_bytes) for r, x in inputs if not x.resident]
    boxes += [(r, unit.layers[j].out_dims, unit.layers[j].out_bytes) for r, j in stored if j not in kept]
    for region, dims, element_bytes in boxes:
        run = region.extent[3] * element_bytes
        if region.extent[3] < dims[3] and run < least:
            total += math.prod(dims) * element_bytes * (least - run) // run
    return total


def waits(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    plans: Sequence[LayerPlan | None],
    target: Target,
    kept: Collection[int],
) -> float:
    """Cycles in which the cores wait for maps of several images: of the first and last pass of each innermost loop, and
    of one copy what is not loaded behind its last reader, or stored before its maker in the next pass."""
    counts, rate = projection.counts, target.chip.dram.port_bytes_per_cycle
    rolls = partition.borders == "exchange"
    runs = max(counts[2], 1) if rolls else max(counts[0], counts[3] if counts[3] > 1 else counts[2])
    passes, is_one = math.prod(counts), partition.depth == 1 and math.prod(counts) > 1
    if unit.out.out_dims[0] == 1:  # bytes decide, and of equal ones the cycles of the cores
        return 0.0
    took = [0.0 if p is None else p.cycles for p in plans]
    order = ROLLING_LOOPS if rolls else TILE_LOOPS
    total = 0.0
    for k, (own, region) in enumerate(zip(unit.inputs, projection.inputs, strict=True)):
        if not own.resident:
            moved = loaded_elements(region, own.dims, counts, target.chip.clusters, order) * own.element_bytes / rate
            readers = [j for j, sources in enumerate(unit.sources) if any(s.input == k for s in sources)]
            spare = passes * sum(took[max(readers, default=0) + 1 :])
            total += moved / runs + is_one * max(0.0, moved - spare)
    for j in unit.stored:
        if j not in kept:
            moved = math.prod(unit.layers[j].out_dims) * unit.layers[j].out_bytes / rate
            spare = passes * sum(took[:j])
            total += moved / runs + is_one * max(0.0, moved - spare)
    return total


def residencies(unit: UnitLayers, streamed: int) -> list[Residency]:
    """Where each layer's weights wait: the `streamed` largest are streamed, and those that another layer makes."""
    sizes = [held_bytes(layer, layer.out_dims[1]) for layer in unit.layers]
    largest = sorted((j for j in range(len(sizes)) if sizes[j]), key=lambda j: -sizes[j])[:streamed]
    return ["stream" if j in largest or varies(layer) else "unit" for j, layer in enumerate(unit.layers)]


def plans_of(
    unit: UnitLayers,
    projection: Projection,
    target: Target,
    residency: Sequence[Residency],
    loops: int,
    chunk_bytes: int,
    whole: tuple[int, ...] = (),
) -> list[LayerPlan | None] | None:
    """The pieces of every layer, with the dimensions `whole` not cut; None where some layer has none that fit."""
    plans: list[LayerPlan | None] = []
    for j, layer in enumerate(unit.layers):
        if layer.kind == "concat":
            plans.append(None)
            continue
        extent = projection.operands[j][0].extent if layer.kind == "reduce" else projection.outputs[j].extent
        machine = target if residency[j] == "unit" else with_chunks(target, chunk_bytes)
        work = work_of(layer, extent, in_ring=projection.is_ring(unit.number_of(unit.sources[j][0])))
        plan = plan_layer(replace(work, whole=(*work.whole, *whole)), machine, residency[j], loops)
        if plan is None:
            return None
        plans.append(plan)
    return plans


@lru_cache(maxsize=64)
def with_chunks(target: Target, chunk_bytes: int) -> Target:
    """The target as `plan_layer` must see it to stream weights in chunks of at most so many bytes."""
    sram = replace(target.cluster.sram, capacity_bytes=4 * chunk_bytes)
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, sram=sram)))
