# Tests: test/passes/plan/network/test_given_units.py
"""Units in the IR: layers are moved into one, and how it is cut is written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, replace

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, StringAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.graph import PartOp, ReshapeOp, WeightOp
from frustum.dialects.module import COST_PARTS, MAP, numbers, numbers_of
from frustum.dialects.tile import MapAttr
from frustum.dialects.unit import PartitionAttr, UnitOp, YieldOp
from frustum.passes.analysis.foreign import sections_of
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import readers_in_network
from frustum.passes.plan.cost import CostParts
from frustum.passes.plan.unit import UnitPlan


def units_of(module: ModuleOp) -> list[UnitOp]:
    """The units of layers, without those that only move data."""
    return [op for op in module.walk() if isinstance(op, UnitOp) and not is_move(op.body.block.ops)]


def annotate(unit: UnitOp, layers: Sequence[Operation], plan: UnitPlan, *, is_small: bool) -> None:
    """Write into a unit and its layers how they are cut."""
    unit.properties["partition"] = PartitionAttr(plan.partition)
    unit.properties["mode"] = StringAttr("small" if is_small else "large")
    if (parts := plan.cost.parts) is not None:
        if noted := numbers_of(unit, COST_PARTS):  # by who knows what stays beside it and is sent
            old = CostParts(*noted)
            used = max(old.used_bytes, parts.used_bytes)
            parts = replace(
                parts, stored_bytes=old.stored_bytes, used_bytes=used, send_cycles=old.send_cycles
            )
        unit.attributes[COST_PARTS] = numbers(astuple(parts))
    for op, submap in zip(layers, plan.maps, strict=True):
        if submap is not None:
            op.attributes[MAP] = MapAttr(submap)


def wrap(
    ops: Sequence[Operation], unit_name: str, stopped_by: str | None, keeps: Collection[SSAValue] = ()
) -> UnitOp:
    """Layers of one block, in their order, as a unit in the place of the last one; weights are copied in.

    Its results are the values that operations outside read (the last one's, if there are none), in the order of the
    layers; those in `keeps` stay in SRAM.  What stands between the layers and reads one of them moves behind the
    unit; raises `PassFailedException` if the unit reads that again.
    """
    inside = set(ops)
    made = [op.results[0] for op in ops]
    outputs = [v for v in made if any(user not in inside for user in readers_in_network(v))] or [made[-1]]
    block = ops[-1].parent
    assert isinstance(block, Block)
    later = readers_between(ops, inside, unit_name)
    inputs, weights = operands_of(ops)
    unit = UnitOp(unit_name, list(inputs), [v.type for v in outputs], stopped_by=stopped_by)
    unit.location = ops[0].location
    if keeps:
        unit.properties["keeps"] = DenseArrayBase.from_list(
            i64, [i for i, v in enumerate(outputs) if v in keeps]
        )
    block.insert_op_before(unit, ops[-1])
    for reader in reversed(later):
        reader.detach()
        block.insert_op_after(reader, unit)
    body = unit.body.block
    replacement: dict[SSAValue, SSAValue] = dict(zip(inputs, body.args, strict=True))
    for weight in weights:
        copy = weight.clone()
        body.add_op(copy)
        replacement[weight.result] = copy.result
    for op in ops:
        op.detach()
        body.add_op(op)
        for i, operand in enumerate(op.operands):
            if operand in replacement:
                op.operands[i] = replacement[operand]
    for value, result in zip(outputs, unit.results, strict=True):
        value.replace_uses_with_if(result, lambda use: use.operation not in inside)
    body.add_op(YieldOp(outputs))
    return unit


def in_order(block: Block, ops: Sequence[Operation], section: Operation | None = None) -> None:
    """Put the layers of a section in this order, and every reshape, and part of an input, before its first reader."""
    own = [op for op, behind in sections_of(block).items() if behind is section]
    waiting = {op for op in own if isinstance(op, (ReshapeOp, PartOp))}
    end = own[-1].next_op if own else None
    assert end is not None  # a network ends with its outputs

    def place(op: Operation) -> None:
        waiting.discard(op)
        for operand in op.operands:
            if isinstance(operand.owner, Operation) and operand.owner in waiting:
                place(operand.owner)
        op.detach()
        block.insert_op_before(op, end)

    for op in ops:
        place(op)
    for op in own:
        if op in waiting:
            place(op)


def operands_of(ops: Sequence[Operation]) -> tuple[list[SSAValue], list[WeightOp]]:
    """What layers read from outside: maps, and weights, each once."""
    made = {op.results[0] for op in ops}
    inputs: dict[SSAValue, None] = {}
    weights: dict[WeightOp, None] = {}
    for operand in (o for op in ops for o in op.operands):
        if isinstance(operand.owner, WeightOp):
            weights[operand.owner] = None
        elif operand not in made:
            inputs[operand] = None
    return list(inputs), list(weights)


def readers_between(ops: Sequence[Operation], inside: set[Operation], unit_name: str) -> list[Operation]:
    """Operations before the last layer that depend on one of the layers and are not among them."""
    found: dict[Operation, None] = {}
    op: Operation | None = ops[0]
    while op is not None and op is not ops[-1]:
        owners = {operand.owner for operand in op.operands}
        if op not in inside and any(owner in inside or owner in found for owner in owners):
            found[op] = None
        op = op.next_op
    for layer in ops:
        for operand in layer.operands:
            outside = operand.owner
            if isinstance(outside, Operation) and outside in found:
                raise PassFailedException(
                    f"unit {unit_name}: {layer.name} reads the result of {outside.name}, which is outside and "
                    f"depends on the unit"
                )
    return list(found)
