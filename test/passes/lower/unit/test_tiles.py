"""Where tiles lie that are side by side."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.isa.program import ZERO, Affine
from frustum.passes.lower.unit.memory_map import Placed
from frustum.passes.lower.unit.tiles import joined

MOVING = Affine(-2, (), 4)


def tile(start, columns):
    return Placed("f32", (ZERO, ZERO, ZERO, start), (1, 4, 12, columns), (1, 4, 12, 8), (0, 384, 32, 4))


@pytest.mark.parametrize("parts", [(tile(MOVING, 7), tile(ZERO, 8)), (tile(ZERO, 8), tile(MOVING, 7))])
def test_beside_a_map_that_is_whole_there_is_what_the_other_has(parts):
    found = joined(parts)
    assert (found.start[3], found.extent, found.bound) == (MOVING, (1, 8, 12, 7), (1, 8, 12, 8))


def test_what_moves_alike_ends_with_the_first():
    assert joined([tile(MOVING, 7), tile(MOVING, 6)]).extent == (1, 8, 12, 6)


def test_what_moves_otherwise_is_refused():
    with pytest.raises(PassFailedException, match="move differently along d3"):
        joined([tile(MOVING, 7), tile(Affine(-1, (), 2), 5)])
