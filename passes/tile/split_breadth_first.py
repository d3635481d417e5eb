"""Groups that run layer by layer instead of tile by tile: a unit for each layer, with the maps between them in SRAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import ConcatOp, WeightOp
from frustum.dialects.module import MAP, MAPS
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit, OrderDoesNotFit
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import UnitLayers, unit_layers
from frustum.passes.plan.cost import stored_bytes
from frustum.passes.plan.unit_ops import units_of, wrap
from frustum.passes.tile.assign_owners import is_in_order, makes_twice
from frustum.passes.tile.force_partition import ForcePartition
from frustum.passes.tile.orders import Bands
from frustum.passes.tile.owned_tiles import cut_by_grid
from frustum.passes.tile.partition import describe, write

ROWS, COLUMNS = 2, 3
COLUMN_MAJOR, ROW_MAJOR = "column-major", "row-major"
ROLLING = (COLUMN_MAJOR, ROW_MAJOR)
"""Orders in which rows roll, the second along one column strip alone."""
STOPPED = "layer by layer"


@dataclass(frozen=True)
class SplitBreadthFirst(ModulePass):
    """Split units that must run breadth-first into units of one layer whose maps stay in SRAM.

    Before: units, perhaps with partitions.  After: those split keep what the next ones read, so that clusters exchange
    borders after each layer and nothing is computed twice.  Each cluster has one part of all maps, the same rows
    of each where that goes; other layers have no partition, nor has a unit of one layer that rolled.
    A unit of one layer is only cut anew: nothing of it is computed twice.
    With `depth` `breadth-first` all units of several layers are split.  Otherwise, with `borders` `exchange`, those
    whose tiles would overlap, and those whose steps do not go as this `order` (of `bands` tiles across, in this
    `direction`) says: `frustum-tile-assign-owners` found no strips for them.
    Raises `OrderDoesNotFit` where two layers' maps, with those that are alive beside them, do not fit SRAM, and, under
    an order, where a map of the unit would pass through DRAM; with `borders` `auto` such a unit stays as it is, and its
    borders overlap.
    Source: docs/techniques/frustum.md, "Borders" and "Orders".
    """

    name = "frustum-tile-split-breadth-first"
    depth: Literal["depth-first", "breadth-first"] = "depth-first"
    borders: Literal["overlap", "exchange", "auto"] = "overlap"
    order: str | None = None
    bands: int = 1
    direction: str = "left-right"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for unit in units_of(op):
            layers = unit_layers(unit)
            if not self.needs_split(unit, layers, target):
                continue
            if len(layers.layers) == 1:
                unit.properties.pop("partition", None)
            elif self.stays_on_chip(unit, layers, target):
                grid = unit.partition.data if self.order is not None and unit.partition is not None else None
                split(unit, layers, target, grid)

    def stays_on_chip(self, unit: UnitOp, layers: UnitLayers, target: Target) -> bool:
        """Whether the unit runs layer by layer within SRAM; raises `OrderDoesNotFit` unless borders may overlap
        instead."""
        try:
            check_fits(unit, layers, target)
            if self.order is not None:
                check_stays(unit, layers)
        except OrderDoesNotFit:
            if self.borders != "auto":
                raise
            return False
        is_sent = target.chip.clusters > 1 and target.cluster.cdma is None
        return not (is_sent and self.borders == "auto")  # what needs no cdma after all is known once it is cut

    def needs_split(self, unit: UnitOp, layers: UnitLayers, target: Target) -> bool:
        is_several = len(layers.layers) > 1
        if self.depth == "breadth-first" and is_several:
            return True
        if self.borders != "exchange" or unit.partition is None:
            return False
        partition, band = unit.partition.data, Bands(self.bands, self.direction)
        if is_several and makes_twice(layers, partition, target.chip.clusters):
            return True
        if partition.borders == "overlap" or self.order is None:
            return False
        return not is_in_order(self.order, band, layers.out.out_dims, partition, target)


def check_fits(unit: UnitOp, layers: UnitLayers, target: Target) -> None:
    """Every layer's map, those that it reads, and all that later layers or units still read, are in SRAM at once: the
    clusters together must have room for it."""
    available = target.chip.clusters * target.cluster.sram.capacity_bytes
    sizes = [stored_bytes(layer) for layer in layers.layers]
    last = [len(sizes) if j in layers.kept else layers.last_use(j) for j in range(len(sizes))]
    for j in range(1, len(sizes)):
        is_here = j not in layers.stored or j in layers.kept
        alive = [k for k in range(j) if last[k] >= j] + ([j] if is_here else [])
        needed = sum(sizes[k] for k in alive)
        if needed > available:
            pair = f"{describe(layers.ops[j - 1])} and {describe(layers.ops[j])}"
            raise OrderDoesNotFit(
                f"the maps of {pair}, layer by layer with all that is alive beside them,",
                f"unit {unit.unit_name.data}",
                f"{needed} B",
                f"{available} B of SRAM of all clusters",
            )


def check_stays(unit: UnitOp, layers: UnitLayers) -> None:
    """Every map that a layer reads of another one of the unit has a place in SRAM in which it can be read."""
    end = unit.body.block.last_op
    assert end is not None
    keeps = kept_in(layers, end)
    for j, sources in enumerate(layers.sources):
        for source in sources:
            i = source.layer
            if i is not None and (layers.other_form is not None or layers.ops[i].results[0] not in keeps):
                raise OrderDoesNotFit(
                    f"the map between {describe(layers.ops[i])} and {describe(layers.ops[j])}, layer by layer,",
                    f"unit {unit.unit_name.data}",
                    "one place in SRAM for all its readers",
                    "DRAM alone",
                )


def split(unit: UnitOp, layers: UnitLayers, target: Target, partition: Partition | None) -> None:
    """One unit for each layer in the place of the unit; its own results go where they went.  With the `partition` that
    the unit had they have its tiles, whose owners the order says, where that goes."""
    block = unit.parent
    end = unit.body.block.last_op
    assert block is not None and end is not None
    attributes = {MAPS: unit.attributes[MAPS]} if MAPS in unit.attributes else {}
    keeps = kept_in(layers, end)
    unroll(unit, end)
    parts = []
    for j, op in enumerate(layers.ops):
        op.attributes.pop(MAP, None)
        parts.append(wrap([op], f"{unit.unit_name.data}.{j}", STOPPED, keeps_of(op, keeps)))
        parts[-1].attributes.update(attributes)
    if partition is None or not cut_by_grid(parts, layers, partition, target):
        for own, layer in zip(parts, layers.layers, strict=True):
            if not is_move(own.body.block.ops):
                by_rows(own, layer.out_dims[ROWS], target)
    for weight in [o for o in block.ops if isinstance(o, WeightOp) and not o.result.uses]:
        weight.detach()
        weight.erase()
    unit.detach()
    unit.erase()


def by_rows(unit: UnitOp, height: int, target: Target) -> None:
    """Cut a layer into as many tiles as there are clusters, if such tiles fit; the planner cuts it otherwise."""
    rows = ceil_div(height, target.chip.clusters)
    try:
        found = ForcePartition(tile=(0, 0, rows, 0), clusters=ROWS, depth=1).plan(unit, target)
    except (DoesNotFit, PassFailedException):
        return
    write(unit, found)


def kept_in(layers: UnitLayers, end: Operation) -> list[SSAValue]:
    """The maps that layers of the unit read again, and those that the unit was to keep for others.  A concatenation
    stays if all its parts do, none of them has another place, and nobody outside needs it; otherwise its parts go to
    DRAM, where it is a place."""
    found: list[SSAValue] = []
    for j, op in enumerate(layers.ops):
        value = op.results[0]
        users = {use.operation for use in value.uses}
        if not users - {end} and j not in layers.kept:
            continue
        if not isinstance(op, ConcatOp) or (end not in users and is_keepable(op, found)):
            found.append(value)

    def is_read(value: SSAValue) -> bool:
        """By a layer, or as part of a concatenation that stays."""
        users = [use.operation for use in value.uses if use.operation is not end]
        return any(not isinstance(user, ConcatOp) or user.results[0] in found for user in users)

    kept = {layers.ops[j].results[0] for j in layers.kept}
    return [value for value in found if value in kept or is_read(value)]


def is_keepable(op: ConcatOp, kept: Sequence[SSAValue]) -> bool:
    parts = list(op.xs)
    concats = [[u for u in x.uses if isinstance(u.operation, ConcatOp)] for x in parts]
    return len(set(parts)) == len(parts) and all(
        x in kept and len(users) == 1 for x, users in zip(parts, concats, strict=True)
    )


def keeps_of(op: Operation, keeps: Sequence[SSAValue]) -> list[SSAValue]:
    return [value for value in keeps if value.owner is op]


def unroll(unit: UnitOp, end: Operation) -> None:
    """Everything in the body before the unit; only its own shell is left."""
    block = unit.parent
    assert block is not None
    for argument, operand in zip(unit.body.block.args, unit.operands, strict=True):
        argument.replace_all_uses_with(operand)
    for result, value in zip(unit.results, list(end.operands), strict=True):
        result.replace_all_uses_with(value)
    for op in list(unit.body.block.ops):
        if op is not end:
            op.detach()
            block.insert_op_before(op, unit)


__all__ = ["SplitBreadthFirst"]
