"""What each unit adds to the run, as the planner's model has it, noted on the units before they are lowered."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, i64

from frustum.dialects.graph import NetworkOp, WeightOp
from frustum.dialects.module import COST_PARTS, PREDICTED_CYCLES, numbers_of
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import value_bytes
from frustum.passes.plan.cost import CostParts
from frustum.passes.plan.makespan import UnitWork, added_cycles, port_cycles, work_of_parts


def predict(network: NetworkOp, target: Target) -> None:
    """Note by how many cycles each unit makes the run longer, as the model has it; nowhere, if some unit has been cut
    by hand."""
    units = [op for op in network.body.block.ops if isinstance(op, UnitOp)]
    works = [work_in(unit, target) for unit in units]
    known = [work for work in works if work is not None]
    if len(known) == len(units):
        for unit, cycles in zip(units, added_cycles(known, target), strict=True):
            unit.attributes[PREDICTED_CYCLES] = IntegerAttr(cycles, i64)


def work_in(unit: UnitOp, target: Target) -> UnitWork | None:
    """What a unit takes by itself: as its planner has noted it, of a move what it reads and writes."""
    if noted := numbers_of(unit, COST_PARTS):
        return work_of_parts(CostParts(*noted), target)
    ops = [op for op in unit.body.block.ops if not isinstance(op, WeightOp)][:-1]
    if not is_move(ops):
        return None
    read, made = (sum(map(value_bytes, values)) for values in (unit.operands, unit.results))
    return UnitWork(0, 0, 0, port_cycles(read, target), port_cycles(made, target))
