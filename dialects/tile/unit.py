"""`ftile.unit`, the loops over tiles, `ftile.yield`, which ends them, and `sweeps`, the order of the tiles: loops one
after the other, each of which goes through some of the grid's tiles."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from xdsl.dialects.builtin import I64, DenseArrayBase, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Block, Data, Operation, OpTraits, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarOperand,
    VarOpResult,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.extents import Extents
from frustum.dialects.isa.attributes import parse_affine
from frustum.dialects.isa.program import MAX_LOOPS, Affine
from frustum.dialects.tile.operations import SendOp, carried
from frustum.dialects.tile.tile_type import TileType, is_ring
from frustum.dialects.unit import DIMENSIONS, NamedUnit, ints, parse_extents, parse_ints

TILE_LOOPS: Extents = (1, 0, 2, 3)
"""Dimensions of the loops over tiles, from the outermost: a channel range keeps its weights while n, h and w run."""
CHANNEL_LOOPS: Extents = (0, 2, 3, 1)
"""The same with the channels innermost: boxes that all of them need stay while these run, and weights do not."""
IMAGE_LOOPS: Extents = (1, 2, 3, 0)
"""The same of tiles that do not depend on each other, the images innermost."""
ROLLING_LOOPS: Extents = (1, 0, 3, 2)
"""The same where rows roll: one column strip after the other, each from top to bottom."""


SHOWN = ("mode", "stopped_by", "loops", "sweeps", "owners", "way")
POSITION = 2
"""A tile's place in the grid: along d2 and along d3."""


@dataclass(frozen=True)
class Sweep:
    """Loops of `counts` passes, from the outermost, and the tile of each pass: its index along d2 (`row`) and d3
    (`column`), affine in the loop indices and the cluster.  A tile beyond the grid is empty: the cluster does nothing.
    """

    counts: tuple[int, ...]
    row: Affine
    column: Affine

    def positions(self, cluster: int) -> Iterator[tuple[int, int]]:
        """The tiles that a cluster goes through, and places beyond the grid."""
        for indices in product(*(range(count) for count in self.counts)):
            yield self.row.at(indices, cluster), self.column.at(indices, cluster)

    def __str__(self) -> str:
        return f"{ints(self.counts)} at [{self.row}, {self.column}]"


@irdl_attr_definition
class SweepsAttr(Data[tuple[Sweep, ...]]):
    """`#ftile.sweeps<[2, 4] at [2*i0 + 1*cluster, 1*i1], [3] at [...]>`: one after the other"""

    name = "ftile.sweeps"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Sweep, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _parse_sweep(parser)))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{', '.join(map(str, self.data))}>")

    def verify(self) -> None:
        if not self.data:
            raise VerifyException("a unit has at least one sweep")
        for sweep in self.data:
            deepest = max(len(sweep.row.loops), len(sweep.column.loops))
            if deepest > len(sweep.counts) or len(sweep.counts) > MAX_LOOPS or min(sweep.counts, default=1) < 1:
                raise VerifyException(f"a sweep has at most {MAX_LOOPS} loops and no other indices, found {sweep}")
            if sweep.row.core or sweep.column.core:
                raise VerifyException(f"all cores of a cluster share a tile, found {sweep}")


def _parse_sweep(parser: AttrParser) -> Sweep:
    counts = parse_ints(parser)
    parser.parse_keyword("at")
    place = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_affine(parser))
    if len(place) != POSITION:
        parser.raise_error(f"expected the index along d2 and along d3, found {len(place)} indices")
    return Sweep(counts, place[0], place[1])


@irdl_op_definition
class UnitOp(NamedUnit):
    """Loops over the tiles of a unit's output: `counts` passes per dimension (d0 outermost).

    The tile index along dimension `clusters` is dealt: cluster k of K has tiles K*i + k.
    With `sweeps` these say in which order, and on which cluster, the tiles along d2 and d3 are made; `clusters` then
    says nothing of them: regions are in the indices of the grid.
    """

    name = "ftile.unit"
    unit_name: StringAttr = prop_def(StringAttr)
    counts: DenseArrayBase[I64] = prop_def(DenseArrayBase.constr(i64))
    clusters: IntegerAttr = prop_def(IntegerAttr)
    depth: IntegerAttr = prop_def(IntegerAttr)
    mode: StringAttr | None = opt_prop_def(StringAttr)
    stopped_by: StringAttr | None = opt_prop_def(StringAttr)
    loops: DenseArrayBase[I64] | None = opt_prop_def(DenseArrayBase.constr(i64))
    sweeps: SweepsAttr | None = opt_prop_def(SweepsAttr)
    owners: StringAttr | None = opt_prop_def(StringAttr)
    """Who makes tiles alone: `clusters` (the same as nothing) or `cores`."""
    way: StringAttr | None = opt_prop_def(StringAttr)
    """Of steps that borders roll along: down, up, right or left."""
    inputs: VarOperand = var_operand_def()
    outputs: VarOpResult = var_result_def()
    body: Region = region_def("single_block")
    traits: typing.ClassVar[OpTraits] = traits_def(Pure())

    def __init__(
        self,
        unit_name: str,
        inputs: Sequence[SSAValue],
        result_types: Sequence[Attribute],
        *,
        counts: Extents,
        clusters: int,
        depth: int,
        mode: StringAttr | None = None,
        stopped_by: StringAttr | None = None,
        loops: Extents = TILE_LOOPS,
    ):
        super().__init__(
            operands=[inputs],
            result_types=[result_types],
            regions=[Region(Block(arg_types=[i.type for i in inputs]))],
            properties=carried(
                unit_name=unit_name,
                counts=counts,
                clusters=clusters,
                depth=depth,
                mode=mode,
                stopped_by=stopped_by,
                loops=None if loops == TILE_LOOPS else loops,
            ),
        )

    @property
    def loop_order(self) -> Extents:
        """Dimensions of the loops over the tiles, from the outermost."""
        if self.loops is None:
            return TILE_LOOPS
        return tuple(map(int, self.loops.get_values()))

    @property
    def tile_counts(self) -> Extents:
        return tuple(map(int, self.counts.get_values()))

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        printer.print_string(
            f" counts {ints(self.tile_counts)} clusters {self.clusters.value.data} "
            f"depth {self.depth.value.data}"
        )
        options = {k: v for k, v in self.properties.items() if k in SHOWN}
        printer.print_string(" ")
        printer.print_attr_dict(options)  # even if empty: what opens with a brace next is taken for it
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> UnitOp:
        unit_name, arguments, operands, results = cls.parse_head(parser)
        parser.parse_keyword("counts")
        counts = parse_extents(parser)
        parser.parse_keyword("clusters")
        clusters = parser.parse_integer()
        parser.parse_keyword("depth")
        depth = parser.parse_integer()
        options = parser.parse_optional_attr_dict()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(arguments)
        properties = {
            "unit_name": unit_name,
            **carried(counts=counts, clusters=clusters, depth=depth),
            **options,
        }
        return cls.create(
            operands=operands,
            result_types=results,
            regions=[body],
            properties=properties,
            attributes=attributes.data if attributes else {},
        )

    def verify_(self) -> None:
        self.verify_bindings()
        if not isinstance(self.body.block.last_op, YieldOp):
            raise VerifyException("ftile.unit: the body must end with ftile.yield")
        if [v.type for v in self.body.block.last_op.operands] != [
            r for r in self.result_types if isinstance(r, TileType)
        ]:
            raise VerifyException("ftile.unit: ftile.yield must have the types of the results that are tiles")
        for kind in (t for t in (*self.result_types, *self.operand_types) if isinstance(t, TileType)):
            if kind.data.origin is None or any(s.loops for s in kind.data.origin) or is_ring(kind.data):
                raise VerifyException(
                    "ftile.unit: a tile that leaves its unit has an origin that does not move"
                )
        if sorted(self.loop_order) != list(range(DIMENSIONS)):
            raise VerifyException(
                f"ftile.unit: loops names each dimension once, found {ints(self.loop_order)}"
            )
        if min(self.tile_counts) < 1:
            raise VerifyException(
                f"ftile.unit: every dimension has at least one tile, found {ints(self.tile_counts)}"
            )


def is_at_end(op: Operation, unit: UnitOp) -> bool:
    """Whether an operation of a unit with sweeps is carried out once, behind all of them: a send of the same box in all
    passes, whose elements several of them make."""
    if not isinstance(op, SendOp) or unit.sweeps is None:
        return False
    ends = (each for each in (*op.region.data.start, *op.region.data.limit) if each is not None)
    return not any(any(each.loops) for each in ends)


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends the body: what the stores have written are the unit's results that are tensors, `tiles` the others."""

    name = "ftile.yield"
    tiles: VarOperand = var_operand_def(TileType)
    assembly_format: ClassVar[str] = "attr-dict ($tiles^ `:` type($tiles))?"
    traits: typing.ClassVar[OpTraits] = traits_def(IsTerminator(), HasParent(UnitOp))

    def __init__(self, tiles: Sequence[SSAValue] = ()) -> None:
        super().__init__(operands=[tiles])
