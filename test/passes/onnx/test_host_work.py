"""What nodes do on the host, by hand."""

import numpy as np
import onnx
import pytest
from mixed_models import node
from onnx import TensorProto, helper

from frustum.passes.onnx.host_work import HostWork, host_work, inferred_types


def types_of(**shapes):
    return {name: helper.make_tensor_type_proto(TensorProto.FLOAT, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("made", "shapes", "macs", "elements"),
    [
        (node("Hardmax", ["x"], ["y"]), {"x": (1, 1000), "y": (1, 1000)}, 0, 2000),
        (node("MatMul", ["a", "b"], ["y"]), {"a": (2, 3, 5), "b": (5, 7), "y": (2, 3, 7)}, 210, 30 + 35 + 42),
        (node("Gemm", ["a", "b"], ["y"], transA=1), {"a": (5, 3), "b": (5, 7), "y": (3, 7)}, 105, 15 + 35 + 21),
        (node("Conv", ["x", "w"], ["y"], group=2), {"x": (1, 4, 5, 5), "w": (6, 2, 3, 3), "y": (1, 6, 3, 3)},
         54 * 18, 100 + 108 + 54),
        (node("ConvTranspose", ["x", "w"], ["y"]), {"x": (1, 4, 5, 5), "w": (4, 6, 3, 3), "y": (1, 6, 7, 7)},
         100 * 54, 100 + 216 + 294),
        (node("LSTM", ["x", "w", "r"], ["y"]), {"x": (5, 2, 3), "w": (1, 16, 3), "r": (1, 16, 4), "y": (5, 1, 2, 4)},
         10 * (48 + 64), 30 + 48 + 64 + 40),
        (node("Einsum", ["a", "b"], ["y"], equation="ij,jk->ik"), {"a": (2, 3), "b": (3, 4), "y": (2, 4)}, 24, 26),
        # of a table the rows that are taken
        (node("Gather", ["t", "i"], ["y"]), {"t": (32000, 64), "i": (1,), "y": (1, 64)}, 0, 64 + 1 + 64),
        (node("Shape", ["x"], ["y"]), {"x": (9, 9), "y": (2,)}, 0, 2),
        # a shape that is known at run time only counts as the largest operand
        (node("Compress", ["x", "c"], ["y"]), {"x": (6, 5), "c": (6,)}, 0, 30 + 6 + 30),
    ],
)  # fmt: skip
def test_by_hand(made, shapes, macs, elements):
    assert host_work(made, types_of(**shapes)) == HostWork(macs, 4 * elements)


def test_elements_have_their_sizes():
    types = types_of(y=(4,)) | {"x": helper.make_tensor_type_proto(TensorProto.INT64, (4,))}
    assert host_work(node("Cast", ["x"], ["y"]), types).bytes == 4 * 8 + 4 * 4


def test_types_of_a_whole_model():
    """With the shapes of a run where the file leaves them open."""
    graph = helper.make_graph(
        [node("MatMul", ["x", "w"], ["a"]), node("Hardmax", ["a"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_value_info("y", onnx.TypeProto())], [onnx.numpy_helper.from_array(np.ones((8, 300), "f4"), "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    types = inferred_types(proto, {"x": (2, 8)})
    assert [host_work(each, types) for each in proto.graph.node] == [
        HostWork(2 * 8 * 300, 4 * (16 + 2400 + 600)), HostWork(0, 4 * 1200),
    ]  # fmt: skip
