"""The type of a tile: a box of a map in SRAM, at rest or in a ring."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Data, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.extents import Extents
from frustum.dialects.isa.attributes import parse_affine
from frustum.dialects.isa.program import ELEMENTS, Element, Starts
from frustum.dialects.unit import DIMENSIONS, ints, one_of, parse_extents


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
    origin depends on the cluster only).  A `ring` is circular along that dimension, d2 or d3 (0: none): row p lies in
    slot `p mod extents[2]`, and the origin's d2 says nothing.  With `raster` the extents are those of the rows that a
    pass makes, from the origin's d2 on, and of the ring of those that no later pass reads.  A tile in the
    `core` is never in SRAM: whichever core needs a piece of it makes that piece in its NRAM, where one layer reads it
    (a run of layers).
    """

    element: Element
    extents: Extents
    order: Extents
    origin: Starts | None = None
    ring: int = 0
    raster: Raster | None = None
    core: bool = False


@irdl_attr_definition
class TileType(Data[Tile], TypeAttribute):
    """`!ftile.tile<f32, [1, 3, 61, 224], [0, 1, 2, 3]>`, `!ftile.tile<f32, [1, 3, 10, 58], [0, 1, 2, 3],
    origin [0, 0, 0, -1 + 56*cluster], ring>` (along d2; `ring 3`: along d3), `!ftile.tile<f32, [1, 3, 4, 10],
    [0, 1, 2, 3], origin [0, 0, 4*i2, 0], raster [2, 1, 234, 224]>` (kept, back, columns, width), `!ftile.tile<f32,
    [1, 8, 4, 4], [0, 1, 2, 3], core>`"""

    name = "ftile.tile"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Tile:
        with parser.in_angle_brackets():
            element = one_of(parser, ELEMENTS)
            parser.parse_punctuation(",")
            extents = parse_extents(parser)
            parser.parse_punctuation(",")
            order, origin, ring, raster, core = parse_extents(parser), None, 0, None, False
            while parser.parse_optional_punctuation(",") is not None:
                if parser.parse_optional_keyword("ring"):
                    dimension = parser.parse_optional_integer(allow_negative=False)
                    ring = 2 if dimension is None else dimension
                    continue
                if parser.parse_optional_keyword("core"):
                    core = True
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
                origin = tuple(starts)
            return Tile(element, extents, order, origin, ring, raster, core)

    def print_parameter(self, printer: Printer) -> None:
        t = self.data
        origin = "" if t.origin is None else f", origin [{', '.join(map(str, t.origin))}]"
        ring = {0: "", 2: ", ring"}.get(t.ring, f", ring {t.ring}")
        if (r := t.raster) is not None:
            ring += f", raster {ints((r.kept, r.back, r.columns, r.width))}"
        core = ", core" if t.core else ""
        printer.print_string(f"<{t.element}, {ints(t.extents)}, {ints(t.order)}{origin}{ring}{core}>")

    def verify(self) -> None:
        if sorted(self.data.order) != list(range(DIMENSIONS)):
            raise VerifyException(f"the order must name each dimension once, found {ints(self.data.order)}")
        if self.data.origin is not None and any(s.core for s in self.data.origin):
            raise VerifyException("the origin of a tile does not depend on the core")
        if (self.data.ring or self.data.raster) and self.data.origin is None:
            raise VerifyException("a ring has an origin")
        if self.data.ring not in (0, 2, 3):
            raise VerifyException(f"a ring goes around along d2 or d3, found d{self.data.ring}")
        if self.data.core and self.data.origin is not None:
            raise VerifyException("a tile in the core has no place in SRAM, found an origin")
        self.verify_raster()

    def verify_raster(self) -> None:
        r = self.data.raster
        if r is None:
            return
        if self.data.ring or not 0 <= r.kept <= self.data.extents[2] or (r.kept == 0) != (r.back == 0):
            raise VerifyException(
                f"a raster keeps up to {self.data.extents[2]} rows of passes before, found {r.kept}"
            )
        if r.kept and r.columns < r.back * r.width + 1:
            raise VerifyException(
                f"a raster that reaches back {r.back} passes of {r.width} columns has more, found {r.columns}"
            )


def tile_of(value: SSAValue) -> Tile:
    """What the type of a value that is a tile says."""
    assert isinstance(value.type, TileType)
    return value.type.data


def is_ring(tile: Tile) -> bool:
    """Whether some dimension of a tile goes around."""
    return tile.ring > 0 or tile.raster is not None
