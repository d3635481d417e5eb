"""Dialect `funit`: which layers are fused, and how a unit is cut into tiles.

Operations: `unit` (a set of layers run as one), `yield` (its output).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, TypeVar, get_args

from xdsl.dialects.builtin import I64, DenseArrayBase, StringAttr, i64
from xdsl.ir import Attribute, Block, Data, Dialect, OpTraits, Region, SSAValue
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

DIMENSIONS = 4

Borders: TypeAlias = Literal["overlap", "exchange", "raster"]
BORDERS: tuple[Borders, ...] = get_args(Borders)
Owners: TypeAlias = Literal["clusters", "cores"]
OWNERS: tuple[Owners, ...] = get_args(Owners)
Way: TypeAlias = Literal["down", "up", "right", "left"]
WAYS: tuple[Way, ...] = get_args(Way)
W = TypeVar("W", bound=str)
V = TypeVar("V")


def parse_ints(parser: AttrParser) -> tuple[int, ...]:
    """`[1, -2, 3]`"""
    return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer))


def parse_extents(parser: AttrParser) -> Extents:
    values = parse_ints(parser)
    if len(values) != DIMENSIONS:
        parser.raise_error(f"expected {DIMENSIONS} integers, found {len(values)}")
    return values


def parse_named(parser: AttrParser, name: str, parse: Callable[[], V]) -> V:
    """What follows a comma and its name."""
    parser.parse_punctuation(",")
    parser.parse_keyword(name)
    return parse()


def one_of(parser: AttrParser, words: tuple[W, ...]) -> W:
    word = parser.parse_identifier()
    if word not in words:
        parser.raise_error(f"expected one of {', '.join(words)}, found {word}")
    return words[words.index(word)]


def ints(values: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


@dataclass(frozen=True)
class Partition:
    """One tile of the unit's output (`tile`, elements), the dimension dealt to clusters, copies of the SRAM tiles,
    and what happens at the borders of tiles: `overlap`: computed again; `exchange`: rows are kept (columns, where the
    steps go along these); `raster`: rows and columns are (docs/techniques/frustum.md)."""

    tile: Extents
    clusters: int
    depth: int
    borders: Borders = "overlap"
    trimmed: bool = False
    """Where a dimension has two tiles, these hold of the maps inside only what is in the map."""
    bands: int = 0
    """Columns of the output in a band, each of which is made from top to bottom before the next (0: one band)."""
    again: tuple[int, ...] = ()
    """Layers, by number, of which no rows are kept: each step makes again those that it needs of the steps before."""
    shared: bool = False
    """Inputs are loaded with all rows and columns, once for all clusters, each of which reads its part."""
    owners: Owners | None = None
    """Who makes tiles alone and, with borders `exchange`, hands what others need of them over: clusters, or cores."""
    way: Way = "down"
    """With borders `exchange`: where the steps go, along the rows (down, up) or along the columns."""
    inside: bool = False
    """Channels are the innermost loop over tiles: maps that all of them need are loaded once, weights in every turn."""
    handed: bool = False
    """Each cluster loads its own strip of an input, and is sent by those next to it what it reads beside that."""

    @property
    def along(self) -> int:
        """The dimension along which the steps go."""
        return 2 if self.way in ("down", "up") else 3

    @property
    def beside(self) -> int:
        """The other one, along which owners lie side by side."""
        return 5 - self.along


    @property
    def has_owned_tiles(self) -> bool:
        """Whether single tiles have clusters as owners, which the order says: layer by layer."""
        return self.owners == "clusters" and self.borders == "overlap"


@irdl_attr_definition
class PartitionAttr(Data[Partition]):
    """`#funit.partition<tile [1, 64, 14, 56], clusters 3, depth 2, borders exchange>`; borders overlap is left out"""

    name = "funit.partition"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Partition:
        with parser.in_angle_brackets():
            parser.parse_keyword("tile")
            tile = parse_extents(parser)
            clusters = parse_named(parser, "clusters", parser.parse_integer)
            found = Partition(tile, clusters, parse_named(parser, "depth", parser.parse_integer))
            while parser.parse_optional_punctuation(",") is not None:
                found = parse_option(parser, found)
            return found

    def print_parameter(self, printer: Printer) -> None:
        p = self.data
        borders = "" if p.borders == "overlap" else f", borders {p.borders}"
        borders += ", trimmed" if p.trimmed else ""
        borders += f", bands {p.bands}" if p.bands else ""
        borders += f", again {ints(p.again)}" if p.again else ""
        borders += ", shared" if p.shared else ""
        borders += f", owners {p.owners}" if p.owners else ""
        borders += f", way {p.way}" if p.way != "down" else ""
        borders += ", inside" if p.inside else ""
        borders += ", handed" if p.handed else ""
        printer.print_string(f"<tile {ints(p.tile)}, clusters {p.clusters}, depth {p.depth}{borders}>")

    def verify(self) -> None:
        if min(self.data.tile) < 1:
            raise VerifyException(
                f"a tile has at least one element per dimension, found {ints(self.data.tile)}"
            )
        if not 0 <= self.data.clusters < DIMENSIONS:
            raise VerifyException(f"clusters names a dimension 0..3, found {self.data.clusters}")
        if self.data.depth not in (1, 2):
            raise VerifyException(f"depth is 1 or 2, found {self.data.depth}")
        if self.data.bands < 0 or min(self.data.again, default=0) < 0:
            raise VerifyException(
                f"bands and again count columns and layers, found {self.data.bands} and {ints(self.data.again)}"
            )
        if self.data.inside and self.data.borders != "overlap":
            raise VerifyException("channels are inside with borders overlap alone")
        if self.data.way != "down" and (self.data.borders != "exchange" or self.data.again):
            raise VerifyException(f"steps go {self.data.way} with borders exchange alone, and make no layer again")


OPTIONS = ("borders", "trimmed", "bands", "again", "shared", "owners", "way", "inside", "handed")


def parse_option(parser: AttrParser, found: Partition) -> Partition:
    """One of the things that a partition says at its end."""
    match one_of(parser, OPTIONS):
        case "bands":
            return replace(found, bands=parser.parse_integer())
        case "again":
            return replace(found, again=parse_ints(parser))
        case "borders":
            return replace(found, borders=one_of(parser, BORDERS))
        case "owners":
            return replace(found, owners=one_of(parser, OWNERS))
        case "way":
            return replace(found, way=one_of(parser, WAYS))
        case "trimmed":
            return replace(found, trimmed=True)
        case "inside":
            return replace(found, inside=True)
        case "handed":
            return replace(found, handed=True)
        case _:
            return replace(found, shared=True)


class NamedUnit(IRDLOperation):
    """What units of both levels share: a name, tensor operands bound to block arguments, results."""

    def print_head(self, printer: Printer) -> None:
        unit_name = self.properties["unit_name"]
        assert isinstance(unit_name, StringAttr)
        printer.print_string(" ")
        printer.print_string_literal(unit_name.data)
        printer.print_string(" (")
        for position, (argument, operand) in enumerate(zip(self.regions[0].block.args, self.operands, strict=True)):
            if position:
                printer.print_string(", ")
            printer.print_ssa_value(argument)
            printer.print_string(" = ")
            printer.print_ssa_value(operand)
            printer.print_string(" : ")
            printer.print_attribute(operand.type)
        printer.print_string(") -> (")
        printer.print_list(self.result_types, printer.print_attribute)
        printer.print_string(")")

    @staticmethod
    def parse_head(
        parser: Parser,
    ) -> tuple[StringAttr, list[Parser.Argument], list[SSAValue], list[Attribute]]:
        """name, block arguments, operands, result types"""
        unit_name = StringAttr(parser.parse_str_literal())

        def binding() -> tuple[Parser.Argument, SSAValue]:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            operand = parser.parse_unresolved_operand()
            parser.parse_punctuation(":")
            operand_type = parser.parse_type()
            return argument.resolve(operand_type), parser.resolve_operand(operand, operand_type)

        bindings = parser.parse_comma_separated_list(parser.Delimiter.PAREN, binding)
        parser.parse_punctuation("->")
        results: list[Attribute] = list(
            parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        )
        return unit_name, [b[0] for b in bindings], [b[1] for b in bindings], results

    def verify_bindings(self) -> None:
        arguments = self.regions[0].block.args
        if [a.type for a in arguments] != [o.type for o in self.operands]:
            raise VerifyException(f"{self.name}: block arguments must have the types of the operands")


@irdl_op_definition
class UnitOp(NamedUnit):
    """A template fuse unit: layers whose intermediate maps stay on chip (docs/techniques/tfu.md)."""

    name = "funit.unit"
    unit_name: StringAttr = prop_def(StringAttr)
    partition: PartitionAttr | None = opt_prop_def(PartitionAttr)
    mode: StringAttr | None = opt_prop_def(StringAttr)
    stopped_by: StringAttr | None = opt_prop_def(StringAttr)
    keeps: DenseArrayBase[I64] | None = opt_prop_def(DenseArrayBase.constr(i64))
    """Numbers of the results that stay in SRAM until their last use instead of going to DRAM."""
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
        mode: str | None = None,
        stopped_by: str | None = None,
    ):
        super().__init__(
            operands=[inputs],
            result_types=[result_types],
            regions=[Region(Block(arg_types=[i.type for i in inputs]))],
            properties={
                "unit_name": StringAttr(unit_name),
                "mode": None if mode is None else StringAttr(mode),
                "stopped_by": None if stopped_by is None else StringAttr(stopped_by),
            },
        )

    OPTIONAL: ClassVar[tuple[str, ...]] = ("partition", "keeps", "mode", "stopped_by")

    @property
    def kept(self) -> frozenset[int]:
        """Numbers of the results that stay in SRAM."""
        return frozenset() if self.keeps is None else frozenset(map(int, self.keeps.get_values()))

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        options = {k: self.properties[k] for k in self.OPTIONAL if k in self.properties}
        printer.print_string(" ")
        printer.print_attr_dict(options)  # even if empty: what opens with a brace next is taken for it
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> UnitOp:
        unit_name, arguments, operands, results = cls.parse_head(parser)
        options = parser.parse_optional_attr_dict()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(arguments)
        return cls.create(
            operands=operands,
            result_types=results,
            regions=[body],
            properties={"unit_name": unit_name, **options},
            attributes=attributes.data if attributes else {},
        )

    def verify_(self) -> None:
        self.verify_bindings()
        last = self.body.block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException("funit.unit: the body must end with funit.yield")
        if [v.type for v in last.operands] != list(self.result_types):
            raise VerifyException("funit.unit: funit.yield must have the types of the results")
        if any(not 0 <= k < len(self.results) for k in self.kept):
            raise VerifyException(
                f"funit.unit: keeps names results 0..{len(self.results) - 1}, found {sorted(self.kept)}"
            )


@irdl_op_definition
class YieldOp(IRDLOperation):
    """The outputs of a unit."""

    name = "funit.yield"
    values: VarOperand = var_operand_def()
    assembly_format: ClassVar[str] = "attr-dict ($values^ `:` type($values))?"
    traits: typing.ClassVar[OpTraits] = traits_def(IsTerminator(), HasParent(UnitOp), Pure())

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[values])


FUnit: Dialect = Dialect("funit", [UnitOp, YieldOp], [PartitionAttr])

__all__ = ["FUnit", "NamedUnit", "Partition", "PartitionAttr", "UnitOp", "YieldOp"]
