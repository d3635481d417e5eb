"""The types of computing: 16-bit floats are widened to f32 before, and rounded back after, an operation."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
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
