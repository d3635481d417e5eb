"""The pass that takes barriers away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.backend.file.encoder import encode
from frustum.backend.file.read_program import read_nodes
from frustum.backend.waits.counters import least_slots
from frustum.backend.waits.read_code import read_code, target_of
from frustum.dialects.extents import aligned
from frustum.dialects.isa.format import WORD_BYTES
from frustum.dialects.isa.instruction import Instruction
from frustum.dialects.isa.program import CORE_ENGINES, Engine, Program
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, FetchOp, ProgramOp
from frustum.dialects.target import Target

SHORTER = 0.97
"""Of the share: by so much sections get shorter while they stay as many."""
SHORTEST = 0.95
"""Of the share: no shorter.  Measured, without the places of short loads in order: resnet50 int8 on a machine of one
core with 8 MiB of SRAM 1,657,231 cycles, with 1 1,661,520, for code beside loads that move did not fit; inception_v1
f16, `default`, 181,475 with both, 182,828 with 0.8."""
EVENT_WORDS = 6
"""Words of an instruction's events, which do not stand yet: two waits and values that no other wait has.
Measured on the zoo: at most 5.6 a section."""


@dataclass(frozen=True)
class JoinSections(ModulePass):
    """Make one section of those that follow each other, as long as the machine has room for it.

    Before: a barrier and a fetch stand between units.  After: only where the code before and behind would not be in
    half of the instruction memory (the next page arrives while a page runs, so two are in it), or where a section
    could need more event slots than a cluster has.  The page after next is fetched at the start of each section, and
    what was in the program's first section stays in a section of its own.  Where as many sections do, they are up to a
    twentieth shorter: loads that move to the section before theirs (`hoist_loads.py`) find room there.

    Joined sections have their buffers, their counters and their engines in common: the loads of a unit run ahead of the
    computations of the unit before.

    All the code is one section where the machine has room for all of it.

    `share` is the part of those limits that joined sections may take; 0 joins none.  The code is smaller than what is
    known of it here, so that shares slightly above 1 may do; the encoder finds out.
    """

    name = "frustum-join-sections"

    share: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in op.walk():
            if isinstance(program, ProgramOp):
                self.join(program, target)

    def join(self, program: ProgramOp, target: Target) -> None:
        barriers = [op for op in program.body.block.ops if isinstance(op, BarrierOp)]
        code = read_code(program)
        sections = [
            _Section(size, least_slots(section.instructions))
            for size, section in zip(section_bytes(program, len(barriers)), code.sections, strict=True)
        ]
        kept = self.evenly_kept(sections, target)
        for number, barrier in enumerate(barriers):
            if number not in kept:
                barrier.detach()
                barrier.erase()
        fetch_pages_ahead(program)

    def evenly_kept(self, sections: Sequence[_Section], target: Target) -> set[int]:
        """The barriers that stay: no more than with all room that there is, with sections as short as that allows, so
        that loads can move from one to the one before."""
        share, kept = self.share, kept_barriers(sections, target, self.share)
        while share > SHORTEST * self.share:
            share *= SHORTER
            fewer = kept_barriers(sections, target, share)
            if len(fewer) > len(kept):
                break
            kept = fewer
        return kept


def kept_barriers(sections: Sequence[_Section], target: Target, share: float) -> set[int]:
    """The barriers that stay where joined sections may take a share of what the machine has room for."""
    kept, joined = {0}, _Section()
    whole = reduce(_Section.with_, sections, _Section())
    for number, section in enumerate(sections[1:]):
        if whole.fits(target, 2 * share):
            break
        joined = section if number in kept else joined.with_(section)
        if number not in kept and not joined.fits(target, share):
            kept.add(number)
            joined = section
    return kept


@dataclass(frozen=True)
class _Section:
    """The code between two barriers: bytes, and event slots as `least_slots` counts them."""

    bytes: int = 0
    slots: Mapping[tuple[Engine, bool], tuple[int, int]] = field(default_factory=dict)

    def with_(self, other: _Section) -> _Section:
        slots = dict(self.slots)
        for queue, (straight, loops) in other.slots.items():
            before = slots.get(queue, (0, 0))
            slots[queue] = (max(straight, before[0]), max(loops, before[1]))
        return _Section(self.bytes + other.bytes, slots)

    def fits(self, target: Target, share: float) -> bool:
        cluster = target.cluster
        cores = {True: cluster.cores, False: 1}
        slots = sum(sum(n) * cores[queue[0] in CORE_ENGINES] for queue, n in self.slots.items())
        return (
            self.bytes <= share * cluster.instruction_memory_bytes // 2
            and slots <= min(1, share) * cluster.event_slots
        )


def section_bytes(program: ProgramOp, barriers: int) -> list[int]:
    """The same of one without addresses: it is encoded with some of no meaning."""
    storage = [op for op in program.walk() if isinstance(op, AllocOp | ExternalOp)]
    address = 0
    for op in storage:
        op.properties["address"] = IntegerAttr(address, i64)
        address += aligned(op.bytes.value.data)
    try:
        return code_bytes(program, barriers)
    finally:
        for op in storage:
            del op.properties["address"]


def code_bytes(program: ProgramOp, barriers: int) -> list[int]:
    """What each section's code takes at most, once it has events, of a program with addresses."""
    sizes = list(encode(Program(read_nodes(program))).page_bytes)
    sizes += [0] * (barriers + 1 - len(sizes))
    for number, child in _numbered(program):
        sizes[number] += EVENT_WORDS * WORD_BYTES * sum(isinstance(op, Instruction) for op in child.walk())
    return sizes


def _numbered(program: ProgramOp) -> Iterator[tuple[int, Operation]]:
    """The children of a program, each with the number of its section."""
    number = 0
    for op in program.body.block.ops:
        yield number, op
        number += isinstance(op, BarrierOp)


def fetch_pages_ahead(program: ProgramOp) -> None:
    """Fetch page 0 and 1 in the first section, page k + 1 at the start of section k; nothing else."""
    block = program.body.block
    for op in [op for op in program.walk() if isinstance(op, FetchOp)]:
        op.detach()
        op.erase()
    barriers = [op for op in block.ops if isinstance(op, BarrierOp)]
    first = next((op for op in block.ops if not isinstance(op, ExternalOp)), None)
    if first is None:
        return
    block.insert_ops_before([FetchOp(page=page) for page in range(min(2, len(barriers) + 1))], first)
    for page, barrier in enumerate(barriers[:-1], 2):
        block.insert_op_after(FetchOp(page=page), barrier)
