"""Sums over several axes whose pieces are cut along two of them, where one does not make them small enough."""

from dataclasses import replace

import lowered_plans
import plan_nets
import pytest
from lowered_plans import case

from frustum.dialects import graph as g
from frustum.dialects.plan.tree import Loop, nodes_in
from frustum.passes.lower.tree.nest import PartWriter
from frustum.passes.plan.tree.good_plans import good_plans
from frustum.passes.plan.tree.wishes import Wishes


def flattened(net):
    """A product over the channels, rows and columns of a map."""
    x = net.layer(g.ReshapeOp(net.input(3, 6, 20, 24), (3, 6 * 20 * 24)))
    return plan_nets.product(net, x, 5)


def small_cores(nram_bytes):
    target = lowered_plans.machine()
    cluster = target.chip.cluster
    core = replace(cluster.core, nram=replace(cluster.core.nram, capacity_bytes=nram_bytes))
    return replace(target, chip=replace(target.chip, cluster=replace(cluster, core=core)))


HELD = "resident x0, w, matmul_2"


@pytest.mark.parametrize(
    ("plan", "nram_bytes"), [("compute matmul_2", 700), ("for x0.2 step 10 { compute matmul_2 }", 400)]
)
def test_two_loops_over_sums(plan, nram_bytes, monkeypatch):
    """With sums that wait for other passes, and without."""
    found, write = set[int](), PartWriter.body

    def noted(self, depth):
        found.add(len(self.inner_sums))
        write(self, depth)

    monkeypatch.setattr(PartWriter, "body", noted)
    moved, claimed = lowered_plans.check_lowered(case(flattened, f"{HELD} {plan}"), small_cores(nram_bytes))
    assert moved == claimed and 2 in found


def test_passes_over_inner_sums_leave_no_rest():
    """An operand that SRAM does not hold, of 26 rows and columns: of 16 columns at a time the last would be fewer."""

    def large(net):
        x = net.layer(g.ReshapeOp(net.input(1, 8, 26, 26), (1, 8 * 26 * 26)))
        return plan_nets.product(net, x, 4)

    target, found = lowered_plans.machine(sram_bytes=12 << 10), case(large)
    plans = good_plans(found.axes, 12 << 10, 1, Wishes("time", target))
    for found.plan, _ in plans:
        loops = [node for node in nodes_in(found.plan) if isinstance(node, Loop)]
        assert all(26 % loop.edges[1] == 0 for loop in loops if loop.axis == "x0.3")
        moved, claimed = lowered_plans.check_lowered(found, target)
        assert moved == claimed
    assert any(isinstance(node, Loop) for plan, _ in plans for node in nodes_in(plan))
