"""What the planner says that each unit adds to a run, beside what the emulator counts."""

from __future__ import annotations

import pytest
from networks import Net
from stops import executable, modules_at_stops
from units_alone import cycles_alone

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.module import PREDICTED_CYCLES
from frustum.dialects.tile import UnitOp
from frustum.runtime.machine import Machine

OFF = 0.12
"""Of what a unit takes alone: more the model must not be off."""


def chain():
    """Convolutions with a pooling between them."""
    net = Net()
    x = net.conv(net.input(1, 16, 56, 56), 64)
    x = net.layer(graph.PoolOp("max", x, kernel=(2, 2), strides=(2, 2)))
    return net.module(net.conv(net.conv(x, 128), 128))[0]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["default", "edge"])
def test_units_say_together_about_what_the_run_takes(target):
    found = modules_at_stops(chain(), target, Choices(dtype="f16"))
    units = [op for op in found["placed"].walk() if isinstance(op, UnitOp)]
    noted = [unit.attributes[PREDICTED_CYCLES].value.data for unit in units]
    program = executable(found["fixed"])
    timeline, facts = Machine(program).run({}, mode="timing").timeline, program.manifest["options"]["units"]
    assert sum(noted) == pytest.approx(timeline.total_cycles, rel=0.2)
    assert [fact["predicted_cycles"] for fact in facts] == noted
    for fact, counted in zip(facts, cycles_alone(timeline), strict=True):
        assert fact["own_cycles"] == pytest.approx(counted, rel=OFF)
