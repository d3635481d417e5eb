"""When everything of a program happens: its rows become operations of engines, and these are simulated.

What is decided here and not in `engine.py`: which ports a transfer needs, how long its chunks hold them, which
counters a wait looks at, which counters a signal reaches and when.

- Counters: one for each core slot of every core and each cluster slot of every cluster.  Where a cluster looks at
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
from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.form import Ints
from frustum.runtime.time import engine
from frustum.runtime.time.events import CounterMap, Queues, are, events, make_queues
from frustum.runtime.time.machine_map import EngineName, MachineMap
from frustum.runtime.time.transfer_cost import Tables, cell_costs
from frustum.runtime.time.work import fetched_bytes, start_bytes, work

NAMED = 12
"""Waiting instructions that a deadlock's message names at most."""


@dataclass(frozen=True)
class Timeline:
    """What every engine did, when; in cycles."""

    expanded: Expanded
    engines: tuple[EngineName, ...]
    queues: Queues
    times: engine.Times
    tables: Tables
    engine_bytes: Ints  # of transfers; of compute units: operands and results

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
    try:
        times = engine.simulate(engine.Operations(queues.offsets, depth, kind, cost, happens), compiled=compiled)
    except engine.DeadlockError as error:
        raise engine.DeadlockError(error.blocked, _deadlock(error, expanded, machine, queues, counters)) from None
    moved = [done.moved_bytes for _, done in tables]
    moved[1] = moved[1] + fetched_bytes(expanded, page_bytes)[:, None]
    cells = np.concatenate([*map(np.ravel, moved), [at_start, 0]])
    engine_bytes = np.zeros(len(machine.engines), np.int64)
    np.add.at(engine_bytes, queues.engine, cells[queues.cell])
    return Timeline(expanded, machine.engines, queues, times, tables, engine_bytes)


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
