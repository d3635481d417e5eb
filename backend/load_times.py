# Tests: test/backend/test_hoist_loads.py
"""How long a program with addresses takes by the cost model when one of its loads stands somewhere else."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from frustum.backend.memory.cost_model import CostModel
from frustum.backend.waits.read_code import Code
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.operations import TableOp
from frustum.dialects.isa.sync import AllocOp, BarrierOp, FetchOp
from frustum.dialects.module import TURNS
from frustum.dialects.target import Target

BARRIER = -1
"""In an order of children: all engines wait for each other."""


class LoadTimes:
    """Of a program whose buffers have addresses: its children in their order, when the engine that loads and stores
    and the computation are done with each, and what other places of a load would change.

    A child waits for the last users before it, in the order of the program, of the buffers that it uses and, where it
    fills one, of all that had its bytes before: a load that moves stays behind these.
    """

    def __init__(
        self, code: Code, target: Target, children: Sequence[Operation], page_bytes: Sequence[int]
    ) -> None:
        self.model: CostModel = CostModel(code, target)
        of = {code.operations[child.position]: n for n, child in enumerate(self.model.children)}
        self.kinds: list[int | None] = [
            BARRIER if isinstance(op, BarrierOp) else None if is_far_ahead(op) else of.get(op) for op in children
        ]
        """Of each child of the program its number in the model; None where nothing waits for it in its place."""
        self.order: list[int] = list(range(len(children)))
        self.first_barrier: int | None
        self.fetched: float
        self.first_barrier, self.fetched = fetched_first(children, target, page_bytes)
        self._find_waits(code)
        self.done: dict[int, float] = {}
        self.states: list[tuple[float, float]] = []
        self.total: float = self._replay(0)

    def _find_waits(self, code: Code) -> None:
        """Of each child whom it waits for; of each buffer that is filled who had its bytes before."""
        latest: dict[int, int] = {}
        self.users: list[tuple[int, ...]] = []
        self.before: dict[tuple[int, int], tuple[int, ...]] = {}
        spans: dict[int, tuple[int, int]] = {}
        for n, child in enumerate(self.model.children):
            self.users.append(tuple({latest[b] for b in child.used if b in latest}))
            for transfer in child.transfers:
                if transfer.is_load and transfer.buffer not in latest:
                    low, high = _span(code, transfer.buffer)
                    had = (b for b, (start, stop) in spans.items() if start < high and low < stop)
                    self.before[n, transfer.buffer] = tuple({latest[b] for b in had})
            for buffer in child.used:
                latest[buffer] = n
                spans.setdefault(buffer, _span(code, buffer))

    def cycles(self, load: int) -> float:
        """What a load, which is the child of the program at a number, takes by itself."""
        own = self.kinds[load]
        assert own is not None, "a load takes time"
        return sum(transfer.cycles for transfer in self.model.children[own].transfers)

    def with_moved(self, load: int, place: int) -> float:
        """The time of the whole program where a load stands before another child."""
        order, done, states = self.order, dict(self.done), list(self.states)
        self.order, first = self._moved(load, place)
        total = self._replay(first)
        self.order, self.done, self.states = order, done, states
        return total

    def move(self, load: int, place: int) -> None:
        """Let a load stand before another child from now on."""
        self.order, first = self._moved(load, place)
        self.total = self._replay(first)

    def _moved(self, load: int, place: int) -> tuple[list[int], int]:
        """The order with a load at another place, and the first index that differs."""
        was = self.order.index(load)
        order = [*self.order[:was], *self.order[was + 1 :]]
        first = order.index(place)
        order.insert(first, load)
        return order, min(first, was)

    def _replay(self, first: int) -> float:
        """When all is done, if only what stands from an index on has changed."""
        del self.states[first:]
        engine, computed = self.states[-1] if self.states else (0.0, 0.0)
        for number in self.order[first:]:
            n = self.kinds[number]
            if n == BARRIER:
                fetched = self.fetched if number == self.first_barrier else 0.0
                engine = computed = max(engine, computed, fetched)
            elif n is not None:
                engine, computed = self._run(n, engine, computed)
            self.states.append((engine, computed))
        return max(engine, computed)

    def _run(self, n: int, engine: float, computed: float) -> tuple[float, float]:
        child = self.model.children[n]
        if child.cycles:
            computed = max(computed, *(self.done.get(user, 0.0) for user in self.users[n]), 0.0)

        def free(buffer: int) -> float:
            return max((self.done.get(user, 0.0) for user in self.before.get((n, buffer), ())), default=0.0)

        engine, computed = self.model.run(child, engine, computed, free)
        self.done[n] = computed if child.cycles else engine
        return engine, computed


def fetched_first(
    children: Sequence[Operation], target: Target, page_bytes: Sequence[int]
) -> tuple[int | None, float]:
    """The first barrier, and when all code (pages of so many bytes) and tables are there that are fetched before it, a
    few at a time, while loads go on.

    Measured in f16 on `default`: cct-2-32-128 13,159 cycles, and 14,135 where each had its latency behind the one
    before, for weights that seemed to come meanwhile kept the first layer waiting; rotary 1,166, and 1,238 without the
    code's bytes.
    """
    dram, fetched, size_bytes = target.memory("dram"), 0, 0
    for number, op in enumerate(children):
        if isinstance(op, BarrierOp):
            latencies = ceil_div(fetched, target.transfers.in_flight)
            return number, latencies * dram.latency_cycles + size_bytes / dram.port_bytes_per_cycle
        if isinstance(op, FetchOp | TableOp):
            fetched += 1
            size_bytes += op.bytes.value.data if isinstance(op, TableOp) else page_bytes[op.page.value.data]
    return None, 0.0


def is_far_ahead(child: Operation) -> bool:
    """Whether it loads weights beside all else (`weights_ahead.py`)."""
    return any(TURNS in op.attributes for op in child.walk())


def _span(code: Code, buffer: int) -> tuple[int, int]:
    """The bytes of SRAM that a buffer has, with all its copies."""
    alloc = code.storage[buffer]
    assert isinstance(alloc, AllocOp)
    assert alloc.address is not None, "loads move once buffers have places"
    start = alloc.address.value.data
    return start, start + code.buffers[buffer].total_bytes
