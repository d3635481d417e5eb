"""The interface of `onnx.backend.base.Backend`."""

import numpy as np
import onnx
import pytest
from mixed_models import model, node, sandwich
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep

from frustum import onnx_backend as backend
from frustum.runtime.machine import InputError

X = np.random.default_rng(5).standard_normal((2, 3, 8, 8)).astype(np.float32)


def test_it_is_a_backend() -> None:
    assert issubclass(backend.FrustumBackend, Backend) and issubclass(backend.Prepared, BackendRep)
    assert backend.supports_device("CPU") and backend.supports_device("FRUSTUM:0")
    assert not backend.supports_device("CUDA")
    assert backend.is_compatible(sandwich()) and not backend.is_compatible(sandwich(), "CUDA")
    with pytest.raises(ValueError, match="there is no device 'CUDA': there are CPU, FRUSTUM"):
        backend.prepare(sandwich(), "CUDA")


def typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """With types for the outputs, which the checker of onnx wants."""
    return onnx.shape_inference.infer_shapes(proto)


def test_a_model_of_static_shapes_is_compiled_at_once() -> None:
    prepared = backend.prepare(typed(model([node("Relu", ["x"], ["y"])], {"x": X.shape}, ["y"])), target="edge")
    assert prepared.chain is not None and prepared.chain.target.name == "edge"
    first = prepared.chain
    for inputs in ([X], {"x": X}):
        np.testing.assert_array_equal(prepared.run(inputs)[0], np.maximum(X, 0))
    assert prepared.chain is first
    assert prepared.report is not None and prepared.report["host"]["layers"] == []


def test_open_shapes_are_bound_by_the_inputs() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    prepared = backend.prepare(typed(model([node("Exp", ["x"], ["y"])], [value], ["y"])), target="edge")
    assert prepared.chain is None
    for rows in (1, 3):
        x = np.ones((rows, 4), np.float32)
        np.testing.assert_allclose(prepared.run([x])[0], np.exp(x), rtol=1e-6)


def test_weights_shapes_and_axes_become_constants() -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape),
        helper.make_tensor_value_info("axes", TensorProto.INT64, (1,)),
    ]
    proto = model([node("ReduceSum", ["x", "axes"], ["y"])], inputs, ["y"])
    proto.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", "c", "h", "w"]))
    prepared = backend.prepare(proto, target="edge")
    for axis in (1, 3):  # compiled anew for another axis
        (y,) = prepared.run([X, np.array([axis])])
        np.testing.assert_allclose(y, X.sum(axis, keepdims=True), rtol=1e-5, atol=1e-5)
        assert prepared.chain is not None and prepared.chain.single is not None


def test_constants_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from frustum.runtime.tools import onnx_backend

    asked = []
    original = onnx_backend.constants_of_run
    monkeypatch.setattr(onnx_backend, "constants_of_run", lambda *args: asked.append(1) or original(*args))
    prepared = backend.prepare(typed(model([node("Relu", ["x"], ["y"])], {"x": X.shape}, ["y"])), target="edge")
    for _ in range(3):
        prepared.run([X])
    assert len(asked) == 2  # when preparing, and for the first inputs


def test_constants_given_before() -> None:
    w = np.random.default_rng(6).standard_normal((4, 3, 3, 3)).astype(np.float32)
    proto = typed(model([node("Conv", ["x", "w"], ["y"])], {"x": X.shape, "w": w.shape}, ["y"]))
    prepared = backend.prepare(proto, target="edge", bind_inputs={"w": w})
    assert [value.name for value in prepared.inputs] == ["x"]
    np.testing.assert_allclose(prepared.run([X])[0], backend.run_model(proto, [X, w])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_node_alone() -> None:
    result = backend.run_node(node("Gather", ["x", "i"], ["y"], axis=1), [X, np.array([2, 0])], target="edge")
    np.testing.assert_array_equal(result.y, X[:, [2, 0]])
    result = backend.run_node(node("TopK", ["x", "k"], ["v", "i"]), [X, np.array([2])], opset_version=11)
    np.testing.assert_array_equal(result.v, -np.sort(-X, axis=-1)[..., :2])


def test_outputs_come_in_the_order_of_the_model() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["b"])]
    a, b = backend.run_model(typed(model(nodes, {"x": X.shape}, ["b", "a"])), [X], target="edge")
    np.testing.assert_array_equal(b, np.maximum(X, 0))
    np.testing.assert_allclose(a, np.exp(b), rtol=1e-6)


def test_what_is_wrong_is_said() -> None:
    proto = typed(model([node("Relu", ["x"], ["y"])], {"x": X.shape}, ["y"]))
    prepared = backend.prepare(proto, target="edge")
    with pytest.raises(InputError, match="2 inputs given, the model takes 1"):
        prepared.run([X, X])
    with pytest.raises(InputError, match="input 'x': missing"):
        prepared.run([])
    with pytest.raises(TypeError, match="there is no option 'speed'"):
        backend.prepare(proto, speed=3)
    with pytest.raises(TypeError, match="run\\(\\) takes no option 'device'"):
        prepared.run([X], device="CPU")
    with pytest.raises(onnx.checker.ValidationError):
        backend.prepare(model([node("Relu", ["nothing"], ["y"])], {"x": X.shape}, ["y"]))
