"""Costs of nests beside bytes, against the evaluator layer by layer; and what searches for time and energy find."""

from dataclasses import replace

import numpy as np
import pytest
from axis_networks import SHAPES, mlp, network
from plan_nets import attention, case, conv_stack, depthwise, residual

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.plan.count import count
from frustum.dialects.plan.cycles import timed
from frustum.dialects.plan.layer_cycles import ClusterCycles, crossing_pj, products_of
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.plan.tree import Compute, nodes_in
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree import good_plans, trace
from frustum.passes.plan.tree.best import nest_ways
from frustum.passes.plan.tree.costs import NestCosts
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.passes.plan.tree.nest import LoopNest
from frustum.passes.plan.tree.search import PlanSearch, searched
from frustum.passes.plan.tree.trace import plan_of
from frustum.passes.plan.tree.units import LEVELS
from frustum.passes.plan.tree.wishes import WishError, Wishes

EDGE = targets.load("edge")
NETS = [residual, attention, conv_stack, depthwise]


def nests(net, wishes):
    search = PlanSearch(net, 1 << 16, wishes=wishes)
    placed = search.placed(0, len(net.layers), search.extents)
    ways, *_ = nest_ways(placed, search.limits, {}, search.costs)
    return ways, LoopNest(ways.interior, ways.loops, ways.singles)


def test_without_loops_a_nest_takes_what_its_layers_take():
    """All engines one after the other: there is one pass."""
    net = network(mlp, *SHAPES)
    ways, nest = nests(net, Wishes("time", EDGE))
    cycles = nest.prices.busy[0] / EDGE.chip.dram.port_bytes_per_cycle
    first, act, last = net.layers
    cluster = ClusterCycles(EDGE.cluster)
    up = cluster.of(first, tuple(products_of(first)), {}, {0: 96.0, 1: 320.0, -1: 240.0})
    middle = cluster.of(act, (), {}, {-1: 240.0})
    down = cluster.of(last, tuple(products_of(last)), {}, {0: 240.0, 1: 320.0, -1: 96.0})
    waits = EDGE.chip.dram.latency_cycles + 3 * cluster.restart
    assert cycles == pytest.approx(waits + sum(each.alone for each in (up, middle, down)), rel=0.25)
    assert cycles >= up.matrix + middle.vector + down.matrix
    assert ways.singles[1, 0] == 0


def test_small_steps_take_longer():
    """One row a pass leaves 15 of 16 lines idle."""
    net = network(mlp, (64, 8), (8, 20), (20, 8))
    ways, nest = nests(net, Wishes("time", EDGE))
    steps = [None if number == 0 else ways.loops.loop(number) for number in ways.singles[1].tolist()]
    rows = {step: k for k, found in enumerate(steps) if found for cut, step in [found] if cut.reference.extent == 64}
    assert nest.prices.busy[rows[1]] > nest.prices.busy[rows[32]]


def test_bytes_alone_cost_nothing_more():
    _, nest = nests(network(mlp, *SHAPES), Wishes())
    assert not nest.prices.busy.any() and NestCosts.of(Wishes(), {}) is None


def test_energy_of_a_machine_whose_bytes_take_none():
    """Costs are counted in bytes: without energy of these there is nothing to count in."""
    dram, sram = (replace(each, energy_pj_per_byte=0.0) for each in (EDGE.chip.dram, EDGE.cluster.sram))
    half = replace(EDGE, chip=replace(EDGE.chip, dram=dram))
    none = replace(half, chip=replace(half.chip, cluster=replace(EDGE.cluster, sram=sram)))
    assert crossing_pj(half) == EDGE.cluster.sram.energy_pj_per_byte
    assert NestCosts.of(Wishes("energy", half), {}) and NestCosts.of(Wishes("time", none), {})
    with pytest.raises(WishError, match=r"edge take no energy \(set chip.dram.energy_pj_per_byte or "):
        NestCosts.of(Wishes("energy", none), {})


@pytest.mark.slow
@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
def test_each_search_finds_the_least_of_its_own(build):
    """Of three plans, each judged by the evaluator: none of the others is better at what one was searched for."""
    net, capacity = case(build).axes, 6 << 10
    plans = {what: fitting_plan(net, capacity, 1, Wishes(what, EDGE)) for what in ("bytes", "time", "energy")}
    judged = {what: timed(net, plan, EDGE) for what, (plan, _) in plans.items()}
    assert judged["time"].cycles <= judged["bytes"].cycles
    assert judged["energy"].energy_pj <= judged["bytes"].energy_pj
    assert judged["bytes"].dram_bytes <= min(judged["time"].dram_bytes, judged["energy"].dram_bytes)
    assert all(found.sram_bytes <= capacity for found in judged.values())


def test_where_no_plan_with_second_copies_fits_there_are_others(monkeypatch):
    net, capacity, fitting = network(mlp, *SHAPES), 1 << 14, good_plans._fitting_plans

    def tight(network, capacity, clusters, wishes, *rest):
        if wishes.ahead:
            raise trace.no_plan(network, capacity, wishes)
        return fitting(network, capacity, clusters, wishes, *rest)

    monkeypatch.setattr(good_plans, "_fitting_plans", tight)
    assert fitting_plan(net, capacity, 1, Wishes("time", EDGE))[1].sram_bytes <= capacity
    monkeypatch.undo()
    with pytest.raises(DoesNotFit, match="its smallest tiles"):
        fitting_plan(net, 64, 1, Wishes("time", EDGE))


def test_time_is_worth_bytes():
    """One head of 512 queries and keys: the fewest bytes come in passes of few positions, which leave lines idle."""
    net = as_halves(case(one_head).axes)
    few, fast = (timed(net, fitting_plan(net, 48 << 10, 1, Wishes(what, EDGE))[0], EDGE) for what in ("bytes", "time"))
    assert fast.cycles < few.cycles and fast.dram_bytes > few.dram_bytes


def one_head(net):
    q, k, v = (net.input(1, 512, 32) for _ in range(3))
    return net.layer(g.AttentionOp(q, k, v, None, heads=(1, 1), sizes=(32, 32), scale=0.2, is_merged=True))


def mean_of_all(net):
    """A scalar that layers read, and layers of one point: no axes to cut."""
    x = net.input(8, 16)
    mean = net.layer(g.ReduceOp("mean", x, (0, 1)))
    return net.binary("mul", x, net.binary("mul", mean, mean))


@pytest.mark.parametrize("what", ["time", "energy"])
def test_scalars_have_no_axes_and_cost_something(what):
    net = case(mean_of_all).axes
    assert any(not layer.axes for layer in net.layers)
    _, counted = fitting_plan(net, 1 << 14, 1, Wishes(what, EDGE))
    assert counted.dram_bytes == net.compulsory_bytes and counted.cycles > 0
    _, nest = nests(net, Wishes(what, EDGE))
    assert (nest.prices.busy > 0).all()


# ------------------------------------------------------------ types of sums


@pytest.mark.parametrize("build", [residual], ids=lambda build: build.__name__)
def test_sums_of_32_bits_are_said_and_take_room(build):
    net, capacity = case(build).axes, 2 << 10
    net = as_halves(net)
    (plain, few), (wide, many) = (fitting_plan(net, capacity, 1, Wishes(carry=carry)) for carry in ("element", "f32"))
    said = [each for node in nodes_in(wide) if isinstance(node, Compute) for each in node.sums]
    assert all(each.element == "f32" for each in said)
    assert not any(node.sums for node in nodes_in(plain) if isinstance(node, Compute))
    assert many.dram_bytes >= few.dram_bytes and many.sram_bytes <= capacity
    assert count(net, wide).dram_bytes == many.dram_bytes


def as_halves(net):
    for tensor in net.tensors:
        tensor.element_bits = min(tensor.element_bits, 16)
    return net


def test_wide_sums_by_hand():
    """Hidden channels in 4 passes, the result through DRAM: 3 sums of 4 B an element are written and read."""
    net = network(mlp, *SHAPES)
    text = '{ resident x0 for matmul.c step 5 of 20 { compute matmul, unary, "matmul#2"%s } }'
    few, many = (
        count(net, read_plan(f'plan @net for "edge" {text % sums}').node) for sums in ("", ' sum "matmul#2" as f32')
    )
    result = 6 * 8
    assert few.dram_bytes == net.compulsory_bytes + 6 * 2 * result
    assert many.dram_bytes == net.compulsory_bytes + 6 * 4 * result
    assert many.sram_bytes - few.sram_bytes == 2 * result
    assert np.isclose(many.read_bytes - few.read_bytes, 3 * 2 * result)


def test_the_least_time_is_of_bytes_or_of_the_engine_with_most_work():
    """2,048 rows of 512 channels, 512 hidden ones: of 2,048 x 512 x 512 products each core makes a quarter, 16 x 16 in
    two cycles, twice; 8 B could cross the port in each.  A quarter of the rows takes a quarter of that.  Of 6 rows the
    bytes are more."""
    costs = NestCosts.of(Wishes("time", EDGE), {})
    net = network(mlp, (2048, 512), (512, 512), (512, 512))
    moved = net.compulsory_bytes
    busy = 2 * 8 * (2048 // 4 // 16) * (512 // 16) * 512 * 2
    assert busy > moved
    whole = [(layer, {}) for layer in net.layers]
    assert costs.least(whole, moved) == pytest.approx(moved + 0.75 * (busy - moved))
    quarter = [(layer, {axis: 512 for axis in layer.axes if axis.extent == 2048}) for layer in net.layers]
    assert costs.least(quarter, 0) == pytest.approx(0.75 * busy / 4)
    small = network(mlp, *SHAPES)
    assert costs.least([(layer, {}) for layer in small.layers], small.compulsory_bytes) == small.compulsory_bytes


def test_a_plan_for_less_of_the_memory_is_of_the_same_search():
    net = network(mlp, (64, 64), (64, 256), (256, 64))
    search = searched(net, 1 << 15, wishes=Wishes("time", EDGE), wanted=(LEVELS // 2, LEVELS))
    used = [timed(net, plan_of(search, level), EDGE).sram_bytes for level in (LEVELS // 2, LEVELS)]
    assert used[0] <= 1 << 14 and used[1] <= 1 << 15


@pytest.mark.parametrize("resident", [False, True])
def test_sums_that_wait_in_dram_are_counted_as_such(resident):
    """Two passes over what is summed: the sums go out and come back, unless they are resident."""
    net, body = network(mlp, *SHAPES), 'for matmul.c step 10 of 20 { compute matmul, unary, "matmul#2" }'
    held = 'resident "matmul#2"' if resident else ""
    plan = read_plan(f'plan @net for "edge" {{ {held} {body} }}').node
    assert count(net, plan).waits_in_dram is not resident
