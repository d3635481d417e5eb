# Tests: test/runtime/time/test_timing_model.py
"""The loop under `engine.simulate`, compiled by numba: in-order queues, counters, ports and barriers.

Importing this module imports numba, so only `engine.simulate` does it, when there is something to simulate.
`run.py_func` is the same text without the compiler.

An event is one integer, `time << TIME | kind << KIND | who`.  The kinds are numbered so that at one time all
arrivals come before all requests for ports, and requests come by engine number.  An engine has at most one event
ahead of it, its alarm; signals on their way and the opening of a barrier are in a heap.

The functions get plain arrays and few of them, a column for each fact, and what is hot is one function: numba
counts the references of every array at every call, which takes longer than all the rest.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.loops import compiled, entry

Integers = NDArray[np.int64]

TIME = 22
KIND = 20
WHO = (1 << KIND) - 1
NEVER = (1 << 63) - 1
NOBODY = -1

ARRIVE = 0  # a signal reaches counter `who`
FREE = 1  # engine `who` looks at the head of its queue
RELEASE = 2  # a barrier opens
REQUEST = 3  # engine `who` wants the ports of the next chunk of its transfer

# Columns of `ops`; the times of a full chunk stand before those of the last one.
TYPE, CHUNKS, LATENCY, ROUTE_AT, ROUTE_END, WAIT_AT, WAIT_END, SIGNAL_AT, SIGNAL_END, BUSY, PORT_BUSY = (*range(10), 11)
# Values of `TYPE`.
COMPUTE, TRANSFER, BARRIER = range(3)
# Columns of `engines`; the completion times of the latest transfers follow from `IN_FLIGHT` on.
HEAD, END, FREE_AT, LEFT, WAIT, MEMBER, SLEEPER, BUSY_CYCLES, STALLED_CYCLES, DEPTH, IN_FLIGHT = range(11)
# Columns of `waits`: which of `members` must reach the value.
MEMBER_AT, MEMBER_END, WANTED = range(3)
# Columns of `times`, `counters`, `ports`; entries of `clock`.  `WAITED` counts the cycles that a transfer waited for
# the port of its source, the next column those for a port of its destination.  `ORDER` numbers the operations as they
# finish: whatever one waits for has a lower number, also where all happens in one cycle.
START, STOP, COMPLETION, ORDER, WAITED = range(5)
VALUE, FIRST_SLEEPER = range(2)
PORT_FREE, PORT_CYCLES = range(2)
HEAP_SIZE, LAST_EFFECT, AT_BARRIER, FINISHED = range(4)


RUN = (
    "void(int32[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[:, ::1],"
    " int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1])"
)
"""The types of the arguments of `run`."""


class LoopState(NamedTuple):
    """The arguments of `run`."""

    ops: NDArray[np.int32]  # operations, columns
    waits: Integers  # waits, columns
    members: Integers  # counters of the groups
    signals: Integers  # counter, delay
    route_ports: Integers  # port, side
    engines: Integers
    counters: Integers
    ports: Integers
    times: Integers  # operations, columns
    alarms: Integers  # the next event of each engine, as a tree of minima
    heap: Integers  # other events; unused places hold `NEVER`
    clock: Integers


@entry(RUN)
def run(ops, waits, members, signals, route_ports, engines, counters, ports, times, alarms, heap, clock):
    """Simulate until nothing can happen any more; the results are in `engines`, `ports`, `times` and `clock`.

    Serving a chunk, which happens far more often than all else, is written out here and calls nothing.
    """
    leaves = alarms.size >> 1
    for engine in range(engines.shape[0]):
        set_alarm(alarms, engine, event(0, FREE, engine))
    while True:
        key = min(alarms[1], heap[0])
        if key == NEVER:
            return
        if (key >> KIND) & 3 != REQUEST:
            happen(ops, waits, members, signals, engines, counters, times, alarms, heap, clock, key)
            continue
        time, who = key >> TIME, key & WHO
        # Give the ports to one chunk: of all requests that are left to serve this is the earliest.
        op = engines[who, HEAD]
        left = engines[who, LEFT] - 1
        last = 1 if left == 0 else 0
        first, end = ops[op, ROUTE_AT], ops[op, ROUTE_END]
        start, side = time, 0
        for place in range(first, end):
            if ports[route_ports[place, 0], PORT_FREE] > start:
                start = ports[route_ports[place, 0], PORT_FREE]
                side = route_ports[place, 1]
        for place in range(first, end):
            port = route_ports[place, 0]
            cycles = ops[op, PORT_BUSY + 2 * route_ports[place, 1] + last]
            ports[port, PORT_FREE] = start + cycles
            ports[port, PORT_CYCLES] += cycles
        stop = start + ops[op, BUSY + last]
        engines[who, STALLED_CYCLES] += start - time
        times[op, WAITED + side] += start - time
        engines[who, BUSY_CYCLES] += stop - start
        engines[who, LEFT] = left
        if left == 0:
            finish(ops, signals, engines, times, heap, clock, who, op, stop)
        # `set_alarm`
        key = (stop << TIME) | ((FREE if left == 0 else REQUEST) << KIND) | who
        place = leaves + who
        alarms[place] = key
        while place > 1:
            key = min(key, alarms[place ^ 1])
            place >>= 1
            alarms[place] = key


@compiled
def happen(ops, waits, members, signals, engines, counters, times, alarms, heap, clock, key):
    """A signal arrives, an engine becomes free, or a barrier opens: let all whom it concerns go on."""
    time, kind, who = key >> TIME, (key >> KIND) & 3, key & WHO
    sleeper = NOBODY
    if kind == ARRIVE:
        pop(heap, clock)
        counters[who, VALUE] += 1
        sleeper = counters[who, FIRST_SLEEPER]
        counters[who, FIRST_SLEEPER] = NOBODY
    elif kind == FREE:
        set_alarm(alarms, who, NEVER)
        engines[who, SLEEPER] = NOBODY
        sleeper = who
    else:
        pop(heap, clock)
        release(engines, counters, times, alarms, clock, time)
    while sleeper != NOBODY:
        engine = sleeper
        sleeper = engines[engine, SLEEPER]
        advance(ops, waits, members, signals, engines, counters, times, alarms, heap, clock, engine, time)


@compiled
def advance(ops, waits, members, signals, engines, counters, times, alarms, heap, clock, engine, time):
    """Go on with the queue of an engine that is free, until something takes time or has to be waited for."""
    while engines[engine, HEAD] < engines[engine, END]:
        op = engines[engine, HEAD]
        if ops[op, TYPE] == BARRIER:
            times[op, START] = time
            clock[AT_BARRIER] += 1
            if clock[AT_BARRIER] == engines.shape[0]:
                push(heap, clock, event(max(time, clock[LAST_EFFECT]), RELEASE, 0))
            return
        if not waits_hold(ops, waits, members, engines, counters, engine, op):
            return
        if ops[op, TYPE] == TRANSFER:
            oldest = engines[engine, oldest_in_flight(engines, engine)]
            if oldest > time:
                set_alarm(alarms, engine, event(oldest, FREE, engine))
                return
        engines[engine, STALLED_CYCLES] += time - engines[engine, FREE_AT]
        times[op, START] = time
        if ops[op, TYPE] == TRANSFER:
            engines[engine, LEFT] = ops[op, CHUNKS]
            set_alarm(alarms, engine, event(time, REQUEST, engine))
            return
        stop = time + ops[op, BUSY + 1]
        finish(ops, signals, engines, times, heap, clock, engine, op, stop)
        if stop > time:
            engines[engine, BUSY_CYCLES] += stop - time
            set_alarm(alarms, engine, event(stop, FREE, engine))
            return


@compiled
def finish(ops, signals, engines, times, heap, clock, engine, op, stop):
    """The engine is done with the operation at `stop`; effect and signals come `LATENCY` cycles later."""
    completion = stop + ops[op, LATENCY]
    times[op, STOP] = stop
    times[op, COMPLETION] = completion
    times[op, ORDER] = clock[FINISHED]
    clock[FINISHED] += 1
    clock[LAST_EFFECT] = max(clock[LAST_EFFECT], completion)
    if ops[op, TYPE] == TRANSFER and engines[engine, DEPTH] > 0:
        engines[engine, oldest_in_flight(engines, engine)] = completion
    for place in range(ops[op, SIGNAL_AT], ops[op, SIGNAL_END]):
        at = completion + signals[place, 1]
        clock[LAST_EFFECT] = max(clock[LAST_EFFECT], at)
        push(heap, clock, event(at, ARRIVE, signals[place, 0]))
    engines[engine, FREE_AT] = stop
    engines[engine, HEAD] += 1
    engines[engine, WAIT] = NOBODY


@compiled
def oldest_in_flight(engines, engine):
    """Column of the completion time after which the engine may have one more transfer in flight."""
    best = IN_FLIGHT
    for column in range(IN_FLIGHT + 1, IN_FLIGHT + engines[engine, DEPTH]):
        if engines[engine, column] < engines[engine, best]:
            best = column
    return best


@compiled
def waits_hold(ops, waits, members, engines, counters, engine, op):
    """Whether all counters of the operation are high enough; else the engine sleeps on the first that is not."""
    wait = engines[engine, WAIT]
    if wait == NOBODY:
        wait = ops[op, WAIT_AT]
        engines[engine, MEMBER] = 0
    while wait < ops[op, WAIT_END]:
        first = waits[wait, MEMBER_AT]
        for member in range(first + engines[engine, MEMBER], waits[wait, MEMBER_END]):
            counter = members[member]
            if counters[counter, VALUE] < waits[wait, WANTED]:
                engines[engine, WAIT] = wait
                engines[engine, MEMBER] = member - first
                engines[engine, SLEEPER] = counters[counter, FIRST_SLEEPER]
                counters[counter, FIRST_SLEEPER] = engine
                return False
        engines[engine, MEMBER] = 0
        wait += 1
    engines[engine, WAIT] = wait
    return True


@compiled
def release(engines, counters, times, alarms, clock, time):
    """All engines have reached the barrier and every effect has arrived: reset the counters and go on."""
    clock[AT_BARRIER] = 0
    counters[:, VALUE] = 0
    for engine in range(engines.shape[0]):
        op = engines[engine, HEAD]
        times[op, STOP] = time
        times[op, COMPLETION] = time
        engines[engine, FREE_AT] = time
        engines[engine, HEAD] += 1
        set_alarm(alarms, engine, event(time, FREE, engine))


@compiled
def event(time, kind, who):
    return (time << TIME) | (kind << KIND) | who


@compiled
def set_alarm(alarms, engine, key):
    """Replace the next event of an engine: a leaf of a tree in which every node is the least of those below."""
    place = (alarms.size >> 1) + engine
    alarms[place] = key
    while place > 1:
        key = min(key, alarms[place ^ 1])
        place >>= 1
        alarms[place] = key


@compiled
def push(heap, clock, key):
    place = clock[HEAP_SIZE]
    clock[HEAP_SIZE] = place + 1
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent] <= key:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = key


@compiled
def pop(heap, clock):
    size = clock[HEAP_SIZE] - 1
    clock[HEAP_SIZE] = size
    key = heap[size]
    heap[size] = NEVER
    if size == 0:
        return
    place, child = 0, 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = key
