# Tests: test/runtime/device/test_expand_copy.py
"""The bytes of all memories: one flat array, kind after kind and memory after memory, and strided views of it."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import aligned
from frustum.dialects.host_type import HostType
from frustum.dialects.isa.program import MEMORIES, Element, External, Hold, View
from frustum.runtime.device.expand import DRAM, SRAM, Expanded, Rows
from frustum.runtime.device.form import Ints, is_on_core
from frustum.runtime.kernels import Array

WHO_SAYS_MORE = "a checked run says which, and where"
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
ALIGNED_BYTES = 64
"""Every kind of memory begins at a multiple of this in the flat array."""


class AccessError(Exception):
    """An access outside its memory, or a read of bytes that no instruction wrote."""


class Memories:
    """The memories of one machine: `counts` of each kind (in the order of MEMORIES) of `capacities` bytes.

    `flat` holds all of them, `bytes` are its parts by kind; `floats` and `halves` are it as f32 and as 16-bit elements.
    """

    def __init__(self, counts: Sequence[int], capacities: Sequence[int]) -> None:
        assert len(counts) == len(capacities) == len(MEMORIES)
        self.counts: tuple[int, ...] = tuple(counts)
        self.capacities: tuple[int, ...] = tuple(capacities)
        starts = bases(counts, capacities)
        self.flat: NDArray[np.uint8] = np.zeros(starts[-1], np.uint8)
        self.floats: NDArray[np.float32] = self.flat.view(np.float32)
        self.halves: NDArray[np.uint16] = self.flat.view(np.uint16)
        self.bytes: list[NDArray[np.uint8]] = [
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
            where = f"an operand at address {address} of {MEMORIES[kind]}"
            raise AccessError(f"{where} lies outside its memory; {WHO_SAYS_MORE}") from error


def bases(counts: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Where each kind of memory begins in the flat array, and behind them the size of that."""
    starts = [0]
    for count, size in zip(counts, capacities, strict=True):
        starts.append(starts[-1] + aligned(count * size, ALIGNED_BYTES))
    return starts


def leave(first: Ints, low: Ints, high: Ints, start: Ints, end: Ints) -> Ints:
    """Which boxes leave their memory `[start, end)`: they reach from `low` to `high` elements (inclusive) behind the
    first one."""
    return (first + low < start) | (first + high >= end)


def reach(extent: Ints, stride: Ints) -> tuple[Ints, Ints]:
    """How far boxes reach back and forth from their first element; dimensions are the last axis, none is empty."""
    far = (extent - 1) * stride
    return np.minimum(far, 0).sum(axis=-1), np.maximum(far, 0).sum(axis=-1)


def reach_around(extent: Ints, stride: Ints, dim: Ints, split: Ints, ring: Ints) -> tuple[Ints, Ints]:
    """As `reach`; boxes with a `split` go on at the begin of a ring of so many bytes after that many positions of
    dimension `dim`."""
    is_split = (np.arange(extent.shape[-1]) == dim[:, None]) & (split > 0)[:, None]
    low, high = reach(np.where(is_split, 1, extent), stride)
    along = (stride * is_split).sum(axis=1)
    ends = np.stack([0 * split, (split - 1) * along, split * along - ring]) * (split > 0)
    return low + ends.min(axis=0), high + ends.max(axis=0)


def ring_of(view: View) -> tuple[int, int]:
    """The dimension that wraps, and the bytes of its ring; 0 where none does."""
    around = view.wrap
    return (0, 0) if around is None else (around.dim, around.size * view.strides[around.dim])


def host_type(external: External) -> HostType:
    """How the host passes it; where the program says nothing, in the device's own type."""
    return HostType.parse(external.model_dtype or DTYPES[external.element].name)


# --- words for messages ----------------------------------------------------------------------------------


def left(expanded: Expanded, number: int) -> AccessError:
    """What is wrong with an instruction whose operands leave the memories of their kind, found without a check."""
    return AccessError(f"{instruction_name(expanded, number)}: an operand lies outside its memory; {WHO_SAYS_MORE}")


def execution_name(expanded: Expanded, rows: Rows, row: int, unit: int) -> str:
    """`conv 12 (layer 'Conv_3') at loops [4, 0] on cluster 1, core 2`"""
    number = int(rows.static[row])
    loops = ", ".join(map(str, rows.index[row, : expanded.depths[number]].tolist()))
    where = unit_name(is_on_core(expanded.instructions[number]), unit, expanded.cores)
    return f"{instruction_name(expanded, number)} at loops [{loops}] on {where}"


def instruction_name(expanded: Expanded, number: int) -> str:
    """`conv 12 (layer 'Conv_3')`, `copy 3 by gdma`"""
    instruction, layers = expanded.instructions[number], expanded.program.layers
    name = "wait" if isinstance(instruction, Hold) else type(instruction).__name__.lower()
    layer = f" (layer '{layers[instruction.layer]}')" if instruction.layer < len(layers) else ""
    engine = "" if instruction.engine in (None, "matrix", "vector") else f" by {instruction.engine}"
    return f"{name} {number}{layer}{engine}"


def unit_name(on_core: bool, unit: int, cores: int) -> str:
    if not on_core:
        return f"cluster {unit}"
    cluster, core = divmod(unit, cores)
    return f"cluster {cluster}, core {core}"


def memory_name(expanded: Expanded, kind: int, place: int) -> str:
    name = MEMORIES[kind]
    return name if kind == DRAM else f"{name} of {unit_name(kind != SRAM, place, expanded.cores)}"
