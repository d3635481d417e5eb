"""What instructions do to the memories: `Call`, a group of equal executions, and `effect`, one function for each
operation (in `copies.py`, `matrix.py`, `vector.py`).

All arrays have the group's units as leading axes, so an effect is written once and does not know how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Instruction, View
from frustum.runtime.device.expand import OPERANDS
from frustum.runtime.device.memory import DTYPES, Memories
from frustum.runtime.kernels import Array, narrow

if TYPE_CHECKING:
    from frustum.runtime.device.addresses import Addresses

RAW = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Elements as bits, for what is only moved."""


LOWER, EXTENT, ORIGIN, READ, LOW, HIGH = (slice(4 * k, 4 * k + 4) for k in range(6))
FLAGS, LEAD = slice(24, 26), slice(26, 28)
BASE = slice(28, 28 + OPERANDS)
STEPS = tuple(slice(28 + k * OPERANDS, 28 + (k + 1) * OPERANDS) for k in (1, 2))
"""Where the numbers of a `Call` are: those of `expand.Rows` for one unit, then those of `group.Calls`."""


class Call:
    """Equal executions of one instruction by a block of units; see `expand.Rows` for what the numbers mean.
    `addresses`: of the address table that a convolution names."""

    __slots__ = (
        "_base", "_kinds", "_lead", "_memories", "_steps", "addresses", "copies", "extent", "high", "is_first",
        "is_last", "low", "lower", "origin", "read",
    )  # fmt: skip

    def __init__(
        self, memories: Memories, kinds: Sequence[int], copies: int, numbers: list[int],
        addresses: Addresses | None = None,
    ) -> None:  # fmt: skip
        self._memories = memories
        self._kinds = kinds
        self.copies: int = copies
        self.addresses: Addresses | None = addresses
        self.lower: list[int] = numbers[LOWER]
        self.extent: list[int] = numbers[EXTENT]
        self.origin: list[int] = numbers[ORIGIN]
        self.read: list[int] = numbers[READ]
        self.low: list[int] = numbers[LOW]
        self.high: list[int] = numbers[HIGH]
        self.is_first: int
        self.is_last: int
        self.is_first, self.is_last = numbers[FLAGS]
        self._base = numbers[BASE]
        lead = numbers[LEAD]
        axes = [axis for axis in (0, 1) if lead[axis] > 1]
        self._lead = tuple(lead[axis] for axis in axes)
        self._steps = [numbers[STEPS[axis]] for axis in axes]

    def view(
        self, slot: int, view: View, shape: Sequence[int], strides: Sequence[int] | None = None, move: int = 0
    ) -> Array:
        """Operand `slot` as `[units..., *shape]`, `move` bytes further on; strides are the view's if not given."""
        strides = view.strides if strides is None else strides
        return self._view(slot, DTYPES[view.element], shape, strides, move)

    def raw(self, slot: int, view: View, shape: Sequence[int], copies: int = 0) -> Array:
        """Operand `slot` as bits `[units..., *shape]`; with `copies` that many memories one after another as an axis
        before `shape`."""
        strides: Sequence[int] = view.strides
        if copies:
            shape, strides = (copies, *shape), (self._memories.capacities[self._kinds[slot]], *strides)
        return self._view(slot, RAW[ELEMENT_BYTES[view.element]], shape, strides)

    def _view(
        self, slot: int, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int], move: int = 0
    ) -> Array:
        steps = [step[slot] for step in self._steps]
        return self._memories.view(
            self._kinds[slot], dtype, self._base[slot] + move, (*self._lead, *shape), (*steps, *strides)
        )


@singledispatch
def effect(instruction: Instruction, work: Call) -> None:
    """Do the work of `instruction`; nothing for one that only waits and signals."""


def store(target: Array, result: Array) -> None:
    """Write what was computed in f32, rounded to the type of the target."""
    target[...] = narrow(result, target.dtype)
