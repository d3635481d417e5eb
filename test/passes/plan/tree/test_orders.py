"""Orders of layers: by hand, of random networks, and what another order saves."""

import pytest
from plan_nets import KINDS, case

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.plan.check import check_plan
from frustum.dialects.plan.tree import Compute, Sequence
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.passes.plan.tree.intervals import cuts_apart
from frustum.passes.plan.tree.orders import branch_by_branch, level_by_level, makers_of, other_orders
from frustum.passes.plan.tree.search import PlanSearch, searched
from frustum.passes.plan.tree.spans import Reads
from frustum.passes.plan.tree.units import LEVELS


def branches(net):
    """Two branches of three layers each, which the file has in turn."""
    x = net.input(1, 4, 24, 24)
    a, b = net.conv(x, 8, act="relu"), net.conv(x, 8, act="relu")
    a, b = net.conv(a, 8, act="relu"), net.conv(b, 8, act="relu")
    a, b = net.pool("max", a), net.pool("max", b)
    return net.binary("add", a, b)


def test_by_hand():
    """a1 b1 a2 b2 a3 b3 sum: branch by branch a1 a2 a3 b1 b2 b3 sum, and back."""
    net = case(branches).axes
    names = [layer.name for layer in net.layers]
    assert len(names) == 7
    turned = [names[k] for k in (0, 2, 4, 1, 3, 5, 6)]
    assert [layer.name for layer in branch_by_branch(net)] == turned
    assert level_by_level(net) == net.layers
    again = AxisNetwork(net.name, branch_by_branch(net), net.tensors)
    assert [layer.name for layer in level_by_level(again)] == names
    assert [[layer.name for layer in other.layers] for other in other_orders(net)] == [turned]


@pytest.mark.parametrize("build", KINDS, ids=lambda build: build.__name__)
def test_each_order_has_each_layer_once_behind_what_it_reads(build):
    net = case(build).axes
    for other in other_orders(net):
        assert sorted(layer.name for layer in other.layers) == sorted(layer.name for layer in net.layers)
        done = set()
        for layer in other.layers:
            assert done.issuperset(makers_of(net, layer))
            done.add(layer)
        check_plan(net, Sequence(tuple(Compute((layer.name,)) for layer in other.layers)))


@pytest.mark.slow
def test_branches_one_after_the_other_leave_more_room():
    """In turn a unit has both branches, or each map of both goes through DRAM."""
    net, capacity = case(branches).axes, 6 << 10
    alone = PlanSearch(net, capacity).curve[LEVELS]
    best = searched(net, capacity)
    assert best.curve[LEVELS] < alone / 2
    plan, counted = fitting_plan(net, capacity)
    assert counted.dram_bytes < alone and counted.sram_bytes <= capacity
    check_plan(net, plan)


def chain(net):
    x = net.conv(net.input(1, 4, 16, 16), 8, act="relu")
    for kind in ("abs", "sqrt", "sigmoid", "exp"):
        x = net.unary(kind, x)
    return net.conv(net.binary("mul", net.pool("max", x), net.input(1, 8, 8, 8)), 4)


def diamond(net):
    """What is towards zero: its parts go apart, and come together; one of them is also read behind."""
    x = net.conv(net.input(1, 4, 16, 16), 8)
    up = net.unary("relu", net.unary("floor", x))
    whole = net.binary("add", up, net.unary("neg", net.unary("relu", net.unary("neg", net.unary("ceil", x)))))
    y = net.unary("exp", whole)
    left = net.unary("abs", y)
    return net.conv(net.binary("mul", left, net.unary("sqrt", y)), 4), left


def test_no_unit_ends_inside_of_functions_that_come_together():
    """A convolution, six functions, their sum and its function, which two read, of which one is an output."""
    net = case(diamond).axes
    assert [layer.name for layer in net.layers][-1].startswith("conv") and len(net.layers) == 13
    assert cuts_apart(Reads(net)) == {1, 9, 10, 11, 12, 13}


def test_no_unit_ends_where_one_layer_goes_on_with_another_in_its_place():
    """A convolution, four functions that each go on with the one before, a pool, a product with an input, and another
    convolution: no cut between the functions, and none between the pool and the product."""
    net = case(chain).axes
    assert len(net.layers) == 8
    assert cuts_apart(Reads(net)) == {1, 5, 6, 7, 8}
