"""Positions: hulls, links and digits against every position listed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.axes.access import Affine, digits, link_of
from frustum.dialects.axes.axis import Axis, weights


def positions(position: Affine, ranges: dict) -> list[int]:
    terms = position.refined().terms
    spans = [range(*ranges.get(axis, (0, axis.extent))) for axis, _ in terms]
    found = []
    for point in itertools.product(*spans):
        p = (sum(c * x for (_, c), x in zip(terms, point, strict=True)) + position.offset) // position.divisor
        last = position.extent - 1
        bent = {
            "": p,
            "wrap": p % max(position.extent, 1),
            "edge": min(max(p, 0), last),
            "reflect": last - abs(last - abs(p)),
        }
        found.append(bent[position.bend])
    return found


@st.composite
def affines(draw):
    axes = [Axis(str(k), draw(st.integers(1, 5))) for k in range(draw(st.integers(1, 3)))]
    terms = tuple((axis, draw(st.sampled_from([-2, -1, 1, 2, 3, 7]))) for axis in axes)
    offset, divisor = draw(st.integers(-3, 9)), draw(st.sampled_from([1, 1, 2, 3]))
    plain = Affine(terms, offset, divisor)
    low, high = min(positions(plain, {})), max(positions(plain, {}))
    bend = draw(st.sampled_from(["", "wrap", "edge", "reflect"]))
    extent = max(high + 1, -low + 1, 2) if bend == "reflect" else draw(st.integers(1, 12))
    return Affine(terms, offset, divisor, bend, extent if bend else 0)


@given(affines(), st.data())
def test_hulls_hold_every_position(position, data):
    ranges = {}
    for axis, _ in position.terms:
        start = data.draw(st.integers(0, axis.extent - 1))
        ranges[axis] = start, data.draw(st.integers(start + 1, axis.extent))
    found, (low, high) = positions(position, ranges), position.hull(ranges)
    assert all(low <= p < high for p in found)
    if not position.bend:
        assert low in found and high - 1 in found


@given(affines())
def test_links_hold_every_position(position):
    link = link_of(position)
    if link is None or position.bend:
        return
    for p in range(link.axis.extent):
        for found in positions(position, {link.axis: (p, p + 1)}):
            first = link.stride * p - link.pad
            assert first - 1 < found < first + link.reach + 1


def test_a_strided_window_is_a_link():
    rows, tap = Axis("y", 10), Axis("kh", 3, is_tap=True)
    link = link_of(Affine.of(rows, 2, -1) + Affine.of(tap, 2))
    assert link is not None
    assert (link.axis, link.stride, link.reach, link.pad) == (rows, 2, 5, 1)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), affines())
def test_digits_make_up_the_position(extents, position):
    own = tuple(Axis(f"t{k}", extent) for k, extent in enumerate(extents))
    steps = weights(own)
    total = steps[own[0]] * own[0].extent
    found = positions(position, {})
    if position.bend or min(found) < 0 or max(found) >= total:
        return
    digits = [position.digit(steps[axis], axis.extent, is_first=axis is own[0]) for axis in own]
    made = [0] * len(found)
    for axis, digit in zip(own, digits, strict=True):
        assert digit is not None
        order = Affine(position.terms, digit.offset, digit.divisor, digit.bend, digit.extent)
        coefficients = dict(digit.terms)
        same = Affine(
            tuple((a, coefficients.get(a, 0)) for a, _ in position.terms),
            order.offset,
            order.divisor,
            order.bend,
            order.extent,
        )
        made = [m + steps[axis] * p for m, p in zip(made, positions(same, {}), strict=True)]
    assert made == found


@pytest.mark.parametrize("bend", ["edge", "wrap", "reflect"])
def test_ranges_of_arrays_bend_as_numbers_do(bend):
    axis, extent = Axis("a", 9), 5
    position = replace(Affine.of(axis, 1, -2), bend=bend, extent=extent)
    ranges = [(low, high) for low in range(9) for high in range(low + 1, 8)]
    low, high = (np.array(ends) for ends in zip(*ranges, strict=True))
    found = position.hull({axis: (low, high)})
    assert list(zip(*(ends.tolist() for ends in found), strict=True)) == [
        position.hull({axis: each}) for each in ranges
    ]


def test_digits_of_falling_positions_are_exact():
    """Rows of a sequence that is read from its end: no digit is rounded where terms do not carry."""
    time, row, steps, rows = Axis("time", 3), Axis("row", 2), Axis("steps", 3), Axis("rows", 2)
    position = Affine(((row, 1), (time, -2)), 4)
    found = dict(digits((steps, rows), position))
    assert found == {steps: Affine.of(time, -1, 2), rows: Affine.of(row)}
    carried = dict(digits((steps, rows), position + Affine(offset=1)))
    assert carried[steps].divisor == 2 and carried[rows].bend == "wrap"


def test_axes_that_are_no_dimension_stay_where_they_are():
    time, x, y = Axis("time", 5), Axis("x", 4), Axis("y", 2)
    position = Affine.of(time, 1, -1) + Affine.of(x, 3)
    assert position.substituted([((x,), Affine.of(y, 2, 1))]) == Affine(((y, 6), (time, 1)), 2)
    assert Affine.of(time, 1, -1).substituted([((x,), Affine.of(y))]) == Affine.of(time, 1, -1)
