"""Why a run takes as long as it does: the chain of operations that leads from its last effect back to cycle 0.

The walk goes back through the tables of the simulation alone.  Whatever an operation waited for last is what held it
up: the signal that made its counter high enough, its engine (busy with the operation before it in the queue), a place
among the engine's transfers in flight, or a barrier.  Every cycle of the run belongs to exactly one piece of the path:

- `work`: the engine was busy with the operation;
- `port`: a transfer waited for a port, of its source or of its destination;
- `latency`: the result was on its way, into the memory at the other end or, as a signal, to another cluster.

Each piece also says why the path goes through it: the operation after it needed the `result`; stood in its engine's
queue behind it and waited for its `turn`; found no `room` among the transfers in flight; waited at a `barrier` for it;
or nothing comes after it (`end`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from frustum.runtime.time.engine import BARRIER, TRANSFER, Integers, Operations, Times

WORK, SOURCE_PORT, DESTINATION_PORT, LATENCY, SIGNAL = range(5)
"""What a piece of the path is spent with; a port of the source or destination; a signal to another cluster."""
STATES = ("work", "port", "port", "latency", "latency")
RESULT, TURN, ROOM, AT_BARRIER, END = range(5)
REASONS = ("result", "turn", "room", "barrier", "end")


@dataclass(frozen=True)
class CriticalPath:
    """The pieces of the path from the last to the first; the cycles add up to those of the run."""

    operation: Integers
    state: Integers
    reason: Integers
    cycles: Integers


class _Arrivals(NamedTuple):
    """When signals reach each counter, and whose; by counter and stretch between barriers, in order of time."""

    at: Integers  # counters * stretches + 1
    time: Integers
    operation: Integers
    stretch: Integers  # operations: how many barriers their engine has passed before
    stretches: int

    def of(self, counter: int, stretch: int, number: int) -> tuple[int, int]:
        """When the counter reached `number`, and which operation's signal did that; of all that arrived in that cycle
        the one that finished first, which waited for none of the others."""
        first = self.at.item(counter * self.stretches + stretch)
        place = first + number - 1
        time = self.time.item(place)
        while place > first and self.time[place - 1] == time:
            place -= 1
        return time, self.operation.item(place)


def critical_path(ops: Operations, times: Times) -> CriticalPath:
    """The critical path of a simulated run; of several equally long ones, the one through its engines' queues."""
    walk = _Walk(ops, times)
    walk.back()
    pieces = np.array(walk.pieces, np.int64).reshape(-1, 4)
    return CriticalPath(*pieces[pieces[:, 3] > 0].T)


def _arrivals(ops: Operations, times: Times) -> _Arrivals:
    first = ops.queue[:-1]
    passed = np.cumsum(ops.kind == BARRIER)
    before_queue = np.append(0, passed)[np.repeat(first, np.diff(ops.queue))]
    stretch = passed - (ops.kind == BARRIER) - before_queue
    stretches = int(stretch.max(initial=0)) + 1
    lists = ops.events.signals
    many = np.diff(lists.at)[ops.events.signal]
    operation = np.repeat(np.arange(len(ops.kind)), many)
    start_of = np.cumsum(many) - many
    which = np.arange(len(operation)) - np.repeat(start_of, many) + lists.at[ops.events.signal][operation]
    counter, delay = lists.pairs[which].T
    time = times.completion[operation] + delay
    key = counter * stretches + stretch[operation]
    order = np.lexsort((times.order[operation], time, key))
    counters = 1 + max(int(each.pairs[:, 0].max(initial=-1)) for each in (lists, ops.events.groups))
    at = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=counters * stretches))])
    return _Arrivals(at, time[order], operation[order], stretch, stretches)


class _Walk:
    """The path while it is found: `pieces` of (operation, state, reason, cycles)."""

    def __init__(self, ops: Operations, times: Times) -> None:
        self.ops, self.times = ops, times
        self.arrivals = _arrivals(ops, times)
        self.first = np.repeat(ops.queue[:-1], np.diff(ops.queue))
        self.pieces: list[tuple[int, int, int, int]] = []

    def back(self) -> None:
        found = self._last_effect(self.times.total, np.arange(len(self.ops.kind)), END)
        assert found is not None or self.times.total == 0, "something ends when the run does"
        while found is not None:
            operation, reason = found
            self._own(operation, reason)
            found = self._before(operation)

    def _add(self, operation: int, state: int, reason: int, cycles: int) -> None:
        assert cycles >= 0, f"operation {operation}: the path goes back in time"
        if cycles:
            self.pieces.append((operation, state, reason, cycles))

    def _own(self, operation: int, reason: int) -> None:
        """What the operation took from its start until its engine was free again."""
        if self.ops.kind[operation] == BARRIER:
            return
        source, destination = self.times.waited[operation].tolist()
        took = self.times.end.item(operation) - self.times.start.item(operation)
        self._add(operation, WORK, reason, took - source - destination)
        self._add(operation, SOURCE_PORT, reason, source)
        self._add(operation, DESTINATION_PORT, reason, destination)

    def _before(self, operation: int) -> tuple[int, int] | None:
        """The operation that this one waited for last, and why; None at the start."""
        if self.ops.kind[operation] == BARRIER:
            return self._at_barrier(operation)
        start = self.times.start.item(operation)
        if operation > self.first[operation] and self.times.end[operation - 1] == start:
            return operation - 1, TURN
        if start == 0:
            return None
        return self._signalled(operation, start) or self._in_flight(operation, start)

    def _signalled(self, operation: int, start: int) -> tuple[int, int] | None:
        """The operation whose signal let this one start, if one arrived just then."""
        events, arrivals = self.ops.events, self.arrivals
        for wait in range(*events.waits.at[operation : operation + 2].tolist()):
            group, wanted = events.waits.pairs[wait].tolist()
            if wanted < 1:
                continue
            for member in range(*events.groups.at[group : group + 2].tolist()):
                counter = events.groups.pairs.item(member, 0)
                time, cause = arrivals.of(counter, arrivals.stretch.item(operation), wanted)
                if time == start:
                    self._arrived(cause, time, RESULT)
                    return cause, RESULT
        return None

    def _arrived(self, operation: int, time: int, reason: int) -> None:
        completion = self.times.completion.item(operation)
        self._add(operation, SIGNAL, reason, time - completion)
        self._add(operation, LATENCY, reason, completion - self.times.end.item(operation))

    def _in_flight(self, operation: int, start: int) -> tuple[int, int]:
        """The transfer of the same engine whose completion made room."""
        before = np.arange(operation - 1, self.first[operation] - 1, -1)
        is_it = (self.times.completion[before] == start) & (self.ops.kind[before] == TRANSFER)
        found = int(before[is_it.argmax()])
        assert is_it.any(), f"operation {operation} starts for no reason"
        self._arrived(found, start, ROOM)
        return found, ROOM

    def _at_barrier(self, operation: int) -> tuple[int, int] | None:
        """The last effect before the barrier opened, or the operation after which the last engine reached it."""
        time, stretch = self.times.end.item(operation), self.arrivals.stretch
        same = np.flatnonzero(stretch == stretch[operation])
        found = self._last_effect(time, same[self.ops.kind[same] != BARRIER], AT_BARRIER)
        if found is not None or time == 0:
            return found
        late = same[(self.ops.kind[same] == BARRIER) & (self.times.start[same] == time)]
        return int(late[0]) - 1, AT_BARRIER

    def _last_effect(self, time: int, among: Integers, reason: int) -> tuple[int, int] | None:
        """The operation of these with an effect at this time: it is completed, or a signal of it arrives."""
        completed = among[self.times.completion[among] == time]
        if len(completed):
            self._arrived(int(completed[0]), time, reason)
            return int(completed[0]), reason
        arrived = self.arrivals.operation[self.arrivals.time == time]
        arrived = arrived[np.isin(arrived, among)]
        if not len(arrived):
            return None
        self._arrived(int(arrived[0]), time, reason)
        return int(arrived[0]), reason
