# Tests: test/passes/lower/tree/test_lowered_clusters.py
"""Loops over clusters in the walk over a plan: their body once, then what each cluster gets from the others."""

from __future__ import annotations

from abc import ABC, abstractmethod

from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import title
from frustum.dialects.plan.ranges import Held
from frustum.dialects.plan.tree import Halo, Loop, Node, Sequence, layers_in, nodes_in
from frustum.passes.lower.tree.computes import Computes
from frustum.passes.lower.tree.loop_spans import Made, PlanLoop, Roll
from frustum.passes.lower.tree.over_clusters import Dealt
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.spans import NotLowered, later, span_of, still


class ClusterLoops(Computes, ABC):
    """Writes loops over clusters, and what of loops in time is another thing inside these."""

    @abstractmethod
    def visit(self, node: Node, made: Made, held: Held) -> None:
        """Writes a node."""

    @abstractmethod
    def body(self, node: Sequence, made: Made, held: Held, *, is_ahead: bool = True) -> None:
        """Writes the body of a loop in time."""

    def peeled(self, node: Loop, loop: PlanLoop, found: Made, made: Made, held: Held) -> None:
        """A rolling loop in a cluster's share: its first pass makes what all later ones need of what lies before them,
        which is not where the tensor begins."""
        level, rings, block = loop.level, dict[tuple[Tensor, tuple[str, ...]], Place](), self.code.block
        first = {name: {axis: still(span, level) for axis, span in spans.items()} for name, spans in found.items()}
        self.rolls.append(Roll(level, loop.group, {}, {**made, **found}, block, rings=rings))
        self.visit(node.body, {**made, **first}, held)
        self.rolls.pop()
        later_spans = {
            name: {axis: later(span, level, -1) for axis, span in self.rolled_spans(spans, loop.group, level).items()}
            for name, spans in found.items()
        }  # fmt: skip
        inner = {**made, **later_spans}
        with self.code.repeat(loop.count - 1, is_kept=True):
            self.rolls.append(Roll(level, loop.group, {}, inner, block, rings=rings))
            self.body(node.body, inner, held, is_ahead=False)
            self.rolls.pop()

    def over_clusters(self, node: Loop, made: Made, held: Held) -> None:
        """A loop whose passes clusters make at the same time."""
        found, summed = self.cluster_spans(node, made), self.summed_in(node)
        waiting = [layer for layer in summed if not self.here[layer.result]]
        for layer in waiting:
            self.here[layer.result].append(self.buffer(layer.result, [layer.name], made))
        for layer in summed:
            self.check_sum(node, layer, made)
        self.dealt = Dealt(self.known_class(node)[1], node.halo is Halo.EXCHANGED)
        self.visit(node.body, {**made, **found}, held)
        self.dealt = None
        inside = {*layers_in(node)}
        for layer in (self.layers[name] for name in layers_in(node)):
            if layer in summed or self.is_made_anew(layer.result):
                continue
            box = {axis: span_of(found[layer.name], axis) for axis in layer.result.axes}
            for place in self.here[layer.result]:
                if any(layer.result in self.read_by(name) for name in place.users if name not in inside):
                    self.exchange(layer.result, place, box, place.box)
        for layer in summed:
            self.join_parts(layer, made, found[layer.name])
        for layer in waiting:
            self.store(layer, {axis: span_of(made[layer.name], axis) for axis in layer.result.axes})
            self.used -= self.here[layer.result].pop().taken

    def check_sum(self, node: Loop, layer: Layer, made: Made) -> None:
        """NotLowered where a sum over clusters is not joined in one place, once."""
        shares = [
            r for each in nodes_in(self.plan) if isinstance(each, Sequence) for r in each.residents
            if r.tensor == layer.result.name and (r.sharded or any(each is own for own in nodes_in(node)))
        ]  # fmt: skip
        is_one = not shares and len(self.here[layer.result]) == 1 and not self.here[layer.result][0].has
        if not is_one or node.passes < self.code.clusters or self.sum_levels(layer, made):
            raise NotLowered(f"{title(node)}: sums of {layer.name} over clusters, which are not resident around it")
