"""Tiles of which the channels are the innermost loop: rows are loaded once, weights once for these rows."""

import numpy as np
import pytest
from networks import Net
from searches import with_sram
from stops import aimed, executable, modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import layers_of
from frustum.passes.plan.network.optimal import OptimalOptions, plan_network
from frustum.passes.plan.unit import Budget, plan_unit
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import count

CASES = {"3x3": (64, 128, 28, 3, 1, 96), "stride": (64, 96, 27, 3, 2, 64), "1x1": (128, 256, 14, 1, 1, 96)}


def layer(case):
    """A convolution whose map and weights are each larger than SRAM, and a machine with so little."""
    channels, made, size, kernel, stride, kib = CASES[case]
    net = Net()
    x = net.conv(net.input(1, channels, size, size), made, kernel, strides=(stride, stride))
    return net.module(x), with_sram("edge", kib)


def network_on(module, machine):
    found = aimed(module, machine)
    return network_of(found), target_of(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_machine_counts_the_bytes_of_the_plan_and_numbers_stay(case):
    (net, inputs), machine = layer(case)
    choices = Choices(policy="optimal", optimise="bytes")
    plan = plan_network(*network_on(net, machine), OptimalOptions(optimise="bytes"))
    assert [unit.plan.partition.inside for unit in plan.units if unit.plan is not None] == [True]
    modules = modules_at_stops(net, machine, choices)
    typed, fixed = (run_module(modules[stop], inputs) for stop in ("typed", "fixed"))
    np.testing.assert_allclose(fixed["y0"], typed["y0"], atol=1e-4)
    made = executable(modules["fixed"], choices)
    emulated = Machine(made)
    counters = count(emulated.expanded, emulated.target, made.code.page_bytes)
    moved = counters.dram_read_bytes + counters.dram_write_bytes
    assert moved - counters.dram_bytes_by_class["other"] == plan.dram_bytes


@pytest.mark.parametrize("case", CASES)
def test_fewer_bytes_than_with_channels_outside(case):
    (net, _), machine = layer(case)
    network, target = network_on(net, machine)
    unit = layers_of([op for op in network.body.block.ops if op.name == "fgraph.conv"])
    outside, inside = (plan_unit(unit, target, Budget(CASES[case][-1] << 10, inside=each)) for each in (False, True))
    assert inside.dram_bytes < outside.dram_bytes
    assert inside.partition.tile[1] < unit.out.out_dims[1]
    assert inside.cost.sram.total_bytes <= CASES[case][-1] << 10
