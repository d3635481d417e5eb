"""ONNX models of which the device runs a part: nodes it has, and nodes it lacks."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]] | list[onnx.ValueInfoProto],
    outputs: list[str],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A model of these nodes; `inputs` are of f32 where only their shapes are given."""
    if isinstance(inputs, dict):
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(
        nodes,
        "mixed",
        inputs,
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(operator: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    """A node with the name of its first output."""
    return helper.make_node(operator, inputs, outputs, outputs[0], **attributes)


def sandwich(channels: int = 32, size: int = 32) -> onnx.ModelProto:
    """Convolution on the device, HardMax on the host, convolution on the device; a skip around both."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((channels, channels, 3, 3), np.float32) / channels
    nodes = [
        node("Conv", ["x", "w"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Hardmax", ["r1"], ["h"], axis=1),
        node("Conv", ["h", "w"], ["c2"], pads=[1, 1, 1, 1]),
        node("Add", ["c2", "x"], ["y"]),
    ]
    return model(nodes, {"x": (1, channels, size, size)}, ["y", "r1"], {"w": weights})


def controlled() -> onnx.ModelProto:
    """A loop of as many steps as the input `n` says, around a value that the device makes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_out"]),
            helper.make_node("Mul", ["carried", "scale"], ["grown"]),
            helper.make_node("Add", ["grown", "r"], ["next"]),  # `r` is from outside
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, (1, 4)),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, (1, 4)),
        ],
    )
    nodes = [
        node("Relu", ["x"], ["r"]),
        helper.make_node("Loop", ["n", "go", "r"], ["y"], "loop", body=body),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4)),
        helper.make_tensor_value_info("n", TensorProto.INT64, ()),
    ]
    return model(nodes, inputs, ["y"], {"go": np.array(True), "scale": np.float32(0.5)})


def transformer(width: int = 64, tokens: int = 48, words: int = 100) -> onnx.ModelProto:
    """Token ids and a mask of INT64, an embedding, attention, two products, a choice of words."""
    rng = np.random.default_rng(0)
    constants = {
        "words": rng.standard_normal((words, width), np.float32),
        "gamma": np.ones(width, np.float32),
        "beta": np.zeros(width, np.float32),
        "one": np.float32(1),
        "low": np.float32(-1e4),
        "axes": np.array([1]),
        "up": rng.standard_normal((width, 4 * width), np.float32) / 16,
        "down": rng.standard_normal((4 * width, width), np.float32) / 16,
    } | {name: rng.standard_normal((width, width), np.float32) / 16 for name in ("wq", "wk", "wv")}
    nodes = [
        node("Gather", ["words", "ids"], ["x"]),
        node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        node("Sub", ["one", "kept"], ["hidden"]),
        node("Mul", ["hidden", "low"], ["lowered"]),
        node("Unsqueeze", ["lowered", "axes"], ["row"]),
        node("LayerNormalization", ["x", "gamma", "beta"], ["n"]),
        *(node("MatMul", ["n", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Add", ["scores", "row"], ["masked"]),
        node("Softmax", ["masked"], ["a"], axis=-1),
        node("MatMul", ["a", "v"], ["seen"]),
        node("Add", ["seen", "x"], ["r"]),
        node("MatMul", ["r", "up"], ["wide"]),
        node("Gelu", ["wide"], ["g"]),
        node("MatMul", ["g", "down"], ["narrow"]),
        node("Add", ["narrow", "r"], ["y"]),
        node("ArgMax", ["y"], ["best"], axis=-1, keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, (1, tokens)) for name in ("ids", "mask")]
    return model(nodes, inputs, ["y", "best"], constants, opset=20)
