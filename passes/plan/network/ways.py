# Tests: test/passes/plan/network/test_optimal.py
"""Ways to a cut by groups that end there: of all groups, sets of maps in SRAM and answers at once.

Most groups have a dozen shapes and are asked a handful of questions: what numpy takes for a call is more than what it
takes for them, so the questions of all groups are one array, and an answer is kept for all searches over the order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from frustum.passes.plan.model import MOST_BANNED
from frustum.passes.plan.network.cut_states import Cut, CutState
from frustum.passes.plan.network.kept import Resident
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.prices import Answers, Priced, Prices, starts_of
from frustum.passes.plan.network.tile_shapes import Ints

Banned = Mapping[tuple[int, int], Set[tuple[Resident, Resident]]]


class Limits(NamedTuple):
    """Bytes of SRAM, DRAM bytes of the whole network, and of these what moves behind the cut at least; whether the
    fewest cycles within that are looked for."""

    capacity: int
    bound: int
    rest: int
    within_bound: bool


class Questions(NamedTuple):
    """One for each set of maps before a group and each that may stay behind it: numbers of the group, of both sets and
    of what the group finds in SRAM; SRAM bytes that are free, and most DRAM bytes."""

    group: Ints
    before: Ints
    inside: Ints
    stay: Ints
    free: Ints
    most: Ints

    def only(self, which: Ints) -> Questions:
        return Questions(*(each[which] for each in self))


class Ways(NamedTuple):
    """Ways to a cut: what stays behind each (a number), bytes and cycles so far, the state before (a number), the
    question that it answers and the answer."""

    maps: Ints
    bytes: Ints
    cycles: Ints
    state: Ints
    question: Ints
    answer: Ints
    asked: Questions
    groups: Sequence[Prices]
    states: Sequence[CutState]
    answers: Priced

    def reached(self, k: int, maps: Resident) -> CutState:
        """Way k as a state."""
        group, _, inside, stay, free, _ = (int(each[self.question[k]]) for each in self.asked)
        prices = self.groups[group]
        choice = prices.choice(
            self.answers, int(self.answer[k]), free, prices.set_of(inside), prices.candidates.stays[stay]
        )
        return CutState(int(self.bytes[k]), int(self.cycles[k]), maps, self.states[self.state[k]], choice)


class Before(NamedTuple):
    """The cuts in front of groups, one behind the other: of each set of maps there its SRAM bytes, its fewest DRAM
    bytes, its first state and how many it has."""

    maps: Sequence[Resident]
    held: Ints
    least: Ints
    first: Ints
    counts: Ints
    bytes: Ints
    cycles: Ints
    states: Sequence[CutState]

    @staticmethod
    def of(cuts: Sequence[Cut], size: Callable[[Resident], int]) -> Before:
        maps = [each for cut in cuts for each in cut.maps]
        counts = [len(cut.states) for cut in cuts]
        ends = np.cumsum([0, *counts])
        held = np.array([size(each) for each in maps], np.int64)
        parts = zip(ends.tolist(), cuts, strict=False)
        first = np.concatenate([cut.starts + end for end, cut in parts])
        least, of_each, bytes_, cycles = (
            np.concatenate([getattr(cut, name) for cut in cuts])
            for name in ("least", "counts", "bytes", "cycles")
        )
        return Before(
            maps, held, least, first, of_each, bytes_, cycles, [s for cut in cuts for s in cut.states]
        )


def ways_by(
    groups: Sequence[Prices], cuts: Sequence[Cut], limits: Limits, banned: Banned, known: Answers,
    numbers: dict[Resident, int],
) -> Ways | None:  # fmt: skip
    """All ways to the cut behind these groups, from the cuts in front of them; `numbers` are those of the sets of maps
    that stay behind the cut, and grow."""
    goes = [
        bool(cut.states and prices.candidates.stays)
        and len(banned.get((prices.group.first, prices.group.stop), ())) <= MOST_BANNED
        for prices, cut in zip(groups, cuts, strict=True)
    ]
    groups, cuts = list(itertools.compress(groups, goes)), list(itertools.compress(cuts, goes))
    if not groups:
        return None
    setting = groups[0].setting
    before = Before.of(cuts, setting.size)
    asked = without(banned, questions(groups, cuts, before, limits), groups)
    if asked is None:
        return None
    first, count = answers_to(asked, groups, known, for_time=limits.within_bound)
    question, nth = expanded(count)
    answer = first[question] + nth
    pool = known.every()
    cheap = pool.moved[answer] <= asked.most[question]
    question, answer = question[cheap], answer[cheap]
    here, nth = expanded(before.counts[asked.before[question]])
    question, answer = question[here], answer[here]
    state = before.first[asked.before[question]] + nth
    bytes_ = before.bytes[state] + pool.moved[answer]
    within = bytes_ + limits.rest <= limits.bound
    question, answer, state, bytes_ = question[within], answer[within], state[within], bytes_[within]
    if not len(question):
        return None
    cycles = before.cycles[state] + pool.cycles[answer]
    maps = maps_behind(asked, question, groups, before.maps, setting.order, numbers)
    return Ways(maps[question], bytes_, cycles, state, question, answer, asked, groups, before.states, pool)


def questions(groups: Sequence[Prices], cuts: Sequence[Cut], before: Before, limits: Limits) -> Questions:
    """What to ask the groups: all that may fit, and move no more than the bound."""
    place: list[int] = []
    where: list[int] = []
    inside: list[int] = []
    begin, room = 0, limits.bound - limits.rest
    for k, (prices, cut) in enumerate(zip(groups, cuts, strict=True)):
        most = room - prices.candidates.least
        for j, (maps, fewest) in enumerate(zip(cut.maps, cut.least.tolist(), strict=True), begin):
            if fewest <= most and (found := prices.number_of(maps)) >= 0:
                place.append(k)
                where.append(j)
                inside.append(found)
        begin += len(cut.maps)
    of_stays = [prices.of_stays for prices in groups]
    stays, least_behind = (np.concatenate(each) for each in zip(*of_stays, strict=True))
    least_before = [prices.least_before() for prices in groups]
    counts = np.array([len(each) for each, _ in of_stays])
    firsts, offsets = (
        np.cumsum([0, *sizes]) for sizes in (counts.tolist(), [len(each) for each in least_before])
    )
    group, sets, number = np.array(place, np.int64), np.array(where, np.int64), np.array(inside, np.int64)
    left, stay = expanded(counts[group])
    at = firsts[group][left] + stay
    least = np.concatenate(least_before)[offsets[group] + number]
    free = (limits.capacity - before.held[sets])[left] - stays[at]
    own_most = room - before.least[sets]
    goes = np.flatnonzero((free >= 0) & (least[left] + least_behind[at] <= own_most[left]))
    left = left[goes]
    return Questions(group[left], sets[left], number[left], stay[goes], free[goes], own_most[left])


def without(banned: Banned, asked: Questions, groups: Sequence[Prices]) -> Questions | None:
    """The questions but for those of which the answers do not fit after all; None where none is left."""
    refused = [banned.get((x.group.first, x.group.stop), set()) for x in groups]
    if any(refused):
        rows = zip(asked.group.tolist(), asked.inside.tolist(), asked.stay.tolist(), strict=True)
        pairs = ((k, groups[k].set_of(inside), groups[k].candidates.stays[stay]) for k, inside, stay in rows)
        asked = asked.only(np.flatnonzero([(found, left) not in refused[k] for k, found, left in pairs]))
    return asked if len(asked.group) else None


def answers_to(
    asked: Questions, groups: Sequence[Prices], known: Answers, *, for_time: bool
) -> tuple[Ints, Ints]:
    """Of each question the first of the answers among all that are known, and how many it has."""
    bounds = np.searchsorted(asked.group, np.arange(len(groups) + 1)).tolist()
    keys = list(zip(asked.inside.tolist(), asked.stay.tolist(), asked.free.tolist(), strict=True))
    found: list[tuple[int, int]] = []
    for prices, low, high in zip(groups, bounds, bounds[1:], strict=False):
        if low < high:
            found += prices.ask(keys[low:high], known, prices.slower, for_time=for_time)
    first, count = np.array(found, np.int64).T
    return first, count


def maps_behind(
    asked: Questions, question: Ints, groups: Sequence[Prices], maps: Sequence[Resident], order: LayerOrder,
    numbers: dict[Resident, int],
) -> Ints:  # fmt: skip
    """For each question (of those that have an answer) the number of the set of maps that stay behind the cut."""
    found = np.full(len(asked.group), -1)
    stop = groups[0].group.stop
    left: dict[int, Resident] = {}
    rows = question[starts_of(question)]
    fields = (each[rows].tolist() for each in (asked.before, asked.group, asked.stay))
    behind: list[int] = []
    for sets, group, stay in zip(*fields, strict=True):
        if sets not in left:
            left[sets] = frozenset(m for m in maps[sets] if order.maps[m.map].last_use >= stop)
        stays = groups[group].candidates.stays[stay]
        behind.append(numbers.setdefault(left[sets] | stays, len(numbers)))
    found[rows] = behind
    return found


def expanded(counts: Ints) -> tuple[Ints, Ints]:
    """For each of `counts` things in turn: whose it is, and which of its own."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
