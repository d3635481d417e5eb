# Tests: test/passes/tile/test_choose_runs.py
"""Which layers of a unit follow each other in the cores: runs, chosen by cost once the unit's tiles are known.

A map that one layer alone reads, and that does not leave the unit, may stay in the core.  Of all ways to part the
layers into runs the one with the fewest modelled cycles is taken, from the last layers back.
Where rows roll (borders `exchange`), layers whose maps stay in the core keep no rows between steps: their partition
says that they are made again, and steps of more rows are looked at, in which less is.  Where they do not, other strips
are (`other_strips`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from frustum.dialects.extents import ceil_div, replaced
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.tile import INPUTS, Access, Axis, Residency, SubMap, Whole
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.piece_nest import of_whole_groups
from frustum.passes.analysis.project import ROWS, Unprojectable
from frustum.passes.analysis.roll import COLUMNS
from frustum.passes.analysis.strips import handed
from frustum.passes.analysis.unit_layers import UnitLayers
from frustum.passes.plan.cost import CutUnit, UnitCost, stored_bytes
from frustum.passes.plan.layer_work import LayerPlan, can_run
from frustum.passes.plan.model import FEWEST_STRIPS, MOST_IN_RUN, RUN_BYTES, RUN_GAIN, STEPS_OF_RUNS
from frustum.passes.plan.run_layers import CHANNELS, Member, Side
from frustum.passes.plan.runs import RunPlan, plan_run
from frustum.passes.plan.unit import layer_plans

Runs: TypeAlias = Literal["auto", "none", "longest"]
"""Which runs a unit has: those that the model finds cheaper, none, as long ones as fit."""
RUNS: tuple[Runs, ...] = get_args(Runs)


@dataclass(frozen=True)
class Wanted:
    """What runs are to be like: which, and whether borders of pieces may be made again."""

    runs: Runs = "auto"
    overlap: bool = True


@dataclass(frozen=True)
class UnitRuns:
    """A unit with runs: how it is cut (which maps stay in the core), plans of all layers, of which the last of a run
    has the cycles of all, and what the unit costs so."""

    cut: CutUnit
    plans: tuple[LayerPlan | None, ...]
    cost: UnitCost


def choose_runs(
    cut: CutUnit, maps: Sequence[SubMap | None], wanted: Wanted, free_bytes: int = 0
) -> UnitRuns | None:
    """The runs of a unit whose layers have these sub-maps, perhaps with another partition that takes no more SRAM than
    it has now, or than `free_bytes`, and moves hardly more over the DRAM port; None where it is to have none."""
    plans = None if wanted.runs == "none" else planned(cut, maps)
    if plans is None:
        return None
    before, found = cut.cost(plans), []
    most, most_moved = max(before.sram.total_bytes, free_bytes), RUN_BYTES * before.dram_bytes
    for partition in partitions(cut, maps):
        own = with_partition(cut, partition, maps, wanted)
        if own is not None and own.cost.sram.total_bytes <= most and own.cost.dram_bytes <= most_moved:
            found.append(own)
    best = min(found, key=lambda own: rank(own, wanted), default=None)
    is_better = best is not None and (wanted.runs == "longest" or best.cost.cycles < RUN_GAIN * before.cycles)
    return best if is_better else None


def planned(
    cut: CutUnit, maps: Sequence[SubMap | None], *, anew: bool = False
) -> list[LayerPlan | None] | None:
    """What the layers take with their sub-maps, or with the best ones for how the unit is cut now (`anew`)."""
    residency: list[Residency] = ["unit" if each is None else each.weights for each in maps]
    is_summed = any(each is not None and each.cores == INPUTS for each in maps)
    sums_bytes = cut.target.cluster.sram.capacity_bytes if is_summed and not anew else 0
    plans = layer_plans(cut, residency, sums_bytes=sums_bytes)
    if plans is None or anew:
        return plans
    pairs = zip(plans, maps, strict=True)
    return [plan and replace(plan, map=submap or plan.map, stream_bytes=0) for plan, submap in pairs]


def rank(own: UnitRuns, wanted: Wanted) -> tuple[float, ...]:
    cycles = own.cost.cycles - stored_meanwhile(own)
    return (-len(own.cut.in_core), cycles) if wanted.runs == "longest" else (cycles,)


def stored_meanwhile(own: UnitRuns) -> float:
    """Cycles in which the last tile is stored while it is made, piece by piece (`lower/unit/piece_stores.py`); the cost
    of a unit has them behind it.  The last unit of mbconv_se_112_b4 (f16, `default`) takes 1.3 thousand cycles less in
    4 strips than in 7, which with all of the last tile behind it would take 2.4 thousand more.
    None on one cluster: larger steps there take SRAM from parts of tensors, as other strips do."""
    cut, last = own.cut, len(own.cut.unit.layers) - 1
    plan, region = own.plans[last], cut.projection.outputs[last]
    if cut.target.chip.clusters == 1 or plan is None or cut.partition.depth == 1:
        return 0.0
    if last in cut.kept or last not in cut.unit.stored:
        return 0.0
    pieces = 1
    for d, (size, piece) in enumerate(zip(region.extent, plan.map.extent, strict=True)):
        count = ceil_div(size, piece)
        pieces *= ceil_div(count, cut.target.cluster.cores) if d == plan.map.cores else count
    return stored_bytes(cut.unit.layers[last]) / cut.port_bytes_per_cycle / cut.turns * (1 - 1 / pieces)


def partitions(cut: CutUnit, maps: Sequence[SubMap | None]) -> Iterator[Partition]:
    """The unit's own partition, where rows roll those with more of them in a step, and where they do not those with
    other strips."""
    yield cut.partition
    tile = cut.partition.tile
    if any(each is not None and each.weights != "unit" for each in maps):
        return
    if cut.partition.borders != "exchange":
        yield from other_strips(cut)
        return
    for times in STEPS_OF_RUNS:
        if tile[ROWS] * times < cut.unit.out.out_dims[ROWS]:
            yield replace(cut.partition, tile=replaced(tile, ROWS, tile[ROWS] * times))


def other_strips(cut: CutUnit) -> Iterator[Partition]:
    """Equal strips of whole rows, or of whole columns, as many as the unit has tiles of an image, or down to half as
    many; of what is dealt to clusters as much as now.  Which strips the cores like best depends on the pieces of their
    runs, which the search over tiles does not know.  On one cluster none: what its units leave of SRAM goes to parts of
    tensors (`lower/hold_parts.py`), and a block of MobileNet (mb_16x112k3s2 in f16 on `edge`) moves 1.16 times the
    bytes with strips for the cores."""
    partition, dims, counts = cut.partition, cut.unit.out.out_dims, cut.projection.counts
    tiles = counts[ROWS] * counts[COLUMNS]
    if cut.target.chip.clusters == 1 or tiles == 1 or counts[CHANNELS] > 1 or partition.inside or partition.depth == 1:
        return
    whole, fewest = partition.tile, FEWEST_STRIPS if partition.clusters in (ROWS, COLUMNS) else 2
    for d in (ROWS, COLUMNS):
        if d != partition.clusters:
            whole = replaced(whole, d, dims[d])
    for d, strips in itertools.product((ROWS, COLUMNS), range(ceil_div(tiles, 2), tiles + 1)):
        tile = replaced(whole, d, dims[d] // strips)
        if d != partition.clusters and strips >= fewest and dims[d] % strips == 0 and tile != partition.tile:
            yield replace(partition, tile=tile)


def with_partition(
    cut: CutUnit, partition: Partition, maps: Sequence[SubMap | None], wanted: Wanted
) -> UnitRuns | None:
    """The unit with the best runs for a partition; None where it has none, or cannot be cut so."""
    try:
        own = CutUnit.of(cut.unit, partition, cut.target, cut.kept)
        plans = planned(own, maps, anew=partition != cut.partition)
        runs = [] if plans is None else Trees(own, plans, wanted).best()
        if plans is None or not runs:
            return None
        inside = frozenset(k for run in runs for k in (*run.maps, *run.places) if k != run.last)
        if partition.borders == "exchange":
            again = tuple(sorted(inside.union(partition.again)))
            own = CutUnit.of(cut.unit, replace(partition, again=again), cut.target, cut.kept)
    except Unprojectable:
        return None
    own = replace(own, in_core=inside)
    for run in runs:
        for number, submap in run.maps.items():
            cycles, alone = (run.cycles, run.core_cycles) if number == run.last else (0.0, 0.0)
            plans[number] = LayerPlan(submap, cycles, core_cycles=alone)
    return UnitRuns(own, tuple(plans), own.cost(plans))


@dataclass(frozen=True)
class Way:
    """Runs of some layers: maps that stay in the core, cycles of all these layers, runs of several layers."""

    inside: int = 0
    cycles: float = 0.0
    runs: tuple[RunPlan, ...] = ()

    def __add__(self, other: Way) -> Way:
        return Way(self.inside + other.inside, self.cycles + other.cycles, self.runs + other.runs)


class Trees:
    """The runs that the layers of a unit may have: each is a tree of layers, whose maps one layer reads each."""

    def __init__(self, cut: CutUnit, plans: Sequence[LayerPlan | None], wanted: Wanted):
        self.cut = cut
        self.unit: UnitLayers = cut.unit
        self.plans = plans
        self.wanted = wanted
        self.loops: int = MAX_LOOPS - sum(count > 1 for count in cut.projection.counts)
        self.ways: list[Way] = []
        for j in range(len(self.unit.layers)):
            self.ways.append(self.best_way(j))

    def best(self) -> list[RunPlan]:
        """The runs of the best way."""
        return [run for j, way in enumerate(self.ways) if not self.is_inner(j) for run in way.runs]

    def best_way(self, j: int) -> Way:
        """Of a layer with all before it whose maps nobody else reads."""
        plan = self.plans[j]
        if plan is None:
            return sum((self.ways[i] for i in self.inner_sources(j)), Way())
        ways = [way for tree in self.trees(j, MOST_IN_RUN) if (way := self.way_of(tree)) is not None]
        if self.wanted.runs == "longest":
            return min(ways, key=lambda way: (-way.inside, way.cycles))
        return min(ways, key=lambda way: way.cycles)

    def way_of(self, tree: Member) -> Way | None:
        """A run and the best way of what it reads; None where it does not fit or does not pay."""
        members = list(tree.members)
        before = sum((self.ways[i] for member in members for i in self.read_from_sram(member)), Way())
        in_turn = sum(self.cycles_of(member.number) for member in members)
        if len(members) == 1:
            return Way(0, in_turn) + before
        if self.plan_of(tree.number).map.weights == "core":
            return None
        most = math.inf if self.wanted.runs == "longest" else in_turn
        extent = self.cut.projection.outputs[tree.number].extent
        partition, where = self.cut.partition, self.plan_of(tree.number).map.weights
        owned = partition.beside if partition.owners == "cores" else None
        run = plan_run(tree, extent, self.cut.target, where, self.loops, most, owned)
        return None if run is None else Way(len(members) - 1, run.cycles, (run,)) + before

    def trees(self, j: int, most: int) -> Iterator[Member]:
        """All runs of at most so many layers that a layer may end; alone first."""
        layer = self.unit.layers[j]
        own = [self.operands(j, k, most - 1) for k in range(len(layer.maps))] if can_run(layer) else []
        for operands in itertools.product(*own) if own else [(None,) * len(layer.maps)]:
            found = Member(j, layer, operands)
            if len(list(found.members)) <= most:
                yield found
                if layer.depthwise_steps:
                    yield replace(found, on_vector=True)
                    yield replace(found, on_vector=True, is_shared=True)

    def operands(self, j: int, k: int, most: int) -> list[Member | Side | None]:
        """What a run may make of operand k of layer j: nothing first."""
        layer, i = self.unit.layers[j], self.unit.sources[j][k].layer
        access = layer.maps[k].access
        if i is None or most < 1 or not self.is_inner(i) or not self.may_read(access):
            return [None]
        if self.unit.layers[i].kind.is_copied and not reads_all_channels(layer, k):
            return [None]
        if not self.unit.layers[i].kind.is_place:
            return [None, *(self.trees(i, most) if self.may_stay(i) else ())]
        parts = [source.layer for source in self.unit.sources[i]]
        is_run = all(
            part is not None
            and self.is_inner(part)
            and self.may_stay(part)
            and can_run(self.unit.layers[part])
            and self.unit.places.get(part) == (i, n)
            for n, part in enumerate(parts)
        )
        if not is_run:
            return [None]
        ways = itertools.product(*(list(self.trees(part, most)) for part in parts if part is not None))
        return [None, *(Side(i, self.unit.layers[i].out_dims, way) for way in ways)]

    def may_read(self, access: Access) -> bool:
        """Whether an operand may be made in the core: at the reader's own positions, and, if it must be, once."""
        images, channels, *plane = of_whole_groups(access)
        cut = [axis for axis in (images, channels, *plane) if isinstance(axis, Axis)]
        is_whole = any(isinstance(axis, Whole) and axis.size > 1 for axis in (images, *plane))
        overlaps = any(isinstance(axis, Axis) and axis.reach + 1 > axis.num for axis in plane)
        return not is_whole and all(axis.den == 1 for axis in cut) and (self.wanted.overlap or not overlaps)

    def may_stay(self, i: int) -> bool:
        """Whether a layer's map may stay in the core: its weights wait in SRAM meanwhile.  One that is copied takes its
        channels from all over its operand: tiles must have all of them."""
        layer, plan = self.unit.layers[i], self.plans[i]
        partition, channels = self.cut.partition, self.unit.out.out_dims[1]
        if layer.kind.is_copied and (partition.clusters == 1 or partition.tile[1] < channels):
            return False
        is_held = plan is not None and plan.map.weights == "unit" and not self.is_handed_on(i)
        return is_held and (can_run(layer) or layer.kind.is_copied) and not layer.kind.knows_position

    def is_handed_on(self, i: int) -> bool:
        """Whether clusters send each other parts of a layer's map, which they do from SRAM."""
        projection, beside = self.cut.projection, self.cut.partition.clusters
        is_alone = self.cut.target.chip.clusters == 1 or not projection.held
        return not is_alone and any(handed(projection.outputs[i], projection.held[i], beside))

    def is_inner(self, j: int) -> bool:
        """Whether one layer alone reads a layer's map."""
        return len(self.unit.consumers[j]) == 1 and j not in self.unit.stored

    def inner_sources(self, j: int) -> list[int]:
        """The layers whose maps this one alone reads."""
        return [s.layer for s in self.unit.sources[j] if s.layer is not None and self.is_inner(s.layer)]

    def read_from_sram(self, member: Member) -> list[int]:
        """The same of a layer of a run, without what the run makes."""
        pairs = zip(self.unit.sources[member.number], member.operands, strict=True)
        return [
            s.layer for s, made in pairs if made is None and s.layer is not None and self.is_inner(s.layer)
        ]

    def plan_of(self, j: int) -> LayerPlan:
        plan = self.plans[j]
        assert plan is not None
        return plan

    def cycles_of(self, j: int) -> float:
        return self.plan_of(j).cycles


def reads_all_channels(layer: Layer, k: int) -> bool:
    """Whether a layer's result needs all channels of operand k: of what is loaded as it is read none is left out."""
    axis, channels = layer.maps[k].access[CHANNELS], layer.maps[k].dims[CHANNELS]
    return isinstance(axis, Whole) or (axis.low == 0 and axis.extent(layer.out_dims[CHANNELS]) >= channels)
