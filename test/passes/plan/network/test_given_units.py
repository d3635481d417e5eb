"""One given unit has the shapes of policy optimal and of the planner to choose from."""

from __future__ import annotations

import pytest
from networks import Net

from frustum.backend import targets
from frustum.passes.analysis.unit_layers import unit_layers
from frustum.passes.plan.network.given_units import plan_given
from frustum.passes.plan.network.layer_order import ops_of_section
from frustum.passes.plan.unit import Budget, plan_unit
from frustum.passes.plan.unit_ops import wrap
from frustum.runtime.reference.graph import network_of

EDGE = targets.load("edge")
KIB = 1024


def unit(layers=3):
    net = Net()
    x = net.input(1, 8, 32, 32)
    for _ in range(layers):
        x = net.conv(x, 8)
    return wrap(ops_of_section(network_of(net.module(x)[0])), "u0", "by hand")


@pytest.mark.slow
def test_rows_that_roll_are_taken_where_they_read_less():
    """Three windows in 24 KiB: tiles that overlap read rows again, rolling ones do not."""
    made = unit()
    plain = plan_unit(unit_layers(made), EDGE, Budget(24 * KIB))
    found = plan_given(made, EDGE, 24 * KIB)
    assert found.partition.borders == "exchange"
    assert found.dram_bytes < plain.dram_bytes
    assert found.cost.sram.total_bytes <= 24 * KIB


@pytest.mark.slow
def test_borders_are_restricted():
    made = unit()
    assert plan_given(made, EDGE, 24 * KIB, "exchange").partition.borders == "exchange"
    found = plan_given(made, EDGE, 24 * KIB, "overlap")
    assert found is None or found.partition.borders == "overlap"


def test_nothing_fits_too_little():
    assert plan_given(unit(), EDGE, KIB) is None
