"""Folding constants into layers: what becomes one layer, what stays, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f16, f32

from frustum.dialects.graph import (
    ActAttr,
    BinaryOp,
    ConvOp,
    InterleaveOp,
    MatmulOp,
    NetworkOp,
    OutputOp,
    TransposeOp,
    UnaryOp,
    WeightOp,
    shape_of,
    tensor_of,
    tensor_type,
)
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.reference.graph import ReferenceExecutor


class Net:
    """A network of one input, built operation by operation."""

    def __init__(self, shape, element=f32, seed=0):
        self.rng = np.random.default_rng(seed)
        self.store, self.element = WeightStore(), element
        self.network = NetworkOp("net", [("x", tensor_type(element, shape))], ["y"])
        self.x = self.network.body.block.args[0]

    def add(self, op):
        self.network.body.block.add_op(op)
        return op.results[0] if op.results else None

    def weight(self, *shape):
        dtype = np.float16 if self.element == f16 else np.float32
        array = self.rng.uniform(0.5, 1.5, shape).astype(dtype)
        return self.add(WeightOp(self.store.add("w", array), tensor_type(self.element, shape)))

    def module(self, y):
        self.add(OutputOp([y]))
        module = ModuleOp([self.network])
        attach(module, self.store)
        module.verify()
        return module


def check(module, left, tolerance=1e-5):
    """Simplifies; compares the numbers; `left` are the layers that remain."""
    (network,) = module.body.block.ops
    shape = shape_of(network.body.block.args[0])
    inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    before = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    Canonicalize().apply(Context(), module)
    module.verify()
    after = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    np.testing.assert_allclose(after, before, rtol=0, atol=tolerance * np.abs(before).max())
    layers = [op for op in network.body.block.ops if not isinstance(op, WeightOp | OutputOp)]
    assert [type(op) for op in layers] == left
    return layers


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (6, 1, 1), (1,), ()])
@pytest.mark.parametrize("biased", [False, True])
def test_after_a_convolution(kind, shape, biased):
    net = Net((2, 4, 5, 5))
    conv = ConvOp(
        net.x, net.weight(6, 2, 3, 3), net.weight(6) if biased else None, pads=(1, 0, 1, 2), groups=2
    )
    y = net.add(BinaryOp(kind, net.add(conv), net.weight(*shape)))
    check(net.module(y), [ConvOp])


@pytest.mark.parametrize("kind", ["add", "mul"])
def test_the_constant_may_come_first(kind):
    net = Net((2, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(6, 4, 1, 1)))
    check(net.module(net.add(BinaryOp(kind, net.weight(6, 1, 1), conv))), [ConvOp])


def test_a_constant_minus_a_layer_stays():
    net = Net((2, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(6, 4, 1, 1)))
    check(net.module(net.add(BinaryOp("sub", net.weight(6, 1, 1), conv))), [ConvOp, BinaryOp])


@pytest.mark.parametrize("shape", [(1, 6, 5, 1), (5,), (1, 6, 5, 5)])
def test_a_constant_that_varies_over_the_plane_stays(shape):
    net = Net((1, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(6, 4, 1, 1)))
    check(net.module(net.add(BinaryOp("mul", conv, net.weight(*shape)))), [ConvOp, BinaryOp])


def test_a_result_used_twice_stays():
    net = Net((1, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(4, 4, 1, 1)))
    scaled = net.add(BinaryOp("mul", conv, net.weight(4, 1, 1)))
    check(net.module(net.add(BinaryOp("add", scaled, conv))), [ConvOp, BinaryOp, BinaryOp])


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_around_a_matrix_product(trans_b, batch):
    net = Net((3, 2, 5))
    before = net.add(BinaryOp("mul", net.x, net.weight(5)))
    b = net.weight(*batch, *((7, 5) if trans_b else (5, 7)))
    product = net.add(MatmulOp(before, b, trans_b=trans_b))
    y = net.add(BinaryOp("add", net.add(BinaryOp("mul", product, net.weight(7))), net.weight(1, 7)))
    check(net.module(y), [MatmulOp])


@pytest.mark.parametrize("kind", ["mul", "div", "add", "sub"])
@pytest.mark.parametrize("groups", [1, 2])
def test_before_a_convolution(kind, groups):
    net = Net((2, 4, 5, 5))
    before = net.add(BinaryOp(kind, net.x, net.weight(4, 1, 1)))
    conv = ConvOp(before, net.weight(6, 4 // groups, 3, 3), net.weight(6), groups=groups, pads=(0, 0, 0, -1))
    check(net.module(net.add(conv)), [ConvOp])


def test_a_shift_before_a_padded_convolution_stays():
    net = Net((2, 4, 5, 5))
    before = net.add(BinaryOp("add", net.x, net.weight(4, 1, 1)))
    conv = ConvOp(before, net.weight(6, 4, 3, 3), pads=(1, 1, 1, 1))
    check(net.module(net.add(conv)), [BinaryOp, ConvOp])


def test_through_an_interleaving():
    net = Net((1, 4, 3, 3))
    parts = [net.add(ConvOp(net.x, net.weight(2, 4, 1, 1))) for _ in range(4)]
    woven = net.add(InterleaveOp(parts, (2, 2)))
    y = net.add(BinaryOp("add", net.add(BinaryOp("mul", woven, net.weight(2, 1, 1))), net.weight(2, 1, 1)))
    check(net.module(y), [ConvOp] * 4 + [InterleaveOp])


def test_a_bias_is_f32_in_a_half_precision_network():
    net = Net((2, 4, 5, 5), f16)
    conv = net.add(ConvOp(net.x, net.weight(6, 4, 1, 1), net.weight(6)))
    (conv,) = check(net.module(net.add(BinaryOp("mul", conv, net.weight(6, 1, 1)))), [ConvOp], 2e-3)
    assert tensor_of(conv.w).element_type == f16
    assert tensor_of(conv.bias).element_type == f32


def test_old_weights_stay_in_the_store():
    net = Net((2, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(6, 4, 1, 1)))
    module = net.module(net.add(BinaryOp("mul", conv, net.weight(6, 1, 1))))
    before = net.store["w"].copy()
    (conv,) = check(module, [ConvOp])
    np.testing.assert_array_equal(net.store["w"], before)
    assert conv.w.owner.key.data == "w~"


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


@pytest.mark.slow
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


MAGIC = 12582912.0
"""1.5 * 2 ** 23: what is added to it is rounded to a whole number."""


class Constant(Net):
    """A network with constants of given numbers."""

    def number(self, value, *shape):
        key = self.store.add("c", np.full(shape, value, np.float32))
        return self.add(WeightOp(key, tensor_type(self.element, shape)))

    def plus(self, x, value, *shape, kind="add"):
        return self.add(BinaryOp(kind, x, self.number(value, *shape)))


def kept(module, tolerance=0.0):
    """What it computes before and after is the same, to the bit but for the tolerance."""
    (network,) = module.body.block.ops
    shape = shape_of(network.body.block.args[0])
    inputs = {"x": 20 * np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    with np.errstate(all="ignore"):
        before = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
        Canonicalize().apply(Context(), module)
        after = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance)
    return before


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([("div", 8.0)], [("affine", 0.125)]),
        ([("div", -0.25)], [("affine", -4.0)]),
        ([("div", 6.0)], []),
        ([("mul", 37.0), ("div", 2.0**22)], [("affine", 37.0 / 2**22)]),
        ([("mul", 3.0), ("mul", 37.0), ("div", 4.0)], [("affine", 9.25)]),  # on its way out of the first product
        ([("mul", 37.0), ("div", 3.0)], []),
        ([("div", 3.0), ("div", 8.0)], [("affine", 0.125)]),  # no product of what a division rounds
    ],
)
def test_powers_of_two_change_no_digit(steps, wanted):
    net = Constant((1, 6, 4, 5))
    x = net.x
    for kind, value in steps:
        x = net.plus(x, value, kind=kind)
    module = net.module(x)
    kept(module)
    made = [op.act.data for op in module.walk() if isinstance(op, UnaryOp | BinaryOp) and op.act is not None]
    assert [(act.kind, act.alpha) for act in made] == wanted
    gone = sum(kind == "mul" for kind, _ in steps[-2:]) + 1 if wanted else 0
    assert sum(isinstance(op, BinaryOp) for op in module.walk()) == len(steps) - gone


@pytest.mark.parametrize("shape", [(), (6, 1, 1), (1, 6, 1, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_rounding_behind_a_convolution_stays(shape, biased):
    net = Constant((1, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(6, 4, 1, 1), net.weight(6) if biased else None))
    y = net.plus(net.plus(conv, MAGIC, *shape), MAGIC, *shape, kind="sub")
    found = kept(net.module(y))
    np.testing.assert_array_equal(found, np.rint(found))


def test_rounding_behind_a_product_whose_bias_it_is_stays():
    net = Constant((3, 5))
    product = net.add(MatmulOp(net.x, net.weight(5, 7), net.number(MAGIC, 7)))
    found = kept(net.module(net.plus(product, MAGIC, 7, kind="sub")))
    np.testing.assert_array_equal(found, np.rint(found))


@pytest.mark.parametrize("turned", [False, True])
def test_rounding_before_a_layer_stays(turned):
    """The constant that is taken out again is not multiplied by the weights, behind a move neither."""
    net = Constant((2, 5, 4) if turned else (2, 4, 5))
    x = net.plus(net.x, MAGIC, *((4,) if turned else (5,)))
    x = net.add(TransposeOp(x, (0, 2, 1))) if turned else x
    kept(net.module(net.add(MatmulOp(net.plus(x, MAGIC, 5, kind="sub"), net.weight(5, 3)))), 1e-5)


def test_rounding_without_a_layer_stays():
    net = Constant((1, 4, 5, 5))
    found = kept(net.module(net.plus(net.plus(net.x, MAGIC, 4, 1, 1), MAGIC, 4, 1, 1, kind="sub")))
    np.testing.assert_array_equal(found, np.rint(found))


def test_rounding_of_a_transposed_convolutions_parts_stays():
    net = Constant((1, 4, 3, 3))
    woven = net.add(InterleaveOp([net.add(ConvOp(net.x, net.weight(2, 4, 1, 1))) for _ in range(4)], (2, 2)))
    found = kept(net.module(net.plus(net.plus(woven, MAGIC, 2, 1, 1), MAGIC, 2, 1, 1, kind="sub")))
    np.testing.assert_array_equal(found, np.rint(found))


@pytest.mark.parametrize("first", [1e38, 1e-38])
@pytest.mark.parametrize("where", ["alone", "after", "before"])
def test_factors_whose_product_is_one_stay_where_the_first_overflows(first, where):
    net = Constant((1, 4, 3, 3))
    x = net.add(ConvOp(net.x, net.weight(4, 4, 1, 1))) if where == "after" else net.x
    x = net.plus(x, first, 4, 1, 1, kind="mul")
    if where == "before":
        y = net.add(ConvOp(x, net.number(1 / first, 4, 4, 1, 1)))
    else:
        y = net.plus(x, 1 / first, 4, 1, 1, kind="mul")
    found = kept(net.module(y), 1e-5)
    assert first < 1 or np.isinf(found).any() or np.isnan(found).any()


def test_a_batch_normalisation_whose_mean_is_the_bias_still_goes_in():
    net = Constant((1, 4, 5, 5))
    conv = net.add(ConvOp(net.x, net.weight(4, 4, 1, 1), net.number(0.5, 4)))
    shift = net.number(0.3, 4, 1, 1)
    net.store[shift.owner.key.data] = np.float32([-0.5, -0.499, 0.3, 0.2]).reshape(4, 1, 1)
    check(net.module(net.add(BinaryOp("add", conv, shift))), [ConvOp])
