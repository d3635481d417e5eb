"""Loops over time as layers with one more axis: what they compute, and what each of them reads."""

import numpy as np
import onnxruntime
import pytest
from axes_in_time import outputs_of
from networks import Net
from recurrent_models import GATES, model_of
from xdsl.context import Context

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Guard
from frustum.dialects.graph.axes import read_network, read_with_views
from frustum.dialects.graph.axes.reader import NoAxes
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def agrees_with_onnxruntime(model, x, dtype=None, tolerance=1e-4):
    """The network that planners get; returns it."""
    module = import_onnx(model)
    networks_to_plan(module, targets.load("edge"), dtype)
    module.verify()
    (network,) = g.networks_of(module)
    found, views = read_with_views(network)
    given = {name: np.asarray(array) for name, array in store_of(module).items()} | {"x": x}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for own, wanted in zip(outputs_of(found, network, views, given), expected, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_loops_longer_than_are_unrolled(op, direction):
    found = agrees_with_onnxruntime(*model_of(op, steps=80, direction=direction, given=["B", "h"]))
    steps = [layer for layer in found.layers if layer.result.dims[0] and layer.result.dims[0][0].name.endswith("time")]
    assert {layer.result.dims[0][0].extent for layer in steps} == {80}
    assert len({layer.result.dims[0][0] for layer in steps}) == (2 if direction == "bidirectional" else 1)


def test_what_operators_have_besides():
    agrees_with_onnxruntime(*model_of("LSTM", steps=5, given=["B", "P", "c"], clip=0.5))
    agrees_with_onnxruntime(*model_of("LSTM", steps=4, lengths=[4, 2], given=["B"], direction="bidirectional"))
    agrees_with_onnxruntime(*model_of("GRU", steps=4, given=["B", "h"], linear_before_reset=1))
    agrees_with_onnxruntime(*model_of("GRU", steps=1, given=["B"]))
    agrees_with_onnxruntime(*model_of("RNN", steps=3, batch=1, hidden=1, width=1))


def test_other_types():
    found = agrees_with_onnxruntime(*model_of("LSTM", steps=9, given=["B", "h", "c"]), "f16", 2e-2)
    bits = {tensor.name: tensor.element_bits for tensor in found.tensors}
    assert {n for n, each in bits.items() if each == 32} == {n for n in bits if "/Wb" in n}, "biases alone"


def test_what_a_step_reads_of_the_one_before():
    """A state of 0 is a fill; one that is given is another piece; sequences are views, the last state no copy."""
    net = Net()
    x, h, w = net.input(6, 3), net.input(2, 3), net.weight(3, 3)

    def body(own, before, other):
        product = net.layer(g.MatmulOp(before, w))
        return [net.binary("add", product, own), net.binary("max", other, own)], []

    loop = net.recurrence([x], [None, h], body, steps=3, reverse=True)
    module, _ = net.module(net.unary("relu", loop.results[0]), net.unary("exp", loop.results[1]))
    found = read_network(g.networks_of(module)[0])
    product, added, larger, last, _ = found.layers
    time = added.result.axes[0]
    assert [layer.result.axes[0] is time for layer in found.layers] == [True, True, True, False, False]
    (zero,) = product.operands[0].pieces
    assert zero.tensor is added.result and zero.index[0] == (time, Affine.of(time, 1, -1))
    assert zero.guards == (Guard(Affine.of(time, 1, -1), 0, 3, 0.0),)
    carried, given = larger.operands[0].pieces
    assert carried.tensor is larger.result and carried.guards == (Guard(Affine.of(time, 1, -1), 0, 3, None),)
    assert given.tensor.name == "x1" and given.guards == (Guard(Affine.of(time), 0, 1, None),)
    assert Affine.of(time, -1, 2) in dict(larger.operands[1].pieces[0].by_leaf).values()
    assert last.operands[0].pieces[0].by_leaf[0] == (time, Affine(offset=2))
    assert [layer.storage_of for layer in (product, larger)] == [None, None], "a state is read by others"


BODIES = {
    "states change places": lambda net, x, a, b: ([b, net.binary("add", a, x)], [a]),
    "a slice is a state": lambda net, x, a, b: ([x, net.binary("mul", a, b)], [net.binary("add", a, b)]),
    "a state stays": lambda net, x, a, b: ([a, net.binary("add", b, x)], [net.binary("sub", b, a)]),
    "a constant is a state": lambda net, x, a, b: ([net.weight(2, 4), net.binary("add", b, a)], [b]),
    "views of states": lambda net, x, a, b: (
        [net.layer(g.TransposeOp(net.layer(g.ReshapeOp(net.unary("tanh", a), (4, 2))), (1, 0))),
         net.layer(g.ConcatOp([net.layer(g.SliceOp(b, (0, 1), (2, 3), (1, 1))),
                               net.layer(g.SliceOp(x, (0, 0), (2, 1), (1, 1)))], 1))],
        [net.layer(g.ReshapeOp(a, (8,))), b],
    ),
    "norms": lambda net, x, a, b: (
        [net.layer(g.SoftmaxOp(net.binary("add", a, x), 1)),
         net.layer(g.NormaliseOp(net.binary("add", b, a), axes=(1,), epsilon=1e-5))], [b]
    ),
    "sums": lambda net, x, a, b: (
        [net.binary("add", net.layer(g.ReduceOp("mean", a, (0,), True)), x), net.layer(g.PadOp(
            net.layer(g.SliceOp(b, (0, 0), (2, 3), (1, 1))), (0, 1), (0, 0), 0.5))], [a]
    ),
}  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name, reverse):
    net = Net()
    x, start = net.input(6, 4), net.input(2, 4)
    loop = net.recurrence([x], [None, start], lambda *own: BODIES[name](net, *own), steps=3, reverse=reverse)
    agrees(net, *loop.results, net.unary("relu", loop.results[0]))


@pytest.mark.parametrize("reverse", [False, True])
def test_slices_along_an_inner_dimension(reverse):
    net = Net()

    def body(own, before):
        after = net.binary("add", net.unary("tanh", before), own)
        return [after], [net.layer(g.TransposeOp(after, (1, 0)))]

    loop = net.recurrence([net.input(2, 12)], [None], body, steps=4, dim=1, reverse=reverse)
    agrees(net, *loop.results)


def test_windows_in_a_loop():
    """Pads of a window and the step before the first one are both zeros; divisors are those of the window."""
    net = Net()

    def body(own, before):
        pooled = net.pool("avg", own, 3, 1, pads=(1, 1, 1, 1))
        return [net.binary("add", net.conv(before, 2), pooled)], []

    loop = net.recurrence([net.input(6, 2, 4, 5)], [None], body, steps=3)
    agrees(net, *loop.results)


def test_a_loop_in_a_loop():
    net = Net()

    def body(own, before):
        def inner(part, state):
            after = net.binary("add", net.binary("mul", state, before_part), part)
            return [after], [after]

        before_part = net.layer(g.SliceOp(before, (0, 0), (2, 2), (1, 1)))
        loop = net.recurrence([own], [before_part], inner, steps=3, dim=1)
        return [loop.outputs[0]], [net.unary("exp", loop.last_states[0])]

    loop = net.recurrence([net.input(8, 6)], [None], body, steps=4, reverse=True)
    agrees(net, *loop.results)


def agrees(net, *outputs):
    module, given = net.module(*outputs)
    module.verify()
    wanted = ReferenceExecutor(store_of(module)).run_graph(module, given)
    Canonicalize().apply(Context(), module)
    (network,) = g.networks_of(module)
    found, views = read_with_views(network)
    weights = {name: np.asarray(array) for name, array in store_of(module).items()}
    for own, array in zip(outputs_of(found, network, views, weights | given), wanted.values(), strict=True):
        np.testing.assert_allclose(own, array, rtol=1e-5, atol=1e-6)


def test_what_needs_all_of_its_operands_is_refused_in_a_loop():
    net = Net()

    def body(own, before):
        box = (0, 0, 6, 1, 1, 1, 1, 1, *(1, 0, 0, 0, 0, 0), *(1, 0, 0, 0, 0, 0))
        return [net.binary("add", net.layer(g.RearrangeOp(own, box, (2, 3))), before)], []

    loop = net.recurrence([net.input(4, 3)], [None], body, steps=2)
    module, _ = net.module(*loop.results)
    with pytest.raises(NoAxes, match="rearrange_1: error: it needs all of its operands, in a loop over time"):
        read_network(g.networks_of(module)[0])
