"""Partitions of a series into pieces of about equal cost, against all partitions."""

from itertools import combinations, pairwise
from random import Random

import pytest

from frustum.backend.balance import balanced, even


@pytest.mark.parametrize("seed", range(30))
def test_the_costliest_piece_is_as_cheap_as_it_can_be(seed):
    random = Random(seed)
    size, pieces = random.randint(1, 9), random.randint(1, 4)
    costs = [random.randint(1, 50) for _ in range(size)]
    crossing = [random.choice([0, 0, 5, 30]) for _ in range(size - 1)]
    across = [0, *crossing, 0]

    def load(ranges):
        return max(sum(costs[a:b]) + across[a] + across[b] for a, b in ranges)

    cuts = combinations(range(1, size), min(pieces, size) - 1)
    best = min(load(list(pairwise((0, *cut, size)))) for cut in cuts)
    found = even(costs, crossing, pieces)
    assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])] and found[-1][1] == size
    assert load(found) == best


def test_what_compiling_shows_corrects_the_estimate():
    """The first layers take ten times what was thought."""
    real = [100, 100, 100, 10, 10, 10, 10, 10, 10, 10]

    def cost(piece):
        return sum(real[piece[0] : piece[1]])

    ranges = balanced([10] * 10, [0] * 9, 4, cost)
    assert max(map(cost, ranges)) == 110


def test_pieces_that_do_not_fit_get_smaller():
    ranges = balanced([10] * 8, [0] * 7, 3, lambda piece: None if piece == (0, 3) else 10 * (piece[1] - piece[0]))
    assert ranges is not None and (0, 3) not in ranges
    assert balanced([1, 1], [0], 2, lambda piece: None) is None
