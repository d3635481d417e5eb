"""Element types of the device: their MLIR and numpy forms."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import bf16, f16, f32, i8, i16, i32
from xdsl.ir import Attribute

__all__ = ["BY_NAME", "INTEGERS", "is_float", "numpy_of"]

BY_NAME: dict[str, Attribute] = {"f32": f32, "f16": f16, "bf16": bf16}
NUMPY: dict[Attribute, np.dtype[Any]] = {
    f32: np.dtype(np.float32),
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
}
INTEGERS: dict[np.dtype[Any], Attribute] = {
    np.dtype(np.int8): i8,
    np.dtype(np.int16): i16,
    np.dtype(np.int32): i32,
}
NUMPY_BY_NAME: dict[str, np.dtype[Any]] = {
    **{name: NUMPY[element] for name, element in BY_NAME.items()},
    **{f"i{8 * dtype.itemsize}": dtype for dtype in INTEGERS},
}
NUMPY_INTEGERS = {element: dtype for dtype, element in INTEGERS.items()}


def numpy_of(element: Attribute) -> np.dtype[Any]:
    return NUMPY[element] if element in NUMPY else NUMPY_INTEGERS[element]


def is_float(element: Attribute) -> bool:
    """Whether `element` is a floating-point type the device has."""
    return element in NUMPY
