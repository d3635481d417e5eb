"""Units of a plan as a tree that a policy or a list of cuts gives, in place of those that the search finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation

from frustum.dialects import graph as g
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.recurrence import recurrences_of
from frustum.dialects.choices import TREE
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
        if self.policy in (OPTIMAL, TREE):
            return [(network, None) for network in networks]
        return [self._grown(network, target) for network in networks]

    def _grown(self, network: AxisNetwork, target: Target) -> tuple[AxisNetwork, GivenCuts]:
        policy = parse_policy(self.policy, self.rules, self.thresholds)
        of = source_of(network.layers[0]).parent_op()
        while of is not None and not isinstance(of, g.NetworkOp):
            of = of.parent_op()
        assert of is not None, "a layer is of a network"
        block = of.body.block
        if self.policy == NONE:
            return _of_units(network, block, [])
        return _of_units(network, block, [unit.ops for unit in grow_units(of, target, policy)])


def _of_units(
    network: AxisNetwork, block: Block, units: Iterable[Sequence[Operation]]
) -> tuple[AxisNetwork, GivenCuts]:  # fmt: skip
    """With the layers in the order in which units make their results; operations of none are units by themselves.
    Layers of a recurrence stay together: they are of operations of its body.  Copies of states behind the last step are
    of no operation, and units by themselves too."""
    number = {op: k for k, op in enumerate(block.ops)}
    last = dict(number)
    for unit in units:
        last |= dict.fromkeys(unit, max(number[op] for op in unit))
    unit_of = dict[Layer, tuple[int, int]]()
    stepped = {layer for each in recurrences_of(network.layers) for layer in each.layers}
    for k, layer in enumerate(network.layers):
        op = block.find_ancestor_op_in_block(source_of(layer))
        if op is not None:
            unit_of[layer] = last[op], 0
        else:
            behind = _unit_before(network, layer, unit_of)
            unit_of[layer] = behind if layer in stepped else (behind[0], k + 1)
    layers = sorted(network.layers, key=unit_of.__getitem__)
    _check_order(network, layers)
    ends = {unit_of[layer]: layer.name for layer in layers}
    ordered = network if layers == network.layers else AxisNetwork(network.name, layers, network.tensors)
    return ordered, GivenCuts(frozenset(ends.values()), is_crossed=False)


def _unit_before(network: AxisNetwork, copy: Layer, known: Mapping[Layer, tuple[int, int]]) -> tuple[int, int]:
    """The unit that makes what is copied, or, of an input, that of the layer before the copy."""
    makers = [network.maker[tensor] for tensor in operands_of(copy) if tensor in network.maker]
    before = [known[maker] for maker in makers if maker in known] or list(known.values())[-1:]
    return max(before, default=(0, 0))


def _check_order(network: AxisNetwork, layers: Iterable[Layer]) -> None:
    """PolicyError where a layer comes before one that it reads, but for what a recurrence carries from step to step."""
    made = {*network.tensors} - {layer.result for layer in network.layers}
    carried = {layer: each.carried for each in recurrences_of(network.layers) for layer in each.layers}
    for layer in layers:
        for tensor in operands_of(layer):
            if tensor not in made and tensor not in carried.get(layer, ()):
                reader, maker = (source_of(each) for each in (layer, network.maker[tensor]))
                raise PolicyError(
                    f"network @{network.name}: the unit of {_called(reader)} reads '{tensor.name}', which a later unit"
                    f" makes, that of {_called(maker)}: its layers cannot follow each other; cut with --cuts"
                )
        made.add(layer.result)


def _called(op: Operation) -> str:
    return f"{kind_name(op)} '{node_name(op)}'" if node_name(op) else kind_name(op)
