"""Put a plan that somebody wrote beside its network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.graph import NetworkOp, networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.plan.check import PlanError, check_plan
from frustum.dialects.plan.dialect import PlanOp, plan_op
from frustum.dialects.plan.parse import extents_of, read_plan


@dataclass(frozen=True)
class ApplyPlan(ModulePass):
    """Add the plan in a file, in place of one for the same network.

    Before: networks whose operations are those that the plan is for.  After: behind the network of the plan's name
    stands `fplan.plan`, which is a plan of it.  In the file `step N` needs no `of EXTENT`.
    Raises `PlanError` with file, line and column of what is wrong.
    """

    name = "frustum-plan-apply"
    file: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        text = self.read()
        networks = {network.sym_name.data: network for network in networks_of(op)}
        read: dict[str, AxisNetwork] = {}

        def extents(name: str) -> dict[str, int]:
            read[name] = read_network(named(name, networks))
            return extents_of(read[name])

        plan = read_plan(text, extents, self.file)
        try:
            check_plan(read[plan.name], plan.node)
        except PlanError as error:
            raise plan.located(error) from None
        for old in plans_of(op):
            if old.network_name == plan.name:
                Rewriter.erase_op(old)
        Rewriter.insert_op(plan_op(plan.name, plan.target, plan.node), InsertPoint.after(networks[plan.name]))

    def read(self) -> str:
        try:
            return Path(self.file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PassFailedException(f"{self.file}: cannot be read: {reason}") from error


def plans_of(module: ModuleOp) -> list[PlanOp]:
    return [op for op in module.walk() if isinstance(op, PlanOp)]


def named(name: str, networks: dict[str, NetworkOp]) -> NetworkOp:
    """The network of that name; raises `PlanError` where there is none."""
    if name not in networks:
        found = ", ".join(networks) or "none"
        raise PlanError(
            f"no network is called @{name}{did_you_mean(name, list(networks))} (networks here: {found})"
        )
    return networks[name]
