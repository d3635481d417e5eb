# Tests: test/passes/plan/tree/test_search.py
"""Find the plan of every network."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects.choices import Carry, Optimise
from frustum.dialects.graph import networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.plan.clusters import linked_clusters
from frustum.dialects.plan.dialect import plan_op
from frustum.passes.analysis.module import target_of
from frustum.passes.plan.text.apply import plans_of
from frustum.passes.plan.text.cuts import cuts_after
from frustum.passes.plan.tree.good_plans import good_plans
from frustum.passes.plan.tree.wishes import GivenCuts, Most, Wishes

WORK_PER_LAYER = 200
"""A quick search may do so much for each layer: as long as another planner takes. 2026-11-30."""


@dataclass(frozen=True)
class SearchPlan(ModulePass):
    """Add the plan with the fewest DRAM bytes on all linked clusters of the target beside every network.

    Before: networks, and the target.  After: behind each stands its `fplan.plan`, in place of one that was there.
    `optimise`: what there is least of instead, `time` or `energy`.  `carry`: the type of sums that wait between passes.
    `sram`: the share of a cluster's SRAM that plans may use.
    `plans`: at most so many stand behind each network where several may be the best, in the order in which they are
    judged so; a program is made of one.  `work`: the narrowest search that finds any plan is enough, of layers in
    the order of the file, and ends after so many units tried, with a plan or without; 0: the best is looked for.
    `most_bytes` and `most_cycles`, both or none (0): plans that move or take more are left out, as counted here.
    `cuts` names the layers after which units of the outermost sequence end (`"Conv_3,MaxPool_5"`), of all networks; an
    empty text makes each network one unit.
    Raises `DoesNotFit` where no plan fits the SRAM of a cluster, `PlanError` where a cut is after no layer, `WishError`
    where energy is asked for and bytes take none.
    """

    name = "frustum-plan-search"
    optimise: Optimise = "bytes"
    carry: Carry = "auto"
    cuts: str | None = None
    sram: float = 1.0
    plans: int = 1
    work: int = 0
    most_bytes: int = 0
    most_cycles: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for old in plans_of(op):
            Rewriter.erase_op(old)
        networks = list(networks_of(op))
        read = [read_network(network) for network in networks]
        cuts: list[GivenCuts | None] = [None if self.cuts is None else GivenCuts(frozenset()) for _ in read]
        if self.cuts:
            cuts = list(cuts_after(read, self.cuts))
        most = Most(self.most_bytes, self.most_cycles) if self.most_bytes else None
        for network, axes, own in zip(networks, read, cuts, strict=True):
            work = self.work and max(self.work, WORK_PER_LAYER * len(axes.layers))
            wishes = Wishes(self.optimise, target, self.carry, own, work=work, most=most)
            room = int(self.sram * target.cluster.sram.capacity_bytes)
            found = good_plans(axes, room, linked_clusters(target), wishes)
            ops = [plan_op(network.sym_name.data, target.name, tree) for tree, _ in found[: self.plans]]
            Rewriter.insert_op(ops, InsertPoint.after(network))
