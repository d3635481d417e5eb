"""The cut points of a whole network by dynamic programming, with the maps that stay in SRAM across each cut as state.

Exact for one order of the layers as long as no cut has more than `MOST_STATES` sets of resident maps; else the best of
them are kept, by bytes so far and bytes that must still be read.
Source: Occam (doi 10.1145/3566052), tpu-mlir's interval programming; states as in Fusion's "keep a small set for each
prefix" (FFM).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.share_done import tell
from frustum.dialects.target import Target
from frustum.dialects.tile import Whole
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import tile_counts
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.cost import chunk_bytes, overlapped
from frustum.passes.plan.model import (
    MOST_BANNED,
    MOST_KEPT,
    MOST_STATES,
    OVERLAPPED,
    PASS_CYCLES,
)
from frustum.passes.plan.network.groups import Boundary, Group, GroupsBefore, by_channels
from frustum.passes.plan.network.layer_order import LayerOrder, Map
from frustum.passes.plan.network.tile_shapes import BY_IMAGES, Ints
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit

RESIDENT_CONCAT = (
    False  # a buffer for the whole would be needed from the first part on, which is not modelled
)
CYCLE_BITS = 31
HUGE = 1 << 62
FORM_BITS = 2
"""A map that stays is `number << FORM_BITS` with the dimension of which each cluster holds its share (2 or 3), 1: each
holds its images, or 0: each holds all of it."""
WHOLE, OF_IMAGES, BY_ROWS, BY_COLUMNS = 0, 1, 2, 3
Kept = frozenset[int]


@dataclass(frozen=True)
class Step:
    """A unit of the solution: layers [first, stop), its tile shape (None: as `plan_unit` has it), how many of its
    largest weights are streamed, which maps it finds in SRAM and which it leaves there."""

    first: int
    stop: int
    shape: int | None
    streamed: int
    resident: Kept
    kept: Kept
    bytes: int
    cycles: int
    sram_bytes: int
    free_bytes: int
    """Of SRAM, for this unit: without what passes by and what it reads and leaves there."""
    passes: int = 1
    by_channels: bool = False


@dataclass(frozen=True)
class Box:
    """What each cluster holds of a map, by the dimension that is shared out: its share and the borders around it."""

    share: int
    before: int
    behind: int
    bytes: int


@dataclass
class State:
    bytes: int
    cycles: int
    before: State | None = None
    step: Step | None = None


@dataclass
class Solution:
    order: LayerOrder
    steps: list[Step]
    bytes: int
    cycles: int


def is_read_again(plan: UnitPlan, layer: Layer | None, clusters: int) -> bool:
    """Whether a layer streams its weights more than once."""
    assert layer is not None
    images, _, rows, columns = tile_counts(layer.out_dims, plan.partition, clusters)
    return images * rows * columns > 1 and any(m is not None and m.weights == "stream" for m in plan.maps)


@dataclass
class Search:
    """The dynamic programme over one order."""

    order: LayerOrder
    target: Target
    capacity: int
    borders: str = "auto"
    keep: bool = True
    longest: int = 96
    most_states: int = MOST_STATES
    banned: dict[tuple[int, int], set[tuple[Kept, Kept]]] = field(default_factory=dict)
    """Of layers [first, stop): maps that they find and leave in SRAM with which they do not fit after all."""
    seams: frozenset[int] | None = None
    """Where cuts are looked for; None: everywhere."""
    costs: dict[int, int] = field(default_factory=dict)
    bound: int = HUGE
    """No more bytes than this: what a quick search has found."""
    fastest: bool = False
    """Cycles before bytes."""
    slower: dict[tuple[int, int, bool, bool], float] = field(default_factory=dict)
    """Of layers [first, stop) cut by channels or not, with several images in a tile or not: how many times the cycles
    of this model exact numbers say."""
    once: bool = False
    """No weights are read from DRAM more than once."""

    def __post_init__(self) -> None:
        self.boxes = boxes_of(self.order, self.target.chip.clusters)
        self.rest = rest_of(self.order)
        self.states: list[dict[Kept, State]] = [{}]
        self.cheapest = [0]

    def solve(self, after: int = 0) -> Solution | None:
        """The cheapest way through all layers; None if some layer fits in no way.

        What was found before up to the cut `after` is taken as it is.
        """
        count = len(self.order.nodes)
        self.states = [*self.states[: after + 1], *(dict[Kept, State]() for _ in range(after, count))]
        self.states[0][frozenset()] = State(0, 0)
        self.cheapest = [*self.cheapest[: after + 1], *[HUGE] * (count - after)]
        for stop in range(after + 1, count + 1):
            tell(stop / (count + 1))
            if self.seams is None or stop in self.seams:
                self.reach(stop)
                self.thin(stop)
                self.cheapest[stop] = min((s.bytes for s in self.states[stop].values()), default=HUGE)
                if not any(self.states[max(0, stop - self.reaching) : stop + 1]):
                    return None
        ends = self.states[count].values()
        if not ends:
            return None
        end = min(ends, key=self.cost)
        steps = []
        at: State | None = end
        while at is not None and at.step is not None:
            steps.append(at.step)
            at = at.before
        return Solution(self.order, steps[::-1], end.bytes, end.cycles)

    def thin(self, stop: int) -> None:
        """Keep the most promising sets of resident maps."""
        states = self.states[stop]
        if len(states) <= self.most_states:
            return
        live = [m for m in self.order.maps[:stop] if m.last_use >= stop]

        rate = self.target.chip.dram.port_bytes_per_cycle

        def promise(item: tuple[Kept, State]) -> tuple[float, float]:
            kept, state = item
            here = {m >> FORM_BITS for m in kept}
            to_read = sum(m.bytes for m in live if m.number not in here)
            if self.fastest:
                return state.cycles + OVERLAPPED * to_read / rate, state.bytes + to_read
            return state.bytes + to_read, state.cycles

        kept = dict(sorted(states.items(), key=promise)[: self.most_states])
        # What stays may fit nobody behind: there is a way on from nothing staying, always.
        if (nothing := frozenset[int]()) in states:
            kept[nothing] = states[nothing]
        self.states[stop] = kept

    # ------------------------------------------------------------ ways to a cut

    def reach(self, stop: int) -> None:
        node = self.order.nodes[stop - 1]
        if node.layer is None:
            self.move(stop)
            return
        if node.is_concat:
            self.side_by_side(stop)
        if node.batched_weights:
            self.alone(stop)
            return
        channel_wise = (
            by_channels(self.order, self.target, stop, self.borders) if self.states[stop - 1] else None
        )
        if channel_wise is not None:
            self.take(channel_wise)
        farthest = self.farthest(stop)
        beyond = stop - 1 if node.is_concat else stop  # alone it is a name for what is there

        def is_wanted(first: int, weights_bytes: int) -> bool:
            if (
                not self.states[first]
                or first >= beyond
                or (self.seams is not None and first not in self.seams)
            ):
                return False
            return self.cheapest[first] + weights_bytes + self.rest[stop] <= self.bound

        for group in GroupsBefore(self.order, self.target, stop, self.borders).within(
            self.capacity, is_wanted, farthest
        ):
            self.take(group)
        if not node.is_concat:
            self.alone(stop)

    def farthest(self, stop: int) -> int:
        """The first layer of the longest group that is looked at; chains that are not cut apart count once."""
        if self.seams is None:
            return max(0, stop - self.longest)
        cuts = self.cuts
        return cuts[max(0, bisect_left(cuts, stop) - self.longest)]

    @cached_property
    def reaching(self) -> int:
        """More layers than any group has."""
        if self.seams is None:
            return self.longest
        gaps = [b - a for a, b in itertools.pairwise(self.cuts)]
        return self.longest * max(gaps)

    @cached_property
    def cuts(self) -> list[int]:
        return sorted(self.seams or ())

    def take(self, group: Group) -> None:
        """All ways to a cut by this group."""
        if len(self.banned.get((group.first, group.stop), ())) > MOST_BANNED or not self.states[group.first]:
            return
        least = (
            sum(group.weights) * group.shares
            + group.vector_bytes
            + group.constant_bytes
            + self.rest[group.stop]
        )
        good = [(k, s) for k, s in self.states[group.first].items() if s.bytes + least <= self.bound]
        if good:
            ways = Ways(group, self)
            for kept, state in good:
                self.extend(ways, kept, state)

    def cost(self, way: State | Step) -> tuple[int, int]:
        """What is to be least: DRAM bytes, then cycles, or the other way round."""
        return (way.cycles, way.bytes) if self.fastest else (way.bytes, way.cycles)

    def size(self, maps: Kept) -> int:
        """Bytes of what stays, in one cluster."""
        return sum(self.boxes[m].bytes for m in maps)

    def arrive(self, stop: int, kept: Kept, state: State, step: Step) -> None:
        """Take note of a way to a cut, if it is the best for what stays in SRAM."""
        maps = self.order.maps
        left = frozenset(m for m in kept if maps[m >> FORM_BITS].last_use >= stop)
        new = State(state.bytes + step.bytes, state.cycles + step.cycles, state, step)
        if new.bytes + self.rest[stop] > self.bound:
            return
        old = self.states[stop].get(left)
        if old is None or self.cost(new) < self.cost(old):
            self.states[stop][left] = new

    def move(self, stop: int) -> None:
        """A layer that only moves data: from DRAM to DRAM."""
        node, maps = self.order.nodes[stop - 1], self.order.maps
        moved = (
            0 if self.order.is_row(stop - 1) else sum(r.bytes for r in node.reads) + maps[stop - 1].bytes
        )
        cycles = moved // self.target.chip.dram.port_bytes_per_cycle
        for kept, state in self.states[stop - 1].items():
            step = Step(stop - 1, stop, None, 0, frozenset(), frozenset(), moved, cycles, 0, self.capacity)
            self.arrive(stop, kept, state, step)

    def side_by_side(self, stop: int) -> None:
        """A concatenation alone: a name for what is there, all in DRAM or all in SRAM."""
        node, maps = self.order.nodes[stop - 1], self.order.maps
        operands = {r.map for r in node.reads}
        for kept, state in self.states[stop - 1].items():
            here = frozenset(m for m in kept if m >> FORM_BITS in operands)
            if all(maps[m >> FORM_BITS].needs_dram for m in here):
                moved = 0 if self.order.is_place(stop - 1) else 2 * maps[stop - 1].bytes
                cycles = moved // self.target.chip.dram.port_bytes_per_cycle
                step = Step(
                    stop - 1, stop, None, 0, frozenset(), frozenset(), moved, cycles, 0, self.capacity
                )
                self.arrive(stop, kept, state, step)
            forms = {m & 3 for m in here}
            if (
                RESIDENT_CONCAT
                and len(here) == len(operands)
                and len(forms) == 1
                and not maps[stop - 1].needs_dram
            ):
                stay = frozenset({(stop - 1) << FORM_BITS | forms.pop()})
                if self.size(kept | stay) - self.size(here) <= self.capacity:
                    step = Step(stop - 1, stop, None, 0, here, stay, 0, 0, 0, self.capacity)
                    self.arrive(stop, (kept - here) | stay, state, step)

    def alone(self, stop: int) -> None:
        """A layer as `plan_unit` cuts it, by channels too, where nothing is in SRAM beside it and its maps and weights
        do not fit at once."""
        node, maps = self.order.nodes[stop - 1], self.order.maps
        state, nothing = self.states[stop - 1].get(frozenset()), frozenset[int]()
        if state is None:
            return
        if stop not in self.costs:
            self.costs[stop] = HUGE if self.fastest else self.least_alone(stop)
        least = (
            node.weight_bytes + node.vector_bytes + sum(r.bytes for r in node.reads) + maps[stop - 1].bytes
        )
        if self.costs[stop] <= least and not self.banned.get((stop - 1, stop)):
            return
        plan = plan_unit(layers_of([node.op]), self.target, Budget(self.capacity))
        if plan is not None and not (
            self.once and is_read_again(plan, node.layer, self.target.chip.clusters)
        ):
            step = Step(
                stop - 1, stop, None, 0, nothing, nothing, plan.dram_bytes, int(plan.cycles), self.capacity,
                self.capacity,
            )  # fmt: skip
            self.arrive(stop, nothing, state, step)

    def least_alone(self, stop: int) -> int:
        """Bytes of a layer by itself, with all maps in DRAM."""
        if self.order.nodes[stop - 1].batched_weights:
            return HUGE
        group = next(GroupsBefore(self.order, self.target, stop, self.borders).within(self.capacity), None)
        found = Ways(group, self).best(frozenset(), frozenset(), self.capacity) if group else None
        return HUGE if found is None else found.bytes

    def extend(self, ways: Ways, kept: Kept, state: State) -> None:
        group = ways.group
        known = {m >> FORM_BITS: m for m in kept}
        inside = frozenset(known[b.map] for b in group.inputs if b.map in known and b.can_stay)
        if any(
            b.map in known and not b.can_stay and not self.order.maps[b.map].needs_dram
            for b in group.inputs
        ):
            return
        free = self.capacity - self.size(kept)
        banned = self.banned.get((group.first, group.stop), ())
        for stay in ways.stays:
            left = free - self.size(stay)
            if left < 0 or (inside, stay) in banned:
                continue
            found = ways.best(inside, stay, left)
            if found is not None:
                self.arrive(group.stop, kept | stay, state, found)


class Ways:
    """All ways to run a group: tile shapes, and which of its maps are or stay in SRAM."""

    def __init__(self, group: Group, search: Search):
        self.group, self.search = group, search
        maps = search.order.maps
        may_stay = [b.map for b in group.outputs if self.can_stay(b)] if search.keep else []
        may_stay = may_stay[-MOST_KEPT:]
        forms = (WHOLE,) if search.target.chip.clusters == 1 else (BY_ROWS, BY_COLUMNS, WHOLE)
        forms = (OF_IMAGES, *forms) if (group.shapes.dealt == BY_IMAGES).any() else forms
        few = [frozenset(c) for r in range(1, len(may_stay) + 1) for c in itertools.combinations(may_stay, r)]
        self.stays = [frozenset[int]()]
        self.stays += [frozenset(m << FORM_BITS | form for m in chosen) for form in forms for chosen in few]
        largest_first = np.array(group.weights[::-1], np.int64)
        self.held_weights = int(largest_first.sum())
        self.total_weights = self.held_weights * group.shares
        self.least = group.constant_bytes + group.vector_bytes + self.total_weights
        streamed = np.concatenate([[0], np.cumsum(largest_first)])
        chunk = 2 * min(int(largest_first[0]), chunk_bytes(search.capacity)) if len(largest_first) else 0
        self.streamed = streamed
        self.gain = streamed - np.where(streamed > 0, chunk, 0)
        self.gain = np.maximum.accumulate(self.gain)
        shapes = group.shapes
        least = group.inside + group.vector_bytes + self.held_weights - self.gain[-1]
        self.index = np.flatnonzero(group.valid & (least <= search.capacity))
        self.tiles = (shapes.counts[0] * shapes.counts[1] * shapes.counts[2])[self.index]
        self.is_roll = (shapes.is_roll)[self.index]
        self.fixed = (group.inside + group.vector_bytes + self.held_weights)[self.index]
        self.late, self.behind, self.work = (a[self.index] for a in (group.late, group.behind, group.work))
        self.spent = group.spent[self.index]
        self.buffers = {b.map: b.buffer[self.index] for b in (*group.inputs, *group.outputs)}
        self.moved = {b.map: b.moved[self.index] for b in (*group.inputs, *group.outputs)}
        self.short = {b.map: b.short[self.index] for b in (*group.inputs, *group.outputs)}
        self.spare = {b.map: b.spare[self.index] for b in (*group.inputs, *group.outputs)}
        images, rows, columns = (count[self.index] for count in shapes.counts)
        self.innermost = np.maximum(images, np.where(columns > 1, columns, rows))
        self.in_turn = (shapes.depth == 1)[self.index]
        self.all = np.ones(len(self.index), np.bool_)
        self.inside_form: dict[int, NDArray[np.bool_]] = {}
        self.rate = search.target.chip.dram.port_bytes_per_cycle
        self.must_store = {b.map: maps[b.map].bytes for b in group.outputs if maps[b.map].needs_dram}
        self.known: dict[tuple[Kept, Kept, int], Step | None] = {}
        self.bases: dict[tuple[Kept, Kept], Base | None] = {}
        self.masks: dict[tuple[Kept, bool], NDArray[np.bool_] | None] = {}
        self.inputs, self.outputs = ({b.map: b for b in each} for each in (group.inputs, group.outputs))
        self.stays = [stay for stay in self.stays if self.allowed(stay, group.outputs) is not None]

    def can_stay(self, output: Boundary) -> bool:
        """Somebody behind the group reads it as it was made."""
        order = self.search.order
        return output.can_stay and any(
            r.joins
            for k in order.maps[output.map].users
            if k >= self.group.stop
            for r in order.nodes[k].reads
            if r.map == output.map
        )

    def allowed(self, stay: Kept, boundaries: Sequence[Boundary]) -> NDArray[np.bool_] | None:
        """In which shapes the clusters make, or need, no more of these maps than they hold; None: in none."""
        is_made = boundaries is self.group.outputs
        key = stay, is_made
        if key not in self.masks:
            fits = self.all
            several = is_made and self.search.target.chip.clusters > 1
            for m in stay:
                b = (self.outputs if is_made else self.inputs).get(m >> FORM_BITS)
                form = m & ((1 << FORM_BITS) - 1)
                if b is not None and form != WHOLE:
                    fits = fits & self.within(b, form)
                elif b is not None and several:
                    fits = fits & self.is_once
            self.masks[key] = fits if fits.any() else None
        return self.masks[key]

    @cached_property
    def is_once(self) -> NDArray[np.bool_]:
        """A cluster's rows or columns are made in one pass, so that it can send them to the others."""
        shapes = self.group.shapes
        once = (shapes.dealt != BY_ROWS) | (shapes.counts[1] == 1)
        once &= (shapes.dealt != BY_COLUMNS) | (shapes.counts[2] == 1)
        return cast(NDArray[np.bool_], once[self.index])

    def within(self, b: Boundary, form: int) -> NDArray[np.bool_]:
        """A cluster's box of a map in each shape lies in what it holds of it."""
        key = b.map << FORM_BITS | form
        if key not in self.inside_form:
            held = self.search.boxes.get(key)
            shapes, (start, step, extent) = self.group.shapes, b.rows if form == BY_ROWS else b.columns
            if held is None:
                self.inside_form[key] = ~self.all
            elif form == OF_IMAGES:
                alike = (shapes.dealt == BY_IMAGES) & (shapes.images * shapes.counts[0] == held.share)
                self.inside_form[key] = alike[self.index]
            else:
                alike = (shapes.dealt == form) & (shapes.counts[form - 1] == 1) & (step == held.share)
                alike &= (start >= -held.before) & (start + extent <= held.share + held.behind)
                self.inside_form[key] = alike[self.index]
        return self.inside_form[key]

    def best(self, resident: Kept, stay: Kept, free: int) -> Step | None:
        key = (resident, stay, free)
        if key not in self.known:
            self.known[key] = self.find(resident, stay, free)
        return self.known[key]

    def find(self, resident: Kept, stay: Kept, free: int) -> Step | None:
        """The cheapest shape when `free` bytes are left beside all resident maps."""
        return next(self.ranked(resident, stay, free, 1), None)

    def ranked(self, resident: Kept, stay: Kept, free: int, most: int) -> Iterator[Step]:
        """The shapes that fit, from the cheapest on."""
        group = self.group
        base = self.base(resident, stay)
        if base is None:
            return
        streamed = np.searchsorted(self.gain, base.memory - free)
        fits = base.fits & (streamed < len(self.gain))
        if self.search.once:
            fits &= (streamed == 0) | (base.passes == 1)
        if not fits.any():
            return
        streamed = np.minimum(streamed, len(self.gain) - 1)
        moved = base.moved + (base.passes - 1) * self.streamed[streamed]
        cycles = self.corrected(self.cycles(base, moved, streamed))
        first, then = (cycles, moved >> 4) if self.search.fastest else (moved, cycles)
        score = np.where(fits, (first << CYCLE_BITS) + np.minimum(then, (1 << CYCLE_BITS) - 1), HUGE)
        for k in [int(np.argmin(score))] if most == 1 else np.argsort(score, kind="stable")[:most].tolist():
            if score[k] == HUGE:
                return
            count = int(streamed[k])
            yield Step(
                group.first, group.stop, int(self.index[k]), count, resident, stay, int(moved[k]), int(cycles[k]),
                int(base.memory[k] - self.gain[count]), free, int(base.passes[k]), group.shares > 1,
            )  # fmt: skip

    def cycles(self, base: Base, moved: Ints, streamed: Ints) -> Ints:
        """Cycles of each shape with so many streamed weights."""
        transfer = (moved + base.short) // self.rate
        if self.search.fastest:
            cycles = np.maximum(base.cycles, transfer) + self.waited(base, streamed)
            return cast(
                Ints, cycles + base.passes * PASS_CYCLES + ((base.cycles + transfer) * OVERLAPPED).astype(np.int64)
            )
        # In one pass what is held comes as pieces need it; what is streamed only while its own layer is computed.
        held = (self.total_weights - self.streamed[streamed]) * (base.passes > 1)
        weights = (held + base.passes * self.streamed[streamed]) / self.rate
        maps = (base.moved - self.least + base.short) / self.rate
        return cast(
            Ints, overlapped(base.spent, transfer, maps, weights, base.passes, self.in_turn).astype(np.int64)
        )

    def waited(self, base: Base, streamed: Ints) -> Ints:
        """Cycles in which the cores wait for maps, with so many streamed weights.

        In the first and last pass of each innermost loop, and of one copy for what is not loaded behind its last reader
        or stored before its maker, while the DRAM port has no weights to bring.
        """
        streams = np.minimum(1.0, base.passes * self.streamed[streamed] / self.rate / np.maximum(base.cycles, 1))
        waits = np.zeros(len(streams))
        for b in base.crossing:
            waits = waits + np.maximum(b.port_cycles - (1.0 - streams) * b.spare_cycles, 0)
        at_ends = (base.moved + base.short - self.least) // base.runs // self.rate
        return cast(Ints, (self.in_turn * np.minimum(base.cycles, waits)).astype(np.int64) + at_ends)

    def corrected(self, cycles: Ints) -> Ints:
        """Cycles, with what exact numbers have said about such shapes before."""
        group, slower = self.group, self.search.slower
        one, many = (
            slower.get((group.first, group.stop, group.shares > 1, several), 1.0) for several in (False, True)
        )
        if one == many == 1.0:
            return cycles
        return (cycles * np.where(group.shapes.images[self.index] > 1, many, one)).astype(np.int64)

    def base(self, resident: Kept, stay: Kept) -> Base | None:
        key = (resident, stay)
        if key not in self.bases:
            self.bases[key] = self.based(resident, stay)
        return self.bases[key]

    def based(self, resident: Kept, stay: Kept) -> Base | None:
        """What does not depend on the room that is left; None where no shape goes with these maps in SRAM."""
        group = self.group
        memory, late = self.fixed, self.late
        moved = np.full(len(self.index), self.least, np.int64)
        inside, staying = ({m >> FORM_BITS for m in maps} for maps in (resident, stay))
        valid, also = self.allowed(resident, group.inputs), self.allowed(stay, group.outputs)
        if valid is None or also is None:
            return None
        for b in group.inputs:
            if b.map not in inside:
                memory, moved = memory + self.buffers[b.map], moved + self.moved[b.map]
                late = np.maximum(late, b.late[self.index])
        passes = np.where(self.is_roll, self.tiles * (late + self.behind), self.tiles)
        short, crossing = np.zeros(len(self.index), np.int64), list[Crossing]()
        through = [b for b in group.inputs if b.map not in inside] + [b for b in group.outputs if b.map not in staying]
        for b in through:
            short = short + self.short[b.map]
            crossing.append(Crossing((self.moved[b.map] + self.short[b.map]) // self.rate, passes * self.spare[b.map]))
        sends = np.zeros(len(self.index), np.int64)
        for b in group.outputs:
            if b.map not in staying:
                memory, moved = memory + self.buffers[b.map], moved + self.moved[b.map]
            else:
                moved = moved + self.must_store.get(b.map, 0)
                sends = sends + sum(self.send_cycles(m) for m in stay if m >> FORM_BITS == b.map)
        runs = np.where(self.is_roll, late + self.behind, self.innermost)
        bus = passes * self.held_weights // self.search.target.cluster.bus.bytes_per_cycle
        cycles = np.maximum(passes * self.work, bus) + sends
        spent = np.maximum(self.spent, bus) + sends
        return Base(memory, moved, passes, cycles, spent, crossing, runs, short, valid & also)

    def send_cycles(self, kept: int) -> Ints:
        """Cycles in which a cluster sends others what they hold of a map that stays, and do not make."""
        chip, map_ = self.search.target.chip, kept >> FORM_BITS
        form = kept & ((1 << FORM_BITS) - 1)
        size_bytes = self.search.order.maps[map_].bytes
        if form == WHOLE:
            sent_bytes = np.full(len(self.index), size_bytes * (chip.clusters - 1) // chip.clusters)
        else:
            layer, box = self.search.order.nodes[map_].layer, self.search.boxes[kept]
            assert layer is not None
            borders = size_bytes * (box.before + box.behind) // layer.out_dims[form]
            sent_bytes = np.full(len(self.index), borders, np.int64)
        return sent_bytes // (1 if chip.cluster.cdma is None else chip.cluster.cdma.bytes_per_cycle)


@dataclass(frozen=True)
class Crossing:
    """A map that is loaded or stored: cycles of the DRAM port, and of the cores while its only copy is free."""

    port_cycles: Ints
    spare_cycles: Ints


@dataclass(frozen=True)
class Base:
    """A group with some maps in SRAM: bytes of SRAM with all weights, DRAM bytes with none streamed, passes, cycles of
    the cores (as if every pass had all to do; `spent`: as it is), maps that cross, passes of the innermost
    loop, bytes that the DRAM port loses with short runs, and which shapes go at all."""

    memory: Ints
    moved: Ints
    passes: Ints
    cycles: Ints
    spent: Ints
    crossing: list[Crossing]
    runs: Ints
    short: Ints
    fits: NDArray[np.bool_]


def boxes_of(order: LayerOrder, clusters: int) -> dict[int, Box]:
    """What each cluster holds of every map that may stay: all of it, or its share of rows or columns with the borders
    that single layers need of it."""
    found = {}
    for map_ in order.maps[: len(order.nodes)]:
        layer = order.nodes[map_.number].layer
        if layer is None:
            continue
        found[map_.number << FORM_BITS] = Box(0, 0, 0, -(-map_.bytes // 16) * 16)
        for d in (BY_ROWS, BY_COLUMNS) if clusters > 1 else ():
            size = layer.out_dims[d]
            share = -(-size // clusters)
            before, behind = borders_of(order, map_, d, share, clusters)
            extent = min(size, share + before + behind)
            held = map_.bytes // size * extent
            found[map_.number << FORM_BITS | d] = Box(share, before, behind, -(-held // 16) * 16)
        images = layer.out_dims[0]
        if clusters > 1 and images > 1:
            share = -(-images // clusters)
            held = map_.bytes // images * share
            found[map_.number << FORM_BITS | OF_IMAGES] = Box(share, 0, 0, -(-held // 16) * 16)
    return found


def borders_of(order: LayerOrder, map_: Map, d: int, share: int, clusters: int) -> tuple[int, int]:
    """Positions before and behind its share that layers need which are shared out in the same way."""
    before = behind = 0
    for k in map_.users:
        node = order.nodes[k]
        for read in node.reads:
            axis = read.rows if d == BY_ROWS else read.columns
            if read.map != map_.number or node.layer is None or isinstance(axis, Whole) or not read.joins:
                continue
            own = -(-node.layer.out_dims[d] // clusters)
            if own * axis.num == share * axis.den:
                before = max(before, -axis.low)
                behind = max(behind, (own - 1) * axis.num // axis.den + 1 + axis.reach + axis.low - share)
    return before, behind


def rest_of(order: LayerOrder) -> list[int]:
    """For each cut, bytes that what stands behind it moves at least: weights, inputs and outputs of the network."""
    count = len(order.nodes)
    own = [node.weight_bytes + node.vector_bytes for node in order.nodes]
    outputs = [map_.number for map_ in order.maps if map_.is_output and map_.producer is not None]
    while outputs:
        number = outputs.pop()
        if order.is_row(number) or (order.nodes[number].is_concat and order.is_place(number)):
            outputs += [read.map for read in order.nodes[number].reads]  # written where its parts are made
        else:
            own[number] += order.maps[number].bytes
    rest = [0] * (count + 1)
    for k in range(count - 1, -1, -1):
        rest[k] = rest[k + 1] + own[k]
    return rest
