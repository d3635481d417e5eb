"""How much it matters that a buffer does not have the bytes of buffers that were in use shortly before it.

A buffer that is filled with data that are there early, such as weights, can be filled while units before its own are
computed, if its bytes are free by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frustum.backend.read_code import Code, unit_of
from frustum.dialects.isa.program import Memory
from frustum.dialects.isa.sync import ExternalOp

EARLY, LATE = 4.0, 1.0
"""Worth of a byte, of buffers that could be filled early and of others."""
DISTANCE = (1.0, 1.0, 0.5, 0.25)
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


def wishes_of(wants: Sequence[Want], met: Sequence[Sequence[int]]) -> list[dict[int, float]]:
    """For each buffer those that it should share no bytes with, though it may, and what a shared byte costs."""
    wishes: list[dict[int, float]] = [{} for _ in wants]
    order = sorted(range(len(wants)), key=lambda n: wants[n].first)
    near: list[int] = []
    for number in order:
        want = wants[number]
        near = [n for n in near if want.first - wants[n].last < len(DISTANCE)]
        meets = set(met[number])
        for other in near:
            if other not in meets:
                cost = DISTANCE[max(0, want.first - wants[other].last)] * want.worth
                if cost:
                    wishes[number][other] = wishes[other][number] = cost
        near.append(number)
    return wishes
