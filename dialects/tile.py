"""Dialect `ftile`: units as loops over tiles that are loaded, computed and stored.

Operations: `unit` (the loops), `load` (DRAM to SRAM tile), `compute` (one layer on a tile, spread over the
cores by its map), `concat` (tiles that lie side by side in one), `store` (SRAM tile to DRAM), `send` (part of a
tile to another cluster), `move` (a copy through SRAM with loops of its own), `yield` (the tensors a unit has
written, and the tiles that stay in SRAM after it).

Every layer is seen as a nest of four dimensions d0..d3 (n, c, h, w of a feature map); `docs/ir-tile.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    f64,
    i64,
)
from xdsl.ir import Attribute, Block, Data, Dialect, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.attributes import BoxAttr, parse_affine
from frustum.dialects.isa.program import Affine, Box, Element
from frustum.dialects.sweeps import SweepsAttr
from frustum.dialects.unit import (
    DIMENSIONS,
    Extents,
    NamedUnit,
    Partition,
    PartitionAttr,
    ints,
    parse_extents,
    parse_ints,
)

Plain: TypeAlias = int | float | str | Sequence[int] | Sequence[float]
Outer: TypeAlias = Literal["space", "channels"]
Residency: TypeAlias = Literal["unit", "stream"]


@dataclass(frozen=True, slots=True)
class Axis:
    """Which input positions one dimension of a piece needs: output `[a, a + e)` needs
    `[a * num // den + low, ... + ((e - 1) * num) // den + 1 + reach)`.

    Source: frustum.md, "Regions (backward projection)": stride `num`, leading pad `-low`, `reach = (K - 1) * D`.
    With `den > 1` (resize, grouped channels) pieces start at multiples of `den`.
    """

    num: int = 1
    den: int = 1
    low: int = 0
    reach: int = 0

    def start(self, a: Affine) -> Affine:
        """The first position for pieces that start at `a`; every coefficient must be a multiple of `den`."""
        scaled = a * self.num
        if self.den != 1:
            scaled = Affine(
                scaled.base // self.den,
                tuple(c // self.den for c in scaled.loops),
                scaled.cluster // self.den,
                scaled.core // self.den,
            )
        return scaled + self.low

    def extent(self, e: int) -> int:
        return (e - 1) * self.num // self.den + 1 + self.reach

    def __str__(self) -> str:
        return "same" if self == SAME else ints((self.num, self.den, self.low, self.reach))


@dataclass(frozen=True, slots=True)
class Whole:
    """All positions of the operand, whatever the piece (`all`; `one` where the operand has one and is broadcast)."""

    size: int

    def start(self, a: Affine) -> Affine:
        return Affine()

    def extent(self, e: int) -> int:
        return self.size

    def __str__(self) -> str:
        return f"all {self.size}"


SAME = Axis()
AnyAxis: TypeAlias = Axis | Whole
Access: TypeAlias = tuple[AnyAxis, AnyAxis, AnyAxis, AnyAxis]


@dataclass(frozen=True, slots=True)
class TensorView:
    """How the four dimensions lie in a tensor: offset and strides in elements.

    With `block` > 1 position c of d1 is at `c // block * strides[1] + c % block`.
    """

    offset: int
    strides: Extents
    block: int = 1

    @property
    def near(self) -> Extents:
        """Strides between neighbours: inside a block, if there are blocks."""
        n, c, h, w = self.strides
        return (n, c if self.block == 1 else 1, h, w)


@dataclass(frozen=True, slots=True)
class SubMap:
    """What one core computes at a time: `extent` of the piece; dimension `cores` is dealt to the cores in turn;
    `channels` input channels at a time; which loops are outside; where weights wait."""

    extent: Extents
    cores: int
    channels: int = 0
    outer: Outer = "space"
    weights: Residency = "unit"


@irdl_attr_definition
class AccessAttr(Data[Access]):
    """`#ftile.access<same, all 64, [2, 1, -3, 6], same>`"""

    name = "ftile.access"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Access:
        axes = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _parse_axis(parser))
        if len(axes) != DIMENSIONS:
            parser.raise_error(f"expected {DIMENSIONS} axes, found {len(axes)}")
        return (axes[0], axes[1], axes[2], axes[3])

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<" + ", ".join(map(str, self.data)) + ">")


def _parse_axis(parser: AttrParser) -> AnyAxis:
    if parser.parse_optional_keyword("same"):
        return SAME
    if parser.parse_optional_keyword("all"):
        return Whole(parser.parse_integer())
    return Axis(*parse_ints(parser))


@irdl_attr_definition
class ViewAttr(Data[TensorView]):
    """`#ftile.view<0, [150528, 50176, 224, 1]>`, `#ftile.view<0, [50176, 12544, 896, 16], block 16>`"""

    name = "ftile.view"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TensorView:
        with parser.in_angle_brackets():
            offset = parser.parse_integer()
            parser.parse_punctuation(",")
            strides = parse_extents(parser)
            if parser.parse_optional_punctuation(",") is None:
                return TensorView(offset, strides)
            parser.parse_keyword("block")
            return TensorView(offset, strides, parser.parse_integer())

    def print_parameter(self, printer: Printer) -> None:
        block = "" if self.data.block == 1 else f", block {self.data.block}"
        printer.print_string(f"<{self.data.offset}, {ints(self.data.strides)}{block}>")

    def verify(self) -> None:
        if self.data.block < 1:
            raise VerifyException(f"a block has at least one channel, found {self.data.block}")


@irdl_attr_definition
class MapAttr(Data[SubMap]):
    """`#ftile.map<extent [1, 64, 14, 112], cores 2, channels 3, outer space, weights unit>`"""

    name = "ftile.map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> SubMap:
        with parser.in_angle_brackets():
            parser.parse_keyword("extent")
            extent = parse_extents(parser)
            parser.parse_punctuation(",")
            parser.parse_keyword("cores")
            cores = parser.parse_integer()
            parser.parse_punctuation(",")
            parser.parse_keyword("channels")
            channels = parser.parse_integer()
            parser.parse_punctuation(",")
            parser.parse_keyword("outer")
            outer = _one_of(parser, get_args(Outer))
            parser.parse_punctuation(",")
            parser.parse_keyword("weights")
            return SubMap(
                extent,
                cores,
                channels,
                cast(Outer, outer),
                cast(Residency, _one_of(parser, get_args(Residency))),
            )

    def print_parameter(self, printer: Printer) -> None:
        m = self.data
        printer.print_string(
            f"<extent {ints(m.extent)}, cores {m.cores}, channels {m.channels}, "
            f"outer {m.outer}, weights {m.weights}>"
        )

    def verify(self) -> None:
        if min(self.data.extent) < 1:
            raise VerifyException(
                f"a piece has at least one element per dimension, found {ints(self.data.extent)}"
            )
        if not 0 <= self.data.cores < DIMENSIONS:
            raise VerifyException(f"cores names a dimension 0..3, found {self.data.cores}")


def _one_of(parser: AttrParser, words: tuple[str, ...]) -> str:
    word = parser.parse_identifier()
    if word not in words:
        parser.raise_error(f"expected one of {', '.join(words)}, found {word}")
    return word


@dataclass(frozen=True, slots=True)
class Raster:
    """How a tile of which rows and columns are kept lies in two rings along the columns.

    Of the rows that one pass along d2 makes, the last `kept` are in a ring of `columns` columns, which holds those of
    the `back` passes before too; the others, which only the same pass reads, in one of `extents[3]`.  Both run on from
    pass to pass: column x of running pass t is at `(x + width * t) mod` the ring's columns.
    """

    kept: int
    back: int
    columns: int
    width: int

    def elements(self, extents: Extents) -> int:
        """Of both rings."""
        n, c, rows, columns = extents
        return n * c * (self.kept * self.columns + (rows - self.kept) * columns)


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of a map in SRAM: extents of the buffer, and the dimensions from the slowest to the fastest in memory.

    Without `origin` the buffer begins where the region of the operation begins that makes it, and moves with it.
    With one it begins there, and each pass makes a region of it; a tile that leaves its unit stays in its place (the
    origin depends on the cluster only).  A `ring` is circular along d2: row p lies in slot `p mod extents[2]`, and
    the origin's d2 says nothing.  With `raster` the extents are those of the rows that a pass makes, from the origin's
    d2 on, and of the ring of those that no later pass reads.
    """

    element: Element
    extents: Extents
    order: Extents
    origin: tuple[Affine, Affine, Affine, Affine] | None = None
    ring: bool = False
    raster: Raster | None = None


@irdl_attr_definition
class TileType(Data[Tile], TypeAttribute):
    """`!ftile.tile<f32, [1, 3, 61, 224], [0, 1, 2, 3]>`, `!ftile.tile<f32, [1, 3, 10, 58], [0, 1, 2, 3],
    origin [0, 0, 0, -1 + 56*cluster], ring>`, `!ftile.tile<f32, [1, 3, 4, 10], [0, 1, 2, 3], origin [0, 0, 4*i2, 0],
    raster [2, 1, 234, 224]>` (kept, back, columns, width)"""

    name = "ftile.tile"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Tile:
        with parser.in_angle_brackets():
            element = parser.parse_identifier()
            parser.parse_punctuation(",")
            extents = parse_extents(parser)
            parser.parse_punctuation(",")
            order, origin, ring, raster = parse_extents(parser), None, False, None
            while parser.parse_optional_punctuation(",") is not None:
                if parser.parse_optional_keyword("ring"):
                    ring = True
                    continue
                if parser.parse_optional_keyword("raster"):
                    raster = Raster(*parse_extents(parser))
                    continue
                parser.parse_keyword("origin")
                starts = parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, lambda: parse_affine(parser)
                )
                if len(starts) != DIMENSIONS:
                    parser.raise_error(f"expected {DIMENSIONS} positions, found {len(starts)}")
                origin = (starts[0], starts[1], starts[2], starts[3])
            return Tile(cast(Element, element), extents, order, origin, ring, raster)

    def print_parameter(self, printer: Printer) -> None:
        t = self.data
        origin = "" if t.origin is None else f", origin [{', '.join(map(str, t.origin))}]"
        ring = ", ring" if t.ring else ""
        if (r := t.raster) is not None:
            ring += f", raster {ints((r.kept, r.back, r.columns, r.width))}"
        printer.print_string(f"<{t.element}, {ints(t.extents)}, {ints(t.order)}{origin}{ring}>")

    def verify(self) -> None:
        if sorted(self.data.order) != list(range(DIMENSIONS)):
            raise VerifyException(f"the order must name each dimension once, found {ints(self.data.order)}")
        if self.data.origin is not None and any(s.core for s in self.data.origin):
            raise VerifyException("the origin of a tile does not depend on the core")
        if (self.data.ring or self.data.raster) and self.data.origin is None:
            raise VerifyException("a ring has an origin")
        self.verify_raster()

    def verify_raster(self) -> None:
        r = self.data.raster
        if r is None:
            return
        if self.data.ring or not 0 <= r.kept <= self.data.extents[2] or (r.kept == 0) != (r.back == 0):
            raise VerifyException(f"a raster keeps up to {self.data.extents[2]} rows of passes before, found {r.kept}")
        if r.kept and r.columns < r.back * r.width + 1:
            raise VerifyException(
                f"a raster that reaches back {r.back} passes of {r.width} columns has more, found {r.columns}"
            )


def is_ring(tile: Tile) -> bool:
    """Whether some dimension of a tile goes around."""
    return tile.ring or tile.raster is not None


def to_attributes(values: Mapping[str, Plain]) -> DictionaryAttr:
    """Plain numbers, words and lists of numbers as an attribute dictionary."""
    return DictionaryAttr({key: _to_attribute(value) for key, value in values.items()})


def _to_attribute(value: Plain) -> Attribute:
    if isinstance(value, str):
        return StringAttr(value)
    if isinstance(value, float):
        return FloatAttr(value, f64)
    if isinstance(value, int):
        return IntegerAttr(value, i64)
    if value and isinstance(value[0], float):
        return cast(Attribute, DenseArrayBase.from_list(f64, cast(Sequence[float], value)))
    return cast(Attribute, DenseArrayBase.from_list(i64, cast(Sequence[int], value)))


def to_plain(attributes: DictionaryAttr) -> dict[str, Any]:
    """The inverse of `to_attributes`; lists become tuples."""
    return {key: _to_plain(value) for key, value in attributes.data.items()}


def _to_plain(value: Attribute) -> Any:
    if isinstance(value, StringAttr):
        return value.data
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return value.value.data
    assert isinstance(value, DenseArrayBase)
    return tuple(value.get_values())


TILE_LOOPS: Extents = (1, 0, 2, 3)
"""Dimensions of the loops over tiles, from the outermost: a channel range keeps its weights while n, h and w run."""
ROLLING_LOOPS: Extents = (1, 0, 3, 2)
"""The same where rows roll: one column strip after the other, each from top to bottom."""


@irdl_op_definition
class UnitOp(NamedUnit):
    """Loops over the tiles of a unit's output: `counts` passes per dimension (d0 outermost).

    The tile index along dimension `clusters` is dealt: cluster k of K has tiles K*i + k.
    With `sweeps` these say in which order, and on which cluster, the tiles along d2 and d3 are made; `clusters` then
    says nothing of them: regions are in the indices of the grid.
    """

    name = "ftile.unit"
    unit_name = prop_def(StringAttr)
    counts = prop_def(DenseArrayBase.constr(i64))
    clusters = prop_def(IntegerAttr)
    depth = prop_def(IntegerAttr)
    mode = opt_prop_def(StringAttr)
    stopped_by = opt_prop_def(StringAttr)
    loops = opt_prop_def(DenseArrayBase.constr(i64))
    sweeps = opt_prop_def(SweepsAttr)
    inputs = var_operand_def()
    outputs = var_result_def()
    body = region_def("single_block")
    traits = traits_def(Pure())

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
            properties={
                "unit_name": StringAttr(unit_name),
                "counts": DenseArrayBase.from_list(i64, counts),
                "clusters": IntegerAttr(clusters, i64),
                "depth": IntegerAttr(depth, i64),
                "mode": mode,
                "stopped_by": stopped_by,
                "loops": None if loops == TILE_LOOPS else DenseArrayBase.from_list(i64, loops),
            },
        )

    @property
    def loop_order(self) -> Extents:
        """Dimensions of the loops over the tiles, from the outermost."""
        if self.loops is None:
            return TILE_LOOPS
        a, b, c, d = self.loops.get_values()
        return (int(a), int(b), int(c), int(d))

    @property
    def tile_counts(self) -> Extents:
        n, c, h, w = self.counts.get_values()
        return (int(n), int(c), int(h), int(w))

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        printer.print_string(
            f" counts {ints(self.tile_counts)} clusters {self.clusters.value.data} "
            f"depth {self.depth.value.data}"
        )
        options = {k: v for k, v in self.properties.items() if k in ("mode", "stopped_by", "loops", "sweeps")}
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
            "counts": DenseArrayBase.from_list(i64, counts),
            "clusters": IntegerAttr(clusters, i64),
            "depth": IntegerAttr(depth, i64),
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
                raise VerifyException("ftile.unit: a tile that leaves its unit has an origin that does not move")
        if sorted(self.loop_order) != list(range(DIMENSIONS)):
            raise VerifyException(
                f"ftile.unit: loops names each dimension once, found {ints(self.loop_order)}"
            )
        if min(self.tile_counts) < 1:
            raise VerifyException(
                f"ftile.unit: every dimension has at least one tile, found {ints(self.tile_counts)}"
            )


@irdl_op_definition
class LoadOp(IRDLOperation):
    """DRAM to SRAM: the region of a tensor, seen through a view; with `fill`, positions outside are that value."""

    name = "ftile.load"
    source = operand_def(TensorType)
    view = prop_def(ViewAttr)
    region = prop_def(BoxAttr)
    fill = opt_prop_def(FloatAttr)
    result = result_def(TileType)
    assembly_format = (
        "$source `view` $view `region` $region (`fill` $fill^)? attr-dict "
        "`:` type($source) `->` type($result)"
    )
    traits = traits_def(Pure())

    def __init__(
        self, source: SSAValue, view: TensorView, region: Box, tile: Tile, fill: float | None = None
    ):
        super().__init__(
            operands=[source],
            result_types=[TileType(tile)],
            properties={
                "view": ViewAttr(view),
                "region": BoxAttr(region),
                "fill": None if fill is None else FloatAttr(fill, f64),
            },
        )


@irdl_op_definition
class ComputeOp(IRDLOperation):
    """One layer on one tile: `region` of its output from the operands' tiles (then weight and bias tensors).

    `access` says for each tile operand which positions a piece needs; `params` are the layer's own numbers.
    """

    name = "ftile.compute"
    kind = prop_def(StringAttr)
    operands_ = var_operand_def()
    region = prop_def(BoxAttr)
    access = prop_def(ArrayAttr[AccessAttr])
    map = prop_def(MapAttr)
    params = prop_def(DictionaryAttr)
    result = result_def(TileType)
    assembly_format = (
        "$kind `(` $operands_ `)` `region` $region `access` $access `map` $map `params` $params "
        "attr-dict `:` functional-type(operands, results)"
    )
    traits = traits_def(Pure())

    def __init__(
        self,
        kind: str,
        operands: Sequence[SSAValue],
        region: Box,
        access: Sequence[Access],
        map: SubMap,
        params: Mapping[str, Plain],
        tile: Tile,
    ):
        super().__init__(
            operands=[operands],
            result_types=[TileType(tile)],
            properties={
                "kind": StringAttr(kind),
                "region": BoxAttr(region),
                "access": ArrayAttr([AccessAttr(a) for a in access]),
                "map": MapAttr(map),
                "params": to_attributes(params),
            },
        )

    @property
    def tiles(self) -> list[SSAValue]:
        return [o for o in self.operands if isinstance(o.type, TileType)]

    @property
    def tensors(self) -> list[SSAValue]:
        return [o for o in self.operands if isinstance(o.type, TensorType)]

    def verify_(self) -> None:
        if len(self.tiles) != len(self.access.data):
            raise VerifyException(f"{len(self.tiles)} tiles but {len(self.access.data)} accesses")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """SRAM to DRAM: the region of a tile into result number `output` of the unit, seen through a view."""

    name = "ftile.store"
    tile = operand_def(TileType)
    output = prop_def(IntegerAttr)
    view = prop_def(ViewAttr)
    region = prop_def(BoxAttr)
    assembly_format = "$tile `to` $output `view` $view `region` $region attr-dict `:` type($tile)"

    def __init__(self, tile: SSAValue, output: int, view: TensorView, region: Box):
        super().__init__(
            operands=[tile],
            properties={
                "output": IntegerAttr(output, i64),
                "view": ViewAttr(view),
                "region": BoxAttr(region),
            },
        )


@irdl_op_definition
class SendOp(IRDLOperation):
    """SRAM to SRAM: cluster k copies the region of its tile to the same place of cluster k + `by`'s (frustum.md,
    "exchange"); the region is empty on clusters that have no such neighbour."""

    name = "ftile.send"
    tile = operand_def(TileType)
    by = prop_def(IntegerAttr)
    region = prop_def(BoxAttr)
    assembly_format = "$tile `by` $by `region` $region attr-dict `:` type($tile)"

    def __init__(self, tile: SSAValue, by: int, region: Box):
        super().__init__(operands=[tile], properties={"by": IntegerAttr(by, i64), "region": BoxAttr(region)})

    def verify_(self) -> None:
        if self.tile.type.data.origin is None:  # type: ignore[attr-defined]
            raise VerifyException(
                "ftile.send: only a tile that stays in its place (with an origin) can be sent"
            )


@irdl_op_definition
class ConcatOp(IRDLOperation):
    """Tiles side by side along d1: no copy, the operands lie in the result's buffer one behind the other."""

    name = "ftile.concat"
    tiles = var_operand_def(TileType)
    result = result_def(TileType)
    assembly_format = "$tiles attr-dict `:` functional-type($tiles, $result)"
    traits = traits_def(Pure())

    def __init__(self, tiles: Sequence[SSAValue], tile: Tile):
        super().__init__(operands=[tiles], result_types=[TileType(tile)])

    def verify_(self) -> None:
        channels = sum(t.type.data.extents[1] for t in self.tiles)  # type: ignore[attr-defined]
        if channels != self.result.type.data.extents[1]:
            raise VerifyException(
                f"ftile.concat: {channels} channels of operands in {self.result.type.data.extents[1]}"
            )


@irdl_op_definition
class MoveOp(IRDLOperation):
    """DRAM to DRAM through SRAM, tile by tile: position p of `dims` comes from position `p + low` of the source.

    Positions outside `[0, bound)` of the source are written with `fill`.
    """

    name = "ftile.move"
    source = operand_def(TensorType)
    output = prop_def(IntegerAttr)
    dims = prop_def(DenseArrayBase.constr(i64))
    source_view = prop_def(ViewAttr)
    target_view = prop_def(ViewAttr)
    low = prop_def(DenseArrayBase.constr(i64))
    bound = prop_def(DenseArrayBase.constr(i64))
    fill = opt_prop_def(FloatAttr)
    partition = prop_def(PartitionAttr)
    assembly_format = (
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
            properties={
                "output": IntegerAttr(output, i64),
                "dims": DenseArrayBase.from_list(i64, dims),
                "source_view": ViewAttr(source_view),
                "target_view": ViewAttr(target_view),
                "low": DenseArrayBase.from_list(i64, low),
                "bound": DenseArrayBase.from_list(i64, bound),
                "fill": None if fill is None else FloatAttr(fill, f64),
                "partition": PartitionAttr(partition),
            },
        )


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends the body: what the stores have written are the unit's results that are tensors, `tiles` the others."""

    name = "ftile.yield"
    tiles = var_operand_def(TileType)
    assembly_format = "attr-dict ($tiles^ `:` type($tiles))?"
    traits = traits_def(IsTerminator(), HasParent(UnitOp))

    def __init__(self, tiles: Sequence[SSAValue] = ()) -> None:
        super().__init__(operands=[tiles])


FTile = Dialect(
    "ftile",
    [UnitOp, LoadOp, ComputeOp, ConcatOp, StoreOp, SendOp, MoveOp, YieldOp],
    [AccessAttr, ViewAttr, MapAttr, SweepsAttr, TileType],
)
