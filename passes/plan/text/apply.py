"""Put plans that somebody wrote beside their networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.graph import networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.module import TARGET
from frustum.dialects.plan.check import PlanError, check_plan
from frustum.dialects.plan.dialect import PlanOp, plan_op
from frustum.dialects.plan.parse import PlanText, extents_of, read_plans
from frustum.dialects.plan.tree import Sequence
from frustum.passes.analysis.module import target_of

T = TypeVar("T")


@dataclass(frozen=True)
class ApplyPlan(ModulePass):
    """Add the plans in a file, each in place of one for the same network.

    Before: networks whose operations are those that the plans are for.  After: behind every network that a plan names
    stands `fplan.plan`, which is a plan of it; behind one without layers, if none is for it, a plan without any.  In
    the file `step N` needs no `of EXTENT`.  Plans for other networks than those of the module are left alone, if one is
    for one of these: a model in pieces has a file for all of them.
    Raises `PlanError` with file, line and column of what is wrong.
    """

    name = "frustum-plan-apply"
    file: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        networks = {network.sym_name.data: network for network in networks_of(op)}
        axes = {name: read_network(network) for name, network in networks.items()}
        plans = [plan for plan in self.read(axes) if plan.name in networks]
        target = target_of(op).name if TARGET in op.attributes else ""
        for plan in plans:
            if target and plan.target != target:
                own = plan.target
                raise PlanError(f"{self.file}: error: it is planned for {own}: say --target {own}, or plan again")
            try:
                check_plan(axes[plan.name], plan.node)
            except PlanError as error:
                raise plan.located(error) from None
        given = {plan.name: plan_op(plan.name, plan.target, plan.node) for plan in plans}
        for name, network in axes.items():
            if name not in given and not network.layers:
                given[name] = plan_op(name, target, Sequence(()))
        for old in plans_of(op):
            if old.network_name in given:
                Rewriter.erase_op(old)
        for name, new in given.items():
            Rewriter.insert_op(new, InsertPoint.after(networks[name]))

    def read(self, networks: Mapping[str, AxisNetwork]) -> list[PlanText]:
        """The plans in the file; raises `PlanError` where two are for one network, or one is needed and none is for a
        network here."""
        try:
            text = Path(self.file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PlanError(f"{self.file}: error: cannot be read: {reason}") from error
        plans = read_plans(text, lambda name: extents_of(networks[name]) if name in networks else None, self.file)
        names = [plan.name for plan in plans]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"{self.file}: error: two plans are of @{name}")
        if not networks.keys() & {*names} and any(network.layers for network in networks.values()):
            named(names[0], networks)
        return plans


def plans_of(module: ModuleOp) -> list[PlanOp]:
    return [op for op in module.walk() if isinstance(op, PlanOp)]


def named(name: str, networks: Mapping[str, T]) -> T:
    """The network of that name; raises `PlanError` where there is none."""
    if name not in networks:
        found = ", ".join(networks) or "none"
        raise PlanError(
            f"no network is called @{name}{did_you_mean(name, list(networks))} (networks here: {found})"
        )
    return networks[name]
