"""Products of unsigned by signed bytes are exact in onnxruntime's sessions, on any processor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum.runtime.host import host_model
from frustum.runtime.host.exact_integers import signed_products, with_exact_products
from frustum.runtime.host.oracle import oracle_outputs

A = np.full((2, 64), 255, np.uint8)


def model(zero: int | None, *, is_read_twice: bool = False) -> onnx.ModelProto:
    """MatMulInteger by the largest signed bytes, whose sums of two do not fit 16 bits."""
    names = ["a", "b"] if zero is None else ["a", "b", "", "z"]
    nodes = [helper.make_node("MatMulInteger", names, ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, [2, 8])]
    constants = [numpy_helper.from_array(np.full((64, 8), 127, np.int8), "b")]
    if zero is not None:
        constants.append(numpy_helper.from_array(np.array(zero, np.int8), "z"))
    if is_read_twice:
        nodes.append(helper.make_node("Identity", ["b"], ["c"]))
        outputs.append(helper.make_tensor_value_info("c", TensorProto.INT8, [64, 8]))
    inputs = [helper.make_tensor_value_info("a", TensorProto.UINT8, [2, 64])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("zero", [None, 0, -128, 127])
@pytest.mark.parametrize("is_read_twice", [False, True])
def test_sums_do_not_saturate(zero, is_read_twice):
    proto = model(zero, is_read_twice=is_read_twice)
    exact = with_exact_products(proto)
    onnx.checker.check_model(exact)
    assert signed_products(proto) and not signed_products(exact)
    wanted = 64 * 255 * (127 - (zero or 0))
    assert (oracle_outputs(proto, {"a": A})["y"] == wanted).all()
    session = host_model.session_of(proto)
    assert not isinstance(session, str)
    assert (session.run(["y"], {"a": A})[0] == wanted).all()
    if is_read_twice:
        assert (oracle_outputs(proto, {"a": A})["c"] == 127).all()


def test_a_model_without_such_products_is_left():
    proto = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    assert with_exact_products(proto) is proto
