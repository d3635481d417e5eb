"""Whole networks through the line buffer: results, counts and cycles of both modes and of the mode chosen."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from every_operation import network
from integer_networks import IntegerNet
from stops import modules_at_stops
from xdsl.context import Context

from frustum.backend.executables import executable_of
from frustum.backend.memory.allocation import Allocate
from frustum.backend.pipeline import Choices
from frustum.backend.waits.schedule import Schedule
from frustum.dialects.isa.program import Conv
from frustum.passes.lower.choose_line_buffer import ChooseLineBuffer
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count
from frustum.runtime.time.work import work

NAMES = ("convolutions", "grouped", "depthwise_chain", "deep_and_wide", "long_kernel", "dense_layers", "products")
WAYS = [("tiny", "f32"), ("line64", "f16"), ("default", "f16"), ("edge", "f32")]


def machine_in(lowered, mode, dtype):
    """The machine with a network in which every convolution has this mode."""
    module = lowered.clone()
    for step in (ChooseLineBuffer(mode=mode), Allocate(), Schedule()):
        step.apply(Context(), module)
    return Machine(executable_of(module, Choices(dtype=dtype)))


def matrix_cycles(machine):
    """Busy cycles of every static convolution, in order, over all cores."""
    expanded = machine.expanded
    cycles = work(expanded, expanded.core, machine.target).cycles.sum(axis=1)
    numbers = [k for k, each in enumerate(expanded.instructions) if isinstance(each, Conv)]
    return [int(cycles[expanded.core.of(k)].sum()) for k in numbers]


@pytest.mark.slow
@pytest.mark.soak(but=5)
@pytest.mark.parametrize(("name", "way"), [(name, way) for name in NAMES for way in WAYS[:2]])
def test_detailed_runs_agree_with_fast_ones_and_their_counts(name, way):
    module, inputs = network(name)
    machine_name, dtype = way
    lowered = modules_at_stops(module, machine_name, Choices(dtype=dtype))["lowered"]
    outputs, plain = {}, None
    for mode in ("split", "continuous", "auto"):
        machine = machine_in(lowered, mode, dtype)
        detailed = machine.run(inputs, "functional", checked=True, detailed=True)
        fast = machine.run(inputs, "functional")
        outputs[mode] = detailed.outputs
        plain = plain or fast.outputs
        for output, array in fast.outputs.items():
            np.testing.assert_array_equal(array, plain[output])
        counted = count(machine.expanded, machine.target, machine.executable.code.page_bytes)
        found = detailed.line_buffer
        assert found is not None and fast.line_buffer is None
        assert (found.writes, found.steps, found.discarded) == (
            counted.line_writes, counted.compute_steps, counted.discarded_windows
        )  # fmt: skip
    outputs["fast"] = plain
    check_agreement(outputs, dtype)


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_integers_through_the_line_buffer_give_the_same_bits(dtype):
    """Zero points of inputs and weights, a border, strides, groups, a residual; all out of the same lines."""
    net = IntegerNet(seed=5, dtype=dtype)
    x = net.integer_input(2, 8, 13, 11)
    y = net.product(x, 16, 3, strides=(2, 2), dilations=(2, 1), pads=(2, 1, 2, 1), bias=False)
    module, inputs = net.module(net.product(y, 12, 1, clip=True), net.product(x, 8, groups=4))
    lowered = modules_at_stops(module, "tiny", Choices())["lowered"]
    for mode in ("split", "continuous"):
        machine = machine_in(lowered, mode, None)
        detailed, fast = (machine.run(inputs, "functional", detailed=each) for each in (True, False))
        for output, array in fast.outputs.items():
            np.testing.assert_array_equal(detailed.outputs[output], array)
        counted = count(machine.expanded, machine.target, machine.executable.code.page_bytes)
        assert detailed.line_buffer is not None
        assert detailed.line_buffer.writes == counted.line_writes


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_the_chosen_mode_is_never_slower_in_counted_cycles(name, way):
    module, _ = network(name)
    machine_name, dtype = way
    lowered = modules_at_stops(module, machine_name, Choices(dtype=dtype))["lowered"]
    machines = {mode: machine_in(lowered, mode, dtype) for mode in ("split", "continuous", "auto")}
    cycles = {mode: matrix_cycles(machine) for mode, machine in machines.items()}
    for chosen, split, continuous in zip(*(cycles[m] for m in ("auto", "split", "continuous")), strict=True):
        assert chosen == min(split, continuous)
    for machine in machines.values():
        counted = count(machine.expanded, machine.target, machine.executable.code.page_bytes)
        split = count(machines["split"].expanded, machine.target, machine.executable.code.page_bytes)
        assert counted.line_writes_split == split.line_writes


@pytest.mark.slow
def test_all_modes_are_chosen_somewhere():
    """A convolution of small maps is continuous, a long one split, a product channels_last."""
    modes = set()
    for name in NAMES:
        lowered = modules_at_stops(network(name)[0], "line64", Choices(dtype="f16"))["lowered"]
        instructions = machine_in(lowered, "auto", "f16").expanded.instructions
        modes |= {each.line_mode for each in instructions if isinstance(each, Conv)}
    assert modes == {"split", "continuous", "channels_last"}
