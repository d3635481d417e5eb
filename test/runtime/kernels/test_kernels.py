"""Each kernel against a formula written out for single elements, on small random cases."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import plain_machine
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.dialects.isa import program as p
from frustum.runtime import kernels

few = settings(max_examples=40, deadline=None, derandomize=True)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def close(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def window_elements(size, kernel, strides, pads, dilations, output):
    """Input rows and columns (inside the map) that an output sees, with their tap."""
    for tap in itertools.product(*map(range, kernel)):
        where = [output[a] * strides[a] - pads[a] + tap[a] * dilations[a] for a in (0, 1)]
        if all(0 <= where[a] < size[a] for a in (0, 1)):
            yield tap, tuple(where)


def conv_by_elements(x, w, strides, pads, dilations, groups):
    n, _, *size = x.shape
    m, per_group, *kernel = w.shape
    out = [
        (size[a] + pads[a] + pads[a + 2] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1
        for a in (0, 1)
    ]
    y = np.zeros((n, m, *out))
    for k, (i, j) in itertools.product(range(m), itertools.product(*map(range, out))):
        first = k // (m // groups) * per_group
        for tap, where in window_elements(size, kernel, strides, pads, dilations, (i, j)):
            seen = x[:, first : first + per_group, where[0], where[1]].astype(np.float64)
            y[:, k, i, j] += seen @ w[k, :, tap[0], tap[1]].astype(np.float64)
    return y


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@few
@given(
    groups=st.sampled_from([1, 2, 3]), per_group=st.integers(1, 3), multiplier=st.integers(1, 3),
    kernel=pairs, strides=pairs, dilations=pairs, pads=st.tuples(*[st.integers(-1, 2)] * 4),
    batch=st.integers(1, 2),
)  # fmt: skip
def test_conv_by_elements(groups, per_group, multiplier, kernel, strides, dilations, pads, batch):
    x = normal(batch, groups * per_group, 9, 10)
    w = normal(groups * multiplier, per_group, *kernel, seed=1)
    found = kernels.conv(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups)
    close(found, conv_by_elements(x, w, strides, pads, dilations, groups))


@pytest.mark.parametrize("groups, per_group", [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 1), (3, 2), (1, 2)])
def test_conv_with_one_set_of_weights_per_core(groups, per_group, kernel, stride):
    x, w = normal(3, 2, 4, 8, 8), normal(3, 1, 8, per_group, kernel, kernel, seed=1)
    found = kernels.conv(x, w, strides=(stride, stride), pads=(1, 0, 1, 1), groups=groups)
    for core in range(3):
        alone = kernels.conv(x[core], w[core, 0], strides=(stride, stride), pads=(1, 0, 1, 1), groups=groups)
        close(found[core], alone)


@pytest.mark.parametrize("groups", [1, 4])
def test_conv_in_bands_of_rows_and_blocks_of_channels_is_the_same(groups, monkeypatch):
    x, w = normal(2, 4, 9, 9), normal(8, 4 // groups, 3, 3, seed=1)
    whole = kernels.conv(x, w, groups=groups, pads=(1, 1, 1, 1))
    monkeypatch.setattr("frustum.runtime.kernels.convolution.COLUMNS_BYTES", 3000)
    monkeypatch.setattr("frustum.runtime.kernels.convolution.DEPTHWISE_COLUMNS_BYTES", 3000)
    close(kernels.conv(x, w, groups=groups, pads=(1, 1, 1, 1)), whole)


@few
@given(
    kernel=pairs, strides=pairs, dilations=st.sampled_from([(1, 1), (2, 1), (1, 3)]),
    pads=st.tuples(*[st.integers(0, 1)] * 4), ceil_pads=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    include=st.booleans(),
)  # fmt: skip
def test_pools_by_elements(kernel, strides, dilations, pads, ceil_pads, include):
    x = normal(1, 2, 8, 9)
    size = x.shape[-2:]
    largest = kernels.max_pool(
        x, kernel, strides=strides, pads=pads, dilations=dilations, ceil_pads=ceil_pads
    )
    mean = kernels.average_pool(
        x,
        kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        ceil_pads=ceil_pads,
        count_include_pad=include,
    )
    for i, j in np.ndindex(mean.shape[-2:]):
        seen = [p for _, p in window_elements(size, kernel, strides, pads, dilations, (i, j))]
        if not seen:
            continue
        values = np.stack([x[..., r, c] for r, c in seen])
        wide = (size[0] + pads[0] + pads[2], size[1] + pads[1] + pads[3])
        counted = window_elements(wide, kernel, strides, (0, 0, 0, 0), dilations, (i, j)) if include else seen
        np.testing.assert_array_equal(largest[..., i, j], values.max(0))
        np.testing.assert_allclose(mean[..., i, j], values.sum(0) / len(list(counted)), rtol=1e-5, atol=1e-6)


def test_pools_take_any_leading_axes():
    x = normal(2, 3, 4, 6, 6)
    close(kernels.max_pool(x, (2, 2))[1, 2], kernels.max_pool(x[1, 2], (2, 2)))
    close(kernels.average_pool(x, (2, 2))[1, 2], kernels.average_pool(x[1, 2], (2, 2)))


def test_matmul_transposed_and_broadcast():
    a, b = normal(2, 1, 3, 4), normal(5, 4, 6, seed=1)
    close(kernels.matmul(a, b), np.einsum("npik,pkj->npij", np.repeat(a, 5, 1), b))
    close(
        kernels.matmul(a.swapaxes(-1, -2), b.swapaxes(-1, -2), trans_a=True, trans_b=True),
        kernels.matmul(a, b),
    )


@pytest.mark.parametrize("kind", ["mean", "sum", "max", "min"])
def test_reduce(kind):
    x = normal(2, 3, 4, 5)
    close(kernels.reduce(kind, x, (1, 3)), getattr(np, kind)(x.astype(np.float64), (1, 3), keepdims=True))
    assert kernels.reduce(kind, x, (2, 3), keepdims=False).shape == (2, 3)


def test_softmax_of_huge_values():
    close(kernels.softmax(np.array([[1e4, 1e4, -1e4]], np.float32), 1), np.array([[0.5, 0.5, 0.0]]))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_lrn_by_elements(size):
    x = normal(2, 6, 3, 3)
    expected = np.empty(x.shape)
    for c in range(6):
        low, high = max(0, c - (size - 1) // 2), min(5, c + math.ceil((size - 1) / 2))
        squares = (x[:, low : high + 1].astype(np.float64) ** 2).sum(1)
        expected[:, c] = x[:, c] / (2.0 + 0.5 / size * squares) ** 0.75
    close(kernels.lrn(x, size, 0.5, 0.75, 2.0), expected)


def test_erf_is_correct_to_the_last_place():
    x = np.concatenate([np.linspace(-7, 7, 20_001), [np.inf, -np.inf, 0.0, 1e-30]]).astype(np.float32)
    expected = np.array([math.erf(value) for value in x])
    assert np.abs(kernels.erf(x) - expected).max() < 1e-7
    assert np.isnan(kernels.erf(np.array([np.nan], np.float32)))[0]


def test_sigmoid_is_that_of_onnxruntime():
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"]
    made = onnx.helper.make_graph([onnx.helper.make_node("Sigmoid", ["x"], ["y"])], "g", value[:1], value[1:])
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.linspace(-20, 20, 100_001, dtype=np.float32)
    (expected,) = session.run(None, {"x": x})
    found = kernels.unary("sigmoid", x)
    assert np.abs(found - expected).max() < 2.5e-7  # on a machine without AVX2 theirs is rounded otherwise
    assert np.isnan(kernels.unary("sigmoid", np.array([np.nan], np.float32)))[0]


SCALAR = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0),
    "leaky_relu": lambda x: x if x >= 0 else 0.2 * x,
    "clip": lambda x: min(max(x, 0.2), 0.6),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "hard_sigmoid": lambda x: min(max(0.2 * x + 0.6, 0), 1),
    "hard_swish": lambda x: x * min(max(x / 6 + 0.5, 0), 1),
    "tanh": math.tanh,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x >= 0 else 0.2 * (math.exp(x) - 1),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "exp": math.exp,
    "log": lambda x: math.log(x) if x > 0 else math.nan,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "reciprocal": lambda x: 1 / x,
    "neg": lambda x: -x,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "erf": math.erf,
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "affine": lambda x: 0.2 * x + 0.6,
    "sign": lambda x: math.copysign(float(x != 0), x),
    "sin": math.sin,
    "cos": math.cos,
    "round_f16": lambda x: plain_machine.to_f16(x),
    "round_bf16": lambda x: plain_machine.to_bf16(x),
}


@pytest.mark.parametrize("kind", kernels.UNARY)
def test_unary_by_elements(kind):
    x = np.concatenate([3 * normal(60), [0.5, 1.5, -0.5, 2.5]]).astype(np.float32)
    expected = np.array([SCALAR[kind](float(value)) for value in x])
    close(kernels.unary(kind, x, 0.2, 0.6), expected)


def test_overflow_is_infinity_without_a_warning():
    x = np.array([1000.0, -1000.0], np.float32)
    assert kernels.unary("exp", x).tolist() == [np.inf, 0]
    assert kernels.unary("sigmoid", x).tolist() == [1, 0]
    assert kernels.unary("softplus", x).tolist() == [1000, 0]
    assert kernels.binary("div", x, np.zeros(1, np.float32)).tolist() == [np.inf, -np.inf]
    assert kernels.narrow(x * 100, np.float16).tolist() == [np.inf, -np.inf]


def test_binary_kinds_broadcast():
    a, b = normal(2, 3, 4), normal(3, 1, seed=1)
    numpy = {
        "add": "add",
        "sub": "subtract",
        "mul": "multiply",
        "div": "divide",
        "max": "maximum",
        "min": "minimum",
    }
    for kind, name in numpy.items():
        close(kernels.binary(kind, a, b), getattr(np, name)(a, b))
    close(kernels.binary("pow", np.abs(a), b), np.abs(a) ** b)
    close(kernels.binary("prelu", a, b), np.where(a < 0, a * b, a))
    harmful, mask = np.float32([np.nan, np.inf, -np.inf, 3]), np.float32([0, 0, 0, -2])
    close(kernels.binary("mask", harmful, mask), np.float32([0, 0, 0, 3]))


def test_what_is_chosen_is_exact():
    """keep(a, c) + drop(b, c) is a or b to the bit: the sign of 0, infinities and what is no number included."""
    a, b = np.float32([-0.0, 0.0, np.inf, 1, np.nan, 5]), np.float32([np.nan, -np.inf, -0.0, 0.0, -0.0, np.nan])
    mask = np.float32([1, 1, 0, 0, 0, 1])
    found = kernels.binary("add", kernels.binary("keep", a, mask), kernels.binary("drop", b, mask))
    assert found.tobytes() == np.where(mask != 0, a, b).tobytes()


def test_comparisons_of_what_is_no_number_and_of_both_zeros():
    a, b = np.float32([np.nan, -0.0, np.inf, 1, -np.inf]), np.float32([np.nan, 0.0, np.inf, 2, np.nan])
    assert kernels.binary("equal", a, b).tolist() == [0, 1, 1, 0, 0]
    assert kernels.binary("less", a, b).tolist() == [0, 0, 0, 1, 0]
    assert kernels.binary("less_equal", a, b).tolist() == [0, 1, 1, 1, 0]
    assert np.isnan(kernels.unary("sign", a)[0])
    assert kernels.unary("sign", a)[1:].tolist() == [0, 1, 1, -1]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_computed_in_f32(dtype):
    x, w = normal(1, 3, 6, 6).astype(dtype), normal(4, 3, 3, 3, seed=1).astype(dtype)
    wide_x, wide_w = x.astype(np.float32), w.astype(np.float32)
    for found, expected in [
        (kernels.conv(x, w, pads=(1, 1, 1, 1)), kernels.conv(wide_x, wide_w, pads=(1, 1, 1, 1))),
        (kernels.max_pool(x, (2, 2)), kernels.max_pool(wide_x, (2, 2))),
        (kernels.softmax(x, 1), kernels.softmax(wide_x, 1)),
        (kernels.unary("gelu", x), kernels.unary("gelu", wide_x)),
        (kernels.binary("mul", x, x), wide_x * wide_x),
    ]:
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(kernels.narrow(wide_x, dtype), x)


def resize_by_elements(x, out, scale, offset, mode, rounding):
    choose = {
        "floor": math.floor,
        "ceil": math.ceil,
        "round_prefer_floor": lambda p: math.ceil(p - 0.5),
        "round_prefer_ceil": lambda p: math.floor(p + 0.5),
    }[rounding]
    y = np.empty((*x.shape[:-2], *out))
    for i, j in np.ndindex(*out):
        where = [min(max(o * scale[a] + offset[a], 0), x.shape[a - 2] - 1) for a, o in enumerate((i, j))]
        if mode == "nearest":
            y[..., i, j] = x[..., choose(where[0]), choose(where[1])]
            continue
        low = [math.floor(p) for p in where]
        high = [min(v + 1, x.shape[a - 2] - 1) for a, v in enumerate(low)]
        r, c = where[0] - low[0], where[1] - low[1]
        y[..., i, j] = (1 - r) * ((1 - c) * x[..., low[0], low[1]] + c * x[..., low[0], high[1]]) + r * (
            (1 - c) * x[..., high[0], low[1]] + c * x[..., high[0], high[1]]
        )
    return y


def axes(x, scale, offset):
    return tuple(kernels.ResizedAxis(scale[a], offset[a], x.shape[a - 2]) for a in (0, 1))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(
    "scale, offset", [((0.5, 0.5), (-0.25, -0.25)), ((0.4, 2.0), (0.0, 0.5)), ((1.0, 0.25), (0, 0))]
)
def test_resize_by_elements(mode, rounding, scale, offset):
    x = normal(2, 3, 5, 6)
    found = kernels.resize(x, (9, 11), axes(x, scale, offset), mode=mode, rounding=rounding)
    close(found, resize_by_elements(x, (9, 11), scale, offset, mode, rounding))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_a_tile_is_a_part_of_the_whole(mode):
    x = normal(1, 2, 8, 8)
    whole = kernels.resize(x, (16, 16), axes(x, (0.5, 0.5), (-0.25, -0.25)), mode=mode)
    part = (kernels.ResizedAxis(0.5, -0.25, 8, start=6, origin=2), kernels.ResizedAxis(0.5, -0.25, 8))
    found = kernels.resize(x[..., 2:7, :], (6, 16), part, mode=mode)
    np.testing.assert_array_equal(found, whole[..., 6:12, :])


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), kernels.BFLOAT16])
def test_every_number_of_16_bits_widens_as_numpy_widens_it(dtype):
    """Subnormal, infinite and what is no number too, to the bit; of arrays with gaps as well."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = bits.view(dtype).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(kernels.widen(bits.view(dtype)).view(np.uint32), expected)
    square = np.ascontiguousarray(bits.view(dtype).reshape(256, 256).T)
    np.testing.assert_array_equal(kernels.widen(square.T).reshape(-1).view(np.uint32), expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), kernels.BFLOAT16])
@pytest.mark.parametrize("seed", range(4))
def test_numbers_are_rounded_to_16_bits_as_numpy_rounds_them(dtype, seed):
    """To the bit: any f32, those near the ends of the range of f16 and its subnormal ones, and halfway cases."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 32, 1 << 17, np.uint32)
    if seed:  # exponents of f16 and around them
        bits = bits & 0x807FFFFF | random.integers(95, 146, bits.size, np.uint32) << 23
    if seed > 1:  # halfway between two neighbours
        bits &= 0xFFFFF000 if seed == 2 else 0xFFFF8000
    numbers = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = numbers.astype(dtype).view(np.uint16)
    np.testing.assert_array_equal(kernels.narrow(numbers, dtype).view(np.uint16), expected)


NUMBERS = (-90.0, -6.5, -2.5, -1.0, -0.5, -1e-4, 0.0, 1e-4, 0.3, 0.5, 1.0, 1.5, 2.5, 3.0, 7.0, 40.0)


@pytest.mark.parametrize("kind", p.UNARY_KINDS)
def test_a_unary_kind_is_what_one_number_at_a_time_gives(kind):
    alpha, beta = (-0.75, 2.25) if kind == "clip" else (0.2, 0.5)
    expected = [plain_machine.activated(kind, x, alpha, beta) for x in np.float32(NUMBERS).tolist()]
    found = kernels.unary(kind, np.array(NUMBERS, np.float32), alpha, beta)
    np.testing.assert_allclose(found, np.float32(expected), rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("kind", p.BINARY_KINDS)
def test_a_binary_kind_is_what_two_numbers_at_a_time_give(kind):
    a, b = (each.ravel() for each in np.meshgrid(np.float32(NUMBERS[1:]), np.float32(NUMBERS[1:-1])))
    with np.errstate(all="ignore"):
        expected = np.array([plain_machine.combined(kind, *pair) for pair in zip(a.tolist(), b.tolist(), strict=True)])
        wanted = expected.astype(np.float32)
    np.testing.assert_allclose(kernels.binary(kind, a, b), wanted, rtol=3e-6, atol=3e-7)
