# Tests: test/passes/plan/network/test_given_units.py
"""The search for layers that are a unit already: its runs, or its shape."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_layer
from frustum.passes.analysis.unit_layers import UnitLayers, unit_layers
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import Candidates, Setting
from frustum.passes.plan.network.cuts import CutSearch
from frustum.passes.plan.network.kept import NOTHING
from frustum.passes.plan.network.layer_order import order_of
from frustum.passes.plan.network.optimal import NetworkPlan, in_full, partition_of, states_of
from frustum.passes.plan.network.prices import Prices
from frustum.passes.plan.unit import Budget, UnitPlan, evaluate, plan_unit


def plan_runs(
    ops: Sequence[Operation], outputs: Sequence[SSAValue], target: Target, sram_bytes: int, borders: str
) -> NetworkPlan | None:
    """The runs of these layers that move the fewest DRAM bytes, with what they read and give in DRAM; None where some
    layer is a move, or fits in no way."""
    if not all(is_layer(op) for op in ops):
        return None
    order = order_of(ops, outputs)
    keep = target.chip.clusters == 1 or target.cluster.cdma is not None
    seams = None if len(ops) <= model.SMALL else order.seams
    setting = Setting(order, target, sram_bytes, borders, keep)
    return in_full(CutSearch(setting, model.LENGTHS[0], states_of(order), seams))


def plan_given(unit: UnitOp, target: Target, sram_bytes: int, borders: str = "auto") -> UnitPlan | None:
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
) -> UnitPlan | None:
    """The best shape of the search for which all layers have pieces."""
    if not all(is_layer(op) for op in layers.ops):
        return None
    setting = Setting(order_of(layers.ops, outputs), target, sram_bytes, borders, keep=False)
    groups = setting.groups_before(len(layers.ops)).within(sram_bytes)
    group = next((g for g in groups if g.first == 0), None)
    if group is None:
        return None
    for choice in Prices(Candidates(group, setting)).ranked(NOTHING, NOTHING, sram_bytes, model.TRIED):
        partition = partition_of(choice, group)
        found = evaluate(layers, partition, choice.streamed, (), target, sram_bytes, setting.chunk_bytes)
        if found is not None:
            return found
    return None
