"""What the engines did when, small enough for a page: neighbouring work for one unit is one segment.

Source: the event log (`time/event_log.py`); nothing here is worked out anew.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from frustum.dialects.isa.program import Barrier
from frustum.runtime.device.form import Ints
from frustum.runtime.time.event_log import EventLog, reason

MOST_SEGMENTS = 600
"""Of an engine; work that is closer than what this leaves is drawn as one."""
MOST_CAUSES = 4


def gantt(log: EventLog) -> list[dict[str, Any]]:
    """Of each engine that did anything: its name, `busy` cycles, `segments`, and `causes` of its idle cycles.

    A segment is its start (from the end of the segment before), length, busy cycles in it (those in which a transfer
    waits for a port are not), unit, and the layer that took
    most of it.  A cause is why, the engine and the unit that were waited for, and the cycles.
    """
    idle, found = log.idle_before, []
    works = np.array([name != Barrier.NAME for name in (*log.instructions, "")], bool)[log.instruction]
    busy = (log.end - log.start - log.source_wait - log.destination_wait) * works
    bounds = np.searchsorted(log.engine, np.arange(len(log.engines) + 1))
    for number, name in enumerate(log.engines):
        mine = np.arange(bounds[number], bounds[number + 1])
        active = mine[works[mine] & (log.end[mine] > log.start[mine])]
        if len(active):
            found.append({"name": name, "busy": int(busy[active].sum()), "segments": _segments(log, active, busy),
                          "causes": _causes(log, mine, idle)})  # fmt: skip
    return found


def _segments(log: EventLog, mine: Ints, busy: Ints) -> list[list[int]]:
    start, end, unit = log.start[mine], log.end[mine], log.unit[mine]
    gap = 0
    while True:
        parted = np.flatnonzero((unit[1:] != unit[:-1]) | (start[1:] - end[:-1] > gap)) + 1
        first = np.append(0, parted)
        if len(first) <= MOST_SEGMENTS or gap > log.total_cycles:
            break
        gap = max(1, 2 * gap)
    last = np.append(parted, len(mine)) - 1
    worked = np.add.reduceat(busy[mine], first)
    away = start[first] - np.append(0, end[last][:-1])
    longest = [
        int(log.layer[mine[a + int(np.argmax((end - start)[a : b + 1]))]])
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]
    columns = away, end[last] - start[first], worked, unit[first]
    return [[*map(int, row), layer] for *row, layer in zip(*(each.tolist() for each in columns), longest, strict=True)]


def _causes(log: EventLog, mine: Ints, idle: Ints) -> list[list[Any]]:
    spent = Counter[tuple[str, str, int]]()
    held = log.held_by[mine]
    columns = log.why[mine].tolist(), held.tolist(), idle[mine].tolist()
    for why, holder, cycles in zip(*columns, strict=True):
        if cycles > 0:
            who = log.engines[int(log.engine[holder])].rpartition(".")[2] if holder >= 0 else ""
            spent[reason(why) or "start", who, int(log.unit[holder]) if holder >= 0 else -1] += cycles
    return [[*key, cycles] for key, cycles in spent.most_common(MOST_CAUSES)]
