"""Axes split as reshapes ask, and never otherwise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.axes.axis import Axis, align, dim, extent_of, leaves, regroup, weights

factors = st.lists(st.integers(2, 5), min_size=1, max_size=4)


def test_channels_become_heads_for_all_that_named_them():
    channels = Axis("c", 768)
    (heads, size) = regroup((channels,), (12, 64))
    assert [each.extent for each in channels.leaves] == [12, 64]
    assert heads == channels.leaves[:1] and size == channels.leaves[1:]


@given(factors, st.data())
def test_regrouping_keeps_the_order_of_elements(extents, data):
    axes = tuple(Axis(str(k), extent) for k, extent in enumerate(extents))
    total, shape = math.prod(extents), []
    while total > 1:
        shape.append(data.draw(st.sampled_from([d for d in range(2, total + 1) if total % d == 0])))
        total //= shape[-1]
    dims = regroup(axes, shape)
    if dims is None:
        assert all(axis.parts is None for axis in axes)
        return
    assert [extent_of(each) for each in dims] == shape
    assert leaves(axes) == leaves(axis for own in dims for axis in own)


def test_axes_without_a_common_refinement_stay_whole():
    six, four = Axis("a", 6), Axis("b", 4)
    assert regroup((six, four), (8, 3)) is None
    assert align((six,), (four,)) is None
    assert six.parts is None and four.parts is None


def test_aligned_leaves_have_equal_extents():
    a, b = (Axis("a", 4), Axis("b", 6)), (Axis("c", 2), Axis("d", 12))
    pairs = align(a, b)
    assert pairs is not None and [(x.extent, y.extent) for x, y in pairs] == [(2, 2), (2, 2), (6, 6)]


def test_weights_are_strides_of_a_dense_dimension():
    rows, columns = Axis("r", 3), Axis("c", 5)
    assert weights((rows, columns)) == {rows: 5, columns: 1}


def test_a_length_known_at_run_time_is_not_split():
    (past,) = dim("past", 1024, is_bound=True)
    with pytest.raises(AssertionError):
        past.split(4)
