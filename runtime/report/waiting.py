# Tests: test/runtime/report/test_screen.py
"""What a run waits for, in words: its critical path as sentences.

The path (`time/critical_path.py`) leads from the last effect back to cycle 0.  Where one piece of it holds up the next,
somebody waited for somebody: for data that were not there, for a memory whose content somebody still read, for a port,
for a signal on its way.  Cycles in which an engine worked because it was its turn are no wait: they are its own work.

Source: docs/report.md, "Waits".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from frustum.dialects.isa.program import MEMORIES, Copy
from frustum.runtime.device.expand import DRAM, Expanded
from frustum.runtime.device.form import When
from frustum.runtime.report.waits import memories_of
from frustum.runtime.time.critical_path import (
    AT_BARRIER,
    DESTINATION_PORT,
    END,
    LATENCY,
    RESULT,
    ROOM,
    SIGNAL,
    SOURCE_PORT,
    TURN,
    WORK,
)
from frustum.runtime.time.timeline import Timeline

MOST = 10
"""Sentences that a report keeps."""
DOES = {
    "gdma": "moves between DRAM and SRAM", "cdma": "sends to other clusters", "bus": "hands to the cores",
    "iodma": "brings from DRAM to the cores", "mvdma": "moves between SRAM and a core", "matrix": "multiplies",
    "vector": "computes", "fetch": "fetches code",
}  # fmt: skip


THINGS = {"weight": "weights", "input": "inputs", "output": "outputs", "intermediate": "maps", "program": "tables"}


class Waiting(NamedTuple):
    """Cycles of the critical path: what is going on, whether somebody waits, and the unit that it is for."""

    what: str
    is_wait: bool
    unit: str
    cycles: int


def waiting(timeline: Timeline) -> list[Waiting]:
    """The critical path in words, the costliest first; the cycles add up to those of the run."""
    found = Counter[tuple[str, bool, str]]()
    for (static, after, engine, next_engine, state, reason), cycles in _pairs(timeline).items():
        what, is_wait = _words(timeline, static, after, engine, next_engine, state, reason)
        found[what, is_wait, _unit(timeline, static if static >= 0 else after)] += cycles
    return [Waiting(*key, cycles) for key, cycles in found.most_common()]


def by_sentence(found: Iterable[Waiting], total: int) -> list[dict[str, Any]]:
    """As the report has it: each sentence with its cycles, its share of the run and the units it is about most."""
    cycles, units = Counter[tuple[str, bool]](), dict[tuple[str, bool], Counter[str]]()
    for each in found:
        key = each.what, each.is_wait
        cycles[key] += each.cycles
        units.setdefault(key, Counter())[each.unit] += each.cycles
    return [
        {
            "what": what, "is_wait": is_wait, "cycles": size, "share": size / total if total else 0.0,
            "units": [name for name, _ in units[what, is_wait].most_common(3) if name],
        }
        for (what, is_wait), size in cycles.most_common(MOST)
    ]  # fmt: skip


def _pairs(timeline: Timeline) -> Counter[tuple[int, int, int, int, int, int]]:
    """Cycles by instruction, the one behind it on the path, their engines, what they are spent with, and why."""
    path = timeline.critical_path
    static, engine = (each[path.operation].tolist() for each in (timeline.queues.static, timeline.queues.engine))
    found = Counter[tuple[int, int, int, int, int, int]]()
    after, behind, last = -1, -1, -1
    pieces = zip(path.operation.tolist(), static, engine, path.state.tolist(), path.reason.tolist(),
                 path.cycles.tolist(), strict=True)  # fmt: skip
    current = (-1, -1)
    for operation, number, own, state, reason, cycles in pieces:
        if operation != last:
            (after, behind), current, last = current, (number, own), operation
        found[number, after, own, behind, state, reason] += cycles
    return found


def _words(
    timeline: Timeline, static: int, after: int, engine: int, next_engine: int, state: int, reason: int
) -> tuple[str, bool]:
    """What goes on, and whether it is a wait."""
    names = timeline.engines
    kind = names[engine].kind
    expanded = timeline.expanded
    if static < 0:
        return "the code is fetched before anything starts", True
    if state in (SOURCE_PORT, DESTINATION_PORT):
        return f"{kind} waits for the port of {memories_of(expanded, static)[state - SOURCE_PORT].upper()}", True
    if state == SIGNAL:
        return "a signal is on its way to another cluster", True
    waiter = names[next_engine].kind if next_engine >= 0 else ""
    if state == LATENCY:
        target = timeline.machine.target
        slow = max(memories_of(expanded, static), key=lambda name: target.memory(name).latency_cycles)
        return f"{waiter or 'the run'} waits for the latency of {slow.upper()}", True
    assert state == WORK
    does = _does(timeline, static, kind)
    if reason in (TURN, END) or after < 0:
        return f"{kind} {does}", False
    if reason == ROOM:
        return f"{kind} waits for one of its transfers in flight to arrive", True
    if reason == AT_BARRIER:
        return f"all wait at a barrier for {kind}", True
    assert reason == RESULT
    held = _still_read(expanded, static, after)
    if held is not None:
        unit = _unit(timeline, static)
        return f"{waiter} waits for {held}{f' that {unit} still reads' if unit else ''}", True
    return f"{waiter} waits while {kind} {does}", True


def _does(timeline: Timeline, number: int, kind: str) -> str:
    """What an instruction's engine does; of transfers to and from DRAM with what."""
    expanded, instruction = timeline.expanded, timeline.expanded.instructions[number]
    if not isinstance(instruction, Copy):
        return DOES[kind]
    source, destination = expanded.memory[number, :2].tolist()
    if DRAM not in (source, destination):
        return DOES[kind]
    view, verb = (instruction.src_view, "loads") if source == DRAM else (instruction.dst_view, "stores")
    at = view.offset.base
    found = next((e for e in expanded.program.externals if e.address <= at < e.address + max(1, e.bytes)), None)
    return f"{verb} {THINGS[found.class_] if found else 'maps'}"


def _still_read(expanded: Expanded, earlier: int, later: int) -> str | None:
    """The memory that the later instruction writes while the earlier one reads it; None where it reads what that one
    has written."""
    wrote = {memory for memory in _written(expanded, earlier) if memory != DRAM}
    if wrote & _read(expanded, later):
        return None
    shared = _written(expanded, later) & _read(expanded, earlier) - {DRAM}
    return MEMORIES[min(shared)].upper() if shared else None


def _read(expanded: Expanded, number: int) -> set[int]:
    memory = expanded.memory[number].tolist()
    if isinstance(expanded.instructions[number], Copy):
        return {memory[0]}
    operands = enumerate(expanded.forms[number].operands)
    return {memory[place] for place, each in operands if each and each.reads != When.NEVER}


def _written(expanded: Expanded, number: int) -> set[int]:
    memory = expanded.memory[number].tolist()
    if isinstance(expanded.instructions[number], Copy):
        return {memory[1]}
    operands = enumerate(expanded.forms[number].operands)
    return {memory[place] for place, each in operands if each and each.writes != When.NEVER}


def _unit(timeline: Timeline, number: int) -> str:
    if number < 0:
        return ""
    units = timeline.expanded.program.units
    unit = timeline.expanded.instructions[number].unit
    return units[unit] if unit < len(units) else ""
