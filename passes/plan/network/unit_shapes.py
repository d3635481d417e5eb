"""The cheapest way to cut one given unit, among the shapes of policy `optimal` and those of `plan_unit`.

For units that a preset or a person has made: the same candidates for all policies.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.unit_layers import UnitLayers, unit_layers
from frustum.passes.plan.cost import chunk_bytes
from frustum.passes.plan.model import TRIED
from frustum.passes.plan.network.evaluate import Evaluation, evaluate
from frustum.passes.plan.network.layer_order import is_layer, order_of
from frustum.passes.plan.network.search import Search, Ways
from frustum.passes.plan.network.sweep import Sweep
from frustum.passes.plan.unit import Budget, plan_unit


def plan_given(unit: UnitOp, target: Target, sram_bytes: int, borders: str = "auto") -> Evaluation | None:
    """The cheapest shape of a unit with all its maps in DRAM, in bytes, then cycles; None where `plan_unit` knows a
    cheaper one, or none of these goes."""
    layers = unit_layers(unit)
    end = unit.body.block.last_op
    assert end is not None
    found = cheapest(layers, list(end.operands), target, sram_bytes, borders)
    plain = None if borders == "exchange" else plan_unit(layers, target, Budget(sram_bytes))
    if plain is None or found is None:
        return found
    return found if (found.dram_bytes, found.cycles) < (plain.dram_bytes, plain.cycles) else None


def cheapest(
    layers: UnitLayers, outputs: list[SSAValue], target: Target, sram_bytes: int, borders: str
) -> Evaluation | None:
    """The best shape of the search for which all layers have pieces."""
    if not all(is_layer(op) for op in layers.ops):
        return None
    search = Search(order_of(layers.ops, outputs), target, sram_bytes, borders, keep=False)
    count = len(layers.ops)
    groups = Sweep(search.order, target, count, borders).groups(sram_bytes)
    group = next((g for g in groups if g.first == 0), None)
    if group is None:
        return None
    nothing = frozenset[int]()
    for step in Ways(group, search).ranked(nothing, nothing, sram_bytes, TRIED):
        assert step.shape is not None
        partition = group.shapes.partition(step.shape, group.channels, step.passes)
        found = evaluate(layers, partition, step.streamed, (), target, sram_bytes, chunk_bytes(sram_bytes))
        if found is not None:
            return found
    return None
