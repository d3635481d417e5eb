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
NOBODY = -1


@dataclass(frozen=True)
class CriticalPath:
    """The pieces of the path from the last to the first; the cycles add up to those of the run."""

    operation: Integers
    state: Integers
    reason: Integers
    cycles: Integers


class Causes(NamedTuple):
    """Of every operation what it waited for last: the operation that held it up (-1: nothing did) and why; `REASONS`
    but `END`."""

    operation: Integers
    reason: Integers


class _Arrivals(NamedTuple):
    """When signals reach each counter, and whose; by counter and stretch between barriers, in order of time.

    Of all signals that reach a counter in one cycle `operation` is the one that finished first, which waited for none
    of the others.
    """

    at: Integers  # counters * stretches + 1
    time: Integers
    operation: Integers
    stretch: Integers  # operations: how many barriers their engine has passed before
    stretches: int


def critical_path(ops: Operations, times: Times, found: Causes | None = None) -> CriticalPath:
    """The critical path of a simulated run; of several equally long ones, the one through its engines' queues.

    `found`: its `causes`, where they are known.
    """
    arrivals = _arrivals(ops, times)
    found = found or _causes(ops, times, arrivals)
    pieces: list[tuple[int, int, int, int]] = []
    operation, reason, until = _last(times, arrivals), END, times.total
    while operation >= 0:
        is_barrier = ops.kind[operation] == BARRIER
        start, end = times.start.item(operation), times.end.item(operation)
        if reason != TURN:
            completion = times.completion.item(operation)
            pieces.append((operation, SIGNAL, reason, until - completion))
            pieces.append((operation, LATENCY, reason, completion - end))
        if not is_barrier:
            source, destination = times.waited[operation].tolist()
            pieces.append((operation, WORK, reason, end - start - source - destination))
            pieces.append((operation, SOURCE_PORT, reason, source))
            pieces.append((operation, DESTINATION_PORT, reason, destination))
        until = end if is_barrier else start
        operation, reason = found.operation.item(operation), found.reason.item(operation)
    table = np.array(pieces, np.int64).reshape(-1, 4)
    assert (table[:, 3] >= 0).all(), "the path goes back in time"
    return CriticalPath(*table[table[:, 3] > 0].T)


def causes(ops: Operations, times: Times) -> Causes:
    """What every operation of a simulated run waited for last."""
    return _causes(ops, times, _arrivals(ops, times))


def _causes(ops: Operations, times: Times, arrivals: _Arrivals) -> Causes:
    operation, reason = np.full((2, len(ops.kind)), NOBODY)
    first = np.repeat(ops.queue[:-1], np.diff(ops.queue))
    numbers = np.arange(len(ops.kind))
    is_barrier = ops.kind == BARRIER
    follows = ~is_barrier & (numbers > first)
    follows[1:] &= times.end[:-1] == times.start[1:]
    operation[follows], reason[follows] = numbers[follows] - 1, TURN
    left = ~is_barrier & ~follows & (times.start > 0)
    _add_signals(ops, times, arrivals, left, operation, reason)
    left &= operation == NOBODY
    _add_room(ops, times, np.flatnonzero(left), first, operation, reason)
    _add_barriers(ops, times, arrivals, np.flatnonzero(is_barrier), operation, reason)
    return Causes(operation, reason)


def _add_signals(
    ops: Operations, times: Times, arrivals: _Arrivals, among: Integers, operation: Integers, reason: Integers
) -> None:
    """The operations whose signals let these ones start: those that arrived just then, of the first such counter."""
    waiting, wait = _members(ops.events.waits.at, np.arange(len(ops.kind)))
    group, wanted = ops.events.waits.pairs[wait].T
    chosen = among[waiting] & (wanted > 0)
    waiting, group, wanted = waiting[chosen], group[chosen], wanted[chosen]
    which, member = _members(ops.events.groups.at, group)
    waiting, wanted = waiting[which], wanted[which]
    counter = ops.events.groups.pairs[member, 0]
    place = arrivals.at[counter * arrivals.stretches + arrivals.stretch[waiting]] + wanted - 1
    held = arrivals.time[place] == times.start[waiting]
    waiting, held_at = np.unique(waiting[held], return_index=True)
    operation[waiting], reason[waiting] = arrivals.operation[place[held][held_at]], RESULT


def _members(at: Integers, lists: Integers) -> tuple[Integers, Integers]:
    """For every entry of these lists the place of its list in `lists`, and its own number."""
    many = at[lists + 1] - at[lists]
    which = np.repeat(np.arange(len(lists)), many)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(at[lists], many)


def _add_room(
    ops: Operations, times: Times, left: Integers, first: Integers, operation: Integers, reason: Integers
) -> None:
    """The transfers of the same engines whose completion made room for these: the nearest in the queue."""
    back = 1
    while len(left):
        before = left - back
        assert (before >= first[left]).all(), f"operation {left[(before < first[left]).argmax()]} starts for no reason"
        made = (times.completion[before] == times.start[left]) & (ops.kind[before] == TRANSFER)
        operation[left[made]], reason[left[made]] = before[made], ROOM
        left, back = left[~made], back + 1


def _add_barriers(
    ops: Operations, times: Times, arrivals: _Arrivals, barriers: Integers, operation: Integers, reason: Integers
) -> None:
    """For each barrier the operation with the last effect before it opened, or after which the last engine came."""
    if not len(barriers):
        return
    stretch = arrivals.stretch
    opens = np.zeros(stretch.max() + 1, np.int64)
    opens[stretch[barriers]] = times.end[barriers]
    found = np.full(len(opens), NOBODY)
    late = barriers[times.start[barriers] == opens[stretch[barriers]]]
    computing = np.flatnonzero(ops.kind != BARRIER)
    completed = computing[times.completion[computing] == opens[stretch[computing]]]
    arrived = arrivals.operation[arrivals.time == opens[stretch[arrivals.operation]]]
    for candidates, who in ((late, late - 1), (arrived, arrived), (completed, completed)):
        # the first of each stretch, and the later kinds of candidates before the earlier ones
        found[stretch[candidates[::-1]]] = who[::-1]
    operation[barriers] = np.where(opens[stretch[barriers]] > 0, found[stretch[barriers]], NOBODY)
    reason[barriers] = AT_BARRIER


def _last(times: Times, arrivals: _Arrivals) -> int:
    """The operation with the last effect of the run; `NOBODY` where nothing takes time."""
    completed = np.flatnonzero(times.completion == times.total)
    found = completed if len(completed) else arrivals.operation[arrivals.time == times.total]
    assert len(found) or times.total == 0, "something ends when the run does"
    return int(found[0]) if len(found) and times.total else NOBODY


def _arrivals(ops: Operations, times: Times) -> _Arrivals:
    first = ops.queue[:-1]
    passed = np.cumsum(ops.kind == BARRIER)
    before_queue = np.append(0, passed)[np.repeat(first, np.diff(ops.queue))]
    stretch = passed - (ops.kind == BARRIER) - before_queue
    stretches = int(stretch.max(initial=0)) + 1
    lists = ops.events.signals
    operation, which = _members(lists.at, ops.events.signal)
    counter, delay = lists.pairs[which].T
    time = times.completion[operation] + delay
    key = counter * stretches + stretch[operation]
    order = np.lexsort((times.order[operation], time, key))
    counters = 1 + max(int(each.pairs[:, 0].max(initial=-1)) for each in (lists, ops.events.groups))
    at = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=counters * stretches))])
    key, time, operation = key[order], time[order], operation[order]
    begins = np.append(True, (key[1:] != key[:-1]) | (time[1:] != time[:-1]))[: len(key)]
    earliest = np.maximum.accumulate(np.where(begins, np.arange(len(key)), 0))
    return _Arrivals(at, time, operation[earliest], stretch, stretches)
