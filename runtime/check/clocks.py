"""What is certain to happen before what: vector clocks of all executions of a program.

A clock says for each engine of the chip how many of its executions are certain to be complete.  An execution starts
with the clock of the one before it on its engine, joined with those of the signals that its waits are certain to
have seen:

- All signals of a counter come from one engine: a wait for v has seen the first v of them.
- They come from several: it has seen the first v of the program order, provided that every later one can only
  happen after the wait.  That is assumed first, and tested on the clocks that result.  (It is sound to do so: take
  the earliest wait in time that was let go by a later signal.  All waits before it went as assumed, so the chain by
  which that signal follows the wait is real.)  Where the test fails, the wait has only seen of each engine what must
  be there whatever the others have sent; the clocks are computed again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from frustum.dialects.isa import program as p
from frustum.runtime.device.expand import Expanded, Rows
from frustum.runtime.device.form import Ints, Slot, is_on_core, reached, watched

WaitName: TypeAlias = tuple[int, int, int]
"""A wait: place in the program order, unit, number in its instruction."""


class OrderError(Exception):
    """A wait for more signals than come before it in the program order."""

    def __init__(self, rows: Rows, row: int, unit: int, found: int, value: int) -> None:
        super().__init__(f"{found} signals come before a wait for {value}")
        self.rows = rows
        self.row = row
        self.unit = unit
        self.found = found
        self.value = value


def first_engines(clusters: int, cores: int) -> tuple[dict[p.Engine, int], int]:
    """The number of unit 0's engine of each kind, and how many engines there are.

    The other units' follow; those of the cores come first, kind by kind, then those of the clusters.
    """
    found, count = {}, 0
    for engine in sorted(p.ENGINES, key=lambda each: each not in p.CORE_ENGINES):
        found[engine] = count
        count += clusters * cores if engine in p.CORE_ENGINES else clusters
    return found, count


@dataclass(frozen=True)
class Clock:
    """Of a table: the clock at the start of each execution, its engine, its number on that engine from 1."""

    start: Ints  # rows, units, engines
    engine: Ints  # rows, units
    number: Ints  # rows, units; 0 for who does not take part


def clocks(expanded: Expanded) -> tuple[Clock, Clock]:
    """The clocks of the core and of the cluster table; `OrderError` if a wait comes before its signals."""
    doubted: dict[WaitName, Counter[int]] = {}
    while True:
        walk = _ClockWalk(expanded, doubted)
        walk.run()
        if walk.doubts.keys() <= doubted.keys():
            return walk.core, walk.cluster
        doubted = {**doubted, **walk.doubts}


@dataclass
class _SlotHistory:
    """What a counter has seen since the last barrier, in program order, and the waits that looked at it."""

    clocks: list[Ints] = field(default_factory=list)
    joined: list[Ints] = field(default_factory=list)  # the clock of each signal and all before it
    engines: list[int] = field(default_factory=list)
    waits: list[tuple[WaitName, int, int, int]] = field(default_factory=list)  # name, engine, its number, value
    mixed: bool = False

    def add(self, clock: Ints, engine: int) -> None:
        same = not self.engines or self.engines[-1] == engine
        self.joined.append(clock if same and not self.mixed else np.maximum(self.joined[-1], clock))
        self.mixed |= not same
        self.clocks.append(clock)
        self.engines.append(engine)

    def least(self, value: int, totals: Counter[int]) -> list[Ints]:
        """The clocks of the signals that are there at `value` whoever has sent it, if each engine sends `totals`."""
        all_of_them, found = totals.total(), []
        for engine, total in totals.items():
            own = [clock for clock, sender in zip(self.clocks, self.engines, strict=True) if sender == engine]
            certain = min(value - (all_of_them - total), len(own))
            if certain > 0:
                found.append(own[certain - 1])
        return found

    def doubts(self) -> dict[WaitName, Counter[int]]:
        """Waits that may be let go by other signals than those assumed, with the signals of each engine."""
        totals = Counter(self.engines)
        if not self.mixed or not self.waits:
            return {}
        known = np.stack(self.clocks)
        number = np.arange(len(known))
        found = {}
        for name, engine, position, value in self.waits:
            if (known[number >= value, engine] < position).any():
                found[name] = totals
        return found


class _ClockWalk:
    """One pass over the program in program order."""

    def __init__(self, expanded: Expanded, doubted: dict[WaitName, Counter[int]]) -> None:
        self.expanded, self.doubted = expanded, doubted
        self.doubts: dict[WaitName, Counter[int]] = {}
        first, count = first_engines(expanded.clusters, expanded.cores)
        self.first_engine = [first[s.engine] if s.engine else 0 for s in expanded.instructions]
        self.now, self.done = np.zeros((count, count), np.int32), np.zeros(count, np.int32)
        self.signals: defaultdict[Slot, _SlotHistory] = defaultdict(_SlotHistory)
        self.core, self.cluster = (self._table(rows, count) for rows in (expanded.core, expanded.cluster))

    @staticmethod
    def _table(rows: Rows, engines: int) -> Clock:
        shape = len(rows), rows.units
        return Clock(np.zeros((*shape, engines), np.int32), np.zeros(shape, np.int64), np.zeros(shape, np.int32))

    def run(self) -> None:
        for rows, row in self.expanded.in_order():
            instruction = self.expanded.instructions[rows.static[row]]
            if isinstance(instruction, p.Barrier):
                self._forget()
                self.now[:] = self.now.max(axis=0)
            else:
                self._execute(instruction, rows, row)
        self._forget()

    def _forget(self) -> None:
        """Counters start at 0 again."""
        for signals in self.signals.values():
            self.doubts.update(signals.doubts())
        self.signals.clear()

    def _execute(self, instruction: p.Instruction, rows: Rows, row: int) -> None:
        table = self.core if rows is self.expanded.core else self.cluster
        units = np.flatnonzero(rows.takes_part[row])
        engines = self.first_engine[rows.static[row]] + units
        start = self.now[engines]
        self.done[engines] += 1
        for number in range(len(instruction.waits)):
            values = rows.wait[number, row]
            for place in np.flatnonzero(values[units] > 0).tolist():
                unit = int(units[place])
                seen = self._wait(instruction, rows, row, unit, number, int(values[unit]))
                np.maximum.reduce([start[place], *seen], out=start[place])
        table.start[row, units], table.engine[row, units] = start, engines
        table.number[row, units] = self.done[engines]
        start[np.arange(len(units)), engines] = self.done[engines]
        self.now[engines] = start
        for place, unit in enumerate(units.tolist()):
            for slot in reached(instruction, unit, self.expanded.clusters):
                self.signals[slot].add(start[place], int(engines[place]))

    def _wait(
        self, instruction: p.Instruction, rows: Rows, row: int, unit: int, number: int, value: int
    ) -> list[Ints]:
        """The clocks of the signals that this wait has seen."""
        wait = instruction.waits[number]
        engine = self.first_engine[rows.static[row]] + unit
        name = int(rows.seq[row]), unit, number
        found = []
        for slot in watched(wait, is_on_core(instruction), unit, self.expanded.clusters, self.expanded.cores):
            signals = self.signals[slot]
            if len(signals.clocks) < value:
                raise OrderError(rows, row, unit, len(signals.clocks), value)
            if name in self.doubted:
                found += signals.least(value, self.doubted[name])
            else:
                signals.waits.append((name, engine, int(self.done[engine]), value))
                found.append(signals.joined[value - 1])
        return found
