# Tests: test/passes/lower/tree/test_lower_plan.py
"""A plan to a program with symbolic buffers: what `frustum-lower-tiles` does for units of tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping

from xdsl.ir import Operation, Region, SSAValue

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects.axes.access import View
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.plan.check import with_copies
from frustum.dialects.plan.count import Counted, count
from frustum.dialects.plan.tree import Node, Sequence, layers_in
from frustum.dialects.target import Target
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.externals import DramTensors, elements_of
from frustum.passes.lower.tree.layouts import orders_of
from frustum.passes.lower.tree.walk import PlanWalk
from frustum.passes.lower.unit.program import Names


def lowered_plan(
    op: g.NetworkOp,
    network: AxisNetwork,
    views: Mapping[SSAValue, View],
    plan: Node,
    target: Target,
    names: Names,
    counted: Counted | None = None,
) -> isa.ProgramOp:
    """The program of a network; `names` are those of all programs of the module.

    Raises NotLowered for what no program is made of, PlanError where the tree is no plan of the network.
    """
    counted = count(network, plan) if counted is None else counted
    own = with_copies(network, plan)
    code = Code(target)
    orders = orders_of(piece for layer in own.layers for operand in layer.operands for piece in operand.pieces)
    dram = DramTensors(op, views, elements_of(own, views), code.block, own.maker, orders)
    dram.declare()
    body = code.block
    children = plan.children if isinstance(plan, Sequence) else (plan,)
    numbers = named(own, children, names)
    walk = PlanWalk(own, plan, code, dram, counted, numbers)
    dram.loads.update(walk.find_reads(plan, {}))
    code.emit(isa.Fetch(page=0))
    made = {name: {} for name in walk.layers}
    if isinstance(plan, Sequence):
        walk.units(plan, made)
    else:
        walk.visit(plan, made, {})
    dram.write_rest(code)
    return isa.ProgramOp(op.sym_name.data, Region(body))


def named(network: AxisNetwork, units: tuple[Node, ...], names: Names) -> dict[str, int]:
    """The number in reports of each layer: one for all that a node of the model has become."""
    layers, numbers, known = {layer.name: layer for layer in network.layers}, dict[str, int](), dict[Operation, int]()
    for k, unit in enumerate(units):
        _unit(names, f"u{k}")
        for name in layers_in(unit):
            layer = layers[name]
            assert isinstance(layer.source, Operation)
            if layer.source not in known:
                own = [each for each in network.layers if each.source is layer.source]
                known[layer.source] = names.layer(layer.source, kind_of(layer), useful_macs(own))
            numbers[name] = known[layer.source]
    return numbers


def kind_of(layer: Layer) -> str:
    return str(getattr(layer.source, "name", "")).removeprefix("fgraph.")


def useful_macs(layers: list[Layer]) -> int:
    return sum(layer.macs * math.prod(axis.extent for axis in layer.axes) for layer in {id(x): x for x in layers}.values())


def _unit(names: Names, name: str) -> None:
    names.units.append(name)
    names.modes.append("")
    names.stopped.append("")
    names.tiles.append(1)
    names.kept_bytes.append(0)
    names.owners.append("clusters")
    names.carried.append("")
    names.predicted.append(-1)
    names.own_cycles.append(-1)
