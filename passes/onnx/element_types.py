"""Element types of ONNX, and which one a network has."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from xdsl.dialects.builtin import bf16, f16, f32, i8, i16, i32
from xdsl.ir import Attribute

__all__ = ["DEVICE_TYPES", "FLOATS", "INTEGERS", "UNSIGNED", "element_name", "network_type"]

DEVICE_TYPES: dict[int, Attribute] = {
    onnx.TensorProto.FLOAT: f32,
    onnx.TensorProto.FLOAT16: f16,
    onnx.TensorProto.BFLOAT16: bf16,
}
FLOATS = {*DEVICE_TYPES, onnx.TensorProto.DOUBLE}
INTEGERS: dict[int, Attribute] = {
    onnx.TensorProto.INT8: i8,
    onnx.TensorProto.UINT8: i8,
    onnx.TensorProto.INT16: i16,
    onnx.TensorProto.UINT16: i16,
    onnx.TensorProto.INT32: i32,
}
"""What networks may take; the unsigned ones as the device has them."""
UNSIGNED = {onnx.TensorProto.UINT8, onnx.TensorProto.UINT16}


def element_name(data_type: int) -> str:
    """`FLOAT`; `the unknown type 65` in a damaged file."""
    known = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return str(known.get(data_type, f"the unknown type {data_type}"))


def network_type(data_types: Iterable[int]) -> Attribute:
    """The one type of a network's floating-point tensors: theirs if they agree on one, else f32."""
    found = {data_type for data_type in data_types if data_type in FLOATS}
    return DEVICE_TYPES.get(found.pop(), f32) if len(found) == 1 else f32
