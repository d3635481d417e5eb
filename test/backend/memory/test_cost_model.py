"""The coarse model of time that compares places in SRAM."""

from __future__ import annotations

from math import ceil

import pytest
from programs import copy, machine, module_of, unary
from xdsl.ir import Block, Region

from frustum.backend.memory.cost_model import CostModel
from frustum.backend.waits.read_code import read_code
from frustum.dialects.isa.attributes import BoxAttr
from frustum.dialects.isa.program import Affine, Box, Span
from frustum.dialects.isa.sync import AllocOp, ExternalOp, RepeatOp

WORDS = 1 << 12
"""Of each load, 4 bytes each."""
TARGET = machine(1, 1)
LOADED = WORDS * 4 / TARGET.memory("dram").port_bytes_per_cycle
MOVED = WORDS * 4 / TARGET.core.mvdma.bytes_per_cycle


def sized(op, words=WORDS):
    """The same over so many words."""
    op.properties["box"] = BoxAttr(Box.of(*(Span(Affine(), n, n) for n in (1, 1, 1, words))))
    return op


def forecast_of(*ops):
    code = read_code(module_of(TARGET, *ops).body.block.first_op)
    return code, CostModel(code, TARGET)


def test_a_loop_takes_as_long_as_what_takes_longest_in_it():
    """Loading takes less than moving on to the core; only the first load is waited for."""
    passes, x = 8, ExternalOp("x", "weight", 4 * WORDS, (WORDS,), "f32")
    ring, near = AllocOp("sram", 4 * WORDS, 2), AllocOp("nram", 4 * WORDS, 2)
    body = [ring, near, sized(copy("gdma", x, ring)), sized(copy("mvdma", ring, near, stage=1))]
    code, cost_model = forecast_of(x, RepeatOp(passes, Region(Block(body))))
    assert LOADED < MOVED
    assert cost_model.cycles({code.numbers[ring.buffer]: 0}) == pytest.approx(LOADED + passes * MOVED)


@pytest.mark.parametrize("depth", [2, 5, 32])
def test_copies_that_are_few_for_many_passes_let_loads_run_ahead_too(depth):
    """Of 64 passes a part of a loop would be more than what lies in SRAM."""
    passes, x = 64, ExternalOp("x", "weight", 4 * WORDS, (WORDS,), "f32")
    ring, near = AllocOp("sram", 4 * WORDS, depth), AllocOp("nram", 4 * WORDS, 2)
    body = [ring, near, sized(copy("gdma", x, ring)), sized(copy("mvdma", ring, near, stage=1))]
    code, cost_model = forecast_of(x, RepeatOp(passes, Region(Block(body))))
    assert cost_model.cycles({code.numbers[ring.buffer]: 0}) < 1.1 * passes * MOVED


@pytest.mark.parametrize("apart", [True, False])
def test_a_load_waits_for_those_who_use_what_had_its_bytes_before(apart):
    """Two loads, each with what uses it: side by side the second comes while the first is used."""
    x = ExternalOp("x", "weight", 4 * WORDS, (WORDS,), "f32")
    near = AllocOp("nram", 4 * WORDS)
    first, second = AllocOp("sram", 4 * WORDS), AllocOp("sram", 4 * WORDS)
    ops = [x, near, first, second]
    for held in (first, second):
        ops += [sized(copy("gdma", x, held)), sized(copy("mvdma", held, near))]
    code, cost_model = forecast_of(*ops)
    places = {code.numbers[first.buffer]: 0, code.numbers[second.buffer]: 4 * WORDS if apart else 0}
    assert cost_model.cycles(places) == pytest.approx((1 if apart else 2) * LOADED + 2 * MOVED)


def test_vector_work_counts():
    near = AllocOp("nram", 4 * WORDS)
    _, cost_model = forecast_of(near, sized(unary(near, near)))
    assert cost_model.cycles({}) >= ceil(WORDS / TARGET.core.vector.lanes)
