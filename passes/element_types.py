"""Floating-point element types of the device: their MLIR and numpy forms."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import Attribute

__all__ = ["BY_NAME", "is_float", "numpy_of"]

BY_NAME: dict[str, Attribute] = {"f32": f32, "f16": f16, "bf16": bf16}
NUMPY: dict[Attribute, np.dtype[Any]] = {
    f32: np.dtype(np.float32),
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
}


def numpy_of(element: Attribute) -> np.dtype[Any]:
    return NUMPY[element]


def is_float(element: Attribute) -> bool:
    """Whether `element` is a floating-point type the device has."""
    return element in NUMPY
