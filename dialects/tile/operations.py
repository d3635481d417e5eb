"""What happens to tiles inside a unit: loads, computations, stores, sends, and moves."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from xdsl.dialects import builtin
from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, OpResult, OpTraits, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    Operand,
    VarOperand,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.extents import Extents
from frustum.dialects.isa.attributes import BoxAttr
from frustum.dialects.isa.program import Box
from frustum.dialects.tile.access import Access, AccessAttr, MapAttr, SubMap, TensorView, ViewAttr
from frustum.dialects.tile.layers import LayerKind, from_attributes, to_attributes
from frustum.dialects.tile.tile_type import Tile, TileType, tile_of
from frustum.dialects.unit import Partition, PartitionAttr

CARRIERS: dict[type, Callable[[Any], Attribute]] = {
    int: lambda value: IntegerAttr(value, i64),
    float: lambda value: FloatAttr(value, builtin.f64),
    str: StringAttr,
    StringAttr: lambda word: word,
    tuple: lambda values: DenseArrayBase.from_list(i64, values),
    Box: BoxAttr,
    SubMap: MapAttr,
    TensorView: ViewAttr,
    Partition: PartitionAttr,
}


def carried(**values: Any) -> dict[str, Attribute]:
    """The attributes that carry plain values, of those that are not None."""
    return {name: CARRIERS[type(value)](value) for name, value in values.items() if value is not None}


@irdl_op_definition
class LoadOp(IRDLOperation):
    """DRAM to SRAM: the region of a tensor, seen through a view; with `fill`, positions outside are that value."""

    name = "ftile.load"
    source: Operand = operand_def(TensorType)
    view: ViewAttr = prop_def(ViewAttr)
    region: BoxAttr = prop_def(BoxAttr)
    fill: FloatAttr | None = opt_prop_def(FloatAttr)
    result: OpResult[TileType] = result_def(TileType)
    assembly_format: ClassVar[str] = (
        "$source `view` $view `region` $region (`fill` $fill^)? attr-dict "
        "`:` type($source) `->` type($result)"
    )
    traits: typing.ClassVar[OpTraits] = traits_def(Pure())

    def __init__(
        self, source: SSAValue, view: TensorView, region: Box, tile: Tile, fill: float | None = None
    ):
        super().__init__(
            operands=[source],
            result_types=[TileType(tile)],
            properties=carried(view=view, region=region, fill=fill),
        )


@irdl_op_definition
class ComputeOp(IRDLOperation):
    """One layer on one tile: `region` of its output from the operands' tiles (then weight and bias tensors).

    `access` says for each tile operand which positions a piece needs; `layer` is the kind with its own numbers.
    """

    name = "ftile.compute"
    kind: StringAttr = prop_def(StringAttr)
    operands_: VarOperand = var_operand_def()
    region: BoxAttr = prop_def(BoxAttr)
    access: ArrayAttr[AccessAttr] = prop_def(ArrayAttr[AccessAttr])
    map: MapAttr = prop_def(MapAttr)
    params: DictionaryAttr = prop_def(DictionaryAttr)
    result: OpResult[TileType] = result_def(TileType)
    assembly_format: ClassVar[str] = (
        "$kind `(` $operands_ `)` `region` $region `access` $access `map` $map `params` $params "
        "attr-dict `:` functional-type(operands, results)"
    )
    traits: typing.ClassVar[OpTraits] = traits_def(Pure())

    def __init__(
        self,
        layer: LayerKind,
        operands: Sequence[SSAValue],
        region: Box,
        access: Sequence[Access],
        map: SubMap,
        tile: Tile,
    ):
        super().__init__(
            operands=[operands],
            result_types=[TileType(tile)],
            properties={
                **carried(kind=str(layer), region=region, map=map),
                "access": ArrayAttr([AccessAttr(a) for a in access]),
                "params": to_attributes(layer),
            },
        )

    @property
    def layer(self) -> LayerKind:
        return from_attributes(self.kind.data, self.params)

    @property
    def tiles(self) -> list[SSAValue]:
        return [o for o in self.operands if isinstance(o.type, TileType)]

    @property
    def tensors(self) -> list[SSAValue]:
        return [o for o in self.operands if isinstance(o.type, TensorType)]

    def verify_(self) -> None:
        if len(self.tiles) != len(self.access.data):
            raise VerifyException(f"{len(self.tiles)} tiles but {len(self.access.data)} accesses")
        from_attributes(self.kind.data, self.params)
        check_in_core(self)


@irdl_op_definition
class StoreOp(IRDLOperation):
    """SRAM to DRAM: the region of a tile into result number `output` of the unit, seen through a view."""

    name = "ftile.store"
    tile: Operand = operand_def(TileType)
    output: IntegerAttr = prop_def(IntegerAttr)
    view: ViewAttr = prop_def(ViewAttr)
    region: BoxAttr = prop_def(BoxAttr)
    assembly_format: ClassVar[str] = "$tile `to` $output `view` $view `region` $region attr-dict `:` type($tile)"

    def __init__(self, tile: SSAValue, output: int, view: TensorView, region: Box):
        super().__init__(operands=[tile], properties=carried(output=output, view=view, region=region))


@irdl_op_definition
class SendOp(IRDLOperation):
    """SRAM to SRAM: cluster k copies the region of its tile to the same place of cluster k + `by`'s; the region is
    empty on clusters that have no such neighbour.  Source: docs/techniques/frustum.md, "Borders"."""

    name = "ftile.send"
    tile: Operand = operand_def(TileType)
    by: IntegerAttr = prop_def(IntegerAttr)
    region: BoxAttr = prop_def(BoxAttr)
    assembly_format: ClassVar[str] = "$tile `by` $by `region` $region attr-dict `:` type($tile)"

    def __init__(self, tile: SSAValue, by: int, region: Box):
        super().__init__(operands=[tile], properties=carried(by=by, region=region))

    def verify_(self) -> None:
        if tile_of(self.tile).origin is None:
            raise VerifyException(
                "ftile.send: only a tile that stays in its place (with an origin) can be sent"
            )


@irdl_op_definition
class ConcatOp(IRDLOperation):
    """Tiles side by side along d1: no copy, the operands lie in the result's buffer one behind the other."""

    name = "ftile.concat"
    tiles: VarOperand = var_operand_def(TileType)
    result: OpResult[TileType] = result_def(TileType)
    assembly_format: ClassVar[str] = "$tiles attr-dict `:` functional-type($tiles, $result)"
    traits: typing.ClassVar[OpTraits] = traits_def(Pure())

    def __init__(self, tiles: Sequence[SSAValue], tile: Tile):
        super().__init__(operands=[tiles], result_types=[TileType(tile)])

    def verify_(self) -> None:
        channels, held = sum(tile_of(t).extents[1] for t in self.tiles), tile_of(self.result).extents[1]
        if channels != held:
            raise VerifyException(f"ftile.concat: {channels} channels of operands in {held}")
        if any(is_in_core(tile) != is_in_core(self.result) for tile in self.tiles):
            raise VerifyException("ftile.concat: its operands are in the core just where it is")
        check_in_core(self)


def is_in_core(value: SSAValue) -> bool:
    """Whether a value is a tile that is never in SRAM."""
    return isinstance(value.type, TileType) and value.type.data.core


def is_in_rounds(value: SSAValue) -> bool:
    """Whether a value is a loaded tile of which the layer that reads it has a part in SRAM at a time: some channels of
    its map, or pieces of what it adds."""
    users = (use.operation for use in value.uses)
    return isinstance(value.owner, LoadOp) and any(
        isinstance(user, ComputeOp) and user.map.data.in_rounds and value in user.tiles for user in users
    )


def check_in_core(made: ComputeOp | ConcatOp) -> None:
    """Raises `VerifyException` for a tile in the core that anything but one computation or concatenation reads."""
    readers = [use.operation for use in made.result.uses]
    is_run = len(readers) == 1 and isinstance(readers[0], (ComputeOp, ConcatOp))
    if is_in_core(made.result) and not is_run:
        found = ", ".join(reader.name for reader in readers) or "none"
        raise VerifyException(f"{made.name}: one layer reads a tile in the core, found {found}")


def run_of(op: ComputeOp) -> list[ComputeOp]:
    """The layers of a run in their order, of which this is the last: those whose tiles in the core it needs."""
    found = [op]
    for value in op.tiles:
        found[:0] = [maker for made in in_core_parts(value) for maker in run_of(made)]
    return found


def in_core_parts(value: SSAValue) -> list[ComputeOp]:
    """The computations that make a tile in the core, several where it is a concatenation; none of other tiles."""
    if not is_in_core(value):
        return []
    if isinstance(value.owner, ConcatOp):
        return [maker for part in value.owner.tiles for maker in in_core_parts(part)]
    assert isinstance(value.owner, ComputeOp)
    return [value.owner]


@irdl_op_definition
class MoveOp(IRDLOperation):
    """DRAM to DRAM through SRAM, tile by tile: position p of `dims` comes from position `p + low` of the source.

    Positions outside `[0, bound)` of the source are written with `fill`.
    """

    name = "ftile.move"
    source: Operand = operand_def(TensorType)
    output: IntegerAttr = prop_def(IntegerAttr)
    dims: DenseArrayBase[I64] = prop_def(DenseArrayBase.constr(i64))
    source_view: ViewAttr = prop_def(ViewAttr)
    target_view: ViewAttr = prop_def(ViewAttr)
    low: DenseArrayBase[I64] = prop_def(DenseArrayBase.constr(i64))
    bound: DenseArrayBase[I64] = prop_def(DenseArrayBase.constr(i64))
    fill: FloatAttr | None = opt_prop_def(FloatAttr)
    partition: PartitionAttr = prop_def(PartitionAttr)
    assembly_format: ClassVar[str] = (
        "$source `to` $output `dims` $dims `from` $source_view `into` $target_view `low` $low `bound` $bound "
        "(`fill` $fill^)? `partition` $partition attr-dict `:` type($source)"
    )

    def __init__(
        self,
        source: SSAValue,
        output: int,
        dims: Extents,
        source_view: TensorView,
        target_view: TensorView,
        low: Extents,
        bound: Extents,
        fill: float | None,
        partition: Partition,
    ):
        super().__init__(
            operands=[source],
            properties=carried(
                output=output,
                dims=dims,
                source_view=source_view,
                target_view=target_view,
                low=low,
                bound=bound,
                fill=fill,
                partition=partition,
            ),
        )
