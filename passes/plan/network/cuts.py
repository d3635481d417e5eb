# Tests: test/passes/plan/network/test_optimal.py
"""The cut points of a whole network by dynamic programming, with the maps that stay in SRAM across each cut as state.

Exact for one order of the layers as long as no cut has more than `MOST_STATES` sets of resident maps; else the best of
them are kept, by bytes so far and bytes that must still be read.
Source: Occam (doi 10.1145/3566052), tpu-mlir's interval programming; states as in Fusion's "keep a small set for each
prefix" (FFM).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, ceil_div
from frustum.dialects.module import JOINT, PART_OF_SUM
from frustum.dialects.share_done import tell
from frustum.dialects.target import Target
from frustum.dialects.target.durations import byte_energy_pj, mac_energy_pj
from frustum.dialects.tile import Whole
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import tile_counts
from frustum.passes.plan.model import ALIKE_BYTES, BYTE_WEIGHTS, MOST_STATES, OVERLAPPED
from frustum.passes.plan.network.candidates import HUGE, Setting, UnitChoice
from frustum.passes.plan.network.cut_states import Cut, CutState, Lengths
from frustum.passes.plan.network.kept import NOTHING, WHOLE, KeptMap, Resident, place_for, written_over
from frustum.passes.plan.network.known_prices import KnownPrices
from frustum.passes.plan.network.layer_order import LayerOrder, Read
from frustum.passes.plan.network.prices import frontier_of, starts_of
from frustum.passes.plan.network.tile_shapes import Ints
from frustum.passes.plan.network.ways import Limits, Ways, ways_by
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit

READ_AT_LEAST = 0.5
"""Share of a map that is read throughout which is moved at least: rows and columns at its ends may be needed by nobody.
"""


@dataclass
class Solution:
    """The units of a whole order, by the model of the search."""

    order: LayerOrder
    choices: list[UnitChoice]
    bytes: int
    cycles: int


@dataclass
class CutSearch:
    """The dynamic programme over one order."""

    setting: Setting
    longest: int = 96
    """Layers of a group."""
    most_states: int = MOST_STATES
    seams: frozenset[int] | None = None
    """Where cuts are looked for; None: everywhere."""
    bound: int = HUGE
    """No more bytes than this: what a quick search has found."""
    banned: dict[tuple[int, int], set[tuple[Resident, Resident]]] = field(default_factory=dict)
    """Of layers [first, stop): maps that they find and leave in SRAM with which they do not fit after all."""
    costs: dict[int, int] = field(default_factory=dict)
    """Of layers alone, by the cut behind each: bytes with all maps in DRAM."""
    known: KnownPrices = field(default_factory=KnownPrices)
    capacity: int = 0
    """Of SRAM, if it is less than the setting's."""
    within_bound: bool = False
    """The fewest cycles with no more bytes than the bound are looked for."""

    def __post_init__(self) -> None:
        self.order: LayerOrder = self.setting.order
        self.capacity = self.capacity or self.setting.capacity
        self.lengths: Lengths = Lengths(self.longest, self.seams)
        self.rest: list[int] = rest_of(self.order)
        own = (node.weight_bytes + node.vector_bytes for node in self.order.nodes)
        self.weights: list[int] = [*itertools.accumulate(own, initial=0)]
        """Of all layers before each cut, in bytes."""
        self.surely_read: list[int] = surely_read(self.order)
        self.cuts: list[Cut] = [Cut([CutState(0, 0)])]
        self.single: list[CutState] = []
        """Ways to a cut by what is no group."""
        self.ways: Ways | None = None
        """Those by groups."""
        self.numbers: dict[Resident, int] = {}
        """Of the sets of maps that stay behind the cut that is being reached."""

    def solve(self, after: int = 0) -> Solution | None:
        """The cheapest way through all layers; None if some layer fits in no way.

        What was found before up to the cut `after` is taken as it is.
        """
        count = len(self.order.nodes)
        self.cuts = [*self.cuts[: after + 1], *(Cut([]) for _ in range(after, count))]
        for stop in range(after + 1, count + 1):
            tell(stop / (count + 1))
            if self.seams is None or stop in self.seams:
                self.single, self.ways, self.numbers = [], None, {}
                self.reach(stop)
                self.cuts[stop] = Cut(reached(self, stop))
                if not any(cut.states for cut in self.cuts[max(0, stop - self.lengths.reaching) : stop + 1]):
                    return None
        end = min(self.cuts[count].states, key=self.rank, default=None)
        if end is None:
            return None
        choices = []
        at: CutState | None = end
        while at is not None and at.choice is not None:
            choices.append(at.choice)
            at = at.before
        return Solution(self.order, choices[::-1], end.bytes, end.cycles)

    def ends(self) -> list[tuple[int, int]]:
        """Bytes and cycles of the ways through that were found, by ascending bytes and descending cycles."""
        return sorted((state.bytes, state.cycles) for state in self.cuts[-1].states) if self.solve() else []

    def rank(self, state: CutState) -> tuple[float, float]:
        """What is to be least at the end."""
        if self.within_bound:
            return state.cycles, state.bytes
        return self.setting.cost(state.bytes, state.cycles)

    # ------------------------------------------------------------ ways to a cut

    def reach(self, stop: int) -> None:
        """Find all ways to a cut."""
        node = self.order.nodes[stop - 1]
        if node.layer is None:
            self.move(stop)
            return
        if node.is_concat:
            self.side_by_side(stop)
        if node.batched_weights:
            self.alone(stop)
            return
        channel_wise = self.known.of_channels(self.setting, stop) if self.cuts[stop - 1].states else None
        beyond = stop - 1 if node.is_concat else stop  # alone it is a name for what is there
        behind = self.weights[stop] + self.rest[stop]
        wanted = [
            first
            for first in range(beyond - 1, self.lengths.farthest(stop) - 1, -1)
            if self.cuts[first].states
            and self.cuts[first].least.min() - self.weights[first] + behind <= self.bound
        ]
        groups = [
            *([] if channel_wise is None else [channel_wise]),
            *self.known.before(self.setting, stop, wanted),
        ]
        cuts = [self.cuts[prices.group.first] for prices in groups]
        limits = Limits(self.capacity, self.bound, self.rest[stop], self.within_bound)
        self.ways = ways_by(groups, cuts, limits, self.banned, self.known.answers, self.numbers)
        if not node.is_concat:
            self.alone(stop)
            self.beside(stop)
            self.by_heads(stop)

    def arrive(self, stop: int, state: CutState, choice: UnitChoice) -> None:
        """Take note of a way to a cut by a layer alone."""
        byte_pj = self.setting.byte_pj
        beside = 0 if byte_pj is None else int(choice.energy_pj / byte_pj)
        bytes_, cycles = state.bytes + choice.bytes + beside, state.cycles + choice.cycles
        if bytes_ + self.rest[stop] > self.bound:
            return
        left = frozenset(m for m in choice.kept | state.maps if self.order.maps[m.map].last_use >= stop)
        self.numbers.setdefault(left, len(self.numbers))
        self.single.append(CutState(bytes_, cycles, left, state, choice))

    def move(self, stop: int) -> None:
        """A layer that only moves data: from DRAM to DRAM."""
        reads, made = self.order.nodes[stop - 1].reads, self.order.maps[stop - 1]
        choice = self.copied(
            stop, 0 if self.order.is_row(stop - 1) else sum(r.bytes for r in reads) + made.bytes
        )
        for state in self.cuts[stop - 1].states:
            self.arrive(stop, state, choice)

    def side_by_side(self, stop: int) -> None:
        """A concatenation alone, with all that it reads in DRAM: a name for what is there, or a copy."""
        operands, maps = {r.map for r in self.order.nodes[stop - 1].reads}, self.order.maps
        choice = self.copied(stop, 0 if self.order.is_place(stop - 1) else 2 * maps[stop - 1].bytes)
        for state in self.cuts[stop - 1].states:
            if all(maps[m.map].needs_dram for m in state.maps if m.map in operands):
                self.arrive(stop, state, choice)

    def copied(self, stop: int, moved: int) -> UnitChoice:
        """A layer alone that moves so many bytes."""
        return UnitChoice(stop - 1, stop, moved, moved // self.setting.port_rate, self.capacity)

    def alone(self, stop: int) -> None:
        """A layer as `plan_unit` cuts it, by channels too, where nothing is in SRAM beside it and its maps and weights
        do not fit at once."""
        node, setting = self.order.nodes[stop - 1], self.setting
        states = self.cuts[stop - 1].with_maps(NOTHING)
        if not states:
            return
        if stop not in self.costs:
            self.costs[stop] = HUGE if setting.fastest else self.least_alone(stop)
        dims = self.order.layer(stop - 1).out_dims
        made = self.order.maps[stop - 1].bytes
        moved = made + sum(needed_bytes(read, dims) for read in node.reads)
        if isinstance(node.op, g.PickOp):
            moved = 2 * made  # a box that leaves channels out in between is larger: a tile for each channel
        least = node.weight_bytes + node.vector_bytes + moved
        if self.costs[stop] <= least and not self.banned.get((stop - 1, stop)):
            return
        plan = plan_unit(self.known.layer_alone(setting, stop), setting.target, Budget(self.capacity))
        if plan is None:
            return
        if not (
            setting.once and is_read_again(plan, self.order.layer(stop - 1), setting.target.chip.clusters)
        ):
            energy = energy_alone(self.order.layer(stop - 1), node.weight_bytes, setting.target)
            choice = UnitChoice(
                stop - 1, stop, plan.dram_bytes, int(plan.cycles), self.capacity, energy_pj=energy
            )
            ways = [choice, *channels_inside(choice, setting, self.capacity, self.known)]
            for state, way in itertools.product(states, ways):
                self.arrive(stop, state, way)

    def beside(self, stop: int) -> None:
        """A product beside maps in SRAM, where there is no room for its operands, its weights and
        some rows of its result: cut by channels, so that its operand stays for all of them; or with its result in
        SRAM, and its operand in rounds or (matrix products) in SRAM too.  Of any layer the result may take the place
        of a map in SRAM that it reads where it writes; an output of the network is then stored from there.  A layer of
        the vector unit that all rows or columns are read of at once may also stay beside what it reads."""
        node, setting, order = self.order.nodes[stop - 1], self.setting, self.order
        is_read = any(read.joins for read in order.reads_of(stop - 1, stop, len(order.nodes)))
        may_stay = is_read and not order.maps[stop - 1].needs_dram
        layer, is_product = order.layer(stop - 1), node.weight_bytes > 0
        if not setting.keep or setting.fastest or setting.target.chip.clusters > 1:
            return
        is_alone = may_stay and not is_product and place_for(layer) is not None
        is_alone &= bool(layer.axes_all) or needs_whole(order, stop - 1)
        goes_on = isinstance(node.op, g.MatmulOp) or bool({JOINT, PART_OF_SUM} & node.op.attributes.keys())
        at, kept = self.cuts[stop - 1], frozenset({KeptMap(stop - 1, WHOLE)})
        energy = energy_alone(layer, node.weight_bytes, setting.target)
        rows = 2 * layer.out_dims[1] * layer.out_dims[3] * layer.out_bytes  # of which one is stored, another is made
        for maps in at.maps:
            found = frozenset(m for m in maps if any(m.map == read.map for read in node.reads))
            inside, over = {m.map for m in found}, written_over(order, stop - 1, found)
            if not all(read.joins for read in node.reads if read.map in inside) or not (over or is_product or is_alone):
                continue
            needed = sum(read.bytes for read in node.reads if read.map not in inside) + node.weight_bytes + rows
            is_there = is_product and node.reads[0].map in inside
            is_kept = (may_stay or bool(over)) and (not is_there or goes_on)
            for stays in [kept] * is_kept + [NOTHING] * is_there:
                place = over if stays else NOTHING
                free = self.capacity - setting.size((maps - place) | stays)
                has_room = self.capacity - setting.size(maps | stays) >= needed and not (place and is_there)
                if free <= 0 or has_room:
                    continue
                room = free, self.capacity
                choice = self.known.beside(setting, (stop - 1, stop), found, stays, room, in_place=bool(place))
                if choice is not None:
                    for state in at.with_maps(maps):
                        self.arrive(stop, state, replace(choice, energy_pj=energy))

    def by_heads(self, stop: int) -> None:
        """Attention with the products that make what it reads, some heads at a time: what is between is never whole,
        and what the products read is read once."""
        setting, order, first = self.setting, self.order, self.order.products_of(stop)
        if first is None or setting.once or setting.fastest or setting.target.chip.clusters > 1:
            return
        layers = range(first, stop)
        reads, at = [read for k in layers for read in order.nodes[k].reads if read.map < first], self.cuts[first]
        is_read = any(read.joins for read in order.reads_of(stop - 1, stop, len(order.nodes)))
        may_stay = setting.keep and is_read and not order.maps[stop - 1].needs_dram
        each = [energy_alone(order.layer(k), order.nodes[k].weight_bytes, setting.target) for k in layers]
        for maps, stays in itertools.product(at.maps, [NOTHING, frozenset({KeptMap(stop - 1, WHOLE)})][: 1 + may_stay]):
            found = frozenset(m for m in maps if any(m.map == read.map for read in reads))
            free = self.capacity - setting.size(maps | stays)
            if free <= 0 or not all(r.joins for r in reads if any(r.map == m.map for m in found)):
                continue
            choice = self.known.beside(setting, (first, stop), found, stays, (free, self.capacity))
            if choice is not None:
                for state in at.with_maps(maps):
                    self.arrive(stop, state, replace(choice, energy_pj=sum(each)))

    def least_alone(self, stop: int) -> int:
        """Bytes of a layer by itself, with all maps in DRAM."""
        if self.order.nodes[stop - 1].batched_weights:
            return HUGE
        prices = next(self.known.before(self.setting, stop, [stop - 1]), None)
        found = prices.ranked(NOTHING, NOTHING, self.capacity, 1) if prices else []
        return found[0].bytes if found else HUGE


def reached(search: CutSearch, stop: int) -> list[CutState]:
    """The best of all ways to a cut, for each set of maps that stays in SRAM; of many the most promising."""
    sets = list(search.numbers)
    single = [(search.numbers[s.maps], s.bytes, s.cycles) for s in search.single]
    ways, of_groups = search.ways, np.zeros((3, 0), np.int64)
    if ways is not None:
        of_groups = np.stack([ways.maps, ways.bytes, ways.cycles])
    of_single = np.array(single, np.int64).reshape(len(single), 3).T
    every = np.concatenate([of_single, of_groups], axis=1)
    maps, bytes_, cycles = every
    pending = np.array(read_again(search, stop, sets), np.int64)
    within = np.flatnonzero(bytes_ + pending[maps] + search.rest[stop] <= search.bound)
    if search.within_bound:
        best = frontier_of(maps[within], bytes_[within], cycles[within])
    else:
        first, then = search.setting.cost(bytes_[within], cycles[within])
        order = np.lexsort((then, first, maps[within]))
        best = order[starts_of(maps[within][order])]
    places = within[best]
    found = []
    for k in places[thinned(search, stop, sets, every[:, places])].tolist():
        if k < len(single):
            found.append(search.single[k])
        elif ways is not None:
            found.append(ways.reached(k - len(single), sets[maps[k]]))
    return found


def read_again(search: CutSearch, stop: int, sets: Sequence[Resident]) -> list[int]:
    """DRAM bytes of maps behind a cut that are surely read again, because they are not in one of these sets."""
    live = {m.number: search.surely_read[m.number] for m in search.order.maps[:stop] if m.last_use >= stop}
    total = sum(live.values())
    return [total - sum(live.get(m, 0) for m in {kept.map for kept in each}) for each in sets]


def thinned(search: CutSearch, stop: int, sets: Sequence[Resident], states: Ints) -> Ints:
    """The places of the most promising of the states of a cut: numbers of their sets of maps, bytes, cycles."""
    if states.shape[1] <= search.most_states:
        return np.arange(states.shape[1])
    apart = unlike(states, search.bound) if search.within_bound else np.arange(states.shape[1])
    return apart[promising(search, stop, sets, states[:, apart])]


def unlike(states: Ints, bound: int) -> Ints:
    """Of states with the same maps in SRAM and next to the same bytes the fastest: many that hardly differ would leave
    no room for other maps.  They are in the order of `frontier_of`: cycles fall as bytes rise."""
    maps, bytes_, _ = states.tolist()
    step = int(ALIKE_BYTES * min(bound, max(bytes_)))
    found, first = [0], 0
    for k in range(1, len(maps)):
        if maps[k] == maps[first] and bytes_[k] <= bytes_[first] + step:
            found[-1] = k
        else:
            found.append(k)
            first = k
    return np.array(found)


def promising(search: CutSearch, stop: int, sets: Sequence[Resident], states: Ints) -> Ints:
    """The places of those that take the fewest bytes, or cycles with a byte as so many, and what is to be read."""
    maps, bytes_, cycles = states
    if len(maps) <= search.most_states:
        return np.arange(len(maps))
    live = {m.number: m.bytes for m in search.order.maps[:stop] if m.last_use >= stop}
    total, rate = sum(live.values()), search.setting.port_rate
    to_read = np.array([total - sum(live.get(m, 0) for m in {kept.map for kept in each}) for each in sets], np.int64)
    left = to_read[maps]
    moved = bytes_ + left
    least = moved, cycles
    if search.setting.fastest:
        least = cycles + OVERLAPPED * left / rate, moved
    by_least = np.lexsort(least[::-1])
    if search.within_bound:
        share = ceil_div(search.most_states, len(BYTE_WEIGHTS) + 1)
        quickest = [np.argsort(cycles + weight / rate * moved, kind="stable")[:share] for weight in BYTE_WEIGHTS]
        chosen = np.concatenate([*quickest, by_least[:share]])
    else:
        chosen = by_least[: search.most_states]
    # What stays may fit nobody behind: there is a way on from nothing staying, always.
    alone = np.flatnonzero(np.array([not each for each in sets])[maps])
    return np.unique(np.append(chosen, alone[bytes_[alone].argmin()] if len(alone) else chosen[:1]))


def needs_whole(order: LayerOrder, k: int) -> bool:
    """Whether a reader of a map needs all of its rows or columns at once, so that it is in no unit with what makes them
    some at a time."""
    reads = [read for user in order.maps[k].users for read in order.nodes[user].reads if read.map == k]
    axes = [(axis, size) for read in reads for axis, size in ((read.rows, read.dims[2]), (read.columns, read.dims[3]))]
    return any(isinstance(axis, Whole) and size > 1 for axis, size in axes)


def channels_inside(alone: UnitChoice, setting: Setting, capacity: int, known: KnownPrices) -> list[UnitChoice]:
    """The same layer with channels as the innermost loop, where that moves fewer bytes: some rows are loaded once and
    weights once for these rows, and no more of the result lies in SRAM than one tile of channels."""
    if setting.once or setting.fastest:
        return []
    plan = plan_unit(known.layer_alone(setting, alone.stop), setting.target, Budget(capacity, inside=True))
    if plan is None or plan.dram_bytes >= alone.bytes:
        return []
    return [replace(alone, bytes=plan.dram_bytes, cycles=int(plan.cycles), plan=plan)]


def needed_bytes(read: Read, dims: Extents) -> int:
    """Of a map, what a result of these extents needs at most: no more rows and columns than its windows have."""
    images = min(read.dims[0], dims[0]) if read.by_image else read.dims[0]
    first, stop = read.channels
    count = images * (stop - first or read.dims[1])
    for axis, size, made in zip((read.rows, read.columns), read.dims[2:], dims[2:], strict=True):
        count *= size if isinstance(axis, Whole) else min(size, made * (axis.reach + 1))
    return count * read.element_bytes


def energy_alone(layer: Layer, weight_bytes: int, target: Target) -> float:
    """Of a layer of which all is computed, and passes between SRAM and the cores, once."""
    maps = sum(math.prod(m.dims) * m.element_bytes for m in layer.maps)
    moved = maps + math.prod(layer.out_dims) * layer.out_bytes + weight_bytes
    energy = sum(byte_energy_pj(memory, moved) for memory in (target.cluster.sram, target.core.nram))
    if layer.is_matrix:
        energy += mac_energy_pj(target.core.matrix, layer.macs, layer.maps[0].element_bytes)
    return float(energy)


def is_read_again(plan: UnitPlan, layer: Layer, clusters: int) -> bool:
    """Whether a layer streams its weights more than once."""
    images, _, rows, columns = tile_counts(layer.out_dims, plan.partition, clusters)
    return images * rows * columns > 1 and any(m is not None and m.weights == "stream" for m in plan.maps)


def surely_read(order: LayerOrder) -> list[int]:
    """Of each map that a layer makes: DRAM bytes that its last reader moves at least where it is not in SRAM."""
    found: list[int] = []
    shares = [0.0] * len(order.nodes)
    for map_ in reversed(order.maps[: len(order.nodes)]):
        reader = None if not map_.users else order.nodes[map_.last_use]
        if reader is not None and reader.is_concat:
            shares[map_.number] = shares[map_.last_use]  # perhaps a name, and read as part of it
        elif reader is not None and reader.layer is not None:
            reads = [read for read in reader.reads if read.map == map_.number]
            throughout = max((read.bytes for read in reads if is_read_throughout(read)), default=0)
            shares[map_.number] = READ_AT_LEAST * min(throughout / map_.bytes, 1)
        found.append(int(shares[map_.number] * map_.bytes))
    return found[::-1]


def is_read_throughout(read: Read) -> bool:
    """No rows, columns or channels are left out, but for some at the ends."""
    axes = [axis for axis in (read.rows, read.columns) if not isinstance(axis, Whole)]
    return all(axis.num <= axis.den * (axis.reach + 1) for axis in axes) and read.channels in (
        (0, 0), (0, read.dims[1])
    )  # fmt: skip


def rest_of(order: LayerOrder) -> list[int]:
    """For each cut, bytes that what stands behind it moves at least: weights, inputs and outputs of the network."""
    own = [node.weight_bytes + node.vector_bytes for node in order.nodes]
    outputs = [map_.number for map_ in order.maps if map_.is_output and map_.producer is not None]
    while outputs:
        number = outputs.pop()
        if order.is_row(number) or (order.nodes[number].is_concat and order.is_place(number)):
            outputs += [read.map for read in order.nodes[number].reads]  # written where its parts are made
        else:
            own[number] += order.maps[number].bytes
    return [*itertools.accumulate(reversed(own), initial=0)][::-1]
