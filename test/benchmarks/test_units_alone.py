"""What a unit takes by itself: other units and what comes ahead of it take no time, in one and the same program."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import executable, modules_at_stops
from units_alone import comes_ahead, cycles_alone, dram_cycles, units_of, without

from frustum.backend.pipeline import Choices
from frustum.runtime.machine import Machine
from frustum.runtime.time import engine


@pytest.fixture(scope="module", params=["default", "edge"])
def timed(request):
    """Three layers in three units."""
    net = Net()
    x = net.conv(net.input(1, 16, 32, 32), 32)
    module = net.module(net.conv(net.conv(x, 32), 64, 1))[0]
    program = executable(modules_at_stops(module, request.param, Choices(policy="none", dtype="f16"))["fixed"])
    return program, Machine(program).run({}, mode="timing").timeline


def test_units_alone_take_no_longer_than_the_run(timed):
    _, timeline = timed
    alone = cycles_alone(timeline)
    assert len(alone) == 3
    assert all(0 < cycles < timeline.total_cycles for cycles in alone)
    ports = np.bincount(units_of(timeline) + 1, dram_cycles(timeline), minlength=4)[1:]
    assert all(cycles >= port for cycles, port in zip(alone, ports, strict=True))


@pytest.mark.slow(but=1)
def test_nothing_idle_is_the_run_itself(timed):
    _, timeline = timed
    nobody = np.zeros(len(timeline.operations.kind), bool)
    assert engine.simulate(without(timeline.operations, nobody)).total == timeline.total_cycles


@pytest.mark.slow
def test_all_idle_takes_no_time(timed):
    _, timeline = timed
    everybody = np.ones(len(timeline.operations.kind), bool)
    assert engine.simulate(without(timeline.operations, everybody)).total == 0


@pytest.mark.slow
def test_weights_come_ahead_and_maps_do_not(timed):
    program, timeline = timed
    ahead, port = comes_ahead(timeline), dram_cycles(timeline)
    kinds = {each.class_: each.bytes for each in program.program.externals}
    assert {"input", "output", "weight"} <= set(kinds)
    moved = [int(port[ahead].sum()), int(port[~ahead].sum())]
    assert all(moved)
    rate = timeline.machine.target.chip.dram.port_bytes_per_cycle
    maps = sum(each.bytes for each in program.program.externals if each.class_ not in ("weight", "program"))
    assert moved[1] >= maps / rate

