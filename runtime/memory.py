"""The bytes of all memories: one flat array for each kind, memory after memory, and strided views of them."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from frustum.dialects.host_type import HostType
from frustum.dialects.isa.program import MEMORIES, Element, External
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


class Memories:
    """The memories of one machine: `counts` of each kind (in the order of MEMORIES) of `capacities` bytes."""

    def __init__(self, counts: Sequence[int], capacities: Sequence[int]) -> None:
        assert len(counts) == len(capacities) == len(MEMORIES)
        self.counts, self.capacities = tuple(counts), tuple(capacities)
        self.bytes = [np.zeros(count * size, np.uint8) for count, size in zip(counts, capacities, strict=True)]

    def poison(self) -> None:
        """Fill everything with what is not a number in any float type."""
        for memory in self.bytes:
            memory.fill(POISON)

    def view(
        self, kind: int, dtype: np.dtype, address: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Array:
        """Elements at `address` of the flat memory of this kind; strides in bytes."""
        return np.ndarray(shape, dtype, self.bytes[kind], address, strides)


def host_type(external: External) -> HostType:
    """How the host passes it; where the program says nothing, in the device's own type."""
    return HostType.parse(external.model_dtype or DTYPES[external.element].name)
