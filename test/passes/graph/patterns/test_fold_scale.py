"""Folding constants into layers: what becomes one layer, what stays, and that the numbers stay."""

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f16, f32

from frustum.dialects.graph import (
    BinaryOp,
    ConvOp,
    InterleaveOp,
    MatmulOp,
    NetworkOp,
    OutputOp,
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
