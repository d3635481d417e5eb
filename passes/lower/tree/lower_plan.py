# Tests: test/passes/lower/tree/test_lower_plan.py
"""A plan to a program with symbolic buffers: what `frustum-lower-tiles` does for units of tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects.axes.access import View
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.graph.axes import read_with_views
from frustum.dialects.isa.program import Element, Span
from frustum.dialects.plan.check import Named, with_copies
from frustum.dialects.plan.clusters import check_clusters
from frustum.dialects.plan.count import Counted
from frustum.dialects.plan.cycles import timed
from frustum.dialects.plan.dialect import tree_of
from frustum.dialects.plan.tree import Compute, Loop, Node, Over, Sequence, copies_in, layers_in, nodes_in
from frustum.dialects.target import Target
from frustum.passes.analysis.least_work import note_least_work
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.tree.coarser import coarser_plan
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.externals import DramTensors, elements_of
from frustum.passes.lower.tree.layouts import orders_of
from frustum.passes.lower.tree.walk import PlanWalk
from frustum.passes.lower.unit.program import Names
from frustum.passes.plan.text.apply import plans_of


@dataclass(frozen=True)
class LowerPlan(ModulePass):
    """Write the plan of every network as instructions.

    Before: networks, each with its `fplan.plan`; element types are those of the device.  After: one `fisa.program` for
    each, with a barrier before all and between the children of the plan's outermost sequence: a program is for one
    chip, whichever it is placed on.  Raises NotLowered for constructs that no program is made of yet, by name.
    `sram`: the share of SRAM that slices and second copies may fill, where the plan leaves so much: buffers may leave
    holes.
    """

    name = "frustum-lower-plan"
    sram: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, names = target_of(op), Names()
        plans = plans_of(op)
        note_least_work(op)
        for network in list(g.networks_of(op)):
            name = network.sym_name.data
            own = [plan for plan in plans if plan.network_name == name]
            if not own:
                raise PassFailedException(f"@{name} has no plan: run frustum-plan-search first")
            if len(own) > 1:
                raise PassFailedException(f"@{name} has {len(own)} plans: leave one of them")
            (plan,) = own
            axes, views = read_with_views(network)
            program = lowered_plan(network, axes, views, tree_of(plan), target, names, self.sram)
            op.attributes.update(names.attributes())
            Rewriter.erase_op(plan)
            block = network.parent
            assert block is not None
            block.insert_op_before(program, network)
            network.detach()
            network.erase()


def lowered_plan(
    op: g.NetworkOp,
    network: AxisNetwork,
    views: Mapping[SSAValue, View],
    plan: Node,
    target: Target,
    names: Names,
    sram: float = 1.0,
) -> isa.ProgramOp:
    """The program of a network; `names` are those of all programs of the module, `sram` as in `LowerPlan`.

    Raises NotLowered for what no program is made of, PlanError where the tree is no plan of the network.
    """
    check_clusters(plan, target)
    counted = timed(network, plan, target)
    own = with_copies(network, plan)
    numbers = named(UnitFacts(own, plan, elements_of(own, views), counted), names)
    walk = _written(op, own, views, plan, target, counted, numbers, sram)
    coarser = coarser_plan(network, plan, walk.periods, counted, target.cluster.sram.capacity_bytes)
    if coarser is not None:
        walk = _written(op, with_copies(network, coarser[0]), views, coarser[0], target, coarser[1], numbers, sram)
    return isa.ProgramOp(op.sym_name.data, Region(walk.code.block))


def _written(
    op: g.NetworkOp,
    own: AxisNetwork,
    views: Mapping[SSAValue, View],
    plan: Node,
    target: Target,
    counted: Counted,
    numbers: Mapping[str, int],
    sram: float,
) -> PlanWalk:
    """The walk that has written a plan of a network with its copies of layers."""
    code = Code(target)
    pieces = [piece for layer in own.layers for operand in layer.operands for piece in operand.pieces]
    read = {piece.tensor for piece in pieces}
    dram = DramTensors(op, views, elements_of(own, views), code.block, own.maker, orders_of(pieces), read)
    dram.declare()
    walk = PlanWalk(own, plan, code, dram, counted, numbers, sram)
    dram.loads.update(walk.find_reads(plan, {}))
    for page in range(2):  # the first page is what is loaded before all else, the next one the first unit
        code.emit(isa.Fetch(page=page))
    code.add(isa.BarrierOp())
    made: dict[str, dict[Axis, Span]] = {name: {} for name in walk.layers}
    if isinstance(plan, Sequence):
        walk.units(plan, made)
    else:
        walk.visit(plan, made, {})
    dram.write_rest(code)
    return walk


def named(facts: UnitFacts, names: Names) -> dict[str, int]:
    """The number in reports of each layer: one for all that a node of the model has become."""
    network, copies = facts.network, {copy.name for copy in copies_in(facts.plan)}
    layers, numbers, known = {layer.name: layer for layer in network.layers}, dict[str, int](), dict[Operation, int]()
    for unit in facts.note(names):
        for name in layers_in(unit):
            layer = layers[name]
            assert isinstance(layer.source, Operation)
            if layer.source not in known:
                own = [each for each in network.layers if each.source is layer.source and each.name not in copies]
                elements = sum(math.prod(axis.extent for axis in each.result.axes) for each in own)
                known[layer.source] = names.layer(layer.source, kind_of(layer), useful_macs(own), elements)
            numbers[name] = known[layer.source]
    return numbers


def kind_of(layer: Layer) -> str:
    return str(getattr(layer.source, "name", "")).removeprefix("fgraph.")


def useful_macs(layers: list[Layer]) -> int:
    """Multiply-accumulates of all layers that an operation has become."""
    return sum(layer.macs * layer.points for layer in layers)


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
