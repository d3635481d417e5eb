"""The bytes of all memories: one flat array, kind after kind and memory after memory, and strided views of it."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from frustum.dialects.host_type import HostType
from frustum.dialects.isa.program import MEMORIES, Element, External
from frustum.runtime.device.order import Ints
from frustum.runtime.kernels import Array

POISON = 0xFF
"""Every float of 16 or 32 bits made of this byte is not a number."""
DTYPES: dict[Element, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}


ALIGNED = 64
"""Every kind of memory begins at a multiple of this in the flat array."""


class Memories:
    """The memories of one machine: `counts` of each kind (in the order of MEMORIES) of `capacities` bytes.

    `flat` holds all of them, `bytes` are its parts by kind; `floats` and `halves` are it as f32 and as 16-bit elements.
    """

    def __init__(self, counts: Sequence[int], capacities: Sequence[int]) -> None:
        assert len(counts) == len(capacities) == len(MEMORIES)
        self.counts, self.capacities = tuple(counts), tuple(capacities)
        starts = bases(counts, capacities)
        self.flat = np.zeros(starts[-1], np.uint8)
        self.floats, self.halves = self.flat.view(np.float32), self.flat.view(np.uint16)
        self.bytes = [
            self.flat[start : start + count * size]
            for start, count, size in zip(starts, counts, capacities, strict=False)
        ]

    def poison(self) -> None:
        """Fill everything with what is not a number in any float type."""
        self.flat.fill(POISON)

    def view(
        self, kind: int, dtype: np.dtype, address: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Array:
        """Elements at `address` of the flat memory of this kind; strides in bytes."""
        try:
            return np.ndarray(shape, dtype, self.bytes[kind], address, strides)
        except (ValueError, TypeError, OverflowError) as error:  # numpy: beyond the buffer
            from frustum.runtime.check.check import AccessError

            where = f"an operand at address {address} of {MEMORIES[kind]}"
            raise AccessError(f"{where} lies outside its memory; a checked run says which, and where") from error


def bases(counts: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Where each kind of memory begins in the flat array, and behind them the size of that."""
    starts = [0]
    for count, size in zip(counts, capacities, strict=True):
        starts.append(starts[-1] + -(-count * size // ALIGNED) * ALIGNED)
    return starts


def leave(first: Ints, low: Ints, high: Ints, start: Ints, end: Ints) -> Ints:
    """Which boxes leave their memory `[start, end)`: they reach from `low` to `high` elements (inclusive) behind the
    first one."""
    return (first + low < start) | (first + high >= end)


def reach(extent: Ints, stride: Ints) -> tuple[Ints, Ints]:
    """How far boxes reach back and forth from their first element; dimensions are the last axis, none is empty."""
    far = (extent - 1) * stride
    return np.minimum(far, 0).sum(axis=-1), np.maximum(far, 0).sum(axis=-1)


def host_type(external: External) -> HostType:
    """How the host passes it; where the program says nothing, in the device's own type."""
    return HostType.parse(external.model_dtype or DTYPES[external.element].name)
