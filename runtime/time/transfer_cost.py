"""What every execution of an instruction occupies: chunks, cycles of its engine and of ports, and which ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Copy, Fetch, TableLoad
from frustum.dialects.isa.program import Engine as EngineKind
from frustum.dialects.target.durations import chunks, larger, transfer_chunk_cycles
from frustum.runtime.device.expand import DRAM, NRAM, SRAM, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.time.machine_map import MachineMap
from frustum.runtime.time.work import Workload

SOURCE, DESTINATION = 0, 1


@dataclass(frozen=True)
class CellCost:
    """Per cell (row and unit); the routes are numbered over all cells."""

    chunks: Ints  # 0: not a transfer, or an empty one
    busy: Ints  # cells, 2: engine, for a full chunk and for the last (or for computing)
    port_busy: Ints  # cells, 2 sides, 2
    latency: Ints
    route: Ints
    route_at: Ints  # routes + 1
    route_port: Ints
    route_side: Ints

    @classmethod
    def joined(cls, parts: Sequence[CellCost]) -> CellCost:
        """One after the other."""
        first_route = np.cumsum([0, *(len(part.route_at) - 1 for part in parts)])
        first_entry = np.cumsum([0, *(len(part.route_port) for part in parts)])
        return cls(
            chunks=np.concatenate([p.chunks for p in parts]),
            busy=np.concatenate([p.busy for p in parts]),
            port_busy=np.concatenate([p.port_busy for p in parts]),
            latency=np.concatenate([p.latency for p in parts]),
            route=np.concatenate([p.route + first for p, first in zip(parts, first_route, strict=False)]),
            route_at=np.concatenate(
                [
                    *(p.route_at[:-1] + first for p, first in zip(parts, first_entry, strict=False)),
                    first_entry[-1:],
                ]
            ),
            route_port=np.concatenate([p.route_port for p in parts]),
            route_side=np.concatenate([p.route_side for p in parts]),
        )


def table_cost(
    expanded: Expanded, rows: Rows, work: Workload, machine: MachineMap, page_bytes: Sequence[int]
) -> CellCost:
    """The cost of each row and unit of one table."""
    result = _Table(rows, work, machine)
    groups: dict[tuple[EngineKind, int, int, int], list[int]] = {}
    fetches: list[tuple[int, int]] = []
    for number in np.flatnonzero(np.bincount(rows.static, minlength=len(expanded.instructions))).tolist():
        instruction = expanded.instructions[number]
        if isinstance(instruction, Copy):
            source, destination = expanded.memory[number, :2].tolist()
            copies = int(expanded.copies[number, 1])
            groups.setdefault((instruction.engine, source, destination, copies), []).append(number)
        elif isinstance(instruction, Fetch):
            fetches.append((number, page_bytes[instruction.page]))
        elif isinstance(instruction, TableLoad):
            fetches.append((number, instruction.bytes))
    group = np.full(len(expanded.instructions), -1, np.int64)
    for k, members in enumerate(groups.values()):
        group[members] = k
    for k, key in enumerate(groups):
        result.add_copies(np.flatnonzero(group[rows.static] == k), *key)
    for number, size_bytes in fetches:
        result.add_fetch(rows.of(number), size_bytes)
    return result.cost()


def fetch_cost(machine: MachineMap, size_bytes: Ints) -> CellCost:
    """Fetches of code, one per cell: over the DRAM port of chip 0."""
    whole, rest, busy, port = _fetch_cycles(machine, size_bytes)
    port_busy = np.stack([port, 0 * port], axis=1)
    cells = len(size_bytes)
    latency = np.where(size_bytes > 0, machine.memory(DRAM).latency_cycles, 0)
    one = np.zeros(1, np.int64)
    return CellCost(
        whole + (rest > 0),
        busy,
        port_busy,
        latency,
        np.zeros(cells, np.int64),
        np.array([0, 1]),
        one,
        one + SOURCE,
    )


def _fetch_cycles(machine: MachineMap, size_bytes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Whole chunks, bytes of the rest, cycles of the engine `[..., 2]` and of the DRAM port `[..., 2]`."""
    whole, rest = chunks(size_bytes, machine.target.transfers.chunk_bytes)
    full = machine.target.transfers.chunk_bytes + 0 * rest
    engine, dram = machine.mover("fetch"), machine.memory(DRAM)
    pairs = [
        transfer_chunk_cycles(engine, dram, dram, size, size_bytes, size_bytes)
        for size in (full, np.where(rest > 0, rest, full))
    ]
    busy = np.stack([pair.engine for pair in pairs], axis=-1) * (size_bytes > 0)[..., None]
    port = np.stack([pair.source_port for pair in pairs], axis=-1)
    return whole, rest, busy, port


class _Table:
    """The cells of one table while they are filled."""

    def __init__(self, rows: Rows, work: Workload, machine: MachineMap) -> None:
        self.rows, self.work, self.machine = rows, work, machine
        shape = len(rows), rows.units
        self.chunks = np.zeros(shape, np.int64)
        self.busy = np.zeros((*shape, 2), np.int64)
        self.busy[..., 1] = work.cycles
        self.port_busy = np.zeros((*shape, 2, 2), np.int64)
        self.latency = np.where(work.cycles > 0, machine.memory(NRAM).latency_cycles, 0)
        self.route = np.zeros(shape, np.int64)
        self.route_ports: list[list[int]] = []
        self.route_sides: list[list[int]] = []

    def add_copies(
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
        self.route[chosen] = len(self.route_ports) + number.reshape(key.shape)
        per_memory = 2 if destination == SRAM else 4
        for read, write in (divmod(int(each), machine.ports) for each in found):
            many = (
                []
                if destination == DRAM and read == write
                else [write + per_memory * k for k in range(copies)]
            )
            self.route_ports.append([read, *many])
            self.route_sides.append([SOURCE] + [DESTINATION] * len(many))

    def add_fetch(self, chosen: Ints, size_bytes: int) -> None:
        """A page of code or a table, for all clusters by cluster 0."""
        whole, rest, busy, port = _fetch_cycles(self.machine, np.full(len(chosen), size_bytes))
        self.chunks[chosen, 0] = whole + (rest > 0)
        self.busy[chosen, 0] = busy
        self.port_busy[chosen, 0, SOURCE] = port
        self.latency[chosen, 0] = self.machine.memory(DRAM).latency_cycles * (size_bytes > 0)
        self.route[chosen, 0] = len(self.route_ports)
        self.route_ports.append([0])
        self.route_sides.append([SOURCE])

    def cost(self) -> CellCost:
        cells = self.chunks.size
        ends = np.cumsum([0, *map(len, self.route_ports)])
        return CellCost(
            self.chunks.reshape(cells), self.busy.reshape(cells, 2), self.port_busy.reshape(cells, 2, 2),
            self.latency.reshape(cells), self.route.reshape(cells), ends,
            np.array([port for ports in self.route_ports for port in ports], np.int64),
            np.array([side for sides in self.route_sides for side in sides], np.int64),
        )  # fmt: skip
