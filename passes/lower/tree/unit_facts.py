# Tests: test/runtime/tools/test_tree_policy.py
"""What reports say of the units of a plan as a tree: the children of its outermost sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import Element
from frustum.dialects.plan.check import Named
from frustum.dialects.plan.count import Counted
from frustum.dialects.plan.tree import Compute, Loop, Node, Over, Sequence, layers_in, nodes_in
from frustum.passes.lower.unit.program import Names


@dataclass(frozen=True)
class UnitFacts:
    """Of one plan.  `network`: with the copies of layers of the plan; `counted`: with the cycles of nodes."""

    network: AxisNetwork
    plan: Node
    elements: Mapping[Tensor, Element]
    counted: Counted

    @property
    def units(self) -> tuple[Node, ...]:
        """The children of the outermost sequence."""
        return self.plan.children if isinstance(self.plan, Sequence) else (self.plan,)

    def note(self, names: Names) -> Iterator[Node]:
        """Adds what is known of each unit to the names of the module, and gives the unit."""
        known, units, counted = Named(self.network, self.plan), self.units, self.counted
        for number, unit in enumerate(units):
            stopped = ""
            if number + 1 < len(units):
                moved = f"{counted.moved[id(unit)]} DRAM bytes here, {counted.dram_bytes} in all"
                stopped = f"cut before '{next(layers_in(units[number + 1]))}': {moved}"
            names.units.append(f"u{number}")
            names.modes.append("")
            names.stopped.append(stopped)
            names.tiles.append(tiles(known, unit))
            names.kept_bytes.append(max((counted.rolled[id(node)] for node in nodes_in(unit)), default=0))
            names.owners.append("clusters")
            names.carried.append(" ".join(sorted({*self.waiting(known, unit, frozenset())})))
            names.predicted.append(math.ceil(counted.taken[id(unit)]))
            names.own_cycles.append(-1)
            yield unit

    def waiting(self, known: Named, node: Node, around: frozenset[Axis]) -> Iterator[str]:
        """The types in which sums wait between passes of loops.  `around`: what the loops around it cut."""
        match node:
            case Compute():
                stated = {each.tensor: each.element for each in node.sums}
                for layer in (known.layers[name] for name in node.layers):
                    if around & layer.combine.keys() - {*layer.result.axes}:
                        yield stated.get(layer.result.name, self.elements[layer.result])
            case Loop():
                is_dealt = node.over is not Over.TIME
                yield from self.waiting(known, node.body, around if is_dealt else around | known.class_of(node)[1])
            case Sequence():
                for child in node.children:
                    yield from self.waiting(known, child, around)


def tiles(known: Named, node: Node) -> int:
    """In how many parts the last layer of a node is made."""
    last = known.layers[list(layers_in(node))[-1]]
    found = 1
    while not isinstance(node, Compute):
        if isinstance(node, Loop) and known.class_of(node)[1] & {*last.result.axes}:
            found *= node.passes
        node = node.body if isinstance(node, Loop) else node.children[-1]
    return found
