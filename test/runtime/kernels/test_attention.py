"""Attention of all heads at once against a loop over heads and rows."""

from __future__ import annotations

import numpy as np
import pytest

from frustum.runtime.kernels import attention


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("causal_from", [None, 0, 3])
def test_a_loop_over_heads_and_rows_agrees(is_merged, softcap, causal_from):
    rng = np.random.default_rng(1)
    batch, rows, keys, (heads, groups), (size, value_size) = 2, 4, 7, (6, 3), (5, 3)
    packed = rng.standard_normal((batch, rows, 40), np.float32)
    k = rng.standard_normal((batch, groups, keys, size), np.float32)
    v = rng.standard_normal((batch, keys, 11), np.float32)
    mask = rng.standard_normal((1, heads, rows, 1), np.float32)
    got = attention(
        packed, k, v, mask, heads=(heads, groups), sizes=(size, value_size), firsts=(4, 0, 2), scale=0.3,
        softcap=softcap, causal_from=causal_from, is_merged=is_merged,
    )  # fmt: skip
    for b, h, i in np.ndindex(batch, heads, rows):
        group = h // 2
        q = packed[b, i, 4 + h * size : 4 + (h + 1) * size]
        scores = k[b, group] @ q * 0.3
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        scores = scores + mask[0, h, i]
        seen = keys if causal_from is None else min(keys, i + causal_from + 1)
        weights = np.exp(scores[:seen] - scores[:seen].max())
        first = 2 + group * value_size
        wanted = weights @ v[b, :seen, first : first + value_size] / weights.sum()
        found = got[b, i, h * value_size : (h + 1) * value_size] if is_merged else got[b, h, i]
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_a_row_that_sees_no_key_is_zero():
    one = np.ones((1, 1, 2, 3), np.float32)
    mask = np.array([[0, 0], [-np.inf, -np.inf]], np.float32)
    got = attention(one, one, one, mask, heads=(1, 1), sizes=(3, 3), firsts=(0, 0, 0), scale=1.0)
    np.testing.assert_array_equal(got[0, 0], [[1, 1, 1], [0, 0, 0]])
