# Tests: test/passes/plan/network/test_optimal.py
"""What the ways to run a group cost, many at once: DRAM bytes and cycles of all its shapes with some maps in SRAM.

A *row* is one question: which maps the group finds in SRAM, which it leaves there, how many bytes are free beside them,
and how many DRAM bytes are too many.  The answers are flat arrays over all rows and all shapes that go.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from frustum.passes.plan.cost import overlapped
from frustum.passes.plan.model import COLUMNS_SHOW, OVERLAPPED, PASS_CYCLES, RASTER_SHOWS
from frustum.passes.plan.network.candidates import Candidates, Setting, UnitChoice
from frustum.passes.plan.network.groups import Boundary, Group
from frustum.passes.plan.network.kept import Resident
from frustum.passes.plan.network.needs import FAR
from frustum.passes.plan.network.tile_shapes import BY_COLUMNS, Ints, Mask

CYCLE_BITS = 31
Slower = tuple[float, float]
"""Times the cycles of the model: of shapes with one image in a tile, and with several."""
Question = tuple[int, int, int]
"""Numbers of what a group finds in SRAM and leaves there, bytes that are free."""


class Rows(NamedTuple):
    """Questions: numbers of what a group finds in SRAM and leaves there, SRAM bytes that are free, most DRAM bytes."""

    inside: Ints
    stay: Ints
    free: Ints
    most: Ints


class Priced(NamedTuple):
    """Answers, by row: shapes (positions in `Candidates.index`), what they move and take, how many weights are
    streamed."""

    row: Ints
    shape: Ints
    moved: Ints
    cycles: Ints
    streamed: Ints
    passes: Ints

    def only(self, which: Ints | Mask) -> Priced:
        return Priced(*(each[which] for each in self))


class Side(NamedTuple):
    """Of all shapes with some maps in SRAM, before or behind a group; each field has one line for each such set."""

    fits: Mask
    memory: Ints
    """Bytes of the buffers of what is loaded, or stored."""
    moved: Ints
    short: Ints
    """Bytes that the DRAM port loses with short runs."""
    late: Ints
    """Steps by which loaded maps are ahead."""
    sends: Ints
    """Cycles in which clusters send each other what stays."""
    copied: Ints
    """Cycles in which parts of concatenations that lie in SRAM are copied to their places."""
    through: Mask
    """Of each boundary: whether it is loaded, or stored."""


class Sides:
    """What of a group's shapes depends on the maps that are in SRAM before and behind it."""

    def __init__(self, candidates: Candidates):
        self.candidates = candidates
        self.setting: Setting = candidates.setting
        self.group: Group = candidates.group
        self.sets: list[Resident] = []
        """Maps that the group finds in SRAM, by their numbers."""
        self.numbers: dict[Resident, int] = {}
        """By all maps in SRAM before the group: of those which it reads there, -1 where it cannot."""
        self.before: Side | None = None
        """One line for each number so far."""
        self.least_loaded: Ints = np.zeros(0, np.int64)

    def number_of(self, maps: Resident) -> int:
        """Of those that the group reads in SRAM of all maps there; -1 where no shape can read them as they are held."""
        if maps not in self.numbers:
            inside, found = self.inside(maps), -1
            if inside is not None and inside != maps:
                found = self.number_of(inside)
            elif inside is not None and self.candidates.allowed(inside, are_made=False):
                found = len(self.sets)
                self.sets.append(inside)
            self.numbers[maps] = found
        return self.numbers[maps]

    def set_of(self, number: int) -> Resident:
        """The maps that the group finds in SRAM, of a number."""
        return self.sets[number]

    def inside(self, maps: Resident) -> Resident | None:
        """Of the maps in SRAM those that the group reads there; None where it cannot read some of them."""
        here, all_maps = {m.map: m for m in maps}, self.setting.order.maps
        read = [b for b in self.group.inputs if b.map in here]
        if any(not b.can_stay and not all_maps[b.map].needs_dram for b in read):
            return None
        return frozenset(here[b.map] for b in read if b.can_stay)

    def sides_before(self) -> Side:
        """One line for each number."""
        known = 0 if self.before is None else len(self.before.sends)
        if self.before is None or known < len(self.sets):
            new = self.side(self.sets[known:], are_made=False)
            pairs = zip(self.before or new, new, strict=True)
            self.before = new if self.before is None else Side(*(np.concatenate(pair) for pair in pairs))
        return self.before

    @cached_property
    def behind(self) -> Side:
        """One line for each of `Candidates.stays`."""
        return self.side(self.candidates.stays, are_made=True)

    def side(self, sets: list[Resident], *, are_made: bool) -> Side:
        own, maps = self.candidates, self.setting.order.maps
        numbers, lates, fields = self.stored if are_made else self.loaded
        in_sram = [{kept.map for kept in maps_} for maps_ in sets]
        through = np.array([[number not in here for number in numbers] for here in in_sram], np.int64)
        through = through.reshape(len(sets), len(numbers))
        fits = own.masks(sets, are_made=are_made)
        every, size = fields.sum(axis=0), len(own.index)
        summed = through @ fields
        buffer, moved, short, copied = (summed[:, k * size : (k + 1) * size] for k in range(4))
        late, sends = np.zeros_like(moved), np.zeros(len(sets), np.int64)
        if are_made:
            sends = np.array([sum(self.setting.send_cycles(kept) for kept in x) for x in sets], np.int64)
            stored_too = [
                sum(maps[number].bytes for number in here if maps[number].needs_dram) for here in in_sram
            ]
            moved = moved + np.array(stored_too, np.int64)[:, np.newaxis]
        else:
            for ahead, is_loaded in zip(lates, through.T, strict=True):
                late = np.maximum(late, is_loaded[:, np.newaxis] * ahead)
        return Side(fits, buffer, moved, short, late, sends, every[3 * size :] - copied, through > 0)

    @cached_property
    def loaded(self) -> tuple[list[int], Ints, Ints]:
        return self.fields(self.group.inputs)

    @cached_property
    def stored(self) -> tuple[list[int], Ints, Ints]:
        return self.fields(self.group.outputs)

    def fields(self, boundaries: Sequence[Boundary]) -> tuple[list[int], Ints, Ints]:
        """Numbers of the maps; steps by which each is ahead; bytes of its buffers, bytes that it moves, short runs and
        copies, in one line."""
        lines = [(b.late, b.buffer, b.moved, b.short, b.copied) for b in boundaries]
        index = self.candidates.index
        found = np.array(lines, np.int64).reshape(len(lines), 5, len(self.group.valid))[:, :, index]
        return [b.map for b in boundaries], found[:, 0], found[:, 1:].reshape(len(lines), 4 * len(index))

    def least_before(self) -> Ints:
        """DRAM bytes of all but what is stored, of which no shape moves fewer; one for each number."""
        side = self.sides_before()
        known = len(self.least_loaded)
        if known < len(side.sends):
            new = np.where(side.fits[known:], side.moved[known:], FAR).min(axis=1) + self.candidates.least
            self.least_loaded = np.append(self.least_loaded, new)
        return self.least_loaded

    @cached_property
    def of_stays(self) -> tuple[Ints, Ints]:
        """SRAM bytes of each of `Candidates.stays`, and what no shape falls below that stores the others."""
        sizes = np.array([self.setting.size(stay) for stay in self.candidates.stays], np.int64)
        return sizes, np.where(self.behind.fits, self.behind.moved, FAR).min(axis=1)


class Prices(Sides):
    """Of one group."""

    def __init__(self, candidates: Candidates):
        super().__init__(candidates)
        self.answered: dict[Hashable, dict[Question, tuple[int, int]]] = {}
        """By kind of answer and question: the first answer in `Answers`, and how many."""
        cluster = self.setting.target.cluster
        self.weights_rate: int = max(
            cluster.bus.bytes_per_cycle, cluster.cores * cluster.core.mvdma.bytes_per_cycle
        )
        """Bytes of weights that reach the cores in a cycle: each core loads its own channels, if that is faster."""
        self.once_rate: int = cluster.bus.bytes_per_cycle
        """The same over the bus, as it counts in a single pass, and where bytes decide: weights that every cluster
        holds whole leave no room to load others ahead (ResNet-50 on `default`: 650 instead of 715 thousand cycles)."""

    @cached_property
    def beside(self) -> Ints:
        """DRAM bytes that take as much energy as all else, where energy is to be least."""
        energy_pj, byte_pj = self.group.energy_pj[self.candidates.index], self.setting.byte_pj
        return (
            np.zeros(len(energy_pj), np.int64) if byte_pj is None else (energy_pj / byte_pj).astype(np.int64)
        )

    # ------------------------------------------------------------ answers

    @property
    def slower(self) -> Slower:
        """What exact numbers have said about the group before."""
        return self.setting.slower_of(self.group)

    def ask(
        self, questions: Sequence[Question], answers: Answers, slower: Slower, *, for_time: bool
    ) -> list[tuple[int, int]]:
        """The place of the first answer among all, and how many there are: those of which none takes fewer bytes and
        cycles (`for_time`), or the cheapest; corrected so."""
        known = self.answered.setdefault((for_time, slower), {})
        new = [each for each in dict.fromkeys(questions) if each not in known]
        if new:
            inside, stay, free = np.array(new, np.int64).T
            rows = Rows(inside, stay, free, np.full(len(new), FAR))
            found = self.frontier(rows, slower) if for_time else self.best(rows, slower)
            first = answers.add(found)
            for each, count in zip(new, np.bincount(found.row, minlength=len(new)).tolist(), strict=True):
                known[each] = first, count
                first += count
        return [known[each] for each in questions]

    def priced(self, rows: Rows, slower: Slower = (1.0, 1.0), *, for_time: bool = False) -> Priced:
        """Of all shapes that fit, in all rows, corrected so; `for_time`: by closer cycles, which choose between
        different bytes."""
        own, before, behind = self.candidates, self.sides_before(), self.behind
        row, shape = np.nonzero(before.fits[rows.inside] & behind.fits[rows.stay])
        inside, stay = rows.inside[row], rows.stay[row]
        over = own.fixed[shape] + before.memory[inside, shape] + behind.memory[stay, shape] - rows.free[row]
        still = own.least + before.moved[inside, shape] + behind.moved[stay, shape] + self.beside[shape]
        fits = (over <= own.gain[-1]) & (still <= rows.most[row])
        if not fits.all():
            row, shape, inside, stay, over, still = (
                each[fits] for each in (row, shape, inside, stay, over, still)
            )
        late = np.maximum(own.late[shape], before.late[inside, shape])
        passes = own.steps[shape] * np.where(own.is_roll[shape], late + own.behind[shape], 1)
        streamed = np.searchsorted(own.gain, over)
        weights = np.where(passes > 1, own.again[streamed], own.streamed[streamed])
        again = np.maximum(weights - own.kept, 0)
        moved = still + (passes - 1) * again
        short = before.short[inside, shape] + behind.short[stay, shape]
        rate = np.where((passes > 1) & for_time, self.weights_rate, self.once_rate)
        bus = passes * own.held_weights // rate
        besides = behind.sends[stay] + before.copied[inside, shape]
        if self.setting.fastest:
            full = own.steps[shape] * np.where(
                own.is_roll[shape], own.behind[shape], 1
            )  # the others make less
            busy = np.maximum(full * own.work[shape], bus) + besides
            waited = self.waited(rows, Priced(row, shape, still + short, busy, again, passes))
            cycles = self.in_turn(busy, (moved + short) // self.setting.port_rate, passes) + waited
        else:
            busy = np.maximum(own.spent[shape], bus) + besides
            cycles = self.of_one_image(busy, moved + short, still + short, again, passes, own.in_turn[shape])
        by_columns = self.group.shapes.dealt[own.index[shape]] == BY_COLUMNS
        cycles = cycles + (cycles * by_columns * (COLUMNS_SHOW * for_time)).astype(np.int64)
        is_raster = self.group.shapes.is_raster[own.index[shape]]
        cycles = cycles + (cycles * is_raster * RASTER_SHOWS).astype(np.int64)
        found = Priced(row, shape, moved, self.corrected(cycles, shape, slower), streamed, passes)
        fits = moved <= rows.most[row]
        if self.setting.once:
            fits &= (streamed == 0) | (passes == 1)
        return found if fits.all() else found.only(fits)

    def of_one_image(
        self, busy: Ints, padded: Ints, still: Ints, weights: Ints, passes: Ints, in_turn: Mask
    ) -> Ints:
        """Cycles; `padded` and `still` are what the port is busy with, with and without weights streamed again."""
        own, rate = self.candidates, self.setting.port_rate
        # In one pass what is held comes as pieces need it; what is streamed only while its own layer is computed.
        waited = ((own.total_weights - weights) * (passes > 1) + passes * weights) / rate
        cycles: Ints = overlapped(busy, padded // rate, (still - own.least) / rate, waited, passes, in_turn)
        return cycles.astype(np.int64)

    def in_turn(self, busy: Ints, transfer: Ints, passes: Ints) -> Ints:
        """Cycles of several images, but for what is waited for."""
        hidden = (busy + transfer) * OVERLAPPED
        return np.maximum(busy, transfer) + passes * PASS_CYCLES + hidden.astype(np.int64)

    def waited(self, rows: Rows, x: Priced) -> Ints:
        """Cycles in which the cores wait for maps; `x` has the bytes of maps, the busy cycles, the streamed bytes.

        In the first and last pass of each innermost loop, and of one copy for what is not loaded behind its last reader
        or stored before its maker, while the DRAM port has no weights to bring.
        """
        own, rate = self.candidates, self.setting.port_rate
        streams = np.minimum(1.0, x.passes * x.streamed / rate / np.maximum(x.cycles, 1))
        waits = np.zeros(len(streams))
        sides = (
            (self.sides_before(), self.group.inputs, rows.inside), (self.behind, self.group.outputs, rows.stay)
        )  # fmt: skip
        shape = own.index[x.shape]
        for side, boundaries, numbers in sides:
            for k, b in enumerate(boundaries):
                port = (b.moved[shape] + b.short[shape]) // rate
                late = np.maximum(port - (1.0 - streams) * (x.passes * b.spare[shape]), 0)
                waits = waits + side.through[numbers[x.row], k] * late
        innermost = np.maximum(own.images, np.where(own.columns > 1, own.columns, own.rows))[x.shape]
        runs = np.where(own.is_roll[x.shape], x.passes // own.steps[x.shape], innermost)
        at_ends = (x.moved - own.least) // runs // rate
        return (own.in_turn[x.shape] * np.minimum(x.cycles, waits)).astype(np.int64) + at_ends

    def corrected(self, cycles: Ints, shape: Ints, slower: Slower) -> Ints:
        """Cycles, with what exact numbers have said about such shapes before."""
        one, many = slower
        if one == many == 1.0:
            return cycles
        images = self.group.shapes.images[self.candidates.index[shape]]
        return (cycles * np.where(images > 1, many, one)).astype(np.int64)

    # ------------------------------------------------------------ the best of them

    def score(self, found: Priced) -> Ints:
        """What is to be least, in one number."""
        first, then = (
            (found.cycles, found.moved >> 4) if self.setting.fastest else (found.moved, found.cycles)
        )
        return (first << CYCLE_BITS) + np.minimum(then, (1 << CYCLE_BITS) - 1)

    def best(self, rows: Rows, slower: Slower) -> Priced:
        """The cheapest of each row that has any."""
        found = self.priced(rows, slower)
        if not len(found.row):
            return found
        score, starts = self.score(found), starts_of(found.row)
        counts = np.diff(np.append(starts, len(score)))
        is_best = np.flatnonzero(score == np.repeat(np.minimum.reduceat(score, starts), counts))
        return found.only(is_best[starts_of(found.row[is_best])])

    def frontier(self, rows: Rows, slower: Slower) -> Priced:
        """Of each row those of which no other takes fewer bytes and fewer cycles."""
        found = self.priced(rows, slower, for_time=True)
        return found.only(frontier_of(found.row, found.moved, found.cycles))

    def ranked(
        self, resident: Resident, stay: Resident, free_bytes: int, count: int, most_bytes: int | None = None
    ) -> list[UnitChoice]:
        """So many shapes that fit, from the cheapest on; with `most_bytes` the fastest of those that move no more."""
        number = self.number_of(resident)
        if number < 0 or stay not in self.candidates.stays:
            return []
        one = (
            np.array([x]) for x in (number, self.candidates.stays.index(stay), free_bytes, most_bytes or FAR)
        )
        found = self.priced(Rows(*one), self.slower, for_time=most_bytes is not None)
        score = self.score(found) if most_bytes is None else found.cycles
        order = np.argsort(score, kind="stable")[:count]
        return [self.choice(found, k, free_bytes, resident, stay) for k in order.tolist()]

    def choice(
        self, found: Priced, k: int, free_bytes: int, resident: Resident, stay: Resident
    ) -> UnitChoice:
        """Answer k as a unit."""
        group = self.group
        return UnitChoice(
            group.first, group.stop, int(found.moved[k]), int(found.cycles[k]), free_bytes,
            int(self.candidates.index[found.shape[k]]), int(found.streamed[k]), resident, stay,
            int(found.passes[k]), group.by_channels, float(group.energy_pj[self.candidates.index[found.shape[k]]]),
        )  # fmt: skip


class Answers:
    """All that groups have said, one behind the other."""

    def __init__(self) -> None:
        self.fields: Ints = np.zeros((len(Priced._fields), 1024), np.int64)
        self.size: int = 0

    def add(self, found: Priced) -> int:
        """Take note of more; the place of the first."""
        first, self.size = self.size, self.size + len(found.row)
        if self.size > self.fields.shape[1]:
            self.fields = np.concatenate(
                [self.fields, np.zeros((len(self.fields), self.size), np.int64)], axis=1
            )
        self.fields[:, first : self.size] = found
        return first

    def every(self) -> Priced:
        return Priced(*self.fields[:, : self.size])


def starts_of(ascending: Ints) -> Ints:
    """Where each number begins."""
    return np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1])) if len(ascending) else ascending


def frontier_of(group: Ints, first: Ints, second: Ints) -> Ints:
    """The places, group by group and by ascending `first`, of what has a smaller `second` than all before it in its
    group."""
    order = np.lexsort((second, first, group))
    if not len(order):
        return order
    seconds = second[order]
    far = seconds.max() - seconds.min() + 1
    least = np.minimum.accumulate(seconds - group[order] * far)  # every group is below all before it
    is_new = np.append(True, least[1:] < least[:-1])
    return order[is_new]
