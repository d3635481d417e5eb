"""How much it matters that a buffer does not have the bytes of buffers that were in use shortly before it.

A buffer that is filled with data that are there early, such as weights, can be filled while units before its own are
computed, if its bytes are free by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from frustum.backend.waits.read_code import Code, unit_of
from frustum.dialects.isa.program import Memory
from frustum.dialects.isa.sync import ExternalOp

EARLY, LATE = 4.0, 1.0
"""Worth of a byte, of buffers that could be filled early and of others."""
DISTANCE = (1.0, 1.0, 0.5, 0.4, 0.3)
"""Worth by how many units lie between two buffers; 0 beyond."""


@dataclass(frozen=True, slots=True)
class Want:
    """The units of a buffer's first and last use, and what it is worth to be filled early."""

    first: int
    last: int
    worth: float


def wants_of(code: Code) -> list[Want]:
    """Of each buffer of a program."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    worth: dict[int, float] = {}
    for section in code.sections:
        for instruction, operation in zip(section.instructions, section.operations, strict=True):
            unit = unit_of(operation)
            for access in instruction.accesses:
                first[access.buffer] = min(unit, first.get(access.buffer, unit))
                last[access.buffer] = max(unit, last.get(access.buffer, unit))
                if access.writes:
                    sources = [a.buffer for a in instruction.accesses if not a.writes]
                    memory = code.buffers[access.buffer].memory
                    early = all(_is_early(code, memory, source) for source in sources)
                    worth[access.buffer] = max(worth.get(access.buffer, 0.0), EARLY if early else LATE)
    return [Want(first.get(n, 0), last.get(n, 0), worth.get(n, 0.0)) for n in range(len(code.buffers))]


def _is_early(code: Code, memory: Memory, source: int) -> bool:
    """Whether what is copied to this memory may be there long before the unit that needs it."""
    storage = code.storage[source]
    return memory == "wram" or (isinstance(storage, ExternalOp) and storage.class_.data != "intermediate")


def wishes_of(
    wants: Sequence[Want], interfering: Sequence[Sequence[int]], loaded: Sequence[int] = (), ahead_bytes: int = 0
) -> list[dict[int, float]]:
    """For each buffer those that it should share no bytes with, though it may, and what a shared byte costs.

    By how many units lie between two, or with `ahead_bytes` by what these load: nothing from so much on.  `loaded`:
    what is loaded into each buffer.
    """
    before = _loaded_before(wants, loaded) if ahead_bytes else []

    def near_by(want: Want, other: Want) -> float:
        units = max(0, want.first - other.last)
        if not ahead_bytes:
            return DISTANCE[units] if units < len(DISTANCE) else 0.0
        between = before[want.first] - before[other.last + 1] if units > 1 else 0
        return max(0.0, 1.0 - between / ahead_bytes)

    wishes: list[dict[int, float]] = [{} for _ in wants]
    order = sorted(range(len(wants)), key=lambda n: wants[n].first)
    near: list[int] = []
    for number in order:
        want = wants[number]
        costs = [(n, near_by(want, wants[n])) for n in near]
        near = [n for n, cost in costs if cost]
        meets = set(interfering[number])
        for other, cost in costs:
            if cost and other not in meets:
                wishes[number][other] = wishes[other][number] = cost * want.worth
        near.append(number)
    return wishes


def _loaded_before(wants: Sequence[Want], loaded: Sequence[int]) -> list[int]:
    """The bytes that all units before each one load."""
    own = [0] * (max((want.last for want in wants), default=0) + 2)
    for want, size in zip(wants, loaded, strict=True):
        own[want.first] += size
    return [0, *accumulate(own)]
