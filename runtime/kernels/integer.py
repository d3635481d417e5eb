"""Integers: exact products, and the way between integers and the real numbers they stand for.

A product of integers is one of f32 matrices as long as no sum of its terms can leave the integers that f32 holds:
BLAS has no integer product, and numpy's own is fifty times slower.  Which sums can, the weights themselves tell:
at most max|x| times the largest sum of |w| over one output.  Above that the channels are summed in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike

from frustum.runtime.kernels import convolution
from frustum.runtime.kernels.maps import NO_PADS, Array, Pads, Pair

EXACT = 1 << 24
"""Integers up to this magnitude are exact in f32."""
MOST_PARTS = 16
"""Products that would need more parts are computed in f64."""


def conv(
    x: Array, w: Array, *, x_zero: int = 0, w_zero: Array | None = None, strides: Pair = (1, 1),
    pads: Pads = NO_PADS, dilations: Pair = (1, 1), groups: int = 1,
) -> Array:  # fmt: skip
    """Accumulators i64 `[..., M, OH, OW]` of `x` `[..., C, H, W]` and `w` `[..., M, C/groups, KH, KW]`.

    The sum of (x - x_zero) * (w - w_zero); padding adds nothing; `w_zero` is `[..., M]`.
    """
    wide_x, wide_w = _shifted(x, x_zero), _shifted(w, None if w_zero is None else w_zero[..., None, None, None])
    channels = w.shape[-3]

    def part(kind: DTypeLike, start: int, stop: int) -> Array:
        chosen = wide_x if stop - start == channels else _channels(wide_x, groups, start, stop)
        return convolution.conv(
            chosen.astype(kind, copy=False), wide_w[..., start:stop, :, :].astype(kind, copy=False),
            strides=strides, pads=pads, dilations=dilations, groups=groups,
        )  # fmt: skip

    return _summed(part, _largest(wide_x), wide_w, (-3, -2, -1))


def matmul(
    a: Array, b: Array, *, a_zero: int = 0, b_zero: Array | None = None, trans_a: bool = False,
    trans_b: bool = False,
) -> Array:  # fmt: skip
    """Accumulators i64 `[..., M, N]` of (a - a_zero) and (b - b_zero); `b_zero` is `[..., N]`, as in `linear`."""
    a, b = (a.swapaxes(-1, -2) if trans_a else a), (b.swapaxes(-1, -2) if trans_b else b)
    wide_a, wide_b = _shifted(a, a_zero), _shifted(b, None if b_zero is None else b_zero[..., None, :])

    def part(kind: DTypeLike, start: int, stop: int) -> Array:
        rows, columns = wide_a[..., start:stop], wide_b[..., start:stop, :]
        return convolution.matmul(rows.astype(kind, copy=False), columns.astype(kind, copy=False))

    return _summed(part, _largest(wide_a), wide_b.swapaxes(-1, -2)[..., None, None], (-3, -2, -1))


def requantise(acc: Array, multiplier: Array, zero: int, dtype: DTypeLike) -> Array:
    """saturate(rint(f32(acc) * multiplier) + zero); the multipliers f32 broadcast against `acc`."""
    scaled = acc.astype(np.float32)
    scaled *= multiplier
    return _saturated(scaled, zero, dtype)


def finished(
    acc: Array, bias: Array | None, multiplier: Array | None, zero: int, dtype: DTypeLike,
    clip: tuple[float, float] | None = None,
) -> Array:  # fmt: skip
    """What leaves the matrix unit: with bias added, requantised, clipped; without `multiplier` the i32 accumulator.

    `bias` and `multiplier` broadcast against `acc`.
    """
    if bias is not None:
        acc = acc + bias
    if multiplier is None:
        return acc.astype(np.int32)
    result = requantise(acc, multiplier, zero, dtype)
    return result if clip is None else np.clip(result, int(clip[0]), int(clip[1]))


def quantize(x: Array, scale: float, zero: int, dtype: DTypeLike) -> Array:
    """The integers that stand for f32 numbers: saturate(rint(x / scale) + zero); what is no number is the least."""
    with np.errstate(all="ignore"):
        return _saturated(np.divide(x, np.float32(scale), dtype=np.float32), zero, dtype)


def dequantize(q: Array, scale: float, zero: int) -> Array:
    """The f32 numbers that integers stand for: f32(q - zero) * f32(scale)."""
    result = np.subtract(q, zero, dtype=np.float32 if q.itemsize < 4 else np.int64).astype(np.float32, copy=False)
    result *= np.float32(scale)
    return result


def signed(x: Array) -> Array:
    """Unsigned integers as the device has them: less half their range; others as they are."""
    return _turned(x, f"i{x.itemsize}") if x.dtype.kind == "u" else x


def unsigned(x: Array) -> Array:
    """Integers of the device as the unsigned ones that they came from."""
    return _turned(x, f"u{x.itemsize}")


def _turned(x: Array, dtype: str) -> Array:
    """The highest bit the other way round, which adds or takes half the range."""
    bits = x.view(f"u{x.itemsize}")
    return (bits ^ bits.dtype.type(1 << (8 * x.itemsize - 1))).view(dtype)


def _saturated(x: Array, zero: int, dtype: DTypeLike) -> Array:
    """f32 numbers rounded, shifted and cut to a type, in place until the last step."""
    ends = np.iinfo(np.dtype(dtype))
    np.rint(x, out=x)
    x += np.float32(zero)
    np.fmax(x, ends.min, out=x)
    np.minimum(x, ends.max, out=x)
    return x.astype(dtype)


def _shifted(q: Array, zero: Array | int | None) -> Array:
    """q - zero in a float type that holds it exactly: f32, or f64 for 16 bits and more."""
    kind = np.float32 if q.itemsize == 1 else np.float64
    return q.astype(kind) if zero is None or not np.any(zero) else np.subtract(q, zero, dtype=kind)


def _largest(x: Array) -> float:
    return float(max(x.max(initial=0.0), -x.min(initial=0.0)))


def _summed(
    part: Callable[[DTypeLike, int, int], Array], largest: float, w: Array, axes: tuple[int, ...]
) -> Array:
    """The sum of `part`s over axis -3 of `w`, as many as keep each sum of products exact.

    `part(type, start, stop)` is the product over these channels, computed in a type; `axes` are those summed over.
    """
    channels = w.shape[-3]
    if w.dtype == np.float64:
        return part(np.float64, 0, channels).astype(np.int64)
    sizes = np.abs(w).sum(axes[1:], dtype=np.float64) * largest  # ..., m, c
    for parts in range(1, min(MOST_PARTS, channels) + 1):
        starts = [channels * index // parts for index in range(parts + 1)]
        if np.add.reduceat(sizes, starts[:-1], axis=-1).max(initial=0.0) <= EXACT:
            total = part(np.float32, starts[0], starts[1]).astype(np.int64)
            for pair in pairwise(starts[1:]):
                total += part(np.float32, *pair).astype(np.int64)
            return total
    return part(np.float64, 0, channels).astype(np.int64)


def _channels(x: Array, groups: int, start: int, stop: int) -> Array:
    """Channels start to stop of every group."""
    split = x.reshape(*x.shape[:-3], groups, -1, *x.shape[-2:])[..., start:stop, :, :]
    return split.reshape(*x.shape[:-3], -1, *x.shape[-2:])
