# Tests: test/runtime/time/test_critical_path.py
"""What a run's cycles went to: its critical path by unit, layer, engine and cause.

Every cycle is in exactly one `Wait`.  The fetch of the code at the start belongs to the unit that it holds up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from frustum.dialects.isa.program import MEMORIES, Copy, Instruction
from frustum.runtime.device.expand import DRAM, NRAM, Expanded
from frustum.runtime.time.critical_path import (
    DESTINATION_PORT,
    LATENCY,
    REASONS,
    SIGNAL,
    SOURCE_PORT,
    STATES,
)
from frustum.runtime.time.timeline import Timeline

CODE = "code"
"""What the fetch at the start is on."""


class Wait(NamedTuple):
    """Cycles that an engine spent for one cause.

    `for_`: `work`, `port` or `latency`; `on`: the layer that the engine works on, the memory of the port with the
    direction, or the memory (`signal`: the other cluster) that is slow to answer; `why`: what the next piece of the
    path needed of this one (`critical_path.REASONS`).
    """

    unit: int
    layer: int
    engine: str
    for_: str
    on: str
    why: str
    cycles: int


def waits(timeline: Timeline) -> list[Wait]:
    """The cycles of a timed run by cause, the costliest first; -1: no unit or layer, where the run has none."""
    path = timeline.critical_path
    names = [str(name) for name in timeline.engines]
    totals = Counter[tuple[int, int, str, str, str, str]]()
    static = timeline.queues.static[path.operation].tolist()
    engines = timeline.queues.engine[path.operation].tolist()
    unit, layer = _first(timeline, static)
    pieces = zip(
        static, engines, path.state.tolist(), path.reason.tolist(), path.cycles.tolist(), strict=True
    )
    for number, engine, state, reason, cycles in pieces:
        if number >= 0:
            instruction = timeline.expanded.instructions[number]
            unit, layer = instruction.unit, instruction.layer
        on = _on(timeline, number, state)
        totals[unit, layer, names[engine], STATES[state], on, REASONS[reason]] += cycles
    return [Wait(*key, cycles) for key, cycles in totals.most_common()]


def merged(found: Iterable[Wait], *fields: str) -> dict[tuple[str | int, ...], int]:
    """Cycles by these fields alone, the costliest first."""
    totals = Counter[tuple[str | int, ...]]()
    for each in found:
        totals[tuple(getattr(each, name) for name in fields)] += each.cycles
    return dict(totals.most_common())


class PieceTime(NamedTuple):
    """A piece of a chain: its name, its timeline, when it starts."""

    name: str
    timeline: Timeline
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.timeline.total_cycles


def waits_of_units(pieces: Sequence[PieceTime]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """By piece and unit what its cycles of the run went to, the costliest first.

    Only pieces on the way back from the end of the last one to cycle 0 have any; what passes between two of them (a
    `move` from chip to chip, or over the host link) belongs to the unit that waits for it.
    """
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    piece = max(pieces, key=lambda each: each.stop, default=None)
    while piece is not None:
        those = waits(piece.timeline)
        for each in those:
            found.setdefault((piece.name, each.unit), []).append(
                {
                    "engine": each.engine,
                    "for": each.for_,
                    "on": each.on,
                    "why": each.why,
                    "cycles": each.cycles,
                }
            )
        start = piece.start
        earlier = [
            each for each in pieces if each.stop <= start and each is not piece and each.timeline.total_cycles
        ]
        before = max(earlier, key=lambda each: each.stop, default=None)
        gap = start - (before.stop if before else 0)
        if gap and those:
            unit = min(each.unit for each in those)
            on = before.name if before else "host"
            moved = {"engine": "link", "for": "move", "on": on, "why": "result", "cycles": gap}
            found[piece.name, unit].append(moved)
        piece = before
    return found


def _first(timeline: Timeline, static: list[int]) -> tuple[int, int]:
    """Unit and layer of the last instruction on the path."""
    known = next((timeline.expanded.instructions[number] for number in static if number >= 0), None)
    return (-1, -1) if known is None else (known.unit, known.layer)


def _on(timeline: Timeline, number: int, state: int) -> str:
    """Whom a piece of the path waits for, or works on."""
    if state == SIGNAL:
        return "signal"
    if number < 0:
        return CODE if state not in (LATENCY, SOURCE_PORT) else MEMORIES[DRAM]
    instruction = timeline.expanded.instructions[number]
    if state in (SOURCE_PORT, DESTINATION_PORT):
        side = state - SOURCE_PORT
        memory = memories_of(timeline.expanded, number)[side]
        return memory if memory == MEMORIES[DRAM] else f"{memory} {('read', 'write')[side]}"
    if state == LATENCY:
        target = timeline.machine.target
        return max(
            memories_of(timeline.expanded, number), key=lambda name: target.memory(name).latency_cycles
        )
    layers = timeline.expanded.program.layers
    return layers[instruction.layer] if instruction.layer < len(layers) else f"layer {instruction.layer}"


def memories_of(expanded: Expanded, number: int) -> tuple[str, str]:
    """Where a transfer reads and writes; a fetch reads DRAM, a compute unit NRAM."""
    instruction: Instruction = expanded.instructions[number]
    if not isinstance(instruction, Copy):
        kind = DRAM if instruction.engine == "fetch" else NRAM
        return MEMORIES[kind], MEMORIES[kind]
    source, destination = expanded.memory[number, :2].tolist()
    return MEMORIES[source], MEMORIES[destination]
