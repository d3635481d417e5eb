"""Element by element: the `unary` and `binary` kinds of the graph level, as tables of small functions.

Everything is computed in f32 (`types.widen`).  Overflow to infinity and invalid operands are legitimate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from frustum.runtime.kernels.types import Array, widen

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
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty(flat.shape, np.float32)
    for start in range(0, flat.size, ERF_RUN):
        result[start : start + ERF_RUN] = _erf(flat[start : start + ERF_RUN].astype(np.float64))
    return result.reshape(x.shape)


ERF_RUN = 1 << 13
"""Elements at a time, so that the intermediate values stay in the cache."""
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


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


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
    "sigmoid": lambda x, a, b: _sigmoid(x),
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
}
"""kind -> function of (a, b)"""
