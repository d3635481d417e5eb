"""Rows of windows as one run: what straddles, second shifts, blocks, fills and discards."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.dialects.isa.line_buffer_plan import (
    RowRun,
    Windows,
    column_pieces,
    fills,
    kept,
    plan,
    run_of,
    writes,
)
from frustum.dialects.target.durations import matrix_work

EDGE = targets.load("edge").core.matrix


def windows(width, kernel, stride=1, *, rows_stride=1, dilation=1, pitch=None, image=None, element=1):
    """A map of 4 rows in 2 channels, `width` elements long, `pitch` from row to row, `image` from image to image."""
    pitch = width if pitch is None else pitch
    plane = 4 * pitch
    steps = (2 * plane if image is None else image, plane, pitch, 1)
    bytes_ = tuple(step * element for step in steps)
    return Windows((1, kernel), (rows_stride, stride), (1, dilation), 1, element, bytes_, width)


def test_worked_rows_of_9_elements_split_2_writes_continuous_1():
    """A 16-element block that covers one row and 7 elements of the next."""
    counted = {}
    for mode in ("split", "continuous"):
        run, runs = run_of(windows(9, 3), mode, 1, 2, 7)
        first = next(fills(run, runs, lines=14))
        ((_, _, fill),) = column_pieces(16, 3, 1, 1)
        blocks = [block for _, start, count in first for block in writes(run, start, count, 3, fill, 0)]
        counted[mode] = len(blocks)
        if mode == "continuous":
            assert blocks == [(0, 14, 0, 16)]
    assert counted == {"split": 2, "continuous": 1}


@pytest.mark.parametrize("kernel", range(1, 8))
def test_at_stride_1_kernel_minus_1_windows_straddle(kernel):
    assert windows(20, kernel).straddling(20 - kernel + 1) == kernel - 1


def test_the_second_shift_brings_the_next_row_onto_a_window():
    """Rows of 9, kernel 3, stride 2: windows at 0 2 4 6, one that straddles at 8, the next row at 9."""
    run, _ = run_of(windows(9, 3, 2), "continuous", 1, 2, 4)
    assert [run.start(window) for window in range(run.windows)] == [0, 2, 4, 6, 8, 9, 11, 13, 15]
    assert (run.stride, run.second_shift, run.discard) == (2, 1, (4, 5, 1))
    assert kept(run.windows, run.discard) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_padding_takes_the_place_of_what_lies_between_rows():
    padded = windows(7, 3)  # 7 windows need 9 elements
    assert (padded.length(7), padded.distance(7)) == (9, 9)
    assert windows(7, 3, pitch=8).distance(7) == 9  # 1 element between rows, 2 of padding
    assert windows(7, 3, pitch=12).distance(7) == 12


def test_rows_join_where_they_are_runs_of_neighbours():
    assert windows(7, 3).joins
    assert not windows(7, 3, pitch=6).joins  # they overlap
    assert not replace(windows(7, 3), steps=(0, 0, 14, 2)).joins  # every second element


def test_images_join_where_they_follow_as_rows_do():
    assert windows(7, 1, image=28).runs(3, 4) == 1
    assert windows(7, 1, image=56).runs(3, 4) == 3
    assert windows(7, 1, image=28).runs(3, 3) == 3  # a row is left out between two images


def plan_of_map(width, height, gap, kernel, padding, mode="continuous"):
    """The write instruction for a whole map whose rows take `width + gap` elements, into 64 lines, by blocks of 32."""
    rows, columns = (n + sum(padding[d::2]) - kernel[d] + 1 for d, n in enumerate((height, width)))
    pitch = width + gap
    whole = Windows(kernel, (1, 1), (1, 1), 1, 1, (height * pitch, height * pitch, pitch, 1), width)
    run, _ = run_of(whole, mode, 1, rows, columns)
    return plan(run, mode, 64, 32, kernel[1], 1)


def test_a_map_gives_its_instruction():
    """A 7x7 map with a border of 1 under 3x3 kernels: 61 windows, of which every 8th and 9th are discarded."""
    made = plan_of_map(7, 7, 0, (3, 3), (1, 1, 1, 1))
    assert (made.lines, made.shift, made.second_shift, made.boundary) == (61, 1, 1, 9)
    assert made.discard == (7, 9, 2)
    assert made.blocks == 3  # 30 windows each
    split = plan_of_map(7, 7, 0, (3, 3), (1, 1, 1, 1), "split")
    assert (split.lines, split.blocks, split.discard) == (7, 1, None)


def test_a_discontinuity_makes_rows_longer():
    made = plan_of_map(7, 7, 5, (1, 3), (0, 1, 0, 1))
    assert (made.boundary, made.discard) == (12, (7, 12, 5))


RUNS = st.tuples(
    st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), st.integers(0, 9)
)  # fmt: skip


@given(RUNS, st.integers(1, 6))
def test_windows_of_a_run_start_where_their_rows_do(sizes, rows):
    width, kernel, stride, dilation, rows_stride, gap = sizes
    these = windows(width, kernel, stride, dilation=dilation, rows_stride=rows_stride, pitch=width + gap)
    columns = (width - these.span) // stride + 1
    assume(columns > 0)
    run, runs = run_of(these, "continuous", 1, rows, columns)
    distance = rows_stride * (width + gap)
    assert runs == 1 and run.distance == distance
    found = [run.start(window) for window in kept(run.windows, run.discard)]
    assert found == [row * distance + k * stride for row in range(rows) for k in range(columns)]
    if rows > 1:
        assert run.straddling == max(0, ceil((distance - columns * stride) / stride))
        assert 0 < run.second_shift <= stride
        assert run.windows == len(found) + (rows - 1) * run.straddling
    shifts = {run.start(k + 1) - run.start(k) for k in range(run.windows - 1)}
    assert shifts <= {stride, run.second_shift}


@given(
    RUNS, st.integers(1, 3), st.integers(1, 6), st.sampled_from(["split", "continuous"]), st.integers(1, 64)
)
def test_the_iterators_write_what_the_closed_form_counts(sizes, images, rows, mode, channels_out):
    width, kernel, stride, dilation, rows_stride, gap = sizes
    these = windows(width, kernel, stride, dilation=dilation, rows_stride=rows_stride, pitch=width + gap)
    columns = (width - these.span) // stride + 1
    assume(columns > 0)
    run, runs = run_of(these, mode, images, rows, columns)
    block = EDGE.line_buffer.block_bytes
    count = 0
    for fill in fills(run, runs, EDGE.lines):
        assert sum(windows_ for _, _, windows_ in fill) <= EDGE.lines
        for first, taps, each in column_pieces(block, kernel, dilation, stride):
            span = (taps - 1) * dilation + 1
            for _, start, windows_ in fill:
                for _, _, begin, end in writes(run, start, windows_, span, each, first * dilation):
                    assert end - begin <= block
                    count += 1
    work = matrix_work(EDGE, these.convolution(images, rows, columns, 3, channels_out), mode)
    assert count * 3 * ceil(channels_out / EDGE.channels) == work.writes
    assert work.discarded == runs * (run.windows - len(kept(run.windows, run.discard)))
    assert work.windows == runs * run.windows


def test_an_output_iterator_without_discards_writes_everything():
    assert kept(5, None) == [0, 1, 2, 3, 4]
    assert RowRun(1, 5, 1, 9, 0).discard is None


@pytest.mark.parametrize(
    ("target", "element", "size", "kernel", "channels", "split", "continuous"),
    [
        ("line64", 2, 7, 3, (512, 512), 172_032, 147_456),
        ("line64", 2, 7, 1, (512, 2048), 229_376, 131_072),
        ("line64", 2, 14, 1, (1024, 256), 139_264, 106_496),
        ("line64", 1, 14, 3, (256, 256), 104_448, 73_728),
        ("default", 2, 7, 1, (512, 2048), 114_688, 32_768),
        ("default", 1, 7, 3, (512, 512), 86_016, 36_864),
    ],
)
def test_late_layers_of_resnet50_in_cycles_of_the_matrix_unit(
    target, element, size, kernel, channels, split, continuous
):
    """A whole map in one instruction of one core."""
    pad = kernel // 2
    steps = (0, size * size * element, size * element, element)
    these = Windows((kernel, kernel), (1, 1), (1, 1), 1, element, steps, size)
    assert these.length(size) == size + 2 * pad
    unit = targets.load(target).core.matrix
    found = [
        matrix_work(unit, these.convolution(1, size, size, *channels), mode)
        for mode in ("split", "continuous")
    ]
    assert [work.busy_cycles for work in found] == [split, continuous]
