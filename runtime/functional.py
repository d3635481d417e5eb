"""Functional execution: the work of a program in program order, groups of equal units at a time.

Large groups are cut in two halves for two threads; numpy holds no lock while it copies and multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import numpy as np

from frustum.dialects.isa.program import Conv, Instruction
from frustum.runtime import matrix, transfer, vector  # noqa: F401  (they register their effects)
from frustum.runtime.blas import single_threaded
from frustum.runtime.effects import BASE, LEAD, STEPS, Work, effect
from frustum.runtime.expand import Expanded, Rows
from frustum.runtime.group import Calls, group
from frustum.runtime.memory import Memories
from frustum.runtime.order import Ints
from frustum.runtime.progress import Progress

Step = tuple[int, bool, list[int]]
"""Index of the instruction, whether to run it in halves, the numbers of its `Work`."""
REPORTS = 200
"""How often at most a run reports its progress."""
LARGE = 1 << 20
"""Elements from which on halves pay.  ResNet-50 on `default`, 10 000 calls: 0.34 s; from 2^18 on 0.40 s, because
threads wait for the interpreter's lock between short operations; with 500 longer calls halves take 0.15 for 0.22 s."""
AT_ONCE = 1 << 12
"""Steps that are plain lists at a time: a list takes 1 KB, the row of an array 350 bytes."""
PRODUCTS = 10
"""Products that take as long as moving an element."""


class Plan:
    """The calls of both tables of an expanded program in one sequence."""

    def __init__(self, expanded: Expanded, capacities: Sequence[int]) -> None:
        self._effects: list[Callable[[Any, Work], None]] = [
            effect.dispatch(type(instruction)) for instruction in expanded.instructions
        ]
        self._instructions = expanded.instructions
        self._kinds = expanded.memory.tolist()
        self._copies = expanded.copies[:, 1].tolist()
        products = np.array([_products(instruction) for instruction in expanded.instructions], np.int64)
        tables = [(rows, group(expanded, rows, capacities)) for rows in (expanded.core, expanded.cluster)]
        seq = np.concatenate([rows.seq[calls.row] for rows, calls in tables])
        parts = [_columns(rows, calls, products) for rows, calls in tables if len(calls.row)]
        order = np.argsort(seq, kind="stable")
        self._columns = [np.concatenate(column)[order] for column in zip(*parts, strict=True)]
        self._size = len(order)

    def __len__(self) -> int:
        return self._size

    def steps(self) -> Iterator[Step]:
        """What to run, in program order."""
        for start in range(0, len(self), AT_ONCE):
            yield from zip(*(column[start : start + AT_ONCE].tolist() for column in self._columns), strict=True)

    def with_effect(self, kind: type[Instruction], its_effect: Callable[[Any, Work], None]) -> Plan:
        """The same plan with another effect of one class of instructions; nothing runs in halves."""
        other = copy(self)
        effects = zip(self._instructions, self._effects, strict=True)
        other._effects = [its_effect if isinstance(each, kind) else old for each, old in effects]
        if self._columns:
            static, in_halves, numbers = self._columns
            other._columns = [static, np.zeros_like(in_halves), numbers]
        return other

    def run(
        self, memories: Memories, progress: Progress | None = None, beside: Callable[[], None] | None = None
    ) -> None:
        """Execute everything; `progress` hears the stage and the share done.

        `beside` runs on the second thread meanwhile, which takes halves of large calls once that is done.
        """
        every = max(1, len(self) // REPORTS)
        with single_threaded(), np.errstate(all="ignore"), ThreadPoolExecutor(1) as other:
            beside_it = other.submit(beside or _nothing)
            for number, (static, in_halves, numbers) in enumerate(self.steps()):
                if in_halves and beside_it.done():
                    first, second = _halves(numbers)
                    future = other.submit(self._do_quietly, memories, static, first)
                    self._do(memories, static, second)
                    future.result()
                else:
                    self._do(memories, static, numbers)
                if progress is not None and number % every == 0:
                    progress("emulate", number / len(self))
            beside_it.result()

    def _do(self, memories: Memories, static: int, numbers: list[int]) -> None:
        work = Work(memories, self._kinds[static], self._copies[static], numbers)
        self._effects[static](self._instructions[static], work)

    def _do_quietly(self, memories: Memories, static: int, numbers: list[int]) -> None:
        """`_do` in another thread, which does not inherit that overflows are no errors here."""
        with np.errstate(all="ignore"):
            self._do(memories, static, numbers)


def _nothing() -> None:
    """What runs beside a run when nothing is asked for."""


def _products(instruction: Instruction) -> int:
    """Products summed for an element and an input channel; 0 for what sums none."""
    return instruction.kernel[0] * instruction.kernel[1] if isinstance(instruction, Conv) else 0


def _columns(rows: Rows, calls: Calls, products: Ints) -> tuple[Ints, Ints, Ints]:
    """The parts of the steps, in the order of the calls."""
    row, unit = calls.row, calls.unit
    parts = (rows.lower, rows.extent, rows.origin, rows.read, rows.low, rows.high)
    box = [part[:, row, unit].T for part in parts]
    flags = np.stack([rows.is_first[row], rows.is_last[row]], 1)
    steps = calls.step.reshape(len(row), -1)
    split = rows.split[:, :, row, unit].max(axis=1).T
    numbers = np.concatenate([*box, flags, calls.lead, calls.base, steps, split], axis=1)
    static, units = rows.static[row], calls.lead.prod(axis=1)
    elements = units * rows.extent[:, row, unit].prod(axis=0)
    cost = elements * (1 + products[static] * rows.read[1, row, unit] // PRODUCTS)
    in_halves = (cost >= LARGE) & (units > 1)
    return static, in_halves, numbers


def _halves(numbers: list[int]) -> tuple[list[int], list[int]]:
    """The numbers of `Work` for the first and the second half of the units."""
    axis = 0 if numbers[LEAD][0] > 1 else 1
    first, second = numbers.copy(), numbers.copy()
    place, step = LEAD.start + axis, numbers[STEPS[axis]]
    first[place] = numbers[place] // 2
    second[place] = numbers[place] - first[place]
    second[BASE] = [base + first[place] * move for base, move in zip(numbers[BASE], step, strict=True)]
    return first, second
