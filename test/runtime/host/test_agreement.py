"""What `--check` compares: what the device has a part in, of caches the rows that are used."""

import numpy as np
from onnx import TensorProto, helper

import frustum
from frustum.runtime.host.agreement import NOTHING, agreement, with_our_unused_rows

FLOAT = TensorProto.FLOAT


def model(nodes, inputs, outputs, domain=""):
    values = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph(nodes, "g", values, results), opset_imports=opsets, ir_version=9)


DET = helper.make_node("Det", ["x"], ["d"])
NEG = helper.make_node("Neg", ["z"], ["n"])
X, Z = np.eye(3, dtype=np.float32), np.ones(4, np.float32)


def test_of_the_hosts_own_values_nothing_is_said():
    made = model([DET], {"x": [3, 3]}, ["d"])
    check = frustum.run(frustum.compile(made, "edge"), {"x": X}, check=True).report["check"]
    assert check["reference"] == NOTHING == "nothing ran on the device: nothing was checked"
    assert check["max_rel_error"] is None and check["outputs"] == {} and check["not_compared"] == ["d"]


def test_outputs_are_compared_one_by_one():
    made = model([DET, NEG], {"x": [3, 3], "z": [4]}, ["d", "n"])
    outputs = {"d": np.float32(7), "n": -Z}  # the first is wrong, and the host's
    check, found = agreement(made, {"x": X, "z": Z}, outputs, "f32", {"n"})
    assert found.good and [*check.outputs] == ["n"] and check.not_compared == ["d"]
    check, found = agreement(made, {"x": X, "z": Z}, outputs, "f32")
    assert not found.good and found.worst == "d"


def test_a_chain_tells_what_the_device_has_a_part_in():
    """One piece of the host has nodes that read a result of the device, and others."""
    nodes = [DET, helper.make_node("MatMul", ["x", "x"], ["m"]), helper.make_node("Det", ["m"], ["e"])]
    made = frustum.compile(model(nodes, {"x": [3, 3]}, ["d", "e"]), "edge", host="auto")
    kinds = {piece.kind for piece in made.chain.pieces}
    assert made.chain.of_device == ({"e"} if "device" in kinds else frozenset())


def test_rows_of_a_cache_beyond_its_length_mean_nothing():
    results = ["y", "pk", "pv"]
    node = helper.make_node("GroupQueryAttention", [*"qkvabnt"], results, domain="com.microsoft")
    made = model([node], {}, ["y"], "com.microsoft")
    ours, theirs = np.ones((2, 1, 4, 3), np.float32), np.zeros((2, 1, 4, 3), np.float32)
    found = with_our_unused_rows(made, {"n": np.array([1, 2])}, {"pk": ours}, {"pk": theirs})["pk"]
    np.testing.assert_array_equal(found[:, 0, :, 0], [[0, 0, 1, 1], [0, 0, 0, 1]])
