"""Inputs that a unit of their own copies to SRAM come where they stay, and not through the cores."""

from __future__ import annotations

import pytest
from agreement import check_agreement
from networks import Net
from stops import executable, run_module
from units import Group, as_units

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.unit import Partition
from frustum.runtime.machine import Machine
from frustum.runtime.time.event_log import event_log

ROWS, CHANNELS = Partition((1, 8, 4, 16), 2, 1), Partition((1, 2, 16, 16), 1, 1)
STEPS = Partition((1, 2, 4, 16), 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("copied", [ROWS, CHANNELS, STEPS])
def test_a_copy_takes_nothing_of_the_cores(copied):
    net = Net()
    x = net.unary("identity", net.input(1, 8, 16, 16))
    module, inputs = net.module(net.conv(x, 8, 3), net.unary("neg", x))
    groups = [Group((0,), copied, keeps=(0,)), Group((1,), ROWS), Group((2,), CHANNELS)]
    units, found = as_units(module, "default", groups), {}
    run = Run(lambda stop, module: found.update({stop: module.clone()}))
    run.advance(units, ["placed", "lowered", "fixed"], Choices())
    outputs = {s: run_module(m, inputs, checked=s == "fixed") for s, m in {"typed": module, **found}.items()}
    check_agreement(outputs, "f32")
    log = event_log(Machine(executable(found["lowered"])).run({}, mode="timing").timeline)
    engines = {log.engines[e] for e in log.engine[(log.unit == 0) & (log.bytes > 0)]}
    assert engines and not {name for name in engines if "core" in name.split(".")[-2]}
