"""Functional execution: the work of a program in program order, groups of equal units at a time.

Large groups are cut in two halves for two threads; numpy holds no lock while it copies and multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from frustum.dialects.isa.program import Conv, Instruction
from frustum.runtime import matrix, transfer, vector  # noqa: F401  (they register their effects)
from frustum.runtime.blas import single_threaded
from frustum.runtime.effects import Work, effect
from frustum.runtime.expand import Expanded, Rows
from frustum.runtime.group import Calls, group
from frustum.runtime.memory import Memories
from frustum.runtime.progress import Progress

Step = tuple[Any, ...]
"""Index of the instruction, whether to run it in halves, then the last arguments of `Work`."""
REPORTS = 200
"""How often at most a run reports its progress."""
LARGE = 1 << 19
"""Elements moved or products summed from which on halves pay: handing one over takes 50 us."""


class Plan:
    """The calls of both tables of an expanded program in one sequence, as plain lists: fast to walk through."""

    def __init__(self, expanded: Expanded, capacities: Sequence[int]) -> None:
        self._effects = [effect.dispatch(type(instruction)) for instruction in expanded.instructions]
        self._instructions = expanded.instructions
        self._kinds = expanded.memory.tolist()
        self._copies = expanded.copies[:, 1].tolist()
        products = np.array([_products(instruction) for instruction in expanded.instructions], np.int64)
        tables = [(rows, group(expanded, rows, capacities)) for rows in (expanded.core, expanded.cluster)]
        tables = [(rows, calls) for rows, calls in tables if len(calls.row)]
        seq = np.concatenate([rows.seq[calls.row] for rows, calls in tables] or [np.zeros(0, np.int64)])
        steps = [step for rows, calls in tables for step in _steps(rows, calls, products)]
        self._steps = [steps[number] for number in np.argsort(seq, kind="stable").tolist()]

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, memories: Memories, progress: Progress | None = None) -> None:
        """Execute everything; `progress` hears the stage and the share done."""
        every = max(1, len(self) // REPORTS)
        with single_threaded(), np.errstate(all="ignore"), ThreadPoolExecutor(1) as other:
            for number, (static, in_halves, *rest) in enumerate(self._steps):
                if in_halves:
                    first, second = _halves(*rest)
                    future = other.submit(self._do_quietly, memories, static, first)
                    self._do(memories, static, second)
                    future.result()
                else:
                    self._do(memories, static, rest)
                if progress is not None and number % every == 0:
                    progress("emulate", number / len(self))

    def _do(self, memories: Memories, static: int, rest: Sequence[Any]) -> None:
        work = Work(memories, self._kinds[static], self._copies[static], *rest)
        self._effects[static](self._instructions[static], work)

    def _do_quietly(self, memories: Memories, static: int, rest: Sequence[Any]) -> None:
        """`_do` in another thread, which does not inherit that overflows are no errors here."""
        with np.errstate(all="ignore"):
            self._do(memories, static, rest)


def _products(instruction: Instruction) -> int:
    """Products summed for an element and an input channel; 0 for what sums none."""
    return instruction.kernel[0] * instruction.kernel[1] if isinstance(instruction, Conv) else 0


def _steps(rows: Rows, calls: Calls, products: np.ndarray) -> list[Step]:
    """What to run, in the order of the calls."""
    row, unit = calls.row, calls.unit
    parts = (rows.lower, rows.extent, rows.origin, rows.read, rows.low, rows.high)
    box = np.stack([part[:, row, unit] for part in parts])  # parts, 4, calls
    flags = np.stack([rows.is_first[row], rows.is_last[row]], 1)
    static, lead = rows.static[row], calls.lead
    units = lead.prod(axis=1)
    channels = rows.read[1, row, unit]
    large = units * rows.extent[:, row, unit].prod(axis=0) * np.maximum(1, products[static] * channels) >= LARGE
    columns = (static, large & (units > 1), box.transpose(2, 0, 1), flags, lead, calls.base, calls.step)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _halves(
    box: Any, flags: Any, lead: list[int], base: list[int], step: list[list[int]]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """The last arguments of `Work` for the first and the second half of the units."""
    axis = 0 if lead[0] > 1 else 1
    half = lead[axis] // 2
    sizes = [list(lead), list(lead)]
    sizes[0][axis], sizes[1][axis] = half, lead[axis] - half
    moved = [address + half * move for address, move in zip(base, step[axis], strict=True)]
    return (box, flags, sizes[0], base, step), (box, flags, sizes[1], moved, step)
