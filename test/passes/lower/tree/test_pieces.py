"""Pieces of a layer's part: they fit the cores twice, can be written, and are chosen once for parts that are alike."""

import math

import lowered_plans
import numpy as np
import plan_nets
import pytest
from all_kernels import held_bytes

from frustum.dialects.isa.program import Affine, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.externals import elements_of
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.pieces import PieceChoice

NETS = plan_nets.mlp, plan_nets.conv_stack, plan_nets.depthwise, plan_nets.pools, plan_nets.attention


def choices(build, known, target, spans=None):
    found = plan_nets.case(build)
    elements = elements_of(found.axes, found.views)
    for layer in found.axes.layers:
        for kernel in kernels_of(layer):
            yield PieceChoice(Code(target), kernel, spans or {}, elements, known, {})


@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("cores", [1, 4])
def test_a_piece_is_in_the_memories_of_a_core(build, cores):
    target = lowered_plans.machine(cores=cores)
    for choice in choices(build, {}, target):
        best = choice.best()
        assert best is not None
        if best.kernel.is_nothing:
            continue
        held = held_bytes(choice, best.pieces)
        core = target.core
        assert held["nram"] <= core.nram.capacity_bytes
        assert held["wram"] <= core.wram.capacity_bytes
        assert all(1 <= extent <= choice.extents[axis] for axis, extent in best.pieces.extents.items())
        assert set(best.pieces.order) == set(choice.axes)


def test_parts_that_are_alike_are_chosen_once():
    known, target = {}, lowered_plans.machine()
    first = [each.best() for each in choices(plan_nets.mlp, known, target)]
    size = len(known)
    again = [each.best() for each in choices(plan_nets.mlp, known, target)]
    assert len(known) == size
    assert [each.cycles for each in first] == [each.cycles for each in again]
    own = [list(each.pieces.extents.values()) for each in first]
    assert own == [list(each.pieces.extents.values()) for each in again]


def test_axes_in_one_dimension_are_not_clipped_twice():
    target = lowered_plans.machine(cores=1)
    found = plan_nets.case(plan_nets.conv_stack)
    layer = found.axes.layers[0]
    _, rows, columns = layer.result.axes
    code = Code(target)
    spans = {rows: Span(Affine(-2), 7, rows.extent), columns: Span(Affine(-1), 5, columns.extent)}
    for kernel in kernels_of(layer):
        best = PieceChoice(code, kernel, spans, elements_of(found.axes, found.views), {}, {}).best()
        assert best is None or not any({rows, columns} <= set(group) for group in kernel.groups())


def one_product(part):
    """For each kernel the choices for a part along what is summed, and for such a part that is a slice."""
    found = plan_nets.case(lambda net: plan_nets.product(net, net.input(16, 512), 64))
    (layer,) = found.axes.layers
    (summed,) = layer.combine
    code, elements = Code(lowered_plans.machine()), elements_of(found.axes, found.views)
    for kernel in kernels_of(layer):
        yield tuple(PieceChoice(code, kernel, {summed: part}, elements, {}, {}, axis) for axis in (None, summed))


def test_sums_that_stay_cost_no_copies_and_others_two():
    """A slice of 64 of 512 positions: where cores keep the sums none is moved, else they come and go."""
    for alone, sliced in one_product(Span(Affine(0), 64, 512)):
        channels, order = alone.layer.result.axes[1], next(iter(alone.orders()))
        extents = {axis: np.array([extent]) for axis, extent in alone.extents.items()}
        whole, halves = ({**extents, channels: np.array([extent])} for extent in (16, 8))
        once, kept = (each.cycles(whole, channels, order, 0.0)[0] for each in (alone, sliced))
        apart, begun = (each.cycles(halves, channels, order, 0.0)[0] for each in (alone, sliced))
        assert kept < once and apart < begun


def test_copies_take_as_long_as_their_runs():
    """Two of 512 positions of a row are runs of 8 B, as long as 16 B for the port of SRAM; 64 are runs of 256 B."""
    (choice, _), *_ = one_product(Span(Affine(0), 512, 512))
    (want,) = (each for each in choice.kernel.wants if each.operand == 0)
    summed = choice.summed[0]
    for extent, wide in ((2, 16), (64, 256)):
        extents = {axis: np.array([own]) for axis, own in choice.extents.items()} | {summed: np.array([extent])}
        size = choice.bytes_of(want, extents)
        assert choice.run_in(want, extents) == 4 * extent and size == 16 * 4 * extent
        assert choice.crossing(size, choice.run_in(want, extents))[1] == 16 * wide / 64


def test_copies_that_wait_for_their_turn_are_of_more():
    """A convolution of each channel by itself, which takes hardly longer than its copies."""
    found = plan_nets.case(lambda net: net.conv(net.input(1, 8, 56, 56), 8, 7, groups=8, pads=(3, 3, 3, 3)))
    (layer,) = found.axes.layers
    code, elements = Code(lowered_plans.machine()), elements_of(found.axes, found.views)
    for kernel in kernels_of(layer):
        known = {}
        soon, late = (PieceChoice(code, kernel, {}, elements, known, {}, turn=turn).best() for turn in (0.0, 900.0))
        sizes = [math.prod(each.pieces.extents.values()) for each in (soon, late)]
        assert sizes[0] <= sizes[1] and soon.cycles < late.cycles and len(known) == 2
