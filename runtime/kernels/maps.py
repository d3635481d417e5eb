"""Maps and their numbers: the types of computing, borders, and the sliding windows of convolution and pooling.

16-bit floats are widened to f32 before an operation, and rounded back after it.  Shapes are `[..., C, H, W]` with any
leading axes; pads are (top, left, bottom, right), a negative pad crops.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[Any]
"""An array of any element type and shape; kernels state theirs in their docstring."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NARROW = (np.dtype(np.float16), BFLOAT16)
FEW = 1 << 12
"""Elements below which numpy's own conversion, one element after another, is as good."""


def widened_type(x: Array) -> np.dtype[Any]:
    """The element type in which `x` is computed with: f32 for 16-bit floats, else its own."""
    return np.dtype(np.float32) if x.dtype in _NARROW else x.dtype


def widen(x: Array) -> Array:
    """`x` in its computing type; the same array where that is its own."""
    if x.dtype not in _NARROW or x.size < FEW:
        return x.astype(widened_type(x), copy=False)
    from frustum.runtime.kernels import product_loop  # which imports numba

    dense = np.ascontiguousarray(x)
    result = np.empty(x.shape, np.float32)
    product_loop.widen(dense.reshape(-1).view(np.uint16), x.dtype == BFLOAT16, result.reshape(-1))
    return result


def narrow(x: Array, dtype: DTypeLike) -> Array:
    """`x` rounded to nearest even in `dtype`, beyond its range to infinity; itself where it has that type."""
    dtype = np.dtype(dtype)
    if x.dtype != np.float32 or dtype not in _NARROW or x.size < FEW:
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(dtype, copy=False)
    from frustum.runtime.kernels import product_loop  # which imports numba

    result = np.empty(x.shape, dtype)
    dense = np.ascontiguousarray(x).reshape(-1)
    product_loop.narrow(dense, dtype == BFLOAT16, result.reshape(-1).view(np.uint16))
    return result


Pair: TypeAlias = tuple[int, ...]
"""Two numbers: of rows, of columns."""
Pads: TypeAlias = tuple[int, ...]
"""Four numbers: top, left, bottom, right."""
NO_PADS: Pads = (0, 0, 0, 0)


def output_size(size: Pair, kernel: Pair, strides: Pair, dilations: Pair) -> Pair:
    """Number of whole windows over rows and columns of an already padded map."""
    high, wide = (
        (extent - dilation * (taps - 1) - 1) // stride + 1
        for extent, taps, stride, dilation in zip(size, kernel, strides, dilations, strict=True)
    )
    assert high > 0 and wide > 0, f"no window of {kernel} dilated by {dilations} lies within {size}"
    return high, wide


def padded(x: Array, pads: Pads, value: float = 0.0) -> Array:
    """`x` in computing type with its border added or cut off; copied only for a border, and then once."""
    top, left, bottom, right = pads
    crop_top, crop_left = max(-top, 0), max(-left, 0)
    x = x[..., crop_top : x.shape[-2] - max(-bottom, 0), crop_left : x.shape[-1] - max(-right, 0)]
    top, left, bottom, right = (max(pad, 0) for pad in pads)
    if not (top or left or bottom or right):
        return widen(x)
    rows, columns = x.shape[-2:]
    result = np.empty((*x.shape[:-2], top + rows + bottom, left + columns + right), widened_type(x))
    result[..., :top, :] = value
    result[..., top + rows :, :] = value
    result[..., top : top + rows, :left] = value
    result[..., top : top + rows, left + columns :] = value
    result[..., top : top + rows, left : left + columns] = x
    return result


def windows(x: Array, kernel: Pair, strides: Pair, dilations: Pair, size: Pair) -> Array:
    """Read-only view `[..., C, KH, KW, OH, OW]` of `x` `[..., C, H, W]`: what each tap sees."""
    *outer, row, column = x.strides
    return as_strided(
        x,
        (*x.shape[:-2], *kernel, *size),
        (*outer, row * dilations[0], column * dilations[1], row * strides[0], column * strides[1]),
        writeable=False,
    )


def tap(x: Array, axis: int, start: int, stride: int, count: int) -> Array:
    """Every `stride`-th element of `x` along `axis`, `count` of them from `start` on: one tap of a window."""
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = slice(start, start + (count - 1) * stride + 1, stride)
    return x[tuple(index)]
