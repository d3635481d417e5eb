"""What a unit takes by itself, counted: as if all other units took no time and its weights were there before.

The run is simulated once more for each unit, with the same operations, waits and signals.  No time is taken by the
operations of other units and by what comes ahead of the unit: code, tables, weights from DRAM, and copies into WRAM
that a core makes once.  A unit's cycles are those of that run, or those that its transfers keep the DRAM port busy, if
these are more.  `passes/plan/makespan.py: own_cycles` predicts them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.isa.program import FETCHES, MEMORIES, Copy
from frustum.runtime.device.expand import DRAM
from frustum.runtime.device.form import Ints
from frustum.runtime.time import engine
from frustum.runtime.time.timeline import Timeline

WRAM = MEMORIES.index("wram")
AHEAD = ("weight", "program")
"""Classes of buffers in DRAM that are read ahead of a unit."""


def cycles_alone(timeline: Timeline) -> list[int]:
    """Of each unit of a timed program."""
    unit = units_of(timeline)
    ahead, port = comes_ahead(timeline), dram_cycles(timeline)
    count = len(timeline.expanded.program.units)
    own = (without(timeline.operations, (unit != number) | ahead) for number in range(count))
    return [
        max(engine.simulate(operations).total, int(port[unit == number].sum()))
        for number, operations in enumerate(own)
    ]


def units_of(timeline: Timeline) -> Ints:
    """The unit of every operation; -1 of the start."""
    units = [each.unit for each in timeline.expanded.instructions]
    return np.array([*units, -1], np.int64)[timeline.queues.static]


def comes_ahead(timeline: Timeline) -> NDArray[np.bool_]:
    """Which operations bring what is there before a unit begins."""
    expanded, queues = timeline.expanded, timeline.queues
    size = len(expanded.instructions)
    is_copy = np.array([isinstance(each, Copy) for each in expanded.instructions], bool)
    found = np.array([isinstance(each, FETCHES) for each in expanded.instructions], bool)
    address = np.zeros(size, np.int64)
    for rows in (expanded.core, expanded.cluster):
        np.maximum.at(address, rows.static, rows.address[0].max(axis=1, initial=0))
    from_dram = is_copy & (expanded.memory[:, 0] == DRAM)
    for each in expanded.program.externals:
        if each.class_ in AHEAD:
            found |= from_dram & (each.address <= address) & (address < each.address + each.bytes)
    moves = (timeline.operations.cost.chunks > 0) & (queues.static >= 0)
    times = np.zeros((len(timeline.engines), size), np.int64)
    np.add.at(times, (queues.engine[moves], queues.static[moves]), 1)
    found |= is_copy & (expanded.memory[:, 1] == WRAM) & (times.max(axis=0, initial=0) <= 1)
    return np.append(found, True)[queues.static]


def without(operations: engine.Operations, idle: NDArray[np.bool_]) -> engine.Operations:
    """The operations, of which those that are `idle` take no time, and neither do their signals."""
    cost, events = operations.cost, operations.events
    works = ~idle
    kind = np.where(idle & (operations.kind == engine.TRANSFER), engine.COMPUTE, operations.kind)
    costs = cost._replace(
        chunks=cost.chunks * works, busy=cost.busy * works[:, None],
        port_busy=cost.port_busy * works[:, None, None], latency=cost.latency * works,
    )  # fmt: skip
    at, pairs = events.signals
    at_once = pairs * np.array([1, 0])
    signals = engine.Lists(np.concatenate([at, at[1:] + len(pairs)]), np.concatenate([pairs, at_once]))
    signal = events.signal + idle * (len(at) - 1)
    return operations._replace(kind=kind, cost=costs, events=events._replace(signal=signal, signals=signals))


def dram_cycles(timeline: Timeline) -> Ints:
    """Cycles that every operation keeps the DRAM port busy."""
    cost, memory = timeline.operations.cost, timeline.expanded.memory
    sides = np.append(memory[:, :2], [[-1, -1]], axis=0)[timeline.queues.static] == DRAM
    full, last = cost.port_busy[..., 0], cost.port_busy[..., 1]
    held = (np.maximum(cost.chunks - 1, 0)[:, None] * full + last) * (cost.chunks > 0)[:, None]
    return np.asarray((held * sides).sum(axis=1), np.int64)
