"""Integer products are exact, and requantising is onnxruntime's to the bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.runtime.kernels import integer


def rounded(x):
    return x.astype(np.int64)


@pytest.mark.parametrize(
    ("terms", "dtype"), [(7, np.int8), (300, np.int8), (1200, np.int8), (9000, np.int8), (50, np.int16)]
)
@pytest.mark.parametrize("extreme", [False, True])
def test_matmul_is_exact(terms, dtype, extreme):
    rng = np.random.default_rng(terms)
    ends = np.iinfo(dtype)
    draw = (lambda shape: rng.choice([ends.min, ends.max, ends.max - 1], shape)) if extreme else (
        lambda shape: rng.integers(ends.min, ends.max + 1, shape)
    )
    a, b = draw((2, 3, terms)).astype(dtype), draw((terms, 4)).astype(dtype)
    zero, zeros = -128, rng.integers(-128, 128, 4).astype(dtype)
    expected = (a.astype(np.int64) - zero) @ (b.astype(np.int64) - zeros)
    np.testing.assert_array_equal(integer.matmul(a, b, a_zero=zero, b_zero=zeros), expected)
    turned = integer.matmul(a.swapaxes(1, 2), b.T, a_zero=zero, b_zero=zeros, trans_a=True, trans_b=True)
    np.testing.assert_array_equal(turned, expected)


@given(
    st.integers(1, 3), st.integers(1, 40), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2),
    st.integers(0, 2), st.integers(-128, 127), st.sampled_from([np.int8, np.int16]),
)  # fmt: skip
def test_conv_is_exact(groups, channels, kernel, stride, dilation, pad, zero, dtype):
    rng = np.random.default_rng([groups, channels, kernel])
    size, ends = dilation * (kernel - 1) + 3, np.iinfo(dtype)
    x = rng.choice([ends.min, ends.max, 5], (2, groups * channels, size, size)).astype(dtype)
    w = rng.choice([ends.min, ends.max, -7], (2 * groups, channels, kernel, kernel)).astype(dtype)
    w_zero = rng.integers(-128, 128, 2 * groups).astype(dtype)
    settings = {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (dilation, dilation), "groups": groups}
    from frustum.runtime.kernels import conv

    expected = conv(
        (x.astype(np.int64) - zero).astype(np.float64),
        (w.astype(np.int64) - w_zero.astype(np.int64)[:, None, None, None]).astype(np.float64), **settings,
    )  # fmt: skip
    found = integer.conv(x, w, x_zero=zero, w_zero=w_zero, **settings)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, rounded(expected))
    lead = integer.conv(x[:, None], w[None], x_zero=zero, w_zero=w_zero[None], **settings)
    np.testing.assert_array_equal(lead[:, 0], found)


def test_large_products_are_summed_in_parts(monkeypatch):
    types = []
    plain = integer.convolution.matmul
    monkeypatch.setattr(integer.convolution, "matmul", lambda a, b: types.append(a.dtype) or plain(a, b))
    a, b = np.full((1, 1024), -128, np.int8), np.full((1024, 1), -128, np.int8)
    assert integer.matmul(a, b)[0, 0] == 1 << 24
    assert types == [np.float32]
    a, b = np.full((1, 1025), -128, np.int8), np.full((1025, 1), -128, np.int8)
    assert integer.matmul(a, b)[0, 0] == (1 << 24) + (1 << 14)
    assert types == [np.float32] * 3


def test_requantising_rounds_half_to_even_and_saturates():
    acc = np.asarray([1, 3, 5, -1, -3, 1000, -1000])
    found = integer.requantise(acc, np.float32(0.5), 10, np.int8)
    np.testing.assert_array_equal(found, [10, 12, 12, 10, 8, 127, -128])


def test_quantising():
    x = np.asarray([0.25, 0.75, -0.25, 1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    found = integer.quantize(x, 0.5, 3, np.int8)
    np.testing.assert_array_equal(found, [3, 5, 3, 127, -128, 127, -128, -128])
    assert integer.quantize(x, 0.5, 3, np.int16)[3] == 32767


def test_dequantising_is_exact_before_the_product():
    q = np.asarray([np.iinfo(np.int32).max, np.iinfo(np.int32).min], np.int32)
    found = integer.dequantize(q, 0.1, -5)
    np.testing.assert_array_equal(found, (q.astype(np.int64) + 5).astype(np.float32) * np.float32(0.1))
    np.testing.assert_array_equal(integer.dequantize(np.asarray([-128, 127], np.int8), 2.0, 1), [-258, 252])
    close_to_2_24 = np.asarray([(1 << 24) + 3, -(1 << 24) - 1], np.int32)  # f32 has no odd numbers there
    np.testing.assert_array_equal(integer.dequantize(close_to_2_24, 1.0, 1), [(1 << 24) + 2, -(1 << 24) - 2])


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_unsigned_integers_are_half_their_range_less_on_the_device_and_come_back(bits):
    half = 1 << (bits - 1)
    values = np.asarray([0, 1, half - 1, half, half + 1, 2 * half - 1], f"u{bits // 8}")
    held = integer.signed(values)
    assert held.dtype == f"i{bits // 8}"
    np.testing.assert_array_equal(held, values.astype(np.int64) - half)
    np.testing.assert_array_equal(integer.unsigned(held), values)
    np.testing.assert_array_equal(integer.signed(held), held)
