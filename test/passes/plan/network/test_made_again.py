"""Maps that are needed again behind a sum over all of them are made again where they do not fit; brought back as it
was where that is no better."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import Net
from xdsl.context import Context
from xdsl.dialects.builtin import f32, i8
from xdsl.rewriter import Rewriter

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.graph.pool_in_steps import PoolInSteps
from frustum.passes.plan.network.layer_order import ops_of_section, order_of, outputs_of_section
from frustum.passes.plan.network.made_again import (
    behind_sums,
    chain,
    form_of,
    hold_far_inputs,
    hold_inputs,
    make_again,
)
from frustum.passes.plan.network.optimal import plan_network
from frustum.passes.plan.network.units import fuse_optimal
from frustum.runtime.reference.graph import network_of

EDGE = targets.load("edge")


def machine(kib):
    cluster = EDGE.chip.cluster
    sram = replace(cluster.sram, capacity_bytes=kib * 1024)
    return replace(EDGE, chip=replace(EDGE.chip, cluster=replace(cluster, sram=sram)))


def squeezed(target, outer=False):
    """A map of 32 channels made from 4, pooled, and multiplied with what comes of that; `outer`: read directly, too."""
    net = Net()
    x = net.input(1, 4, 48, 48)
    made = net.conv(x, 32)
    pooled = net.layer(g.ReduceOp("mean", made, (2, 3), True))
    gate = net.unary("sigmoid", net.conv(pooled, 32, kernel=1))
    y = net.conv(net.binary("mul", made, gate), 4, kernel=1)
    module = net.module(*([y, made] if outer else [y]))[0]
    module.attributes[TARGET] = to_attribute(target)
    PoolInSteps().apply(Context(), module)
    return network_of(module)


def planned(network, target):
    plan = plan_network(network, target)
    assert plan is not None
    return plan


def convolutions(network):
    return sum(isinstance(op, g.ConvOp) for op in network.walk())


@pytest.mark.slow
def test_a_large_map_is_made_again_instead_of_stored():
    target = machine(80)
    network, x = squeezed(target), 4 * 48 * 48 * 4
    plan = planned(network, target)
    make_again(plan.order, plan.units)
    assert planned(network, target).dram_bytes < min(plan.dram_bytes / 2, 3.6 * x)


@pytest.mark.slow
def test_the_network_has_the_layers_twice_where_that_is_better():
    target = machine(80)
    network = squeezed(target)
    fuse_optimal(network, target)
    assert convolutions(network) == 4
    network.verify()


@pytest.mark.slow
def test_a_map_that_stays_is_made_once():
    target = machine(4096)
    network = squeezed(target)
    fuse_optimal(network, target)
    assert convolutions(network) == 3


@pytest.mark.slow
def test_an_output_is_made_once():
    target = machine(80)
    network = squeezed(target, outer=True)
    fuse_optimal(network, target)
    assert convolutions(network) == 3


@pytest.mark.slow
def test_what_is_undone_is_as_it_was():
    target = machine(80)
    network = squeezed(target)
    before = str(network)
    plan = planned(network, target)
    again = make_again(plan.order, plan.units)
    assert [len(each.copies) for each in again] == [1]
    assert str(network) != before
    for each in reversed(again):
        each.undo()
    assert str(network) == before


@pytest.mark.slow
def test_readers_behind_sums_and_what_they_are_made_from():
    network = squeezed(machine(80))
    order = order_of(ops_of_section(network), outputs_of_section(network, None))
    names = [node.op.name for node in order.nodes]
    assert names == [
        f"fgraph.{each}" for each in ("conv", "pool", "reduce", "conv", "unary", "binary", "conv")
    ]
    assert behind_sums(order, 0) == [5]
    assert behind_sums(order, 3) == []
    assert chain(order, 0, 1e9, 0) == [0]
    assert chain(order, 0, 1000, 0) == []


@pytest.mark.slow
def test_an_input_that_several_units_load_is_copied_where_that_saves_enough():
    target = machine(80)
    network = squeezed(target)
    plan = planned(network, target)
    make_again(plan.order, plan.units)
    plan = planned(network, target)
    before, x = str(network), 4 * 48 * 48 * 4
    assert hold_inputs(plan.order, plan.units, x, 1) == []
    assert hold_inputs(plan.order, plan.units, 2 * x, 1.5 * x) == []
    held = hold_inputs(plan.order, plan.units, 2 * x, x)
    assert len(held) == 1
    assert {use.operation for use in network.body.block.args[0].uses} == {held[0].copy}
    network.verify()
    held[0].undo()
    assert str(network) == before


@pytest.mark.slow
def test_an_input_in_another_shape_is_held_as_its_readers_see_it():
    """A row is less its mean, which needs all of it; SRAM holds the row once."""
    net = Net()
    rows = net.layer(g.ReshapeOp(net.input(1, 64 * 48), (1, 1, 64, 48)))
    mean = net.layer(g.ReduceOp("mean", net.layer(g.ReduceOp("mean", rows, (3,), True)), (2,), True))
    module = net.module(net.binary("sub", rows, mean))[0]
    module.attributes[TARGET] = to_attribute(machine(8))
    network = network_of(module)
    plan = planned(network, machine(8))
    before, size = str(network), 64 * 48 * 4
    (held,) = hold_inputs(plan.order, plan.units, 2 * size, size)
    assert held.copy.x is rows and {use.operation for use in rows.uses} == {held.copy}
    network.verify()
    held.undo()
    assert str(network) == before


def far():
    """Products behind each other, of 192 KiB of weights; the last is added to what the first reads."""
    net = Net()
    x = made = net.input(1, 24, 128)
    for _ in range(3):
        made = net.unary("relu", net.layer(g.MatmulOp(made, net.weight(128, 128))))
    module = net.module(net.binary("add", made, x))[0]
    module.attributes[TARGET] = to_attribute(EDGE)
    ChooseForms().apply(Context(), module)
    return network_of(module)


X, WEIGHTS = 24 * 128 * 4, 3 * 128 * 128 * 4


def copies(network):
    return [op for op in network.walk() if isinstance(op, g.UnaryOp) and op.kind == "identity"]


@pytest.mark.slow
@pytest.mark.parametrize(("kib", "count"), [(96, 1), (256, 0)])
def test_a_small_input_stays_for_layers_behind_more_weights_than_sram_holds(kib, count):
    network, target = far(), machine(kib)
    fuse_optimal(network, target)
    network.verify()
    assert len(copies(network)) == count
    for copy in copies(network):
        assert len({use.operation for use in copy.result.uses} - {copy}) >= 1
        assert tuple(copy.attributes["frustum.form"].get_values()) == (3, 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "least"), [(X - 1, 0), (X, WEIGHTS)])
def test_an_input_that_is_large_or_read_nearby_is_not_copied(most, least):
    network = far()
    order = order_of(ops_of_section(network), outputs_of_section(network, None))
    assert hold_far_inputs(order, most, least) == [] and not copies(network)


@pytest.mark.slow
@pytest.mark.parametrize("element", [f32, i8])
def test_integers_are_not_copied(element):
    network = far()
    order = order_of(ops_of_section(network), outputs_of_section(network, None))
    (x,) = network.body.block.args
    Rewriter.replace_value_with_new_type(x, g.tensor_type(element, g.shape_of(x)))
    assert bool(hold_far_inputs(order, 1e9, 0)) == (element == f32)


@pytest.mark.slow
def test_an_input_that_a_unit_behind_a_sum_over_it_needs_again_stays():
    net = Net()
    x = net.input(1, 16, 24, 24)
    made = net.conv(net.layer(g.NormaliseOp(x, axes=(1, 2, 3), epsilon=1e-5, groups=4)), 16)
    again = net.layer(g.NormaliseOp(made, axes=(1, 2, 3), epsilon=1e-5, groups=4))
    module = net.module(net.conv(again, 16, residual=x))[0]
    module.attributes[TARGET] = to_attribute(EDGE)
    network = network_of(module)
    fuse_optimal(network, EDGE)
    network.verify()
    read = [use.operation for use in network.body.block.args[0].uses]
    assert len(read) == 1


def test_a_single_number_is_in_no_loop():
    net = Net()
    x = net.input()
    net.module(net.binary("add", net.unary("relu", x), net.unary("tanh", x)))
    assert form_of(x, [use.operation for use in x.uses]) is None
