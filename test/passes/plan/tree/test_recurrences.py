"""Plans that the search finds for carried states: what they move, against prices, counts and values."""

import numpy as np
import onnxruntime
import plan_nets
import pytest
from plan_values import check_outputs
from recurrent_models import GATES, model_of
from recurrent_nets import both_ways, check_wanted, filtered, gru, lstm, page_lstm, rnn, stacked, summed
from xdsl.dialects.builtin import f16

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects.plan.count import count
from frustum.dialects.plan.tree import Halo, Loop, nodes_in
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.plan.tree.deal import classes_to_deal
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.passes.plan.tree.known import KnownParts
from frustum.passes.plan.tree.search import PlanSearch, searched
from frustum.passes.plan.tree.trace import plan_of
from frustum.passes.plan.tree.units import LEVELS
from frustum.runtime.reference.plan import run_plan

EDGE = 512 << 10


def check(case, capacity, clusters=1, rtol=1e-5):
    """The plan fits, moves what the search says, and has the values; its count."""
    search = searched(case.network, capacity, clusters)
    assert count(case.network, plan_of(search)).dram_bytes == pytest.approx(search.curve[LEVELS], rel=1e-9)
    plan, counted = fitting_plan(case.network, capacity, clusters)
    run = run_plan(case.network, plan, case.arrays)
    assert (run.read_bytes, run.write_bytes) == (counted.read_bytes, counted.write_bytes)
    assert run.link_bytes == counted.link_bytes and dict(run.points) == dict(counted.points)
    assert run.sram_bytes <= counted.sram_bytes <= capacity
    check_wanted(case, run, rtol)
    return counted


@pytest.mark.parametrize("channels", [64, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", [lstm, gru])
def test_recurrent_weights_that_fit_come_once(build, channels):
    case = build(80, channels, element=f16)
    counted = check(case, EDGE, rtol=1e-2)
    assert counted.dram_bytes <= 1.02 * case.network.compulsory_bytes


NETWORKS = {
    "lstm": lambda: lstm(6, 4, 3),
    "begun": lambda: lstm(6, 4, 3, 2, is_begun=True),
    "last": lambda: lstm(6, 4, is_last=True),
    "gru": lambda: gru(6, 4, 2),
    "rnn": lambda: rnn(6, 4),
    "far back": lambda: filtered(9, 8, back=3, batch=3),
    "ahead": lambda: filtered(9, 8, ahead=1, batch=2),
    "stacked": lambda: stacked(5, 4, 2),
    "both ways": lambda: both_ways(5, 4),
    "one layer": lambda: summed(7, 40),
}


@pytest.mark.parametrize("clusters, capacity", [(1, 768), (1, 2048), (2, 1024)])
@pytest.mark.parametrize("name", NETWORKS)
def test_prices_are_counts_and_values_are_right(name, clusters, capacity):
    case = NETWORKS[name]()
    counted = check(case, capacity, clusters)
    if capacity == 2048:
        assert counted.dram_bytes == case.network.compulsory_bytes


def test_weights_that_do_not_fit_come_in_every_step():
    """But for the part of them that stays."""
    case, capacity = lstm(20, 256, element=f16), 256 << 10
    plan, counted = fitting_plan(case.network, capacity)
    weights, again = case.bytes_of("R"), counted.dram_bytes - case.network.compulsory_bytes
    assert weights == 2 * capacity
    assert 19 * (weights - capacity) < again < 19 * weights * 0.75
    assert count(case.network, plan).sram_bytes <= capacity


def test_the_steps_of_a_state_are_one_loop():
    plan, _ = fitting_plan(lstm(80, 64, element=f16).network, EDGE)
    loops = [node for node in nodes_in(plan) if isinstance(node, Loop)]
    assert [(loop.axis, loop.passes, loop.halo) for loop in loops] == [("x.0", 80, Halo.ROLLING)]


def test_layers_without_operations_are_planned_too():
    network = page_lstm()
    _, counted = fitting_plan(network, EDGE)
    assert counted.dram_bytes == network.compulsory_bytes


def test_a_unit_that_cuts_a_recurrence_has_no_plan():
    search = PlanSearch(lstm(6, 4).network, 1 << 14)
    r, h = 1, 10
    units = (0, 1), (0, r + 1), (0, h), (r, h), (r + 1, h), (r + 1, h + 1), (h, h + 1), (0, h + 1), (r, h + 1)
    found = [each for each in units if np.isfinite(search.unit(*each, search.extents, {}, 1)[LEVELS])]
    assert found == [(0, 1), (0, h + 1), (r, h + 1)]


def test_no_loop_lies_around_what_it_would_cut():
    interval = PlanSearch(gru(6, 4, 2).network, 1 << 14).interval(1, 12)
    assert [sorted(axis.name for axis in group) for group, _ in interval.classes] == [["x.0"], ["x.1"]]
    assert [axis.name for axis in interval.steps] == ["x.0"]


def test_keys_tell_how_far_a_state_reaches_back():
    known = KnownParts()
    searches = [PlanSearch(filtered(9, 8, back=back).network, 1 << 12, known=known) for back in (1, 2, 1)]
    first, second, third = (search.placed(0, 2, search.extents).number for search in searches)
    assert first == third != second


def test_clusters_share_the_batch_and_neither_steps_nor_channels_of_a_state():
    for batch, wanted in ((1, []), (4, ["x.1"])):
        found = classes_to_deal(lstm(8, 8, batch).network, 2)
        assert sorted(axis.name for group in found for axis in group) == wanted


@pytest.mark.parametrize("direction", ["forward", "reverse", pytest.param("bidirectional", marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", GATES)
def test_operators_of_onnx_have_their_values(op, direction):
    model, x = model_of(op, steps=5, direction=direction, given=["B", "h"])
    module = import_onnx(model)
    networks_to_plan(module, targets.load("edge"))
    case = plan_nets.Case(module, {"x": x})
    case.plan, counted = fitting_plan(case.axes, 1 << 13)
    assert counted.dram_bytes == case.axes.compulsory_bytes
    check_outputs(case, onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x}))
