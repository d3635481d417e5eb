"""Every instruction that `program.py` declares has all it needs: what is missing is named."""

from typing import get_args

import pytest
from random_program import Maker

from frustum.backend import targets
from frustum.dialects.isa import format as f
from frustum.dialects.isa import operations
from frustum.dialects.isa import program as p
from frustum.dialects.isa.format import FIELDS_OF_TYPE
from frustum.dialects.isa.instruction import OPERATIONS
from frustum.dialects.target.durations import vector_passes
from frustum.runtime.device import matrix, vector
from frustum.runtime.device.effects import effect
from frustum.runtime.device.form import form
from frustum.runtime.time.work import steps

DECLARED = {each for each in vars(p).values() if isinstance(each, type) and "OPCODE" in vars(each)}
COMPUTING = {each for each in DECLARED if getattr(each, "engine", None) in ("matrix", "vector")} - {
    p.LineBuffer
}


def test_all_are_instructions_with_an_operation():
    assert set(get_args(p.Instruction)) == DECLARED
    assert set(OPERATIONS) == DECLARED
    assert set(operations.INSTRUCTIONS) == set(OPERATIONS.values())


def test_opcodes_and_names_are_their_own():
    assert len({each.OPCODE for each in DECLARED}) == len({each.NAME for each in DECLARED}) == len(DECLARED)


def test_all_that_compute_have_an_effect():
    assert vector.effect is matrix.effect is effect
    assert not COMPUTING - set(effect.registry)


def test_windows_stand_in_a_form():
    windowed = {each for each in DECLARED if any(field.type is p.Span for field in FIELDS_OF_TYPE[each])}
    assert not windowed - set(form.registry)


@pytest.mark.parametrize("type_", sorted(COMPUTING - {p.Conv}, key=lambda each: each.NAME))
def test_all_of_the_vector_unit_take_time(type_):
    maker, unit = Maker(1), targets.load("default").core.vector
    fields = {field.name: maker.value(field.kind) for field in FIELDS_OF_TYPE[type_]}
    assert all(vector_passes(unit, *step) >= 0 for step in steps(type_(**fields)))


def test_no_two_formats_have_one_opcode():
    opcodes = [form.opcode for form in (*f.SETUP_FORMATS, f.REPEAT_FORMAT, *f.INSTRUCTION_FORMATS)]
    assert len(set(opcodes)) == len(opcodes)
