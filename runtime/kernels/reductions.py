# Tests: test/runtime/kernels/test_kernels.py
"""Many elements to one: pooling (rows first, then columns), reductions over axes, and the layers that normalise,
soft-max and local response."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from frustum.runtime.kernels.maps import NO_PADS, Array, Pads, Pair, output_size, padded, tap, widen

REDUCTIONS: dict[str, Callable[..., Array]] = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}


def max_pool(
    x: Array, kernel: Pair, *, strides: Pair = (1, 1), pads: Pads = NO_PADS, dilations: Pair = (1, 1),
    ceil_pads: Pair = (0, 0),
) -> Array:  # fmt: skip
    """Largest element of every window: `[..., H, W]` to `[..., OH, OW]`; borders never win."""
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    x = padded(x, _with_ceil(pads, ceil_pads), least)
    return _slide(np.maximum, x, kernel, strides, dilations)


def average_pool(
    x: Array, kernel: Pair, *, strides: Pair = (1, 1), pads: Pads = NO_PADS, dilations: Pair = (1, 1),
    ceil_pads: Pair = (0, 0), count_include_pad: bool = False,
) -> Array:  # fmt: skip
    """Mean of every window: `[..., H, W]` to `[..., OH, OW]`.

    The divisor counts the elements inside the map, with `count_include_pad` those on `pads` too, and never
    those on `ceil_pads` (what rounding the size up added at the bottom and right).
    """
    counted = _divisor(x.shape[-2:], pads, ceil_pads, count_include_pad)
    total = _slide(np.add, padded(x, _with_ceil(pads, ceil_pads)), kernel, strides, dilations)
    divisor = _slide(np.add, counted, kernel, strides, dilations)
    total /= np.maximum(divisor, 1).astype(total.dtype)
    return total


def _with_ceil(pads: Pads, ceil_pads: Pair) -> Pads:
    top, left, bottom, right = pads
    return top, left, bottom + ceil_pads[0], right + ceil_pads[1]


def _divisor(size: Pair, pads: Pads, ceil_pads: Pair, count_include_pad: bool) -> Array:
    """1 where an element of the padded map counts, else 0: `[PH, PW]`."""
    inside = padded(np.ones(size, np.float32), pads, 1.0 if count_include_pad else 0.0)
    return padded(inside, (0, 0, *ceil_pads), 0.0)


def _slide(combine: Callable[..., Array], x: Array, kernel: Pair, strides: Pair, dilations: Pair) -> Array:
    """`combine` over every window of padded `x` `[..., PH, PW]`: rows first, then columns."""
    size = output_size(x.shape[-2:], kernel, strides, dilations)
    for axis in (-2, -1):
        count, stride, dilation, taps = size[axis], strides[axis], dilations[axis], kernel[axis]
        result = tap(x, axis, 0, stride, count).copy()
        for index in range(1, taps):
            combine(result, tap(x, axis, index * dilation, stride, count), out=result)
        x = result
    return x


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


