"""Additions behind products: which vanish, and that the network computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from integer_networks import IntegerNet
from networks import Net
from xdsl.context import Context

from frustum.dialects import graph
from frustum.dialects.graph import ScaleAttr
from frustum.passes.graph.fuse_residual import FuseResidual
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def fused(net, *outputs):
    """The network's operations after the pass; its outputs must stay what they were."""
    module, inputs = net.module(*outputs)
    executor = ReferenceExecutor(store_of(module))
    before = executor.run_graph(module, inputs)
    FuseResidual().apply(Context(), module)
    module.verify()
    after = executor.run_graph(module, inputs)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    return list(module.walk())


def additions(ops):
    return [op for op in ops if isinstance(op, graph.BinaryOp)]


def products(ops):
    return [op for op in ops if isinstance(op, graph.ConvOp | graph.MatmulOp) and op.residual is not None]


@pytest.mark.parametrize("turned", [False, True])
def test_the_map_beside_a_convolution_is_added_on_its_way_out(turned):
    net = Net()
    x = net.input(1, 4, 6, 6)
    operands = [net.conv(x, 4), x]
    ops = fused(net, net.binary("add", *(reversed(operands) if turned else operands), act="relu"))
    (conv,) = products(ops)
    assert not additions(ops) and conv.act.kind == "relu" and conv.location.desc.data == "conv_1"


def test_the_map_beside_a_matrix_product_is_added_on_its_way_out():
    net = Net()
    x = net.input(5, 8)
    ops = fused(net, net.binary("add", x, net.dense(x, 8)))
    assert not additions(ops) and len(products(ops)) == 1


def test_of_two_convolutions_the_one_that_continues_a_chain_adds():
    net = Net()
    x = net.input(1, 4, 6, 6)
    chain = net.conv(net.conv(x, 8, act="relu"), 4)
    ops = fused(net, net.binary("add", chain, net.conv(x, 4)))
    (conv,) = products(ops)
    assert conv.x.owner.name == "fgraph.conv" and conv.location.desc.data == "conv_2"


def test_integers_keep_their_bits():
    net = IntegerNet()
    x = net.integer_input(1, 4, 6, 6)
    ops = fused(net, net.residual(x, 4, x, "relu"))
    assert not additions(ops) and len(products(ops)) == 1


def activated(net, x):
    return net.binary("add", net.conv(x, 4, act="relu"), x)


def used_twice(net, x):
    y = net.conv(x, 4)
    return net.binary("add", y, net.unary("tanh", y))


def broadcast(net, x):
    return net.binary("add", net.conv(x, 4), net.weight(1, 4, 1, 1))


def another_kind(net, x):
    return net.binary("mul", net.conv(x, 4), x)


@pytest.mark.parametrize("network", [activated, used_twice, broadcast, another_kind], ids=lambda n: n.__name__)
def test_other_additions_stay(network):
    net = Net()
    ops = fused(net, network(net, net.input(1, 4, 6, 6)))
    assert len(additions(ops)) == 1 and not products(ops)


def test_a_product_adds_one_map():
    net = Net()
    x, y = net.input(1, 4, 6, 6), net.input(1, 4, 6, 6)
    ops = fused(net, net.binary("add", net.binary("add", net.conv(x, 4), x), y))
    assert len(additions(ops)) == 1 and len(products(ops)) == 1


def test_integers_that_stand_for_other_numbers_than_were_made_stay():
    net = IntegerNet()
    x = net.integer_input(1, 4, 6, 6)
    y = net.product(x, 4)
    scales = [ScaleAttr.of(0.5, y.owner.zeros[1] + 1), ScaleAttr.of(0.5), ScaleAttr.of(1.0)]
    assert len(additions(fused(net, net.layer(graph.BinaryOp("add", y, x, None, scales))))) == 1


def test_sums_in_a_recurrence_take_in_products_of_their_own_step():
    """A product outside is one for all steps: it stays there."""
    net = Net()
    x, w = net.input(6, 4), net.weight(4, 4)
    outside = net.layer(graph.MatmulOp(net.input(2, 4), w))

    def body(own, before):
        after = net.binary("add", net.layer(graph.MatmulOp(before, w)), own)
        return [after], [net.binary("add", outside, after)]

    loop = net.recurrence([x], [None], body, steps=3)
    ops = fused(net, *loop.results)
    assert [op.parent_op().name for op in products(ops)] == ["fgraph.recurrence"]
    assert len(additions(ops)) == 1
    assert outside.owner.parent_op().name == "fgraph.network"
