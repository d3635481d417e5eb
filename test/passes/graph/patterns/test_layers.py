"""Means over windows move before pointwise convolutions, and poolings before concatenations, where that makes maps
smaller; the numbers stay."""

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

from frustum.dialects.graph import (
    ActAttr,
    ConcatOp,
    ConvOp,
    NetworkOp,
    OutputOp,
    PoolOp,
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


def of_side_by_side(kind="max", strides=(2, 2), axis=1, also=False):
    """Names of the operations behind canonicalisation of a pooling of maps that lie side by side, with the numbers
    before and after alike; `also`: they are an output too."""
    rng, shapes = np.random.default_rng(0), [(1, 3, 9, 10), (1, 5, 9, 10) if axis == 1 else (1, 3, 9, 10)]
    names = ["a", "b"]
    inputs = [(name, tensor_type(f32, shape)) for name, shape in zip(names, shapes, strict=True)]
    network = NetworkOp("net", inputs, ["y", "z"] if also else ["y"])
    block = network.body.block
    concat = ConcatOp(block.args, axis)
    pool = PoolOp(kind, concat.result, kernel=(3, 3), strides=strides, pads=(1, 1, 1, 1), ceil_pads=(1, 1))
    block.add_ops([concat, pool, OutputOp([pool.result, *([concat.result] * also)])])
    module = ModuleOp([network])
    attach(module, WeightStore())
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in zip(names, shapes, strict=True)}
    before = ReferenceExecutor(store_of(module)).run_graph(module, values)
    Canonicalize().apply(Context(), module)
    module.verify()
    after = ReferenceExecutor(store_of(module)).run_graph(module, values)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    return [type(op).__name__ for op in network.body.block.ops]


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_parts_are_pooled_before_they_lie_side_by_side(kind):
    assert of_side_by_side(kind) == ["PoolOp", "PoolOp", "ConcatOp", "OutputOp"]


@pytest.mark.parametrize("given", [{"strides": (1, 1)}, {"axis": 2}, {"also": True}])
def test_the_whole_is_pooled(given):
    """Where nothing gets smaller, the parts are no channels, or the whole is needed."""
    assert of_side_by_side(**given) == ["ConcatOp", "PoolOp", "OutputOp"]
