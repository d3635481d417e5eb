# Tests: test/passes/plan/network/test_optimal.py
"""The cut points of a whole network by dynamic programming, with the maps that stay in SRAM across each cut as state.

Exact for one order of the layers as long as no cut has more than `MOST_STATES` sets of resident maps; else the best of
them are kept, by bytes so far and bytes that must still be read.
Source: Occam (doi 10.1145/3566052), tpu-mlir's interval programming; states as in Fusion's "keep a small set for each
prefix" (FFM).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property

from frustum.dialects.share_done import tell
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import tile_counts
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.model import MOST_BANNED, MOST_STATES, OVERLAPPED
from frustum.passes.plan.network.candidates import HUGE, Candidates, Setting, UnitChoice
from frustum.passes.plan.network.groups import Group
from frustum.passes.plan.network.kept import NOTHING, Resident
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit


@dataclass
class CutState:
    """The cheapest way to a cut with some maps in SRAM: bytes and cycles so far, the last unit and what is before."""

    bytes: int
    cycles: int
    before: CutState | None = None
    choice: UnitChoice | None = None


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

    def __post_init__(self) -> None:
        self.order, self.capacity, self.shares = self.setting.order, self.setting.capacity, self.setting.shares
        self.rest = rest_of(self.order)
        self.states: list[dict[Resident, CutState]] = [{}]
        self.cheapest = [0]

    def solve(self, after: int = 0) -> Solution | None:
        """The cheapest way through all layers; None if some layer fits in no way.

        What was found before up to the cut `after` is taken as it is.
        """
        count = len(self.order.nodes)
        self.states = [*self.states[: after + 1], *({} for _ in range(after, count))]
        self.states[0][NOTHING] = CutState(0, 0)
        self.cheapest = [*self.cheapest[: after + 1], *[HUGE] * (count - after)]
        for stop in range(after + 1, count + 1):
            tell(stop / (count + 1))
            if self.seams is None or stop in self.seams:
                self.reach(stop)
                self.thin(stop)
                self.cheapest[stop] = min((s.bytes for s in self.states[stop].values()), default=HUGE)
                if not any(self.states[max(0, stop - self.reaching) : stop + 1]):
                    return None
        end = min(self.states[count].values(), key=lambda s: self.setting.cost(s.bytes, s.cycles), default=None)
        if end is None:
            return None
        choices = []
        at: CutState | None = end
        while at is not None and at.choice is not None:
            choices.append(at.choice)
            at = at.before
        return Solution(self.order, choices[::-1], end.bytes, end.cycles)

    def thin(self, stop: int) -> None:
        """Keep the most promising sets of resident maps."""
        states = self.states[stop]
        if len(states) <= self.most_states:
            return
        live = [m for m in self.order.maps[:stop] if m.last_use >= stop]

        def promise(item: tuple[Resident, CutState]) -> tuple[float, float]:
            maps, state = item
            here = {kept.map for kept in maps}
            to_read = sum(m.bytes for m in live if m.number not in here)
            if self.setting.fastest:
                return state.cycles + OVERLAPPED * to_read / self.setting.port_rate, state.bytes + to_read
            return state.bytes + to_read, state.cycles

        kept = dict(sorted(states.items(), key=promise)[: self.most_states])
        # What stays may fit nobody behind: there is a way on from nothing staying, always.
        if NOTHING in states:
            kept[NOTHING] = states[NOTHING]
        self.states[stop] = kept

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
        channel_wise = self.setting.by_channels(stop) if self.states[stop - 1] else None
        if channel_wise is not None:
            self.take(channel_wise)
        beyond = stop - 1 if node.is_concat else stop  # alone it is a name for what is there

        def is_wanted(first: int, weights_bytes: int) -> bool:
            if not self.states[first] or first >= beyond or (self.seams is not None and first not in self.seams):
                return False
            return self.cheapest[first] + weights_bytes + self.rest[stop] <= self.bound

        for group in self.setting.groups_before(stop).within(self.capacity, is_wanted, self.farthest(stop)):
            self.take(group)
        if not node.is_concat:
            self.alone(stop)

    def farthest(self, stop: int) -> int:
        """The first layer of the longest group that is looked at; chains that are not cut apart count once."""
        if self.seams is None:
            return max(0, stop - self.longest)
        return self.cuts[max(0, bisect_left(self.cuts, stop) - self.longest)]

    @cached_property
    def reaching(self) -> int:
        """More layers than any group has."""
        gaps = [b - a for a, b in itertools.pairwise(self.cuts)]
        return self.longest * (1 if self.seams is None else max(gaps))

    @cached_property
    def cuts(self) -> list[int]:
        return sorted(self.seams or ())

    def take(self, group: Group) -> None:
        """All ways to a cut by this group."""
        if len(self.banned.get((group.first, group.stop), ())) > MOST_BANNED or not self.states[group.first]:
            return
        least = sum(group.weights) * group.shares + group.vector_bytes + group.constant_bytes + self.rest[group.stop]
        good = [(k, s) for k, s in self.states[group.first].items() if s.bytes + least <= self.bound]
        if good:
            candidates = Candidates(group, self.setting)
            for kept, state in good:
                self.extend(candidates, kept, state)

    def extend(self, candidates: Candidates, kept: Resident, state: CutState) -> None:
        """The ways by a group from a cut with these maps in SRAM."""
        group, here = candidates.group, {m.map: m for m in kept}
        read = [b for b in group.inputs if b.map in here]
        if any(not b.can_stay and not self.order.maps[b.map].needs_dram for b in read):
            return
        inside = frozenset(here[b.map] for b in read if b.can_stay)
        free = self.capacity - self.size(kept)
        banned = self.banned.get((group.first, group.stop), ())
        for stay in candidates.stays:
            left = free - self.size(stay)
            if left >= 0 and (inside, stay) not in banned:
                choice = candidates.best(inside, stay, left)
                if choice is not None:
                    self.arrive(group.stop, kept | stay, state, choice)

    def size(self, maps: Resident) -> int:
        """Bytes of what stays, in one cluster."""
        return sum(self.shares[kept].bytes for kept in maps)

    def arrive(self, stop: int, kept: Resident, state: CutState, choice: UnitChoice) -> None:
        """Take note of a way to a cut, if it is the best for what stays in SRAM."""
        bytes_, cycles = state.bytes + choice.bytes, state.cycles + choice.cycles
        if bytes_ + self.rest[stop] > self.bound:
            return
        left = frozenset(m for m in kept if self.order.maps[m.map].last_use >= stop)
        old, cost = self.states[stop].get(left), self.setting.cost
        if old is None or cost(bytes_, cycles) < cost(old.bytes, old.cycles):
            self.states[stop][left] = CutState(bytes_, cycles, state, choice)

    def move(self, stop: int) -> None:
        """A layer that only moves data: from DRAM to DRAM."""
        reads, made = self.order.nodes[stop - 1].reads, self.order.maps[stop - 1]
        choice = self.copied(stop, 0 if self.order.is_row(stop - 1) else sum(r.bytes for r in reads) + made.bytes)
        for kept, state in self.states[stop - 1].items():
            self.arrive(stop, kept, state, choice)

    def side_by_side(self, stop: int) -> None:
        """A concatenation alone, with all that it reads in DRAM: a name for what is there, or a copy."""
        operands, maps = {r.map for r in self.order.nodes[stop - 1].reads}, self.order.maps
        choice = self.copied(stop, 0 if self.order.is_place(stop - 1) else 2 * maps[stop - 1].bytes)
        for kept, state in self.states[stop - 1].items():
            if all(maps[m.map].needs_dram for m in kept if m.map in operands):
                self.arrive(stop, kept, state, choice)

    def copied(self, stop: int, moved: int) -> UnitChoice:
        """A layer alone that moves so many bytes."""
        return UnitChoice(stop - 1, stop, moved, moved // self.setting.port_rate, self.capacity)

    def alone(self, stop: int) -> None:
        """A layer as `plan_unit` cuts it, by channels too, where nothing is in SRAM beside it and its maps and weights
        do not fit at once."""
        node, state, setting = self.order.nodes[stop - 1], self.states[stop - 1].get(NOTHING), self.setting
        if state is None:
            return
        if stop not in self.costs:
            self.costs[stop] = HUGE if setting.fastest else self.least_alone(stop)
        moved = sum(r.bytes for r in node.reads) + self.order.maps[stop - 1].bytes
        least = node.weight_bytes + node.vector_bytes + moved
        if self.costs[stop] <= least and not self.banned.get((stop - 1, stop)):
            return
        plan = plan_unit(layers_of([node.op]), setting.target, Budget(self.capacity))
        if plan is None:
            return
        if not (setting.once and is_read_again(plan, self.order.layer(stop - 1), setting.target.chip.clusters)):
            choice = UnitChoice(stop - 1, stop, plan.dram_bytes, int(plan.cycles), self.capacity)
            self.arrive(stop, NOTHING, state, choice)

    def least_alone(self, stop: int) -> int:
        """Bytes of a layer by itself, with all maps in DRAM."""
        if self.order.nodes[stop - 1].batched_weights:
            return HUGE
        group = next(self.setting.groups_before(stop).within(self.capacity), None)
        found = Candidates(group, self.setting).best(NOTHING, NOTHING, self.capacity) if group else None
        return HUGE if found is None else found.bytes


def is_read_again(plan: UnitPlan, layer: Layer, clusters: int) -> bool:
    """Whether a layer streams its weights more than once."""
    images, _, rows, columns = tile_counts(layer.out_dims, plan.partition, clusters)
    return images * rows * columns > 1 and any(m is not None and m.weights == "stream" for m in plan.maps)


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
