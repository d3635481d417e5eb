"""The runs of layers in which a unit that rules made is carried out: cut, and shaped, as policy `optimal` would.

A run is a `funit.unit` of its own; maps between runs of one unit stay in SRAM where there is room.  A layer with more
weights than SRAM holds would read them again for every tile of a unit that is cut as a whole; in a run of its own it
reads them once, while its map, if it is small, never leaves the chip.

Source: docs/techniques/tfu.md, "Running a unit".
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects.target import Target
from frustum.passes.plan.model import SMALL
from frustum.passes.plan.network.layer_order import is_layer, order_of
from frustum.passes.plan.network.optimal import Plan, annotate, plan_order, values_of, width_of
from frustum.passes.plan.network.search import Search
from frustum.passes.plan.wrap import readers_between, wrap


def plan_runs(
    ops: Sequence[Operation], outputs: Sequence[SSAValue], target: Target, sram_bytes: int, borders: str
) -> Plan | None:
    """The runs of these layers that move the fewest DRAM bytes, with what they read and give in DRAM; None where some
    layer is a move, or fits in no way."""
    if not all(is_layer(op) for op in ops):
        return None
    order = order_of(ops, outputs)
    states, longest = width_of(order)
    keep = target.chip.clusters == 1 or target.cluster.cdma is not None
    seams = None if len(ops) <= SMALL else order.seams
    return plan_order(Search(order, target, sram_bytes, borders, keep, longest, states, seams=seams))


def write_runs(plan: Plan, first: int, stopped_by: str) -> None:
    """The runs as units behind each other, in the place of the last layer, called `u<first>` and so on."""
    ops = [node.op for node in plan.order.nodes]
    gather(ops, f"u{first}")
    for number, unit in enumerate(plan.units):
        layers = ops[unit.step.first : unit.step.stop]
        run = f"run {number + 1} of {len(plan.units)}: " if len(plan.units) > 1 else ""
        written = wrap(layers, f"u{first + number}", run + stopped_by, values_of(unit.step.kept, plan.order))
        if unit.evaluation is not None:
            annotate(written, layers, unit.evaluation)


def gather(ops: Sequence[Operation], unit_name: str) -> None:
    """Put layers in front of the last of them, so that nothing else runs between two runs, and what stood between them
    and reads one of them behind it."""
    last = ops[-1]
    block = last.parent
    assert isinstance(block, Block)
    later = readers_between(ops, set(ops), unit_name)
    for op in ops[:-1]:
        op.detach()
        block.insert_op_before(op, last)
    for reader in reversed(later):
        reader.detach()
        block.insert_op_after(reader, last)
