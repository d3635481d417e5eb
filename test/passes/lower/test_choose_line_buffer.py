"""Which mode each convolution gets, and what its set-up says."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from line_buffer_cases import Case
from line_buffer_cases import target as machine_of
from programs import module_of
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.ir import Block, Region

from frustum.backend import targets
from frustum.dialects.isa import Affine, AllocOp, ConvOp, RepeatOp, Span
from frustum.dialects.isa.operations import LineBufferOp
from frustum.dialects.isa.program import View
from frustum.dialects.target.durations import matrix_work
from frustum.passes.lower.choose_line_buffer import (
    ChooseLineBuffer,
    Sizes,
    busy_cycles,
    cheaper_mode,
    sizes_of,
    windows_of,
)

LINE64, DEFAULT = targets.load("line64"), targets.load("default")
FIELDS = (
    "box", "channels", "rows", "cols", "kernel", "strides", "dilations", "groups", "stage", "layer", "unit"
)  # fmt: skip


def conv_op(case, nram, wram, **changes):
    """The convolution of a case in IR; its views start at 0."""
    plain = case.conv("split")
    views = {
        name: View(view.element, Affine(), view.strides)
        for name, view in (
            ("in_view", plain.in_view), ("weight_view", plain.weight_view), ("out_view", plain.out_view)
        )
    }  # fmt: skip
    fields = {name: getattr(plain, name) for name in FIELDS}
    return ConvOp(nram, wram, None, None, nram, **{**views, **fields, **changes})


def chosen(case, target, mode="auto", count=None, **changes):
    """The module after the pass on one convolution, in a loop of `count` passes if given; its set-up and it."""
    nram, wram = AllocOp("nram", 64), AllocOp("wram", 64)
    conv = conv_op(case, nram, wram, **changes)
    body = [conv] if count is None else [RepeatOp(count, Region(Block([conv])))]
    module = module_of(target, nram, wram, *body)
    ChooseLineBuffer(mode=mode).apply(Context(), module)
    module.verify()
    set_ups = [op for op in module.walk() if isinstance(op, LineBufferOp)]
    return (set_ups[0] if set_ups else None), conv, module


def mode_of(conv):
    return "split" if conv.line_mode is None else conv.line_mode.data


def resnet_layer(size, kernel, channels=512):
    pad = kernel // 2
    return Case(size, size, channels, 32, (kernel, kernel), pads=(pad,) * 4, element="f16")


@pytest.mark.parametrize("size", [7, 14])
def test_small_maps_are_written_continuously(size):
    set_up, conv, _ = chosen(resnet_layer(size, 1), LINE64)
    assert mode_of(conv) == set_up.mode.data == "continuous"
    assert set_up.discard is None  # kernel 1: nothing straddles
    assert set_up.boundary.value.data == size


def test_the_set_up_stands_before_its_convolution_in_the_same_stage():
    set_up, conv, _ = chosen(resnet_layer(7, 3), LINE64, mode="continuous", stage=2, layer=3, unit=1)
    assert conv.prev_op is set_up
    assert (set_up.stage.value.data, set_up.layer.value.data, set_up.unit.value.data) == (2, 3, 1)
    assert set_up.padding.get_values() == (1, 1, 1, 1)
    assert set_up.discard.get_values() == (7, 9, 2)
    assert set_up.boundary.value.data == 9


def test_where_both_cost_the_same_split_is_taken():
    """One row: nothing to join."""
    set_up, conv, _ = chosen(Case(40, 1, 4, 4, (1, 3)), LINE64)
    assert mode_of(conv) == set_up.mode.data == "split"
    assert set_up.discard is None


@pytest.mark.parametrize("mode", ["split", "continuous"])
def test_the_mode_can_be_set(mode):
    _, conv, _ = chosen(Case(40, 4, 4, 4, (3, 3)), LINE64, mode=mode)
    assert mode_of(conv) == mode


def test_rows_that_are_no_runs_stay_split():
    """Positions two elements apart, as in a layout with channels inside."""
    view = View("f32", Affine(), (0, 0, 640, 8))
    _, conv, _ = chosen(Case(20, 4, 2, 4), LINE64, mode="continuous", in_view=view)
    assert mode_of(conv) == "split"


@pytest.mark.parametrize("mode", ["auto", "split", "continuous"])
@pytest.mark.parametrize("case", [
    Case(7, 7, 8, 8, (3, 3), element="f16", channels_inside=True),
    Case(42, 1, 20, 11, element="f16", channels_inside=True),  # a matrix product: positions in w
    Case(4, 4, 1, 8, spare=15, channels_inside=True),  # one of 16 stored channels
])  # fmt: skip
def test_channels_of_a_position_side_by_side_are_channels_last(case, mode):
    """Whatever the option, and without a set-up."""
    set_up, conv, module = chosen(case, LINE64, mode=mode)
    assert (set_up, mode_of(conv)) == (None, "channels_last")
    text = str(module)
    ChooseLineBuffer(mode=mode).apply(Context(), module)
    assert str(module) == text


def test_a_map_of_one_channel_is_not_channels_last():
    _, conv, _ = chosen(Case(40, 4, 1, 4, channels_inside=True), LINE64)
    assert mode_of(conv) == "split"


def test_running_it_again_changes_nothing():
    _, _, module = chosen(resnet_layer(7, 1), LINE64)
    text = str(module)
    ChooseLineBuffer().apply(Context(), module)
    assert str(module) == text


def test_foreign_operations_stay():
    nram, wram = AllocOp("nram", 64), AllocOp("wram", 64)
    conv = conv_op(resnet_layer(7, 1), nram, wram)
    inside = test.TestOp(regions=[Region(Block([conv]))])
    module = module_of(LINE64, nram, test.TestOp(), wram, inside, test.TestOp())
    ChooseLineBuffer().apply(Context(), module)
    assert isinstance(conv.prev_op, LineBufferOp)
    assert sum(isinstance(op, test.TestOp) for op in module.walk()) == 3


def test_a_module_without_convolutions_needs_no_target():
    module = module_of(LINE64, test.TestOp())
    del module.attributes["frustum.target"]
    ChooseLineBuffer().apply(Context(), module)
    assert len(list(module.walk())) == 3


def test_a_convolution_that_computes_nothing_is_left_alone():
    case = Case(9, 3, 2, 2)
    box = case.conv().box
    empty = type(box)((Affine(4), *box.start[1:]), box.extent, box.bound)
    set_up, conv, _ = chosen(case, LINE64, box=empty)
    assert set_up is None and conv.line_mode is None


def test_sizes_are_those_of_the_clipped_executions():
    """Tiles of 6 columns over a map of 16, dealt to two passes and a limit: 6, 6 and 4, then 3."""
    case = Case(16, 2, 2, 3, (1, 3), pads=(0, 1, 0, 1))
    box = case.conv().box
    tiles = type(box)((*box.start[:3], Affine.index(0, 6)), (*box.extent[:3], 6), box.bound)
    cols = Span(Affine(-1, (6,)), 8, 16)
    _, conv, _ = chosen(case, machine_of(), count=3, box=tiles, cols=cols)
    sizes = sizes_of(conv, machine_of())
    assert sizes.counts.T.tolist() == [[1, 2, 4, 2, 3], [1, 2, 6, 2, 3]]
    assert sizes.times.tolist() == [1, 2]
    assert sizes.padding == (0, 1, 0, 1)


SIZES = st.builds(
    Case,
    width=st.integers(1, 40),
    height=st.integers(1, 20),
    channels=st.integers(1, 64),
    outputs=st.integers(1, 64),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 7)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 4)),
    dilation=st.tuples(st.just(1), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    images=st.integers(1, 3),
    element=st.sampled_from(["f32", "f16"]),
)


@given(SIZES, st.sampled_from([LINE64, DEFAULT]))
@settings(deadline=None, max_examples=60)
def test_the_chosen_mode_is_never_slower_than_the_other(case, target):
    assume(min(case.out) > 0)
    _, conv, _ = chosen(case, target)
    windows = windows_of(conv)
    rows, columns = case.out
    work = windows.convolution(case.images, rows, columns, case.channels, case.outputs)
    cycles = {
        mode: matrix_work(target.core.matrix, work, mode).busy_cycles for mode in ("split", "continuous")
    }
    assert cycles[mode_of(conv)] == min(cycles.values())


@pytest.mark.parametrize("mode", ["split", "continuous"])
def test_executions_that_occur_more_often_weigh_more(mode):
    unit, (_, conv, _) = LINE64.core.matrix, chosen(resnet_layer(14, 3), LINE64)
    windows, counts, times = windows_of(conv), [[1, 14, 7, 64, 32], [2, 5, 57, 16, 8], [1, 1, 3, 4, 1]], [7, 1, 300]
    each = [matrix_work(unit, windows.convolution(*sizes), mode).busy_cycles for sizes in counts]
    found = busy_cycles(unit, windows, Sizes(np.array(counts).T, np.array(times), (0, 0, 0, 0)), mode)
    assert found == sum(often * cycles for often, cycles in zip(times, each, strict=True))


def test_the_mode_is_decided_by_all_executions_together():
    """One execution prefers continuous, many others split: the sum decides."""
    unit, (_, conv, _) = LINE64.core.matrix, chosen(resnet_layer(14, 3), LINE64)
    windows = windows_of(conv)
    small, large = [1, 14, 7, 64, 32], [1, 14, 57, 64, 32]
    modes = {}
    for times in ((100, 1), (1, 100)):
        sizes = Sizes(np.array([small, large]).T, np.array(times), (0, 0, 0, 0))
        modes[times] = cheaper_mode(unit, windows, sizes)
        other = {"split": "continuous", "continuous": "split"}[modes[times]]
        assert busy_cycles(unit, windows, sizes, modes[times]) <= busy_cycles(unit, windows, sizes, other)
