"""Plans over clusters: what the search says is what the count finds, and values are right."""

from dataclasses import replace

import plan_nets
import pytest
import random_plans
from axis_networks import mlp, network, windows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_values import check_values

from frustum.backend import targets
from frustum.dialects.plan.tree import Halo, Loop, Over, nodes_in
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree.deal import classes_to_deal, in_short_runs
from frustum.passes.plan.tree.search import searched
from frustum.passes.plan.tree.spans import Dealt
from frustum.passes.plan.tree.trace import fitting_plan
from frustum.passes.plan.tree.units import LEVELS
from frustum.passes.plan.tree.wishes import Wishes

MLP = (64, 48), (48, 192), (192, 48)


def over_clusters(plan):
    return [node for node in nodes_in(plan) if isinstance(node, Loop) and node.over is Over.CLUSTERS]


@pytest.mark.parametrize("clusters", [2, 3, 4])
def test_rows_are_dealt_and_weights_are_sent_to_all_at_once(clusters):
    net = network(mlp, *MLP)
    plan, counted = fitting_plan(net, 1 << 15, clusters)
    assert [loop.passes for loop in over_clusters(plan)] == [clusters] * len(over_clusters(plan)) != []
    assert counted.dram_bytes == net.compulsory_bytes
    assert searched(net, 1 << 15, clusters=clusters).curve[LEVELS] == pytest.approx(net.compulsory_bytes, rel=1e-9)


def test_more_clusters_hold_more():
    """Each has its own SRAM: what one cluster reloads, four keep."""
    net = network(mlp, *MLP)
    moved = [fitting_plan(net, 1 << 13, clusters)[1].dram_bytes for clusters in (1, 2, 4)]
    assert moved == sorted(moved, reverse=True) and moved[2] < moved[0]


def test_neighbours_exchange_rows_of_windows():
    net = network(windows, (1, 4, 64, 64), (8, 4, 3, 3), (4, 8, 3, 3))
    plan, counted = fitting_plan(net, 1 << 16, 4)
    assert {loop.halo for loop in over_clusters(plan)} <= {Halo.EXCHANGED, Halo.RECOMPUTED}
    assert net.compulsory_bytes <= counted.dram_bytes <= 1.3 * net.compulsory_bytes


def test_a_class_that_is_summed_or_too_short_is_not_dealt():
    net = network(mlp, (3, 48), (48, 192), (192, 48))
    extents = {axis.extent for group in classes_to_deal(net, 4) for axis in group}
    assert extents == {48}, "columns of the last result: rows are 3, all others are summed"


@pytest.mark.parametrize(("size", "axis"), [((64, 32), "y"), ((64, 512), "y"), ((2, 512), "x")])
def test_clusters_share_what_comes_in_long_runs(size, axis):
    """Rows or columns of a map: of 32 columns each cluster would load eight at a time."""
    net = network(windows, (1, 4, *size), (8, 4, 1, 1), (4, 8, 1, 1))
    groups = {name: group for group in classes_to_deal(net, 4) for name in {own.name[-1] for own in group}}
    target = replace(targets.load("default"), chip=replace(targets.load("default").chip, clusters=4))
    short = {name: in_short_runs(net, Dealt(group, 4), target) for name, group in groups.items() if name in "xy"}
    assert axis in short and short[axis] == min(short.values()) and (len(short) < 2 or short["x"] >= 1.0)
    plan, _ = fitting_plan(net, 1 << 20, 4, Wishes("time", target))
    assert {loop.axis[-1] for loop in over_clusters(plan)} == {axis}


def dealt(drawn, capacity, clusters):
    """Values are right, and what is counted fits."""
    try:
        plan, counted = fitting_plan(drawn.axes, capacity, clusters)
    except DoesNotFit:
        return
    assert counted.sram_bytes <= capacity
    drawn.plan = plan
    check_values(drawn)


@settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([1 << 13, 1 << 15, 1 << 18]), st.sampled_from([2, 3, 4]))
def test_values_of_random_networks(drawn, capacity, clusters):
    dealt(drawn, capacity, clusters)


@pytest.mark.slow
@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([1 << 11, 1 << 13, 1 << 15, 1 << 18]), st.sampled_from([2, 3, 4]))
def test_values_of_many_random_networks(drawn, capacity, clusters):
    dealt(drawn, capacity, clusters)


@pytest.mark.parametrize("build", [plan_nets.mlp, plan_nets.residual])
def test_values_of_small_networks(build):
    case = plan_nets.case(build)
    case.plan, _ = fitting_plan(case.axes, 12 << 10, 2)
    check_values(case)
