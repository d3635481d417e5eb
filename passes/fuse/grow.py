"""Grow units by a policy: from a start layer, step by step, each step judged by the rules and mended by their remedies.

Source: docs/techniques/tfu.md, "Growth".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.passes.analysis.blocks import DataFlow
from frustum.passes.analysis.foreign import sections_of
from frustum.passes.analysis.layer import can_join, is_move, is_work
from frustum.passes.analysis.module import kind_name, node_name
from frustum.passes.analysis.project import UnitLayers, layers_of
from frustum.passes.fuse.candidate import Candidate, GrowthLimits, outputs_of
from frustum.passes.fuse.operators import opens_units
from frustum.passes.fuse.policy import Policy
from frustum.passes.fuse.rules import Addition, Remedy, Rule, RuleKind, Verdict
from frustum.passes.plan.network.optimal import DEFAULTS, NetworkPlan, OptimalOptions

MOST_LAYERS = 24
"""Of a unit: what bounds the time to plan one.  Up to so many layers policy `optimal` looks at every cut."""


@dataclass(frozen=True)
class Grown:
    """A finished unit: its layers in order, why it ended, and the images of its unit map."""

    ops: tuple[Operation, ...]
    stopped_by: str
    maps: int = 1
    runs: NetworkPlan | None = None
    """The runs in which it is carried out, where these move fewer bytes than one unit map after the other."""


@dataclass(frozen=True)
class Failure:
    """Why layers were not added."""

    reason: str
    stops: bool = False


class LayerGraph:
    """The operations and inputs of a network, numbered in order, and which of them read which."""

    def __init__(self, network: g.NetworkOp):
        block = network.body.block
        self.nodes: list[Operation | SSAValue] = [
            *block.args,
            *(op for op in block.ops if not isinstance(op, g.WeightOp)),
        ]
        self.number: dict[Operation | SSAValue, int] = {node: i for i, node in enumerate(self.nodes)}
        self.flow: DataFlow = DataFlow([sorted(self._reads(node)) for node in self.nodes])
        uses = Counter(
            key for op in block.ops for key in {o.owner.key.data for o in op.operands if is_weight(o)}
        )
        self.weight_users: dict[str, int] = dict(uses)
        self.section_of: dict[Operation, Operation | None] = sections_of(block)

    def _reads(self, node: Operation | SSAValue) -> set[int]:
        if not isinstance(node, Operation):
            return set()
        operands = (operand for op in node.walk() for operand in op.operands)
        found = (self.number.get(o if not isinstance(o.owner, Operation) else o.owner) for o in operands)
        return {number for number in found if number is not None and number != self.number[node]}

    def op(self, number: int) -> Operation:
        node = self.nodes[number]
        assert isinstance(node, Operation)
        return node

    def ops(self, numbers: Sequence[int]) -> list[Operation]:
        return [self.op(number) for number in numbers]

    @cached_property
    def layers(self) -> list[int]:
        """All that must end in units, in order."""
        return [i for i, node in enumerate(self.nodes) if isinstance(node, Operation) and is_work(node)]


def is_weight(value: SSAValue) -> bool:
    return isinstance(value.owner, g.WeightOp)


def grow_units(
    network: g.NetworkOp,
    target: Target,
    policy: Policy | None,
    options: OptimalOptions = DEFAULTS,
) -> list[Grown]:
    """The units of a network in the order of their outputs: every layer in exactly one; those that rules made with
    their runs, which may be cut as the options say."""
    graph = LayerGraph(network)
    if policy is None:
        return [Grown((graph.op(i),), "policy none") for i in graph.layers]
    found = Growth(graph, target, policy, options).units()
    return sorted(found, key=lambda unit: graph.number[unit.ops[-1]])


class Growth:
    """Units in the making: what is fused already, and how to go on."""

    def __init__(self, graph: LayerGraph, target: Target, policy: Policy, options: OptimalOptions):
        self.graph = graph
        self.target = target
        self.policy = policy
        self.options = options
        self.fused: set[int] = set()
        self.whole: set[int] = set()
        """Layers that came into the present unit as part of a whole block."""

    def units(self) -> list[Grown]:
        found = []
        while (start := self._start()) is not None:
            grown = self._grow(start)
            self.fused.update(self.graph.number[op] for op in grown.ops)
            found.append(grown)
        rest = (i for i in self.graph.layers if i not in self.fused)
        return found + [Grown((self.graph.op(i),), self._alone(i)) for i in rest]

    # --- start rules ---------------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> Iterator[int]:
        """Layers that may start a unit, in order; each is looked at once."""
        layers = (i for i in self.graph.layers if can_join(self.graph.op(i)))
        if self.policy.start == "S2":
            return (i for i in layers if opens_units(self.graph.op(i)))
        return layers

    def _start(self) -> int | None:
        return next((i for i in self._starts if i not in self.fused), None)

    def _alone(self, number: int) -> str:
        op = self.graph.op(number)
        if is_move([op]):
            return "moves data only"
        if not can_join(op):
            return f"{kind_name(op)} joins no other layer"
        return "rule S2: no convolution or pooling is left to start from"

    # --- growing -------------------------------------------------------------------------------------------

    def _grow(self, start: int) -> Grown:
        self.whole = set()
        unit: tuple[int, ...] = (start,)
        best: Candidate | None = None
        while True:
            reason = ""
            for step in self._steps(unit):
                outcome = self._add(unit, step)
                if isinstance(outcome, Candidate):
                    best = outcome
                    unit = tuple(self.graph.number[op] for op in outcome.layers.ops)
                    break
                reason = reason or outcome.reason
                if outcome.stops and not step.is_block:  # else the layers of its branches are tried
                    return self._close(start, unit, best, reason)
            else:
                return self._close(start, unit, best, reason or "nothing follows")

    def _steps(self, unit: Sequence[int]) -> Sequence[Addition]:
        """What to try next, in the order of the policy's search rules; without any forward, then backward."""
        inside, flow = set(unit), self.graph.flow
        after = sorted({user for i in unit for user in flow.users_of[i]} - inside)
        before = sorted({read for i in unit for read in flow.reads_of[i]} - inside - self.fused, reverse=True)
        opened = flow.block_from(unit[-1])
        steps = [Addition((i,), True, (opened.nodes,) if opened and i == after[0] else ()) for i in after]
        for i in filter(self._is_layer, before):
            fork = flow.joins.get(i)
            steps.append(Addition((i,), False, (flow.between(fork, i),) if fork is not None else ()))
        ordered: Sequence[Addition] = steps
        for rule in self.policy.rules:
            if rule.kind is RuleKind.SEARCH:
                ordered = rule.order(ordered)
        return ordered

    def _is_layer(self, number: int) -> bool:
        node = self.graph.nodes[number]
        return isinstance(node, Operation) and is_work(node)

    def _add(self, unit: Sequence[int], step: Addition) -> Candidate | Failure:
        """The unit with the step's layers, mended by remedies until all rules hold; or why it cannot be."""
        together = tuple(sorted({*unit, *step.layers}))
        refused = self._refusal(together, step)
        if refused is not None:
            return Failure(refused)
        whole = self.whole | set(step.layers) if step.is_block else self.whole
        candidate = self._candidate(together, whole)
        if candidate.outputs > 1:
            widened = self._with_one_output(unit, step) if self.policy.has(4) else None
            if widened is None or self._refusal(widened, step) is not None:
                return Failure(self._split_reason(candidate, step))
            candidate = self._candidate(widened, whole)
        outcome = self._judge(candidate, step)
        if isinstance(outcome, Candidate):
            self.whole = whole
        return outcome

    def _split_reason(self, candidate: Candidate, step: Addition) -> str:
        rule = next((r for r in self.policy.rules if r.number == 4), None)
        who = str(rule) if rule else "one output is all that the tile level gives"
        return f"{who}: {candidate.outputs} > 1 outputs{self._with(step)}"

    def _refusal(self, together: Sequence[int], step: Addition) -> str | None:
        """Why the tile level cannot run these layers as a unit, or why some of them are not to be had."""
        if len(together) > MOST_LAYERS:
            return f"{len(together)} > {MOST_LAYERS} layers"
        for i in together:
            node = self.graph.nodes[i]
            if not isinstance(node, Operation) or not can_join(node):
                what = kind_name(node) if isinstance(node, Operation) else "an input of the network"
                return f"{what} follows" if step.is_forward else f"{what} comes before"
            if i in self.fused:
                return f"{kind_name(node)} is fused already"
        if len({self.graph.section_of[op] for op in self.graph.ops(together)}) > 1:
            return "operations of other dialects stand between"
        return seam(layers_of(self.graph.ops(together)))

    def _with_one_output(self, unit: Sequence[int], step: Addition) -> tuple[int, ...] | None:
        """With all layers from the unit's output to the first one that all ways go through; None: there is none."""
        join = self.graph.flow.post_dominator(unit[-1]) if step.is_forward else None
        return None if join is None else tuple(sorted({*unit, *self.graph.flow.between(unit[-1], join)}))

    def _candidate(self, numbers: Sequence[int], whole: set[int]) -> Candidate:
        layers = layers_of(self.graph.ops(numbers))
        limits = GrowthLimits(layers.out.out_dims[0])
        blocks = frozenset(place for place, i in enumerate(numbers) if i in whole)
        outputs = len(outputs_of(layers.ops))
        return Candidate(layers, self.target, limits, outputs, blocks, self.graph.weight_users, self.options)

    # --- judging -------------------------------------------------------------------------------------------

    def _judge(self, candidate: Candidate, step: Addition) -> Candidate | Failure:
        """The candidate when all rules hold that a growing unit can have: those first that need no plan."""
        growing = [r for r in self.policy.rules if r.kind is not RuleKind.SEARCH and not r.at_closing]
        found = self._mended(candidate, [r for r in growing if not r.needs_plan], step)
        if isinstance(found, Failure):
            return found
        if found.plan is None:
            return Failure(f"no unit map fits{self._with(step)}")
        return self._mended(found, [r for r in growing if r.needs_plan], step)

    def _mended(self, candidate: Candidate, rules: Sequence[Rule], step: Addition) -> Candidate | Failure:
        """The candidate, made smaller by remedies until all of these rules hold."""
        waiting = list(rules)
        while waiting:
            rule = waiting[0]
            verdict = rule.judge(candidate, self.policy.threshold(rule))
            if verdict.holds:
                waiting.pop(0)
                continue
            mended = mend(candidate, rule)
            if mended is None:
                return self._failure(rule, verdict, step)
            candidate, waiting = mended, list(rules)
        return candidate

    def _failure(self, rule: Rule, verdict: Verdict, step: Addition) -> Failure:
        return Failure(f"{rule}: {verdict}{self._with(step)}", Remedy.STOP in rule.remedies)

    def _with(self, step: Addition) -> str:
        op = self.graph.op(step.layers[-1])
        name = node_name(op) or kind_name(op)
        return f" with block up to '{name}'" if step.is_block else f" with '{name}'"

    # --- closing -------------------------------------------------------------------------------------------

    def _close(self, start: int, unit: Sequence[int], best: Candidate | None, reason: str) -> Grown:
        """The unit; or, where it misses a rule that only whole units can have, its layers up to the start layer."""
        ops = tuple(self.graph.ops(unit))
        if best is None:
            return Grown(ops, "moves data only") if is_move(ops) else self._single(start, reason)
        for rule in self.policy.rules:
            if rule.at_closing:
                verdict = rule.judge(best, None)
                if not verdict.holds:
                    return self._single(start, f"{rule}: {verdict}: dissolved")
        return Grown(ops, reason, best.maps, best.runs)

    def _single(self, number: int, reason: str) -> Grown:
        """A layer by itself, which no rule judges."""
        return Grown((self.graph.op(number),), reason, runs=self._candidate((number,), set()).runs)


def mend(candidate: Candidate, rule: Rule) -> Candidate | None:
    """The candidate after the first of the rule's remedies that makes something smaller."""
    smaller: dict[Remedy, Callable[[], Candidate | None]] = {
        Remedy.SPLIT_COUT: candidate.split_by_cout,
        Remedy.COUT_PIECES: candidate.with_cout_pieces,
        Remedy.FEWER_MAPS: candidate.with_fewer_maps,
        Remedy.SPLIT_FINER: candidate.split_finer,
        Remedy.SPLIT_SUB_MAPS: candidate.split_sub_maps,
    }
    for remedy in rule.remedies:
        mended = smaller[remedy]() if remedy in smaller else None
        if mended is not None and not (rule.needs_plan and mended.plan is None):
            return mended
    return None


# ---------------------------------------------------------------- what the tile level can run


def seam(unit: UnitLayers) -> str | None:
    """Why the tile level cannot hand a map of this unit from layer to layer; None: it can.

    Each layer must read a map in the form in which the other has made it, and never as weights.
    """
    numbers = {op.results[0]: j for j, op in enumerate(unit.ops)}
    for op, layer in zip(unit.ops, unit.layers, strict=True):
        maps = {operand.index for operand in layer.maps}
        if any(value in numbers and place not in maps for place, value in enumerate(op.operands)):
            return f"{kind_name(op)} reads computed weights"
    if unit.other_form is not None:
        return f"{kind_name(unit.ops[unit.other_form[0]])} sees the map in another form"
    return None
