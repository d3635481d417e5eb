"""Attention of random shapes and options, on the device alone, against ONNX's reference and
onnxruntime.

    python -m pytest -n 0 test/soak/soak_attention.py --hypothesis-profile=soak
"""

import numpy as np
import pytest
from attention_models import TRANSFORMER, attention
from hypothesis import given, settings
from hypothesis import strategies as st
from long_reductions import errors
from onnx.reference import ReferenceEvaluator

SEEDS = st.integers(0, 2**31)


@settings(max_examples=300)
@given(SEEDS)
def test_attention_of_onnx(seed):
    case = attention(np.random.default_rng(seed))
    case.check(ReferenceEvaluator(case.model()).run(None, case.inputs))


@settings(max_examples=300)
@pytest.mark.parametrize("operator", TRANSFORMER)
@given(seed=SEEDS, target=st.sampled_from(["edge", "default"]))
def test_operators_of_onnxruntime(operator, seed, target):
    TRANSFORMER[operator](np.random.default_rng(seed)).check(target=target)


@pytest.mark.parametrize("target", ["edge", "default"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("kind", "length"), [("softmax", 65536), ("layer_norm", 16384), ("attention", 65536)])
@pytest.mark.parametrize("scale", [0.01, 1, 30])
def test_long_rows_are_as_exact_as_those_of_onnxruntime(kind, length, scale, dtype, target):
    ours, theirs = errors(kind, length, scale, dtype, target)
    assert ours <= 2 * theirs
