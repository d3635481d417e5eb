# Tests: test/runtime/time/test_timing_model.py
"""What stands in the queue of which engine, in order, and which counters its waits look at and its signals reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.isa.program import FETCHES, Barrier, Instruction, Scope, Wait
from frustum.dialects.isa.program import Engine as EngineKind
from frustum.runtime.device.expand import WAITS, Expanded, Rows
from frustum.runtime.device.form import Ints, Slot, is_on_core, reached, reaches_all_clusters, watched
from frustum.runtime.device.memory import unit_name
from frustum.runtime.time.engine import EventLists, Lists
from frustum.runtime.time.machine_map import CLUSTER_KINDS, CORE_KINDS, EngineName, MachineMap

START = -1
"""Instruction and row of the operations before the program's first: fetching its code and waiting for that."""
Pairs = list[tuple[int, int]]
_FAR_SCOPES = ("all_cores", "all_clusters")


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


# --- waits and signals -----------------------------------------------------------------------------------


def events(expanded: Expanded, counters: CounterMap, cell: Ints, static: Ints) -> EventLists:
    """Waits and signals of operations that are these cells of these instructions (-1: the start)."""
    groups: list[Pairs] = [[(counters.start, 0)]]
    signals: list[Pairs] = [[], [(counters.start, 0)]]
    start_group, nothing, start_signal = 0, 0, 1
    wait_group = _wait_groups(expanded, counters, groups)
    signal_list = _signal_lists(expanded, counters, signals)
    core, cluster = expanded.core, expanded.cluster
    split, fetch_cell = len(core) * core.units, len(core) * core.units + len(cluster) * cluster.units
    on_core = cell < split
    unit = np.where(on_core, cell % max(1, core.units), (cell - split) % max(1, cluster.units))
    values = np.zeros((WAITS, len(cell)), np.int64)
    chosen = np.zeros((WAITS, len(cell)), np.int64)
    for slot in range(WAITS):
        both = np.concatenate([core.wait[slot].ravel(), cluster.wait[slot].ravel(), [0, 1]])
        values[slot] = both[cell]
        chosen[slot] = wait_group[static, slot] + unit
    at_start = static < 0
    chosen[:, at_start] = start_group
    values[0, at_start & (cell == fetch_cell)] = 0
    values[1:, at_start] = 0
    signal = np.where(signal_list[static] >= 0, signal_list[static] + unit, nothing)
    signal[at_start] = np.where(cell[at_start] == fetch_cell, start_signal, nothing)
    holds = values > 0
    waits = Lists(
        np.concatenate([[0], np.cumsum(holds.sum(axis=0))]), np.stack([chosen.T[holds.T], values.T[holds.T]], axis=1)
    )
    return EventLists(waits, signal, Lists.of(signals), Lists.of(groups))


class CounterMap:
    """Numbers of the counters: core slots of all cores, cluster slots of all clusters, their remote views."""

    def __init__(self, expanded: Expanded, latency_cycles: int) -> None:
        self.clusters: int = expanded.clusters
        self.cores: int = expanded.cores
        self.units: int = self.clusters * self.cores
        self.latency_cycles = latency_cycles
        waits = [(wait, is_on_core(each)) for each in expanded.instructions for wait in each.waits]
        named = [each for wait, on_core in waits for each in self.watched(wait, on_core, 0)]
        named += [each for instruction in expanded.instructions for each in reached(instruction, 0, 1)]
        self.core_slots: int = 1 + max((slot for on_core, slot, _ in named if on_core), default=-1)
        self.cluster_slots: int = 1 + max((slot for on_core, slot, _ in named if not on_core), default=-1)
        self.local: int = self.core_slots * self.units + self.cluster_slots * self.clusters
        self.start: int = 2 * self.local
        self.seen_from_far: set[tuple[bool, int]] = {
            (w.scope == "all_cores", w.slot) for w, _ in waits if w.scope in _FAR_SCOPES
        }

    def watched(self, wait: Wait, on_core: bool, unit: int) -> list[Slot]:
        return watched(wait, on_core, unit, self.clusters, self.cores)

    def number(self, slot: Slot) -> int:
        on_core, number, unit = slot
        return number * self.units + unit if on_core else self.core_slots * self.units + number * self.clusters + unit

    def seen_by(self, cluster: int, slot: Slot) -> int:
        """The counter, or its remote view for another cluster than its own."""
        on_core, _, unit = slot
        is_own = cluster == (unit // self.cores if on_core else unit)
        return self.number(slot) + (0 if is_own else self.local)

    def name_of(self, counter: int) -> str:
        if counter == self.start:
            return "the code"
        counter %= self.local
        on_core = counter < self.core_slots * self.units
        at, units = (counter, self.units) if on_core else (counter - self.core_slots * self.units, self.clusters)
        slot, unit = divmod(at, units)
        return f"{'core' if on_core else 'cluster'} slot {slot} of {unit_name(on_core, unit, self.cores)}"


def _wait_groups(expanded: Expanded, counters: CounterMap, groups: list[Pairs]) -> Ints:
    """Of each instruction and wait the group for unit 0; the groups of its other units follow."""
    found = np.zeros((len(expanded.instructions) + 1, WAITS), np.int64)
    known: dict[tuple[int, Scope, bool], int] = {}
    for number, instruction in enumerate(expanded.instructions):
        on_core = is_on_core(instruction)
        for place, wait in enumerate(instruction.waits):
            key = wait.slot, wait.scope, on_core
            if key not in known:
                known[key] = len(groups)
                for unit in range(counters.units if on_core else counters.clusters):
                    cluster = unit // counters.cores if on_core else unit
                    seen = counters.watched(wait, on_core, unit)
                    groups.append([(counters.seen_by(cluster, each), 0) for each in seen])
            found[number, place] = known[key]
    return found


def _signal_lists(expanded: Expanded, counters: CounterMap, signals: list[Pairs]) -> Ints:
    """Of each instruction the signals of unit 0 (-1: none); those of its other units follow."""
    found = np.full(len(expanded.instructions) + 1, -1, np.int64)
    known: dict[tuple[int, bool, bool], int] = {}
    for number, instruction in enumerate(expanded.instructions):
        if instruction.signal is None:
            continue
        on_core = is_on_core(instruction)
        key = instruction.signal, on_core, reaches_all_clusters(instruction)
        if key not in known:
            known[key] = len(signals)
            units = range(counters.units if on_core else counters.clusters)
            signals += [_reached(counters, instruction, unit) for unit in units]
        found[number] = known[key]
    return found


def _reached(counters: CounterMap, instruction: Instruction, unit: int) -> Pairs:
    """Counters that a signal of this unit reaches, and how long after completion."""
    late, slots = counters.latency_cycles, reached(instruction, unit, counters.clusters)
    pairs = [(counters.number(slot), late * (slot[2] != unit)) for slot in slots]
    if slots[0][:2] in counters.seen_from_far:
        pairs += [(counters.local + counter, delay + late) for counter, delay in pairs]
    return pairs
