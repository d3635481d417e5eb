"""What results need of inputs, against changing one element of an input at a time and looking whether a result does."""

import numpy as np
import pytest
from networks import Net

from frustum.dialects import graph as g
from frustum.passes.analysis.needed import NeededElements
from frustum.runtime.reference.graph import ReferenceExecutor


def strided(net, x):
    return net.layer(g.ConvOp(x, net.weight(3, 2, 1, 1), strides=(2, 2)))


def dilated(net, x):
    return net.layer(g.ConvOp(x, net.weight(2, 1, 2, 2), strides=(3, 1), dilations=(1, 3), groups=2))


def padded_windows(net, x):
    return net.layer(g.ConvOp(x, net.weight(3, 2, 2, 2), strides=(3, 3), pads=(1, 1, 0, 0)))


def sliced(net, x):
    return net.layer(g.SliceOp(x, (0, 1, 5, 0), (1, 1, 3, 2), (1, 1, -2, 3)))


def sliced_after_windows(net, x):
    y = net.layer(g.ConvOp(x, net.weight(4, 2, 3, 3), pads=(1, 1, 1, 1)))
    return net.layer(g.SliceOp(net.unary("tanh", y), (0, 0, 2, 3), (1, 4, 2, 1)))


def cropped(net, x):
    return net.layer(g.PadOp(x, (0, 0, -1, 1), (0, 0, -2, -3)))


def part_of_two(net, x):
    y = net.layer(g.ConcatOp([net.unary("neg", x), x], 1))
    return net.layer(g.SliceOp(y, (0, 1, 0, 0), (1, 1, 6, 7)))


def pooled(net, x):
    return net.layer(g.PoolOp("avg", x, (2, 2), strides=(3, 3)))


def shrunk(net, x):
    return net.layer(g.ResizeOp("nearest", x, (3, 3), scale=(2.0, 7 / 3), offset=(0.0, 0.0)))


def shrunk_linearly(net, x):
    return net.layer(g.ResizeOp("linear", x, (2, 3), scale=(3.0, 2.0), offset=(1.0, 0.5)))


def turned(net, x):
    y = net.layer(g.TransposeOp(x, (0, 2, 3, 1)))
    return net.layer(g.SliceOp(y, (0, 0, 4, 1), (1, 6, 1, 1)))


def normed_rows(net, x):
    return net.layer(g.SliceOp(net.layer(g.SoftmaxOp(x, 3)), (0, 0, 1, 2), (1, 2, 3, 2)))


def reduced(net, x):
    return net.layer(g.SliceOp(net.layer(g.ReduceOp("mean", x, (2,))), (0, 0, 0, 1), (1, 1, 1, 3)))


def multiplied(net, x):
    y = net.layer(g.MatmulOp(net.layer(g.ReshapeOp(x, (12, 7))), net.weight(7, 5)))
    return net.layer(g.SliceOp(y, (2, 0), (4, 5)))


def broadcast(net, x):
    y = net.binary("mul", x, net.layer(g.SliceOp(x, (0, 0, 0, 2), (1, 2, 6, 1))))
    return net.layer(g.SliceOp(y, (0, 0, 3, 5), (1, 1, 2, 2)))


def phases_with_a_rest(net, x):
    return net.layer(g.DepthToSpaceOp(net.layer(g.ConcatOp([x, x], 1)), (2, 2), 1, (1, 1, 11, 13)))


CASES = [
    strided, dilated, padded_windows, sliced, sliced_after_windows, cropped, part_of_two, pooled, shrunk,
    shrunk_linearly, turned, normed_rows, reduced, multiplied, broadcast, phases_with_a_rest,
]  # fmt: skip


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_what_is_needed_is_what_changes_a_result(build):
    net = Net()
    x = net.input(1, 2, 6, 7)
    module, inputs = net.module(build(net, x))
    (network,) = g.networks_of(module)
    needed = NeededElements(network)
    mask = needed.mask(network.body.block.args[0])
    (name, array), run = next(iter(inputs.items())), ReferenceExecutor(net.store).run_graph
    before, found = next(iter(run(module, inputs).values())), np.zeros(array.shape, bool)
    for place in np.ndindex(array.shape):
        changed = array.copy()
        changed[place] += 1.5
        found[place] = (next(iter(run(module, {name: changed}).values())) != before).any()
    assert not found.all(), "this case would not tell"
    np.testing.assert_array_equal(mask, found)
    assert needed.count(network.body.block.args[0]) == found.sum()


def test_of_a_result_that_nobody_reads_nothing_is_needed():
    net = Net()
    x, other = net.input(1, 2, 6, 7), net.input(1, 2, 6, 7)
    w = net.weight(3, 2, 1, 1)
    unread = net.layer(g.ConvOp(other, w))
    module, _ = net.module(net.unary("relu", x))
    (network,) = g.networks_of(module)
    needed = NeededElements(network)
    assert [needed.count(each) for each in (*network.body.block.args, w, unread)] == [84, 0, 0, 0]
