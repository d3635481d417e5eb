"""How long a program will take with its buffers at given places: a coarse model, for comparing places.

The children of the program are taken in their order.  A loop is cut into at most `PARTS` equal parts.  The engine that
loads and stores runs in order: a load begins when the engine is free, and the last users of its bytes (of what was at
its address before, or of the copy that it takes again) are done; a part is computed when the part before it and what
is loaded for it are done.  All else of a part takes as long as its busiest engine; filling and emptying the pipeline
of a loop takes one pass of the engines together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import DenseArrayBase

from frustum.backend.waits.loop_tree import Instruction as Plain
from frustum.backend.waits.read_code import Code, Section
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.instruction import Instruction
from frustum.dialects.isa.operations import ConvOp, CopyOp, DepthwiseOp
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.target import Target
from frustum.dialects.target.durations import Convolution, matrix_work

PARTS = 16
"""Parts of a loop: more of them change the order of places found on the zoo no more."""
MOST_PARTS = 128
"""Where the copies of a buffer hold less than two of these parts: as many more as it takes, or so many."""


@dataclass
class _Transfer:
    """Loads or stores of a child: cycles of the DRAM port in all, executions, the buffer in SRAM."""

    cycles: float
    executions: int
    buffer: int
    is_load: bool


@dataclass
class _Child:
    """A child of the program: where it stands, cycles of computing, its loads and stores, the buffers in SRAM that it
    uses."""

    position: int
    cycles: float = 0.0
    transfers: list[_Transfer] = field(default_factory=list)
    used: set[int] = field(default_factory=set)


class CostModel:
    """Of one program; `cycles` of it with given addresses and depths of its buffers."""

    def __init__(self, code: Code, target: Target) -> None:
        self.code = code
        self.target = target
        self.children: list[_Child] = [child for section in code.sections for child in self._children(section)]
        self.first: dict[int, int] = {}
        for number, child in enumerate(self.children):
            for buffer in child.used:
                self.first.setdefault(buffer, number)
        self.buffers: list[int] = sorted(self.first, key=self.first.__getitem__)

    def cycles(self, addresses: Mapping[int, int]) -> float:
        """The modelled time; `addresses` of the buffers in SRAM.  Depths are those that the code has now."""
        starts = np.array([addresses[b] for b in self.buffers])
        ends = starts + [self.code.buffers[b].total_bytes for b in self.buffers]
        first = np.array([self.first[b] for b in self.buffers])
        place = {b: n for n, b in enumerate(self.buffers)}
        done: NDArray[np.float64] = np.zeros(len(self.buffers))
        engine = computed = 0.0

        def free(buffer: int) -> float:
            """When the last user of what had a buffer's bytes before it is done."""
            n = place[buffer]
            before = (starts < ends[n]) & (starts[n] < ends) & (first < first[n])
            return float(done[before].max(initial=0.0))

        for child in self.children:
            if child.cycles:
                computed = max(computed, *(float(done[place[buffer]]) for buffer in child.used), 0.0)
            engine, computed = self.run(child, engine, computed, free)
            for buffer in child.used:
                done[place[buffer]] = computed if child.cycles else engine
        return max(engine, computed)

    def run(
        self, child: _Child, engine: float, computed: float, free: Callable[[int], float]
    ) -> tuple[float, float]:
        """When the engine that loads and stores, and the computation, are done with a child."""
        parts = self.parts(child)
        ends: list[float] = []
        frees = [free(t.buffer) if t.is_load else 0.0 for t in child.transfers]
        for part in range(parts):
            ready = 0.0
            for transfer, behind in zip(child.transfers, frees, strict=True):
                if not transfer.is_load:
                    continue
                times = min(parts, transfer.executions)
                if part * times // parts == (part - 1) * times // parts:
                    continue
                back = max(1, self.code.buffers[transfer.buffer].depth * parts // transfer.executions)
                again = ends[part - back] if part >= back else behind
                engine = max(engine, again) + transfer.cycles / times
                ready = max(ready, engine)
            if child.cycles:
                computed = max(computed, ready) + child.cycles / parts
            ends.append(computed if child.cycles else engine)
            for transfer in child.transfers:
                if not transfer.is_load:
                    engine = max(engine, computed) + transfer.cycles / parts
        return engine, computed

    def parts(self, child: _Child) -> int:
        """In how many parts a child is looked at: of what a loop loads two lie in SRAM at a time, if it has copies."""
        rings = (
            ceil_div(2 * t.executions, self.code.buffers[t.buffer].depth)
            for t in child.transfers
            if t.is_load and self.code.buffers[t.buffer].depth > 1
        )
        most = max((t.executions for t in child.transfers), default=1)
        return min(max(PARTS, min(MOST_PARTS, max(rings, default=0))), most)

    # ------------------------------------------------------------ what children are

    def _children(self, section: Section) -> list[_Child]:
        pairs = zip(section.instructions, section.operations, strict=True)
        return [
            self._child(list(members))
            for _, members in groupby(pairs, key=lambda pair: pair[0].path[0].position)
        ]

    def _child(self, members: Sequence[tuple[Plain, Instruction]]) -> _Child:
        child = _Child(members[0][0].path[0].position)
        busy: dict[str, float] = {}
        once: dict[str, float] = {}
        for plain, op in members:
            times = prod(plain.counts)
            sram = [a.buffer for a in plain.accesses if self.code.buffers[a.buffer].memory == "sram"]
            child.used.update(sram)
            if plain.engine == "gdma" and isinstance(op, CopyOp):
                written = [a.buffer for a in plain.accesses if a.writes]
                cycles = self._moved(op, self.target.memory("dram").port_bytes_per_cycle)
                if not plain.multicast:
                    cycles *= self.target.chip.clusters
                is_load = self.code.buffers[written[0]].memory == "sram"
                if sram:
                    child.transfers.append(_Transfer(cycles * times, times, sram[0], is_load))
                continue
            cycles = self.busy_cycles(op)
            busy[plain.engine] = busy.get(plain.engine, 0.0) + cycles * times
            once[plain.engine] = once.get(plain.engine, 0.0) + cycles
        child.cycles = max(busy.values(), default=0.0)
        if child.cycles:
            child.cycles += sum(once.values()) - once[max(busy, key=busy.__getitem__)]
        return child

    def _moved(self, op: CopyOp, bytes_per_cycle: float) -> float:
        spans = op.box.data.spans
        element = ELEMENT_BYTES[op.dst_view.data.element]
        return prod(min(s.extent, s.bound) for s in spans) * element / bytes_per_cycle

    def busy_cycles(self, op: Instruction) -> float:
        """Of an instruction's engine, but that of loads and stores: one execution, not clipped."""
        core, cluster = self.target.core, self.target.cluster
        if isinstance(op, CopyOp):
            movers = {"mvdma": core.mvdma, "bus": cluster.bus, "cdma": cluster.cdma, "iodma": core.iodma}
            mover = movers.get(op.engine.data)
            return 0.0 if mover is None else self._moved(op, mover.bytes_per_cycle)
        if isinstance(op, ConvOp):
            n, co, h, w = (min(s.extent, s.bound) for s in op.box.data.spans)
            groups, (kernel_h, kernel_w), element = (
                op.groups.value.data,
                _pair(op.kernel),
                op.in_view.data.element,
            )
            is_split = op.line_mode is None
            work = Convolution(
                n * h if is_split else 1, w if is_split else n * h * w, op.channels.data.extent, max(1, co // groups),
                ELEMENT_BYTES[element], groups, kernel_h, kernel_w, _pair(op.strides)[1], _pair(op.dilations)[1],
            )  # fmt: skip
            return float(matrix_work(core.matrix, work).busy_cycles)
        box = getattr(op, "box", None)
        if box is None:
            return 0.0
        elements = prod(min(s.extent, s.bound) for s in box.data.spans)
        taps = prod(_pair(op.kernel)) if isinstance(op, DepthwiseOp) else 1
        return elements / core.vector.lanes * 2 * taps


def _pair(attribute: DenseArrayBase[Any]) -> tuple[int, int]:
    first, second = attribute.get_values()
    return int(first), int(second)
