"""Small ONNX files, good and bad, for tests of what people type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIZE, FILTERS, CLASSES = 3, 8, 4, 5


def network(
    shape: tuple[int | str, ...] = (1, CHANNELS, SIZE, SIZE),
    element: int = TensorProto.FLOAT,
    opset: int = 17,
    extra: tuple[onnx.NodeProto, ...] = (),
) -> onnx.ModelProto:
    """Convolution, maximum of each 2x2, mean, matrix product: input `x`, output `y` (and those of `extra` nodes)."""
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(element)
    arrays = {
        "w": rng.standard_normal((FILTERS, CHANNELS, 3, 3)) / 5,
        "b": rng.standard_normal(FILTERS),
        "m": rng.standard_normal((FILTERS, CLASSES)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["a"], "mean"),
        helper.make_node("Flatten", ["a"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "m"], ["y"], "dense"),
        *extra,
    ]
    outputs = [helper.make_tensor_value_info("y", element, (shape[0], CLASSES))]
    outputs += [helper.make_tensor_value_info(name, element, None) for node in extra for name in node.output]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, shape)],
        outputs,
        [numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def one_node(
    operator: str, shape: tuple[int, ...], weights: tuple[int, ...] = (), **attributes: object
) -> onnx.ModelProto:
    """One layer `layer` from `x` to `y`, perhaps with weights."""
    arrays = [numpy_helper.from_array(np.ones(weights, np.float32), "w")] if weights else []
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *(array.name for array in arrays)], ["y"], "layer", **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        arrays,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder: Path, model: onnx.ModelProto | None = None, name: str = "small.onnx") -> str:
    """The path of the model's file in the folder."""
    path = folder / name
    onnx.save(network() if model is None else model, path)
    return str(path)


def save_external(folder: Path, location: str = "small.data", name: str = "small.onnx") -> str:
    """The same with its weights in `small.data`, of which the model says that it is at `location`."""
    model = network()
    onnx.save(model, folder / name, save_as_external_data=True, location="small.data", size_threshold=0)
    model = onnx.load(folder / name, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (folder / name).write_bytes(model.SerializeToString())
    return str(folder / name)


def image(batch: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, CHANNELS, SIZE, SIZE), np.float32)


def rated() -> onnx.ModelProto:
    """A branch by the scalar `rate`, times `gain`, which has an open dimension: inputs x, rate, gain, output y."""
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(rng.standard_normal((6, 6)).astype(np.float32), name) for name in ("w1", "w2")]
    branches = {
        name: helper.make_graph(
            [helper.make_node("MatMul", ["x", weights], [name])], name, [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4, 6, 6))],
        )
        for name, weights in (("then_branch", "w1"), ("else_branch", "w2"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Equal", ["rate", "k"], ["c"]), helper.make_node("If", ["c"], ["b"], "if", **branches),
        helper.make_node("Mul", ["b", "gain"], ["g"]), helper.make_node("Relu", ["g"], ["y"]),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 6, 6)),
        helper.make_tensor_value_info("rate", TensorProto.INT64, ()),
        helper.make_tensor_value_info("gain", TensorProto.FLOAT, ("n",)),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 6, 6))
    tensors.append(numpy_helper.from_array(np.int64(16000), "k"))
    graph = helper.make_graph(nodes, "rated", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save_rated(folder: Path) -> str:
    path = folder / "rated.onnx"
    onnx.save(rated(), path)
    return str(path)
