"""The oracle: onnxruntime as the judge of numbers."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from published import published
from xdsl.dialects.builtin import ModuleOp, bf16, f32, i32

from frustum.dialects import graph
from frustum.runtime.host import judge, oracle
from frustum.runtime.host.oracle import (
    OracleError,
    compare,
    oracle_outputs,
    random_inputs,
)
from frustum.runtime.host.widening import has_narrow_floats, widened


def model(nodes, inputs, outputs, weights=(), opset=17):
    values = lambda all: [helper.make_tensor_value_info(*one) for one in all]  # noqa: E731
    tensors = [numpy_helper.from_array(array, name) for name, array in dict(weights).items()]
    made = helper.make_graph(nodes, "g", values(inputs), values(outputs), tensors)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def affine(dtype=TensorProto.FLOAT, batch=1):
    """y = x * 3 + 1"""
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    nodes = [helper.make_node("Mul", ["x", "a"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    weights = {"a": np.array([3.0], numpy_type), "b": np.array([1.0], numpy_type)}
    return model(nodes, [("x", dtype, [batch, 2])], [("y", dtype, [batch, 2])], weights)


X = np.array([[0.5, -2.0]], np.float32)


@pytest.mark.parametrize(("off", "elements", "good"), [(2, 1000, True), (3, 1, True), (3, 2, False), (-3, 2, False)])
def test_integers_agree_by_steps(off, elements, good):
    """99.9 % of the elements within 2 steps."""
    expected = np.full(1000, 100, np.uint8)
    found = expected.copy()
    found[:elements] += np.uint8(off % 256)
    assert compare({"y": found}, {"y": expected}, "int8").good is good


def test_outputs_by_name():
    np.testing.assert_array_equal(oracle_outputs(affine(), {"x": X})["y"], X * 3 + 1)


def test_a_path_is_run_from_the_file(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(affine(), path, save_as_external_data=True, location="weights", size_threshold=0)
    np.testing.assert_array_equal(oracle_outputs(path, {"x": X})["y"], X * 3 + 1)


def test_a_model_too_large_for_one_message_goes_through_a_file(monkeypatch):
    monkeypatch.setattr(judge.host_model, "PROTO_LIMIT_BYTES", 10)
    np.testing.assert_array_equal(oracle_outputs(affine(), {"x": X})["y"], X * 3 + 1)


def test_pad_before_max_pool_keeps_its_zeros():
    """onnxruntime's default optimisation makes the border -inf."""
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["z"], mode="constant"),
        helper.make_node("MaxPool", ["z"], ["y"], kernel_shape=[2, 2]),
    ]
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 0, 0])}
    shape = [1, 1, 2, 2]
    made = model(nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], pads)
    found = oracle_outputs(made, {"x": np.full(shape, -1.0, np.float32)})["y"]
    np.testing.assert_array_equal(found, [[[[0, 0], [0, -1]]]])


def test_a_batch_is_run_one_by_one():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(oracle_outputs(affine(), {"x": x}, batch=3)["y"], x * 3 + 1)


def test_inputs_that_are_no_batch():
    with pytest.raises(OracleError, match=r"input 'x' of shape \(1, 2\) is not a batch of 3"):
        oracle_outputs(affine(), {"x": X}, batch=3)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_16_bit_models_run_widened(dtype, tmp_path):
    made = affine(dtype)
    x = np.array([[1 / 3, 2049.0]]).astype(helper.tensor_dtype_to_np_dtype(dtype))
    expected = x.astype(np.float32) * 3 + 1
    found = oracle_outputs(made, {"x": x})["y"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert (expected != expected.astype(x.dtype)).any(), "rounding would not show"
    onnx.save(made, tmp_path / "m.onnx")
    np.testing.assert_array_equal(oracle_outputs(tmp_path / "m.onnx", {"x": x})["y"], expected)


def test_widening_reaches_casts_constants_and_inner_graphs():
    half = numpy_helper.from_array(np.array([1 / 3], np.float16))
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=half), helper.make_node("Identity", ["c"], ["r"])],
        "b", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT16, [1])],
    )  # fmt: skip
    nodes = [
        helper.make_node("If", ["t"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["h", "i"], ["y"]),
    ]
    made = model(
        nodes, [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT16, [1])], {"t": np.array(True)}
    )
    assert has_narrow_floats(made)
    wide = widened(made)
    assert [each.op_type for each in wide.graph.node] == ["If", "Cast", "Cast", "Add"], "a Cast keeps its rounding"
    onnx.checker.check_model(wide, full_check=True)
    x = np.array([1 / 7], np.float32)
    rounded, third = x.astype(np.float16).astype(np.float32), np.float16(1 / 3).astype(np.float32)
    np.testing.assert_array_equal(oracle_outputs(made, {"x": x})["y"], rounded + third)


def test_a_model_onnxruntime_does_not_know():
    made = model([helper.make_node("Nonsense", ["x"], ["y"])], [("x", 1, [1])], [("y", 1, [1])])
    with pytest.raises(OracleError, match=r"onnxruntime does not load the model: .*Nonsense"):
        oracle_outputs(made, {"x": X})


def test_inputs_onnxruntime_does_not_take():
    with pytest.raises(OracleError, match=r"onnxruntime does not run the model: .*x"):
        oracle_outputs(affine(), {})


def test_without_onnxruntime(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OracleError, match="--check needs the package onnxruntime: pip install onnxruntime"):
        oracle_outputs(affine(), {"x": X})


def test_the_name_holds_the_version():
    assert oracle.oracle_name().startswith("onnxruntime 1.")


def test_errors_are_relative_to_each_outputs_largest_magnitude():
    expected = {"small": np.array([0.0, -0.01]), "large": np.array([100.0])}
    found = {"small": np.array([0.001, -0.01]), "large": np.array([100.5])}
    agreement = compare(found, expected, "f16")
    assert agreement.max_abs_error == pytest.approx(0.5)
    assert agreement.max_rel_error == pytest.approx(0.1)
    assert (agreement.worst, agreement.tolerance, agreement.good) == ("small", 2e-2, False)
    assert compare(found, expected, "bf16").tolerance == 1e-1


@pytest.mark.parametrize(
    "found, expected, good",
    [
        ([1.0, 2.0], [1.0, 2.0001], True),
        ([1.0, 2.0], [1.0, 2.001], False),
        ([np.nan], [np.nan], True),
        ([np.inf], [np.inf], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [np.nan, 1.0], False),
        ([np.inf], [-np.inf], False),
        ([1e-30], [0.0], False),
        ([0.0], [0.0], True),
        ([], [], True),
    ],
)
def test_agreement_in_f32(found, expected, good):
    assert compare({"y": np.array(found)}, {"y": np.array(expected)}, "f32").good is good


def test_a_sigmoids_resolution_excuses_steps_of_its_own_and_no_more():
    """A sigmoid near 0 has few digits in the oracle; its neighbour has all of them."""
    shape = ("x", TensorProto.FLOAT, [1, 200])
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["s"], perm=[0, 1]),
        helper.make_node("Neg", ["x"], ["n"]),
    ]
    made = model(nodes, [shape], [("s", *shape[1:]), ("n", *shape[1:])])
    x = {"x": np.linspace(-17, -15, 200, dtype=np.float32)[None]}
    expected = oracle_outputs(made, x)
    resolution = oracle.resolutions(made)
    assert resolution == {"s": 2.0**-22}
    off = {"s": expected["s"] + np.float32(3e-8), "n": expected["n"]}
    assert not compare(off, expected, "f32").good
    assert compare(off, expected, "f32", resolution).good
    far = {"s": expected["s"] + np.float32(5e-7), "n": expected["n"]}
    assert not compare(far, expected, "f32", resolution).good
    assert not compare({"s": expected["s"], "n": expected["n"] * 1.001}, expected, "f32", resolution).good


def test_random_inputs_are_in_the_networks_types():
    types = {"a": (f32, (1000,)), "b": (bf16, (2, 3)), "c": (i32, (50,))}
    network = graph.NetworkOp("n", [(name, graph.tensor_type(*type)) for name, type in types.items()], [])
    network.body.block.add_op(graph.OutputOp([]))
    found = random_inputs(ModuleOp([network]), seed=1)
    assert found["a"].dtype == np.float32 and abs(found["a"].mean() - 0.5) < 0.05
    assert found["a"].min() >= 0 and found["a"].max() < 1
    assert found["b"].dtype == ml_dtypes.bfloat16 and found["b"].shape == (2, 3)
    assert found["c"].dtype == np.int32 and set(found["c"].tolist()) <= set(range(8))
    again, other = (random_inputs(ModuleOp([network.clone()]), seed) for seed in (1, 2))
    np.testing.assert_array_equal(found["a"], again["a"])
    assert (found["a"] != other["a"]).any()


@pytest.mark.parametrize("path", published("mnist-8", "squeezenet-fp16", "yunet-n-320"))
def test_published_models_give_their_published_outputs(path):
    arrays = np.load(path.with_suffix(".io.npz"))
    inputs = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    expected = {key[4:]: arrays[key] for key in arrays.files if key.startswith("out:")}
    agreement = compare(oracle_outputs(path, inputs), expected, "f16")
    assert agreement.good, agreement
