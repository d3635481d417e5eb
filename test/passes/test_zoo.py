"""The classic networks with random weights."""

from __future__ import annotations

import time
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from frustum.passes.errors import ModelError
from frustum.passes.zoo import ZOO, zoo_model

LARGEST_ACTIVATION = 100.0
SMALLEST_DEVIATION, LARGEST_DEVIATION = 0.4, 4.0


def weights(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def image(model, seed=0):
    (data,) = model.graph.input
    shape = [extent.dim_value for extent in data.type.tensor_type.shape.dim]
    return {data.name: np.random.default_rng(seed).standard_normal(shape, np.float32)}


def run(model, inputs, keep=()):
    """The values `keep` and the network's output, by name; the model gets them as outputs."""
    known = {value.name for value in model.graph.output}
    names = [*dict.fromkeys([*keep, *known])]
    model.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.slow
@pytest.mark.soak(but=3)
@pytest.mark.parametrize("name", ZOO)
def test_activations_keep_unit_variance_and_classes_differ(name):
    model = zoo_model(name)
    nodes = {node.output[0]: node.op_type for node in model.graph.node}
    layers = [value for value, op in nodes.items() if op in ("Conv", "Gemm")]
    found = run(model, image(model), [*layers, *(v for v, op in nodes.items() if op in ("Relu", "Sum"))])
    output = found[model.graph.output[0].name].ravel()
    assert max(np.abs(value).max() for value in found.values()) < LARGEST_ACTIVATION
    for layer in layers:
        assert SMALLEST_DEVIATION < found[layer].std() < LARGEST_DEVIATION, layer
    assert len(np.unique(output)) > 0.9 * output.size
    assert output.max() < 0.1 or "Softmax" not in nodes.values()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "densenet121", "shufflenet", "squeezenet"])
def test_the_output_depends_on_the_input(name):
    """A part of the picture moved by one column must show: 50 times the tolerance of `--check`."""
    model = zoo_model(name)
    inputs = image(model)
    moved = {key: array.copy() for key, array in inputs.items()}
    for array in moved.values():
        array[..., 100:110, :] = np.roll(array[..., 100:110, :], 1, axis=-1)
    key = model.graph.output[0].name
    before, after = run(model, inputs)[key], run(model, moved)[key]
    assert np.abs(after - before).max() > 50 * 1e-4 * np.abs(before).max()


@pytest.mark.slow
def test_weights_are_no_inputs_and_placeholders_are_gone():
    for name in ("squeezenet", "resnet50", "inception_v1"):
        model = zoo_model(name)
        onnx.checker.check_model(model)
        graph = model.graph
        assert len(graph.input) == 1
        assert not any(node.op_type == "ConstantOfShape" for node in graph.node)
        assert all(array.std() > 0 for array in weights(model).values() if array.dtype == np.float32)


@pytest.mark.slow
def test_the_seed_decides_the_weights():
    first, again, other = (weights(zoo_model("squeezenet", seed)) for seed in (0, 0, 1))
    for key, array in first.items():
        np.testing.assert_array_equal(array, again[key])
        if array.dtype == np.float32:
            assert not np.array_equal(array, other[key])


@pytest.mark.slow
def test_weights_are_the_same_on_every_machine():
    found = {key: crc32(array.tobytes()) for key, array in weights(zoo_model("squeezenet")).items()}
    assert found["conv1_w_0"] == CRC_CONV1
    assert found["conv10_w_0"] == CRC_CONV10


CRC_CONV1, CRC_CONV10 = 0x8458692B, 0x8C3EA4FC


def test_big_networks_are_made_quickly():
    start = time.perf_counter()
    zoo_model("resnet50")
    assert time.perf_counter() - start < 5  # 0.1 s alone on the machine


@pytest.mark.slow
def test_an_unknown_name_gets_the_list():
    with pytest.raises(
        ModelError,
        match=r"zoo:resnet: error: no such network; did you mean 'resnet50'\? \(there are alexnet, ",
    ):
        zoo_model("resnet")
