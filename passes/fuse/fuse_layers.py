"""Group layers into units: each layer its own (`none`), or chains as long as fusing saves DRAM bytes (`forward`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp, YieldOp
from frustum.passes.analysis.layer import BUILDERS, MOVES
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import UnitLayers, layers_of
from frustum.passes.tile.plan_unit import Budget, UnitPlan, plan_unit

SLOWER_ALLOWED = 1.05  # a fused chain may cost this much more modelled cycles if it saves bytes
SPATIAL = (g.ConvOp, g.PoolOp, g.UnaryOp, g.BinaryOp, g.LrnOp, g.ResizeOp, g.QuantizeOp, g.DequantizeOp)


@dataclass(frozen=True)
class FuseLayers(ModulePass):
    """Put every layer into a unit.

    Before: a network of graph operations.  After: `funit.unit` operations, reshapes, and nothing else.
    With `forward`, a unit starts at the first layer not yet fused and takes in the next one of the chain as long as
    the model says that the two together move fewer DRAM bytes and take no more cycles (tfu.md, S1 and rule 1).
    """

    name = "frustum-fuse-layers"
    policy: Literal["none", "forward"] = "forward"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for network in [o for o in op.walk() if isinstance(o, g.NetworkOp)]:
            fuse_network(network, target, self.policy == "forward")


def fuse_network(network: g.NetworkOp, target: Target, is_chain: bool) -> None:
    block = network.body.block
    layers = [op for op in block.ops if type(op) in BUILDERS or type(op) in MOVES]
    fused: set[Operation] = set()
    planner = Planner(target)
    number = 0
    for op in layers:
        if op in fused:
            continue
        chain = [op]
        stopped = "policy none" if not is_chain else "moves data only"
        if is_chain and type(op) in BUILDERS:
            chain, stopped = planner.grow(op, fused)
        fused.update(chain)
        wrap(chain, f"u{number}", stopped)
        number += 1
    for weight in [op for op in block.ops if isinstance(op, g.WeightOp)]:
        if not weight.result.uses:
            weight.detach()
            weight.erase()


class Planner:
    """Modelled costs of chains, each computed once."""

    def __init__(self, target: Target):
        self.target = target
        self.budget = Budget(target.cluster.sram.capacity_bytes)

    def plan(self, chain: Sequence[Operation]) -> UnitPlan | None:
        unit = layers_of(list(chain))
        return plan_unit(unit, self.target, self.budget)

    def grow(self, first: Operation, fused: set[Operation]) -> tuple[list[Operation], str]:
        """The chain from `first` on, and why it ended."""
        chain = [first]
        current = self.plan(chain)
        while current is not None:
            following, reason = next_in_chain(chain, fused)
            if following is None:
                return chain, reason
            alone, both = self.plan([following]), self.plan([*chain, following])
            if alone is None or both is None:
                return chain, f"{name_of(following)} does not fit SRAM beside the unit"
            separate = current.dram_bytes + alone.dram_bytes
            if both.dram_bytes >= separate:
                return chain, f"with {name_of(following)}: {both.dram_bytes} DRAM bytes, apart {separate}"
            if both.cycles > SLOWER_ALLOWED * (current.cycles + alone.cycles):
                return chain, (
                    f"with {name_of(following)}: {both.cycles:.0f} cycles, "
                    f"apart {current.cycles + alone.cycles:.0f}"
                )
            chain.append(following)
            current = both
        return chain, "one layer"


def name_of(op: Operation) -> str:
    return op.name.removeprefix("fgraph.")


def next_in_chain(chain: Sequence[Operation], fused: set[Operation]) -> tuple[Operation | None, str]:
    """The one layer that uses the chain's result, if a unit can hold it."""
    result = chain[-1].results[0]
    users = {use.operation for use in result.uses}
    if len(users) != 1:
        return None, f"its result has {len(users)} users" if users else "its result has no user"
    (user,) = users
    if not isinstance(user, SPATIAL):
        return None, f"{name_of(user)} follows"
    if user in fused:
        return None, "the next layer is fused already"
    if not is_spatial(chain[-1]) or not joins(layers_of([*chain, user]), result):
        return None, f"{name_of(user)} sees the map in another form"
    return user, ""


def is_spatial(op: Operation) -> bool:
    return isinstance(op, SPATIAL)


def joins(unit: UnitLayers, result: SSAValue) -> bool:
    """The last layer reads the result as the layer before wrote it, and never as weights or whole planes."""
    layer = unit.layers[-1]
    op = unit.ops[-1]
    produced = unit.layers[-2]
    reads = [m for m in layer.maps if op.operands[m.index] == result]
    if not reads or len(reads) != sum(o == result for o in op.operands):
        return False
    return all(m.dims == produced.out_dims and m.view == produced.out_view for m in reads)


def wrap(chain: Sequence[Operation], unit_name: str, stopped: str) -> UnitOp:
    """Move a chain into a unit in the place of its last operation; weights are copied in."""
    inside = {op.results[0] for op in chain}
    inputs: dict[SSAValue, None] = {}
    weights: dict[SSAValue, g.WeightOp] = {}
    for operand in (o for op in chain for o in op.operands):
        if isinstance(operand.owner, g.WeightOp):
            weights[operand] = operand.owner
        elif operand not in inside:
            inputs[operand] = None
    last = chain[-1]
    unit = UnitOp(unit_name, list(inputs), [last.results[0].type], stopped_by=stopped)
    unit.location = last.location if len(chain) == 1 else chain[0].location
    block = last.parent
    assert isinstance(block, Block)
    block.insert_op_before(unit, last)
    body = unit.body.block
    replacement: dict[SSAValue, SSAValue] = dict(zip(inputs, body.args, strict=True))
    for value, weight in weights.items():
        copy = weight.clone()
        body.add_op(copy)
        replacement[value] = copy.result
    last.results[0].replace_all_uses_with(unit.results[0])
    for op in chain:
        op.detach()
        body.add_op(op)
        for i, operand in enumerate(op.operands):
            if operand in replacement:
                op.operands[i] = replacement[operand]
    body.add_op(YieldOp([last.results[0]]))
    return unit
