# Tests: test/passes/graph/test_pool_in_steps.py
"""Windows side by side that divide a plane."""

from __future__ import annotations

import itertools
import math

LARGEST_SIDE = 16
"""Of a window, which may be twice as wide where it is so much flatter."""


def window_of(height: int, width: int, clusters: int, most: int, *, is_tall: bool = False) -> tuple[int, int]:
    """The largest window of at most so many positions that divides a plane, of which every cluster has as many side by
    side, if any does; of as large ones the flattest, or the tallest (`is_tall`).  Rows of windows are the least that a
    tile has, beside the rows that windows of the layers before it share, so that tiles of few rows need fewer column
    strips."""
    down, across = ([k for k in range(1, side + 1) if size % k == 0] for size, side in zip(
        (height, width), (LARGEST_SIDE, 2 * LARGEST_SIDE), strict=True))
    even = [k for k in across if width // k % clusters == 0]
    windows = [each for each in itertools.product(down, even or across) if math.prod(each) <= most]
    area = max((math.prod(each) for each in windows if each[1] <= LARGEST_SIDE), default=1)
    chosen = max if is_tall else min
    return chosen((each for each in windows if math.prod(each) == area), default=(1, 1))
