"""Check plans against their networks and the machine, and count what they move."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.graph import NetworkOp, networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.module import DRAM_BYTES, LINK_BYTES, SRAM_BYTES
from frustum.dialects.plan.clusters import check_clusters, distributed_in
from frustum.dialects.plan.count import count
from frustum.dialects.plan.dialect import PlanOp, tree_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.plan.text.apply import named, plans_of


@dataclass(frozen=True)
class CheckPlan(ModulePass):
    """Refuse plans that are none of their networks or need more SRAM than a cluster has.

    Before: networks and their `fplan.plan`.  After: each plan has what it moves over the DRAM port, and over links if
    it is for several clusters, and the most that a cluster holds in SRAM, counted pass by pass.
    Raises `PlanError` where it is no plan or is for more clusters than there are, `DoesNotFit` where it does not fit,
    `PassFailedException` where no network has its name or the module is for another target.
    """

    name = "frustum-plan-check"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        networks = {network.sym_name.data: network for network in networks_of(op)}
        plans = plans_of(op)
        if not plans:
            raise PassFailedException("no plan here; run frustum-plan-apply{file=FILE} first")
        for plan in plans:
            if plan.target.data != target.name:
                raise PassFailedException(
                    f"@{plan.network_name} is planned for {plan.target.data}, the module is for "
                    f"{target.name}; set that target, or plan for this one"
                )
            check(plan, named(plan.network_name, networks), target)


def check(plan: PlanOp, network: NetworkOp, target: Target) -> None:
    tree = tree_of(plan)
    counted = count(read_network(network), tree)
    check_clusters(tree, target)
    counted.check_fit(f"plan @{plan.network_name}", target.cluster.sram.capacity_bytes)
    plan.attributes[DRAM_BYTES] = IntegerAttr(counted.dram_bytes, i64)
    if any(distributed_in(tree)):
        plan.attributes[LINK_BYTES] = IntegerAttr(counted.link_bytes, i64)
    plan.attributes[SRAM_BYTES] = IntegerAttr(counted.sram_bytes, i64)
