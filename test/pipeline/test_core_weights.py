"""Weights that wait in the cores for all tiles of a unit: they come from DRAM once, and the numbers are the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from agreement import check_agreement
from happens_before import check
from networks import Net
from stops import executable, modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import ExternalOp, ProgramOp, RepeatOp
from frustum.dialects.module import MAP
from frustum.dialects.tile import MapAttr
from frustum.passes.plan.core_weights import waiting
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

CHANNELS = ((32, 3), (64, 1), (48, 3))


def chain(net, images, groups):
    """Three convolutions on several images, with more weights than SRAM has room for."""
    x = net.input(images, 16, 20, 12)
    for outputs, kernel in CHANNELS:
        x = net.conv(x, outputs, kernel, act="relu", groups=groups if kernel == 3 else 1)
    return x


def machine(clusters, sram_bytes, wram_bytes=64 << 10):
    whole = target("default" if clusters > 1 else "edge")
    core = replace(whole.core, wram=replace(whole.core.wram, capacity_bytes=wram_bytes))
    sram = replace(whole.cluster.sram, capacity_bytes=sram_bytes)
    cluster = replace(whole.cluster, sram=sram, core=core)
    return replace(whole, chip=replace(whole.chip, clusters=clusters, cluster=cluster))


@cache
def compiled(clusters=1, sram_bytes=56 << 10, wram_bytes=64 << 10, *, dtype="f16", codec="none", images=4, groups=1):
    net = Net()
    module, inputs = net.module(chain(net, images, groups))
    choices = Choices(policy="optimal", dtype=dtype, compression=codec)
    return modules_at_stops(module, machine(clusters, sram_bytes, wram_bytes), choices), inputs


def residencies(modules):
    maps = [op.attributes.get(MAP) for op in modules["tiled"].walk()]
    return [each.data.weights for each in maps if isinstance(each, MapAttr)]


KEPT = [
    ((1, 56 << 10), ["unit", "unit", "core"]),
    ((1, 40 << 10), ["core", "unit", "core"]),
    ((2, 64 << 10), ["core", "unit", "core"]),
    ((2, 40 << 10), ["core", "unit", "stream"]),
]


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize(("args", "kept"), KEPT)
def test_weights_that_sram_has_no_room_for_wait_in_the_cores(args, kept):
    modules, inputs = compiled(*args)
    assert residencies(modules) == kept
    stops = ("typed", "placed", "fixed")
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in stops}
    check_agreement(outputs, "f16")


OPTIONS = [{"dtype": "f32"}, {"codec": "huffman"}, {"groups": 8, "sram_bytes": 30 << 10}]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_numbers_are_the_same(options):
    modules, inputs = compiled(**options)
    assert "core" in residencies(modules)
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(outputs, options.get("dtype", "f16"))


@pytest.mark.slow
@pytest.mark.parametrize("args", [(2, 64 << 10)])
def test_everything_is_ordered(args):
    modules, _ = compiled(*args)
    program = next(op for op in modules["fixed"].walk() if isinstance(op, ProgramOp))
    assert check(program, args[0], 4) > 100


@pytest.mark.slow
def test_they_come_from_dram_once():
    """In the unit of a single cluster all weights are read once, though four images need them; with next to no room in
    WRAM those of the last layer are read again for each."""
    modules, _ = compiled()
    once = executable(modules["fixed"])
    again = executable(compiled(wram_bytes=8 << 10)[0]["fixed"])
    sizes = [weight_bytes(each) for each in (once, again)]
    own = 2 * sum(a * b * k * k for (a, k), b in zip(CHANNELS, (16, 32, 64), strict=True)) + 4 * (32 + 64 + 48)
    assert sizes[0] == own < sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize(("run_bytes", "inputs"), [(16, 2), (64, 4)])
def test_chunks_have_runs_that_dram_loses_nothing_with(run_bytes, inputs):
    """Of the last layer, whose input channels of an output have 9 taps of 2 bytes each, as few as are a run."""
    whole, net = machine(1, 56 << 10), Net()
    whole = replace(whole, chip=replace(whole.chip, dram=replace(whole.chip.dram, minimum_run_bytes=run_bytes)))
    module, numbers = net.module(chain(net, 4, 1))
    modules = modules_at_stops(module, whole, Choices(policy="optimal", dtype="f16"))
    assert residencies(modules)[-1] == "core"
    *_, last = [op for op in modules["lowered"].walk() if isinstance(op, CopyOp) and is_of_weights(op)]
    assert last.box.data.extent == (48, inputs, 3, 3) and run_bytes <= inputs * 9 * 2
    outputs = {stop: run_module(modules[stop], numbers, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(outputs, "f16")


def is_of_weights(op):
    return isinstance(op.src.owner, ExternalOp) and op.src.owner.class_.data == "weight"


def weight_bytes(made):
    machine = Machine(made)
    return count(machine.expanded, machine.target, made.code.page_bytes).dram_bytes_by_class["weight"]


def compiled_of_one(optimise):
    """Three convolutions on one image, of which SRAM holds some rows and not all weights."""
    net = Net()
    x = net.input(1, 16, 20, 16)
    for outputs, kernel in ((32, 3), (46, 1), (32, 3)):
        x = net.conv(x, outputs, kernel, act="relu")
    module, inputs = net.module(x)
    choices = Choices(policy="optimal", dtype="f16", compression="none", optimise=optimise)
    return modules_at_stops(module, machine(1, 28 << 10), choices), inputs


@pytest.mark.slow
@pytest.mark.soak
def test_of_one_image_where_bytes_are_to_be_few():
    """Its rows pass several times, but all weights are read once; a plan for time moves more."""
    modules, inputs = compiled_of_one("bytes")
    assert residencies(modules) == ["core", "unit", "core"]
    stops = ("typed", "placed", "fixed")
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in stops}
    check_agreement(outputs, "f16")
    program = next(op for op in modules["fixed"].walk() if isinstance(op, ProgramOp))
    assert check(program, 1, 4) > 100
    own = 2 * (32 * 16 * 9 + 46 * 32 + 32 * 46 * 9) + 4 * (32 + 46 + 32)
    made = executable(modules["fixed"])
    assert weight_bytes(made) == own
    for_time, _ = compiled_of_one("time")
    assert "core" not in residencies(for_time)
    assert dram_bytes(made) < dram_bytes(executable(for_time["fixed"]))


def dram_bytes(made):
    machine = Machine(made)
    return sum(count(machine.expanded, machine.target, made.code.page_bytes).dram_bytes_by_class.values())


@pytest.mark.slow
def test_which_the_search_lets_wait():
    """Each core's share of a layer alone may take next to all of 64 KiB, those of several layers together less."""
    kib, edge = 1 << 10, machine(1, 512 << 10)
    assert waiting([240 * kib], edge) == [True]
    assert waiting([252 * kib], edge) == [False]
    assert waiting([240 * kib, 160 * kib, 64 * kib, 16 * kib, 3 * kib], edge) == [False, True, False, True, False]


def test_filling_goes_before_the_loops_over_tiles():
    modules, _ = compiled()
    program = next(op for op in modules["lowered"].walk() if isinstance(op, ProgramOp))
    loops = [op for op in program.body.block.ops if isinstance(op, RepeatOp)]
    fills = [op for op in loops[0].walk() if isinstance(op, CopyOp) and op.dst.type.memory == "wram"]
    assert fills and fills[0].dst.owner.parent is program.body.block
    assert not any(fill.dst is op.dst for fill in fills for op in loops[1].walk() if isinstance(op, CopyOp))
