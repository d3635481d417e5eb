"""Effects of the copies, whichever engine makes them."""

from __future__ import annotations

import numpy as np

from frustum.dialects.isa.program import Copy
from frustum.runtime.effects import RAW, Work, effect
from frustum.runtime.memory import DTYPES

SRC, DST = 0, 1


@effect.register
def copy(instruction: Copy, work: Work) -> None:
    """`dst = src`, with several destinations for a multicast or broadcast; with `fill` a border around it."""
    src, dst = instruction.src_view, instruction.dst_view
    assert src.element == dst.element, "copies do not convert"
    copies = work.copies if work.copies > 1 else 0
    inner = 0
    if instruction.fill is not None and (any(work.low) or any(work.high)):
        inner = sum(low * stride for low, stride in zip(work.low, dst.strides, strict=True))
        value = np.array(instruction.fill, DTYPES[dst.element])
        work.raw(DST, dst, work.extent, copies=copies)[...] = value.view(RAW[value.itemsize])
    if 0 in work.read:
        return
    target = work.raw(DST, dst, work.read, inner, copies)
    source = work.raw(SRC, src, work.read)
    target[...] = np.expand_dims(source, -5) if copies else source
