"""When everything of a program happens: its rows become operations of engines, and these are simulated.

What is decided here and not in `engine.py`: which ports a transfer needs, how long its chunks hold them, which
counters a wait looks at, which counters a signal reaches and when.

- Counters: one for each core slot of every core and each cluster slot of every cluster.  Where a cluster looks at
  counters of another one it sees them `SRAM latency` late: such a counter has a second one, the remote view, which
  every signal reaches that much later.
- The signal of a multicast goes to the counter of every cluster, to others than its own after the SRAM latency.
- Code that no instruction fetches is fetched before anything starts.

Costs come first: the chunks of every execution of an instruction, cycles of its engine and of ports, and which ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Barrier, Copy, Fetch, Hold, TableLoad
from frustum.dialects.isa.program import Engine as EngineKind
from frustum.dialects.target import Target
from frustum.dialects.target.durations import chunks, larger, transfer_chunk_cycles
from frustum.runtime.device.expand import DRAM, NRAM, SRAM, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.time import engine
from frustum.runtime.time.critical_path import Causes, CriticalPath, causes, critical_path
from frustum.runtime.time.engine import Lists, OperationCost
from frustum.runtime.time.events import CounterMap, Queues, are, events, make_queues
from frustum.runtime.time.machine_map import EngineName, MachineMap
from frustum.runtime.time.work import Workload, fetched_bytes, start_bytes, work

NAMED = 12
"""Waiting instructions that a deadlock's message names at most."""


@dataclass(frozen=True)
class Timeline:
    """What every engine did, when; in cycles."""

    expanded: Expanded
    machine: MachineMap
    queues: Queues
    operations: engine.Operations
    times: engine.Times
    tables: Tables
    cell_bytes: Ints  # of every cell of `queues`: of transfers what they move; of compute units operands and results

    @cached_property
    def engine_bytes(self) -> Ints:
        found = np.zeros(len(self.machine.engines), np.int64)
        np.add.at(found, self.queues.engine, self.cell_bytes[self.queues.cell])
        return found

    @cached_property
    def causes(self) -> Causes:
        """What every operation waited for last."""
        return causes(self.operations, self.times)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """From the last effect back to cycle 0."""
        return critical_path(self.operations, self.times, self.causes)

    @cached_property
    def engines(self) -> tuple[EngineName, ...]:
        return self.machine.engines

    @property
    def total_cycles(self) -> int:
        return self.times.total

    @cached_property
    def layer_cycles(self) -> Ints:
        """The total, shared out: the time from each completion to the next belongs to the layer of the latter.

        What the fetch at the start takes belongs to no layer; so does a program without layers.
        """
        order = np.argsort(self.times.completion, kind="stable")
        took = np.diff(self.times.completion[order], prepend=0)
        layers = np.array([instruction.layer for instruction in self.expanded.instructions], np.int64)
        static = self.queues.static[order]
        known = (static >= 0) & (took > 0)
        size = len(self.expanded.program.layers)
        return np.bincount(layers[static[known]], took[known], minlength=size).astype(np.int64)


def simulate(
    expanded: Expanded, target: Target, page_bytes: Sequence[int] = (), *, compiled: bool = True
) -> Timeline:
    """The timeline of a program on the target; `page_bytes`: sizes of the pages of its code.

    Raises `DeadlockError` that names the instructions which wait for ever.
    """
    machine = MachineMap(target, expanded.clusters, expanded.cores)
    tables = [(rows, work(expanded, rows, target)) for rows in (expanded.core, expanded.cluster)]
    at_start = start_bytes(expanded.instructions, page_bytes)
    queues = make_queues(expanded, machine, at_start > 0)
    counters = CounterMap(expanded, target.cluster.sram.latency_cycles)
    cost = cell_costs(expanded, tables, machine, page_bytes, at_start)
    cost = engine.OperationCost(cost.routes, *(column[queues.cell] for column in cost[1:]))
    kind = np.where(cost.chunks > 0, engine.TRANSFER, engine.COMPUTE)
    kind[np.append(are(expanded.instructions, Barrier), False)[queues.static]] = engine.BARRIER
    depth = np.array([target.transfers.in_flight if name.is_dma else 0 for name in machine.engines], np.int64)
    happens = events(expanded, counters, queues.cell, queues.static)
    operations = engine.Operations(queues.offsets, depth, kind, cost, happens)
    try:
        times = engine.simulate(operations, compiled=compiled)
    except engine.DeadlockError as error:
        raise engine.DeadlockError(error.blocked, _deadlock(error, expanded, machine, queues, counters)) from None
    moved = [done.moved_bytes for _, done in tables]
    moved[1] = moved[1] + fetched_bytes(expanded, page_bytes)[:, None]
    cells = np.concatenate([*map(np.ravel, moved), [at_start, 0]])
    return Timeline(expanded, machine, queues, operations, times, tables, cells)


# --- deadlock ----------------------------------------------------------------------------------------------


def _deadlock(
    error: engine.DeadlockError, expanded: Expanded, machine: MachineMap, queues: Queues, counters: CounterMap
) -> str:
    """Names the instructions that wait: those for events first, as they hold up those at a barrier."""
    blocked = sorted(error.blocked, key=lambda each: each.counter < 0)
    lines = ["deadlock: no engine can go on"]
    for each in blocked[:NAMED]:
        static, row = int(queues.static[each.operation]), int(queues.row[each.operation])
        who = f"  {machine.engines[each.engine]}: {_instruction(expanded, static, row)} waits for"
        if each.counter < 0:
            lines.append(f"{who} the other engines")
        else:
            lines.append(f"{who} {counters.name_of(each.counter)} to reach {each.needed}; it is {each.found}")
    if len(blocked) > NAMED:
        lines.append(f"  and {len(blocked) - NAMED} engines more")
    return "\n".join(lines)


def _instruction(expanded: Expanded, static: int, row: int) -> str:
    if static < 0:
        return "the start"
    instruction = expanded.instructions[static]
    table, at = (
        (expanded.core, row) if row < len(expanded.core) else (expanded.cluster, row - len(expanded.core))
    )
    layers = expanded.program.layers
    layer = layers[instruction.layer] if instruction.layer < len(layers) else f"layer {instruction.layer}"
    name = "wait" if isinstance(instruction, Hold) else type(instruction).__name__.lower()
    indices = ", ".join(map(str, _indices(table.index[at])))
    return f"instruction {static} ({name} of {layer}) at [{indices}]"


def _indices(index: Ints) -> list[int]:
    """Loop indices without the trailing zeros, which loops that are not there have too."""
    used = np.flatnonzero(index)
    return index[: used[-1] + 1].tolist() if len(used) else []


SOURCE, DESTINATION = 0, 1
Tables = Sequence[tuple[Rows, Workload]]
"""The core and the cluster table, each with what its rows do."""
Route = list[tuple[int, int]]
"""Ports, each with its side."""


def cell_costs(
    expanded: Expanded, tables: Tables, machine: MachineMap, page_bytes: Sequence[int], at_start: int
) -> OperationCost:
    """The cost of every cell (row and unit), of both tables and of the start, which fetches code of so many bytes.

    What is no transfer, or an empty one, has 0 chunks.
    """
    routes: list[Route] = []
    parts = []
    for rows, workload in tables:
        table = _TableCost(rows, workload, machine, routes)
        table.add_all(expanded, page_bytes)
        cells = table.chunks.size
        parts.append(
            (table.chunks.ravel(), table.busy.reshape(cells, 2), table.port_busy.reshape(cells, 2, 2),
             table.latency.ravel(), table.route.ravel())
        )  # fmt: skip
    parts.append(_fetches(machine, np.array([at_start, 0]), routes))
    return OperationCost(Lists.of(routes), *(np.concatenate(each) for each in zip(*parts, strict=True)))


def _fetches(machine: MachineMap, size_bytes: Ints, routes: list[Route]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """The columns of fetches of code or tables: over the DRAM port of chip 0."""
    whole, rest = chunks(size_bytes, machine.target.transfers.chunk_bytes)
    full = machine.target.transfers.chunk_bytes + 0 * rest
    engine, dram = machine.mover("fetch"), machine.memory(DRAM)
    pairs = [
        transfer_chunk_cycles(engine, dram, dram, size, size_bytes, size_bytes)
        for size in (full, np.where(rest > 0, rest, full))
    ]
    busy = np.stack([pair.engine for pair in pairs], axis=-1) * (size_bytes > 0)[..., None]
    port = np.stack([pair.source_port for pair in pairs], axis=-1)
    routes.append([(0, SOURCE)])
    latency = dram.latency_cycles * (size_bytes > 0)
    return whole + (rest > 0), busy, np.stack([port, 0 * port], axis=1), latency, 0 * rest + len(routes) - 1


class _TableCost:
    """The cells of one table while they are filled."""

    def __init__(self, rows: Rows, work: Workload, machine: MachineMap, routes: list[Route]) -> None:
        self.rows, self.work, self.machine, self.routes = rows, work, machine, routes
        shape = len(rows), rows.units
        self.chunks, self.route = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.busy = np.zeros((*shape, 2), np.int64)
        self.busy[..., 1] = work.cycles
        self.port_busy = np.zeros((*shape, 2, 2), np.int64)
        self.latency = np.where(work.cycles > 0, machine.memory(NRAM).latency_cycles, 0)

    def add_all(self, expanded: Expanded, page_bytes: Sequence[int]) -> None:
        """All transfers of the table; copies between the same memories together."""
        groups: dict[tuple[EngineKind, int, int, int], list[int]] = {}
        for number in np.flatnonzero(np.bincount(self.rows.static, minlength=len(expanded.instructions))).tolist():
            instruction = expanded.instructions[number]
            if isinstance(instruction, Copy):
                source, destination = expanded.memory[number, :2].tolist()
                copies = int(expanded.copies[number, 1])
                groups.setdefault((instruction.engine, source, destination, copies), []).append(number)
            elif isinstance(instruction, Fetch):
                self._add_fetch(number, page_bytes[instruction.page])
            elif isinstance(instruction, TableLoad):
                self._add_fetch(number, instruction.bytes)
        group = np.full(len(expanded.instructions), -1, np.int64)
        for k, (key, members) in enumerate(groups.items()):
            group[members] = k
            self._add_copies(np.flatnonzero(group[self.rows.static] == k), *key)

    def _add_fetch(self, number: int, size_bytes: int) -> None:
        """A page of code or a table, for all clusters by cluster 0."""
        chosen = self.rows.of(number)
        columns = self.chunks, self.busy, self.port_busy, self.latency, self.route
        values = _fetches(self.machine, np.full(len(chosen), size_bytes), self.routes)
        for column, value in zip(columns, values, strict=True):
            column[chosen, 0] = value

    def _add_copies(
        self, chosen: Ints, engine: EngineKind, source: int, destination: int, copies: int
    ) -> None:
        """Transfers of one engine kind between two kinds of memory, to `copies` memories at once."""
        machine, transfers = self.machine, self.machine.target.transfers
        size = self.work.size_bytes[chosen]
        whole, rest = chunks(size, transfers.chunk_bytes)
        mover = machine.mover(engine)
        between = machine.memory(source), machine.memory(destination)
        runs = self.work.source_run_bytes[chosen], self.work.destination_run_bytes[chosen]
        at_source = self.work.source_bytes[chosen]
        expands = bool((at_source != size).any())
        for last, bytes_ in enumerate(
            (transfers.chunk_bytes, np.where(rest > 0, rest, transfers.chunk_bytes))
        ):
            read = ceil_div(bytes_ * at_source, larger(size, 1)) if expands else bytes_
            cycles = transfer_chunk_cycles(mover, *between, bytes_, *runs, read)
            self.busy[chosen, :, last] = cycles.engine
            self.port_busy[chosen, :, SOURCE, last] = cycles.source_port
            self.port_busy[chosen, :, DESTINATION, last] = cycles.destination_port
        self.chunks[chosen] = whole + (rest > 0)
        empty = size == 0
        self.busy[chosen] *= ~empty[..., None]
        latency = max(memory.latency_cycles for memory in between)
        self.latency[chosen] = latency * ~empty
        self._set_routes(chosen, source, destination, copies)

    def _set_routes(self, chosen: Ints, source: int, destination: int, copies: int) -> None:
        machine, (from_, to) = self.machine, self.rows.place[:2, chosen]
        units = np.broadcast_to(np.arange(self.rows.units), from_.shape)
        cluster = units // (self.rows.units // machine.clusters)
        reads = machine.port(source, from_, cluster, write=False)
        writes = machine.port(destination, to, cluster, write=True)
        key = reads * machine.ports + writes
        found, number = np.unique(key, return_inverse=True)
        self.route[chosen] = len(self.routes) + number.reshape(key.shape)
        per_memory = 2 if destination == SRAM else 4
        for read, write in (divmod(int(each), machine.ports) for each in found):
            in_one = destination == DRAM and read == write
            many = [] if in_one else [(write + per_memory * k, DESTINATION) for k in range(copies)]
            self.routes.append([(read, SOURCE), *many])
