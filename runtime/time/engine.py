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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from frustum.runtime.time.event_loop import LoopState

Integers = NDArray[np.int64]

COMPUTE, TRANSFER, BARRIER = range(3)
"""Kinds of operations."""


class Operations(NamedTuple):
    """What is to be simulated.  Operations are numbered through the queues, engine by engine.

    Lists of unequal length are flat arrays with offsets: `x_at[i]` to `x_at[i + 1]` are the entries of `i`.
    """

    queue: Integers  # engines + 1: offsets of the operations of each engine
    depth: Integers  # engines: transfers in flight at a time; 0: no limit
    kind: Integers  # operations: COMPUTE, TRANSFER or BARRIER
    chunks: Integers  # operations: chunks of a transfer, at least 1
    busy: Integers  # operations, 2: cycles of the engine for a full chunk, and for the last one (or computation)
    port_busy: Integers  # operations, sides, 2: the same for the ports of each side
    route: Integers  # operations: which ports a transfer needs
    latency: Integers  # operations
    wait_at: Integers  # operations + 1
    wait_group: Integers  # waits: a list of counters, all of which must reach ...
    wait_value: Integers  # ... this value
    signal: Integers  # operations: a list of signals
    signal_at: Integers  # lists + 1
    signal_counter: Integers  # signals: the counter that grows by 1 ...
    signal_delay: Integers  # ... this long after the completion
    route_at: Integers  # routes + 1
    route_port: Integers  # the ports of each route ...
    route_side: Integers  # ... and the side of `port_busy` that says how long each is held
    group_at: Integers  # groups + 1
    group_counter: Integers

    @property
    def engines(self) -> int:
        return self.queue.size - 1


@dataclass(frozen=True)
class Times:
    """When everything happened, in cycles."""

    start: Integers  # per operation: its engine was free and its waits held
    end: Integers  # per operation: its engine was free again
    completion: Integers  # per operation: its effect was there
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
        busy=engines[:, event_loop.BUSY_CYCLES],
        stalled=engines[:, event_loop.STALLED_CYCLES],
        port_busy=tables.ports[:, event_loop.PORT_CYCLES],
        total=int(tables.clock[event_loop.LAST_EFFECT]),
    )


def _tables(ops: Operations) -> "LoopState":
    """The arguments of the event loop before the first event."""
    from frustum.runtime.time.event_loop import NEVER, LoopState

    counters = 1 + max(int(ops.signal_counter.max(initial=-1)), int(ops.group_counter.max(initial=-1)))
    ports = 1 + int(ops.route_port.max(initial=-1))
    return LoopState(
        ops=_operation_table(ops),
        waits=_columns(ops.wait_group, ops.wait_value),
        groups=ops.group_at.astype(np.int64),
        members=ops.group_counter.astype(np.int64),
        signals=_columns(ops.signal_counter, ops.signal_delay),
        routes=ops.route_at.astype(np.int64),
        route_ports=_columns(ops.route_port, ops.route_side),
        engines=_engine_table(ops),
        counters=_columns(np.zeros(counters), np.full(counters, -1)),
        ports=np.zeros((ports, 2), np.int64),
        times=np.zeros((ops.kind.size, 3), np.int64),
        alarms=np.full(2 << max(0, ops.engines - 1).bit_length(), NEVER),
        heap=np.full(int(np.diff(ops.signal_at)[ops.signal].sum()) + 2, NEVER),
        clock=np.zeros(3, np.int64),
    )


def _operation_table(ops: Operations) -> NDArray[np.int32]:
    facts = (ops.kind, ops.chunks, ops.route, ops.latency)
    ranges = (ops.wait_at[:-1], ops.wait_at[1:], ops.signal_at[ops.signal], ops.signal_at[ops.signal + 1])
    port_busy = ops.port_busy.reshape(ops.kind.size, 2 * ops.port_busy.shape[1])
    return _columns(*facts, *ranges, *ops.busy.T, *port_busy.T, dtype=np.int32)


def _engine_table(ops: Operations) -> Integers:
    nothing, nobody = np.zeros(ops.engines), np.full(ops.engines, -1)
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
    group, needed = tables.waits[wait]
    counter = int(tables.members[tables.groups[group] + tables.engines[engine, MEMBER]])
    return Blocked(engine, op, counter, int(needed), int(tables.counters[counter, VALUE]))


def _describe(blocked: Blocked) -> str:
    where = f"engine {blocked.engine}, operation {blocked.operation}"
    if blocked.counter < 0:
        return f"{where} waits at a barrier"
    return f"{where} waits for counter {blocked.counter} to reach {blocked.needed}; it is {blocked.found}"
