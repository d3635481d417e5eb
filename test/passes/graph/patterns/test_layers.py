"""Means over windows move before pointwise convolutions where that makes maps smaller; the numbers stay."""

import numpy as np
import pytest
from networks import Net
from stops import run_module
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

from frustum.dialects.graph import (
    ActAttr,
    BinaryOp,
    ConvOp,
    NetworkOp,
    OutputOp,
    PoolOp,
    UnaryOp,
    WeightOp,
    tensor_type,
)
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def order(*, inputs=8, outputs=6, kind="avg", act=None, kernel=1, pool=(2, 2), pads=(0,) * 4, groups=1):
    """Names of the layers after canonicalisation, with the numbers before and after alike."""
    rng, store = np.random.default_rng(0), WeightStore()
    shape = (2, inputs, 9, 10)
    network = NetworkOp("net", [("x", tensor_type(f32, shape))], ["y"])
    block = network.body.block
    weights = []
    for dims in ((outputs, inputs // groups, kernel, kernel), (outputs,)):
        array = rng.standard_normal(dims).astype(np.float32)
        weights.append(WeightOp(store.add("w", array), tensor_type(f32, dims)))
    w, b = weights
    act = ActAttr.of(act) if act else None
    conv = ConvOp(block.args[0], w.result, b.result, groups=groups, act=act)
    behind = PoolOp(kind, conv.result, kernel=pool, strides=(2, 2), pads=pads, act=ActAttr.of("relu"))
    block.add_ops([w, b, conv, behind, OutputOp([behind.result])])
    module = ModuleOp([network])
    attach(module, store)
    values = {"x": rng.standard_normal(shape).astype(np.float32)}
    before = ReferenceExecutor(store_of(module)).run_graph(module, values)["y"]
    Canonicalize().apply(Context(), module)
    module.verify()
    after = ReferenceExecutor(store_of(module)).run_graph(module, values)["y"]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)
    (network,) = module.body.block.ops
    return [type(op).__name__ for op in network.body.block.ops if isinstance(op, ConvOp | PoolOp)]


@pytest.mark.parametrize("given", [{}, {"pool": (3, 3)}, {"groups": 2}, {"outputs": 2}])
def test_the_mean_is_taken_first(given):
    assert order(**given) == ["PoolOp", "ConvOp"]


@pytest.mark.parametrize(
    "given",
    [{"kind": "max"}, {"act": "relu"}, {"kernel": 3}, {"pads": (1, 1, 1, 1)}, {"inputs": 40, "outputs": 2}],
)
def test_the_order_stays(given):
    """Where it is no mean, or no mean of the same, or larger maps come of it."""
    assert order(**given) == ["ConvOp", "PoolOp"]


@pytest.mark.parametrize(
    ("again", "turned", "act", "found"),
    [
        (False, False, None, ["conv silu"]),
        (False, True, None, ["conv silu"]),
        (True, False, None, ["conv None", "sigmoid", "mul None"]),
        (False, False, "relu", ["conv None", "sigmoid", "mul relu"]),
    ],
)
def test_a_value_times_its_sigmoid_is_one_function(again, turned, act, found):
    """`again`: the sigmoid is an output too; `turned`: it stands first."""
    net = Net()
    made = net.conv(net.input(1, 3, 6, 6), 5)
    gate = net.unary("sigmoid", made)
    pair = (gate, made) if turned else (made, gate)
    product = net.layer(BinaryOp("mul", *pair, act=act and ActAttr.of(act)))
    module, values = net.module(product, *([gate] if again else []))
    before = run_module(module, values)
    Canonicalize().apply(Context(), module)
    module.verify()
    for name, array in run_module(module, values).items():
        np.testing.assert_allclose(array, before[name], rtol=1e-5, atol=1e-6)
    assert [said(op) for op in module.walk() if isinstance(op, ConvOp | UnaryOp | BinaryOp)] == found


def said(op):
    if isinstance(op, UnaryOp):
        return str(op.kind)
    return f"{'conv' if isinstance(op, ConvOp) else op.kind} {op.act and op.act.data.kind}"
