"""Planes of large maps are pooled in two steps, the first of which is a window; the numbers stay."""

import numpy as np
import pytest
from window_chains import machine
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

from frustum.dialects.graph import ActAttr, NetworkOp, OutputOp, PoolOp, ReduceOp, UnaryOp, tensor_type
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.analysis.windows import window_of
from frustum.passes.graph.pool_in_steps import PoolInSteps
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def steps_of(kind="mean", shape=(2, 3, 12, 20), axes=(2, 3), keepdims=True, made=True, sram=4096):
    """The operations behind the pass of a reduction, with the numbers before and after alike."""
    network = NetworkOp("net", [("x", tensor_type(f32, shape))], ["y"])
    block = network.body.block
    relu = UnaryOp(ActAttr.of("relu"), block.args[0])
    reduction = ReduceOp(kind, relu.result if made else block.args[0], axes, keepdims)
    block.add_ops([*([relu] if made else []), reduction, OutputOp([reduction.result])])
    module = ModuleOp([network], {TARGET: to_attribute(machine(1, 2, sram=sram))})
    attach(module, WeightStore())
    values = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    before = ReferenceExecutor(store_of(module)).run_graph(module, values)
    PoolInSteps().apply(Context(), module)
    module.verify()
    after = ReferenceExecutor(store_of(module)).run_graph(module, values)
    np.testing.assert_allclose(after["y"], before["y"], rtol=1e-5, atol=1e-6)
    return [op for op in block.ops if not isinstance(op, (UnaryOp, OutputOp))]


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("keepdims", [True, False])
def test_a_large_map_is_pooled_by_windows_first(kind, keepdims):
    pool, rest = steps_of(kind, keepdims=keepdims)
    assert isinstance(pool, PoolOp) and pool.kernel == pool.strides == (6, 4)
    assert isinstance(rest, ReduceOp) and rest.axes == (2, 3)


@pytest.mark.parametrize(
    "case",
    [
        {"sram": 1 << 20},  # it stays in any case
        {"made": False},  # it must be loaded as a whole in any case
        {"kind": "sum"},
        {"axes": (3,)},
        {"shape": (2, 3, 17, 19)},  # no window divides it
    ],
)
def test_others_stay_one_step(case):
    assert [type(op) for op in steps_of(**case)] == [ReduceOp]


def test_windows_are_large_and_dealt_evenly():
    assert window_of(160, 160, 4, 1000) == (8, 20)
    assert window_of(112, 112, 1, 151) == (8, 16)
    assert window_of(112, 112, 1, 20) == (1, 16)
    assert window_of(160, 160, 1, 170) == (5, 32)
    assert window_of(7, 13, 4, 100) == (7, 13)
    assert window_of(160, 160, 4, 0) == (1, 1)
    assert window_of(112, 112, 4, 32, is_tall=True) == (16, 2)
