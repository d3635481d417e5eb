"""Recurrences as their steps: the same numbers, nothing for states of 0, and which are refused."""

import numpy as np
import pytest
from networks import Net
from xdsl.context import Context
from xdsl.dialects.builtin import StringAttr, f32

from frustum.dialects import graph as g
from frustum.passes.analysis.module import location_of
from frustum.passes.errors import Unsupported
from frustum.passes.graph.composites.unroll_recurrences import UnrollRecurrences
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def summed(net, x, start, **options):
    """The state s' = s * w + x; a step gives 2 s'."""
    w = net.weight(1)

    def body(own, before):
        after = net.binary("add", net.binary("mul", before, w), own)
        return [after], [net.unary("affine", after, 2.0)]

    return net.recurrence([x], [start], body, **options)


def unrolled(net, *outputs):
    """The outputs, which unrolling does not change, and the operations that are left."""
    module, inputs = net.module(*outputs)
    module.verify()
    executor = ReferenceExecutor(store_of(module))
    before = executor.run_graph(module, inputs)
    UnrollRecurrences().apply(Context(), module)
    module.verify()
    for name, array in executor.run_graph(module, inputs).items():
        np.testing.assert_array_equal(array, before[name])
    ops = [op for op in module.walk() if op.name.startswith("fgraph.")]
    assert not any(isinstance(op, g.RecurrenceOp) for op in ops)
    return inputs, list(before.values()), ops


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("starts", [False, True])
def test_the_steps_compute_what_the_loop_does(dim, reverse, starts):
    net = Net()
    x = net.input(6, 6)
    start = net.input(*g.slice_shape((6, 6), dim, 3)) if starts else None
    loop = summed(net, x, start, steps=3, dim=dim, reverse=reverse)
    inputs, (y, last), ops = unrolled(net, *loop.results)
    state, made = inputs.get("x1", np.float32(0)), []
    (w,) = (net.store[op.key.data] for op in ops if isinstance(op, g.WeightOp))
    parts = np.split(inputs["x0"], 3, dim)
    for part in parts[::-1] if reverse else parts:
        state = state * w + part
        made.append(2 * state)
    np.testing.assert_allclose(y, np.concatenate(made[::-1] if reverse else made, dim), rtol=1e-6)
    np.testing.assert_allclose(last, state, rtol=1e-6)
    assert sum(isinstance(op, g.BinaryOp) for op in ops) == (6 if starts else 4), "no product with a state of 0"


def test_zeros_and_ones_are_followed():
    """Products with zeros are their biases, masks of ones are gone, and what else a zero goes through is computed."""
    net = Net()
    x, mask = net.input(4, 3), net.store.add("mask", np.float32([[1], [1], [1], [0]]))
    goes_on = net.builder.insert(g.WeightOp(mask, g.tensor_type(f32, (4, 1)))).result
    w, b = net.weight(3, 3), net.weight(3)

    def body(own, mask, h, c):
        sums = net.binary("add", net.layer(g.MatmulOp(h, w, b)), own)
        cell = net.unary("exp", net.layer(g.ReshapeOp(c, (2, 3))))
        kept = [net.binary("add", net.binary("keep", a, mask), net.binary("drop", b, mask))
                for a, b in ((sums, h), (cell, c))]  # fmt: skip
        return kept, [net.binary("mask", kept[0], mask)]

    loop = net.recurrence([x, goes_on], [None, None], body, steps=2)
    _, _, ops = unrolled(net, *loop.results)
    kinds = [str(op.kind) for op in ops if isinstance(op, g.BinaryOp | g.UnaryOp)]
    assert kinds[:2] == ["add", "exp"], "of the first step"
    assert sum(isinstance(op, g.MatmulOp) for op in ops) == 1
    assert len(kinds) == 2 + 9


def test_a_recurrence_in_a_recurrence():
    net = Net()
    x = net.input(4, 6)

    def body(own, before):
        part = net.layer(g.SliceOp(before, (0, 0), (2, 2), (1, 1)))
        inner = summed(net, own, part, steps=3, dim=1)
        return [net.binary("add", before, own)], [inner.outputs[0]]

    loop = net.recurrence([x], [None], body, steps=2)
    _, _, ops = unrolled(net, *loop.results)
    assert sum(isinstance(op, g.UnaryOp) for op in ops) == 6


def test_too_many_steps_are_refused_by_node():
    """Those of both directions of one node together; of others each for itself."""

    def module_of(*loops):
        net = Net()
        for name, steps, reverse in loops:
            op = summed(net, net.input(steps, 1), None, steps=steps, reverse=reverse)
            op.location = location_of([(name, "LSTM")])
        module, _ = net.module()
        module.attributes["frustum.model"] = StringAttr("m.onnx")
        return module

    UnrollRecurrences().apply(Context(), module_of(("a", 64, False), ("b", 64, True), ("c", 1, False), ("c", 63, True)))
    with pytest.raises(Unsupported) as raised:
        UnrollRecurrences().apply(
            Context(), module_of(("a", 65, True), ("b", 40, False), ("b", 40, True), ("c", 40, False), ("d", 40, True))
        )
    assert str(raised.value).splitlines() == [
        "m.onnx: node 'a' (LSTM): error: 65 steps are not supported: at most 64",
        "m.onnx: node 'b' (LSTM): error: 80 steps are not supported: at most 64",
    ]
