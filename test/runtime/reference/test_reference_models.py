"""Whole networks: import, reference, oracle."""

from __future__ import annotations

import numpy as np
import pytest
from published import published

from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.passes.zoo import ZOO, zoo_model
from frustum.runtime.host.oracle import compare, oracle_outputs, random_inputs, resolutions
from frustum.runtime.reference.graph import ReferenceExecutor

QUANTISED = {"micro-kws-qdq", "micro-kws-qoperator"}
"""Their f32 outputs come from integers: one step of the last scale is 1/256 of the largest."""


def run(module, inputs):
    return ReferenceExecutor(store_of(module)).run_graph(module, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name):
    model = zoo_model(name)
    module = import_onnx(model)
    inputs = random_inputs(module, 0)
    agreement = compare(run(module, inputs), oracle_outputs(model, inputs), "f32")
    assert agreement.good, agreement


@pytest.mark.slow
def test_a_batch_of_four():
    model = zoo_model("squeezenet")
    module = import_onnx(model, batch=4)
    inputs = random_inputs(module, 0)
    agreement = compare(run(module, inputs), oracle_outputs(model, inputs, batch=4), "f32")
    assert agreement.good, agreement


@pytest.mark.slow
@pytest.mark.parametrize("path", published())
def test_published_models(path):
    arrays = np.load(path.with_suffix(".io.npz"))
    inputs = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    shapes = {name: array.shape for name, array in inputs.items()}
    found, expected = run(import_onnx(path, shapes=shapes), inputs), oracle_outputs(path, inputs)
    if path.stem in QUANTISED:
        (name,) = expected
        assert np.abs(found[name] - expected[name]).max() <= 2 / 256
        np.testing.assert_array_equal(found[name].argmax(-1), expected[name].argmax(-1))
        return
    dtype = "f16" if "fp16" in path.stem else "f32"
    agreement = compare(found, expected, dtype, resolutions(path))
    assert agreement.good, agreement
