# Tests: test/backend/waits/test_aliasing.py
"""Where buffers and instructions stand in the loop tree, and what follows for the program order.

Plain values: `read_code.py` makes them from IR.  A *body* is the block of the program (body 0, level 0) or of a loop
(level = number of loops around its children).  A *path* leads from body 0 to a thing, one `Step` for each level.

Program order: in pass t of a loop its children run in textual order, child c with index t - stage(c).  So with
x and y under different children of one body, x at index i runs before y at index j exactly if
`(i + stage(x), position(x)) < (j + stage(y), position(y))`.  At level 0 stages mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from frustum.dialects.isa.program import CORE_ENGINES, Affine, Engine, Memory, Span

TOGETHER = 99
"""Of writes that may write the same positions again: more than the level of any buffer."""


class Step(NamedTuple):
    """The child of a body on the way to a thing; positions number all operations in textual order."""

    body: int
    position: int
    stage: int


Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer and the body that allocates it: `path` ends with the step of the allocation itself.

    Each iteration of that body has the next of `depth` copies, `bytes` apart.  A `rolling` one has a single copy with
    room for `depth` iterations: what one writes takes the place of what was needed until `depth` iterations earlier.
    """

    memory: Memory
    bytes: int
    depth: int
    path: Path
    rolling: bool = False

    @property
    def level(self) -> int:
        return len(self.path) - 1

    @property
    def total_bytes(self) -> int:
        return self.bytes if self.rolling else self.bytes * self.depth


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes that an operand touches of its buffer: `offset` is the byte of the nominal first position of `spans`,
    which are clipped (`is_clipped` False: only by their limits) and whose positions lie `strides` bytes apart.

    `peer`: the cluster in whose memory they lie, where that is not the cluster of the unit that executes.
    """

    offset: Affine
    spans: tuple[Span, ...]
    strides: tuple[int, ...]
    element_bytes: int
    is_clipped: bool = True
    peer: Affine | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """One operand of an instruction: `everywhere` if it reaches beyond the memory of the unit that executes it
    (the destination of a broadcast, a multicast or a cluster-to-cluster copy); `also_reads`: it stands for several
    operands, of which some are read and some written; `disjoint`, of a copy from a core: the level from which on all
    executions in its cluster write different positions of one copy of the buffer (`read_code.py`), else `TOGETHER`;
    `region` where it is known (None: anything of the buffer)."""

    buffer: int
    writes: bool
    everywhere: bool = False
    also_reads: bool = False
    disjoint: int = TOGETHER
    region: Region | None = None

    @property
    def reads(self) -> bool:
        return self.also_reads or not self.writes


@dataclass(frozen=True, slots=True)
class Instruction:
    """What matters for synchronisation; `counts` are those of the loops around it, outermost first.

    One of those that `take_turns` begins a pass of its outermost loop when all units are done with the pass before,
    and its first when they are done with the instruction before it that takes turns.
    """

    engine: Engine
    path: Path
    counts: tuple[int, ...]
    accesses: tuple[Access, ...]
    multicast: bool = False
    takes_turns: bool = False

    @property
    def position(self) -> int:
        return self.path[-1].position

    @property
    def on_core(self) -> bool:
        return self.engine in CORE_ENGINES

    @property
    def queue(self) -> tuple[Engine, bool]:
        """Instructions of one queue run in program order on each unit: a multicast is cluster 0's alone."""
        return (self.engine, self.multicast)


def common_level(a: Sequence[Step], b: Sequence[Step]) -> int:
    """The level of the innermost body that holds both."""
    level = 0
    last = min(len(a), len(b)) - 1
    while level < last and a[level].position == b[level].position:
        level += 1
    return level


def iterations_back(x: Step, y: Step) -> int:
    """The least r such that x at index i - r runs before y at index i, both children of one loop body.

    Negative where x runs ahead: its stage is smaller.
    """
    return x.stage - y.stage + (x.position >= y.position)


def ends_later(a: Instruction, b: Instruction, level: int) -> bool:
    """Whether the last execution of a, within one execution of a body at `level` that holds both, is after b's."""
    at = max(level, common_level(a.path, b.path))
    x, y = a.path[at], b.path[at]
    if at == 0:
        return x.position > y.position
    return (x.stage, x.position) > (y.stage, y.position)
