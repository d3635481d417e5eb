"""Integers of inputs in floating point: what they are used for is exact, or refused by name, or held to a limit."""

import numpy as np
import onnx
import onnxruntime
import pytest
from mixed_models import model, node
from onnx import TensorProto, helper

from frustum import onnx_backend
from frustum.backend import targets
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.loading import load_model
from frustum.passes.onnx.place_host import place
from frustum.runtime.machine import InputError

EDGE = targets.load("edge")
BEYOND = np.array([[2**24 + 1, -(2**24) - 1, 3, 0], [2**40 + 1, -1, 2, 1]])
"""Not all of them are in f32."""


def of_inputs(nodes, outputs, constants=None, **inputs):
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    return onnx.shape_inference.infer_shapes(model(nodes, infos, outputs, constants or {}, opset=17))


def wanted(proto, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, inputs)


def check(proto, inputs, **options):
    prepared = onnx_backend.prepare(proto, **({"target": "edge", "host": "never"} | options))
    for mine, theirs in zip(prepared.run(list(inputs.values())), wanted(proto, inputs), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    return prepared


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("operator", "constant"),
    [("Equal", 3), ("Less", 2**24 - 1), ("GreaterOrEqual", -(2**24) + 1), ("LessOrEqual", 0), ("Greater", 2)],
)
def test_comparisons_with_smaller_numbers_are_right_for_every_integer(operator, constant):
    check(of_inputs([node(operator, ["i", "c"], ["y"])], ["y"], {"c": np.int64(constant)}, i=BEYOND), {"i": BEYOND})


def test_casts_round_as_the_model_does():
    nodes = [
        node("Cast", ["i"], ["y"], to=TensorProto.FLOAT), node("Cast", ["i"], ["z"], to=TensorProto.BOOL),
        node("Neg", ["i"], ["n"]), node("Cast", ["n"], ["m"], to=TensorProto.FLOAT),
    ]  # fmt: skip
    check(of_inputs(nodes, ["y", "z", "m"], i=BEYOND), {"i": BEYOND})


def arithmetic(x):
    """2 * (3 - i) + 1, as a number."""
    nodes = [
        node("Sub", ["three", "i"], ["a"]), node("Mul", ["a", "two"], ["b"]), node("Add", ["b", "one"], ["c"]),
        node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]  # fmt: skip
    return of_inputs(nodes, ["y"], {"one": np.int64(1), "two": np.int64(2), "three": np.int64(3)}, i=x)


def test_arithmetic_is_exact_up_to_a_limit_that_is_checked():
    most = (2**24 - 7) // 2
    x = np.array([most, -most, 0, 5])
    prepared = check(arithmetic(x), {"i": x})
    words = rf"input 'i': found {most + 1}, allowed up to {most}: the device computes with its integers in f32, which"
    with pytest.raises(InputError, match=words):
        prepared.run([np.array([most + 1, 0, 0, 0])])
    # in a type of fewer digits the limit is lower
    half = onnx_backend.prepare(arithmetic(x), target="edge", host="never", dtype="f16")
    most = (2048 - 7) // 2
    np.testing.assert_array_equal(half.run([np.array([most, -most, 0, 5])])[0], 7 - 2 * np.float32([most, -most, 0, 5]))
    with pytest.raises(InputError, match=f"found {most + 1}, allowed up to {most}"):
        half.run([np.array([0, 0, 0, most + 1])])


@pytest.mark.slow
def test_beside_integers_of_unknown_size_an_input_is_exact_itself():
    """Cast from floating point: what is moved, summed or chosen with them holds the input to a limit."""
    for operator in ("Add", "Max", "Mul"):
        nodes = [
            node("Cast", ["x"], ["p"], to=TensorProto.INT64), node(operator, ["p", "i"], ["k"]),
            node("Cast", ["k"], ["y"], to=TensorProto.FLOAT),
        ]  # fmt: skip
        inputs = {"x": np.float32([1.5, -2.5]), "i": np.int64([3, 2**24])}
        prepared = check(of_inputs(nodes, ["y"], **inputs), inputs)
        with pytest.raises(InputError, match=f"input 'i': found {2**24 + 1}, allowed up to {2**24}"):
            prepared.run([inputs["x"], np.int64([3, 2**24 + 1])])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("operator", "operands", "words"),
    [
        ("Mul", ["i", "j"], "a product of integers of inputs is not exact in f32"),
        ("Mul", ["i", "large"], "it needs integers up to 17825775, and f32 has all up to 16777216"),
        ("Mod", ["i", "j"], "this operator is not supported"),
        ("Pow", ["i", "two"], "'i' of INT64 must be constant, and depends on the network's inputs"),
    ],
)
def test_what_is_not_exact_is_refused_by_name(operator, operands, words):
    constants = {name: array for name, array in (("large", np.int64(69905)), ("two", np.int64(2))) if name in operands}
    inputs = {name: np.array([[5, -7], [2, 9]]) for name in ("i", "j") if name in operands}
    nodes = [node(operator, operands, ["k"]), node("Cast", ["k"], ["y"], to=TensorProto.FLOAT)]
    proto = of_inputs(nodes, ["y"], constants, **inputs)
    with pytest.raises(Unsupported, match=words):
        import_onnx(proto)
    check(proto, inputs, host="auto")


def test_integers_that_only_pass_stay_on_the_host():
    """The device would round them: an output, and what a node of the host reads."""
    nodes = [
        node("Unsqueeze", ["i", "axis"], ["wide"]), node("Identity", ["wide"], ["out"]),
        node("Gather", ["words", "wide"], ["row"]), node("Relu", ["row"], ["y"]),
    ]  # fmt: skip
    words = np.zeros((200_001, 4), np.float32)
    proto = of_inputs(nodes, ["out", "y"], {"axis": np.int64([0]), "words": words}, i=np.int64([7, 200_000]))
    parts = place(load_model(proto), EDGE).parts
    on_device = [n.op_type for part in parts if part.kind == "device" for n in part.model.proto.graph.node]
    why = {each.name: each.reason for part in parts for each in part.fallbacks}
    assert on_device == ["Relu"] and why.keys() == {"wide", "out", "row"}
    assert why["out"].startswith("'out' holds integers that inputs give, and the device does not have all of them")
    with pytest.raises(Unsupported, match="output 'out' holds integers that inputs give"):
        import_onnx(of_inputs(nodes[:2], ["out"], {"axis": np.int64([0])}, i=np.int64([7])))


@pytest.mark.slow
@pytest.mark.soak(but=4)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Max", "Div", "Where", "Neg", "Cast"])
def test_integers_of_the_device_are_used_after_a_node_of_the_host(kind, monkeypatch):
    """Made by ArgMax before it, computed with after it, in another piece."""
    from frustum.passes.onnx import place_host

    monkeypatch.setattr(place_host, "settled", lambda run, target: run.steps)  # nothing else goes to the host
    after = {
        "Where": [node("Greater", ["p", "c"], ["g"]), node("Where", ["g", "p", "c"], ["q"])],
        "Neg": [node("Neg", ["p"], ["n"]), node("Add", ["n", "nine"], ["q"])],
        "Cast": [node("Cast", ["p"], ["n"], to=TensorProto.INT32), node("Add", ["n", "small"], ["q"])],
    }.get(kind, [node(kind, ["p", "c"], ["q0"]), node("Abs", ["q0"], ["q"])])
    nodes = [
        node("ArgMax", ["x"], ["p"], axis=1, keepdims=0), node("Gather", ["t", "p"], ["e"]),
        node("Hardmax", ["e"], ["h"]), *after, node("Gather", ["t", "q"], ["f"]), node("Add", ["f", "h"], ["y"]),
    ]  # fmt: skip
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 8)).astype(np.float32)
    constants = {"t": rng.standard_normal((40, 8)).astype(np.float32), "c": np.int64(3), "nine": np.int64(9),
                 "small": np.int32(3)}  # fmt: skip
    used = {name for each in nodes for name in each.input}
    proto = of_inputs(nodes, ["y"], {name: c for name, c in constants.items() if name in used}, x=x)
    prepared = check(proto, {"x": x}, host="auto")
    assert [each["name"] for each in prepared.report["host"]["layers"]] == ["h"]
