"""Quantised models of the QDQ kind: layers of integers, within two steps of onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context
from xdsl.dialects.builtin import i8

from frustum.dialects import graph as g
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.fold_quantisation import FoldQuantisation, clip_of
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.host.oracle import oracle_outputs
from frustum.runtime.reference.graph import ReferenceExecutor

STEPS = 2
SHARE = 0.999


class Qdq:
    """A model built of layers between QuantizeLinear and DequantizeLinear."""

    def __init__(self, dtype):
        self.dtype, self.nodes, self.tensors, self.count = dtype, [], [], 0
        self.rng = np.random.default_rng(3)

    def name(self):
        self.count += 1
        return f"v{self.count}"

    def constant(self, array):
        name = self.name()
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind, *inputs, **attributes):
        name = self.name()
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{name}", **attributes))
        return name

    def converted(self, x, scale, zero=0):
        """Quantised and dequantised."""
        shift = 128 if self.dtype == np.uint8 else 0
        ends = self.constant(np.float32(scale)), self.constant(self.dtype(zero + shift))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *ends), *ends)

    def weights(self, shape, axis):
        count = shape[axis]
        array = self.rng.integers(-127, 128, shape).astype(np.int8)
        self.w_scales = (self.rng.random(count) * 0.01 + 0.002).astype(np.float32)
        names = self.constant(array), self.constant(self.w_scales), self.constant(np.zeros(count, np.int8))
        return self.op("DequantizeLinear", *names, axis=axis)

    def bias(self, x_scale):
        array = self.rng.integers(-3000, 3000, len(self.w_scales)).astype(np.int32)
        names = self.constant(array), self.constant(np.float32(x_scale) * self.w_scales)
        return self.op("DequantizeLinear", *names, axis=0)

    def model(self, output):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 12, 12])
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "qdq", [x], [y], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


def network(dtype):
    """Convolutions with relu and clip, a residual, pools, a concat, a matrix product; the last step."""
    n = Qdq(dtype)
    x = n.converted("x", 0.02, 5)
    a = n.op("Relu", n.op("Conv", x, n.weights((8, 4, 3, 3), 0), n.bias(0.02), pads=[1] * 4))
    a = n.converted(a, 0.03, -128)
    b = n.op("Clip", n.op("Conv", a, n.weights((8, 8, 1, 1), 0)), n.constant(np.float32(0)), n.constant(np.float32(6)))
    b = n.converted(b, 6 / 255, -128)
    c = n.converted(n.op("Add", a, b), 0.05, -120)
    average = n.converted(n.op("AveragePool", b, kernel_shape=[2, 2], strides=[2, 2]), 0.03, -120)
    most = n.op("MaxPool", c, kernel_shape=[2, 2], strides=[2, 2])
    d = n.converted(n.op("Concat", most, average, axis=1), 0.05, -120)
    e = n.converted(n.op("Sigmoid", d), 1 / 256, -128)
    f = n.converted(n.op("Mul", d, e), 0.05, -110)
    h = n.converted(n.op("GlobalAveragePool", f), 0.02, -100)
    dense = n.op("Gemm", n.op("Flatten", h), n.weights((12, 16), 0), n.bias(0.02), transB=1)
    dense = n.converted(n.op("Relu", dense), 0.1, -128)
    last = n.op("MatMul", dense, n.op("Transpose", n.weights((10, 12), 0), perm=[1, 0]))
    return n.model(n.converted(n.op("Add", last, n.bias(0.1)), 0.1, 3)), 0.1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_network_is_of_integers_from_end_to_end(dtype):
    proto, step = network(dtype)
    module = import_onnx(proto)
    for each in (Canonicalize(), FoldQuantisation()):
        each.apply(Context(), module)
        module.verify()
    kinds = [op.name for op in module.walk() if op.results and not isinstance(op, g.WeightOp)]
    assert kinds[0] == "fgraph.quantize" and kinds[-1] == "fgraph.dequantize"
    for op in module.walk():
        if op.results and not isinstance(op, g.WeightOp | g.DequantizeOp):
            assert g.is_integer(op.results[0]), op
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 4, 12, 12)).astype(np.float32)}
    (expected,) = oracle_outputs(proto, inputs).values()
    (found,) = ReferenceExecutor(store_of(module)).run_graph(module, inputs).values()
    assert (np.abs(found - expected) <= STEPS * step * (1 + 1e-5)).mean() >= SHARE


def test_one_dimensional_weights_are_seen_through_their_reshape():
    n = Qdq(np.int8)
    flat = n.op("Reshape", n.converted("x", 0.02, 5), n.constant(np.asarray([2, 4, 144])))
    y = n.converted(n.op("Conv", flat, n.weights((8, 4, 3), 0), n.bias(0.02), strides=[2]), 0.1)
    proto = n.model(y)
    module = import_onnx(proto)
    Canonicalize().apply(Context(), module)
    FoldQuantisation().apply(Context(), module)
    (conv,) = (op for op in module.walk() if isinstance(op, g.ConvOp))
    assert g.is_integer(conv.result)
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 4, 12, 12)).astype(np.float32)}
    (expected,) = oracle_outputs(proto, inputs).values()
    (found,) = ReferenceExecutor(store_of(module)).run_graph(module, inputs).values()
    assert (np.abs(found - expected) <= STEPS * 0.1 * (1 + 1e-5)).mean() >= SHARE


def test_a_convolution_with_another_activation_stays_in_f32():
    n = Qdq(np.int8)
    x = n.converted("x", 0.02, 5)
    y = n.converted(n.op("Tanh", n.op("Conv", x, n.weights((8, 4, 3, 3), 0))), 0.01)
    module = import_onnx(n.model(y))
    FoldQuantisation().apply(Context(), module)
    module.verify()
    (conv,) = (op for op in module.walk() if isinstance(op, g.ConvOp))
    assert not g.is_integer(conv.x)


@pytest.mark.parametrize(
    ("act", "scale", "expected"),
    [
        (g.ActAttr.of("relu"), (0.5, -128), None),
        (g.ActAttr.of("relu"), (0.5, 3), (3, 127)),
        (g.ActAttr.of("clip", 0, 6), (0.1, -128), (-128, -68)),
        (g.ActAttr.of("clip", -1, 1), (0.001, 0), None),
        (None, (1, 0), None),
    ],
)
def test_the_ends_of_an_activation_in_steps(act, scale, expected):
    found = clip_of(act, g.ScaleAttr.of(*scale), i8)
    assert found == (None if expected is None else g.ActAttr.of("clip", *expected))
