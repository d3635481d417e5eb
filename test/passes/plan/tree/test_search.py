"""The search's prices, against the count of its plans pass by pass."""

import ast
from pathlib import Path

import numpy as np
import plan_nets
import pytest
import random_plans
from axis_networks import SHAPES, mlp, network, windows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects import graph as g
from frustum.dialects.plan.check import check_plan
from frustum.dialects.plan.count import count
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.loading import load_model
from frustum.passes.plan.tree import best
from frustum.passes.plan.tree import search as search_module
from frustum.passes.plan.tree.good_plans import fitting_plan, good_plans
from frustum.passes.plan.tree.intervals import LayerInterval
from frustum.passes.plan.tree.known import KnownParts
from frustum.passes.plan.tree.search import PlanSearch, searched, searches
from frustum.passes.plan.tree.spans import Reads
from frustum.passes.plan.tree.trace import plan_of
from frustum.passes.plan.tree.units import LEVELS, SMALL, SearchLimits
from frustum.passes.plan.tree.wishes import Wishes
from frustum.passes.zoo import zoo_model

OFF = 0.06
"""A part of a tensor that stays is whole positions of one axis: in small networks these are a few per cent."""
MOST_OFF = 1.5
"""Rows that two loops cut, one of them rolling, and rows between which others are skipped, are counted as moved up to
2.4 times as often as priced. Of 60 networks 3 are so."""
MLP = (64, 48), (48, 192), (192, 48)


def check(net, capacity, off=OFF):
    """The plan is one, fits, and moves hardly more than the search says; None where there is none."""
    try:
        search = searched(net, capacity)
        first, (plan, counted) = count(net, plan_of(search)), fitting_plan(net, capacity)
    except DoesNotFit:
        return None
    assert count(net, plan).dram_bytes == counted.dram_bytes >= net.compulsory_bytes
    assert counted.sram_bytes <= capacity
    if first.sram_bytes <= capacity:
        assert counted.dram_bytes <= (1 + off) * search.curve[LEVELS] + 64
    return counted


@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([1 << 11, 1 << 14, 1 << 18]))
def test_plans_of_random_networks_are_as_the_search_says(drawn, capacity):
    check(drawn.axes, capacity, MOST_OFF)


@pytest.mark.slow
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([1 << 11, 1 << 13, 1 << 14, 1 << 16, 1 << 18]))
def test_plans_of_many_random_networks_are_as_the_search_says(drawn, capacity):
    check(drawn.axes, capacity, MOST_OFF)


@pytest.fixture(scope="module")
def curve():
    """Of an MLP, for shares of 64 KiB."""
    return PlanSearch(network(mlp, *MLP), 1 << 16, wanted=range(LEVELS + 1)).curve


def test_bytes_never_rise_with_sram_and_end_at_the_compulsory_ones(curve):
    assert (curve[1:] <= curve[:-1]).all()
    least = network(mlp, *MLP).compulsory_bytes
    assert curve[LEVELS] == pytest.approx(least, rel=1e-9) and least < curve[4]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("capacity", [1 << 12, 1 << 13, 1 << 14, 1 << 15])
def test_one_search_answers_what_separate_searches_do(curve, capacity):
    """At capacities that are whole levels of the larger search."""
    own = PlanSearch(network(mlp, *MLP), capacity).curve[LEVELS]
    assert own == pytest.approx(curve[capacity * LEVELS >> 16], rel=0.03)


def test_rows_roll_where_maps_do_not_fit():
    net = network(windows, (1, 4, 64, 64), (8, 4, 3, 3), (4, 8, 3, 3))
    found = check(net, 1 << 14)
    assert found.dram_bytes == net.compulsory_bytes
    assert found.points[net.layers[0].name] == 64 * 64 * 8 * 4 * 9, "no row is made twice"


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_rows_roll_with_borders_of_their_own_rows(mode):
    """The first row and the last one are read at the ends alone."""

    def bordered(x, w):
        wide = g.BorderOp(mode, x, (1, 1), (1, 1))
        return wide, g.ConvOp(wide.result, w, None, (1, 1), (0, 0, 0, 0))

    net = network(bordered, (1, 4, 64, 64), (8, 4, 3, 3))
    assert check(net, 1 << 14).dram_bytes == net.compulsory_bytes


def test_what_has_no_axes_is_outside_where_others_read_it():
    """A mean of everything, in a loop over what it is of, waits around the loop."""

    def scaled(x):
        mean = g.ReduceOp("mean", x, (0, 1))
        return mean, g.BinaryOp("mul", x, mean.result)

    net = network(scaled, (64, 64))
    mean, _ = net.layers
    assert not mean.result.axes
    assert mean.result in LayerInterval(net, Reads(net), (mean,)).outside
    assert check(net, 1 << 12).dram_bytes >= net.compulsory_bytes


def check_intervals(net, capacity):
    """Prices of intervals, in time, are within 2 % of those where all loops, and pairs of loops, are always looked at,
    but for what the first pass waits for; in very little of the memory they need not be.  How often no pair, and how
    often no loop at all, was looked at."""
    good, bare, is_enough, found = best.good_nests, best.bare_nest, best._Best.is_enough, []

    def near(some, placed, room, more, share=0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(best._Best, "is_enough", False)
            every = good(placed, room, *more)
        outside = np.array([float(tensor in placed.own.outside) for tensor in placed.own.touched])
        for shares in (0 * outside, outside, outside * (np.arange(len(outside)) % 2)):
            one, least = (
                np.minimum.accumulate(own.priced(shares, room).min(axis=1))[LEVELS // SMALL :] for own in (some, every)
            )
            assert (one <= (1.02 + share) * least + (share > 0) * more[-1].between).all(), placed.own.layers
        return some

    def without_pairs(placed, room, *more):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(best._Best, "is_enough", property(lambda own: found.append(is_enough.fget(own)) or found[-1]))
            some = good(placed, room, *more)
        return near(some, placed, room, more)

    def without_loops(placed, room, costs):
        some = bare(placed, room, costs)
        if some is not None:
            found.append(True)
            near(some, placed, room, (SearchLimits(), {}, costs), costs.first)
        return some

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "good_nests", without_pairs)
        patch.setattr(search_module, "bare_nest", without_loops)
        assert PlanSearch(net, capacity, wishes=Wishes("time", targets.load("edge"))).curve.size
    return sum(found)


def test_a_quick_search_ends_in_time_with_a_plan_or_without():
    """All that it is asked for shares what may be done; tracing the best plan is for nothing."""
    net, edge = plan_nets.case(plan_nets.KINDS[0]).axes, targets.load("edge")
    with pytest.raises(DoesNotFit):
        good_plans(net, 1 << 16, 1, Wishes("time", edge, work=1))
    known = KnownParts()
    wishes = Wishes("time", edge, work=4000)
    search = next(searches(net, 1 << 16, (LEVELS,), 1, wishes, known))
    assert np.isfinite(search.curve[LEVELS])
    assert 0 < known.effort.units < 4000 + 2 * search_module.NEST_WORK
    known.effort.units = 4001
    check_plan(net, plan_of(search))
    assert known.effort.units == 4001


def test_a_bound_that_less_memory_does_not_reach_hides_no_plan():
    """Of a bound between the prices of two shares of the memory the larger one's plan is below."""
    net = plan_nets.case(plan_nets.mlp).axes
    wanted = LEVELS // 8, LEVELS
    few, price = PlanSearch(net, 1 << 12, wanted=wanted).curve[[*wanted]]
    assert price < few
    search = PlanSearch(net, 1 << 12, wanted=wanted)
    search.bound = np.full(LEVELS + 1, (few + price) / 2)
    assert search.curve[LEVELS] == price and search.curve[LEVELS // 8] == np.inf
    check_plan(net, plan_of(search))


def test_what_loops_make_again_takes_no_storage_of_what_it_reads():
    """A loop over the columns of the second product would read what its first pass has overwritten."""
    net = network(mlp, *SHAPES)
    product, act, _ = net.layers
    lone, before, behind = (
        LayerInterval(net, Reads(net), tuple(net.layers[first:stop])) for first, stop in ((1, 2), (0, 2), (1, 3))
    )
    assert lone.replacing == before.replacing == ((act.result, act, product.result),)
    assert behind.replacing == ()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("capacity", [1 << 15, 1 << 18])
@pytest.mark.parametrize("build", plan_nets.KINDS, ids=lambda build: build.__name__)
def test_pairs_of_loops_that_are_left_out_would_save_hardly_any_time(build, capacity):
    is_scarce = capacity < 1 << 18
    assert check_intervals(plan_nets.case(build).axes, capacity) or is_scarce


@pytest.mark.slow
@settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([1 << 14, 1 << 15, 1 << 18]))
def test_the_same_of_random_networks(drawn, capacity):
    check_intervals(drawn.axes, capacity)


@pytest.mark.slow
@pytest.mark.soak
def test_a_network_of_the_zoo_moves_hardly_more_than_it_must():
    target = targets.load("edge")
    (net,) = networks_to_plan(import_onnx(load_model(zoo_model("squeezenet", 0))), target, "f16")
    _, counted = fitting_plan(net, target.cluster.sram.capacity_bytes)
    assert counted.dram_bytes <= 1.01 * net.compulsory_bytes


def test_the_search_names_no_operation_and_no_machine():
    """It knows axes, trees and its own files; of the machine SRAM, clusters, and what a layer takes there."""
    known = ("axes.", "plan.", "target", "choices", "errors", "extents")
    known = (*(f"frustum.dialects.{room}" for room in known), "frustum.passes.plan.tree")
    for file in Path(search_module.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        own = [name for name in named if name.startswith("frustum")]
        assert all(name.startswith(known) for name in own), (file.name, own)
        words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not words & {"cores", "source", "role"}, file.name
