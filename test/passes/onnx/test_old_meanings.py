"""Operators of old opsets, against onnxruntime: those whose meaning has changed, and those that only look different."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import frustum

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 6, 5)).astype(np.float32)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def scales(*axes):
    return np.array([1, 1, *axes], np.float32)


NO_ROI = np.array([], np.float32)
CASES = [
    *[("Hardmax", opset, [], {"axis": axis}) for opset in (7, 12) for axis in (0, 1, 2, 3)],
    ("Hardmax", 9, [], {}), ("Hardmax", 11, [], {"axis": -2}), ("Hardmax", 13, [], {"axis": 1}),
    ("Softmax", 7, [], {"axis": 2}), ("Softmax", 11, [], {}), ("LogSoftmax", 12, [], {"axis": 1}),
    *[("Resize", 10, [scales(*each)], {"mode": mode}) for mode in ("nearest", "linear")
      for each in ((2, 3), (0.6, 0.7), (0.5, 2), (1.5, 0.4), (0.34, 1), (1, 1.3))],
    ("Resize", 11, [NO_ROI, scales(0.6, 1.7)], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
    ("Resize", 11, [NO_ROI, scales(0.6, 1.7)], {"mode": "linear"}),
    ("Upsample", 8, [], {"scales": [1.0, 1.0, 2.0, 1.5]}), ("Upsample", 9, [scales(2, 1.5)], {"mode": "linear"}),
    ("Clip", 7, [], {"min": -0.5}), ("Pad", 10, [], {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}),
    ("ReduceSum", 11, [], {"axes": [1, -1]}), ("ReduceL2", 7, [], {"axes": [1]}), ("ArgMax", 7, [], {"axis": 1}),
    ("Slice", 9, [], {"starts": [1, 0], "ends": [5, -1], "axes": [2, 3]}), ("Flatten", 9, [], {"axis": 2}),
    ("BatchNormalization", 8, [f(3), f(3), f(3), abs(f(3)) + np.float32(0.1)], {}), ("Dropout", 7, [], {"ratio": 0.3}),
    ("AveragePool", 10, [], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", 7, [], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
    ("MaxPool", 7, [], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("MeanVarianceNormalization", 9, [], {}), ("LpNormalization", 9, [], {"axis": 1, "p": 1}), ("Selu", 7, [], {}),
    ("PRelu", 7, [f(3, 1, 1)], {}), ("InstanceNormalization", 7, [f(3), f(3)], {}),
    ("ConvTranspose", 8, [f(3, 2, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
]  # fmt: skip


def model(operator, opset, operands, attributes):
    names = [f"i{number}" for number in range(len(operands))]
    node = helper.make_node(operator, ["x", *names], ["y"], "n", **attributes)
    values = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(X.shape))]
    tensors = [numpy_helper.from_array(array, name) for name, array in zip(names, operands, strict=True)]
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "opset", "operands", "attributes"), CASES)
def test_an_operator_of_the_table_means_what_it_did(operator, opset, operands, attributes):
    agrees(operator, opset, operands, attributes)


@pytest.mark.parametrize(("operator", "opset", "operands", "attributes"), [CASES[0], CASES[15]])
def test_what_the_converter_does_not_know(operator, opset, operands, attributes):
    agrees(operator, opset, operands, attributes)


def agrees(operator, opset, operands, attributes):
    made = model(operator, opset, operands, attributes)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": X})
    (found,) = frustum.run(frustum.compile(made, "edge"), {"x": X}, mode="functional").outputs.values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * abs(wanted).max())
