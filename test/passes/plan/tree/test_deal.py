"""Plans over clusters: what the search says is what the count finds, and values are right."""

import numpy as np
import plan_nets
import pytest
import random_plans
from axis_networks import mlp, network, windows
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plan_values import check_values

from frustum.backend import targets
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.plan.tree import Halo, Loop, Over, layers_in, nodes_in
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree import good_plans
from frustum.passes.plan.tree.deal import classes_to_deal, dealings
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.passes.plan.tree.search import NARROW, PlanSearch, searched
from frustum.passes.plan.tree.spans import Dealt, Reads
from frustum.passes.plan.tree.trace import plan_of
from frustum.passes.plan.tree.units import LEVELS
from frustum.passes.plan.tree.wishes import GivenCuts, Wishes
from frustum.passes.plan.tree.zone_choice import ZoneChoice, shortness

DEFAULT = targets.load("default")
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


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("size", "axis"), [((64, 32), "y"), ((64, 512), "y"), ((2, 512), "x")])
def test_clusters_share_what_comes_in_long_runs(size, axis):
    """Rows or columns of a map: of 32 columns each cluster would load eight at a time."""
    net = network(windows, (1, 4, *size), (8, 4, 1, 1), (4, 8, 1, 1))
    groups = {own.name[-1]: group for group in classes_to_deal(net, 4) for own in group}
    image, least = net.tensors[0], DEFAULT.chip.dram.minimum_run_bytes
    short = {name: shortness(image, Dealt(groups[name], 4), least) for name in groups.keys() & {*"xy"}}
    assert short[axis] == min(short.values()) == 1
    plan, _ = fitting_plan(net, 1 << 20, 4, Wishes("time", DEFAULT))
    assert {loop.axis[-1] for loop in over_clusters(plan)} == {axis}


def test_each_layer_may_have_another_class_where_time_counts():
    """Of bytes one class is dealt; of time also the best of each layer, if no units are given."""
    net, target = network(windows, (1, 4, 64, 64), (8, 4, 3, 3), (4, 8, 3, 3)), DEFAULT
    assert [own.classes for own in dealings(net, 1, Wishes("time", target))] == [(frozenset(),)]
    of_one = [own.classes for own in dealings(net, 4, Wishes())]
    assert of_one == [(group,) for group in classes_to_deal(net, 4)]
    assert len(dealings(net, 4, Wishes("time", target))) == len(of_one) + 1
    given_units = Wishes("time", target, cuts=GivenCuts(frozenset({"conv"})))
    assert len(dealings(net, 4, given_units)) == len(of_one)


def head(net):
    """Rows of a map, then channels of a product that sums all of them."""
    x = net.pool("max", net.conv(net.input(1, 32, 32, 32), 32, act="relu"), 8, 8)
    return net.dense(x, 512)


@pytest.mark.slow
def test_units_deal_different_classes_where_that_takes_less_time():
    case = plan_nets.case(head)
    case.plan, _ = fitting_plan(case.axes, 1 << 20, 4, Wishes("time", DEFAULT))
    assert [loop.axis for loop in over_clusters(case.plan)] == ["pool_2.y", "matmul_4.c"]
    check_values(case)


def zoned(case, capacity, dealing):
    """The plan of a narrow search with these zones, and its count."""
    wishes = Wishes("time", DEFAULT)
    search = PlanSearch(case.axes, capacity, NARROW, dealing=dealing, wishes=wishes)
    assert np.isfinite(search.narrowly())
    return good_plans._counted(case.axes, plan_of(search), DEFAULT)


def test_a_unit_has_layers_of_one_zone():
    """Rows, whose borders go from cluster to cluster, then channels; what stays between them all clusters have."""
    case = plan_nets.case(head)
    dealing = ZoneChoice(Reads(case.axes), 4, DEFAULT).best()
    case.plan, found = zoned(case, 1 << 20, dealing)
    assert [(loop.axis, [*layers_in(loop)]) for loop in over_clusters(case.plan)] == [
        ("pool_2.y", ["conv_1", "pool_2"]), ("matmul_4.c", ["matmul_4"]),
    ]  # fmt: skip
    row, pooled, borders = 32 * 32 * 4, 32 * 4 * 4 * 4, 3
    stays = any(each.tensor == "pool_2" for each in case.plan.residents)
    assert found.link_bytes == 2 * borders * row + stays * (4 - 1) * pooled
    check_values(case)


def left_over(net):
    """Of 49 rows a pool reads 48."""
    return net.pool("max", net.conv(net.input(1, 4, 49, 8), 6))


def both_read(net):
    """The rows that the pool reads are an output too, also the one that it leaves out."""
    x = net.conv(net.input(1, 4, 49, 8), 6)
    return x, net.pool("max", x)


@pytest.mark.parametrize("capacity", [1 << 12, 1 << 16])
def test_values_where_a_pool_leaves_rows_over(capacity):
    case = plan_nets.case(left_over)
    case.plan, _ = fitting_plan(case.axes, capacity, 4)
    assert [loop.edges for loop in over_clusters(case.plan)] == [(0, 6, 12, 18, 24)]
    check_values(case)


@pytest.mark.parametrize("build", [left_over, both_read])
def test_ranges_begin_where_windows_of_readers_do(build):
    """Of 49 rows clusters have 12, 12, 12 and 13, for 6 of the pool each: they exchange rows of the input alone."""
    case = plan_nets.case(build)
    text = 'plan @net for "default" { for pool_2.y step 6 of 24 over clusters exchanged { compute conv_1, pool_2 } }'
    case.plan = read_plan(text).node
    check_values(case)
    row, borders = 4 * 8 * 4, 3
    assert count(case.axes, case.plan).link_bytes == 2 * borders * row


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


def check_zones(drawn, clusters, data):
    """A class of each group of layers, or none, that clusters may deal, and values of the plan."""
    choice = ZoneChoice(Reads(drawn.axes), clusters, DEFAULT)
    chosen = [data.draw(st.sampled_from(range(len(group.classes)))) for group in choice.groups]
    dealing = choice.dealing(chosen)
    assume(all(len(dealing.classes[k] & set(layer.axes)) < 2 for layer, k in dealing.number.items()))
    drawn.plan, _ = zoned(drawn, 1 << 15, dealing)
    check_values(drawn)


@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([2, 3, 4]), st.data())
def test_values_of_random_zones(drawn, clusters, data):
    check_zones(drawn, clusters, data)


@pytest.mark.slow
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([2, 3, 4]), st.data())
def test_values_of_many_random_zones(drawn, clusters, data):
    check_zones(drawn, clusters, data)


@pytest.mark.parametrize("build", [plan_nets.mlp, plan_nets.residual])
def test_values_of_small_networks(build):
    case = plan_nets.case(build)
    case.plan, _ = fitting_plan(case.axes, 12 << 10, 2)
    check_values(case)
