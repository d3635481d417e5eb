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
    """Of a program whose buffers have addresses: its children in their order, the cycles of each section between
    barriers, and what other places of a load would change.

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
        self.fetched: float = fetched_first(children, target, page_bytes)[1]
        """When all is there that is fetched before the first barrier; 0 where there is none."""
        self._find_waits(code)
        self.sections: list[list[int]] = [[]]
        """The children between barriers, in their order."""
        self.section_of: list[int] = []
        for number, kind in enumerate(self.kinds):
            self.section_of.append(len(self.sections) - 1)
            if kind == BARRIER:
                self.sections.append([])
            else:
                self.sections[-1].append(number)
        self.lengths: list[float] = [self._length(own) for own in self.sections]
        self.total: float = self._total(self.lengths)

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
        lengths = list(self.lengths)
        for section, own in self._moved(load, place).items():
            lengths[section] = self._length(own)
        return self._total(lengths)

    def move(self, load: int, place: int) -> None:
        """Let a load stand before another child from now on."""
        for section, own in self._moved(load, place).items():
            self.sections[section], self.lengths[section] = own, self._length(own)
        self.section_of[load] = self.section_of[place]
        self.total = self._total(self.lengths)

    def _moved(self, load: int, place: int) -> dict[int, list[int]]:
        """The sections that change where a load stands at another place; a barrier is behind all of its section."""
        was, now = self.section_of[load], self.section_of[place]
        found = {section: [each for each in self.sections[section] if each != load] for section in (was, now)}
        own = found[now]
        own.insert(len(own) if self.kinds[place] == BARRIER else own.index(place), load)
        return found

    def _total(self, lengths: Sequence[float]) -> float:
        """Sections one after the other; code and tables come beside the first."""
        first, *others = lengths
        return max(first, self.fetched) + sum(others)

    def _length(self, section: Sequence[int]) -> float:
        """Cycles of children from a barrier on, behind which all before them is done."""
        engine = computed = 0.0
        done: dict[int, float] = {}
        for n in (self.kinds[number] for number in section):
            if n is not None:
                engine, computed = self._run(n, engine, computed, done)
        return max(engine, computed)

    def _run(self, n: int, engine: float, computed: float, done: dict[int, float]) -> tuple[float, float]:
        child = self.model.children[n]
        if child.cycles:
            computed = max(computed, *(done.get(user, 0.0) for user in self.users[n]), 0.0)

        def free(buffer: int) -> float:
            return max((done.get(user, 0.0) for user in self.before.get((n, buffer), ())), default=0.0)

        engine, computed = self.model.run(child, engine, computed, free)
        done[n] = computed if child.cycles else engine
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
