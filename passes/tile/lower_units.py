"""Units to loops over tiles: of layers, of bands of columns one after the other, of a movement of data.

Of concatenations between units the parts are written where they belong, so that nothing is copied.  In SRAM: a unit of
one concatenation that is kept, of maps that are kept, becomes `ftile.concat` between units.  In DRAM: a concatenation
of maps that units write, each needed in this one place, stays an `fgraph.concat`, which `frustum-lower-tiles` takes for
the places of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.extents import replaced
from frustum.dialects.graph import WeightOp, tensor_of
from frustum.dialects.module import LAYOUT, STREAMED
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.foreign import is_read_by_others
from frustum.passes.analysis.layer import RANK, dense, is_move, moves_of
from frustum.passes.analysis.layer.nest import Move
from frustum.passes.analysis.module import element_bytes, target_of
from frustum.passes.analysis.roll import COLUMNS, bands_of
from frustum.passes.analysis.unit_layers import unit_layers
from frustum.passes.plan.model import MOVES_SRAM
from frustum.passes.plan.tile_search import plan_move
from frustum.passes.tile.kept_maps import Cut, KeptMaps, Results, concat_of, cut_as, cut_of, cutting, name_of
from frustum.passes.tile.lower_layers import Inside, empty, lower_cut
from frustum.passes.tile.predict_cycles import predict, predict_alone


@dataclass(frozen=True)
class LowerUnits(ModulePass):
    """Write every unit as a loop over tiles.

    Before: units with partitions, layers with maps.  After: `ftile.unit` with loads, computations, stores, moves;
    no graph operation is left but weights, reshapes, and concatenations whose parts are written in their places.
    """

    name = "frustum-tile-lower-units"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        works = [predict(network, target) for network in g.networks_of(op)]
        kept = KeptMaps(target)
        for unit in [o for o in op.walk() if isinstance(o, UnitOp)]:
            lower_unit(unit, kept)
        for network, known in zip(g.networks_of(op), works, strict=True):
            predict_alone(network, known, target)


def lower_unit(unit: UnitOp, maps: KeptMaps) -> None:
    """Write one unit in its place; raises `PassFailedException` for a partition that does not go with its layers."""
    ops = [op for op in unit.body.block.ops if not isinstance(op, WeightOp)][:-1]
    if (place := alias(unit)) is not None:
        put_in_place(place, unit)
    elif is_move(ops):
        put_in_place(lower_moves(unit, ops[0], maps.target), unit)
    elif unit.partition is not None and unit.partition.data.bands:
        put_in_place(lower_bands(unit, maps.target), unit)
    else:
        cut = cut_of(unit, maps.target)
        results = maps.results_of(unit, cut)
        lowered = lower_cut(unit, cut, results, maps.target)
        for number, readers in results.readers.items():
            result = unit.results[number]
            give(readers, result, lowered.results[number])
            if number in results.tensor:
                result.replace_all_uses_with(lowered.results[results.tensor[number]])
        put_in_place(lowered, unit)


def give(readers: Collection[Operation], old: SSAValue, new: SSAValue) -> None:
    """Let some operations read another value."""
    old.replace_uses_with_if(new, lambda use: use.operation in readers)


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
    size, room = element_bytes(op.results[0]), target.cluster.sram.capacity_bytes // MOVES_SRAM
    moves = moves_of(op) or []
    share = shared_step(moves, size, target.chip.clusters, room) if isinstance(op, g.RearrangeOp) else 0
    for move in moves:
        steps = move.target.strides
        dealt = steps.index(share) if share in steps and move.dims[steps.index(share)] > 1 else None
        partition = plan_move(move.dims, size, target.chip.clusters, room, dealt)
        if partition is None:
            raise DoesNotFit("one element", unit.unit_name.data, size, room)
        moved = t.MoveOp(
            inside.tensor(op.operands[move.operand]), 0, move.dims, move.source, move.target, move.low, move.bound,
            move.fill, partition,
        )  # fmt: skip
        moved.location = op.location
        inside.block.add_op(moved)
    inside.block.add_op(t.YieldOp())
    return lowered


def shared_step(moves: Sequence[Move], size: int, clusters: int, room: int) -> int:
    """How far apart in the result what clusters move lies, of the largest of several copies: the others are dealt so
    too, that each cluster makes its own part of the result."""
    largest = max(moves, key=lambda move: math.prod(move.dims))
    partition = plan_move(largest.dims, size, clusters, room)
    return 0 if partition is None else largest.target.strides[partition.clusters]


def lower_bands(unit: UnitOp, target: Target) -> g.ConcatOp:
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
        results = Results([kind], [len(cut.layers.layers) - 1], {0: 0})
        lowered = lower_cut(unit, cut, results, target)
        lowered.properties["unit_name"] = StringAttr(f"{name}.{number}")
        lowered.location = unit.location
        block.insert_op_before(lowered, unit)
        parts.append(lowered)
    return g.ConcatOp([part.results[0] for part in parts], COLUMNS)


def band_cuts(unit: UnitOp, target: Target) -> list[Cut]:
    """How each band is cut."""
    assert unit.partition is not None
    with cutting(unit):
        bands = bands_of(unit_layers(unit), unit.partition.data)
        return [cut_as(band.layers, band.partition, target, band.own_elements) for band in bands]


# -------------------------------------------------------------------- concatenations


def alias(unit: UnitOp) -> t.ConcatOp | g.ConcatOp | None:
    """What takes the place of a unit of one concatenation, if it is none but a place."""
    concat = concat_of(unit)
    if concat is None:
        return None
    operands = [unit.operands[unit.body.block.args.index(x)] for x in concat.xs]
    if unit.kept:
        return in_sram(unit, operands)
    if not all(is_free(operand, concat, operands) for operand in operands):
        return None
    return g.ConcatOp(operands, concat.axis)


def in_sram(unit: UnitOp, operands: list[SSAValue]) -> t.ConcatOp:
    tiles = [operand.type.data for operand in operands if isinstance(operand.type, t.TileType)]
    if len(tiles) < len(operands) or len(set(operands)) < len(operands):
        raise PassFailedException(f"{name_of(unit)} keeps a map of which a part is not in SRAM")
    extents = replaced(tiles[0].extents, 1, sum(tile.extents[1] for tile in tiles))
    return t.ConcatOp(operands, t.Tile(tiles[0].element, extents, tiles[0].order, tiles[0].origin))


def is_free(operand: SSAValue, concat: g.ConcatOp, operands: list[SSAValue]) -> bool:
    """Whether a map can be written into a concatenation in DRAM: a unit's, and neither an output nor in another place.

    Nor is it one that a product takes as its second factor: weights are read from a buffer of their own.  Where
    images lie between its parts, it must be plain to write.
    """
    root = g.root_of(operand)
    if not isinstance(root.owner, (t.UnitOp, g.ConcatOp)) or isinstance(root.type, t.TileType):
        return False
    if sum(other is operand for other in operands) > 1 or sum(root is each for each in map(g.root_of, operands)) > 1:
        return False
    if has_place(root) or is_factor(root):
        return False
    shape = g.shape_of(operand)
    if math.prod(shape[: concat.axis]) == 1:
        return True
    if root is not operand or not root.has_one_use() or not isinstance(root.owner, t.UnitOp):
        return False
    if len(shape) == RANK:
        return concat.axis == 1 and stores_plainly(root.owner, root)
    own = math.prod(shape[concat.axis :])
    views = [op.view.data for op in stores_of(root.owner, root)]
    return bool(views) and all(view.block == 1 and view.spread(own, own) is not None for view in views)


def has_place(value: SSAValue) -> bool:
    """Whether a map, perhaps reshaped, is an output of the network, part of a concatenation, or read by operations of
    other dialects, for which it lies alone."""
    if is_read_by_others(value):
        return True
    for use in value.uses:
        if isinstance(use.operation, (g.OutputOp, g.ConcatOp)):
            return True
        if isinstance(use.operation, g.ReshapeOp) and has_place(use.operation.result):
            return True
    return False


def is_factor(value: SSAValue) -> bool:
    """Whether a layer reads a map, perhaps reshaped, as it reads weights: not as what slides past them."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, g.ReshapeOp) and is_factor(user.result):
            return True
        if isinstance(user, (t.UnitOp, UnitOp)) and is_factor(user.body.block.args[use.index]):
            return True
        if isinstance(user, t.ComputeOp) and value in user.tensors:
            return True
        if isinstance(user, g.AttentionOp) and STREAMED in user.attributes and value in (user.k, user.v):
            return True
        if isinstance(user, (g.MatmulOp, g.ConvOp)) and value in user.operands[1:] and value is not user.residual:
            return True
    return False


def stores_of(unit: t.UnitOp, result: SSAValue) -> list[t.StoreOp]:
    """What stores a result of a unit."""
    number = [each is result for each in unit.results].index(True)
    return [op for op in unit.body.block.ops if isinstance(op, t.StoreOp) and op.output.value.data == number]


def stores_plainly(unit: t.UnitOp, result: SSAValue) -> bool:
    """Whether a map is written by stores that see it as the four dimensions that it has."""
    usual, stores = dense(g.shape_of(result)), stores_of(unit, result)
    return bool(stores) and all(s.view.data.strides[0] == usual[0] and s.view.data.block == 1 for s in stores)
