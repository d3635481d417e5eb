"""Sequences of known length: their members are values of the network, in pieces for the host and the device too."""

import numpy as np
import onnxruntime
import pytest
from judged_models import Judged, node, normal
from onnx import TensorProto, helper, numpy_helper

import frustum
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx

X = {"x": normal(2, 7, 5)}


def at(index, name):
    return node("SequenceAt", ["q", index], [name])


SPLIT = node("SplitToSequence", ["x", "n"], ["q"], axis=1)
CASES = {
    "of one length": (
        [SPLIT, at("p", "a"), at("r", "b"), node("Concat", ["a", "b"], ["y"], axis=1)],
        {"n": np.int64(3), "p": np.int64(0), "r": np.int64(-1)},
    ),
    "of given lengths": (
        [SPLIT, at("p", "a"), node("Relu", ["a"], ["y"])], {"n": np.int64([2, 1, 4]), "p": np.int32(2)},
    ),
    "without the axis": (
        [node("SplitToSequence", ["x"], ["q"], axis=1, keepdims=0), at("p", "a"), node("Relu", ["a"], ["y"])],
        {"p": np.int64(-2)},
    ),
    "edited": (
        [
            node("SplitToSequence", ["x"], ["q"], axis=2), node("SequenceLength", ["q"], ["l"]),
            node("Cast", ["l"], ["f"], to=1), node("SequenceErase", ["q", "p"], ["e"]),
            node("SequenceInsert", ["e", "c", "z"], ["g"]), node("SequenceErase", ["g"], ["h"]),
            node("SequenceInsert", ["h", "c"], ["i"]), node("ConcatFromSequence", ["i"], ["j"], axis=-1),
            node("Mul", ["j", "f"], ["y"]),
        ],
        {"p": np.int64(-2), "c": normal(2, 7, 1), "z": np.int64(0)},
    ),
    "put together": (
        [
            node("Relu", ["x"], ["r"]), node("SequenceConstruct", ["x", "r", "c"], ["q"]),
            node("ConcatFromSequence", ["q"], ["y"], axis=-1, new_axis=1),
        ],
        {"c": normal(2, 7, 5)},
    ),
    "begun empty": (
        [node("SequenceEmpty", [], ["e"]), node("SequenceInsert", ["e", "x"], ["q"]), at("z", "a"),
         node("Neg", ["a"], ["y"])],
        {"z": np.int64(0)},
    ),
    "of constants": (
        [node("SplitToSequence", ["c", "n"], ["q"], axis=1), at("p", "a"), node("Add", ["x", "a"], ["y"])],
        {"c": normal(2, 8, 5), "n": np.int64([1, 7]), "p": np.int64(1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_members_are_values(name):
    nodes, constants = CASES[name]
    Judged(nodes, X, constants).agrees()


def test_on_the_device():
    nodes, constants = CASES["of one length"]
    Judged(nodes, X, constants).runs()


def in_pieces(nodes, constants, outputs):
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 24, 24))]
    graph = helper.make_graph(nodes, "case", infos, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inputs = {"x": normal(1, 8, 24, 24)}
    found = frustum.run(frustum.compile(proto, target="default"), inputs, mode="functional").outputs
    return proto, list(found.values()), onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)


CONSTANTS = {"w": normal(8, 8, 3, 3), "n": np.int64(4), "zero": np.int64(0), "one": np.int64(1)}
CUT = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("SplitToSequence", ["c", "n"], ["q"], axis=1)]


@pytest.mark.slow
def test_a_sequence_between_the_device_and_the_host():
    """Each side lists the members that it reads."""
    nodes = [
        *CUT, at("zero", "a"), node("Asinh", ["a"], ["h"]), at("one", "b"), node("Concat", ["h", "b"], ["d"], axis=1),
        node("Conv", ["d", "w"], ["y"], pads=[1] * 4),
    ]  # fmt: skip
    _, found, wanted = in_pieces(nodes, CONSTANTS, [helper.make_tensor_value_info("y", 1, (1, 8, 24, 24))])
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=1e-5 * np.abs(wanted[0]).max())


def test_a_sequence_that_the_model_gives():
    nodes = [*CUT, at("zero", "a"), node("Relu", ["a"], ["y"])]
    outputs = [
        helper.make_tensor_value_info("y", 1, (1, 4, 24, 24)), helper.make_tensor_sequence_value_info("q", 1, None)
    ]  # fmt: skip
    proto, (y, q), wanted = in_pieces(nodes, CONSTANTS, outputs)
    for own, right in zip([y, *q], [wanted[0], *wanted[1]], strict=True):
        np.testing.assert_allclose(own, right, rtol=0, atol=1e-5 * np.abs(right).max())
    with pytest.raises(Unsupported, match="output 'q' is a sequence, which the device lacks"):
        import_onnx(proto)


def test_a_position_outside_and_one_that_is_open():
    nodes, constants = CASES["of given lengths"]
    proto = Judged(nodes, X, constants).proto
    for tensor in proto.graph.initializer:
        if tensor.name == "p":
            tensor.CopyFrom(numpy_helper.from_array(np.int32(3), "p"))
    with pytest.raises(Unsupported, match="position 3 is not inside a sequence of 3"):
        import_onnx(proto)
