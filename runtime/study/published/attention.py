# Tests: test/runtime/study/published/test_cases.py
"""Attention and layers of transformers of published figures, as ONNX models with seeded weights.

Without norms, biases and residuals, as the mappers that publish figures describe them.  Weights are random: neither
bytes nor cycles depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from frustum.runtime.kernels import Array

OPSET, IR_VERSION = 17, 8
SPREAD = 0.03
"""Of weights."""
Shapes = Mapping[str, Sequence[int]]


def attention(heads: int, queries: int, keys: int, width: int) -> onnx.ModelProto:
    """softmax(q k^T / sqrt(width)) v of `heads` heads."""
    nodes = [_node("Transpose", ["k"], "kt", perm=[0, 1, 3, 2]), *_attended("q", "kt", "v", "y")]
    shapes = {"q": [1, heads, queries, width], "k": [1, heads, keys, width], "v": [1, heads, keys, width]}
    scale = {"scale": np.array(width**-0.5, np.float32)}
    return _model("attention", nodes, shapes, {"y": [1, heads, queries, width]}, scale)


def transformer_layer(tokens: int, width: int, heads: int, hidden: int) -> onnx.ModelProto:
    """Prefill: attention of all tokens to all, then a rectified layer of `hidden` channels and one back."""
    nodes = []
    for each in "qkv":
        perm = [0, 2, 3, 1] if each == "k" else [0, 2, 1, 3]
        nodes += _projected(each, perm)
    nodes += _attended("q_heads", "k_heads", "v_heads", "o_heads")
    nodes += _rest()
    constants = _layer_weights(width, heads, hidden) | {
        "heads": np.array([1, tokens, heads, width // heads]), "joined": np.array([1, tokens, width])
    }  # fmt: skip
    return _model("transformer_layer", nodes, {"x": [1, tokens, width]}, {"y": [1, tokens, width]}, constants)


def transformer_step(cached: int, width: int, heads: int, hidden: int) -> onnx.ModelProto:
    """Decode: one token after `cached` ones, whose keys and values are inputs; its own are outputs."""
    each_width = width // heads
    nodes = []
    for each in "qkv":
        nodes += _projected(each, [0, 2, 1, 3])
    nodes += [
        _node("Concat", ["k_cached", "k_heads"], "k_all", axis=2),
        _node("Concat", ["v_cached", "v_heads"], "v_all", axis=2),
        _node("Transpose", ["k_all"], "k_turned", perm=[0, 1, 3, 2]),
        *_attended("q_heads", "k_turned", "v_all", "o_heads"),
        *_rest(),
    ]
    constants = _layer_weights(width, heads, hidden) | {
        "heads": np.array([1, 1, heads, each_width]), "joined": np.array([1, 1, width])
    }  # fmt: skip
    cache = [1, heads, cached, each_width]
    inputs = {"x": [1, 1, width], "k_cached": cache, "v_cached": cache}
    outputs = {"y": [1, 1, width], "k_heads": [1, heads, 1, each_width], "v_heads": [1, heads, 1, each_width]}
    return _model("transformer_step", nodes, inputs, outputs, constants)


def _projected(each: str, perm: Sequence[int]) -> list[onnx.NodeProto]:
    return [
        _node("MatMul", ["x", f"w_{each}"], each),
        _node("Reshape", [each, "heads"], f"{each}_split"),
        _node("Transpose", [f"{each}_split"], f"{each}_heads", perm=perm),
    ]


def _attended(q: str, k_turned: str, v: str, y: str) -> list[onnx.NodeProto]:
    return [
        _node("MatMul", [q, k_turned], "scores"),
        _node("Mul", ["scores", "scale"], "scaled"),
        _node("Softmax", ["scaled"], "shares", axis=-1),
        _node("MatMul", ["shares", v], y),
    ]


def _rest() -> list[onnx.NodeProto]:
    """From the heads of attention to the output."""
    return [
        _node("Transpose", ["o_heads"], "o_turned", perm=[0, 2, 1, 3]),
        _node("Reshape", ["o_turned", "joined"], "o"),
        _node("MatMul", ["o", "w_o"], "z"),
        _node("MatMul", ["z", "w_1"], "hidden"),
        _node("Relu", ["hidden"], "rectified"),
        _node("MatMul", ["rectified", "w_2"], "y"),
    ]


def _layer_weights(width: int, heads: int, hidden: int) -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {f"w_{each}": (width, width) for each in "qkvo"} | {"w_1": (width, hidden), "w_2": (hidden, width)}
    found = {name: random.standard_normal(shape, np.float32) * SPREAD for name, shape in shapes.items()}
    return found | {"scale": np.array((width // heads) ** -0.5, np.float32)}


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=f"{kind.lower()}_{output}", **attributes)


def _model(
    name: str, nodes: Sequence[onnx.NodeProto], inputs: Shapes, outputs: Shapes, constants: Mapping[str, Array]
) -> onnx.ModelProto:
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(each, float32, shape) for each, shape in inputs.items()],
        [helper.make_tensor_value_info(each, float32, shape) for each, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), each) for each, array in constants.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


LAYERS: dict[str, Callable[..., onnx.ModelProto]] = {
    build.__name__: build for build in (attention, transformer_layer, transformer_step)
}
