"""The four strategies of fusing pieces again: worked cases, and what every one of them keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.backend.refuse import (
    STRATEGIES,
    Limits,
    Load,
    Refusal,
    bidirectional,
    by_conditions,
    by_pairs,
    forward,
    parse_refusal,
)


def always(group):
    return True


def never(group):
    return False


class Compiler:
    """Compiles every group but those that hold a forbidden pair of neighbours; remembers what it was asked."""

    def __init__(self, forbidden=()):
        self.forbidden, self.asked = set(forbidden), []

    def __call__(self, group):
        self.asked.append(group)
        return not any(piece in self.forbidden for piece in range(group[0], group[1] - 1))


def ones(count):
    return [Load(1, 1, 1)] * count


def test_pairs():
    assert by_pairs(5, always) == [(0, 2), (2, 4), (4, 5)]
    assert by_pairs(4, Compiler(forbidden=[2])) == [(0, 2), (2, 3), (3, 4)]


def test_pairs_that_fail_stay_apart_and_do_not_shift_the_others():
    assert by_pairs(6, Compiler(forbidden=[0])) == [(0, 1), (1, 2), (2, 4), (4, 6)]


def test_forward_goes_on_with_the_next_after_a_failure():
    compiler = Compiler(forbidden=[0])
    assert forward(6, compiler) == [(0, 1), (1, 3), (3, 5), (5, 6)]
    assert compiler.asked == [(0, 2), (1, 3), (3, 5)]


def test_forward_makes_a_fused_one_final():
    compiler = Compiler()
    assert forward(5, compiler) == [(0, 2), (2, 4), (4, 5)]
    assert compiler.asked == [(0, 2), (2, 4)]


def test_bidirectional_goes_from_both_ends_to_the_middle():
    compiler = Compiler()
    assert bidirectional(7, compiler) == [(0, 2), (2, 4), (4, 5), (5, 7)]
    assert compiler.asked == [(0, 2), (5, 7), (2, 4)]


def test_bidirectional_after_failures_at_both_ends():
    assert bidirectional(6, Compiler(forbidden=[0, 4])) == [(0, 1), (1, 3), (3, 5), (5, 6)]


def test_conditions_take_the_longest_group_within_the_limits():
    limits = Limits(nodes=(0, 3))
    assert by_conditions(ones(7), limits, always) == [(0, 3), (3, 6), (6, 7)]


def test_conditions_hold_for_each_sum():
    loads = [Load(5, 10, 1), Load(5, 10, 1), Load(5, 1, 1), Load(5, 1, 1)]
    assert by_conditions(loads, Limits(weight_bytes=(0, 12)), always) == [(0, 1), (1, 4)]
    assert by_conditions(loads, Limits(compute=(0, 10)), always) == [(0, 2), (2, 4)]
    assert by_conditions(loads, Limits(compute=(11, 15), weight_bytes=(0, 12)), always) == [(0, 1), (1, 4)]


def test_a_group_below_the_least_stays_apart():
    assert by_conditions(ones(3), Limits(nodes=(4, 9)), always) == [(0, 1), (1, 2), (2, 3)]


def test_a_failed_group_of_three_or_more_is_tried_smaller():
    compiler = Compiler(forbidden=[2])
    assert by_conditions(ones(5), Limits(nodes=(0, 4)), compiler) == [(0, 3), (3, 5)]
    assert compiler.asked == [(0, 4), (0, 3), (3, 5)]


def test_a_failed_pair_stays_apart():
    compiler = Compiler(forbidden=[0])
    assert by_conditions(ones(3), Limits(nodes=(0, 2)), compiler) == [(0, 1), (1, 3)]
    assert compiler.asked == [(0, 2), (1, 3)]


@pytest.mark.slow
@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.builds(Load, *[st.integers(0, 9)] * 3), max_size=12),
    st.sets(st.integers(0, 11)),
    st.tuples(*[st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(5, 40)))] * 3),
)
def test_every_piece_is_in_one_group_and_every_group_was_compiled(strategy, loads, forbidden, bounds):
    compiler = Compiler(forbidden)
    limits = Limits(*bounds)
    groups = Refusal(strategy, limits).groups(loads, compiler)
    assert [piece for group in groups for piece in range(*group)] == list(range(len(loads)))
    for start, stop in groups:
        if stop - start > 1:
            assert (start, stop) in compiler.asked and not forbidden & set(range(start, stop - 1))
    assert len(set(compiler.asked)) == len(compiler.asked)
    if strategy == "conditions":
        for start, stop in compiler.asked:
            for name in ("compute", "weight_bytes", "nodes"):
                low, high = getattr(limits, name)
                assert low <= sum(getattr(load, name) for load in loads[start:stop]) <= (high or 1 << 60)
    else:
        assert max((stop - start for start, stop in groups), default=0) <= 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_fused_where_nothing_compiles(strategy):
    assert Refusal(strategy).groups(ones(5), never) == [(i, i + 1) for i in range(5)]


def test_refusals_are_read_from_text():
    assert parse_refusal("pairs") == Refusal("pairs")
    limits = Limits(nodes=(2, 10), weight_bytes=(0, 65536), compute=(100, None))
    text = "conditions{nodes=2..10,weight_bytes=..65536, compute=100..}"
    assert parse_refusal(text) == Refusal("conditions", limits)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("triples", "'triples' is none of conditions, pairs, forward, bidirectional"),
        ("pairs{nodes=1..2}", "limits are written conditions"),
        ("conditions{nodes=1..2", "limits are written conditions"),
        ("conditions{bytes=1..2}", "'bytes=1..2' is not NAME=LEAST..MOST with a NAME of compute, weight_bytes"),
        ("conditions{nodes=1..2,nodes=1..2}", "each once"),
        ("conditions{nodes=3..2}", "the least is more than the most"),
        ("conditions{nodes=3}", "is not NAME=LEAST"),
    ],
)
def test_refusals_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        parse_refusal(text)
