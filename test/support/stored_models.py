"""Models whose weights are integers of a few bits with scales, and what their files hold."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
INTEGERS = {
    "int4": (TensorProto.INT4, 4, -8, 7),
    "uint4": (TensorProto.UINT4, 4, 0, 15),
    "int8": (TensorProto.INT8, 8, -128, 127),
    "uint8": (TensorProto.UINT8, 8, 0, 255),
    "int16": (TensorProto.INT16, 16, -32768, 32767),
    "uint16": (TensorProto.UINT16, 16, 0, 65535),
}
FLOATS = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16)}


class Graph:
    """An ONNX graph in the making; `stored_bytes` counts what the file has of each kind of constant."""

    def __init__(self, element="f32", seed=0):
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []
        self.element, self.rng = element, np.random.default_rng(seed)
        self.stored_bytes = 0

    @property
    def dtype(self):
        return FLOATS[self.element][1]

    def op(self, kind, *operands, domain="", **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], name=name, domain=domain, **attributes))
        return name

    def constant(self, array, name=None):
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def vector(self, *shape, mean=0.0, std=1.0):
        array = (self.rng.standard_normal(shape) * std + mean).astype(self.dtype)
        self.stored_bytes += array.nbytes
        return self.constant(array)

    def integers(self, kind, array, name=None):
        """A constant of integers, packed as ONNX packs them."""
        element, bits, *_ = INTEGERS[kind]
        name = name or f"q{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, element, array.shape, array.reshape(-1).tolist()))
        self.stored_bytes += -(-array.size * bits // 8)
        return name

    def weight(self, kind, shape, *, axis=0, block=0, per="channel", zeros=False, scale=None):
        """A dequantised weight: a scale for each `block` along `axis`, for each element of it, or for all."""
        _, _, low, high = INTEGERS[kind]
        q = self.rng.integers(low, high + 1, shape)
        if block:
            scales = tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
        else:
            scales = (shape[axis],) if per == "channel" else ()
        dtype = FLOATS[scale or self.element][1]
        values = (self.rng.uniform(0.5, 1.5, scales) / (high - low) / np.sqrt(np.prod(shape[:-1]))).astype(dtype)
        operands = [self.integers(kind, q), self.constant(values)]
        self.stored_bytes += values.nbytes
        if zeros:
            operands.append(self.integers(kind, self.rng.integers(low, high + 1, scales)))
        return self.op("DequantizeLinear", *operands, axis=axis, **({"block_size": block} if block else {}))

    def input(self, name, *shape):
        self.inputs.append(helper.make_tensor_value_info(name, FLOATS[self.element][0], shape))
        return name

    def output(self, name, *shape):
        self.outputs.append(helper.make_tensor_value_info(name, FLOATS[self.element][0], shape))

    def model(self, opset=OPSET):
        graph = helper.make_graph(self.nodes, "stored", self.inputs, self.outputs, self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.checker.check_model(made, full_check=True)
        return made


def product(kind="int4", rows=4, k=64, n=48, **how):
    """One MatMul."""
    g = Graph(how.pop("element", "f32"), how.pop("seed", 0))
    x = g.input("x", rows, k)
    g.output(g.op("MatMul", x, g.weight(kind, (k, n), **how)), rows, n)
    return g


def norm(g, x, size):
    mean = g.op("ReduceMean", g.op("Mul", x, x), g.constant(np.array([-1], np.int64)), keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(np.array(1e-5, g.dtype))))
    return g.op("Mul", g.op("Div", x, root), g.vector(size, mean=1.0, std=0.1))


def heads_of(g, x, rows, heads, size):
    shape = g.constant(np.array([1, rows, heads, size], np.int64))
    return g.op("Transpose", g.op("Reshape", x, shape), perm=[0, 2, 1, 3])


def llama_block(kind="int4", rows=16, d=256, ff=688, heads=4, element="f32", block=32, zeros=False):
    """Norms, attention, and a gated MLP, all products with stored weights."""
    g = Graph(element)
    size = d // heads
    x = g.input("x", 1, rows, d)

    def dense(y, k, n):
        if kind in FLOATS:
            return g.op("MatMul", y, g.vector(k, n, std=k**-0.5))
        return g.op("MatMul", y, g.weight(kind, (k, n), axis=0, block=block, zeros=zeros))

    y = norm(g, x, d)
    q, k, v = (heads_of(g, dense(y, d, d), rows, heads, size) for _ in range(3))
    q, k = g.op("Mul", q, g.constant(np.array(size**-0.5, g.dtype))), g.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = g.op("MatMul", q, k)
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    back = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant(np.array([1, rows, d], np.int64)))
    x = g.op("Add", x, dense(back, d, d))
    y = norm(g, x, d)
    gate, up = dense(y, d, ff), dense(y, d, ff)
    y = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
    g.output(g.op("Add", x, dense(y, ff, d)), 1, rows, d)
    return g
