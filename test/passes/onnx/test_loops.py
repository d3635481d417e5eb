"""Scan and Loop of a known number of steps: their bodies once for each step."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum import onnx_backend
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def info(name, *shape, element=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def model_of(nodes, inputs, outputs, constants):
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "case", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scan(**attributes):
    """h = tanh(h @ w + x): w is from around the body."""
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Add", ["p", "row"], ["s"]),
        helper.make_node("Tanh", ["s"], ["new"]),
        helper.make_node("Identity", ["new"], ["out"]),
    ]
    ends = [[info(name, 2, 4) for name in names] for names in (("h", "row"), ("new", "out"))]
    body = helper.make_graph(nodes, "body", *ends)
    node = helper.make_node("Scan", ["h0", "x"], ["last", "y"], body=body, num_scan_inputs=1, **attributes)
    axis = attributes.get("scan_input_axes", [0])[0]
    shape = [2, 4]
    shape.insert(axis, 3)
    rng = np.random.default_rng(0)
    constants = {name: rng.standard_normal(size).astype(np.float32) for name, size in (("w", (4, 4)), ("h0", (2, 4)))}
    place = attributes.get("scan_output_axes", [0])[0] % 3
    given = [2, 4]
    given.insert(place, 3)
    model = model_of([node], [info("x", *shape)], [info("last", 2, 4), info("y", *given)], constants)
    return model, rng.standard_normal(shape).astype(np.float32)


def loop(steps, condition="Identity"):
    """Sums of x and the number of the step, which is a constant in each."""
    nodes = [
        helper.make_node("Cast", ["step"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["total", "number"], ["more"]),
        helper.make_node("Mul", ["more", "x"], ["new"]),
        helper.make_node("Identity", ["new"], ["out"]),
        helper.make_node(condition, ["on"] if condition == "Identity" else ["step", "limit"], ["again"]),
    ]
    inputs = [info("step", element=TensorProto.INT64), info("on", element=TensorProto.BOOL), info("total", 3)]
    outputs = [info("again", element=TensorProto.BOOL), info("new", 3), info("out", 3)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    node = helper.make_node("Loop", ["steps", "", "x"], ["last", "y"], body=body)
    constants = {"steps": np.int64(steps), "limit": np.int64(1)}
    made = min(steps, 2) if condition == "Less" else steps
    return model_of([node], [info("x", 3)], [info("last", 3), info("y", made, 3)], constants), np.float32([1, -2, 0.5])


@pytest.mark.parametrize(
    "case",
    [
        scan(),
        scan(scan_input_directions=[1], scan_output_directions=[1]),
        scan(scan_input_axes=[1], scan_output_axes=[-1]),
        loop(4),
        loop(1),
        loop(5, "Less"),
    ],
    ids=["scan", "backwards", "axes", "loop", "one step", "ends before"],
)
def test_the_steps_are_layers(case):
    model, x = case
    module = import_onnx(model)
    found = ReferenceExecutor(store_of(module)).run_graph(module, {"x": x})
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for own, its in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(own, its, rtol=1e-5, atol=1e-6)


def test_what_is_refused():
    with pytest.raises(Unsupported, match="65 steps of 5 nodes are not supported"):
        import_onnx(loop(65)[0])
    model, _ = scan()
    model.graph.node[0].attribute[0].g.node[2].op_type = "Hardmax"
    with pytest.raises(Unsupported, match="it would need Hardmax"):
        import_onnx(model)


def test_steps_that_a_run_gives_are_bound():
    """By the backend, which has the values; where nobody has, the node on the host says what it would need."""
    model, x = loop(3)
    steps = model.graph.initializer[0]
    assert steps.name == "steps"
    model.graph.input.append(info("steps", element=TensorProto.INT64))
    del model.graph.initializer[0]
    prepared = onnx_backend.prepare(model, target="edge")
    given = np.asarray(3, np.int64)
    found = prepared.run([x, given])
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "steps": given})
    for own, its in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, its, rtol=1e-5, atol=1e-6)
    assert "host" not in prepared.report or not prepared.report["host"]["layers"]


def test_steps_in_a_wider_type_are_refused():
    """As a state of f32 that a network of f16 carries on."""
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["new"], to=TensorProto.FLOAT16),
        helper.make_node("Identity", ["on"], ["again"]),
    ]
    half = TensorProto.FLOAT16
    truth = {"element": TensorProto.BOOL}
    body = helper.make_graph(nodes, "body", [info("step", element=TensorProto.INT64), info("on", **truth)],
                             [info("again", **truth), info("new", 3, element=half)])  # fmt: skip
    node = helper.make_node("Loop", ["steps", ""], ["y"], body=body)
    model = model_of([node], [info("x", 3, element=half)], [info("y", 2, 3, element=half)], {"steps": np.int64(2)})
    with pytest.raises(Unsupported, match="its steps compute in FLOAT, the network in FLOAT16"):
        import_onnx(model)
