"""Plans of small networks as programs: values are the network's, and bytes those that the plan is counted to move."""

import lowered_plans
import numpy as np
import plan_nets
import pytest

from frustum.dialects import graph as g
from frustum.dialects.isa.program import Copy
from frustum.dialects.plan.count import count
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.runtime.machine import Machine


def two_convs(net):
    return net.conv(net.conv(net.input(1, 3, 12, 10), 8), 6, pads=(1, 1, 1, 1))


def perceptron(net):
    hidden = plan_nets.product(net, net.input(12, 16), 40, "relu")
    return plan_nets.product(net, hidden, 16)


WEIGHTS = "resident w, w.1, w.2, w.3"
PLANS = {
    "rows roll": (two_convs, f"{WEIGHTS} for conv_2.y step 3 rolling {{ resident x0 compute conv_1, conv_2 }}"),
    "rows are made again": (two_convs, "for conv_2.y step 3 recomputed { compute conv_1, conv_2 }"),
    "rows and columns roll": (
        two_convs,
        f"{WEIGHTS} for conv_2.y step 2 rolling {{"
        " for conv_2.x step 3 rolling { resident x0 compute conv_1, conv_2 } }",
    ),
    "a map stays": (two_convs, "resident conv_1 { compute conv_1 } compute conv_2"),
    "a part of a map stays": (two_convs, "resident conv_1 [conv_1.c 0:3] { compute conv_1 } compute conv_2"),
    "a part from the middle stays": (
        two_convs,
        "resident x0 [x0.2 5:7], conv_1 [conv_1.y 3:5] { compute conv_1 } compute conv_2",
    ),
    "ranges of several lengths": (
        two_convs,
        "resident w, w.1 for conv_2.y ranges [0, 1, 5, 9, 12] recomputed"
        " { resident x0, conv_1 { compute conv_1 } compute conv_2 }",
    ),
    "steps out of proportion": (
        lambda net: (net.unary("relu", x := net.input(1, 2, 7, 4)), net.pool("max", x)),
        "for x0.2 step 2 recomputed { compute unary_1, pool_2 }",
    ),
    "a loop cuts a part": (
        two_convs,
        "resident w, w.1 for conv_1.y step 4 { resident x0 [x0.2 0:7], conv_1 [conv_1.y 0:6] { compute conv_1 } }"
        " compute conv_2",
    ),
    "sums wait": (perceptron, "resident matmul_2 for matmul_1.c step 16 { compute matmul_1, matmul_2 }"),
    "loops inside loops": (
        perceptron,
        "for x0.0 step 5 { resident matmul_2 for matmul_1.c step 8 { compute matmul_1, matmul_2 } }",
    ),
}  # fmt: skip


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("cores", [1, 4])
def test_a_plan_is_run_as_it_is_counted(name, cores):
    build, text = PLANS[name]
    found = lowered_plans.case(build, text)
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine(cores=cores))
    shared = 192 if lowered_plans.reads_alike(found) else 0  # rows that the layers of a compute read are loaded once
    assert moved == claimed - shared


def test_a_part_from_the_middle_of_a_result_is_stored_once():
    """It is counted with the whole, and again when its residency ends."""
    found = lowered_plans.case(two_convs, "compute conv_1 resident conv_2 [conv_2.y 3:5] compute conv_2")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed - 2 * 6 * 10 * 4


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kib", [16, 64])
@pytest.mark.parametrize("build", [plan_nets.mlp, plan_nets.conv_stack, plan_nets.residual, plan_nets.depthwise])
def test_found_plans_are_run_as_they_are_counted(build, kib):
    target = lowered_plans.machine(sram_bytes=kib * 1024)
    found = lowered_plans.case(build)
    found.plan, _ = fitting_plan(found.axes, target.cluster.sram.capacity_bytes)
    moved, claimed = lowered_plans.check_lowered(found, target)
    assert moved == claimed


def long_product(net):
    return plan_nets.product(net, net.input(16, 512), 32)


def copies_out(found, target):
    """How often each core brings a part of a result to SRAM."""
    machine = Machine(lowered_plans.executable_of(found.module, found.plan, target))
    timeline = machine.run({}, mode="timing").timeline
    numbers = [
        k for k, each in enumerate(machine.expanded.instructions)
        if isinstance(each, Copy) and each.engine == "mvdma" and each.dst_view.memory == "sram"
    ]  # fmt: skip
    return int(np.isin(timeline.queues.static, numbers).sum()) / target.cluster.cores


def test_sums_stay_in_the_cores_over_slices_of_what_is_summed():
    """Weights of 64 KiB and an input of 32 KiB, streamed through 32 KiB of SRAM along what is summed: of the result,
    which one piece of each core has, nothing goes back to SRAM before the end."""
    target = lowered_plans.machine(sram_bytes=32 * 1024)
    found = lowered_plans.case(long_product, "resident matmul_1 compute matmul_1")
    moved, claimed = lowered_plans.check_lowered(found, target)
    assert moved == claimed
    assert copies_out(found, target) == 1


def test_sums_of_loops_around_and_of_slices_go_on_together():
    """What is summed is cut by a loop of the plan, and in its passes by slices, with an end that is clipped."""
    target = lowered_plans.machine(sram_bytes=20 * 1024)
    found = lowered_plans.case(long_product, "resident matmul_1 for x0.1 step 200 { compute matmul_1 }")
    moved, claimed = lowered_plans.check_lowered(found, target)
    assert moved == claimed


def test_what_is_not_lowered_is_named():
    found = lowered_plans.case(two_convs, "for conv_2.y ranges [0, 1, 12] rolling { compute conv_1, conv_2 }")
    with pytest.raises(NotLowered, match=r"for conv_2\.y: rows that roll over ranges that are not all of one length"):
        lowered_plans.check_lowered(found, lowered_plans.machine())
    found = lowered_plans.case(perceptron, "for matmul_1.c step 16 { compute matmul_1, matmul_2 }")
    with pytest.raises(NotLowered, match="matmul_2: sums that wait in DRAM"):
        lowered_plans.check_lowered(found, lowered_plans.machine())


def normalised_rows(net):
    x = net.conv(net.input(1, 3, 12, 40), 6, pads=(1, 1, 1, 1))
    norm = g.NormaliseOp(x, None, None, axes=(1,), epsilon=1e-3)
    return net.conv(net.unary("silu", net.layer(norm)), 4, pads=(1, 1, 1, 1))


def test_what_a_rolling_result_replaces_lies_in_its_ring():
    """With a buffer for the norm beside the ring of what takes its place it would take 19,200 bytes."""
    layers = "normalise_2.sums, normalise_2, unary_3, conv_4"
    text = f"resident conv_1 {{ compute conv_1 }} for conv_4.y step 3 rolling {{ compute {layers} }}"
    found = lowered_plans.case(normalised_rows, text)
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine(sram_bytes=18 * 1024))
    assert moved == claimed


def halves(net):
    """Two products in a loop over the hidden channels, of which the first keeps its weights."""
    hidden = plan_nets.product(net, net.input(64, 16), 128, "relu")
    return net.unary("relu", plan_nets.product(net, net.unary("relu", hidden), 64))


def test_what_comes_a_pass_ahead_fits_beside_all_of_the_body():
    """Two copies of the first weights are there while the second product has its sums, too."""
    body = "{ resident w, w.1 compute matmul_1 } { resident w.2, w.3 compute unary_2, matmul_3 }"
    text = f"resident x0, matmul_3 for matmul_1.c step 64 {{ resident matmul_1 {body} }} compute unary_4"
    found = lowered_plans.case(halves, text)
    room = count(found.axes, found.plan).sram_bytes
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine(sram_bytes=room // 64 * 64 + 512))
    assert moved == claimed


def strided_and_pooled(net):
    x = net.conv(net.input(1, 1, 200, 200), 32, 5, strides=(2, 2), pads=(2, 2, 2, 2))
    return net.pool("max", x, 2, 2)


def test_windows_of_every_second_row_are_a_piece_of_their_own():
    """Rows of the convolution are pairs, as its pool reads them: a piece of one row of several pairs is none, since its
    windows would be further apart than the stride."""
    found = lowered_plans.case(strided_and_pooled, "for pool_2.y step 3 of 50 rolling { compute conv_1, pool_2 }")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved <= claimed * 1.2, "what is streamed comes once more for each pass before the first"
