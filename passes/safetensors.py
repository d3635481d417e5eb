"""Files in the safetensors layout: eight bytes of header length, a JSON header, raw little-endian arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from frustum.passes.errors import ModelError

__all__ = ["read", "write"]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")
ALIGNMENT_BYTES = 8


def write(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes the arrays in their order; the file appears complete or not at all."""
    header: dict[str, dict[str, object]] = {}
    stop = 0
    for key, array in arrays.items():
        start, stop = stop, stop + array.nbytes
        header[key] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, stop],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(LENGTH.pack(len(text)) + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file, memory-mapped and read-only; ModelError where it is none."""
    try:
        bytes_ = np.memmap(path, dtype=np.uint8, mode="r")
        (length,) = LENGTH.unpack(bytes_[: LENGTH.size].tobytes())
        header = json.loads(bytes_[LENGTH.size : LENGTH.size + length].tobytes())
        header.pop("__metadata__", None)
        body = bytes_[LENGTH.size + length :]
        return {key: _view(body, entry) for key, entry in header.items()}
    except OSError as error:
        raise ModelError(f"{path}: error: cannot read the weights: {error.strerror}") from error
    except (ValueError, KeyError, struct.error) as error:
        raise ModelError(f"{path}: error: not a safetensors file, or not all of it") from error


def _view(body: np.ndarray[Any, Any], entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    start, stop = entry["data_offsets"]
    return body[start:stop].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
