"""Functional execution: the work of a program in program order, groups of equal units at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from frustum.runtime import matrix, transfer, vector  # noqa: F401  (they register their effects)
from frustum.runtime.effects import Work, effect
from frustum.runtime.expand import Expanded, Rows
from frustum.runtime.group import Calls, group
from frustum.runtime.memory import Memories

Progress = Callable[[str, float], None]
REPORTS = 200
"""How often at most a run reports its progress."""


class Plan:
    """The calls of both tables of an expanded program in one sequence, as plain lists: fast to walk through."""

    def __init__(self, expanded: Expanded, capacities: Sequence[int]) -> None:
        self._effects = [effect.dispatch(type(instruction)) for instruction in expanded.instructions]
        self._instructions = expanded.instructions
        self._kinds = expanded.memory.tolist()
        self._copies = expanded.copies[:, 1].tolist() if len(expanded.copies) else []
        tables = [(rows, group(expanded, rows, capacities)) for rows in (expanded.core, expanded.cluster)]
        tables = [(rows, calls) for rows, calls in tables if len(calls.row)]
        seq = np.concatenate([rows.seq[calls.row] for rows, calls in tables] or [np.zeros(0, np.int64)])
        order = np.argsort(seq, kind="stable")
        self._steps = _merged([_columns(rows, calls) for rows, calls in tables], order)

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, memories: Memories, progress: Progress | None = None) -> None:
        """Execute everything; `progress` hears the stage and the share done."""
        every = max(1, len(self) // REPORTS)
        for number, (static, *rest) in enumerate(self._steps):
            work = Work(memories, self._kinds[static], self._copies[static], *rest)
            self._effects[static](self._instructions[static], work)
            if progress is not None and number % every == 0:
                progress("run", number / len(self))


def _columns(rows: Rows, calls: Calls) -> list[list]:
    """What `Work` needs besides the instruction, a list for each argument."""
    row, unit = calls.row, calls.unit
    box = np.stack([part[:, row, unit] for part in _box(rows)])  # parts, 4, calls
    flags = np.stack([rows.is_first[row], rows.is_last[row]], 1)
    parts = (rows.static[row], box.transpose(2, 0, 1), flags, calls.lead, calls.base, calls.step)
    return [part.tolist() for part in parts]


def _box(rows: Rows) -> tuple[np.ndarray, ...]:
    return rows.lower, rows.extent, rows.origin, rows.read, rows.low, rows.high


def _merged(tables: list[list[list]], order: np.ndarray) -> list[tuple]:
    steps = [step for columns in tables for step in zip(*columns, strict=True)]
    return [steps[number] for number in order.tolist()]
