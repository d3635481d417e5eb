"""Whatever the policy: every layer ends in exactly one unit, and what is fused compiles and gives the same numbers."""

from __future__ import annotations

import time

import pytest
from agreement import check_agreement
from every_operation import NETWORKS, network
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import Net
from processor_time import allowed
from random_network import networks
from stops import aimed, modules_at_stops, run_module
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.choices import PRESETS
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_work
from frustum.passes.fuse.fuse_layers import FuseLayers

RULES = (*PRESETS.values(), "S1", "S1,3", "S1,4", "S2,2,3,4", "S1,1,3,4,12-18", "S2,4,7,11,18,19")
"""Those with few rules fuse the most."""


def units_of(module):
    return [op for op in module.walk() if isinstance(op, UnitOp)]


def layers_in(module):
    return sorted(str(op.location) for op in module.walk() if is_work(op))


def fused(module, target, rules, thresholds=None):
    """A copy of the module at stop `fused`."""
    module = aimed(module, target)
    FuseLayers(rules=rules, thresholds=thresholds).apply(Context(), module)
    module.verify()
    return module


def check(modules, inputs, dtype):
    stops = ("typed", "fused", "fixed")
    check_agreement({s: run_module(modules[s], inputs, checked=s == "fixed") for s in stops}, dtype)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    networks(layers=8),
    st.sampled_from(["tiny", "tiny", "default", "edge", "units4"]),
    st.sampled_from(RULES),
)
def test_random_networks_agree_under_any_policy(drawn, target, rules):
    modules = modules_at_stops(drawn.module, target, Choices(rules=rules))
    assert layers_in(modules["fused"]) == layers_in(modules["typed"])
    assert all(unit.stopped_by.data for unit in units_of(modules["fused"]))
    check(modules, drawn.inputs, "f32")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("rules", ["S1,3,4", "S2,2,4"])
@pytest.mark.parametrize("name", NETWORKS)
def test_small_networks_agree_with_as_few_rules_as_possible(name, rules):
    module, inputs = network(name)
    modules = modules_at_stops(module, "edge", Choices(rules=rules))
    check(modules, inputs, "f32")


@pytest.mark.slow
@pytest.mark.soak
def test_a_thousand_layers_are_fused_in_seconds():
    """Residual blocks: units end at 24 layers, and equal ones are planned once."""
    net = Net()
    x = net.input(1, 64, 8, 8)
    for _ in range(333):
        x = net.binary("add", net.conv(net.conv(x, 64, 1, act="relu"), 64, 1), x, act="relu")
    module = aimed(net.module(x)[0], "edge")
    started = time.process_time()
    FuseLayers(rules="S1,1,3,4,10,16").apply(Context(), module)
    assert time.process_time() - started < allowed(10)
    assert len(units_of(module)) == 42
    assert units_of(module)[0].stopped_by.data == "27 > 24 layers"


@pytest.mark.parametrize("policy", PRESETS)
def test_a_concatenation_may_be_a_unit_on_several_clusters(policy):
    """It has no sub-map, and so no weights of its own."""
    net = Net()
    x = net.input(1, 2, 4, 4)
    y = net.layer(graph.ConcatOp([net.layer(graph.ConcatOp([x, x], 1)), x], 1))
    module, inputs = net.module(net.layer(graph.ShuffleOp(y, 1)))
    check(modules_at_stops(module, "manycore", Choices(policy=policy)), inputs, "f32")


@pytest.mark.slow
def test_units_are_named_in_the_order_of_their_outputs():
    net = Net()
    x = net.unary("relu", net.input(1, 4, 8, 8))
    y = net.pool("max", net.layer(graph.TransposeOp(x, (0, 1, 3, 2))))
    module = fused(net.module(net.conv(y, 4), net.unary("tanh", x))[0], "edge", "S2,1,4")
    assert [unit.unit_name.data for unit in units_of(module)] == ["u0", "u1", "u2", "u3"]
