"""Exact simulated time: operations in the in-order queues of engines that share ports and wait for counters.

The rules are those of `docs/targets.md`, "Time":

- An operation starts when its engine is free, the engine has fewer than `depth` transfers in flight, and each
  counter that it waits for has reached its value.
- A transfer goes chunk by chunk.  A chunk starts when its engine and all ports of its route are free; it holds
  the engine for `busy` cycles and each port for the port's own, shorter time.
- Every port serves the earliest request first; requests of one cycle go by engine number.  A request for
  several ports keeps its place in the line of each.
- The effect of an operation, its signals and the end of its flight come `latency` cycles after the engine
  is free again.  A signal may take a further `delay` to reach its counter.
- A barrier opens when all engines have reached it and everything in flight has arrived; it resets all counters.

Nothing here knows what an engine is for, or what an operation does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from frustum.runtime.time.event_loop import LoopState

Integers = NDArray[np.int64]

COMPUTE, TRANSFER, BARRIER = range(3)
"""Kinds of operations."""


class Lists(NamedTuple):
    """Lists of pairs of unequal length: the pairs `at[i]` to `at[i + 1]` are those of list `i`."""

    at: Integers  # lists + 1
    pairs: Integers  # pairs, 2

    @staticmethod
    def of(lists: Sequence[Sequence[tuple[int, int]]]) -> "Lists":
        pairs = np.array([pair for each in lists for pair in each], np.int64).reshape(-1, 2)
        return Lists(np.cumsum([0, *map(len, lists)]), pairs)


def _ends_of(lists: Lists, which: Integers) -> tuple[Integers, Integers]:
    """Where these lists begin and end."""
    return lists.at[which], lists.at[which + 1]


class OperationCost(NamedTuple):
    """What operations occupy."""

    routes: Lists  # each port, and the side of `port_busy` that says how long it is held
    chunks: Integers  # operations: chunks of a transfer, at least 1
    busy: Integers  # operations, 2: cycles of the engine for a full chunk, and for the last one (or computation)
    port_busy: Integers  # operations, sides, 2: the same for the ports of each side
    latency: Integers  # operations
    route: Integers  # operations: which ports a transfer needs


class EventLists(NamedTuple):
    """What operations wait for, and whom they tell."""

    waits: Lists  # of each operation: a list of counters, all of which must reach a value
    signal: Integers  # operations: a list of signals
    signals: Lists  # the counter that grows by 1, how long after the completion
    groups: Lists  # counters (and nothing)


class Operations(NamedTuple):
    """What is to be simulated.  Operations are numbered through the queues, engine by engine."""

    queue: Integers  # engines + 1: offsets of the operations of each engine
    depth: Integers  # engines: transfers in flight at a time; 0: no limit
    kind: Integers  # operations: COMPUTE, TRANSFER or BARRIER
    cost: OperationCost
    events: EventLists


@dataclass(frozen=True)
class Times:
    """When everything happened, in cycles."""

    start: Integers  # per operation: its engine was free and its waits held
    end: Integers  # per operation: its engine was free again
    completion: Integers  # per operation: its effect was there
    order: Integers  # per operation: a number greater than those of all that it waited for; 0: a barrier
    waited: Integers  # per operation, 2: cycles of a transfer's wait for the port of its source, of its destination
    busy: Integers  # per engine
    stalled: Integers  # per engine: it had an operation that had to wait for events, ports or completions
    port_busy: Integers  # per port
    total: int

    @property
    def idle(self) -> Integers:
        """Per engine: cycles at a barrier or with an empty queue."""
        return self.total - self.busy - self.stalled


@dataclass(frozen=True)
class Blocked:
    """An engine that cannot go on: the operation at its head, and the counter (-1: a barrier) it waits for."""

    engine: int
    operation: int
    counter: int
    needed: int
    found: int


class DeadlockError(RuntimeError):
    """Operations are left and none of them can ever start."""

    def __init__(self, blocked: list[Blocked], message: str | None = None):
        super().__init__(message or "deadlock: " + "; ".join(map(_describe, blocked)))
        self.blocked = blocked


def simulate(ops: Operations, *, compiled: bool = True) -> Times:
    """Run all queues to their ends.  Raises `DeadlockError`.

    `compiled = False` interprets the event loop instead, for tests and for machines without a compiler cache.
    """
    from frustum.runtime.time import event_loop

    loop = event_loop.run if compiled else event_loop.run.py_func
    tables = _tables(ops)
    loop(*tables)
    if blocked := _blocked(tables):
        raise DeadlockError(blocked)
    engines, times = tables.engines, tables.times
    return Times(
        start=times[:, event_loop.START],
        end=times[:, event_loop.STOP],
        completion=times[:, event_loop.COMPLETION],
        order=times[:, event_loop.ORDER],
        waited=times[:, event_loop.WAITED :],
        busy=engines[:, event_loop.BUSY_CYCLES],
        stalled=engines[:, event_loop.STALLED_CYCLES],
        port_busy=tables.ports[:, event_loop.PORT_CYCLES],
        total=int(tables.clock[event_loop.LAST_EFFECT]),
    )


def _tables(ops: Operations) -> "LoopState":
    """The arguments of the event loop before the first event."""
    from frustum.runtime.time.event_loop import NEVER, WAITED, LoopState

    cost, events = ops.cost, ops.events
    counters = 1 + max(int(lists.pairs[:, 0].max(initial=-1)) for lists in (events.signals, events.groups))
    ports = 1 + int(cost.routes.pairs[:, 0].max(initial=-1))
    engines, size = len(ops.depth), len(ops.kind)
    groups, wanted = events.waits.pairs.T
    ranges = (
        *_ends_of(cost.routes, cost.route), events.waits.at[:-1], events.waits.at[1:],
        *_ends_of(events.signals, events.signal),
    )  # fmt: skip
    facts = (ops.kind, cost.chunks, cost.latency, *ranges, *cost.busy.T, *cost.port_busy.reshape(-1, 4).T)
    return LoopState(
        ops=_columns(*facts, dtype=np.int32),
        waits=_columns(*_ends_of(events.groups, groups), wanted),
        members=_columns(events.groups.pairs[:, 0])[:, 0],
        signals=events.signals.pairs,
        route_ports=cost.routes.pairs,
        engines=_engine_table(ops),
        counters=_columns(np.zeros(counters), np.full(counters, -1)),
        ports=np.zeros((ports, 2), np.int64),
        times=np.zeros((size, WAITED + 2), np.int64),
        alarms=np.full(2 << max(0, engines - 1).bit_length(), NEVER),
        heap=np.full(int((ranges[5] - ranges[4]).sum()) + 2, NEVER),
        clock=np.zeros(4, np.int64),
    )


def _engine_table(ops: Operations) -> Integers:
    nothing, nobody = np.zeros(len(ops.depth)), np.full(len(ops.depth), -1)
    in_flight = [nothing] * max(1, int(ops.depth.max(initial=0)))
    # In the order of the columns HEAD, END, FREE_AT, LEFT, WAIT, MEMBER, SLEEPER, BUSY, STALLED, DEPTH.
    return _columns(
        ops.queue[:-1], ops.queue[1:], nothing, nothing, nobody, nothing, nobody, nothing, nothing, ops.depth,
        *in_flight,
    )  # fmt: skip


def _columns(*columns: NDArray[Any], dtype: type[np.integer[Any]] = np.int64) -> NDArray[Any]:
    """The columns as one table, a row in one piece of memory."""
    table = np.empty((columns[0].size, len(columns)), dtype)
    for place, column in enumerate(columns):
        table[:, place] = column
    return table


def _blocked(tables: "LoopState") -> list[Blocked]:
    from frustum.runtime.time.event_loop import END, HEAD

    stuck = np.flatnonzero(tables.engines[:, HEAD] < tables.engines[:, END])
    return [_why(tables, int(engine)) for engine in stuck]


def _why(tables: "LoopState", engine: int) -> Blocked:
    from frustum.runtime.time.event_loop import HEAD, MEMBER, VALUE, WAIT

    op, wait = int(tables.engines[engine, HEAD]), int(tables.engines[engine, WAIT])
    if wait < 0:
        return Blocked(engine, op, counter=-1, needed=0, found=0)
    first, _, needed = tables.waits[wait]
    counter = int(tables.members[first + tables.engines[engine, MEMBER]])
    return Blocked(engine, op, counter, int(needed), int(tables.counters[counter, VALUE]))


def _describe(blocked: Blocked) -> str:
    where = f"engine {blocked.engine}, operation {blocked.operation}"
    if blocked.counter < 0:
        return f"{where} waits at a barrier"
    return f"{where} waits for counter {blocked.counter} to reach {blocked.needed}; it is {blocked.found}"
