"""Poolings with strides of concatenations go part by part where these are too large to stay; the numbers stay."""

import numpy as np
import pytest
from window_chains import machine
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

from frustum.dialects.graph import ConcatOp, NetworkOp, OutputOp, PoolOp, tensor_type
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.graph.pool_parts import PoolParts
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def of_side_by_side(kind="max", strides=(2, 2), axis=1, also=False, sram=4096):
    """Names of the operations behind the pass of a pooling of maps that lie side by side, with the numbers
    before and after alike; `also`: they are an output too."""
    rng, shapes = np.random.default_rng(0), [(1, 3, 9, 10), (1, 5, 9, 10) if axis == 1 else (1, 3, 9, 10)]
    names = ["a", "b"]
    inputs = [(name, tensor_type(f32, shape)) for name, shape in zip(names, shapes, strict=True)]
    network = NetworkOp("net", inputs, ["y", "z"] if also else ["y"])
    block = network.body.block
    concat = ConcatOp(block.args, axis)
    pool = PoolOp(kind, concat.result, kernel=(3, 3), strides=strides, pads=(1, 1, 1, 1), ceil_pads=(1, 1))
    block.add_ops([concat, pool, OutputOp([pool.result, *([concat.result] * also)])])
    module = ModuleOp([network], {TARGET: to_attribute(machine(1, 2, sram=sram))})
    attach(module, WeightStore())
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in zip(names, shapes, strict=True)}
    before = ReferenceExecutor(store_of(module)).run_graph(module, values)
    PoolParts().apply(Context(), module)
    module.verify()
    after = ReferenceExecutor(store_of(module)).run_graph(module, values)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    return [type(op).__name__ for op in network.body.block.ops]


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_parts_are_pooled_before_they_lie_side_by_side(kind):
    assert of_side_by_side(kind) == ["PoolOp", "PoolOp", "ConcatOp", "OutputOp"]


@pytest.mark.parametrize("given", [{"strides": (1, 1)}, {"axis": 2}, {"also": True}, {"sram": 8192}])
def test_the_whole_is_pooled(given):
    """Where nothing gets smaller, the parts are no channels, the whole is needed, or it fits (2,880 bytes)."""
    assert of_side_by_side(**given) == ["ConcatOp", "PoolOp", "OutputOp"]
