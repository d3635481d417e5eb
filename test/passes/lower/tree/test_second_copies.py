"""Results that passes of a loop leave: with room for two copies they go to DRAM a pass behind."""

from __future__ import annotations

import itertools
from dataclasses import replace

import lowered_plans
import pytest

from frustum.dialects import graph as g
from frustum.dialects.isa.program import Copy
from frustum.dialects.plan.count import count
from frustum.runtime.machine import Machine


def convolutions(net):
    x = net.conv(net.input(1, 6, 21, 13), 10, 3, act="relu")
    return net.unary("sigmoid", net.conv(x, 7, 3))


def products(net):
    """A sum over channels in a loop, in a result that stays around it."""
    w = net.weight(40, 24, scale=0.2)
    return net.unary("relu", net.layer(g.MatmulOp(net.input(30, 40), w, net.weight(24))))


ROLLING = "resident w, w.1, w.2, w.3 for conv_2.y step 4 rolling { resident x0 compute conv_1, conv_2 }"
SUMS = "for x0.0 step 7 { resident matmul_1 for x0.1 step 16 { compute matmul_1 } }"
PLANS = {
    "a compute": (convolutions, "compute conv_1 for conv_2.y step 4 { compute conv_2 } compute unary_3"),
    "rolling": (convolutions, f"{ROLLING} compute unary_3"),
    "resident": (products, f"{SUMS} compute unary_2"),
    "read in the loop": (products, "for x0.0 step 7 { { compute matmul_1 } { compute unary_2 } }"),
    "uneven": (convolutions, "for conv_1.y ranges [0, 9, 13, 21] { compute conv_1 } compute conv_2, unary_3"),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("room", ["much", "little"])
def test_values_and_bytes_with_and_without_second_copies(name, room):
    build, text = PLANS[name]
    case = lowered_plans.case(build, text)
    need = count(case.axes, case.plan).sram_bytes
    size = 1 << 18 if room == "much" else need // 64 * 64 + 1024
    moved, claimed = lowered_plans.check_lowered(case, lowered_plans.machine(sram_bytes=size))
    assert moved == claimed


def test_passes_overlap_where_there_is_room():
    """Rows of a product without slices: one pass stores while the next one is made."""
    case = lowered_plans.case(products, PLANS["resident"][1])
    need = count(case.axes, case.plan).sram_bytes
    cycles = [
        Machine(lowered_plans.executable_of(case.module, case.plan, lowered_plans.machine(sram_bytes=size)))
        .run({}, "timing").timeline.total_cycles
        for size in (1 << 18, need // 64 * 64 + 1024)
    ]  # fmt: skip
    assert cycles[0] < cycles[1]


def wide(net):
    """Weights of which slices of 16 columns are runs of 64 bytes."""
    return net.layer(g.MatmulOp(net.input(128, 512), net.weight(512, 1024, scale=0.1), net.weight(1024)))


def test_second_copies_leave_room_for_slices_with_long_runs():
    """On a machine whose shortest run has 256 bytes, a second copy of x would make slices a half or a quarter as wide,
    and the port twice or four times as slow."""
    case = lowered_plans.case(wide, "for x0.0 step 64 { resident x0 compute matmul_1 }")
    dram = replace(lowered_plans.machine().chip.dram, minimum_run_bytes=256)

    def run(kib):
        target = lowered_plans.machine(sram_bytes=kib << 10)
        target = replace(target, chip=replace(target.chip, dram=dram))
        executable = lowered_plans.executable_of(case.module, case.plan, target)
        return Machine(executable).run({}, "timing").timeline.total_cycles

    cycles = [run(kib) for kib in (320, 352, 416, 448, 1024)]
    assert all(more <= 1.01 * less for less, more in itertools.pairwise(cycles))
    assert cycles[2] > 1.3 * cycles[3] and cycles[3] < 1.01 * cycles[4]


def test_the_next_slice_is_loaded_before_the_last_result_is_stored():
    case = lowered_plans.case(lambda net: net.unary("tanh", net.input(64, 1024)), "compute unary_1")
    target = lowered_plans.machine(sram_bytes=48 * 1024)
    lowered_plans.check_lowered(case, target)
    own = Machine(lowered_plans.executable_of(case.module, case.plan, target))
    line = own.run({}, "timing").timeline
    engine = list(map(str, line.engines)).index("cluster0.gdma")
    mine = line.queues.engine == engine
    kinds = [line.expanded.instructions[static] for static in line.queues.static[mine]]
    ways = [each.dst_view.memory for each in kinds if isinstance(each, Copy)]
    assert ways[:4] == ["sram", "sram", "sram", "dram"] and ways[-2:] == ["dram", "dram"]
