"""Depthwise convolutions that both units of a core make together."""

from __future__ import annotations

import lowered_plans
import pytest

from frustum.dialects import graph as g
from frustum.dialects.isa.program import Conv, Depthwise, instructions
from frustum.passes.lower.tree.kernels import kernel_table
from frustum.passes.lower.tree.kernels.products import product_kernels
from frustum.passes.lower.tree.kernels.shared import SHARES, SharedKernel, shared_kernels
from frustum.runtime.machine import Machine


def depthwise(channels, **rest):
    def build(net):
        x = net.conv(net.input(2, 4, 15, 13), channels, 1)
        return net.conv(x, channels, 3, groups=channels, act="relu", **rest)

    return build


@pytest.fixture(params=SHARES, ids=str)
def shared(request, monkeypatch):
    """Both units make whatever they can."""

    def makes(layer):
        kernels = list(product_kernels(layer))
        found = [each for kernel in kernels if kernel.on_vector for each in shared_kernels(kernel)]
        yield from [each for each in found if each.shares == request.param] or kernels

    monkeypatch.setitem(kernel_table.KERNELS, (g.ConvOp, ""), makes)


@pytest.mark.parametrize("channels", [2, 7, 16, pytest.param(33, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rest", [{}, {"strides": (2, 2)}], ids=["", "strided"])
def test_values_with_channels_that_no_share_divides(channels, rest, shared):
    case = lowered_plans.case(depthwise(channels, **rest), "compute conv_1 compute conv_2")
    moved, claimed = lowered_plans.check_lowered(case, lowered_plans.machine(cores=2))
    assert moved == claimed


def test_channels_in_uneven_passes_of_a_loop(shared):
    case = lowered_plans.case(depthwise(21), "compute conv_1 for conv_1.c step 8 { compute conv_2 }")
    moved, claimed = lowered_plans.check_lowered(case, lowered_plans.machine(cores=2))
    assert moved == claimed


def test_both_units_are_as_fast_as_their_sum(monkeypatch):
    """A depthwise layer in f32, of which the vector unit makes four times as many channels as the matrix unit."""
    cycles = {}
    for allowed in (True, False):
        if not allowed:
            monkeypatch.setitem(kernel_table.KERNELS, (g.ConvOp, ""), product_kernels)
        case = lowered_plans.case(lambda net: net.conv(net.input(1, 80, 32, 32), 80, 7, groups=80), "compute conv_1")
        executable = lowered_plans.executable_of(case.module, case.plan, lowered_plans.machine())
        kinds = {type(each) for each in instructions(executable.program.body)}
        assert ({Conv, Depthwise} <= kinds) is allowed
        cycles[allowed] = Machine(executable).run({}, "timing").timeline.total_cycles
    assert cycles[True] < 0.92 * cycles[False]


def test_a_kernel_of_one_channel_is_not_shared():
    case = lowered_plans.case(lambda net: net.conv(net.input(1, 1, 9, 9), 1, 3), "compute conv_1")
    (layer,) = case.axes.layers
    assert not any(isinstance(each, SharedKernel) for each in kernel_table.kernels_of(layer))
