"""Where a series of layers is cut, against enumerations of every value and every cut."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from frustum.passes.analysis.series import (
    Series,
    at_articulation,
    at_least_crossing,
    at_outputs,
    cuts_within,
    pieces_of,
)


def series(reads, outputs=(), sizes=None, cost=None):
    ones = [1] * len(reads)
    return Series([str(n) for n in range(len(reads))], reads, frozenset(outputs), sizes or ones, ones, cost or ones)


@st.composite
def random_series(draw):
    count = draw(st.integers(1, 12))
    reads = [draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(count)]
    numbers = st.lists(st.integers(0, 50), min_size=count, max_size=count)
    outputs = draw(st.sets(st.integers(0, count - 1)))
    start = draw(st.integers(0, count - 1))
    piece = (start, draw(st.integers(start + 1, count)))
    return series([sorted(r) for r in reads], outputs, draw(numbers), draw(numbers)), piece


def crossing(found, piece, cut):
    """The results that are made in the piece before the cut and read in it after the cut."""
    return {
        read
        for layer in range(cut, piece[1])
        for read in found.reads[layer]
        if piece[0] <= read < cut
    }


def imbalance(found, piece, cut):
    return abs(sum(found.cost[piece[0] : cut]) - sum(found.cost[cut : piece[1]]))


def test_worked_example():
    """Layers 1-2-4-6-8 in a chain; 3, 5, 7 and 9 hand the results of 2, 4, 6 and 8 out."""
    chain = series([[], [0], [1], [2], [3]], outputs=(1, 2, 3, 4))
    cuts = at_outputs(chain, (0, 5))
    assert cuts.positions == (2, 3, 4) and cuts.reason == "at output branches"
    assert pieces_of((0, 5), cuts) == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_an_output_that_nobody_reads_is_no_target():
    assert at_outputs(series([[], [0], [0]], outputs=(1, 2)), (0, 3)) is None


def test_what_a_later_piece_reads_is_an_output_of_this_one():
    chain = series([[], [0], [0]], outputs=(1, 2))
    assert at_outputs(chain, (0, 2)).positions == (1,)


def test_articulation_nearest_to_half_of_the_cost():
    chain = series([[], [0], [1], [2], [3]], cost=[10, 1, 1, 1, 1])
    assert at_articulation(chain, (0, 5)).positions == (1,)
    assert at_articulation(chain, (1, 5)).positions == (3,)


def test_without_an_articulation_point_the_fewest_bytes_cross():
    both = series([[], [], [0, 1], [0, 1, 2], [2, 3]], sizes=[4, 4, 1, 4, 4])
    assert at_least_crossing(both, (0, 5)).positions == (1,)
    ladder = series([[], [], [0, 1], [1, 2], [2, 3]], sizes=[9, 2, 2, 9, 1])
    assert at_articulation(ladder, (1, 5)).positions == (2,)
    cuts = at_least_crossing(ladder, (0, 5))
    assert cuts.positions == (3,) and cuts.reason == "where the fewest bytes cross (4)"


def test_a_single_layer_is_not_cut():
    assert cuts_within(series([[], [0]], outputs=(0, 1)), (1, 2)) is None


@given(random_series())
def test_targets_are_outputs_of_the_piece_that_it_also_reads(drawn):
    found, (start, stop) = drawn
    readers = {layer: [i for i, reads in enumerate(found.reads) if layer in reads] for layer in range(stop)}
    expected = [
        layer
        for layer in range(start, stop)
        if (layer in found.outputs or any(i >= stop for i in readers[layer]))
        and any(start <= i < stop for i in readers[layer])
    ]
    assert found.targets((start, stop)) == expected


@given(random_series())
def test_crossing_counts_and_bytes(drawn):
    found, piece = drawn
    count, size = found.crossing(piece)
    sets = [crossing(found, piece, cut) for cut in range(piece[0] + 1, piece[1])]
    assert count.tolist() == [len(s) for s in sets]
    assert size.tolist() == [sum(found.result_bytes[layer] for layer in s) for s in sets]


@given(random_series())
def test_articulation_is_the_most_balanced_of_all(drawn):
    found, piece = drawn
    narrow = [c for c in range(piece[0] + 1, piece[1]) if len(crossing(found, piece, c)) <= 1]
    cuts = at_articulation(found, piece)
    assert (cuts is None) == (not narrow)
    if cuts:
        (cut,) = cuts.positions
        assert cut in narrow
        assert imbalance(found, piece, cut) == min(imbalance(found, piece, c) for c in narrow)


@given(random_series())
def test_least_crossing_is_the_least_of_all(drawn):
    found, piece = drawn
    assume(piece[1] - piece[0] > 1)
    (cut,) = at_least_crossing(found, piece).positions

    def order(c):
        return sum(found.result_bytes[x] for x in crossing(found, piece, c)), imbalance(found, piece, c)

    assert order(cut) == min(order(c) for c in range(piece[0] + 1, piece[1]))


@given(random_series())
def test_every_piece_of_two_layers_or_more_is_cut_inside(drawn):
    found, piece = drawn
    cuts = cuts_within(found, piece)
    assert (cuts is None) == (piece[1] - piece[0] == 1)
    pieces = pieces_of(piece, cuts)
    assert all(start < stop for start, stop in pieces)
    assert [layer for p in pieces for layer in range(*p)] == list(range(*piece))
