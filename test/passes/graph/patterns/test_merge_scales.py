"""Chains of constant scales and shifts become one of each; what would lose digits or grow stays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

from frustum.dialects.graph import (
    ActAttr,
    BinaryOp,
    NetworkOp,
    OutputOp,
    WeightOp,
    shape_of,
    tensor_type,
)
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.reference.graph import ReferenceExecutor

SHAPE = (2, 5, 3, 4)
CONSTANTS = ((1, 5, 1, 1), (5, 1, 1), (1,), (1, 1, 1, 4), SHAPE)


def chain(steps, *, seed=0, size=1.0):
    """A module of constant steps: (kind, shape of the constant, whether it stands left, activation)."""
    rng, store = np.random.default_rng(seed), WeightStore()
    network = NetworkOp("net", [("x", tensor_type(f32, SHAPE))], ["y"])
    block = network.body.block
    y = block.args[0]
    for kind, shape, left, act in steps:
        values = (size * rng.uniform(0.5, 1.5, shape)).astype(np.float32)
        weight = WeightOp(store.add("w", values), tensor_type(f32, shape))
        operands = (weight.result, y) if left else (y, weight.result)
        op = BinaryOp(kind, *operands, act=ActAttr.of(act) if act else None)
        block.add_ops([weight, op])
        y = op.result
    block.add_op(OutputOp([y]))
    module = ModuleOp([network])
    attach(module, store)
    return module


def kinds(module):
    """Kinds of what is left, with the numbers before and after alike."""
    inputs = {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)}
    before = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    Canonicalize().apply(Context(), module)
    module.verify()
    after = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.abs(before).max())
    (network,) = module.body.block.ops
    left = [op for op in network.body.block.ops if isinstance(op, BinaryOp)]
    assert all(shape_of(op.result) == SHAPE for op in left)
    return [str(op.kind) for op in left]


BY_CHANNEL = (1, 5, 1, 1)


def test_a_normalisation_with_a_scale_behind_it_is_two_layers():
    steps = [("mul", BY_CHANNEL), ("add", BY_CHANNEL), ("mul", (5, 1, 1)), ("add", (5, 1, 1))]
    module = chain([(*step, False, "relu" if k == 3 else None) for k, step in enumerate(steps)])
    assert kinds(module) == ["mul", "add"]


def test_a_shift_then_a_scale_stay_as_they_are():
    assert kinds(chain([("add", BY_CHANNEL, False, None), ("mul", BY_CHANNEL, True, None)])) == ["add", "mul"]


def test_an_activation_keeps_them_apart():
    module = chain([("mul", BY_CHANNEL, False, "relu"), ("mul", BY_CHANNEL, False, None)])
    assert kinds(module) == ["mul", "mul"]


def test_no_constant_grows():
    assert kinds(chain([("mul", BY_CHANNEL, False, None), ("mul", (1, 1, 1, 4), False, None)])) == ["mul"] * 2


def test_factors_that_16_bits_cannot_hold_stay_apart():
    module = chain([("mul", BY_CHANNEL, False, None)] * 2, size=1e-3)
    assert kinds(module) == ["mul", "mul"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mul", "add", "sub", "div"]),
            st.sampled_from(CONSTANTS),
            st.booleans(),
            st.sampled_from([None, None, "relu"]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_numbers_stay(steps, seed):
    """On any chain, whatever is merged."""
    steps = [(kind, shape, left and kind in ("mul", "add"), act) for kind, shape, left, act in steps]
    assert len(kinds(chain(steps, seed=seed))) <= len(steps)


def test_single_numbers_stay_apart():
    """A model's integers are divided with rounding: 5 x / 3 is not (5 / 3) x."""
    assert kinds(chain([("mul", (), False, None), ("div", (), False, None)])) == ["mul", "div"]
