"""Weights that stay in WRAM from tile to tile: they cross the bus once, and the numbers are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import check_agreement
from happens_before import check
from networks import Net
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine
from frustum.dialects.isa.sync import ProgramOp
from frustum.passes.lower.unit.kept_weights import WramNeed, staying


def chain(net):
    """Three convolutions, which run in steps of rows where SRAM is small."""
    x = net.input(1, 4, 40, 24)
    for outputs, kernel in ((8, 3), (8, 1), (4, 3)):
        x = net.conv(x, outputs, kernel, act="relu")
    return x


def small(wram_bytes=None):
    """`edge` with SRAM in which the chain takes several steps."""
    whole = target("edge")
    core = whole.core if wram_bytes is None else replace(
        whole.core, wram=replace(whole.core.wram, capacity_bytes=wram_bytes)
    )  # fmt: skip
    sram = replace(whole.cluster.sram, capacity_bytes=24 << 10)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram, core=core)))


def compiled(machine, dtype="f32", codec="none"):
    net = Net()
    module, inputs = net.module(chain(net))
    choices = Choices(policy="optimal", dtype=dtype, compression=codec)
    return modules_at_stops(module, machine, choices), inputs


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_numbers_are_the_same(dtype):
    modules, inputs = compiled(small(), dtype)
    stops = ("typed", "placed", "fixed")
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in stops}
    check_agreement(outputs, dtype)


@pytest.mark.slow
def test_everything_is_ordered():
    modules, _ = compiled(small())
    program = next(op for op in modules["fixed"].walk() if isinstance(op, ProgramOp))
    assert check(program, 1, 4) > 100


def copies_into_wram(modules):
    """Of weights, not of biases, which have one number per output channel."""
    into = (op for op in modules["lowered"].walk() if isinstance(op, CopyOp) and op.dst.type.memory == "wram")
    return [op for op in into if op.dst_view.data.strides[0]]


@pytest.mark.slow
def test_boxes_are_empty_behind_the_first_tile():
    """Eight outputs: 32 fewer in each step.  The last layer's come in chunks of inputs, again in each step."""
    modules, _ = compiled(small())
    limits = [op.box.data.limit[0] for op in copies_into_wram(modules)]
    assert limits == [Affine(8, (-32,)), Affine(8, (-32,)), None]


@pytest.mark.slow
def test_where_wram_has_no_room_they_come_again():
    """Three layers in 1 KiB: in a run all of them must have room at once."""
    modules, _ = compiled(small(wram_bytes=1 << 10))
    assert [op.box.data.limit[0] for op in copies_into_wram(modules)].count(None) > 1


@pytest.mark.slow
def test_compressed_weights_have_no_slots_for_tiles_behind_the_first():
    modules, inputs = compiled(small(), "f16", "huffman")
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(outputs, "f16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needs", "capacity", "stays"),
    [
        ([(10, 0, True), (20, 0, True)], 30, [True, True]),
        ([(10, 0, True), (20, 0, True)], 29, [False, False]),  # the second has no room beside the first
        ([(10, 0, True), (20, 0, True), (15, 0, True)], 30, [True, False, False]),
        ([(10, 4, True), (20, 2, True)], 33, [True, False]),
        ([(10, 4, True), (20, 2, True)], 34, [True, True]),
        ([(10, 0, False), (5, 0, True)], 15, [False, True]),
        ([None, (5, 0, True)], 5, [False, True]),
    ],
)
def test_the_smallest_stay_while_the_others_have_room(needs, capacity, stays):
    assert staying([None if need is None else WramNeed(*need) for need in needs], capacity) == stays
