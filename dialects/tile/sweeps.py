"""The order of a unit's tiles: loops one after the other, each of which goes through some of the grid's tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.attributes import parse_affine
from frustum.dialects.isa.program import MAX_LOOPS, Affine
from frustum.dialects.unit import ints, parse_ints

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


__all__ = ["Sweep", "SweepsAttr"]
