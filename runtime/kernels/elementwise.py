# Tests: test/runtime/kernels/test_kernels.py
"""Element by element: the `unary` and `binary` kinds of the graph level, as tables of small functions.

Everything is computed in f32 (`types.widen`).  Overflow to infinity and invalid operands are legitimate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from frustum.runtime.kernels.maps import BFLOAT16, Array, narrow, widen

GELU_CUBE = 0.044715
"""Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", the tanh form."""


def unary(kind: str, x: Array, alpha: float = 0.0, beta: float = 0.0) -> Array:
    """The function `kind` of every element; `alpha` and `beta` are its parameters, if it has any."""
    with np.errstate(all="ignore"):
        return UNARY[kind](widen(x), np.float32(alpha), np.float32(beta))


def binary(kind: str, a: Array, b: Array) -> Array:
    """The function `kind` of elements of `a` and `b`, broadcast as numpy does (from the last axis on)."""
    with np.errstate(all="ignore"):
        return BINARY[kind](widen(a), widen(b))


def erf(x: Array) -> Array:
    """Gauss's error function of every element, f32 correct to its last place (computed in f64 by runs)."""
    return _by_runs(lambda run: _erf(run.astype(np.float64)), x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) of every element in f32, to the bit as onnxruntime computes it with AVX2.

    Its absolute error is 1.7e-7, so that small values (the objectness of a detector) have few digits: only the same
    formula gives the same ones, and deep networks of sigmoids agree better by a third.
    Source: the rational approximation of degree 9/10 on [-18, 18] of Eigen (`logistic`) and MLAS (`logistic.cpp`).
    """
    return _by_runs(_sigmoid, x)


def _by_runs(function: Callable[[Array], Array], x: Array) -> Array:
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty(flat.shape, np.float32)
    for start in range(0, flat.size, RUN):
        result[start : start + RUN] = function(flat[start : start + RUN])
    return result.reshape(x.shape)


RUN = 1 << 14
"""Elements at a time of long formulas, so that the intermediate values stay in the cache."""
ERF_SPLIT, ERF_END = 0.46875, 6.0
"""Below the first the central approximation holds; beyond the second the value is 1."""

# Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969),
# highest power first.  erf(x) = x * CENTRAL[0](x^2) / CENTRAL[1](x^2);  1 - erf(x) = exp(-x^2) * OUTER(x).
ERF_CENTRAL = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)  # fmt: skip
ERF_OUTER = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip


def _erf(x: Array) -> Array:
    size = np.minimum(np.abs(x), ERF_END)
    square = size * size
    central = size * _ratio(square, ERF_CENTRAL)
    outer = 1 - np.exp(-square) * _ratio(size, ERF_OUTER)
    return np.copysign(np.where(size < ERF_SPLIT, central, outer), x)


def _ratio(x: Array, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    """Quotient of two polynomials, each by Horner's scheme."""
    top, bottom = (np.full_like(x, coefficients[0]) for coefficients in polynomials)
    for value, coefficients in zip((top, bottom), polynomials, strict=True):
        for coefficient in coefficients[1:]:
            value *= x
            value += coefficient
    top /= bottom
    return top


SIGMOID_END = np.float32(18.0)
SIGMOID = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03,
     2.48287947061529e-01),
    (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03,
     1.16817656904453e-01, 9.93151921023180e-01),
)  # fmt: skip
"""Polynomials in x squared, highest power first: sigmoid(x) = 0.5 + x * [0] / [1]."""


def _sigmoid(x: Array) -> Array:
    x = np.clip(x.astype(np.float32, copy=False), -SIGMOID_END, SIGMOID_END)
    square = x * x
    top, bottom = (_fused_horner(square, coefficients) for coefficients in SIGMOID)
    return np.clip(top * x / bottom + np.float32(0.5), 0, 1)


def _fused_horner(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's scheme in f32, each product and sum rounded once, as a fused multiply-add does."""
    result = np.full_like(x, coefficients[0])
    wide = np.empty(x.shape, np.float64)
    for coefficient in coefficients[1:]:
        np.multiply(result, x, out=wide, dtype=np.float64)
        wide += np.float32(coefficient)
        result[...] = wide
    return result


def _gelu(x: Array) -> Array:
    return np.float32(0.5) * x * (1 + erf(x * np.float32(sqrt(0.5))))


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(sqrt(2 / pi)) * (x + np.float32(GELU_CUBE) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def _hard_swish(x: Array) -> Array:
    return x * np.clip(x * np.float32(1 / 6) + np.float32(0.5), 0, 1)


UNARY: dict[str, Callable[[Array, np.float32, np.float32], Array]] = {
    "identity": lambda x, a, b: x,
    "relu": lambda x, a, b: np.maximum(x, 0),
    "leaky_relu": lambda x, a, b: np.where(x < 0, x * a, x),
    "clip": lambda x, a, b: np.minimum(np.maximum(x, a), b),
    "sigmoid": lambda x, a, b: sigmoid(x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "hard_swish": lambda x, a, b: _hard_swish(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "gelu": lambda x, a, b: _gelu(x),
    "gelu_tanh": lambda x, a, b: _gelu_tanh(x),
    "exp": lambda x, a, b: np.exp(x),
    "log": lambda x, a, b: np.log(x),
    "sqrt": lambda x, a, b: np.sqrt(x),
    "reciprocal": lambda x, a, b: 1 / x,
    "neg": lambda x, a, b: -x,
    "abs": lambda x, a, b: np.abs(x),
    "floor": lambda x, a, b: np.floor(x),
    "ceil": lambda x, a, b: np.ceil(x),
    "round": lambda x, a, b: np.rint(x),
    "erf": lambda x, a, b: erf(x),
    "softplus": lambda x, a, b: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "affine": lambda x, a, b: x * np.float32(a) + np.float32(b),
    "sign": lambda x, a, b: np.sign(x),
    "silu": lambda x, a, b: x * sigmoid(x),
    "sin": lambda x, a, b: np.sin(x),
    "cos": lambda x, a, b: np.cos(x),
    "round_f16": lambda x, a, b: widen(narrow(x, np.dtype(np.float16))),
    "round_bf16": lambda x, a, b: widen(narrow(x, BFLOAT16)),
}
"""kind -> function of (x, alpha, beta)"""

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "prelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "mask": lambda x, mask: np.where(mask != 0, x, x.dtype.type(0)),
    "keep": lambda x, mask: np.where(mask != 0, x, x.dtype.type(-0.0)),
    "drop": lambda x, mask: np.where(mask != 0, x.dtype.type(-0.0), x),
    "equal": lambda a, b: np.equal(a, b).astype(np.float32),
    "less": lambda a, b: np.less(a, b).astype(np.float32),
    "less_equal": lambda a, b: np.less_equal(a, b).astype(np.float32),
}
"""kind -> function of (a, b)"""
