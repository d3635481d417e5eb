"""From which loop on the executions of a write all write different positions.

Boxes are positions of a map, before clipping.  Along one dimension the pieces that some indices move are apart when,
from the smallest step to the largest, each step is at least what the smaller ones cover.  Executions that differ in
indices whose pieces are apart along some dimension write different positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from frustum.dialects.isa.program import MAX_LOOPS, Affine, Box, Span

CORE = MAX_LOOPS


def apart_from(box: Box, counts: Sequence[int], cores: int) -> int:
    """The least level such that executions that differ in core or in loops from that level on write different
    positions; one more than there are loops where cores do not."""
    sizes = {level: count for level, count in enumerate(counts) if count > 1}
    if cores > 1:
        sizes[CORE] = cores
    free: set[int] = set()
    for span in box.spans:
        free |= _apart_along(span, sizes)
    if CORE in sizes and CORE not in free:
        return len(counts) + 1
    level = len(counts)
    while level and (level - 1 not in sizes or level - 1 in free):
        level -= 1
    return level


def _apart_along(span: Span, sizes: dict[int, int]) -> set[int]:
    """The indices that move a span, if its places are apart for all their values."""
    steps = sorted(
        (abs(step), index) for index, step in _steps(span.start).items() if index in sizes and step
    )
    covered = span.extent
    for step, index in steps:
        if step < covered:
            return set()
        covered += step * (sizes[index] - 1)
    return {index for _, index in steps}


def _steps(start: Affine) -> dict[int, int]:
    return {**dict(enumerate(start.loops)), CORE: start.core}
