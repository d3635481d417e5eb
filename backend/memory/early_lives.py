# Tests: test/backend/memory/test_early_lives.py
"""From when on buffers have their bytes if what is loaded into them comes as early as the DRAM's port and SRAM let it.

A weight that is loaded while earlier layers are computed needs bytes that nothing else has meanwhile.  So the loads are
taken in the order in which they are needed; each begins when the port is free, or later where SRAM has no room for it
until its layer; and its buffer lives from the child of the program on that is computed then.

Loads in a loop stay in their section.  Where that is not the first, others of it may come before them, behind a barrier
less: so they are expected at the time at which they would come without.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from frustum.backend.memory.cost_model import CostModel
from frustum.dialects.isa.sync import BarrierOp, RepeatOp


@dataclass
class EarlyLives:
    """Of a program: the bytes of its buffers in SRAM with all their copies (`sizes`), those of them that are filled
    with what is in DRAM from the start (`early`), and the bytes that all may have together."""

    model: CostModel
    sizes: Mapping[int, int]
    early: frozenset[int]
    capacity: int

    def __post_init__(self) -> None:
        self.first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, child in enumerate(self.model.children):
            for buffer in child.used & self.sizes.keys():
                self.first.setdefault(buffer, number)
                last[buffer] = number
        self.taken: NDArray[np.int64] = np.zeros(len(self.model.children) + 1, np.int64)
        """The bytes that buffers have at each child."""
        for buffer, number in self.first.items():
            self.taken[number : last[buffer] + 1] += self.sizes[buffer]
        barriers = list(accumulate(isinstance(op, BarrierOp) for op in self.model.code.operations))
        self.sections: list[int] = [barriers[child.position] for child in self.model.children]
        self.ends: list[float] = []
        """When each child is computed."""

    def starts(self) -> dict[int, int]:
        """Of buffers that are filled before their first child the position of the child that is computed then."""
        found: dict[int, int] = {}
        port = streamed = 0.0
        earliest = 0
        for number, child in enumerate(self.model.children):
            ready = self.ends[-1] if self.ends else 0.0
            if number and self.sections[number] > self.sections[number - 1]:
                streamed = 0.0
            for transfer in child.transfers:
                now, at_once = number, 1.0
                if transfer.buffer in self.early and self.first[transfer.buffer] == number:
                    in_time = bisect_right(self.ends, port - streamed)
                    now = earliest = max(earliest, in_time, self._room_from(transfer.buffer, number))
                    self.taken[now:number] += self.sizes[transfer.buffer]
                    at_once = min(1.0, self.model.code.buffers[transfer.buffer].depth / transfer.executions)
                    if now < number:
                        found[transfer.buffer] = self.model.children[now].position
                begin = max(port, self.ends[now - 1] if now else 0.0)
                port = begin + transfer.cycles
                if self.sections[number] and isinstance(self.model.code.operations[child.position], RepeatOp):
                    streamed += transfer.cycles
                if transfer.is_load:
                    ready = max(ready, begin + transfer.cycles * at_once)
            self.ends.append(max(ready + child.cycles, port if child.transfers else 0.0))
        return found

    def _room_from(self, buffer: int, number: int) -> int:
        """The first child from which on, up to the one with a number, there is room for a buffer."""
        full = np.flatnonzero(self.taken[:number] + self.sizes[buffer] > self.capacity)
        return int(full[-1]) + 1 if full.size else 0
