"""ONNX's Attention on the device: heads, masks, caches and all its outputs."""

from __future__ import annotations

import numpy as np
import pytest
from attention_models import Case, attention, normal
from onnx.reference import ReferenceEvaluator

from frustum.passes.errors import Unsupported


def reference(case):
    return ReferenceEvaluator(case.model()).run(None, case.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_options(seed):
    case = attention(np.random.default_rng(seed))
    case.check(reference(case))


def test_the_product_is_not_capped():
    """ONNX's reference caps what is said to be the product; onnxruntime does not."""
    rng = np.random.default_rng(2)
    attributes = {"softcap": 0.5, "qk_matmul_output_mode": 0}
    Case("Attention", qkv(rng), attributes, (True, False, False, True)).check()


def qkv(rng, batch=2, heads=2, rows=3, keys=5, size=4):
    return [normal(rng, batch, heads, n, size) for n in (rows, keys, keys)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", range(4))
def test_rows_that_see_no_key_are_zero(mode):
    rng = np.random.default_rng(mode)
    mask = rng.random((3, 5)) < 0.6
    mask[1] = False
    case = Case(
        "Attention", [*qkv(rng), mask], {"qk_matmul_output_mode": mode}, (True, False, False, True)
    )
    expected = reference(case)
    assert not expected[0][:, :, 1].any()
    case.check(expected)


@pytest.mark.parametrize("is_causal", [0, 1])
def test_lengths_of_caches(is_causal):
    """Images whose last keys are none, and a mask of fewer keys."""
    rng = np.random.default_rng(5)
    mask = normal(rng, 2, 1, 3, 4)
    operands = [*qkv(rng), mask, None, None, np.array([4, 3])]
    case = Case("Attention", operands, {"is_causal": is_causal}, constants=(6,))
    case.check(reference(case))


@pytest.mark.parametrize(
    ("attributes", "operands", "reason"),
    [
        ({"q_num_heads": 3, "kv_num_heads": 2}, [(1, 4, 6), (1, 5, 4), (1, 5, 4)], "3 heads of queries cannot share 2"),
        ({}, [(1, 4, 6), (1, 5, 6), (1, 5, 6)], "0 heads of queries"),
        ({"softcap": -1.0}, [(1, 2, 4, 6), (1, 2, 5, 6), (1, 2, 5, 6)], "softcap is -1.0"),
        ({"qk_matmul_output_mode": 7}, [(1, 2, 4, 6), (1, 2, 5, 6), (1, 2, 5, 6)], "qk_matmul_output_mode is 7"),
        ({}, [(1, 2, 4, 6), (1, 2, 5, 6), (1, 2, 5, 6), (1, 2, 3, 5)], r"a mask of \(1, 2, 3, 5\) does not broadcast"),
    ],
)
def test_what_has_no_meaning_is_refused(attributes, operands, reason):
    rng = np.random.default_rng(0)
    outputs = (True, False, False, True) if "qk_matmul_output_mode" in attributes else (True,)
    case = Case("Attention", [normal(rng, *shape) for shape in operands], attributes, outputs)
    with pytest.raises(Unsupported, match=reason):
        case.found([np.zeros((1, 2, 4, 6)), np.zeros((1, 2, 4, 5))][: sum(outputs)])


@pytest.mark.parametrize(("size", "value_size"), [(1, 3), (4, 1)])
def test_heads_of_one_element(size, value_size):
    """Heads of a group one after the other, whichever of channels and rows lie beside each other."""
    rng = np.random.default_rng(1)
    shapes = (2, 4, 3, size), (2, 2, 5, size), (2, 2, 5, value_size)
    case = Case("Attention", [normal(rng, *shape) for shape in shapes])
    case.check(reference(case))
