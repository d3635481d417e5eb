"""Units to loops over tiles: of layers, of bands of columns one after the other, of a movement of data."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Operation, OpResult
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.graph import ConcatOp, WeightOp, tensor_of
from frustum.dialects.module import LAYOUT
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.bands import bands_of
from frustum.passes.analysis.layer import is_move, moves_of
from frustum.passes.analysis.module import element_bytes, target_of
from frustum.passes.analysis.project import Unprojectable, places_of, project, unit_layers
from frustum.passes.analysis.roll import COLUMNS
from frustum.passes.plan.tile_search import plan_move
from frustum.passes.tile.lower_layers import (
    Cut,
    Inside,
    Results,
    empty,
    lower_cut,
    lower_layers,
)
from frustum.passes.tile.resident import Resident
from frustum.passes.tile.side_by_side import alias


@dataclass(frozen=True)
class LowerUnits(ModulePass):
    """Write every unit as a loop over tiles.

    Before: units with partitions, layers with maps.  After: `ftile.unit` with loads, computations, stores, moves;
    no graph operation is left but weights, reshapes, and concatenations whose parts are written in their places.
    """

    name = "frustum-tile-lower-units"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        known: dict[OpResult, Resident] = {}
        for unit in [o for o in op.walk() if isinstance(o, UnitOp)]:
            lower_unit(unit, target, known)


def lower_unit(unit: UnitOp, target: Target, known: dict[OpResult, Resident]) -> None:
    """Write one unit in its place; raises `PassFailedException` for a partition that does not go with its layers.

    `known`: parts of concatenations in SRAM that units before have found the places of.
    """
    ops = [op for op in unit.body.block.ops if not isinstance(op, WeightOp)][:-1]
    if (place := alias(unit)) is not None:
        put_in_place(place, unit)
    elif is_move(ops):
        put_in_place(lower_moves(unit, ops[0], target), unit)
    elif unit.partition is not None and unit.partition.data.bands:
        put_in_place(lower_bands(unit, target), unit)
    else:
        lowered, results = lower_layers(unit, target, known)
        for number, readers in results.readers.items():
            kept = lowered.results[results.tile[number]]
            unit.results[number].replace_uses_with_if(kept, lambda use, own=readers: use.operation in own)  # type: ignore[misc]
            if number in results.tensor:
                unit.results[number].replace_all_uses_with(lowered.results[results.tensor[number]])
        put_in_place(lowered, unit)


def put_in_place(lowered: Operation, unit: UnitOp) -> None:
    """The lowered unit, or what else takes its place, instead of the unit."""
    lowered.location = unit.location
    block = unit.parent
    assert block is not None
    block.insert_op_before(lowered, unit)
    for old, new in zip(unit.results, lowered.results, strict=False):
        old.replace_all_uses_with(new)
    unit.detach()
    unit.erase()


def lower_moves(unit: UnitOp, op: Operation, target: Target) -> t.UnitOp:
    if unit.kept:
        raise PassFailedException(
            f"unit {unit.unit_name.data} only moves data: its result goes to DRAM, it cannot stay"
        )
    lowered = empty(unit, (1, 1, 1, 1), 0, 1, t.TILE_LOOPS)
    inside = Inside(unit, lowered)
    size = element_bytes(op.results[0])
    for move in moves_of(op) or ():
        partition = plan_move(move.dims, size, target.chip.clusters, target.cluster.sram.capacity_bytes)
        if partition is None:
            raise DoesNotFit("one element", unit.unit_name.data, size, target.cluster.sram.capacity_bytes)
        moved = t.MoveOp(
            inside.tensor(op.operands[move.operand]),
            0,
            move.dims,
            move.source,
            move.target,
            move.low,
            move.bound,
            move.fill,
            partition,
        )
        moved.location = op.location
        inside.block.add_op(moved)
    inside.block.add_op(t.YieldOp())
    return lowered


def lower_bands(unit: UnitOp, target: Target) -> ConcatOp:
    """The bands before the unit, and their results side by side, which takes its place.

    Raises `PassFailedException` for a partition that does not go with the layers, or a map that does not lie in nchw.
    """
    name = unit.unit_name.data
    if LAYOUT in unit.attributes:
        raise PassFailedException(
            f"unit {name} goes in bands of columns: its map lies in nchw, found {LAYOUT}"
        )
    block, parts = unit.parent, []
    assert block is not None
    for number, cut in enumerate(band_cuts(unit, target)):
        kind = TensorType(tensor_of(unit.results[0]).element_type, cut.layers.out.out_dims)
        results = Results([kind], [len(cut.layers.layers) - 1], {}, {0: 0}, {}, {})
        lowered = lower_cut(unit, cut, results, target)
        lowered.properties["unit_name"] = StringAttr(f"{name}.{number}")
        lowered.location = unit.location
        block.insert_op_before(lowered, unit)
        parts.append(lowered)
    return ConcatOp([part.results[0] for part in parts], COLUMNS)


def band_cuts(unit: UnitOp, target: Target) -> list[Cut]:
    """How each band is cut."""
    assert unit.partition is not None
    found = []
    try:
        for band in bands_of(unit_layers(unit), unit.partition.data):
            projection = project(band.layers, band.partition, target.chip.clusters)
            places = places_of(band.layers, projection, band.partition.depth)
            found.append(Cut(band.layers, band.partition, projection, places, band.own_elements))
    except Unprojectable as reason:
        raise PassFailedException(
            f"unit {unit.unit_name.data} cannot be cut as {unit.partition}: {reason}"
        ) from reason
    return found
