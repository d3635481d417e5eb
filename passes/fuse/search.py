"""The cut points of a whole network by dynamic programming, with the maps that stay in SRAM across each cut as state.

Exact for one order of the layers as long as no cut has more than `MOST_STATES` sets of resident maps; else the best of
them are kept, by bytes so far and bytes that must still be read.
Source: Occam (doi 10.1145/3566052), tpu-mlir's interval programming; states as in Fusion's "keep a small set for each
prefix" (FFM).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.target import Target
from frustum.dialects.tile import Whole
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.fuse.listing import Listing, Map
from frustum.passes.fuse.sweep import ROLL, STEP_CYCLES, Boundary, Group, Sweep, by_channels
from frustum.passes.tile.plan_unit import Budget, plan_unit

MOST_STATES = 48
MOST_KEPT = 4  # of the outputs of a group, any subset of so many may stay
RESIDENT_CONCAT = False  # the lowering cannot yet name resident maps side by side one map
CHUNK_SHARE = 32  # a chunk of streamed weights is at most this part of SRAM, or
SMALLEST_CHUNK_BYTES = 2048
CYCLE_BITS = 31
HUGE = 1 << 62
FORM_BITS = 2
"""A map that stays is `number << FORM_BITS` with the dimension of which each cluster holds its share (2 or 3), or 0:
each holds all of it."""
WHOLE, BY_ROWS, BY_COLUMNS = 0, 2, 3
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
    listing: Listing
    steps: list[Step]
    bytes: int
    cycles: int


def chunk_bytes(capacity: int) -> int:
    return max(SMALLEST_CHUNK_BYTES, capacity // CHUNK_SHARE)


@dataclass
class Search:
    """The dynamic programme over one listing."""

    listing: Listing
    target: Target
    capacity: int
    borders: str = "auto"
    keep: bool = True
    longest: int = 96
    banned: set[tuple[int, int]] = field(default_factory=set)

    def solve(self) -> Solution | None:
        """The cheapest way through all layers; None if some layer fits in no way."""
        count = len(self.listing.nodes)
        self.boxes = boxes_of(self.listing, self.target.chip.clusters)
        self.states: list[dict[Kept, State]] = [{} for _ in range(count + 1)]
        self.states[0][frozenset()] = State(0, 0)
        for stop in range(1, count + 1):
            self.reach(stop)
            self.thin(stop)
        ends = self.states[count].values()
        if not ends:
            return None
        end = min(ends, key=lambda s: (s.bytes, s.cycles))
        steps = []
        at: State | None = end
        while at is not None and at.step is not None:
            steps.append(at.step)
            at = at.before
        return Solution(self.listing, steps[::-1], end.bytes, end.cycles)

    def thin(self, stop: int) -> None:
        """Keep the most promising sets of resident maps."""
        states = self.states[stop]
        if len(states) <= MOST_STATES:
            return
        live = [m for m in self.listing.maps[:stop] if m.last_use >= stop]

        def promise(item: tuple[Kept, State]) -> tuple[int, int]:
            kept, state = item
            here = {m >> FORM_BITS for m in kept}
            return state.bytes + sum(m.bytes for m in live if m.number not in here), state.cycles

        self.states[stop] = dict(sorted(states.items(), key=promise)[:MOST_STATES])

    # ------------------------------------------------------------ ways to a cut

    def reach(self, stop: int) -> None:
        node = self.listing.nodes[stop - 1]
        if node.layer is None:
            self.move(stop)
            return
        if node.is_concat:
            self.side_by_side(stop)
        if node.batched_weights:
            self.alone(stop)
            return
        channel_wise = by_channels(self.listing, self.target, stop)
        if channel_wise is not None:
            self.take(channel_wise)
        for group in Sweep(self.listing, self.target, stop, self.borders).groups(self.capacity):
            if stop - group.first > self.longest:
                break
            self.take(group)
        if not node.is_concat:
            self.alone(stop)

    def take(self, group: Group) -> None:
        """All ways to a cut by this group."""
        if (group.first, group.stop) in self.banned or not self.states[group.first]:
            return
        ways = Ways(group, self)
        for kept, state in self.states[group.first].items():
            self.extend(ways, kept, state)

    def size(self, maps: Kept) -> int:
        """Bytes of what stays, in one cluster."""
        return sum(self.boxes[m].bytes for m in maps)

    def arrive(self, stop: int, kept: Kept, state: State, step: Step) -> None:
        """Take note of a way to a cut, if it is the best for what stays in SRAM."""
        maps = self.listing.maps
        left = frozenset(m for m in kept if maps[m >> FORM_BITS].last_use >= stop)
        new = State(state.bytes + step.bytes, state.cycles + step.cycles, state, step)
        old = self.states[stop].get(left)
        if old is None or (new.bytes, new.cycles) < (old.bytes, old.cycles):
            self.states[stop][left] = new

    def move(self, stop: int) -> None:
        """A layer that only moves data: from DRAM to DRAM."""
        node, maps = self.listing.nodes[stop - 1], self.listing.maps
        moved = sum(r.bytes for r in node.reads) + maps[stop - 1].bytes
        cycles = moved // self.target.chip.dram.port_bytes_per_cycle
        for kept, state in self.states[stop - 1].items():
            step = Step(stop - 1, stop, None, 0, frozenset(), frozenset(), moved, cycles, 0, self.capacity)
            self.arrive(stop, kept, state, step)

    def side_by_side(self, stop: int) -> None:
        """A concatenation alone: a name for what is there, all in DRAM or all in SRAM."""
        node, maps = self.listing.nodes[stop - 1], self.listing.maps
        operands = {r.map for r in node.reads}
        for kept, state in self.states[stop - 1].items():
            here = frozenset(m for m in kept if m >> FORM_BITS in operands)
            if all(maps[m >> FORM_BITS].needs_dram for m in here):
                step = Step(stop - 1, stop, None, 0, frozenset(), frozenset(), 0, 0, 0, self.capacity)
                self.arrive(stop, kept, state, step)
            forms = {m & 3 for m in here}
            if RESIDENT_CONCAT and len(here) == len(operands) and len(forms) == 1 and not maps[stop - 1].needs_dram:
                stay = frozenset({(stop - 1) << FORM_BITS | forms.pop()})
                if self.size(kept | stay) - self.size(here) <= self.capacity:
                    step = Step(stop - 1, stop, None, 0, here, stay, 0, 0, 0, self.capacity)
                    self.arrive(stop, (kept - here) | stay, state, step)

    def alone(self, stop: int) -> None:
        """A layer as `plan_unit` cuts it, by channels too, between maps in DRAM."""
        op, maps = self.listing.nodes[stop - 1].op, self.listing.maps
        reads = {r.map for r in self.listing.nodes[stop - 1].reads}
        plans = {}
        for share in (1, 2):
            plans[share] = plan_unit(layers_of([op]), self.target, Budget(self.capacity // share))
        for kept, state in self.states[stop - 1].items():
            if any(m >> FORM_BITS in reads and not maps[m >> FORM_BITS].needs_dram for m in kept):
                continue
            share = 1 if not kept else 2
            plan, free = plans[share], self.capacity // share
            if plan is None or self.capacity - self.size(kept) < free:
                continue
            step = Step(
                stop - 1, stop, None, 0, frozenset(), frozenset(), plan.dram_bytes, int(plan.cycles), free, free
            )
            self.arrive(stop, kept, state, step)

    def extend(self, ways: Ways, kept: Kept, state: State) -> None:
        group = ways.group
        known = {m >> FORM_BITS: m for m in kept}
        inside = frozenset(known[b.map] for b in group.inputs if b.map in known and b.can_stay)
        if any(
            b.map in known and not b.can_stay and not self.listing.maps[b.map].needs_dram for b in group.inputs
        ):
            return
        free = self.capacity - self.size(kept)
        for stay in ways.stays:
            left = free - self.size(stay)
            if left < 0:
                continue
            found = ways.best(inside, stay, left)
            if found is not None:
                self.arrive(group.stop, kept | stay, state, found)


class Ways:
    """All ways to run a group: tile shapes, and which of its maps are or stay in SRAM."""

    def __init__(self, group: Group, search: Search):
        self.group, self.search = group, search
        maps = search.listing.maps
        may_stay = [b.map for b in group.outputs if self.can_stay(b)] if search.keep else []
        may_stay = may_stay[-MOST_KEPT:]
        forms = (WHOLE,) if search.target.chip.clusters == 1 else (BY_ROWS, BY_COLUMNS, WHOLE)
        choices = [[None, *(m << FORM_BITS | form for form in forms)] for m in may_stay]
        self.stays = [
            frozenset(m for m in chosen if m is not None) for chosen in itertools.product(*choices)
        ]
        self.stays = [stay for stay in self.stays if self.allowed(stay, group.outputs) is not None]
        largest_first = np.array(group.weights[::-1], np.int64)
        self.held_weights = int(largest_first.sum())
        self.total_weights = self.held_weights * group.shares
        streamed = np.concatenate([[0], np.cumsum(largest_first)])
        chunk = 2 * min(int(largest_first[0]), chunk_bytes(search.capacity)) if len(largest_first) else 0
        self.streamed = streamed
        self.gain = streamed - np.where(streamed > 0, chunk, 0)
        self.gain = np.maximum.accumulate(self.gain)
        shapes = group.shapes
        self.tiles = shapes.counts[0] * shapes.counts[1] * shapes.counts[2]
        self.is_roll = shapes.mode == ROLL
        self.fixed = group.inside + group.vector_bytes + self.held_weights
        self.rate = search.target.chip.dram.port_bytes_per_cycle
        self.must_store = {b.map: maps[b.map].bytes for b in group.outputs if maps[b.map].needs_dram}
        self.known: dict[tuple[Kept, Kept, int], Step | None] = {}

    def can_stay(self, output: Boundary) -> bool:
        """Somebody behind the group reads it as it was made."""
        listing = self.search.listing
        return output.can_stay and any(
            r.joins
            for k in listing.maps[output.map].users
            if k >= self.group.stop
            for r in listing.nodes[k].reads
            if r.map == output.map
        )

    def allowed(self, stay: Kept, boundaries: Sequence[Boundary]) -> NDArray[np.bool_] | None:
        """In which shapes the clusters make, or need, no more of these maps than they hold; None: in none."""
        fits = self.group.valid
        for b in boundaries:
            for form in (BY_ROWS, BY_COLUMNS):
                if b.map << FORM_BITS | form in stay:
                    fits = fits & self.within(b, form)
            if b.map << FORM_BITS in stay and boundaries is self.group.outputs and self.search.target.chip.clusters > 1:
                shapes = self.group.shapes
                fits = fits & ((shapes.dealt != BY_ROWS) | (shapes.counts[1] == 1))
                fits = fits & ((shapes.dealt != BY_COLUMNS) | (shapes.counts[2] == 1))
        return fits if fits.any() else None

    def within(self, b: Boundary, form: int) -> NDArray[np.bool_]:
        """A cluster's box of a map in each shape lies in what it holds of it."""
        shapes, held = self.group.shapes, self.search.boxes.get(b.map << FORM_BITS | form)
        if held is None:
            return np.zeros(len(shapes.mode), np.bool_)
        start, step, extent = b.rows if form == BY_ROWS else b.columns
        alike = (shapes.dealt == form) & (shapes.counts[form - 1] == 1) & (step == held.share)
        return alike & (start >= -held.before) & (start + extent <= held.share + held.behind)

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
        memory, late = self.fixed, group.late
        moved = np.full(len(memory), group.constant_bytes + group.vector_bytes)
        inside, staying = ({m >> FORM_BITS for m in maps} for maps in (resident, stay))
        valid = self.allowed(resident, group.inputs)
        also = self.allowed(stay, group.outputs)
        if valid is None or also is None:
            return
        for b in group.inputs:
            if b.map not in inside:
                memory, moved, late = memory + b.buffer, moved + b.moved, np.maximum(late, b.late)
        for b in group.outputs:
            if b.map not in staying:
                memory, moved = memory + b.buffer, moved + b.moved
            else:
                moved = moved + self.must_store.get(b.map, 0)
        streamed = np.searchsorted(self.gain, memory - free)
        fits = valid & also & (streamed < len(self.gain))
        if not fits.any():
            return
        streamed = np.minimum(streamed, len(self.gain) - 1)
        passes = np.where(self.is_roll, self.tiles * (late + group.behind), self.tiles)
        moved = moved + self.total_weights + (passes - 1) * self.streamed[streamed]
        bus = passes * self.held_weights // self.search.target.cluster.bus.bytes_per_cycle
        cycles = np.maximum(np.maximum(passes * group.work, bus), moved // self.rate) + passes * STEP_CYCLES
        score = np.where(fits, (moved << CYCLE_BITS) + np.minimum(cycles, (1 << CYCLE_BITS) - 1), HUGE)
        for k in [int(np.argmin(score))] if most == 1 else np.argsort(score, kind="stable")[:most].tolist():
            if score[k] == HUGE:
                return
            count = int(streamed[k])
            yield Step(
                group.first, group.stop, k, count, resident, stay, int(moved[k]), int(cycles[k]),
                int(memory[k] - self.gain[count]), free, int(passes[k]), group.shares > 1,
            )  # fmt: skip


def boxes_of(listing: Listing, clusters: int) -> dict[int, Box]:
    """What each cluster holds of every map that may stay: all of it, or its share of rows or columns with the borders
    that single layers need of it."""
    found = {}
    for map_ in listing.maps[: len(listing.nodes)]:
        layer = listing.nodes[map_.number].layer
        if layer is None:
            continue
        found[map_.number << FORM_BITS] = Box(0, 0, 0, -(-map_.bytes // 16) * 16)
        for d in (BY_ROWS, BY_COLUMNS) if clusters > 1 else ():
            size = layer.out_dims[d]
            share = -(-size // clusters)
            before, behind = borders_of(listing, map_, d, share, clusters)
            extent = min(size, share + before + behind)
            held = map_.bytes // size * extent
            found[map_.number << FORM_BITS | d] = Box(share, before, behind, -(-held // 16) * 16)
    return found


def borders_of(listing: Listing, map_: Map, d: int, share: int, clusters: int) -> tuple[int, int]:
    """Positions before and behind its share that layers need which are shared out in the same way."""
    before = behind = 0
    for k in map_.users:
        node = listing.nodes[k]
        for read in node.reads:
            axis = read.rows if d == BY_ROWS else read.columns
            if read.map != map_.number or node.layer is None or isinstance(axis, Whole) or not read.joins:
                continue
            own = -(-node.layer.out_dims[d] // clusters)
            if own * axis.num == share * axis.den:
                before = max(before, -axis.low)
                behind = max(behind, (own - 1) * axis.num // axis.den + 1 + axis.reach + axis.low - share)
    return before, behind


def solve_all(
    listings: Sequence[Listing] | Iterator[Listing], target: Target, capacity: int, **options: object
) -> Solution | None:
    """The best over several orders of the layers."""
    found = [Search(listing, target, capacity, **options).solve() for listing in listings]  # type: ignore[arg-type]
    good = [s for s in found if s is not None]
    return min(good, key=lambda s: (s.bytes, s.cycles), default=None)
