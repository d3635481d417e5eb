"""Convolutions through the line buffer: the same numbers as from whole maps, and the counts of the closed form."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from line_buffer_cases import Case, run, set_up_of, target

from frustum.dialects.isa import program as p
from frustum.dialects.target.durations import Convolution, matrix_work
from frustum.runtime.device.line_buffer import SetUpError

MODES = ("split", "continuous")


def check(case, machine):
    """Both modes, fast and in detail, give the same numbers; the detailed counts are those of the closed form."""
    plain, _, _ = run(case, "split", machine, detailed=False)
    assert np.isfinite(plain).all()
    for mode in MODES:
        out, counts, work = run(case, mode, machine, detailed=True)
        np.testing.assert_array_equal(out, plain)
        found = counts.writes, counts.steps, counts.discarded
        assert found == (work.line_writes.sum(), work.steps.sum(), work.discarded.sum()), mode
        fast, _, _ = run(case, mode, machine, detailed=False)
        np.testing.assert_array_equal(fast, plain)


CASES = st.builds(
    Case,
    width=st.integers(1, 40),
    height=st.integers(1, 4),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 5),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 7)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    images=st.integers(1, 3),
    groups=st.integers(1, 2),
    gap=st.sampled_from([0, 0, 1, 5]),
    far=st.sampled_from([0, 3]),
    channels_outside=st.booleans(),
    element=st.sampled_from(["f32", "f16", "bf16"]),
)
QUANTISED = st.builds(replace, CASES, element=st.sampled_from(["i8", "i16"]), zero=st.integers(-9, 9))
MACHINES = st.builds(
    target, lines=st.integers(1, 40), block_bytes=st.sampled_from([8, 16, 32, 64]), channels=st.integers(1, 4)
)


@pytest.mark.slow
@given(CASES | QUANTISED, MACHINES)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_results_with_and_without_are_identical(case, machine):
    assume(min(case.out) > 0)
    check(case, machine)


@pytest.mark.slow
@pytest.mark.soak(but=4)
@pytest.mark.parametrize(("kernel", "stride"), list(product(range(1, 8), range(1, 5))))
def test_every_kernel_and_stride_at_every_width_padding_and_dilation(kernel, stride):
    """Widths and paddings in steps that together meet every remainder; the property above draws the rest."""
    machine = target(lines=12, block_bytes=64)
    for width, pad, dilation in product(range(1 + (kernel + stride) % 5, 41, 5), range(4), (1, 2)):
        case = Case(width, 2, 1, 1, (1, kernel), (1, stride), (1, dilation), (0, pad, 0, pad))
        if min(case.out) > 0:
            check(case, machine)


@pytest.mark.slow
def test_worked_rows_of_9_elements_in_16_element_blocks():
    """The first fill is 7 windows of one row, 2 that straddle and 5 of the next: one block.  Three rows are 25
    windows: in split mode a write for each row piece, of which the second fill of 14 lines has one."""
    machine, case = target(lines=14, block_bytes=32), Case(9, 3, 1, 1, kernel=(1, 3), element="f16")
    made = set_up_of(case.conv("continuous"), machine.core.matrix)
    assert (made.blocks, made.lines, made.boundary, made.discard) == (1, 14, 9, (7, 9, 2))
    writes = [run(case, mode, machine, detailed=True)[1].writes for mode in MODES]
    assert writes == [3, 2]


@pytest.mark.slow
def test_padding_is_inserted_and_memory_between_rows_may_be_poison():
    """Rows of 5 with 2 unwritten elements after each and a border of 1 on the fly."""
    case = Case(5, 4, 2, 2, kernel=(3, 3), pads=(1, 1, 1, 1), gap=2)
    check(case, target())


@pytest.mark.slow
def test_images_that_follow_each_other_are_one_run():
    """Channels outside of images: the last row of an image and the first of the next are neighbours."""
    machine, case = target(lines=32), Case(5, 2, 1, 1, images=3, channels_outside=True)
    _, together, _ = run(case, "continuous", machine, detailed=True)
    _, apart, _ = run(replace(case, far=1), "continuous", machine, detailed=True)
    assert (together.writes, apart.writes) == (4, 6)  # 30 f32 in blocks of 8; three images of 10
    check(case, machine)


@pytest.mark.slow
def test_rows_whose_elements_are_apart_are_written_one_by_one():
    """A map with its positions 8 bytes apart cannot be one run: both modes do the same."""
    case = Case(6, 2, 1, 1, kernel=(1, 3))
    conv = case.conv("continuous")
    apart = replace(conv, in_view=replace(conv.in_view, strides=(0, 0, 64, 8)))
    counted = []
    for mode in MODES:
        its_conv = replace(apart, line_mode=mode)
        body = (set_up_of(its_conv, target().core.matrix), its_conv)
        counted.append(run(case, mode, target(), detailed=True, body=body)[1])
    assert counted[0] == counted[1] and counted[0].discarded == 0


@pytest.mark.slow
@given(CASES | QUANTISED, st.integers(1, 3), MACHINES)
@settings(max_examples=60, deadline=None)
def test_channels_last_convolutions_count_in_closed_form(case, spare, machine):
    assume(min(case.out) > 0)
    inside = replace(case, channels_inside=True, spare=spare)
    conv = inside.conv("channels_last")
    out, counts, work = run(inside, "channels_last", machine, detailed=True, body=(conv,))
    plain, _, _ = run(inside, "split", machine, detailed=False)
    np.testing.assert_array_equal(out, plain)
    found = counts.writes, counts.steps, counts.discarded
    assert found == (work.line_writes.sum(), work.steps.sum(), 0)
    rows, columns = inside.out
    size = conv.in_view.strides[1]
    stored = conv.in_view.strides[3] // size
    action = Convolution(
        inside.images * rows, columns, inside.channels, inside.outputs, size, inside.groups,
        *inside.kernel, inside.stride[1], inside.dilation[1], pitch_channels=stored,
    )  # fmt: skip
    unit = machine.core.matrix
    assert counts.writes == work.line_writes_split.sum() == matrix_work(unit, action, "channels_last").writes


@pytest.mark.slow
def test_a_block_of_channels_last_serves_all_its_channels():
    """5 positions of 4 f16 channels, 40 bytes, in blocks of 32: 2 writes a row; channel by channel it were 4."""
    machine, case = target(), Case(5, 3, 4, 1, element="f16", channels_inside=True)
    conv = case.conv("channels_last")
    _, counts, work = run(case, "channels_last", machine, detailed=True, body=(conv,))
    assert counts.writes == work.line_writes.sum() == work.line_writes_split.sum() == 3 * 2
    assert counts.steps == 4  # 15 windows in 16 lines: one pass, a step for each channel
    _, counts, _ = run(case, "split", machine, detailed=True)
    assert counts.writes == 3 * 4


@pytest.mark.slow
def test_a_channels_last_convolution_takes_no_set_up():
    machine, case = target(), Case(5, 3, 4, 1, channels_inside=True)
    body = (set_up_of(case.conv("split"), machine.core.matrix), case.conv("channels_last"))
    with pytest.raises(SetUpError, match="a channels_last convolution with a line_buffer instruction before it"):
        run(case, "channels_last", machine, detailed=True, body=body)


def test_clipped_executions_derive_their_own_numbers():
    """Columns 0 to 5 and 6 to 8 of a map 9 wide in one instruction, two images of it in a loop."""
    case = Case(9, 3, 2, 2, kernel=(3, 3), pads=(1, 1, 1, 1))
    conv = case.conv("continuous")
    tiled = replace(
        conv,
        in_view=replace(conv.in_view, offset=conv.in_view.offset + p.Affine.index(0, 6 * 4)),
        out_view=replace(conv.out_view, offset=conv.out_view.offset + p.Affine.index(0, 6 * 4)),
        box=replace(conv.box, start=(*conv.box.start[:3], p.Affine.index(0, 6)), extent=(1, 2, 3, 6)),
        cols=p.Span(p.Affine(-1, (6,)), 8, 9),
    )
    machine = target()
    body = (p.Repeat(2, (set_up_of(tiled, machine.core.matrix), tiled)),)
    out, counts, work = run(case, "continuous", machine, detailed=True, body=body)
    plain, _, _ = run(case, "split", machine, detailed=False)
    np.testing.assert_array_equal(out, plain)
    assert counts.writes == work.line_writes.sum()
    assert counts.discarded == work.discarded.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shift": 2}, "line_buffer: shift is 2, the convolution needs 1"),
        ({"mode": "split"}, "line_buffer: mode is split, the convolution needs continuous"),
        ({"boundary": 8}, "line_buffer: boundary is 8, the convolution needs 9"),
        ({"discard": (7, 8, 1)}, r"line_buffer: discard is \(7, 8, 1\), the convolution needs \(7, 9, 2\)"),
        ({"second_shift": 2}, "line_buffer: second_shift is 2, the convolution needs 1"),
    ],
)
def test_a_wrong_set_up_is_refused(changes, message):
    machine, case = target(), Case(9, 2, 1, 1, kernel=(1, 3))
    conv = case.conv("continuous")
    body = (set_up_of(conv, machine.core.matrix, **changes), conv)
    with pytest.raises(SetUpError, match=message):
        run(case, "continuous", machine, detailed=True, body=body)


@pytest.mark.slow
def test_a_continuous_convolution_needs_a_set_up_of_its_own():
    machine, case = target(), Case(9, 2, 1, 1, kernel=(1, 3))
    conv = case.conv("continuous")
    body = (set_up_of(conv, machine.core.matrix), conv, replace(conv, layer=1))
    with pytest.raises(SetUpError, match="a continuous convolution without a line_buffer instruction before it"):
        run(case, "continuous", machine, detailed=True, body=body)
