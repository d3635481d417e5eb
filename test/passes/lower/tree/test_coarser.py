"""Steps that are parts of a position of some layer are as long as a whole one, where there is room."""

import lowered_plans
import plan_nets
import pytest
from lowered_plans import case

from frustum.dialects.plan.count import count
from frustum.dialects.plan.tree import Loop, nodes_in
from frustum.passes.lower.tree.coarser import coarser_plan

LOOP = "for conv_6.y step 1 rolling { resident x0 compute conv_1, pool_2, conv_3, resize_4, conv_6 }"
WEIGHTS = "resident w, w.1, w.2, w.3, w.4, w.5"


def loop_of(plan):
    (found,) = (node for node in nodes_in(plan) if isinstance(node, Loop))
    return found


def test_passes_are_merged_where_there_is_room():
    found = case(plan_nets.unet, f"{WEIGHTS} {LOOP}")
    counted, loop = count(found.axes, found.plan), loop_of(found.plan)
    plan, own = coarser_plan(found.axes, found.plan, {id(loop): 2}, counted, 1 << 20)
    assert loop_of(plan).edges == tuple(range(0, 17, 2))
    assert own.dram_bytes == counted.dram_bytes
    assert own.sram_bytes > counted.sram_bytes
    assert coarser_plan(found.axes, found.plan, {id(loop): 2}, counted, counted.sram_bytes) is None
    assert coarser_plan(found.axes, found.plan, {}, counted, 1 << 20) is None


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("is_large", [True, False])
def test_both_ways_run_as_they_are_counted(is_large):
    found = case(plan_nets.unet, f"{WEIGHTS} {LOOP}")
    room = 1 << 19 if is_large else count(found.axes, found.plan).sram_bytes // 64 * 64 + 128
    target = lowered_plans.machine(sram_bytes=room)
    moved, claimed = lowered_plans.check_lowered(found, target)
    assert moved == claimed
    size = sum(lowered_plans.executable_of(found.module, found.plan, target).code.page_bytes)
    assert (size < SMALLEST) == is_large


SMALLEST = 6500
"""Bytes of code, of two passes written out. 2026-11-28."""
