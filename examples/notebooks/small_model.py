"""The model of the notebooks: three convolutions with ReLUs, a pool, a mean (docs/tutorial.md makes the same)."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def small_model(size: int = 32) -> ModelProto:
    """Its input `image` is (1, 3, size, size), its output `means` (1, 16, 1, 1), in f32."""
    random = np.random.default_rng(0)
    nodes, weights, last, channels = [], [], "image", 3
    for name, more in ("conv1", 8), ("conv2", 8), ("conv3", 16):
        kernel = random.normal(0, 0.1, (more, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}_weights"))
        nodes.append(helper.make_node("Conv", [last, f"{name}_weights"], [f"{name}_sums"], name, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"{name}_sums"], [f"{name}_map"], f"{name}_relu"))
        last, channels = f"{name}_map", more
    nodes.append(helper.make_node("MaxPool", [last], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("GlobalAveragePool", ["pooled"], ["means"], "mean"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])
    means = helper.make_tensor_value_info("means", TensorProto.FLOAT, [1, 16, 1, 1])
    graph = helper.make_graph(nodes, "small", [image], [means], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
