# Tests: test/passes/plan/test_tile_search.py
"""How a unit's output is cut into tiles: extents, the dimension dealt to clusters, where weights wait.

Source: docs/techniques/tfu.md, "On-chip unit map", rules 12 and 13 (in + out + weights + buffers fit SRAM); the
candidates are the halvings along each dimension, judged by modelled DRAM bytes and cycles.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from frustum.dialects.extents import Extents, replaced
from frustum.dialects.target import Target
from frustum.dialects.tile import AttentionLayer, Residency, SubMap, Whole
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import ROWS, UnitLayers, Unprojectable, tile_counts
from frustum.passes.plan.attention.streamed_attention import plan_streamed
from frustum.passes.plan.core_weights import beside_kept, kept_in_cores, loops_of, work_in
from frustum.passes.plan.cost import CutUnit, UnitCost, held_bytes, residency_of, stream_bytes
from frustum.passes.plan.layer_work import LayerPlan
from frustum.passes.plan.model import LARGEST_HEIGHTS, LOOKED_AT, MOST_PLANS, OWNED, PASS_CYCLES, WIDEST
from frustum.passes.plan.partitions import candidates, columns, partition_of
from frustum.passes.plan.pieces import plan_layer
from frustum.passes.plan.rounds import cost_of, cuts_in_rounds, kept_in_rounds, may_round, plan_rounds
from frustum.passes.plan.tile_search import SEARCHES, Search, find_tile


@dataclass(frozen=True)
class UnitPlan:
    """A partition with the sub-maps of its layers (None: no work), and what the model expects of it."""

    partition: Partition
    maps: tuple[SubMap | None, ...]
    cost: UnitCost

    @property
    def dram_bytes(self) -> int:
        return self.cost.dram_bytes

    @property
    def cycles(self) -> float:
        return self.cost.cycles


@dataclass(frozen=True)
class Budget:
    """What a plan may use: usable SRAM bytes of one cluster, images in one tile; and which tiles it may have."""

    sram_bytes: int
    maps: int = 1
    search: Search = "all"
    inside: bool = False
    """Tiles of which the channels are the innermost loop, and no others."""
    kept: frozenset[int] = frozenset()
    """Layers whose maps stay in SRAM, in bytes that are not among these."""


KnownTiles: TypeAlias = dict[tuple[int, Extents], "UnitPlan | None"]
"""Plans by the dimension dealt to the clusters and the tile."""
_PLANS: dict[Hashable, UnitPlan | None] = {}


def plan_unit(unit: UnitLayers, target: Target, budget: Budget) -> UnitPlan | None:
    """The cheapest partition of a unit that fits; None where none does.  Equal units are planned once."""
    key = (signature(unit), tuple(each.resident for each in unit.inputs), target, budget)
    if key not in _PLANS:
        if len(_PLANS) > MOST_PLANS:
            _PLANS.clear()
        found = cheapest(unit, target, budget)
        _PLANS[key] = found if budget.inside or budget.search != "all" else in_rounds(unit, target, budget, found)
    return _PLANS[key]


def in_rounds(unit: UnitLayers, target: Target, budget: Budget, plan: UnitPlan | None) -> UnitPlan | None:
    """The plan, or that of a product in rounds of input channels where this moves fewer bytes."""
    if not may_round(unit):
        return plan
    least = CutUnit.of(unit, Partition(unit.out.out_dims, 3, 1), target).traffic(("unit",), is_alone=True)
    if plan is not None and plan.dram_bytes <= least:
        return plan
    most = 1 << 62 if plan is None else plan.dram_bytes
    best = plan
    for cut, moved in cuts_in_rounds(
        unit, candidates(unit, target.chip.clusters), target, budget.sram_bytes, most
    ):
        if best is not plan and best is not None and moved > best.dram_bytes:
            break  # those with the fewest bytes come first
        pieces = plan_rounds(cut, target, budget.sram_bytes, with_chunks)
        if pieces is None:
            continue
        rival = UnitPlan(cut.partition, (pieces.map,), cost_of(cut, pieces, moved))
        if best is None or (rival.dram_bytes, rival.cycles) < (best.dram_bytes, best.cycles):
            best = rival
    return best


def plan_kept(unit: UnitLayers, target: Target, sram_bytes: int, *, in_place: bool) -> UnitPlan | None:
    """A product in rounds whose result stays in SRAM (`kept_in_rounds`)."""
    found = kept_in_rounds(unit, target, sram_bytes, with_chunks, in_place=in_place)
    return None if found is None else UnitPlan(found[0], (found[1],), found[2])


def plan_beside(
    unit: UnitLayers, target: Target, sram_bytes: int, chunk_bytes: int, kept: Collection[int] = (),
    search: Search = "all",
) -> UnitPlan | None:  # fmt: skip
    """The cheapest partition of a unit that finds inputs in SRAM, and leaves the maps of the layers `kept` there,
    beside all of which it has so many bytes, with exact numbers."""
    for beside in dict.fromkeys([frozenset[int](), frozenset(kept)]):  # with a tile of what stays too, or else without
        plan = plan_unit(unit, target, Budget(sram_bytes, search=search, kept=beside))
        if plan is None:
            continue
        streamed = sum(m is not None and m.weights == "stream" for m in plan.maps)
        found = evaluate(unit, plan.partition, streamed, kept, target, sram_bytes, chunk_bytes)
        if found is not None:
            return found
    return None


def signature(unit: UnitLayers) -> Hashable:
    """What a plan depends on of a unit's layers."""
    return tuple(
        (
            layer.kind,
            layer.out_dims,
            layer.maps,
            layer.out_bytes,
            layer.keeps_sums_wide,
            layer.channel_bytes,
            tuple(s.layer for s in sources),
        )
        for layer, sources in zip(unit.layers, unit.sources, strict=True)
    )


# ---------------------------------------------------------------- which tiles


@dataclass(frozen=True)
class FittingCut:
    """A unit cut so that its maps and weights fit SRAM: where weights wait, DRAM bytes."""

    cut: CutUnit
    residency: tuple[Residency, ...]
    dram_bytes: int

    @property
    def rank(self) -> int:
        """What is small where few bytes move in few passes: which of many are looked at."""
        return self.dram_bytes + self.cut.passes * PASS_CYCLES

    def with_more_streamed(self) -> FittingCut | None:
        """The largest of the weights that wait in SRAM streamed too, where there is no room for the chunks of others;
        None where no others are, none wait, or that moves more."""
        weights = self.cut.held_weights()
        waiting = [j for j, where in enumerate(self.residency) if where == "unit" and weights[j]]
        if not waiting or "stream" not in self.residency:
            return None
        residency = replaced(self.residency, max(waiting, key=lambda j: weights[j]), "stream")
        moved = self.cut.traffic(residency, is_alone=True)
        return FittingCut(self.cut, residency, moved) if moved <= self.dram_bytes else None


def cheapest(unit: UnitLayers, target: Target, budget: Budget) -> UnitPlan | None:
    """The best of the largest tiles that fit; of all tiles where none of those has pieces that fit the cores.

    With a `search`, the best of the tiles that it finds for each dimension that can be dealt to the clusters.
    Without one, the plan never moves more DRAM bytes than what any of the searches finds.
    """
    if is_streamed(unit):
        return plan_with_keys(unit, target, budget.sram_bytes)
    if budget.search not in ("all", "halvings"):
        return found_by_search(unit, target, budget)
    plan = best_halving(unit, target, budget) or best_halving(unit, target, budget, is_thorough=True)
    if has_values_in_parts(unit):
        return with_one_copy(unit, target, budget, plan)
    if plan is None or budget.search == "halvings" or budget.inside or is_one_pass(unit, plan, target):
        return plan
    return with_fewest_bytes(unit, target, budget, plan)


def is_streamed(unit: UnitLayers) -> bool:
    """Attention whose keys and values come while it computes."""
    return isinstance(unit.out.kind, AttentionLayer) and unit.out.kind.is_batched


def plan_with_keys(
    unit: UnitLayers, target: Target, sram_bytes: int, partition: Partition | None = None
) -> UnitPlan | None:
    """How such attention is cut, or the partition with its sub-map."""
    plan = plan_streamed(unit, target, sram_bytes, partition)
    return None if plan is None else UnitPlan(plan.partition, (plan.map,), plan.cost)


def has_values_in_parts(unit: UnitLayers) -> bool:
    """Attention alone of which each tile has some channels of the values, and all of queries and keys."""
    kind = unit.out.kind
    is_attention = isinstance(kind, AttentionLayer) and not kind.is_batched and len(unit.layers) == 1
    return is_attention and isinstance(unit.out.maps[0].access[1], Whole)


def with_one_copy(unit: UnitLayers, target: Target, budget: Budget, plan: UnitPlan | None) -> UnitPlan | None:
    """The plan, or one with one copy of each tile where this moves fewer bytes: keys and a part of the values stay for
    all queries, so that a second copy of them would wait long for its turn."""
    cuts = (
        cut_within(unit, replace(each, depth=1), target, budget, plan.dram_bytes - 1 if plan else None)
        for each in candidates(unit, target.chip.clusters, budget.maps)
    )
    found = sorted((cut for cut in cuts if cut is not None), key=lambda cut: cut.rank)
    if not found:
        return plan
    least = [cut for cut in found if cut.dram_bytes <= found[0].dram_bytes]
    return fastest(least, budget) or plan


def is_one_pass(unit: UnitLayers, plan: UnitPlan, target: Target) -> bool:
    """Every cluster takes its share of the map at once, which is where every search begins."""
    return math.prod(tile_counts(unit.out.out_dims, plan.partition, target.chip.clusters)) == 1


def with_fewest_bytes(unit: UnitLayers, target: Target, budget: Budget, plan: UnitPlan) -> UnitPlan:
    """The plan, which has the fewest cycles of the halvings; or, where a search finds one that moves fewer bytes, the
    best in cycles of those that move no more than that."""
    known: KnownTiles = {}
    rivals = [found_by_search(unit, target, replace(budget, search=name), known) for name in SEARCHES]
    found = [rival for rival in rivals if rival is not None]
    most = min((rival.dram_bytes for rival in found), default=plan.dram_bytes)
    if plan.dram_bytes <= most:
        return plan
    fewer = best_halving(unit, target, budget, most)
    choices = [rival for rival in found if rival.dram_bytes <= most] + ([fewer] if fewer else [])
    return min(choices, key=lambda choice: (choice.cycles, choice.dram_bytes))


def found_by_search(
    unit: UnitLayers, target: Target, budget: Budget, known: KnownTiles | None = None
) -> UnitPlan | None:
    """The fastest of the tiles that the budget's search finds, one for each dimension dealt to the clusters; `known`
    are those that another search has planned."""
    tiles: dict[int, list[Extents]] = {}
    for p in candidates(unit, target.chip.clusters, budget.maps, inside=budget.inside):
        tiles.setdefault(p.clusters, []).append(p.tile)
    known = {} if known is None else known
    plans = [found_along(unit, target, budget, *of_dimension, known) for of_dimension in tiles.items()]
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.cycles, default=None)


def found_along(
    unit: UnitLayers, target: Target, budget: Budget, dimension: int, tiles: Sequence[Extents], known: KnownTiles
) -> UnitPlan | None:
    """The tile that the budget's search finds between the least and the largest of these."""

    def planned(tile: Extents) -> UnitPlan | None:
        if (dimension, tile) not in known:
            partition = partition_of(unit.out.out_dims, tile, dimension, target.chip.clusters)
            cut = cut_within(unit, partition, target, budget)
            known[dimension, tile] = None if cut is None else fastest([cut], budget)
        return known[dimension, tile]

    least, whole = (tuple(map(choose, zip(*tiles, strict=True))) for choose in (min, max))
    tile = find_tile(budget.search, whole, least, lambda tile: planned(tile) is not None)
    return None if tile is None else planned(tile)


def best_halving(
    unit: UnitLayers,
    target: Target,
    budget: Budget,
    most_bytes: int | None = None,
    *,
    is_thorough: bool = False,
) -> UnitPlan | None:
    """The fastest of the halvings that fit and move at most `most_bytes`: of the largest in each column, the cheapest
    of them, or of all (`is_thorough`)."""
    found: list[FittingCut] = []
    widths: Counter[tuple[int, ...]] = Counter()
    for column in columns(unit, target.chip.clusters, budget.maps, inside=budget.inside):
        group = (column[0].clusters, column[0].depth * column[0].inside, *column[0].tile[:2])
        if widths[group] < WIDEST or is_thorough:
            cuts = (cut_within(unit, partition, target, budget, most_bytes) for partition in column)
            fitting = (cut for cut in cuts if cut is not None)
            heights = list(itertools.islice(fitting, None if is_thorough else LARGEST_HEIGHTS))
            found += heights
            widths[group] += bool(heights)
    found.sort(key=lambda cut: cut.rank)
    return fastest(found if is_thorough else first_of_each(found), budget)


def first_of_each(cuts: Iterable[FittingCut]) -> Iterator[FittingCut]:
    """The first `LOOKED_AT` of each cluster dimension."""
    seen: Counter[int] = Counter()
    for cut in cuts:
        dimension = cut.cut.partition.clusters
        seen[dimension] += 1
        if seen[dimension] <= LOOKED_AT:
            yield cut


def fastest(cuts: Iterable[FittingCut], budget: Budget) -> UnitPlan | None:
    """The first of those with the fewest cycles, of the cuts for which all layers have pieces and these fit SRAM."""
    best: UnitPlan | None = None
    for found in cuts:
        cut, moved = found.cut, found.dram_bytes
        one_copy = cut.partition.inside and cut.partition.depth == 1
        waited = one_copy * cut.traffic() / cut.port_bytes_per_cycle  # nothing is computed while the only copies move
        if best is not None and cut.least_cycles(moved) + waited >= best.cycles:
            continue
        best = with_pieces(found, budget, waited, math.inf if best is None else best.cycles) or best
    return best


def with_pieces(found: FittingCut, budget: Budget, waited: float, most_cycles: float) -> UnitPlan | None:
    """A cut with pieces of its layers that fit SRAM, with more weights streamed where they else do not; None where some
    layer has none, or it takes no fewer cycles than this."""
    cut: CutUnit = found.cut
    trial: FittingCut | None = found
    while trial is not None:
        left = budget.sram_bytes - cut.footprint(trial.residency).total_bytes
        plans = layer_plans(cut, trial.residency, sums_bytes=left)
        if plans is None:
            return None
        cycles = cut.in_turn_cycles(plans, trial.dram_bytes) + waited
        if cycles >= most_cycles:
            return None
        sram = cut.footprint(residency_of(plans), stream_bytes(plans), grain=1)
        if sram.total_bytes <= budget.sram_bytes:
            cost = UnitCost(sram, trial.dram_bytes, cycles, cut.parts(plans))
            return UnitPlan(cut.partition, maps_of(plans), cost)
        trial = trial.with_more_streamed()
    return None


def cut_within(
    unit: UnitLayers, partition: Partition, target: Target, budget: Budget, most_bytes: int | None = None
) -> FittingCut | None:
    """The unit cut so; None where it cannot be, does not fit SRAM, or moves more than `most_bytes`."""
    try:
        cut = CutUnit.of(unit, partition, target, budget.kept)
    except Unprojectable:
        return None
    residency = fit(cut, budget)
    if residency is None:
        return None
    moved = cut.traffic(residency, is_alone=True)
    return FittingCut(cut, residency, moved) if most_bytes is None or moved <= most_bytes else None


def fit(cut: CutUnit, budget: Budget) -> tuple[Residency, ...] | None:
    """Where each layer's weights wait so that all fits SRAM: the largest are streamed first; None if nothing helps."""
    weights, residency = cut.held_weights(), residencies(cut.unit)
    free = budget.sram_bytes - cut.footprint(grain=1).total_bytes
    held = sum(w for w, r in zip(weights, residency, strict=True) if r == "unit")
    for j in sorted(range(len(weights)), key=lambda j: -weights[j]):
        if held > free and residency[j] == "unit" and weights[j]:
            residency[j] = "stream"
            held -= weights[j]
    return tuple(residency) if 0 <= held <= free else None


# ---------------------------------------------------------------- a partition with exact numbers


def evaluate(
    unit: UnitLayers,
    partition: Partition,
    streamed: int,
    kept: Collection[int],
    target: Target,
    free_bytes: int,
    chunk_bytes: int,
    *,
    in_cores: bool = False,
) -> UnitPlan | None:
    """The unit with this partition and its `streamed` largest weights streamed, or where the cores have room for those
    of several images, or of one too (`in_cores`), there; None where it does not fit.

    Where pieces with small chunks of weights do not exist, or buffers are larger than the search thought, more of the
    weights may be streamed.
    """
    if is_streamed(unit):
        return plan_with_keys(unit, target, free_bytes, partition)
    try:
        cut = CutUnit.of(unit, partition, target, kept)
    except Unprojectable:
        return None
    residency = residencies(unit, streamed)
    left = free_bytes - cut.footprint(residency).total_bytes
    if left < 0:
        return None
    whole = (ROWS,) if partition.borders == "raster" else ()  # bands of rows are told apart when code is made
    chunk = max(chunk_bytes, left // 2)
    kept = kept_in_cores(cut, residency, with_chunks(target, chunk), whole, for_one_image=in_cores)
    tried = (layer_plans(cut, residency, chunk, whole, left, some) for some in ([kept, {}] if kept else [kept]))
    plans = next((plans for plans in tried if plans is not None), None)
    if plans is None:
        return None
    found = cut.cost(plans)
    return UnitPlan(partition, maps_of(plans), found) if found.sram.total_bytes <= free_bytes else None


def with_owners(
    unit: UnitLayers, plan: UnitPlan, kept: Collection[int], target: Target, free_bytes: int, chunk_bytes: int
) -> UnitPlan:
    """The plan, or the same with the cores as owners, where rows roll through one cluster and that costs next to no
    cycles: then a core takes nothing of the others but what its windows read beyond its strip."""
    partition, streamed = plan.partition, sum(m is not None and m.weights != "unit" for m in plan.maps)
    if partition.borders != "exchange" or target.chip.clusters > 1 or target.cluster.cores == 1:
        return plan
    own = replace(partition, owners="cores")
    found = evaluate(unit, own, streamed, kept, target, free_bytes, chunk_bytes)
    if found is None or found.dram_bytes > plan.dram_bytes or found.cycles > OWNED * plan.cycles:
        return plan
    return found


def residencies(unit: UnitLayers, streamed: int = 0) -> list[Residency]:
    """Where each layer's weights wait: the `streamed` largest are streamed, and those that another layer makes."""
    sizes = [held_bytes(layer, layer.out_dims[1]) for layer in unit.layers] if streamed else []
    largest = sorted((j for j in range(len(sizes)) if sizes[j]), key=lambda j: -sizes[j])[:streamed]
    return [
        "stream" if j in largest or layer.kind.is_batched else "unit" for j, layer in enumerate(unit.layers)
    ]


def layer_plans(
    cut: CutUnit,
    residency: Sequence[Residency],
    chunk_bytes: int | None = None,
    whole: tuple[int, ...] = (),
    sums_bytes: int = 0,
    known: Mapping[int, LayerPlan] = MappingProxyType({}),
) -> list[LayerPlan | None] | None:
    """The pieces of every layer (None: its operands are written in their place), with the dimensions `whole` not cut,
    streamed weights in chunks of at most so many bytes and sums of the cores in `sums_bytes`; None where some layer
    has none that fit.  Of some they are `known`: weights that stay in the cores."""
    target, loops = beside_kept(cut.target, known), loops_of(cut)
    plans: list[LayerPlan | None] = []
    is_streaming = "stream" in residency
    sums = (
        0 if sums_bytes <= 0 or is_streaming else 1 << (sums_bytes.bit_length() - 1)
    )  # few: answers are kept
    for j, layer in enumerate(cut.unit.layers):
        if layer.kind.is_place or j in known:
            plans.append(known.get(j))
            continue
        work = work_in(cut, j, whole)
        is_chunked = residency[j] == "stream" and chunk_bytes is not None
        machine = with_chunks(target, chunk_bytes) if is_chunked else target
        plan = plan_layer(work, machine, residency[j], loops, sums)
        if plan is None:
            return None
        plans.append(plan)
    return plans


def maps_of(plans: Sequence[LayerPlan | None]) -> tuple[SubMap | None, ...]:
    return tuple(None if plan is None else plan.map for plan in plans)


@lru_cache(maxsize=64)
def with_chunks(target: Target, chunk_bytes: int) -> Target:
    """The target as `plan_layer` must see it to stream weights in chunks of at most so many bytes."""
    sram = replace(target.cluster.sram, capacity_bytes=4 * chunk_bytes)
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, sram=sram)))
