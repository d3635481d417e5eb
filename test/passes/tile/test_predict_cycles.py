"""What the planner says that each unit adds to a run, beside what the emulator counts."""

from __future__ import annotations

import pytest
from networks import Net
from stops import executable, modules_at_stops

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.module import PREDICTED_CYCLES
from frustum.dialects.tile import UnitOp
from frustum.runtime.machine import Machine


def chain():
    """Convolutions with a pooling between them."""
    net = Net()
    x = net.conv(net.input(1, 16, 56, 56), 64)
    x = net.layer(graph.PoolOp("max", x, kernel=(2, 2), strides=(2, 2)))
    return net.module(net.conv(net.conv(x, 128), 128))[0]


@pytest.mark.parametrize("target", ["default", "edge"])
def test_units_say_together_about_what_the_run_takes(target):
    found = modules_at_stops(chain(), target, Choices(dtype="f16"))
    units = [op for op in found["placed"].walk() if isinstance(op, UnitOp)]
    noted = [unit.attributes[PREDICTED_CYCLES].value.data for unit in units]
    program = executable(found["fixed"])
    counted = Machine(program).run({}, mode="timing").timeline.total_cycles
    assert sum(noted) == pytest.approx(counted, rel=0.2)
    assert [fact["predicted_cycles"] for fact in program.manifest["options"]["units"]] == noted
