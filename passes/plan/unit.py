"""How a unit's output is cut into tiles: extents, the dimension dealt to clusters, where weights wait.

Source: docs/techniques/tfu.md, "On-chip unit map", rules 12 and 13 (in + out + weights + buffers fit SRAM); the
candidates are the halvings along each dimension, judged by modelled DRAM bytes and cycles.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target
from frustum.dialects.tile import TILE_LOOPS, Residency, SubMap
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import CONCAT, Layer
from frustum.passes.analysis.project import (
    Projection,
    Region,
    UnitLayers,
    Unprojectable,
    project,
    tile_counts,
)
from frustum.passes.plan.cost import footprint, held_bytes, loaded_elements, vector_bytes
from frustum.passes.plan.model import LARGEST_HEIGHTS, LOOKED_AT, OVERLAPPED, PASS_CYCLES, WIDEST
from frustum.passes.plan.pieces import LayerPlan, halves, plan_layer, work_of
from frustum.passes.plan.tile_search import SEARCHES, Search, find


@dataclass(frozen=True)
class UnitPlan:
    """A partition with the sub-maps of its layers and what the model expects of it."""

    partition: Partition
    maps: tuple[SubMap, ...]
    dram_bytes: int
    cycles: float
    """The longer of computing and DRAM transfers, and `OVERLAPPED` of both: what does not overlap."""


@dataclass(frozen=True)
class Budget:
    """What a plan may use: usable SRAM bytes of one cluster, images in one tile; and how tiles are looked for."""

    sram_bytes: int
    maps: int = 1
    search: Search = "all"


_PLANS: dict[Hashable, UnitPlan | None] = {}
MOST_PLANS = 20_000


def plan_unit(unit: UnitLayers, target: Target, budget: Budget) -> UnitPlan | None:
    """The cheapest partition of a unit that fits; None where none does.  Equal units are planned once."""
    key = (signature(unit), target, budget)
    if key not in _PLANS:
        if len(_PLANS) > MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = search(unit, target, budget)
    return _PLANS[key]


def signature(unit: UnitLayers) -> Hashable:
    """What a plan depends on of a unit's layers."""
    return tuple(
        (
            layer.kind,
            layer.out_dims,
            layer.maps,
            layer.out_bytes,
            layer.channel_bytes,
            tuple(layer.params.items()),
            tuple(s.layer for s in sources),
        )
        for layer, sources in zip(unit.layers, unit.sources, strict=True)
    )


def search(unit: UnitLayers, target: Target, budget: Budget) -> UnitPlan | None:
    """The best of the largest tiles that fit; of all tiles where none of those has pieces that fit the cores.

    With a `search`, the best of the tiles that it finds for each dimension that can be dealt to the clusters.
    Without one, the plan never moves more DRAM bytes than what any of the searches finds.
    """
    if budget.search not in ("all", "halvings"):
        return best_found(unit, target, budget)
    plan = search_among(unit, target, budget, largest=True) or search_among(unit, target, budget, largest=False)
    if plan is None or budget.search == "halvings" or is_one_pass(unit, plan, target):
        return plan
    return with_fewest_bytes(unit, target, budget, plan)


def is_one_pass(unit: UnitLayers, plan: UnitPlan, target: Target) -> bool:
    """Every cluster takes its share of the map at once, which is where every search begins."""
    return math.prod(tile_counts(unit.out.out_dims, plan.partition, target.chip.clusters)) == 1


def with_fewest_bytes(unit: UnitLayers, target: Target, budget: Budget, plan: UnitPlan) -> UnitPlan:
    """The plan, which has the fewest cycles of the halvings; or, where a search finds one that moves fewer bytes, the
    best in cycles of those that move no more than that."""
    rivals = [best_found(unit, target, replace(budget, search=name)) for name in SEARCHES]
    found = [rival for rival in rivals if rival is not None]
    most = min((rival.dram_bytes for rival in found), default=plan.dram_bytes)
    if plan.dram_bytes <= most:
        return plan
    fewer = search_among(unit, target, budget, largest=True, most_bytes=most)
    choices = [rival for rival in found if rival.dram_bytes <= most] + ([fewer] if fewer else [])
    return min(choices, key=lambda choice: (choice.cycles, choice.dram_bytes))


def best_found(unit: UnitLayers, target: Target, budget: Budget) -> UnitPlan | None:
    """The best plan among the tiles that the budget's search finds."""
    ranges: dict[int, tuple[Extents, Extents]] = {}
    for p in candidates(unit, target.chip.clusters, budget.maps):
        low, high = ranges.get(p.clusters, (p.tile, p.tile))
        ranges[p.clusters] = (_each(min, low, p.tile), _each(max, high, p.tile))
    plans = []
    for dimension, (least, whole) in ranges.items():

        def planned(tile: Extents, dimension: int = dimension) -> UnitPlan | None:
            counts = tile_counts(unit.out.out_dims, Partition(tile, dimension, 1), target.chip.clusters)
            only = [Partition(tile, dimension, 2 if math.prod(counts) > 1 else 1)]
            return search_among(unit, target, budget, largest=False, among=only)

        tile = find(budget.search, whole, least, lambda tile, planned=planned: planned(tile) is not None)  # type: ignore[misc]
        if tile is not None and (plan := planned(tile)) is not None:
            plans.append(plan)
    return min(plans, key=lambda plan: plan.cycles, default=None)


def _each(choose: Callable[[int, int], int], a: Extents, b: Extents) -> Extents:
    n, c, h, w = (choose(x, y) for x, y in zip(a, b, strict=True))
    return (n, c, h, w)


def search_among(
    unit: UnitLayers,
    target: Target,
    budget: Budget,
    *,
    largest: bool,
    among: Sequence[Partition] | None = None,
    most_bytes: int | None = None,
) -> UnitPlan | None:
    """The candidate with the fewest cycles of those that fit and move at most `most_bytes`: of all, of those `among`
    which to look, or of the `largest` in each column."""
    clusters = target.chip.clusters
    found = []
    widths: Counter[tuple[int, ...]] = Counter()
    for column in columns(unit, clusters, budget) if among is None else [[partition] for partition in among]:
        fitting = 0
        group = (column[0].clusters, *column[0].tile[:2])
        if largest and widths[group] == WIDEST:
            continue
        for partition in column:
            held = held_within(unit, partition, target, budget)
            if held is None:
                continue
            projection, residency, moved = held
            if most_bytes is not None and moved > most_bytes:
                continue
            passes = math.prod(tile_counts(unit.out.out_dims, partition, clusters))
            found.append(
                (moved + passes * PASS_CYCLES, moved, passes, partition, projection, residency)
            )
            fitting += 1
            if largest and fitting == LARGEST_HEIGHTS:
                break
        widths[group] += fitting > 0
    found.sort(key=lambda c: c[0])
    best: tuple[float, UnitPlan] | None = None
    for _, moved, passes, partition, projection, residency in enough(found) if largest else found:
        plans = layer_plans(unit, projection, target, residency, loops_left(unit, partition, clusters))
        if plans is None or not streams_fit(unit, partition, projection, plans, target, budget):
            continue
        compute = passes * (sum(p.cycles for p in plans) + PASS_CYCLES)
        transfer = moved / target.chip.dram.port_bytes_per_cycle
        score = max(compute, transfer) + OVERLAPPED * (compute + transfer)
        if best is None or score < best[0]:
            maps = tuple(p.map for p in plans)
            best = (score, UnitPlan(partition, maps, moved, score))
    return best[1] if best else None


def held_within(
    unit: UnitLayers, partition: Partition, target: Target, budget: Budget
) -> tuple[Projection, tuple[Residency, ...], int] | None:
    """Regions, where weights wait, and DRAM bytes; None where the unit cannot be cut so, or does not fit SRAM."""
    clusters = target.chip.clusters
    try:
        projection = project(unit, partition, clusters)
    except Unprojectable:
        return None
    residency = fit(unit, partition, projection, target, budget)
    if residency is None:
        return None
    return projection, residency, dram_bytes(unit, partition, projection, residency, clusters)


def enough(
    found: Sequence[tuple[float, int, int, Partition, Projection, tuple[Residency, ...]]],
) -> Iterator[tuple[float, int, int, Partition, Projection, tuple[Residency, ...]]]:
    """The cheapest candidates in DRAM bytes, some of each cluster dimension."""
    seen: dict[int, int] = {}
    for candidate in found:
        dimension = candidate[3].clusters
        seen[dimension] = seen.get(dimension, 0) + 1
        if seen[dimension] <= LOOKED_AT:
            yield candidate


def loops_left(unit: UnitLayers, partition: Partition, clusters: int) -> int:
    return MAX_LOOPS - sum(c > 1 for c in tile_counts(unit.out.out_dims, partition, clusters))


def splits_channels(unit: UnitLayers) -> bool:
    """A unit of one layer may be cut along channels; of a grouped convolution at group borders (`align`)."""
    return len(unit.layers) == 1 and 1 not in unit.out.axes_all


def alignment(unit: UnitLayers) -> Extents:
    """Multiples that tile extents must have, so that every projected start is exact."""
    n, c, h, w = (math.lcm(*(layer.align[d] for layer in unit.layers)) for d in range(4))
    out = unit.out
    if out.is_matrix and out.params["groups"] != 1:
        groups = out.params["groups"]
        assert isinstance(groups, int)
        c = out.out_dims[1] // groups
    return (n, c, h, w)


def columns(unit: UnitLayers, clusters: int, budget: Budget) -> Iterator[list[Partition]]:
    """Candidates that differ in height only, the highest first: lower ones never move fewer bytes."""
    found: dict[tuple[int, ...], list[Partition]] = {}
    for partition in candidates(unit, clusters, budget.maps):
        n, c, _, w = partition.tile
        found.setdefault((partition.clusters, n, c, w), []).append(partition)
    for column in found.values():
        yield sorted(column, key=lambda p: -p.tile[2])


def candidates(unit: UnitLayers, clusters: int, maps: int = 1) -> Iterator[Partition]:
    dims, align = unit.out.out_dims, alignment(unit)
    whole = {d for d in range(4) if dims[d] == 1 or d in unit.out.axes_all}
    if not splits_channels(unit):
        whole.add(1)
    across = (3, 1, 2, 0) if dims[3] > dims[2] else (2, 1, 3, 0)  # of equal ones the first: along most positions
    dealt_over = [d for d in across if d not in whole] or [2]
    for cluster_dim in dealt_over if clusters > 1 else dealt_over[:1]:
        choices = []
        for d in range(4):
            share = -(-dims[d] // clusters) if d == cluster_dim else dims[d]
            if d in whole:
                choices.append([dims[d]])
            elif d == 0:
                choices.append(halves(min(maps, share)))
            else:
                choices.append(halves(share, min(align[d], dims[d])))
        for n, c, h, w in itertools.product(*choices):
            partition = Partition((n, c, h, w), cluster_dim, 1)
            counts = tile_counts(dims, partition, clusters)
            depth = 2 if math.prod(counts) > 1 else 1
            yield Partition(partition.tile, cluster_dim, depth)


def tile_bytes(region: Region, element_bytes: int) -> int:
    return -(-region.elements * element_bytes // 16) * 16


def map_bytes(unit: UnitLayers, partition: Partition, projection: Projection) -> int:
    """SRAM bytes of all maps, as the lowering will allocate them: an input once however many layers read it, a part of
    a concatenation in its place of the whole, intermediate maps while they live."""
    needs = footprint(unit, partition, projection, [None] * len(unit.layers))
    return needs.crossing_bytes + needs.kept_bytes + needs.inside_bytes


def fit(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    target: Target,
    budget: Budget,
) -> tuple[Residency, ...] | None:
    """Where each layer's weights wait so that all fits SRAM: the largest are streamed first; None if nothing helps."""
    channels = [region.extent[1] for region in projection.outputs]
    copies = 2 if tile_counts(unit.out.out_dims, partition, target.chip.clusters)[1] > 1 else 1
    weights = [copies * held_bytes(layer, c) for layer, c in zip(unit.layers, channels, strict=True)]
    used = map_bytes(unit, partition, projection) + sum(
        copies * vector_bytes(layer, c) for layer, c in zip(unit.layers, channels, strict=True)
    )
    residency: list[Residency] = ["stream" if varies(layer) else "unit" for layer in unit.layers]
    free = budget.sram_bytes - used
    held = sum(w for w, r in zip(weights, residency, strict=True) if r == "unit")
    for j in sorted(range(len(weights)), key=lambda j: -weights[j]):
        if held > free and residency[j] == "unit" and weights[j]:
            residency[j] = "stream"
            held -= weights[j]
    return tuple(residency) if 0 <= held <= free else None


def varies(layer: Layer) -> bool:
    """The weights are another layer's output, one matrix per batch entry."""
    return layer.is_matrix and layer.params["weight_batch"] != 0


def layer_plans(
    unit: UnitLayers,
    projection: Projection,
    target: Target,
    residency: Sequence[Residency],
    loops: int,
) -> list[LayerPlan] | None:
    plans = []
    for j, layer in enumerate(unit.layers):
        if layer.kind == CONCAT:  # its operands are written in their place: no work of its own
            plans.append(LayerPlan(SubMap(projection.outputs[j].extent, 1), 0.0, 0, 0))
            continue
        extent = projection.operands[j][0].extent if layer.kind == "reduce" else projection.outputs[j].extent
        in_ring = projection.is_ring(unit.number_of(unit.sources[j][0]))
        plan = plan_layer(work_of(layer, extent, in_ring=in_ring), target, residency[j], loops)
        if plan is None:
            return None
        plans.append(plan)
    return plans


def streams_fit(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    plans: Sequence[LayerPlan],
    target: Target,
    budget: Budget,
) -> bool:
    """With the buffers of streamed weights and partial reductions everything still fits SRAM."""
    channels = [region.extent[1] for region in projection.outputs]
    copies = 2 if tile_counts(unit.out.out_dims, partition, target.chip.clusters)[1] > 1 else 1
    held = sum(
        copies
        * (vector_bytes(layer, c) + (held_bytes(layer, c) if p.map.weights == "unit" else 0))
        for layer, c, p in zip(unit.layers, channels, plans, strict=True)
    )
    streams = max((p.stream_bytes for p in plans), default=0)
    return map_bytes(unit, partition, projection) + held + streams <= budget.sram_bytes


def dram_bytes(
    unit: UnitLayers,
    partition: Partition,
    projection: Projection,
    residency: Sequence[Residency],
    clusters: int,
) -> int:
    """Modelled DRAM bytes: boxes of the inputs, weights as often as they are loaded, the output once."""
    counts = tile_counts(unit.out.out_dims, partition, clusters)
    total = math.prod(unit.out.out_dims) * unit.out.out_bytes
    for own, region in zip(unit.inputs, projection.inputs, strict=True):
        total += loaded_elements(region, own.dims, counts, clusters, TILE_LOOPS) * own.element_bytes
    for j, layer in enumerate(unit.layers):
        times = 1 if residency[j] == "unit" else counts[0] * counts[2] * counts[3]
        total += times * held_bytes(layer, layer.out_dims[1])
        total += vector_bytes(layer, layer.out_dims[1])
    return total
