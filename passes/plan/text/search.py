# Tests: test/passes/plan/tree/test_search.py
"""Find the plan of every network."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects.graph import networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.plan.dialect import plan_op
from frustum.passes.analysis.module import target_of
from frustum.passes.plan.text.apply import plans_of
from frustum.passes.plan.tree.trace import fitting_plan


@dataclass(frozen=True)
class SearchPlan(ModulePass):
    """Add the plan with the fewest DRAM bytes on all clusters of the target beside every network.

    Before: networks, and the target.  After: behind each stands its `fplan.plan`, in place of one that was there.
    Raises `DoesNotFit` where no plan fits the SRAM of a cluster.
    """

    name = "frustum-plan-search"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        old = {plan.network_name: plan for plan in plans_of(op)}
        for network in list(networks_of(op)):
            tree, _ = fitting_plan(
                read_network(network), target.cluster.sram.capacity_bytes, target.chip.clusters
            )
            name = network.sym_name.data
            if name in old:
                Rewriter.erase_op(old[name])
            Rewriter.insert_op(plan_op(name, target.name, tree), InsertPoint.after(network))
