"""The host's evaluators: what each is asked for, and what a node that nobody computes says."""

import numpy as np
import onnx
import pytest
from mixed_models import model, node
from onnx import TensorProto, helper

from frustum.runtime.host.evaluators import DIFFERS
from frustum.runtime.host.host_model import HostError, HostModel, type_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(proto: onnx.ModelProto, **inputs: object) -> dict[str, object]:
    return HostModel(proto).run(inputs)


def test_onnxruntime_is_asked_first() -> None:
    host = HostModel(model([node("Hardmax", ["x"], ["y"])], {"x": (2, 3)}, ["y"]))
    np.testing.assert_array_equal(host.run({"x": X})["y"], [[0, 0, 1], [0, 0, 1]])
    assert host.evaluators() == {"Hardmax": "onnxruntime"}


def test_an_operator_in_which_it_differs_goes_to_the_other_one() -> None:
    """align_corners by a fraction: ONNX divides by the extent before it is rounded."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Resize", ["r", "", "by"], ["y"], mode="linear", coordinate_transformation_mode="align_corners"),
    ]
    host = HostModel(model(nodes, {"x": (1, 1, 2, 4)}, ["y"], {"by": np.float32([1, 1, 0.6, 0.6])}))
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    np.testing.assert_allclose(host.run({"x": x})["y"], [[[[1.0, 22 / 7]]]], rtol=1e-6)
    assert host.evaluators() == {"Relu": "onnxruntime", "Resize": "onnx"}
    assert "Resize" in DIFFERS


def test_types_that_numpy_lacks() -> None:
    proto = model([node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)], {"x": (2, 3)}, ["y"], opset=23)
    y = run(proto, x=X * 1000)["y"]
    assert y.dtype == helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)
    assert float(y[1, 2]) == 448.0  # saturated


def test_opsets_newer_than_onnxruntime_where_nothing_changed() -> None:
    host = HostModel(model([node("Hardmax", ["x"], ["y"])], {"x": (2, 3)}, ["y"], opset=28))
    host.run({"x": X})
    assert host.evaluators() == {"Hardmax": "onnxruntime"}


def test_text_and_sequences() -> None:
    strings = [helper.make_tensor_value_info("t", TensorProto.STRING, (2,))]
    proto = model([node("StringConcat", ["t", "t"], ["y"])], strings, ["y"], opset=20)
    assert run(proto, t=np.array(["a", "b"], object))["y"].tolist() == ["aa", "bb"]
    nodes = [node("SplitToSequence", ["x"], ["s"], axis=0), node("SequenceLength", ["s"], ["n"])]
    found = run(model(nodes, {"x": (2, 3)}, ["s", "n"]), x=X)
    assert [each.shape for each in found["s"]] == [(1, 3), (1, 3)]
    assert found["n"] == 2


def test_a_branch_that_reads_what_is_around_it() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(operator, ["x"], ["b"])],
            name,
            [],
            [helper.make_tensor_value_info("b", TensorProto.FLOAT, (2, 3))],
        )
        for name, operator in (("then", "Neg"), ("else", "Identity"))
    }
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
        helper.make_tensor_value_info("c", TensorProto.BOOL, ()),
    ]
    proto = model([helper.make_node("If", ["c"], ["y"], "if", **branches)], inputs, ["y"])
    np.testing.assert_array_equal(run(proto, x=X, c=np.array(True))["y"], -X)
    np.testing.assert_array_equal(run(proto, x=X, c=np.array(False))["y"], X)


def test_sparse_constants() -> None:
    proto = model([node("Add", ["x", "c"], ["y"])], {"x": (2, 3)}, ["y"])
    values = helper.make_tensor("c", TensorProto.FLOAT, [2], [5.0, 7.0])
    places = helper.make_tensor("places", TensorProto.INT64, [2], [1, 5])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    expected = X + np.float32([[0, 5, 0], [0, 0, 7]])
    np.testing.assert_array_equal(run(proto, x=X)["y"], expected)


def test_a_node_that_nobody_computes_is_named() -> None:
    proto = model([node("Gather", ["x", "i"], ["y"])], {"x": (2, 3)}, ["y"], {"i": np.array([7])})
    with pytest.raises(HostError, match=r"^model.onnx: node 'y' \(Gather\): error: onnxruntime: indices element"):
        run(proto, x=X)


def test_what_onnxruntime_refuses_when_it_runs_is_not_asked_of_the_other() -> None:
    """The package onnx would give a map of no elements."""
    weights = {"w": np.ones((1, 1, 3, 3), np.float32)}
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": (1, 1, 2, 2)}, ["y"], weights)
    with pytest.raises(HostError, match=r"node 'y' \(Conv\): error: onnxruntime: Invalid input shape: \{2,2\}$"):
        run(proto, x=np.ones((1, 1, 2, 2), np.float32))


def test_what_onnxruntime_lacks_when_it_runs_is_asked_of_the_other() -> None:
    """The greatest of no truth values is false, as ONNX says; onnxruntime has no such thing."""
    given = helper.make_tensor_value_info("x", TensorProto.BOOL, [2, 0])
    made = helper.make_tensor_value_info("y", TensorProto.BOOL, [2, 1])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph([helper.make_node("ReduceMax", ["x", "axes"], ["y"])], "g", [given], [made], [axes])
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    np.testing.assert_array_equal(run(whole, x=np.zeros((2, 0), bool))["y"], [[False], [False]])


def test_what_the_operator_does_not_allow_is_said_in_onnx_words() -> None:
    proto = model([node("Conv", ["x"], ["y"])], {"x": (1, 1, 2, 2)}, ["y"])
    message = r"node 'y' \(Conv\): error: Node\(y\) with schema\(::Conv:\d+\) has input size 1 not in range"
    with pytest.raises(HostError, match=message):
        run(proto, x=np.ones((1, 1, 2, 2), np.float32))


def test_differing_operators_run_in_onnxruntime_where_they_do_not_differ() -> None:
    """Resize of opset 10, which the package onnx cannot compute; and with align_corners, where onnxruntime differs."""
    scales = {"s": np.float32([1, 1, 2, 2])}
    old = HostModel(
        model([helper.make_node("Resize", ["x", "s"], ["y"])], {"x": (1, 1, 2, 2)}, ["y"], scales, opset=10)
    )
    assert old.run({"x": np.ones((1, 1, 2, 2), np.float32)})["y"].shape == (1, 1, 4, 4)
    assert old.evaluators() == {"Resize": "onnxruntime"}
    aligned = node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="align_corners", mode="linear")
    new = HostModel(model([aligned], {"x": (1, 1, 2, 2)}, ["y"], scales))
    assert new.run({"x": np.ones((1, 1, 2, 2), np.float32)})["y"].shape == (1, 1, 4, 4)
    assert new.evaluators() == {"Resize": "onnx"}


def test_models_are_kept_as_bytes() -> None:
    host = HostModel(model([node("Hardmax", ["x"], ["y"])], {"x": (2, 3)}, ["y"]))
    again = HostModel.from_bytes(host.to_bytes())
    assert again.to_bytes() == host.to_bytes()
    assert (again.inputs, again.outputs) == (["x"], ["y"])


@pytest.mark.parametrize(
    ("value", "kind"),
    [(X, "tensor_type"), (np.array(["a"], object), "tensor_type"), ([X, X], "sequence_type"), ([], "sequence_type")],
)
def test_types_of_values(value: object, kind: str) -> None:
    assert type_of(value).WhichOneof("value") == kind
