"""Which executions stand in the queue of which engine, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.isa.program import FETCHES, Barrier, Instruction
from frustum.dialects.isa.program import Engine as EngineKind
from frustum.runtime.device.expand import Expanded, Rows
from frustum.runtime.device.order import Ints
from frustum.runtime.time.machine_map import CLUSTER_KINDS, CORE_KINDS, EngineName, MachineMap

START = -1
"""Instruction and row of the operations before the program's first: fetching its code and waiting for that."""


@dataclass(frozen=True)
class Queues:
    """Where the operations of every engine come from; they are numbered engine by engine.

    `cell` numbers the rows and units of both tables, first those of the core table (row * units + unit), then
    those of the cluster table; then the two cells of the start: fetching code, and waiting for it.
    """

    offsets: Ints  # engines + 1
    cell: Ints  # operations
    static: Ints  # operations: index of the instruction, or START
    engine: Ints  # operations
    row: Ints  # operations: in the core table, or len(core) + row in the cluster table, or START


def make_queues(expanded: Expanded, machine: MachineMap, starts_with_fetch: bool) -> Queues:
    """The queues of all engines: what they execute, and in each every barrier.

    A fetch is executed by cluster 0 alone, as a multicast is.  A barrier is all that it does: it has no events.
    """
    for instruction in expanded.instructions:
        if isinstance(instruction, Barrier):
            assert not instruction.waits and instruction.signal is None, "a barrier has no events"
    cells = _Cells(expanded)
    parts = [_queue(name, cells, starts_with_fetch) for name in machine.engines]
    sizes = [len(cell) for cell, _ in parts]
    row = np.concatenate([row for _, row in parts])
    return Queues(
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        cell=np.concatenate([cell for cell, _ in parts]),
        static=np.concatenate([expanded.core.static, expanded.cluster.static, [START]])[row],
        engine=np.repeat(np.arange(len(parts)), sizes),
        row=row,
    )


def are(instructions: Sequence[Instruction], *kinds: type[Instruction]) -> Ints:
    """Which of the instructions are of one of these classes."""
    return np.array([isinstance(instruction, kinds) for instruction in instructions], bool)


class _Cells:
    """The rows of every kind of engine, merged with the barriers."""

    def __init__(self, expanded: Expanded) -> None:
        self.expanded = expanded
        self.first_of_cluster = len(expanded.core) * expanded.core.units
        self.fetch = self.first_of_cluster + len(expanded.cluster) * expanded.cluster.units
        self.barriers = np.flatnonzero(are(expanded.instructions, Barrier)[expanded.cluster.static])
        self.is_fetch = are(expanded.instructions, *FETCHES)[expanded.cluster.static]
        self.merged = {kind: self._merged(kind, expanded.core) for kind in CORE_KINDS}
        self.merged |= {kind: self._merged(kind, expanded.cluster) for kind in CLUSTER_KINDS}

    def _merged(self, kind: EngineKind, rows: Rows) -> tuple[Ints, Ints]:
        """Rows in program order, and which of them are barriers and so rows of the cluster table."""
        is_mine = np.array([instruction.engine == kind for instruction in self.expanded.instructions], bool)
        mine = np.flatnonzero(is_mine[rows.static])
        order = np.argsort(np.concatenate([rows.seq[mine], self.expanded.cluster.seq[self.barriers]]))
        return np.concatenate([mine, self.barriers])[order], (np.arange(len(order)) >= len(mine))[order]


def _queue(name: EngineName, cells: _Cells, starts_with_fetch: bool) -> tuple[Ints, Ints]:
    """Cells and rows of the operations of one engine."""
    core, cluster = cells.expanded.core, cells.expanded.cluster
    row, is_barrier = cells.merged[name.kind]
    at_cluster = cells.first_of_cluster + row * cluster.units
    if name.core is None:
        left_to_another = cells.is_fetch[row] if name.cluster > 0 else np.zeros(len(row), bool)
        is_mine = is_barrier | (cluster.takes_part[row, name.cluster] & ~left_to_another)
        cell = (at_cluster + np.where(is_barrier, 0, name.cluster))[is_mine]
        row = len(core) + row[is_mine]
    else:
        unit = name.cluster * cells.expanded.cores + name.core
        cell = np.where(is_barrier, at_cluster, row * core.units + unit)
        row = np.where(is_barrier, len(core) + row, row)
    if starts_with_fetch:
        does_fetch = name.kind == "fetch" and name.cluster == 0
        cell = np.concatenate([[cells.fetch + (not does_fetch)], cell])
        row = np.concatenate([[START], row])
    return cell, row
