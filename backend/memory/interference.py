"""Which buffers must not share memory: those that are in use at the same time, in the program order or nearly.

Within the body that allocates it, a buffer lives from the first to the last child that uses it, a loop counted as a
whole.  It lives through the whole body where it has several copies, is rolling or is used by children of different
stages: such buffers are there so that their engines overlap, which sharing would undo (and what rolls, stays).  For
the same reason buffers inside children of different stages of any loop do not share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frustum.backend.waits.loop_tree import Buffer, Path


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
