"""A decode step of a language model with ids, positions and a mask of INT64 runs on the device of every target."""

import numpy as np
import onnxruntime
import pytest
from decode_models import Decode

import frustum
from frustum.backend import targets
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.loading import load_model
from frustum.passes.onnx.place_host import place

WORDS = 80_000
"""More than a table on the device has."""


def hosted(placement):
    return [(each.name, each.op) for part in placement.parts for each in part.fallbacks]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mask", ["cast", "where", "sub"])
def test_all_is_on_the_device_but_the_words(dtype, mask):
    large = Decode(vocab=WORDS, dtype=dtype, mask=mask, table=2048).model()
    assert hosted(place(load_model(large), targets.load("edge"))) == [("x0", "Gather")]
    import_onnx(Decode(dtype=dtype, mask=mask, past=5, rows=2).model())  # a small vocabulary is there too


@pytest.mark.slow
@pytest.mark.soak(but=6)
@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 2e-2)])
def test_outputs_are_those_of_onnxruntime(target, dtype, tolerance):
    decode = Decode(vocab=WORDS, width=16, heads=4, groups=2, hidden=24, past=5, table=300, dtype=dtype, mask="sub")
    inputs, model = decode.inputs(), decode.model()
    ran = frustum.run(frustum.compile(model, target), inputs, checked=True)
    assert [each["name"] for each in ran.report["layers"] if each["where"] == "host"] == ["x0"]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)
    for name, theirs in zip(ran.outputs, wanted, strict=True):
        error = np.abs(ran.outputs[name].astype(np.float64) - theirs).max() / np.abs(theirs).max()
        assert error <= tolerance, name
