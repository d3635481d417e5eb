"""Matrix product, reductions, and the layers that normalise: soft-max and local response."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from frustum.runtime.kernels.types import Array, widen


def matmul(a: Array, b: Array, *, trans_a: bool = False, trans_b: bool = False) -> Array:
    """`[..., M, N]` of `a` `[..., M, K]` and `b` `[..., K, N]` (transposed: `[..., K, M]`, `[..., N, K]`)."""
    a, b = widen(a), widen(b)
    with np.errstate(all="ignore"):
        return np.matmul(a.swapaxes(-1, -2) if trans_a else a, b.swapaxes(-1, -2) if trans_b else b)


def reduce(kind: str, x: Array, axes: tuple[int, ...], *, keepdims: bool = True) -> Array:
    """`mean`, `sum`, `max` or `min` over `axes`."""
    with np.errstate(all="ignore"):
        return np.asarray(REDUCTIONS[kind](widen(x), axis=axes, keepdims=keepdims))


def softmax(x: Array, axis: int) -> Array:
    """Exponentials divided by their sum along `axis`, the largest taken out first."""
    x = widen(x)
    with np.errstate(all="ignore"):
        result = np.exp(x - x.max(axis=axis, keepdims=True))
        result /= result.sum(axis=axis, keepdims=True)
    return result


def lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """`x` `[..., C, H, W]` over (bias + alpha/size * sum of squares of `size` channels around) ** beta."""
    x = widen(x)
    before, channels = (size - 1) // 2, x.shape[-3]
    squares = x * x
    total = np.zeros_like(x)
    for shift in range(-before, size - before):  # the neighbour c + shift
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            total[..., low:high, :, :] += squares[..., low + shift : high + shift, :, :]
    total *= np.float32(alpha / size)
    total += np.float32(bias)
    with np.errstate(all="ignore"):
        return x / total ** np.float32(beta)


REDUCTIONS: dict[str, Callable[..., Array]] = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}
