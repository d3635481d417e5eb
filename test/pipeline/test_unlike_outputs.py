"""Units with several outputs of unlike shapes: each is whole, however the tiles of the others are cut."""

from __future__ import annotations

import pytest
from agreement import check_agreement
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import Net
from stops import modules_at_stops, run_module
from units import Group, as_units
from unlike_outputs import unlike_outputs

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph
from frustum.dialects.unit import Partition

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def agree(module, inputs, target, policy):
    """All stops give the same numbers; returns the modules."""
    modules = modules_at_stops(module, target, Choices(policy=policy))
    check_agreement(
        {
            stop: run_module(modules[stop], inputs, checked=stop == "fixed")
            for stop in ("typed", "placed", "fixed")
        },
        "f32",
    )
    return modules


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tiny", "edge", "default"])
def test_a_map_and_its_reshape(target):
    """One unit makes both: in its later passes the tiles of the map are empty, those of the row are not."""
    net = Net()
    both = net.unary("neg", net.input(1, 2, 7, 9))
    copy, row = net.unary("identity", both), net.unary("identity", net.layer(graph.ReshapeOp(both, (126,))))
    module, inputs = net.module(copy, row)
    made = Group((0,), Partition((1, 2, 7, 9), 2, 1))
    units = as_units(module, target, [made, Group((1, 2), Partition((1, 1, 1, 32), 3, 1))])
    found = {}
    run = Run(lambda stop, module: found.update({stop: module.clone()}))
    run.advance(units, ["placed", "lowered", "fixed"], Choices())
    outputs = {s: run_module(m, inputs, checked=s == "fixed") for s, m in {"typed": module, **found}.items()}
    check_agreement(outputs, "f32")


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3, suppress_health_check=SLOW_DRAWS)
@given(
    unlike_outputs(),
    st.sampled_from(["tiny", "tiny", "edge", "default", "manycore"]),
    st.sampled_from(["optimal", "optimal", "pyramid"]),
)
def test_random_networks(network, target, policy):
    agree(network.module, network.inputs, target, policy)


def test_cores_without_work_read_nothing_of_a_map_that_stays():
    """The map is made by columns and read by rows, so its box is whole on every cluster, which does not have all of it.
    Three rows go to four cores: the fourth must not read behind them."""
    net = Net()
    made = net.unary("neg", net.input(1, 1, 20, 9))
    module, inputs = net.module(net.conv(made, 3, (2, 3), pads=(-1, 0, -1, -1), strides=(2, 2), bias=False))
    columns = Group((0,), Partition((1, 1, 20, 3), 3, 1), keeps=(0,))
    units = as_units(module, "default", [columns, Group((1,), Partition((1, 3, 3, 3), 2, 1))])
    found = {}
    Run(lambda stop, module: found.update({stop: module.clone()})).advance(
        units, ["placed", "lowered", "fixed"], Choices()
    )
    outputs = {"typed": run_module(module, inputs), "fixed": run_module(found["fixed"], inputs, checked=True)}
    check_agreement(outputs, "f32")
