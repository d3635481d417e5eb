"""Who judges, and that it is said: onnxruntime, the reference evaluator of `onnx`, both, or nobody."""

import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum.runtime.host.judge import OracleError
from frustum.runtime.host.oracle import compare, judged_outputs
from frustum.runtime.host.widening import rounded_to

FLOAT, F16 = TensorProto.FLOAT, TensorProto.FLOAT16


def model(nodes, x, out=FLOAT, weights=None, opset=20, element=FLOAT):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    values = [helper.make_tensor_value_info("x", element, x)]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", out, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9 if opset > 3 else 3)


def node(operator, *inputs, **attributes):
    return helper.make_node(operator, inputs or ["x"], ["y"], **attributes)


def judged(made, x):
    return judged_outputs(made, {"x": np.asarray(x, np.float32)})


def test_onnxruntime_alone():
    found = judged(model([node("Relu")], [3]), [-1, 0, 2])
    assert found.by.startswith("onnxruntime 1.") and not found.why and "onnx 1" not in found.by
    np.testing.assert_array_equal(found.outputs["y"], [0, 0, 2])


def test_a_constant_map_in_which_onnxruntime_departs():
    made = model([helper.make_node("Neg", ["x"], ["n"]), node("MeanVarianceNormalization", "n")], [1, 1, 2, 2])
    found = judged(made, np.full((1, 1, 2, 2), 0.1))
    np.testing.assert_array_equal(found.outputs["y"], 0)
    assert re.fullmatch(r"onnxruntime 1\S+ and onnx 1\S+", found.by)
    assert "'y' (MeanVarianceNormalization): onnxruntime: departs from ONNX (a constant map" in found.why
    assert "\n" not in found.why


def test_the_odd_element_of_a_transposed_convolution():
    """By hand: each input element is a row of three ones from 2 i - 1 on where one element of 9 is cut at the start."""
    made = model([node("ConvTranspose", "x", "w", strides=[2], output_shape=[8], auto_pad="SAME_UPPER")], [1, 1, 4],
                 weights={"w": np.ones((1, 1, 3), np.float32)})  # fmt: skip
    found = judged(made, [[[1, 10, 100, 1000]]])
    np.testing.assert_array_equal(found.outputs["y"], [[[1, 1, 11, 10, 110, 100, 1100, 1000]]])
    assert "SAME_UPPER with an output_shape" in found.why


def test_an_operator_without_a_kernel():
    found = judged(model([node("Pad", paddings=[1, 0])], [2], opset=1), [1, 2])
    np.testing.assert_array_equal(found.outputs["y"], [0, 1, 2])
    assert found.by == f"onnx {onnx.__version__}"
    assert "'y' (Pad): onnxruntime: Could not find an implementation" in found.why


def test_strides_that_pass_over_elements():
    """onnxruntime refuses the pads below 0 of its own making; the reference evaluator makes one column too few."""
    made = model([node("MaxPool", auto_pad="SAME_LOWER", strides=[3], kernel_shape=[2])], [1, 1, 10])
    found = judged(made, np.arange(10).reshape(1, 1, 10))
    np.testing.assert_array_equal(found.outputs["y"], [[[0, 3, 6, 9]]])
    assert not found.why


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_what_onnxruntime_flattens_beside_a_node_that_it_lacks(operator):
    """Each node has the evaluator that is right of it: the reference evaluator does not flatten."""
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["m"]), node(operator, "m", axis=1)]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    old, rows = model(nodes, x.shape, opset=11), x.shape[0]
    m = judged(model([node("MeanVarianceNormalization")], x.shape), x).outputs["y"].reshape(rows, -1)
    power = np.exp(m - m.max(axis=1, keepdims=True))
    share = power / power.sum(axis=1, keepdims=True)
    wanted = {"Softmax": share, "LogSoftmax": np.log(share), "Hardmax": m == m.max(axis=1, keepdims=True)}[operator]
    np.testing.assert_allclose(judged(old, x).outputs["y"].reshape(rows, -1), wanted, atol=1e-5)


def test_nobody_who_is_right():
    """onnxruntime has no kernel for it, and the reference evaluator is known to be wrong."""
    made = model([node("BatchNormalization", "x", "s", "s", "s", "s", is_test=1)], [1, 2, 3], opset=6,
                 weights={"s": np.ones(2, np.float32)})  # fmt: skip
    text = r"nobody can judge: .*node 'y' \(BatchNormalization\).*onnxruntime.*onnx: departs from"
    with pytest.raises(OracleError, match=text):
        judged(made, np.ones((1, 2, 3)))


@pytest.mark.parametrize(("to", "dtype"), [(F16, np.float16), (TensorProto.BFLOAT16, ml_dtypes.bfloat16)])
@pytest.mark.parametrize("way", ["Cast", "function", "departs"])
def test_casts_round(to, dtype, way):
    casts = [helper.make_node("Cast", ["x"], ["h"], to=to), helper.make_node("Cast", ["h"], ["f"], to=FLOAT)]
    made = model([*casts, node("Identity", "f")], [4])
    if way == "departs":
        made.graph.node.append(helper.make_node("MeanVarianceNormalization", ["f"], ["unused"], axes=[0]))
    if way == "function":
        made = model([helper.make_node("There", ["x"], ["y"], domain="own")], [4])
        inner = [*casts[:1], helper.make_node("Cast", ["h"], ["f"], to=FLOAT)]
        made.functions.append(helper.make_function("own", "There", ["x"], ["f"], inner, [helper.make_opsetid("", 20)]))
        made.opset_import.append(helper.make_opsetid("own", 1))
    x = np.float32([1 / 3, 2049, 1e-7, 7e4])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(judged(made, x).outputs["y"], x.astype(dtype).astype(np.float32))
    assert rounded_to(made) == {"f16" if to == F16 else "bf16"}


def test_between_casts_nothing_rounds_but_the_end_of_the_type():
    nodes = [helper.make_node("Mul", ["x", "k"], ["m"]), node("Add", "m", "k")]
    made = model(nodes, [3], out=F16, element=F16, weights={"k": np.float16(3)})
    x = np.float16([1 / 3, 2047, 30000])
    found = judged(made, x).outputs["y"]
    np.testing.assert_array_equal(found, [np.float32(x[0]) * 3 + 3, 2047 * 3 + 3, np.inf])


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        ([1, np.nan, 3], [1, 2, 3], "1 of 3 elements differ, the first at [1]: ours nan, theirs 2.0"),
        ([np.inf, np.nan], [-np.inf, np.nan], "1 of 2 elements differ, the first at [0]: ours inf, theirs -inf"),
        ([[1, 2], [3, 5]], [[1, 2], [3, 4]], "1 of 4 elements differ, the first at [1, 1]: ours 5.0, theirs 4.0"),
        ([1, 2], [[1, 2]], "ours is of shape [2], theirs of [1, 2]"),
        ([np.nan, np.inf], [np.nan, np.inf], ""),
    ],
)
def test_which_elements_differ(found, expected, text):
    agreement = compare({"y": np.float32(found)}, {"y": np.float32(expected)}, "f32")
    assert agreement.difference == text and agreement.good == (not text)


@pytest.mark.parametrize("x", [np.ones((2, 2)), np.ones(4)])
def test_inputs_of_another_shape_are_nobodys(x):
    """Nodes one by one would take them."""
    with pytest.raises(OracleError, match=r"onnxruntime does not run the model: .*input 'x' is of shape"):
        judged(model([node("Relu")], [3]), x)
