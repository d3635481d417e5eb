"""Loads and stores of tiles among the layers of a unit, and compacted pieces of strided convolutions of one tap."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import frustum
from frustum.backend.targets import load
from frustum.passes.lower.unit.prefetch import Gaps, load_gaps, store_gaps


def network(images=8, stride=2):
    """Two residual blocks, the second with a strided shortcut of one tap."""
    rng = np.random.default_rng(1)
    weights, nodes = {}, []

    def conv(x, name, outputs, inputs, kernel, stride=1):
        weights[name] = (rng.standard_normal((outputs, inputs, kernel, kernel)) / (kernel * inputs)).astype("f4")
        nodes.append(
            helper.make_node("Conv", [x, name], [name + "_y"], kernel_shape=[kernel] * 2, strides=[stride] * 2,
                             pads=[kernel // 2] * 4)
        )  # fmt: skip
        return name + "_y"

    a = conv(conv("x", "a0", 16, 32, 1), "a1", 32, 16, 3)
    nodes.append(helper.make_node("Add", [a, "x"], ["s"]))
    b = conv(conv("s", "b0", 16, 32, 1, stride), "b1", 64, 16, 3)
    nodes.append(helper.make_node("Add", [b, conv("s", "c0", 64, 32, 1, stride)], ["t"]))
    nodes.append(helper.make_node("Relu", ["t"], ["y"]))
    size = -(-28 // stride)
    graph = helper.make_graph(
        nodes, "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [images, 32, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [images, 64, size, size])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", ["default", "edge", "df"])
def test_transfers_among_layers_give_the_same_numbers_and_no_race(name, stride):
    ort = pytest.importorskip("onnxruntime")
    model = network(4, stride)
    x = np.random.default_rng(2).random((4, 32, 28, 28), np.float32)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    made = frustum.compile(model, load(name))
    ran = frustum.run(made, {"x": x}, mode="functional", checked=True)
    assert np.abs(ran.outputs["y"] - expected).max() <= 1e-4 * np.abs(expected).max()


def test_one_copy_is_loaded_behind_its_last_reader_and_stored_before_its_maker():
    assert load_gaps([0, 2], 6, 1) == Gaps(2, 5) and load_gaps([0, 2], 6, 2) == Gaps(-1, 5)
    assert store_gaps(5, 6, 1) == Gaps(0, 5) and not store_gaps(0, 6, 1) and not load_gaps([5], 6, 1)


@pytest.mark.slow
def test_a_strided_kernel_of_one_tap_may_be_compacted():
    """On `default` a line needs a write of its own for each of the rows of 7 that are read with a stride."""
    from stops import target

    from frustum.dialects.tile import Axis, Whole
    from frustum.passes.plan.layer_work import LayerWork
    from frustum.passes.plan.pieces import plan_layer

    strided = (Axis(), Whole(1024), Axis(2), Axis(2))
    work = LayerWork(
        "conv", (4, 2048, 7, 7), (strided,), (2,), 2, strides=(2, 2), channels=1024, group_outputs=2048, weight_bytes=2,
    )  # fmt: skip
    machine = target("default")
    plain = plan_layer(work, machine, "unit", 4)
    compact = plan_layer(replace(work, may_compact=True), machine, "unit", 4)
    assert compact.map.compact and not plain.map.compact and compact.cycles < 0.5 * plain.cycles


