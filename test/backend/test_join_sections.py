"""`frustum-join-sections`: where barriers stay, and what is fetched where."""

from dataclasses import replace

import pytest
from programs import copy, machine, module_of
from xdsl.context import Context
from xdsl.ir import Block, Region

from frustum.backend.file.encoder import encode
from frustum.backend.file.read_program import read_nodes
from frustum.backend.join_sections import (
    EVENT_WORDS,
    SHORTEST,
    JoinSections,
    _Section,
    kept_barriers,
    section_bytes,
)
from frustum.backend.memory.allocation import Allocate
from frustum.backend.waits.schedule import Schedule
from frustum.dialects.isa.program import Program
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, FetchOp, ProgramOp, RepeatOp


def units(count, copies=4, loops=()):
    """Units of copies to SRAM, with a barrier and a fetch before each, as the lowering writes them."""
    x = ExternalOp("x", "weight", 64, (16,), "f32")
    ops = [x, FetchOp(page=0), FetchOp(page=1)]
    for number in range(count):
        ops += [BarrierOp(), FetchOp(page=number + 2)]
        for stages in ([0] * copies, *loops):
            s, w = AllocOp("sram", 64), AllocOp("wram", 64)
            inner = [copy("gdma", x, s, stage=stage, unit=number) for stage in stages]
            inner.append(copy("bus", s, w, stage=max(stages), unit=number))
            ops += [s, w, *inner] if stages == [0] * copies else [s, w, RepeatOp(2, Region(Block(inner)))]
    return ops


def joined(target, ops, share=1.0):
    module = module_of(target, *ops)
    JoinSections(share).apply(Context(), module)
    module.verify()
    return module, module.body.block.first_op


def sections(program):
    found = [[]]
    for op in program.body.block.ops:
        if isinstance(op, BarrierOp):
            found.append([])
        found[-1].append(op)
    return found


def with_memory(target, size):
    cluster = replace(target.cluster, instruction_memory_bytes=size)
    return replace(target, chip=replace(target.chip, cluster=cluster))


def test_units_that_fit_become_one_section():
    _, program = joined(machine(2, 2), units(5))
    assert len(sections(program)) == 2
    assert [op.page.value.data for op in program.walk() if isinstance(op, FetchOp)] == [0, 1]


def test_of_as_many_sections_none_takes_all_the_room_if_it_can_be_shorter():
    """Loads that move to the section before theirs find room there."""
    sizes = [_Section(100), *(_Section(960) for _ in range(4)), *(_Section(10) for _ in range(8))]
    target = with_memory(machine(1, 1), 4000)
    full = kept_barriers(sizes, target, 1.0)
    assert full == {0, 2}, "two of 960, and 8 of 10 behind the last two: 2,000"
    assert kept_barriers(sizes, target, SHORTEST) != full
    assert JoinSections().evenly_kept(sizes, target) == full


@pytest.mark.parametrize(("missing", "pages"), [(0, 2), (1, 3)])
def test_all_code_that_memory_holds_is_one_section(missing, pages):
    program = module_of(machine(1, 2), *units(6)).body.block.first_op
    needed = sum(section_bytes(program, 6))
    _, program = joined(with_memory(machine(1, 2), needed - missing), units(6))
    assert len(sections(program)) == pages


def test_two_pages_fit_instruction_memory_and_each_is_fetched_a_section_ahead():
    target = with_memory(machine(1, 2), 4096)
    module, program = joined(target, units(12, copies=6))
    Allocate().apply(Context(), module)
    Schedule().apply(Context(), module)
    pages = encode(Program(read_nodes(program)), 4096).page_bytes
    assert 3 < len(pages) < 13
    assert all(size <= 2048 for size in pages)
    fetched = [[op.page.value.data for op in ops if isinstance(op, FetchOp)] for ops in sections(program)]
    assert fetched == [[0, 1], *([page] for page in range(2, len(pages))), []]


def test_what_a_section_is_taken_to_need_is_not_less_than_it_needs():
    module, program = joined(machine(1, 2), units(3), share=0.0)
    estimated = section_bytes(program, 3)
    Allocate().apply(Context(), module)
    Schedule().apply(Context(), module)
    real = encode(Program(read_nodes(program))).page_bytes
    assert all(a >= b for a, b in zip(estimated, real, strict=True))
    assert EVENT_WORDS > 0


@pytest.mark.parametrize(("slots", "expected"), [(40, 2), (2, 5)])
def test_a_section_that_could_need_too_many_slots_is_not_joined(slots, expected):
    loops = ([0], [0, 1])  # the loads of the second loop cannot share a slot
    target = machine(1, 1, event_slots=slots)
    _, program = joined(target, units(4, copies=1, loops=loops))
    assert len(sections(program)) == expected


def test_a_share_of_nothing_joins_nothing():
    _, program = joined(machine(1, 1), units(4), share=0.0)
    assert isinstance(program, ProgramOp)
    assert len(sections(program)) == 5
