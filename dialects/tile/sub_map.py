"""How the cores of a cluster share one layer's work on a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.extents import Extents
from frustum.dialects.unit import DIMENSIONS, ints, parse_extents

Outer: TypeAlias = Literal["space", "channels"]
Residency: TypeAlias = Literal["unit", "stream"]


@dataclass(frozen=True, slots=True)
class SubMap:
    """What one core computes at a time: `extent` of the piece; dimension `cores` is dealt to the cores in turn;
    `channels` input channels at a time; which loops are outside; where weights wait; `compact`: the copy into the core
    leaves out what a strided kernel of one tap does not read."""

    extent: Extents
    cores: int
    channels: int = 0
    outer: Outer = "space"
    weights: Residency = "unit"
    compact: bool = False


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
            weights = cast(Residency, _one_of(parser, get_args(Residency)))
            compact = parser.parse_optional_punctuation(",") is not None
            if compact:
                parser.parse_keyword("compact")
            return SubMap(extent, cores, channels, cast(Outer, outer), weights, compact)

    def print_parameter(self, printer: Printer) -> None:
        m = self.data
        printer.print_string(
            f"<extent {ints(m.extent)}, cores {m.cores}, channels {m.channels}, "
            f"outer {m.outer}, weights {m.weights}{', compact' * m.compact}>"
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
