"""Concatenations between units: the parts are written where they belong, so that nothing is copied.

In SRAM: a unit of one concatenation that is kept, of maps that are kept, becomes `ftile.concat` between units.
In DRAM: a concatenation of maps that units write, each needed in this one place, stays an `fgraph.concat`, which
`frustum-lower-tiles` takes for the places of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.foreign import is_read_by_others
from frustum.passes.analysis.layer import RANK, dense


def concat_of(unit: Operation) -> g.ConcatOp | None:
    """The concatenation that is all of a unit."""
    if not isinstance(unit, UnitOp):
        return None
    ops = list(unit.body.block.ops)
    first = ops[0]
    return first if len(ops) == 2 and isinstance(first, g.ConcatOp) else None


def is_resident_concat(unit: Operation) -> bool:
    """Whether a unit only names kept maps side by side another kept map."""
    concat = concat_of(unit)
    return concat is not None and isinstance(unit, UnitOp) and bool(unit.kept)


def outermost(value: SSAValue) -> OpResult | None:
    """The result of the last resident concatenation of which a map is a part; None if it is of none."""
    users = {use.operation for use in value.uses}
    concats = [user for user in users if is_resident_concat(user)]
    if not concats:
        return None
    if len(concats) > 1 or len([use for use in value.uses if use.operation is concats[0]]) > 1:
        raise PassFailedException(f"{name_of(concats[0])} keeps a map that has another place in SRAM")
    result = concats[0].results[0]
    assert isinstance(result, OpResult)
    return outermost(result) or result


def parts_of(concat: OpResult) -> Iterator[OpResult]:
    """The maps that units of layers make, of a resident concatenation and of those in it."""
    for operand in concat.owner.operands:
        unit = operand.owner
        if not isinstance(operand, OpResult) or not isinstance(unit, UnitOp) or operand.index not in unit.kept:
            raise PassFailedException(f"{name_of(concat.owner)} keeps a map of which a part is not in SRAM")
        if is_resident_concat(unit):
            yield from parts_of(operand)
        else:
            yield operand


def wholes_of(concat: OpResult) -> Iterator[OpResult]:
    """The results of a resident concatenation and of those in it."""
    yield concat
    for operand in concat.owner.operands:
        if isinstance(operand, OpResult) and is_resident_concat(operand.owner):
            yield from wholes_of(operand)


def name_of(unit: Operation) -> str:
    assert isinstance(unit, UnitOp)
    return f"unit {unit.unit_name.data}"


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
    if any(not isinstance(operand.type, t.TileType) for operand in operands) or len(set(operands)) < len(operands):
        raise PassFailedException(f"{name_of(unit)} keeps a map of which a part is not in SRAM")
    tiles = [operand.type.data for operand in operands]  # type: ignore[attr-defined]
    images, _, rows, columns = tiles[0].extents
    extents = (images, sum(tile.extents[1] for tile in tiles), rows, columns)
    first = tiles[0]
    return t.ConcatOp(operands, t.Tile(first.element, extents, first.order, first.origin))


def is_free(operand: SSAValue, concat: g.ConcatOp, operands: list[SSAValue]) -> bool:
    """Whether a map can be written into a concatenation in DRAM: a unit's, and neither an output nor in another place.

    Nor is it one that a product takes as its second factor: weights are read from a buffer of their own.  Where
    images lie between its parts, it must be plain to write.
    """
    root = operand
    while isinstance(root.owner, g.ReshapeOp):
        root = root.owner.x
    if not isinstance(root.owner, (t.UnitOp, g.ConcatOp)) or isinstance(root.type, t.TileType):
        return False
    if sum(other is operand for other in operands) > 1 or sum(root is each for each in map(g.root_of, operands)) > 1:
        return False
    if has_place(root) or is_factor(root):
        return False
    shape = g.shape_of(operand)
    if math.prod(shape[: concat.axis]) == 1:
        return True
    plain = root is operand and len(shape) == RANK and concat.axis == 1 and root.has_one_use()
    return plain and isinstance(root.owner, t.UnitOp) and stores_plainly(root.owner, root)


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
        if isinstance(user, (g.MatmulOp, g.ConvOp)) and value in user.operands[1:] and value is not user.residual:
            return True
    return False


def stores_plainly(unit: t.UnitOp, result: SSAValue) -> bool:
    """Whether a map is written by stores that see it as the four dimensions that it has."""
    usual = dense(g.shape_of(result))
    number = unit.results.index(result)
    stores = [op for op in unit.body.block.ops if isinstance(op, t.StoreOp) and op.output.value.data == number]
    return bool(stores) and all(s.view.data.strides[0] == usual[0] and s.view.data.block == 1 for s in stores)
