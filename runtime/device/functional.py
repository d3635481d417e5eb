"""Functional execution: the work of a program in program order, groups of equal units at a time.

Copies that follow each other are made in one call (`copies.py`), convolutions of floats by `products.py`, all else by
effects (`effects.py`).  Large groups are cut in two halves for two threads; numpy holds no lock while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from frustum.dialects.isa.program import Conv, Depthwise, Instruction
from frustum.runtime.device import matrix, vector  # noqa: F401  (they register their effects)
from frustum.runtime.device.addresses import Addresses
from frustum.runtime.device.copies import copies, is_plain
from frustum.runtime.device.effects import BASE, LEAD, STEPS, Call, effect
from frustum.runtime.device.expand import Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.device.group import Calls, group
from frustum.runtime.device.memory import Memories, bases
from frustum.runtime.device.product_table import are_products, product_table
from frustum.runtime.device.products import Products
from frustum.runtime.kernels.convolution import in_two, single_threaded
from frustum.runtime.progress import REPORTS, Progress

Effect = Callable[[Any, Call], None]
Watch = Callable[[Memories, int], None]
Step = tuple[int, int, int]
"""What it is, then numbers `[first, last)` of rows of copies, or the number of a group of units."""
COPIES, PRODUCTS, WORK = range(3)
LARGE = 1 << 20
"""Elements from which on halves pay.  ResNet-50 on `default`, 10 000 calls: 0.34 s; from 2^18 on 0.40 s, because
threads wait for the interpreter's lock between short operations; with 500 longer calls halves take 0.15 for 0.22 s."""
PER_MOVE = 10
"""Products that take as long as moving an element."""


class ExecutionPlan:
    """What to run of an expanded program, in program order; `effects` replace those of classes of instructions, and
    nothing of a plan that has such runs in halves."""

    def __init__(
        self, expanded: Expanded, capacities: Sequence[int],
        effects: Mapping[type[Instruction], Effect] | None = None,
    ) -> None:  # fmt: skip
        self._expanded, self._capacities, self._own = expanded, tuple(capacities), dict(effects or {})
        self._instructions = expanded.instructions
        self._effects = [
            self._own.get(type(each)) or effect.dispatch(type(each)) for each in expanded.instructions
        ]
        self._kinds, self._copied = expanded.memory.tolist(), expanded.copies[:, 1].tolist()
        starts = bases(expanded.memory_counts, capacities)
        self._copies = copies(expanded, capacities, starts)
        by_table = np.zeros(len(expanded.instructions), bool) if Conv in self._own else are_products(expanded)
        if Conv not in self._own:
            by_table[_strange(expanded)] = False
        self._products = Products(product_table(expanded, capacities, starts, by_table))
        by_table |= np.array([is_plain(each) for each in expanded.instructions], bool)
        seq = self._set_work(~by_table)
        self.steps: list[Step]
        self.steps, self._last = _steps((self._copies.seq, self._products.seq, seq), self._copies.unit_bytes)

    def _set_work(self, by_effect: Ints) -> Ints:
        """Group what runs by effects; gives the place of each group in the program order."""
        expanded = self._expanded
        products = np.array([_products(each) for each in self._instructions], np.int64)
        tables = [(rows, np.flatnonzero(by_effect[rows.static])) for rows in (expanded.core, expanded.cluster)]
        parts = [(rows, group(expanded, rows, self._capacities, chosen)) for rows, chosen in tables if len(chosen)]
        parts = [(rows, calls) for rows, calls in parts if len(calls.row)]
        if not parts:
            self._static, self._in_halves, self._numbers, self._table = (np.zeros(0, np.int64),) * 4
            return np.zeros(0, np.int64)
        seq = np.concatenate([rows.seq[calls.row] for rows, calls in parts])
        order = np.argsort(seq, kind="stable")
        columns = zip(*(_columns(expanded, rows, calls, products) for rows, calls in parts), strict=True)
        self._static, self._in_halves, self._numbers, self._table = (
            np.concatenate(column)[order] for column in columns
        )
        if self._own:
            self._in_halves = np.zeros_like(self._in_halves)
        return seq[order]

    def __len__(self) -> int:
        return len(self.steps)

    def with_effect(self, kind: type[Instruction], its_effect: Effect) -> ExecutionPlan:
        """The same with another effect of one class of instructions."""
        return ExecutionPlan(self._expanded, self._capacities, {**self._own, kind: its_effect})

    def run(
        self, memories: Memories, progress: Progress | None = None, beside: Callable[[], None] | None = None,
        watch: Watch | None = None,
    ) -> None:  # fmt: skip
        """Execute everything; `progress` hears the stage and the share done.

        `watch` is shown the memories, which it may change, each time all executions of a place in the program order
        have been done (of copies, those that follow each other), and the place.
        `beside` runs on the second thread meanwhile, which takes halves of large calls once that is done.
        """
        every = max(1, len(self) // REPORTS)
        with single_threaded(), np.errstate(all="ignore"), ThreadPoolExecutor(1) as other:
            beside_it = other.submit(beside or (lambda: None))
            for number, (kind, first, last) in enumerate(self.steps):
                if kind == COPIES:
                    self._copies.run(memories, first, last)
                elif kind == PRODUCTS:
                    self._products.run(memories, first, other if beside_it.done() else None)
                else:
                    self._work(memories, first, other if beside_it.done() else None)
                if watch is not None and (number + 1 == len(self) or self._last[number + 1] != self._last[number]):
                    watch(memories, int(self._last[number]))
                if progress is not None and number % every == 0:
                    progress("emulate", number / len(self))
            beside_it.result()

    def _work(self, memories: Memories, group: int, other: ThreadPoolExecutor | None) -> None:
        """Run a group by its effect, if it is large half of it on another thread."""
        static, numbers = int(self._static[group]), self._numbers[group].tolist()
        tables = self._expanded.tables
        table = None if tables is None else tables.uses.get((static, int(self._table[group])))
        if other is None or not self._in_halves[group]:
            self._do(memories, static, numbers, table)
            return
        in_two(other, lambda half: self._do(memories, static, half, table), *_halves(numbers))

    def _do(self, memories: Memories, static: int, numbers: list[int], table: Addresses | None) -> None:
        work = Call(memories, self._kinds[static], self._copied[static], numbers, table)
        self._effects[static](self._instructions[static], work)


def _steps(seqs: Sequence[Ints], unit_bytes: Ints) -> tuple[list[Step], Ints]:
    """Rows of all kinds in program order; copies of one size of elements that follow each other are one step.  And of
    each step the last place in the program order."""
    seq = np.concatenate(seqs)
    if not len(seq):
        return [], seq
    order = np.argsort(seq, kind="stable")
    kind = np.repeat(np.arange(len(seqs)), [len(each) for each in seqs])[order]
    number = np.concatenate([np.arange(len(each)) for each in seqs])[order]
    size = np.zeros(len(seq), np.int64)
    size[kind == COPIES] = unit_bytes
    goes_on = (size[1:] == size[:-1]) & (kind[1:] == COPIES) & (kind[:-1] == COPIES)
    first = np.flatnonzero(np.append(True, ~goes_on))
    last = np.append(first[1:], len(seq)) - 1
    steps = zip(kind[first].tolist(), number[first].tolist(), (number[last] + 1).tolist(), strict=True)
    return list(steps), seq[order][last]


def _products(instruction: Instruction) -> int:
    """Products summed for an element and an input channel; 0 for what sums none."""
    return instruction.kernel[0] * instruction.kernel[1] if isinstance(instruction, Conv | Depthwise) else 0


def _strange(expanded: Expanded) -> Ints:
    """Which instructions name a table, at some time, whose entries are no strides of their buffer."""
    uses = {} if expanded.tables is None else expanded.tables.uses
    return np.unique(np.array([static for (static, _), use in uses.items() if use.strides is None], np.int64))


def _columns(expanded: Expanded, rows: Rows, calls: Calls, products: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each group: its instruction, whether to run it in halves, the numbers of `Call`, its address table."""
    row, unit = calls.row, calls.unit
    parts = (rows.lower, rows.extent, rows.origin, rows.read, rows.low, rows.high)
    box = [part[:, row, unit].T for part in parts]
    flags = np.stack([rows.is_first[row], rows.is_last[row]], 1)
    steps = calls.step.reshape(len(row), -1)
    numbers = np.concatenate([*box, flags, calls.lead, calls.base, steps], axis=1)
    static, units = rows.static[row], calls.lead.prod(axis=1)
    elements = units * rows.extent[:, row, unit].prod(axis=0)
    cost = elements * (1 + products[static] * rows.read[1, row, unit] // PER_MOVE)
    in_halves = (cost >= LARGE) & (units > 1)
    tables = expanded.tables
    table = np.full(len(row), -1) if tables is None or rows is not expanded.core else tables.number[row]
    return static, in_halves, numbers, table


def _halves(numbers: list[int]) -> tuple[list[int], list[int]]:
    """The numbers of `Call` for the first and the second half of the units."""
    axis = 0 if numbers[LEAD][0] > 1 else 1
    first, second = numbers.copy(), numbers.copy()
    place, step = LEAD.start + axis, numbers[STEPS[axis]]
    first[place] = numbers[place] // 2
    second[place] = numbers[place] - first[place]
    second[BASE] = [base + first[place] * move for base, move in zip(numbers[BASE], step, strict=True)]
    return first, second
