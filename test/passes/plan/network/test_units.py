"""Units that store only the parts of a concatenation that they make: fewer bytes, the same numbers."""

import numpy as np
import pytest
from networks import Net
from stops import aimed, executable, modules_at_stops, run_module
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.passes.analysis.module import target_of
from frustum.passes.plan.network.optimal import OptimalOptions, plan_network
from frustum.passes.plan.network.units import Planner, with_places
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import count

pytestmark = pytest.mark.slow

LAYERS, GROWTH = 10, 16


def dense_block(net):
    """Each layer reads all maps before it, side by side."""
    x = net.conv(net.input(1, 16, 40, 28), 64, act="relu")
    for _ in range(LAYERS):
        made = net.conv(net.conv(x, 96, 1, act="relu"), GROWTH, act="relu")
        x = net.layer(graph.ConcatOp([x, made], 1))
    return net.conv(x, 8, 1)


def module():
    net = Net()
    return net.module(dense_block(net))


@pytest.mark.soak
def test_the_parts_alone_are_stored():
    aimed_at = aimed(module()[0], "edge")
    assert isinstance(aimed_at, ModuleOp)
    network, target = network_of(aimed_at), target_of(aimed_at)
    plain = plan_network(network, target)
    better = with_places(Planner(network, target, OptimalOptions(), None), plain)
    assert better.dram_bytes < plain.dram_bytes


@pytest.mark.soak
def test_the_numbers_stay_and_the_machine_counts_as_many_bytes():
    net, inputs = module()
    choices = Choices(policy="optimal")
    modules = modules_at_stops(net, "edge", choices)
    placed, fixed = (run_module(modules[s], inputs) for s in ("typed", "fixed"))
    np.testing.assert_allclose(fixed["y0"], placed["y0"], atol=1e-4)
    made = executable(modules["fixed"], choices)
    machine = Machine(made)
    counters = count(machine.expanded, machine.target, made.code.page_bytes)
    aimed_at = aimed(net, "edge")
    network, target = network_of(aimed_at), target_of(aimed_at)
    plan = with_places(Planner(network, target, OptimalOptions(), None), plan_network(network, target))
    moved = counters.dram_read_bytes + counters.dram_write_bytes
    assert moved - counters.dram_bytes_by_class["other"] == plan.dram_bytes


@pytest.mark.parametrize("name", ["edge", "default"])
def test_products_of_two_maps_join_with_whole_planes(name):
    """What is between them stays on chip, and each image's second factor is read once."""
    net = Net()
    a, b, e = (net.input(4, 24, 24) for _ in range(3))
    between = net.unary("relu", net.layer(graph.MatmulOp(a, b)))
    module, inputs = net.module(net.layer(graph.MatmulOp(between, e)))
    stops = modules_at_stops(module, name, Choices(policy="optimal"))
    plan = plan_network(network_of(stops["typed"]), target_of(stops["typed"]))
    assert plan.dram_bytes == 4 * (4 * 24 * 24) * 4
    (wanted,) = run_module(module, inputs).values()
    (got,) = run_module(stops["fixed"], inputs, checked=True).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
