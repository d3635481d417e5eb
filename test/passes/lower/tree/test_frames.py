"""Layers with one loop over slices: what they all read is loaded once, and what they make of one output, between each
other's rows and columns, leaves together in long runs."""

from dataclasses import replace

import lowered_plans
import plan_nets
import pytest

from frustum.dialects import graph as g
from frustum.dialects.isa.program import Copy, instructions
from frustum.runtime.machine import Machine

WEIGHTS = "resident w, w.1, w.2, w.3"
FOUR = "conv_1, conv_2, conv_3, conv_4"
SPLIT = ("conv_1, conv_2", "conv_3, conv_4")


def phases(rows=8, columns=12, taps=(1, 1, 1, 1)):
    """Four convolutions of one map that make every second row and column of an output each."""

    def build(net):
        x = net.input(1, 4, rows, columns)
        made = [net.conv(x, 3, 1 + t, pads=(0, 0, t, t)) for t in taps]
        return net.layer(g.InterleaveOp(made, (2, 2)))

    return build


def odd(net):
    """The same of an output whose last row and column are of the first phases."""
    x = net.input(1, 4, 9, 7)
    made = [net.conv(x, 3, pads=(1, 1, 1 - down, 1 - across)) for down in (0, 1) for across in (0, 1)]
    return net.layer(g.InterleaveOp(made, (2, 2)))


def beside(net):
    """Two products that lie side by side in rows of an output."""
    x = net.input(24, 16)
    return net.layer(g.ConcatOp([plan_nets.product(net, x, 5), plan_nets.product(net, x, 6)], 1))


def volumes(net):
    """Phases of planes side by side, dealt to rows and columns: the second one's begin behind those of the first."""
    x = net.input(1, 4, 6, 5)
    side = net.layer(g.ConcatOp([net.conv(x, 4, 1), net.conv(x, 4, 1)], 1))
    return net.layer(g.DepthToSpaceOp(side, (2, 1), 4, (1, 4, 12, 5)))


def copies(found, target):
    """Copies from SRAM to DRAM."""
    own = Machine(lowered_plans.executable_of(found.module, found.plan, target))
    return [
        each for each in own.expanded.instructions
        if isinstance(each, Copy) and each.engine == "gdma" and each.dst_view.memory == "dram"
    ]  # fmt: skip


CASES = {
    "at once": (phases(), f"{WEIGHTS} resident x0 compute {FOUR}"),
    "rows in passes": (phases(), f"{WEIGHTS} for conv_4.y step 2 {{ resident x0 compute {FOUR} }}"),
    "rows roll": (phases(taps=(0, 1, 1, 2)), f"{WEIGHTS} for conv_4.y step 2 rolling {{ resident x0 compute {FOUR} }}"),
    "a last pass that is shorter": (phases(), f"{WEIGHTS} for conv_4.y step 3 {{ resident x0 compute {FOUR} }}"),
    "a last row of one phase": (odd, f"{WEIGHTS} resident x0 compute {FOUR}"),
    "side by side": (beside, "compute matmul_1, matmul_2"),
    "behind each other": (volumes, "resident x0, w, w.1 compute conv_1, conv_2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cores", [1, 4])
def test_parts_of_an_output_leave_together(name, cores):
    build, text = CASES[name]
    found, target = lowered_plans.case(build, text), lowered_plans.machine(cores=cores)
    moved, counted = lowered_plans.check_lowered(found, target)
    assert moved == counted - (24 * 16 * 4 if name == "side by side" else 0)
    assert all(min(s for s in each.dst_view.strides if s) == 4 for each in copies(found, target))


def test_parts_of_an_output_leave_by_themselves_where_some_are_made_elsewhere():
    text = f"{WEIGHTS} resident x0 {{ compute {SPLIT[0]} }} compute {SPLIT[1]}"
    found, target = lowered_plans.case(phases(), text), lowered_plans.machine()
    moved, counted = lowered_plans.check_lowered(found, target)
    assert moved == counted
    found = copies(found, target)
    assert {min(s for s in each.dst_view.strides if s) for each in found} == {8}


def test_layers_that_stream_a_tensor_load_it_once():
    def build(net):
        x = net.input(64, 32)
        return plan_nets.product(net, x, 8), plan_nets.product(net, x, 16)

    found = lowered_plans.case(build, "resident w, w.1, w.2, w.3 compute matmul_1, matmul_2")
    moved, counted = lowered_plans.check_lowered(found, lowered_plans.machine(sram_bytes=8192))
    assert moved == counted - 64 * 32 * 4


def test_slices_are_as_wide_as_fit():
    """Of 768 channels 32 at a time have room, whose runs are as long as the port's least: neither a quarter of them,
    nor half of that and so on, but for 16."""
    target = lowered_plans.machine(sram_bytes=26 << 10)
    target = replace(target, chip=replace(target.chip, dram=replace(target.chip.dram, minimum_run_bytes=128)))
    case = lowered_plans.case(lambda net: plan_nets.product(net, net.input(8, 64), 768), "compute matmul_1")
    executable = lowered_plans.executable_of(case.module, case.plan, target)
    copies = (each for each in instructions(executable.program.body) if isinstance(each, Copy))
    assert any(each.box.extent[2:] == (64, 32) for each in copies if each.engine == "gdma")


@pytest.mark.parametrize(("kib", "columns"), [(256, 256), (128, 208)])
def test_slices_fill_the_channels_of_all_cores(kib, columns):
    """Four cores with 64 channels each: of 3072 columns 432 have room, and 256 take fewer cycles.  Where fewer than 256
    have room, the widest multiple of 16 does."""
    target = lowered_plans.machine("default", kib << 10, clusters=1)
    case = lowered_plans.case(lambda net: plan_nets.product(net, net.input(8, 64), 3072), "compute matmul_1")
    executable = lowered_plans.executable_of(case.module, case.plan, target)
    copies = (each for each in instructions(executable.program.body) if isinstance(each, Copy))
    boxes = {each.box.extent[2:] for each in copies if each.engine == "gdma"}
    assert {width for rows, width in boxes if rows == 64} == {columns}
