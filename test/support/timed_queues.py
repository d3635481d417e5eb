"""Operations in queues as tests of the event loop write them, and random ones."""

from dataclasses import dataclass

import numpy as np

from frustum.runtime.time.engine import (
    BARRIER,
    COMPUTE,
    TRANSFER,
    EventLists,
    Lists,
    OperationCost,
    Operations,
)


@dataclass
class Op:
    """An operation as tests write it; `ports` are (number, side); a signal is (counter, delay)."""

    kind: int = COMPUTE
    cycles: int = 0  # computing, or the last chunk
    chunks: int = 1
    full: int = 0  # cycles of a full chunk
    ports: tuple = ()
    port_cycles: tuple = ((0, 0), (0, 0))  # sides; full, last
    latency: int = 0
    waits: tuple = ()  # (counters, value)
    signals: tuple = ()


def transfer(chunks, cycles, ports, port_cycles, **more):
    """Equal chunks; the ports are held for `port_cycles` each."""
    both = ((port_cycles, port_cycles),) * 2
    return Op(
        TRANSFER, cycles, chunks, cycles, tuple((port, k % 2) for k, port in enumerate(ports)), both, **more
    )


def operations(queues, depth=0):
    ops = [op for queue in queues for op in queue]
    waits = [wait for op in ops for wait in op.waits]

    def integers(values, *shape):
        return np.array(list(values), np.int64).reshape(-1, *shape)

    values, ends = integers(value for _, value in waits), np.cumsum([0, *(len(op.waits) for op in ops)])
    cost = OperationCost(
        chunks=integers(op.chunks for op in ops),
        busy=integers(((op.full, op.cycles) for op in ops), 2),
        port_busy=integers((op.port_cycles for op in ops), 2, 2),
        latency=integers(op.latency for op in ops),
        route=np.arange(len(ops)),
        routes=Lists.of([op.ports for op in ops]),
    )
    events = EventLists(
        waits=Lists(ends, np.stack([np.arange(len(waits)), values], axis=1)),
        signal=np.arange(len(ops)),
        signals=Lists.of([op.signals for op in ops]),
        groups=Lists.of([[(counter, 0) for counter in counters] for counters, _ in waits]),
    )
    kind, queue = integers(op.kind for op in ops), np.cumsum([0, *map(len, queues)])
    return Operations(queue, np.full(len(queues), depth), kind, cost, events)


def random_queues(rng, engines=6, length=12, ports=4, counters=5):
    """Waits look at values that the signals can reach, most of the time."""
    queues = []
    for _ in range(engines):
        queue = []
        for number in range(int(rng.integers(length))):
            waits = tuple(
                (rng.choice(counters, members, replace=False).tolist(), int(rng.integers(0, number // 2 + 1)))
                for members in rng.integers(1, 3, int(rng.integers(0, 2)))
            )
            signals = tuple(
                (int(c), int(rng.integers(0, 3)) * 5) for c in rng.choice(counters, int(rng.integers(3)))
            )
            more = {"waits": waits, "signals": signals, "latency": int(rng.integers(0, 30))}
            if rng.random() < 0.3:
                cycles = int(rng.integers(0, 9))
                queue.append(Op(cycles=cycles, **(more if cycles else more | {"latency": 0})))
                continue
            route = rng.choice(ports, int(rng.integers(1, 4)), replace=False).tolist()
            chosen = tuple((port, k % 2) for k, port in enumerate(route))
            full, last = sorted(rng.integers(1, 12, 2).tolist(), reverse=True)
            held = tuple((int(rng.integers(1, full + 1)), int(rng.integers(1, last + 1))) for _ in range(2))
            queue.append(Op(TRANSFER, last, int(rng.integers(1, 5)), full, chosen, held, **more))
        queues.append(queue)
    for _ in range(int(rng.integers(0, 2))):
        for queue in queues:
            queue.insert(int(rng.integers(0, len(queue) + 1)), Op(BARRIER))
    return queues
