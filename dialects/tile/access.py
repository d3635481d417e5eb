"""What a piece of a layer's output needs of an operand, how dimensions lie in a tensor, and how cores share a tile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import Affine
from frustum.dialects.unit import DIMENSIONS, ints, one_of, parse_extents, parse_ints, parse_named


@dataclass(frozen=True, slots=True)
class Axis:
    """Which input positions one dimension of a piece needs: output `[a, a + e)` needs
    `[a * num // den + low, ... + ((e - 1) * num) // den + 1 + reach)`.

    Source: docs/techniques/frustum.md, "Regions": stride `num`, leading pad `-low`, `reach = (K - 1) * D`.
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
Access: TypeAlias = tuple[AnyAxis, ...]


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

    def spread(self, own: int, whole: int) -> TensorView | None:
        """The view where dimensions that count `own` elements from one position to the next, or multiples, count
        `whole` instead, for others lie between; None where they do not count so."""
        if own not in self.strides or any(s > own and s % own for s in self.strides):
            return None
        return replace(self, strides=tuple(s // own * whole if s >= own else s for s in self.strides))


@irdl_attr_definition
class AccessAttr(Data[Access]):
    """`#ftile.access<same, all 64, [2, 1, -3, 6], same>`"""

    name = "ftile.access"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Access:
        axes = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: _parse_axis(parser))
        if len(axes) != DIMENSIONS:
            parser.raise_error(f"expected {DIMENSIONS} axes, found {len(axes)}")
        return tuple(axes)

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


Outer: TypeAlias = Literal["space", "channels"]
Residency: TypeAlias = Literal["unit", "stream", "core"]
"""Where weights wait while a unit runs: in SRAM; nowhere, they come piece by piece again in every pass over the tiles;
in WRAM, all pieces of a core beside each other."""
OUTER: tuple[Outer, ...] = get_args(Outer)
INPUTS = DIMENSIONS
"""What is dealt to the cores where it is no dimension of the result: input channels, whose sums the cores then add."""
RESIDENCY: tuple[Residency, ...] = get_args(Residency)
FLAGS = ("compact", "on_vector", "held", "in_rounds", "in_place", "chunk", "in_core", "beside", "direct", "in_wram",
         "twice")


@dataclass(frozen=True, slots=True)
class SubMap:
    """What one core computes at a time: `extent` of the piece; dimension `cores` (or `INPUTS`) is dealt to the cores in
    turn; `channels` input channels at a time; which loops are outside; where weights wait; `compact`: the copy into the
    core leaves out what a strided kernel of one tap does not read; `on_vector`: the vector unit computes it (depthwise
    convolutions); `in_rounds`: the loop over input channels is around all others, operand 0 comes from DRAM so many
    channels at a time, and sums wait in the result's tile, in its element type; `in_place`: the result lies where the
    last operand of its extents lay, of which each piece needs its own part and nothing reads behind it; sums that wait
    in the tile begin with it."""

    extent: Extents
    cores: int
    channels: int = 0
    outer: Outer = "space"
    weights: Residency = "unit"
    compact: bool = False
    on_vector: bool = False
    held: int = 0
    """Of attention whose keys and values are streamed: how many chunks of them stay in SRAM from tile to tile."""
    in_rounds: bool = False
    in_place: bool = False
    chunk: int = 0
    """Keys of a chunk, of which a block has several."""
    in_core: int = 0
    """The last channels of wide results so far, which stay in the cores from block to block."""
    direct: int = 0
    """Of attention whose keys and values are streamed: these come from DRAM to the core, and do not wait in SRAM; of so
    many blocks the core holds at a time (0: they come through SRAM)."""
    in_wram: int = 0
    """The same: how many chunks of them stay in the core from tile to tile, before those that stay in SRAM."""
    beside: int = 0
    """With `on_vector`: how many channels of a piece, its last, the matrix unit makes meanwhile."""
    twice: bool = False
    """Of attention: the matrix unit makes scores for their maxima, and once more as powers of e."""


def shared_along(extent: Extents, cores: int) -> int:
    """Along which dimension the cores share a piece whose sums they add (`INPUTS`): the first that is a multiple of
    their number.  Raises StopIteration where none is."""
    return next(d for d in range(1, DIMENSIONS) if extent[d] % cores == 0)


@irdl_attr_definition
class MapAttr(Data[SubMap]):
    """`#ftile.map<extent [1, 64, 14, 112], cores 2, channels 3, outer space, weights unit>`"""

    name = "ftile.map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> SubMap:
        with parser.in_angle_brackets():
            parser.parse_keyword("extent")
            extent = parse_extents(parser)
            cores = parse_named(parser, "cores", parser.parse_integer)
            channels = parse_named(parser, "channels", parser.parse_integer)
            outer = parse_named(parser, "outer", lambda: one_of(parser, OUTER))
            weights = parse_named(parser, "weights", lambda: one_of(parser, RESIDENCY))
            flags, counts = set(), {"held": 0, "chunk": 0, "in_core": 0, "beside": 0, "direct": 0, "in_wram": 0}
            while parser.parse_optional_punctuation(",") is not None:
                flags.add(word := one_of(parser, FLAGS))
                if word in counts:
                    counts[word] = parser.parse_integer()
            plain = "compact" in flags, "on_vector" in flags
            return SubMap(
                extent, cores, channels, outer, weights, *plain,
                held=counts["held"], in_rounds="in_rounds" in flags, in_place="in_place" in flags,
                chunk=counts["chunk"], in_core=counts["in_core"], beside=counts["beside"],
                direct=counts["direct"], in_wram=counts["in_wram"], twice="twice" in flags,
            )  # fmt: skip

    def print_parameter(self, printer: Printer) -> None:
        m = self.data
        printer.print_string(
            f"<extent {ints(m.extent)}, cores {m.cores}, channels {m.channels}, "
            f"outer {m.outer}, weights {m.weights}{', compact' * m.compact}{', on_vector' * m.on_vector}"
            f"{f', held {m.held}' if m.held else ''}{', in_rounds' * m.in_rounds}{', in_place' * m.in_place}"
            f"{f', chunk {m.chunk}' if m.chunk else ''}{f', in_core {m.in_core}' if m.in_core else ''}"
            f"{f', beside {m.beside}' if m.beside else ''}{f', direct {m.direct}' if m.direct else ''}"
            f"{f', in_wram {m.in_wram}' if m.in_wram else ''}{', twice' * m.twice}>"
        )

    def verify(self) -> None:
        if min(self.data.extent) < 1:
            raise VerifyException(
                f"a piece has at least one element per dimension, found {ints(self.data.extent)}"
            )
        if self.data.beside and not (self.data.on_vector and 0 < self.data.beside < self.data.extent[1]):
            raise VerifyException(
                f"beside the vector unit some channels are made of {self.data.extent[1]}, found {self.data.beside}"
            )
        if not 0 <= self.data.cores <= INPUTS:
            raise VerifyException(
                f"cores names a dimension 0..3, or {INPUTS}: input channels, found {self.data.cores}"
            )
