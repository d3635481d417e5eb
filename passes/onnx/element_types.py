"""Element types: ONNX, numpy, MLIR; and which one a network has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import Attribute

__all__ = ["DEVICE_TYPES", "FLOATS", "network_type", "numpy_of"]

DEVICE_TYPES: dict[int, Attribute] = {
    onnx.TensorProto.FLOAT: f32,
    onnx.TensorProto.FLOAT16: f16,
    onnx.TensorProto.BFLOAT16: bf16,
}
FLOATS = {*DEVICE_TYPES, onnx.TensorProto.DOUBLE}
NUMPY: dict[Attribute, np.dtype[Any]] = {
    f32: np.dtype(np.float32),
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
}


def numpy_of(element: Attribute) -> np.dtype[Any]:
    return NUMPY[element]


def network_type(data_types: Iterable[int]) -> Attribute:
    """The one type of a network's floating-point tensors: theirs if they agree on one, else f32."""
    found = {data_type for data_type in data_types if data_type in FLOATS}
    return DEVICE_TYPES.get(found.pop(), f32) if len(found) == 1 else f32
