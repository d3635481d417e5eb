# Tests: test/backend/memory/test_allocation.py
"""Which buffers must not share memory: those that are in use at the same time, in the program order or nearly.

Within the body that allocates it, a buffer lives from the first to the last child that uses it, a loop counted as a
whole.  It lives through the whole body where it has several copies, is rolling or is used by children of different
stages: such buffers are there so that their engines overlap, which sharing would undo (and what rolls, stays).  For
the same reason buffers inside children of different stages of any loop do not share.

And which had better not (prefetch): a buffer that is filled with data that are there early, such as
weights, can be filled while units before its own are computed, if its bytes are free by then: so it matters that they
are not those of buffers that were in use shortly before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from frustum.backend.waits.loop_tree import Buffer, Path
from frustum.backend.waits.read_code import Code, unit_of
from frustum.dialects.isa.program import Memory
from frustum.dialects.isa.sync import ExternalOp


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer and its use: `path` as in `Buffer`; children of its body at positions [start, stop], all of one stage,
    or the whole body (`stage` None)."""

    path: Path
    start: int
    stop: int
    stage: int | None


def life_of(buffer: Buffer, uses: Sequence[Path]) -> Life:
    """The life of a buffer that the instructions at these paths use."""
    level = buffer.level
    steps = [path[level] for path in uses] or [buffer.path[level]]
    positions = [step.position for step in steps]
    stages = {step.stage for step in steps} if level else {0}
    whole = level > 0 and (buffer.depth > 1 or buffer.rolling or len(stages) > 1)
    return Life(buffer.path, min(positions), max(positions), None if whole else stages.pop())


def interfere(a: Life, b: Life) -> bool:
    """Whether two buffers must not share memory."""
    if len(a.path) > len(b.path):
        a, b = b, a
    last = len(a.path) - 1
    for level in range(last):
        x, y = a.path[level], b.path[level]
        if x.position != y.position:
            return level > 0 and x.stage != y.stage
    if len(b.path) > len(a.path):  # b lies in the body of a, or in a loop beside it
        return _interferes_with_child(a, b, last)
    if a.stage is None or b.stage is None or a.stage != b.stage:
        return True
    return a.start <= b.stop and b.start <= a.stop


def _interferes_with_child(a: Life, b: Life, level: int) -> bool:
    child = b.path[level]
    if a.stage is None or (level > 0 and child.stage != a.stage):
        return True
    return a.start <= child.position <= a.stop


def interference(lives: Sequence[Life]) -> list[list[int]]:
    """For each life the others it meets."""
    interfering: list[list[int]] = [[] for _ in lives]
    alive: list[int] = []
    for number in sorted(range(len(lives)), key=lambda n: outermost(lives[n])):
        start, _ = outermost(lives[number])
        alive = [n for n in alive if outermost(lives[n])[1] >= start]
        for other in alive:
            if interfere(lives[other], lives[number]):
                interfering[other].append(number)
                interfering[number].append(other)
        alive.append(number)
    return interfering


def outermost(life: Life) -> tuple[int, int]:
    """Positions of the first and last child of the program that use the buffer."""
    if len(life.path) > 1:
        return life.path[0].position, life.path[0].position
    return life.start, life.stop


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
