"""Intervals, boxes and projections against brute force over positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.geometry import (
    EMPTY,
    Box,
    Interval,
    Scaling,
    Window,
    even_pieces,
    hull,
    pieces,
    round_position,
    whole_axis,
)

INTERVALS = st.builds(Interval, st.integers(-20, 40), st.integers(-20, 40))
WINDOWS = st.builds(Window, st.integers(1, 7), st.integers(1, 4), st.integers(-3, 5), st.integers(1, 3))
SCALINGS = st.builds(
    Scaling,
    st.floats(0.1, 4.0),
    st.floats(-2.0, 2.0),
    st.sampled_from(["nearest", "linear"]),
    st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
)


def read_by(window: Window, outputs: Interval) -> list[int]:
    """Every position that the outputs read, one by one."""
    taps = range(window.kernel)
    return [o * window.stride - window.pad_low + k * window.dilation for o in outputs for k in taps]


# --- intervals and boxes -----------------------------------------------------------------------------------


@given(INTERVALS, INTERVALS)
def test_intersection_holds_the_positions_of_both(a: Interval, b: Interval):
    assert set(a & b) == set(a) & set(b)


@given(INTERVALS, INTERVALS)
def test_hull_is_the_smallest_interval_over_both(a: Interval, b: Interval):
    positions = set(a) | set(b)
    assert a.hull(b) == (Interval(min(positions), max(positions) + 1) if positions else EMPTY)
    assert a.hull(b).covers(a) and a.hull(b).covers(b)


@given(INTERVALS, INTERVALS)
def test_covers_means_subset(a: Interval, b: Interval):
    assert a.covers(b) == (set(b) <= set(a))


@given(INTERVALS, st.integers(0, 20))
def test_clipping_keeps_what_is_inside_and_the_rest_is_own_padding(a: Interval, size: int):
    low, high = a.outside(size)
    assert set(a.clipped(size)) == {p for p in a if 0 <= p < size}
    assert low == sum(p < 0 for p in a)
    assert high == sum(p >= size for p in a)


def test_empty_intervals_are_equal_and_false():
    assert Interval(5, 5) == Interval(9, 2) == EMPTY
    assert not EMPTY
    assert EMPTY.shifted(3) == EMPTY
    assert 3 in Interval(3, 4) and 4 not in Interval(3, 4)
    assert str(Interval(-1, 4)) == "[-1, 4)"


def test_boxes_work_axis_by_axis():
    box = Box((Interval(0, 1), Interval(-1, 4), Interval(2, 9)))
    assert box.shape == (1, 5, 7)
    assert box.volume == 35
    inside = box.clipped((1, 4, 8))
    assert inside == Box((Interval(0, 1), Interval(0, 4), Interval(2, 8)))
    assert box.covers(inside) and not inside.covers(box)
    assert inside.slices == (slice(0, 1), slice(0, 4), slice(2, 8))
    assert inside.shifted((1, 0, -2)).axes[2] == Interval(0, 6)
    assert inside.replaced(1, EMPTY).volume == 0
    assert inside.hull(Box.of_shape((1, 1, 1))) == Box.of_shape((1, 4, 8))
    assert str(Box.of_shape((2, 3))) == "[0, 2) x [0, 3)"


def test_an_empty_box_adds_nothing_to_a_hull():
    box, empty = Box.of_shape((2, 3)), Box((Interval(0, 9), EMPTY))
    assert not empty
    assert box.hull(empty) == empty.hull(box) == box
    assert box.covers(empty)


def test_boxes_of_different_rank_do_not_mix():
    with pytest.raises(ValueError, match="zip"):
        Box.of_shape((1, 2)) & Box.of_shape((1, 2, 3))


# --- windows -----------------------------------------------------------------------------------------------


@given(WINDOWS, INTERVALS)
def test_projection_is_the_hull_of_all_positions_read(window: Window, outputs: Interval):
    positions = read_by(window, outputs)
    assert window.project(outputs) == (Interval(min(positions), max(positions) + 1) if positions else EMPTY)


@given(WINDOWS, st.integers(0, 40), st.integers(0, 5))
def test_output_size_counts_the_windows_that_fit(window: Window, size: int, pad_high: int):
    stop = size + pad_high
    fitting = 0
    while fitting * window.stride - window.pad_low + window.span <= stop:
        fitting += 1
    assert window.output_size(size, pad_high) == fitting


@given(WINDOWS, INTERVALS)
def test_reach_holds_exactly_the_outputs_whose_inputs_are_there(window: Window, inputs: Interval):
    candidates = range(-100, 100)
    there = [o for o in candidates if inputs and inputs.covers(window.project(Interval(o, o + 1)))]
    assert list(window.reach(inputs)) == there


@given(WINDOWS, WINDOWS, INTERVALS)
def test_two_layers_as_one_window(below: Window, above: Window, outputs: Interval):
    assert below.then(above).project(outputs) == below.project(above.project(outputs))


@given(WINDOWS, st.integers(1, 10), st.integers(1, 10))
def test_kept_is_what_two_neighbouring_tiles_share(window: Window, first: int, second: int):
    a, b = window.project(Interval(0, first)), window.project(Interval(first, first + second))
    assert a.stop - b.start == window.span - window.stride
    assert window.kept == max(0, a.stop - b.start)


def test_worked_7x7_input_with_3x3_kernels_twice():
    layer = Window(3)
    assert [layer.output_size(size) for size in (7, 5, 3)] == [5, 3, 1]
    middle = Interval(1, 2)
    assert layer.project(middle) == Interval(1, 4)  # 3 x 3
    assert layer.project(layer.project(middle)) == Interval(1, 6)  # 5 x 5
    assert layer.then(layer) == Window(5)


def test_interior_tiles_have_no_padding_of_their_own():
    layer = Window(3, 1, pad_low=1)
    own = [layer.project(tile).outside(12) for tile in pieces(12, 4)]
    assert own == [(1, 0), (0, 0), (0, 1)]


def test_a_crop_is_a_negative_pad():
    assert Window(1, pad_low=-2).project(Interval(0, 3)) == Interval(2, 5)
    assert Window(1, pad_low=-2).output_size(10) == 8


# --- resize and whole axes ---------------------------------------------------------------------------------


@given(SCALINGS, st.integers(0, 30), st.integers(1, 30), st.integers(1, 20))
def test_resize_projection_is_the_hull_of_all_taps(scaling: Scaling, start: int, count: int, size: int):
    outputs = Interval(start, start + count)
    taps = [position for o in outputs for position, _ in scaling.taps(o, size)]
    assert scaling.project(outputs, size) == Interval(min(taps), max(taps) + 1)
    assert Interval(0, size).covers(scaling.project(outputs, size))


@given(SCALINGS, st.integers(0, 30), st.integers(1, 20))
def test_tap_weights_add_up_to_1(scaling: Scaling, output: int, size: int):
    assert sum(weight for _, weight in scaling.taps(output, size)) == pytest.approx(1.0)


def test_upsampling_by_2_repeats_or_blends():
    nearest = Scaling(0.5)
    assert [nearest.taps(o, 3)[0][0] for o in range(6)] == [0, 0, 1, 1, 2, 2]
    half_pixel = Scaling(0.5, -0.25, "linear")
    assert half_pixel.taps(0, 3) == ((0, 1.0), (1, 0.0))
    assert half_pixel.taps(1, 3) == ((0, 0.75), (1, 0.25))
    assert half_pixel.taps(5, 3) == ((2, 1.0), (2, 0.0))
    assert half_pixel.project(Interval(2, 4), 3) == Interval(0, 3)


def test_resize_of_nothing_needs_nothing():
    assert Scaling(0.5).project(EMPTY, 4) == EMPTY


@pytest.mark.parametrize(
    ("rounding", "found"),
    [
        ("floor", [0, 0, 1, 1]),
        ("ceil", [1, 1, 2, 2]),
        ("round_prefer_floor", [0, 1, 1, 2]),
        ("round_prefer_ceil", [1, 1, 2, 2]),
    ],
)
def test_roundings_of_positions(rounding, found):
    assert [round_position(position, rounding) for position in (0.5, 0.75, 1.5, 1.75)] == found


def test_global_layers_need_the_whole_axis():
    assert whole_axis(Interval(0, 1), 7) == Interval(0, 7)
    assert whole_axis(EMPTY, 7) == EMPTY


def test_several_consumers_need_the_hull():
    assert hull([Interval(2, 5), EMPTY, Interval(0, 3)]) == Interval(0, 5)
    assert hull([]) == EMPTY


# --- pieces ------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 20))
def test_pieces_cover_every_position_once(size: int, count: int):
    for cut in (pieces(size, count), even_pieces(size, count)):
        assert [p for piece in cut for p in piece] == list(range(size))
    sizes = list(map(len, even_pieces(size, count)))
    assert len(sizes) == count and max(sizes) - min(sizes) <= 1
