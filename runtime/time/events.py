"""What stands in the queue of which engine, in order, and which counters its waits look at and its signals reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.isa.program import CORE_ENGINES, FETCHES, Barrier, Copy, Instruction, Scope
from frustum.dialects.isa.program import Engine as EngineKind
from frustum.dialects.target import Target
from frustum.runtime.device.expand import WAITS, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.time.machine_map import CLUSTER_KINDS, CORE_KINDS, EngineName, MachineMap

START = -1
"""Instruction and row of the operations before the program's first: fetching its code and waiting for that."""
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



@dataclass(frozen=True)
class EventLists:
    """Waits and signals of operations, as `engine.Operations` has them."""

    wait_at: Ints
    wait_group: Ints
    wait_value: Ints
    signal: Ints
    signal_at: Ints
    signal_counter: Ints
    signal_delay: Ints
    group_at: Ints
    group_counter: Ints
    counters: CounterMap

    def name_of(self, counter: int) -> str:
        return self.counters.name_of(counter)


def events(expanded: Expanded, target: Target, cell: Ints, static: Ints) -> EventLists:
    """Waits and signals of operations that are these cells of these instructions (-1: the start)."""
    latency = target.cluster.sram.latency_cycles
    counters = CounterMap(expanded, latency)
    groups, signals = _Lists(), _Lists()
    start_group = groups.add([(counters.start, 0)])
    wait_group = _wait_groups(expanded, counters, groups)
    signal_list = _signal_lists(expanded, counters, signals)
    nothing, start_signal = signals.add([]), signals.add([(counters.start, 0)])

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
    return EventLists(
        wait_at=np.concatenate([[0], np.cumsum(holds.sum(axis=0))]),
        wait_group=chosen.T[holds.T],
        wait_value=values.T[holds.T],
        signal=signal,
        signal_at=signals.offsets,
        signal_counter=signals.first,
        signal_delay=signals.second,
        group_at=groups.offsets,
        group_counter=groups.first,
        counters=counters,
    )


class CounterMap:
    """Numbers of the counters: core slots of all cores, cluster slots of all clusters, their remote views."""

    def __init__(self, expanded: Expanded, latency_cycles: int) -> None:
        self.clusters, self.cores = expanded.clusters, expanded.cores
        self.units = self.clusters * self.cores
        self.latency_cycles = latency_cycles
        slots = list(_slots(expanded.instructions))
        self.core_slots = 1 + max((slot for slot, on_core in slots if on_core), default=-1)
        self.cluster_slots = 1 + max((slot for slot, on_core in slots if not on_core), default=-1)
        self.local = self.core_slots * self.units + self.cluster_slots * self.clusters
        self.start = 2 * self.local
        waits = [wait for instruction in expanded.instructions for wait in instruction.waits]
        self.seen_from_far = {(w.slot, w.scope == "all_cores") for w in waits if w.scope in _FAR_SCOPES}

    def of_core(self, slot: int, unit: int) -> int:
        return slot * self.units + unit

    def of_cluster(self, slot: int, cluster: int) -> int:
        return self.core_slots * self.units + slot * self.clusters + cluster

    def cluster_of(self, unit: int) -> int:
        return unit // self.cores

    def seen_by(self, cluster: int, counter: int, home: int) -> int:
        """The counter, or its remote view for another cluster than its own."""
        return counter if cluster == home else self.local + counter

    def name_of(self, counter: int) -> str:
        if counter == self.start:
            return "the code"
        counter %= self.local
        if counter < self.core_slots * self.units:
            slot, unit = divmod(counter, self.units)
            cluster, core = divmod(unit, self.cores)
            return f"core slot {slot} of cluster {cluster}, core {core}"
        slot, cluster = divmod(counter - self.core_slots * self.units, self.clusters)
        return f"cluster slot {slot} of cluster {cluster}"


class _Lists:
    """Lists of pairs, flat."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.ends = [0]

    def add(self, pairs: Iterable[tuple[int, int]]) -> int:
        """The number of the new list."""
        self.pairs.extend(pairs)
        self.ends.append(len(self.pairs))
        return len(self.ends) - 2

    def add_all(self, lists: Iterable[Iterable[tuple[int, int]]]) -> int:
        """The number of the first; the others follow."""
        first = len(self.ends) - 1
        for pairs in lists:
            self.add(pairs)
        return first

    @property
    def offsets(self) -> Ints:
        return np.array(self.ends, np.int64)

    @property
    def first(self) -> Ints:
        return np.array([pair[0] for pair in self.pairs], np.int64)

    @property
    def second(self) -> Ints:
        return np.array([pair[1] for pair in self.pairs], np.int64)


def _is_on_core(instruction: Instruction) -> bool:
    return instruction.engine in CORE_ENGINES


def _slots(instructions: Sequence[Instruction]) -> Iterable[tuple[int, bool]]:
    """Slots that are named anywhere, and whether they are core slots."""
    for instruction in instructions:
        if instruction.signal is not None:
            yield instruction.signal, _is_on_core(instruction)
        for wait in instruction.waits:
            yield wait.slot, _counts_cores(wait.scope, _is_on_core(instruction))


def _counts_cores(scope: Scope, on_core: bool) -> bool:
    return scope in ("cores", "all_cores") or (scope == "own" and on_core)


def _wait_groups(expanded: Expanded, counters: CounterMap, groups: _Lists) -> Ints:
    """Of each instruction and wait the group for unit 0; the groups of its other units follow."""
    found = np.zeros((len(expanded.instructions) + 1, WAITS), np.int64)
    known: dict[tuple[int, Scope, bool], int] = {}
    for number, instruction in enumerate(expanded.instructions):
        on_core = _is_on_core(instruction)
        for slot, wait in enumerate(instruction.waits):
            key = wait.slot, wait.scope, on_core
            if key not in known:
                units = counters.units if on_core else counters.clusters
                known[key] = groups.add_all(
                    [(counter, 0) for counter in _watched(counters, *key, unit)] for unit in range(units)
                )
            found[number, slot] = known[key]
    return found


def _watched(counters: CounterMap, slot: int, scope: Scope, on_core: bool, unit: int) -> list[int]:
    """The counters that a wait of this unit (core or cluster) looks at."""
    cluster = counters.cluster_of(unit) if on_core else unit
    first = cluster * counters.cores
    match scope:
        case "own" if on_core:
            return [counters.of_core(slot, unit)]
        case "own" | "cluster":
            return [counters.of_cluster(slot, cluster)]
        case "cores":
            return [counters.of_core(slot, core) for core in range(first, first + counters.cores)]
        case "all_cores":
            return [
                counters.seen_by(cluster, counters.of_core(slot, core), counters.cluster_of(core))
                for core in range(counters.units)
            ]
    return [counters.seen_by(cluster, counters.of_cluster(slot, c), c) for c in range(counters.clusters)]


def _signal_lists(expanded: Expanded, counters: CounterMap, signals: _Lists) -> Ints:
    """Of each instruction the signals of unit 0 (-1: none); those of its other units follow."""
    found = np.full(len(expanded.instructions) + 1, -1, np.int64)
    known: dict[tuple[int, bool, bool], int] = {}
    for number, instruction in enumerate(expanded.instructions):
        if instruction.signal is None:
            continue
        on_core, to_all = _is_on_core(instruction), reaches_all_clusters(instruction)
        key = instruction.signal, on_core, to_all
        if key not in known:
            units = counters.units if on_core else counters.clusters
            known[key] = signals.add_all(_reached(counters, *key, unit) for unit in range(units))
        found[number] = known[key]
    return found


def reaches_all_clusters(instruction: Instruction) -> bool:
    """Whether cluster 0 executes the instruction for all clusters."""
    return isinstance(instruction, FETCHES) or (isinstance(instruction, Copy) and instruction.multicast)


def _reached(counters: CounterMap, slot: int, on_core: bool, to_all: bool, unit: int) -> list[tuple[int, int]]:
    """CounterMap that a signal of this unit reaches, and how long after completion."""
    if on_core:
        reached = [(counters.of_core(slot, unit), 0)]
    elif to_all:
        late = counters.latency_cycles
        reached = [(counters.of_cluster(slot, c), late * (c != unit)) for c in range(counters.clusters)]
    else:
        reached = [(counters.of_cluster(slot, unit), 0)]
    if (slot, on_core) in counters.seen_from_far:
        reached += [(counters.local + counter, late + counters.latency_cycles) for counter, late in reached]
    return reached
