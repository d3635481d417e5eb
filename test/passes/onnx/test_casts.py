"""A Cast to a 16-bit type rounds, wherever the numbers go between; where the network is of the type it is free."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import frustum
from frustum.passes.onnx.import_onnx import import_onnx

F16, BF16, FLOAT = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
TYPES = [(F16, np.float16), (BF16, ml_dtypes.bfloat16)]
X = np.array([[1 / 3, 2049, -7e4, 65519], [1e-7, 3e38, 65521, -0.1]], np.float32)


def model(nodes, element=FLOAT, out=FLOAT, inputs=(), weights=None):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    values = [helper.make_tensor_value_info("x", element, [2, 4]), *inputs]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", out, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def cast(x, y, to):
    return helper.make_node("Cast", [x], [y], to=to)


def ran(made, x=X, **options):
    with np.errstate(all="ignore"):
        return frustum.run(frustum.compile(made, "edge", **options), {"x": x}).outputs["y"]


def rounded(x, dtype):
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(np.float32)


@pytest.mark.parametrize(("to", "dtype"), TYPES)
@pytest.mark.parametrize("move", ["", "Transpose", "Identity"])
def test_there_and_back(to, dtype, move):
    nodes = [cast("x", "h", to), *([helper.make_node(move, ["h"], ["m"])] if move else []),
             cast("m" if move else "h", "y", FLOAT)]  # fmt: skip
    wanted = rounded(X, dtype)
    np.testing.assert_array_equal(ran(model(nodes)), wanted.T if move == "Transpose" else wanted)


def test_behind_a_layer_it_is_its_activation():
    nodes = [helper.make_node("Mul", ["x", "k"], ["a"]), cast("a", "h", F16), cast("h", "y", FLOAT)]
    np.testing.assert_array_equal(ran(model(nodes, weights={"k": np.float32(0.5)})), rounded(X / 2, np.float16))


def test_whole_numbers_are_rounded_too():
    nodes = [cast("x", "i", TensorProto.INT32), cast("i", "h", F16), cast("h", "y", FLOAT)]
    x = np.array([[2049, 4097, -4099, 3], [1, 2, 65000, 0]], np.float32)
    np.testing.assert_array_equal(ran(model(nodes), x), rounded(x, np.float16))


def test_like_an_input_of_16_bits():
    like = helper.make_tensor_value_info("l", F16, [1])
    nodes = [helper.make_node("CastLike", ["x", "l"], ["h"]), cast("h", "y", FLOAT)]
    made = frustum.compile(model(nodes, inputs=[like]), "edge")
    found = frustum.run(made, {"x": X, "l": np.zeros(1, np.float16)}).outputs["y"]
    np.testing.assert_array_equal(found, rounded(X, np.float16))


def test_a_constant_is_rounded_when_it_is_imported():
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), cast("d", "h", F16), cast("h", "f", FLOAT),
             helper.make_node("MatMul", ["x", "f"], ["y"])]  # fmt: skip
    w, s = np.arange(-6, 6, dtype=np.int8).reshape(4, 3), np.float32(1 / 3)
    x = np.eye(4, dtype=np.float32)[:2]
    found = ran(model(nodes, weights={"w": w, "s": s}), x)
    np.testing.assert_allclose(found, rounded(w * s, np.float16)[:2], rtol=1e-7)


def roundings(module):
    return [op for op in module.walk() if "round_" in str(op.properties.get("act", ""))]


def test_in_a_network_of_the_type_it_is_free():
    made = model([cast("x", "h", F16), helper.make_node("Relu", ["h"], ["y"])], element=F16, out=F16)
    assert not roundings(import_onnx(made))


@pytest.mark.parametrize(("dtype", "left"), [("f16", 0), ("bf16", 1), ("f32", 1)])
def test_on_a_device_of_the_type_it_is_free(dtype, left, tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), cast("a", "h", F16), cast("h", "y", FLOAT)]
    made = model(nodes, weights={"w": np.eye(4, dtype=np.float32)})
    frustum.compile(made, "edge", dtype=dtype, dump_ir=tmp_path)
    (typed,) = tmp_path.glob("*-typed.mlir")
    assert typed.read_text().count("round_f16") == left
