"""Units to loops over tiles: what is loaded, computed and stored for each tile, by projection from the output back."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.fit import DoesNotFit
from frustum.dialects.graph import WeightOp
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import MOVES, Layer, moves_of
from frustum.passes.analysis.layouts import LAYOUT, view_of
from frustum.passes.analysis.module import element_bytes, element_of, target_of
from frustum.passes.analysis.project import (
    Projection,
    UnitLayers,
    map_of,
    memory_order,
    project,
    tile_counts,
    unit_layers,
)
from frustum.passes.tile.move import plan_move

PRODUCED = "frustum.macs"
"""Attribute of a computation: multiply-accumulates of the network's layer, each counted once."""


@dataclass(frozen=True)
class LowerUnits(ModulePass):
    """Write every unit as a loop over tiles.

    Before: units with partitions, layers with maps.  After: `ftile.unit` with loads, computations, stores, moves;
    no graph operation is left but weights and reshapes.
    """

    name = "frustum-tile-lower-units"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for unit in [o for o in op.walk() if isinstance(o, UnitOp)]:
            lower_unit(unit, target)


def lower_unit(unit: UnitOp, target: Target) -> None:
    ops = [op for op in unit.body.block.ops if not isinstance(op, WeightOp)][:-1]
    is_move = len(ops) == 1 and type(ops[0]) in MOVES
    lowered = lower_moves(unit, ops[0], target) if is_move else lower_layers(unit, target)
    lowered.location = unit.location
    block = unit.parent
    assert block is not None
    block.insert_op_before(lowered, unit)
    for old, new in zip(unit.results, lowered.results, strict=True):
        old.replace_all_uses_with(new)
    unit.detach()
    unit.erase()


def empty(unit: UnitOp, counts: tuple[int, int, int, int], clusters: int, depth: int) -> t.UnitOp:
    return t.UnitOp(
        unit.unit_name.data,
        list(unit.operands),
        list(unit.result_types),
        counts=counts,
        clusters=clusters,
        depth=depth,
        mode=unit.mode,
        stopped_by=unit.stopped_by,
    )


class Inside:
    """Values of a unit's body in the lowered unit: block arguments, and weights as they are first asked for."""

    def __init__(self, unit: UnitOp, lowered: t.UnitOp):
        self.block = lowered.body.block
        self.values: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, self.block.args, strict=True))
        self.outer: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, unit.operands, strict=True))
        self.result = lowered.results[0] if lowered.results else None

    def tensor(self, value: SSAValue) -> SSAValue:
        if value not in self.values:
            assert isinstance(value.owner, WeightOp)
            copy = value.owner.clone()
            self.block.add_op(copy)
            self.values[value] = copy.result
        return self.values[value]


def lower_moves(unit: UnitOp, op: Operation, target: Target) -> t.UnitOp:
    lowered = empty(unit, (1, 1, 1, 1), 0, 1)
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


def lower_layers(unit: UnitOp, target: Target) -> t.UnitOp:
    if unit.partition is None:
        raise PassFailedException(
            f"unit {unit.unit_name.data} has no partition: run frustum-tile-partition first"
        )
    layers, partition, clusters = unit_layers(unit), unit.partition.data, target.chip.clusters
    projection = project(layers, partition, clusters)
    counts = tile_counts(layers.out.out_dims, partition, clusters)
    lowered = empty(unit, counts, partition.clusters, partition.depth)
    if LAYOUT in unit.attributes:
        lowered.attributes[LAYOUT] = unit.attributes[LAYOUT]
    inside = Inside(unit, lowered)
    tiles: list[SSAValue] = []
    for j, (op, layer) in enumerate(zip(layers.ops, layers.layers, strict=True)):
        operands = [load(inside, layers, projection, tiles, j, k) for k in range(len(layer.maps))]
        tiles.append(compute(inside, op, layer, projection, j, operands))
    store(inside, layers, projection, tiles[-1])
    inside.block.add_op(t.YieldOp())
    return lowered


def load(
    inside: Inside, layers: UnitLayers, projection: Projection, tiles: list[SSAValue], j: int, k: int
) -> SSAValue:
    """Operand k of layer j as a tile: another layer's, or loaded from DRAM."""
    source, operand, region = layers.sources[j][k], layers.layers[j].maps[k], projection.operands[j][k]
    if source.layer is not None:
        return tiles[source.layer]
    view = view_of(inside.outer.get(source.value), operand.view)
    order = memory_order(view.near, operand.dims)
    tile = t.Tile(element_of(source.value.type.element_type), region.extent, order)  # type: ignore[attr-defined]
    loaded = t.LoadOp(inside.tensor(source.value), view, region.box(operand.dims), tile)
    loaded.location = layers.ops[j].location
    inside.block.add_op(loaded)
    return loaded.result


def compute(
    inside: Inside, op: Operation, layer: Layer, projection: Projection, j: int, tiles: list[SSAValue]
) -> SSAValue:
    submap = map_of(op)
    if submap is None:
        raise PassFailedException(f"{op.name} has no frustum.map: run frustum-tile-partition first")
    tensors = [inside.tensor(op.operands[i]) for i in (layer.weight, *layer.vectors) if i is not None]
    region = projection.outputs[j]
    is_last = j == len(projection.outputs) - 1
    view = view_of(inside.result, layer.out_view) if is_last else layer.out_view
    order = memory_order(view.near, layer.out_dims)
    tile = t.Tile(element_of(op.results[0].type.element_type), region.extent, order)  # type: ignore[attr-defined]
    computed = t.ComputeOp(
        layer.kind,
        [*tiles, *tensors],
        region.box(layer.out_dims),
        [m.access for m in layer.maps],
        submap,
        layer.params,
        tile,
    )
    computed.attributes[PRODUCED] = IntegerAttr(layer.macs, i64)
    computed.location = op.location
    inside.block.add_op(computed)
    return computed.result


def store(inside: Inside, layers: UnitLayers, projection: Projection, tile: SSAValue) -> None:
    out = layers.out
    view = view_of(inside.result, out.out_view)
    stored = t.StoreOp(tile, 0, view, projection.outputs[-1].box(out.out_dims))
    stored.location = layers.ops[-1].location
    inside.block.add_op(stored)
