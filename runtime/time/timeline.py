"""When everything of a program happens: its rows become operations of engines, and these are simulated.

What is decided here and not in `engine.py`: which ports a transfer needs, how long its chunks hold them, which
counters a wait looks at, which counters a signal reaches and when.

- CounterMap: one for each core slot of every core and each cluster slot of every cluster.  Where a cluster looks at
  counters of another one it sees them `SRAM latency` late: such a counter has a second one, the remote view, which
  every signal reaches that much later.
- The signal of a multicast goes to the counter of every cluster, to others than its own after the SRAM latency.
- Code that no instruction fetches is fetched before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frustum.dialects.isa.program import Barrier, Hold
from frustum.dialects.target import Target
from frustum.runtime.device.expand import Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.time import engine
from frustum.runtime.time.engine import BARRIER, COMPUTE, TRANSFER, DeadlockError, Operations, Times
from frustum.runtime.time.events import EventLists, Queues, are, events, make_queues
from frustum.runtime.time.machine_map import EngineName, MachineMap
from frustum.runtime.time.transfer_cost import CellCost, fetch_cost, table_cost
from frustum.runtime.time.work import Workload, fetched_bytes, start_bytes, work

NAMED = 12
"""Waiting instructions that a deadlock's message names at most."""


@dataclass(frozen=True)
class Timeline:
    """What every engine did, when; in cycles."""

    expanded: Expanded
    engines: tuple[EngineName, ...]
    queues: Queues
    times: Times
    core_work: Workload
    cluster_work: Workload
    engine_bytes: Ints  # of transfers; of compute units: operands and results

    @property
    def tables(self) -> tuple[tuple[Rows, Workload], tuple[Rows, Workload]]:
        """The rows with what they do, for `counters.count`."""
        return (self.expanded.core, self.core_work), (self.expanded.cluster, self.cluster_work)

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

    def of_rows(self, values: Ints) -> tuple[Ints, Ints]:
        """Values of operations by row and unit, `[rows, units]` of core and cluster table; 0 where none is.

        A barrier stands for every engine; its value is the last.
        """
        core, cluster = self.expanded.core, self.expanded.cluster
        cells = np.zeros(len(core) * core.units + len(cluster) * cluster.units + 2, np.int64)
        np.maximum.at(cells, self.queues.cell, values)
        split = len(core) * core.units
        return cells[:split].reshape(-1, core.units), cells[split:-2].reshape(-1, cluster.units)


def simulate(
    expanded: Expanded, target: Target, page_bytes: Sequence[int] = (), *, compiled: bool = True
) -> Timeline:
    """The timeline of a program on the target; `page_bytes`: sizes of the pages of its code.

    Raises `DeadlockError` that names the instructions which wait for ever.
    """
    machine = MachineMap(target, expanded.clusters, expanded.cores)
    core_work = work(expanded, expanded.core, target)
    cluster_work = work(expanded, expanded.cluster, target)
    at_start = start_bytes(expanded.instructions, page_bytes)
    cost = _cost(expanded, machine, core_work, cluster_work, page_bytes, at_start)
    queues = make_queues(expanded, machine, at_start > 0)
    happens = events(expanded, target, queues.cell, queues.static)
    operations = _operations(expanded, machine, queues, cost, happens)
    try:
        times = engine.simulate(operations, compiled=compiled)
    except DeadlockError as error:
        raise DeadlockError(error.blocked, _deadlock(error, expanded, machine, queues, happens)) from None
    engine_bytes = _engine_bytes(expanded, machine, queues, core_work, cluster_work, page_bytes, at_start)
    return Timeline(expanded, machine.engines, queues, times, core_work, cluster_work, engine_bytes)


# --- operations --------------------------------------------------------------------------------------------


def _cost(
    expanded: Expanded,
    machine: MachineMap,
    core_work: Workload,
    cluster_work: Workload,
    page_bytes: Sequence[int],
    at_start: int,
) -> CellCost:
    """What every cell occupies."""
    core = table_cost(expanded, expanded.core, core_work, machine, ())
    cluster = table_cost(expanded, expanded.cluster, cluster_work, machine, page_bytes)
    start = fetch_cost(machine, np.array([at_start, 0]))
    return CellCost.joined((core, cluster, start))


def _operations(
    expanded: Expanded, machine: MachineMap, queues: Queues, cost: CellCost, happens: EventLists
) -> Operations:
    cell = queues.cell
    is_transfer = cost.chunks[cell] > 0
    kind = np.where(is_transfer, TRANSFER, COMPUTE)
    kind[np.append(are(expanded.instructions, Barrier), False)[queues.static]] = BARRIER
    in_flight = machine.target.transfers.in_flight
    return Operations(
        queue=queues.offsets,
        depth=np.array([in_flight if name.is_dma else 0 for name in machine.engines], np.int64),
        kind=kind,
        chunks=cost.chunks[cell],
        busy=cost.busy[cell],
        port_busy=cost.port_busy[cell],
        route=cost.route[cell],
        latency=cost.latency[cell],
        wait_at=happens.wait_at,
        wait_group=happens.wait_group,
        wait_value=happens.wait_value,
        signal=happens.signal,
        signal_at=happens.signal_at,
        signal_counter=happens.signal_counter,
        signal_delay=happens.signal_delay,
        route_at=cost.route_at,
        route_port=cost.route_port,
        route_side=cost.route_side,
        group_at=happens.group_at,
        group_counter=happens.group_counter,
    )


def _engine_bytes(
    expanded: Expanded,
    machine: MachineMap,
    queues: Queues,
    core_work: Workload,
    cluster_work: Workload,
    page_bytes: Sequence[int],
    at_start: int,
) -> Ints:
    moved = cluster_work.moved_bytes + fetched_bytes(expanded, page_bytes)[:, None]
    cells = np.concatenate([core_work.moved_bytes.ravel(), moved.ravel(), [at_start, 0]])
    totals = np.zeros(len(machine.engines), np.int64)
    np.add.at(totals, queues.engine, cells[queues.cell])
    return totals


# --- deadlock ----------------------------------------------------------------------------------------------


def _deadlock(
    error: DeadlockError, expanded: Expanded, machine: MachineMap, queues: Queues, happens: EventLists
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
            lines.append(f"{who} {happens.name_of(each.counter)} to reach {each.needed}; it is {each.found}")
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
