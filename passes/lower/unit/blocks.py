"""Copies of tensors whose channels lie in blocks: one for each block, in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from xdsl.ir import Block, Operation, Region

from frustum.dialects import isa
from frustum.dialects.isa.program import Affine, Box

CHANNELS = 1
"""The dimension that may lie in blocks."""


@dataclass(frozen=True)
class Part:
    """What one copy moves: where it starts, and its box."""

    start: tuple[Affine, ...]
    box: Box


def whole_part(start: Sequence[Affine], region: Box) -> Part:
    return Part(tuple(start), Box(cast(Any, tuple(start)), region.extent, region.bound))


def by_blocks(
    body: Block, copy: Callable[[Part, int], Operation], whole: Part, block: int, level: int, stage: int
) -> None:
    """Append the copy of a part, or, of several blocks, a loop at nesting `level` over the copies of each."""
    extent = whole.box.extent[CHANNELS]
    count = -(-extent // block) if block > 1 else 1
    if count == 1:
        body.add_op(copy(whole, stage))
        return
    n, c, h, w = whole.start
    start = (n, c + Affine.index(level, block), h, w)
    n_extent, _, h_extent, w_extent = whole.box.extent
    limit = c + extent if extent % block else None
    box = Box(start, (n_extent, block, h_extent, w_extent), whole.box.bound, (None, limit, None, None))
    inner = Block()
    inner.add_op(copy(Part(start, box), 0))
    body.add_op(isa.RepeatOp(count, Region(inner), stage=stage))


def exactly(value: Affine, divisor: int) -> Affine:
    """The value divided by what all of it is a multiple of."""
    parts = value.base, value.cluster, value.core, *value.loops
    assert all(part % divisor == 0 for part in parts), f"{value} is no multiple of {divisor}"
    loops = tuple(c // divisor for c in value.loops)
    return Affine(value.base // divisor, loops, value.cluster // divisor, value.core // divisor)
