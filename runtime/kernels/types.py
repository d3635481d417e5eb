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


def widened_type(x: Array) -> np.dtype[Any]:
    """The element type in which `x` is computed with: f32 for 16-bit floats, else its own."""
    return np.dtype(np.float32) if x.dtype in _NARROW else x.dtype


def widen(x: Array) -> Array:
    """`x` in its computing type; the same array where that is its own."""
    return x.astype(widened_type(x), copy=False)


def narrow(x: Array, dtype: DTypeLike) -> Array:
    """`x` rounded to nearest even in `dtype`, beyond its range to infinity; itself where it has that type."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype, copy=False)
