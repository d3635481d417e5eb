"""Units of a plan as a tree that a policy or a list of cuts gives, in place of those that the search finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation

from frustum.dialects import graph as g
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.plan.check import operands_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import kind_name, node_name
from frustum.passes.fuse.grow import grow_units
from frustum.passes.fuse.policy import NONE, OPTIMAL, PolicyError, parse_policy
from frustum.passes.plan.text.cuts import cuts_after, source_of
from frustum.passes.plan.tree.wishes import GivenCuts


@dataclass(frozen=True)
class AskedUnits:
    """What says where units end: a policy with its rules and thresholds, and layers after which to cut."""

    policy: str = OPTIMAL
    rules: str | None = None
    thresholds: str | None = None
    cuts: str | None = None

    def of(self, networks: Sequence[AxisNetwork], target: Target) -> list[tuple[AxisNetwork, GivenCuts | None]]:
        """Each network with the cuts, its layers in an order in which those of a unit follow each other.

        Units of a policy hand everything on through DRAM, as where each is compiled alone; those between given cuts are
        planned together.  PolicyError where units of a policy cannot follow each other, PlanError for names that no
        layer has.
        """
        if self.cuts is not None:
            return list(zip(networks, cuts_after(networks, self.cuts), strict=True))
        if self.policy == OPTIMAL:
            return [(network, None) for network in networks]
        return [self._grown(network, target) for network in networks]

    def _grown(self, network: AxisNetwork, target: Target) -> tuple[AxisNetwork, GivenCuts]:
        policy = parse_policy(self.policy, self.rules, self.thresholds)
        ops = [source_of(layer) for layer in network.layers]
        block = ops[0].parent
        assert isinstance(block, Block), "a layer is of a network"
        if self.policy == NONE:
            return _of_units(network, block, [])
        of = block.parent_op()
        assert isinstance(of, g.NetworkOp), "a layer is of a network"
        return _of_units(network, block, [unit.ops for unit in grow_units(of, target, policy)])


def _of_units(
    network: AxisNetwork, block: Block, units: Iterable[Sequence[Operation]]
) -> tuple[AxisNetwork, GivenCuts]:  # fmt: skip
    """With the layers in the order in which units make their results; operations of none are units by themselves."""
    number = {op: k for k, op in enumerate(block.ops)}
    last = dict(number)
    for unit in units:
        last |= dict.fromkeys(unit, max(number[op] for op in unit))
    layers = sorted(network.layers, key=lambda layer: last[source_of(layer)])
    _check_order(network, layers)
    ends = {last[source_of(layer)]: layer.name for layer in layers}
    ordered = network if layers == network.layers else AxisNetwork(network.name, layers, network.tensors)
    return ordered, GivenCuts(frozenset(ends.values()), is_crossed=False)


def _check_order(network: AxisNetwork, layers: Iterable[Layer]) -> None:
    """PolicyError where a layer comes before one that it reads."""
    made = {*network.tensors} - {layer.result for layer in network.layers}
    for layer in layers:
        for tensor in operands_of(layer):
            if tensor not in made:
                reader, maker = (source_of(each) for each in (layer, network.maker[tensor]))
                raise PolicyError(
                    f"network @{network.name}: the unit of {_called(reader)} reads '{tensor.name}', which a later unit"
                    f" makes, that of {_called(maker)}: its layers cannot follow each other; cut with --cuts"
                )
        made.add(layer.result)


def _called(op: Operation) -> str:
    return f"{kind_name(op)} '{node_name(op)}'" if node_name(op) else kind_name(op)
