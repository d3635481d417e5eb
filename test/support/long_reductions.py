"""Layers over long rows, and how far their results are from the exact ones, beside those of onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import frustum

TYPES = {"f16": (np.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}
ROWS, HEAD = 4, 32


def inputs(kind: str, length: int, scale: float, dtype: str, seed: int = 0):
    """Of one layer, in the element type; rows of softmax and norms, queries with so many keys."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 1, ROWS, HEAD), *[(1, 1, length, HEAD)] * 2] if kind == "attention" else [(ROWS, length)]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    if kind == "layer_norm":
        arrays[0] += 3
    for array in arrays[:1] if kind == "attention" else arrays:
        array *= scale
    return {name: array.astype(TYPES[dtype][0]) for name, array in zip("xkv", arrays, strict=False)}


def model(kind: str, feeds, element: int):
    """The layer as a network of one node."""
    node = {
        "softmax": helper.make_node("Softmax", ["x"], ["y"], axis=-1),
        "layer_norm": helper.make_node("LayerNormalization", ["x", "w"], ["y"], epsilon=1e-5),
        "attention": helper.make_node("Attention", ["x", "k", "v"], ["y"], scale=1.0),
    }[kind]
    values = [helper.make_tensor_value_info(name, element, array.shape) for name, array in feeds.items()]
    result = helper.make_tensor_value_info("y", element, feeds["x"].shape)
    ones = [helper.make_tensor("w", element, feeds["x"].shape[-1:], np.ones(feeds["x"].shape[-1]))]
    graph = helper.make_graph([node], kind, values, [result], ones if kind == "layer_norm" else [])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(made)
    return made


def exact(kind: str, feeds):
    """In f64."""
    x, *others = (array.astype(np.float64) for array in feeds.values())
    if kind == "layer_norm":
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)
    if others:
        x = x @ others[0].swapaxes(2, 3)
    powers = np.exp(x - x.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ others[1] if others else weights


def errors(kind: str, length: int, scale: float, dtype: str, target: str, carry: str = "f32", seed: int = 0,
           **options):
    """The largest error of our result, and of onnxruntime's, which computes in f32 and rounds its result."""
    feeds, (element, onnx_type) = inputs(kind, length, scale, dtype, seed), TYPES[dtype]
    compiled = frustum.compile(model(kind, feeds, onnx_type), target, dtype, carry=carry, host="never", **options)
    ours = frustum.run(compiled, feeds, checked=True).outputs["y"]
    wide = {name: array.astype(np.float32) for name, array in feeds.items()}
    session = onnxruntime.InferenceSession(
        model(kind, feeds, TensorProto.FLOAT).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    theirs = session.run(None, wide)[0].astype(element)
    wanted = exact(kind, feeds)
    return tuple(np.abs(found.astype(np.float64) - wanted).max() for found in (ours, theirs))
