"""Effect of the copies that expand compressed blocks; all others are moves of `copies.py`."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Copy
from frustum.runtime.device.effects import Work, effect
from frustum.runtime.device.expanded_blocks import expanded_block

SRC, DST = 0, 1


@effect.register
def expand(instruction: Copy, work: Work) -> None:
    """The block of each unit's slot into its box; units that have the same block expand it once."""
    src, dst = instruction.src_view, instruction.dst_view
    assert instruction.expand is not None, "copies that only move are in the table of moves"
    copies = work.copies if work.copies > 1 else 0
    element = ELEMENT_BYTES[src.element]
    slots = work.raw(SRC, replace(src, strides=(0, 0, 0, element)), (1, 1, 1, instruction.expand // element))
    target = work.raw(DST, dst, work.read, copies)
    for unit in np.ndindex(target.shape[: target.ndim - 4 - bool(copies)]):
        expanded = expanded_block(slots[unit].tobytes(), prod(work.read) * element)
        target[unit] = expanded.view(target.dtype).reshape(work.read)
