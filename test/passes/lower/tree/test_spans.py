"""Spans of passes: clipped, they are what a part of a layer reads in every pass."""

from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis
from frustum.dialects.isa.program import ZERO, Affine, Span
from frustum.passes.lower.tree.spans import (
    end,
    extremes,
    hull,
    later,
    rolled,
    sharers,
    step_at,
    through,
    whole,
)

numbers = st.integers(-6, 6)


@st.composite
def reads(draw):
    """Axes with steps of one loop, a position of them, and the extent of what is read."""
    axes = [Axis(f"a{k}", draw(st.integers(2, 12))) for k in range(draw(st.integers(1, 3)))]
    looped, step = axes[0], draw(st.integers(1, 4))
    factors = [draw(st.integers(1, 3)), *(draw(numbers.filter(bool)) for _ in axes[1:])]
    position = Position(tuple(zip(axes, factors, strict=True)), draw(numbers))
    return axes, looped, step, position, draw(st.integers(1, 30))


@given(reads())
def test_a_span_holds_what_every_pass_reads(case):
    axes, looped, step, position, extent = case
    count = -(-looped.extent // step)
    spans = {looped: Span(Affine.index(0, step), step, looped.extent)}
    found = through(position, extent, spans)
    for k in range(count):
        ranges = {axis: (0, axis.extent) for axis in axes} | {looped: (k * step, min((k + 1) * step, looped.extent))}
        low, high = position.hull(ranges)
        low, high = max(low, 0), min(high, extent)
        start, stop = found.clip((k,))
        assert low >= high or (start <= low and high <= stop)


@given(reads())
def test_spans_of_one_pass_are_just_what_it_reads(case):
    _, _, _, position, extent = case
    low, high = position.hull({})
    low, high = max(low, 0), min(high, extent)
    found = through(position, extent, {}).clip()
    assert low >= high or found == (low, high)


@given(st.integers(1, 5), st.integers(1, 9), numbers, st.integers(1, 8))
def test_passes_that_roll_have_each_position_once(step, extent, base, count):
    span = Span(Affine(base) + Affine.index(0, step), extent, 1000)
    new = rolled(span, 0)
    seen = [p for k in range(count) for p in range(*new.clip((k,)))]
    assert len(seen) == len(set(seen))
    everything = {p for k in range(count) for p in range(*span.clip((k,)))}
    first = set(range(*span.clip((0,)))) - set(range(*new.clip((0,))))
    assert set(seen) | first == everything
    assert later(span, 0, 2).clip((3,)) == span.clip((1,))


@given(numbers, st.integers(1, 9), numbers, st.integers(1, 9), st.integers(0, 3))
def test_a_hull_is_around_both(a, size, b, other, step):
    moved = Affine.index(0, step)
    one, two = Span(moved + a, size, 40), Span(moved + b, other, 30)
    both = hull([one, two])
    assert step_at(both, 0) == step
    for k in range(4):
        for start, stop in (one.clip((k,)), two.clip((k,))):
            low, high = both.clip((k,))
            assert start >= stop or (low <= start and stop <= high)


def test_spans_that_move_apart_are_all():
    assert hull([Span(Affine.index(0, 2), 2, 9), Span(ZERO, 1, 12)]) == Span(ZERO, 12, 12)
    axis = Axis("a", 5)
    assert whole(axis) == Span(ZERO, 5, 5)
    assert end(whole(axis)) == Affine(5)
    assert extremes(Affine(1, (2, -3), core=4), [3, 2], cores=2) == (-2, 9)


def test_clusters_share_a_port_where_each_has_its_own():
    same, own = Span(Affine(3), 4, 9), Span(Affine(0, cluster=2), 2, 9)
    assert sharers([same], 4) == 1 and sharers([same, own], 4) == 4
