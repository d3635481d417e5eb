"""What is asked of a plan: units that are given."""

import pytest
import random_plans
from axis_networks import mlp, network
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_networks import tiny

from frustum.dialects import graph as g
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.tree import Loop, Over, copies_in, layers_in, nodes_in
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.passes.plan.tree.search import searches
from frustum.passes.plan.tree.units import LEVELS, SearchLimits
from frustum.passes.plan.tree.wishes import GivenCuts, Stretches, Wishes

MLP = (64, 48), (48, 192), (192, 48)


def after(*layers, is_crossed=True):
    return Wishes(cuts=GivenCuts(frozenset(layers), is_crossed))


def units(plan):
    """Layers of the outermost children; without those that are made again."""
    copies = {copy.name for copy in copies_in(plan)}
    return [[layer for layer in layers_in(child) if layer not in copies] for child in plan.children]


@pytest.mark.parametrize(
    ("name", "capacity"), [("excited", 108), ("excited", 144), ("block", 74), ("parted", 52), ("strided", 152)]
)
def test_with_its_own_cuts_a_plan_is_found_again(name, capacity):
    plan, counted = fitting_plan(tiny(name), capacity)
    assert len(units(plan)) > 1
    again, recounted = fitting_plan(tiny(name), capacity, 1, after(*(unit[-1] for unit in units(plan))))
    assert units(again) == units(plan)
    assert recounted.dram_bytes <= counted.dram_bytes and recounted.sram_bytes <= capacity


@settings(max_examples=3, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([1 << 11, 1 << 13, 1 << 14]), st.sampled_from([1, 3]))
def test_with_their_own_cuts_plans_of_random_networks_are_found_again(drawn, capacity, clusters):
    """Of 400 networks on 2026-11-28 all."""
    try:
        plan, counted = fitting_plan(drawn.axes, capacity, clusters)
    except DoesNotFit:
        return
    ends = [unit[-1] for unit in units(plan) if unit]
    assert fitting_plan(drawn.axes, capacity, clusters, after(*ends))[1].dram_bytes <= counted.dram_bytes


def test_layers_are_made_again_by_units_that_read_them():
    plan, _ = fitting_plan(tiny("excited"), 108, 1, after("reduce", "conv#2"))
    assert [list(layers_in(child)) for child in plan.children] == [
        ["conv", "reduce"], ["conv#2"], ["conv.again", "binary"]
    ]  # fmt: skip
    plan, _ = fitting_plan(tiny("excited"), 108, 1, after("reduce", "conv#2", is_crossed=False))
    assert not list(copies_in(plan))


@pytest.mark.parametrize("clusters", [1, 4])
def test_units_end_where_they_are_cut_and_nowhere_else(clusters):
    for cuts in ((), ("matmul",), ("unary",), ("matmul", "unary"), ("matmul", "matmul#2")):
        plan, counted = fitting_plan(network(mlp, *MLP), 1 << 14, clusters, after(*cuts))
        assert [unit[-1] for unit in units(plan)] == [*(cut for cut in cuts if cut != "matmul#2"), "matmul#2"]
        assert counted.sram_bytes <= 1 << 14
        over = [node for node in nodes_in(plan) if isinstance(node, Loop) and node.over is Over.CLUSTERS]
        assert bool(over) == (clusters > 1)


def test_where_cuts_are_not_crossed_every_map_is_written_and_read():
    net = network(mlp, *MLP)
    maps = sum(layer.result.size_bytes for layer in net.layers[:-1])
    _, counted = fitting_plan(net, 1 << 20, 1, after("matmul", "unary", is_crossed=False))
    assert counted.dram_bytes == net.compulsory_bytes + 2 * maps
    _, counted = fitting_plan(net, 1 << 20, 1, after("matmul", "unary"))
    assert counted.dram_bytes == net.compulsory_bytes


def chain(x):
    """More layers than a unit has by itself."""
    ops = [g.UnaryOp("relu", x)]
    while len(ops) <= SearchLimits().longest:
        ops.append(g.UnaryOp("relu", ops[-1].result))
    return ops


def test_a_unit_may_be_asked_to_be_longer_than_others():
    net = network(chain, (64, 64))
    plan, counted = fitting_plan(net, 1 << 12, 1, after())
    assert [len(unit) for unit in units(plan)] == [SearchLimits().longest + 1]
    assert counted.dram_bytes == net.compulsory_bytes


def test_curves_have_the_same_units():
    net = network(mlp, *MLP)
    free, cut = (
        min(search.curve[LEVELS // 4] for search in searches(net, 1 << 15, range(LEVELS + 1), 1, wishes))
        for wishes in (Wishes(), after("matmul", "unary", is_crossed=False))
    )
    assert net.compulsory_bytes <= free < cut


def test_a_unit_that_fits_no_plan_is_named():
    with pytest.raises(DoesNotFit) as error:
        fitting_plan(tiny("excited"), 80, 1, after())
    assert str(error.value) == (
        "network @net: conv to binary as one unit: its smallest tiles does not fit: needed more,"
        " available 80 B of SRAM; cut it into shorter ones"
    )
    with pytest.raises(DoesNotFit, match=r"@net: conv as one unit: .* available 50 B of SRAM; leave out a cut beside"):
        fitting_plan(tiny("windows"), 50, 1, after("conv"))
    fitting_plan(tiny("windows"), 78, 1, after())


def test_a_cut_after_no_layer_is_an_error():
    with pytest.raises(PlanError, match="cut after conv#3: no layer is called conv#3"):
        fitting_plan(tiny("windows"), 1 << 10, 1, after("conv", "conv#3"))


def test_stretches_end_with_the_last_layer():
    layers = tiny("mlp").layers
    assert Stretches.of(layers, None) is None
    assert Stretches.of(layers, GivenCuts(frozenset({"unary"}))).ends == {0: 2, 2: 3}
    assert Stretches.of(layers, GivenCuts(frozenset({"unary", layers[-1].name}))).ends == {0: 2, 2: 3}
