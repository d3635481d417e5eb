"""Clipped sizes over all executions against enumerating them one by one."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.isa.program import Affine, Span
from frustum.passes.lower.executions import Executions, clipped_extents

COUNTS, CLUSTERS, CORES = (2, 3), 2, 2
SMALL = st.sampled_from([0, 0, 1, 3])
AFFINES = st.builds(
    lambda base, loops, cluster, core: Affine(base, loops, cluster, core),
    st.integers(-3, 5), st.tuples(SMALL, SMALL), SMALL, SMALL,
)  # fmt: skip
SPANS = st.builds(Span, AFFINES, st.integers(1, 6), st.integers(1, 9), st.none() | AFFINES)


def everyone():
    loops = product(*map(range, COUNTS))
    return list(product(loops, range(CLUSTERS), range(CORES)))


@given(st.lists(SPANS, min_size=1, max_size=4))
def test_every_combination_occurs_as_often_as_counted(spans):
    expected = Counter(
        tuple(max(0, stop - start) for start, stop in (span.clip(*where) for span in spans)) for where in everyone()
    )
    found, times = clipped_extents(spans, COUNTS, CLUSTERS, CORES)
    total = dict(zip(map(tuple, found.T.tolist()), times.tolist(), strict=True))
    left_out = sum(expected.values()) // sum(total.values())  # loops that no span names
    assert {sizes: left_out * number for sizes, number in total.items()} == expected


def test_what_is_cut_off_before_the_first_position_is_told():
    span = Span(Affine(-2, (3,)), 4, 9)
    lower, extent, cut = Executions([span], (3,), 1, 1).clip(span)
    assert (lower.tolist(), extent.tolist(), cut.tolist()) == ([0, 1, 4], [2, 4, 4], [2, 0, 0])


@pytest.mark.parametrize("size", [1000])
def test_unrelated_loops_are_not_multiplied(size):
    """Three loops of a thousand passes: a thousand million executions, eight sizes."""
    spans = [Span(Affine.index(level, 2), 2, 2 * size - 1) for level in range(3)]
    found, times = clipped_extents(spans, (size,) * 3, 1, 1)
    assert found.shape == (3, 8) and times.sum() == size**3
