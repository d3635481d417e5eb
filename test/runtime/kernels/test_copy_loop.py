"""Copies of boxes, against numpy: several in one call, which share their place to work in."""

import numpy as np
import pytest

from frustum.runtime.kernels import copy_loop as c


def moved(boxes, size=4096):
    """Memory after copies of boxes of bytes: source, target, and (extent, source stride, target stride) of each
    dimension, the innermost first."""
    memory = (np.arange(size) % 251).astype(np.uint8)
    wanted = memory.copy()
    facts, moves = np.zeros((len(boxes), c.FACTS), np.int64), np.zeros((len(boxes), c.MOVES), np.int64)
    for number, (source, target, dimensions) in enumerate(boxes):
        facts[number, c.COPIES] = 1
        moves[number, [c.FACT, c.SRC, c.DST]] = number, source, target
        moves[number, c.READ : c.READ + c.RANK] = moves[number, c.EXTENT : c.EXTENT + c.RANK] = 1
        for d, (extent, near, far) in enumerate(dimensions):
            facts[number, [c.SRC_STRIDES + d, c.DST_STRIDES + d]] = near, far
            moves[number, [c.READ + d, c.EXTENT + d]] = extent
        for place in np.ndindex(*(extent for extent, _, _ in reversed(dimensions))):
            steps = list(zip(reversed(place), dimensions, strict=True))
            near, far = (sum(p * dimension[k] for p, dimension in steps) for k in (1, 2))
            wanted[target + far] = wanted[source + near]
    c.run(memory, facts, moves, 0, len(boxes))
    return memory, wanted


@pytest.mark.parametrize(("near", "far"), [(5, 3), (3, 5)])
def test_rows_at_a_pitch_behind_a_copy_of_three_extents(near, far):
    """Rows that are dense on one side alone, and on the other as far apart as the first copy's third extent, are no one
    piece."""
    first = (0, 1024, [(3, 1, 1), (2, 16, 20), (5, 64, 80)])
    rows = (200, 2048, [(3, 1, 1), (4, near, far)])
    memory, wanted = moved([first, rows])
    np.testing.assert_array_equal(memory, wanted)


def test_rows_that_follow_each_other_are_one_piece():
    memory, wanted = moved([(0, 2048, [(16, 1, 1), (4, 16, 16), (2, 100, 64)])])
    np.testing.assert_array_equal(memory, wanted)
