"""What leaves a tile goes piece by piece, as soon as all cores of a cluster have made theirs: stores and sends.

A piece of all cores is a box whose place is affine in the loops of the layer's nest.  What goes is its meeting with
the region that is stored or sent.  Along a dimension where that is not all that the layer makes, the copy's box counts
from the region's beginning, so that clipping to the box's bound is clipping to the region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from xdsl.ir import Operation

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Span, Starts
from frustum.passes.analysis.piece_nest import Piece
from frustum.passes.lower.unit.memory_map import Placed
from frustum.passes.lower.unit.raster import RasterPlaced

WASTE = 2
"""Pieces may keep the port at the destination busy so many times longer than the whole: they go while it is idle."""


@dataclass(frozen=True)
class Part:
    """What one copy moves: where it starts, and its box."""

    start: Starts
    box: Box


@dataclass(frozen=True)
class Leaving:
    """A region of a tile (at loop levels) that is copied elsewhere; `copy` makes the copy of a part at a stage.

    `block`: of the channels that are together at the destination; 1: all.  `strides`: bytes, at the destination, where
    runs shorter than `least_run_bytes` take as long.
    """

    tile: Placed
    region: Box
    block: int
    strides: Extents
    least_run_bytes: int
    copy: Callable[..., Operation]


def part_of_pieces(leaving: Leaving, piece: Piece, made: Placed, cores: int) -> Part | None:
    """What the pieces of all cores have of the region; None where it has to go as a whole.

    `made` is the tile of which each pass of the nest makes one piece for each core.
    """
    region = leaving.region
    if (
        leaving.tile is not made
        or made.wrap is not None
        or isinstance(made, RasterPlaced)
        or leaving.block > 1
    ):
        return None
    together = _all_cores(piece, cores)
    starts, spans = [], []
    for d, (own, wanted) in enumerate(zip(together.spans, region.spans, strict=True)):
        is_one = own.start == made.start[d] and own.extent >= made.extent[d]
        if is_one:
            starts.append(wanted.start)
            spans.append(wanted)
        elif wanted.start == made.start[d] and wanted.extent == made.extent[d] and wanted.limit is None:
            starts.append(own.start)
            spans.append(own)
        elif wanted.extent > own.extent and wanted.limit is None:
            ends = ends_of(own, wanted)
            if ends is None:
                return None
            starts.append(own.start)
            spans.append(Span(own.start - wanted.start, own.extent, *ends))
        else:
            return None
    part = Part(tuple(starts), Box.of(*spans))
    run, all_of_it = (run_bytes(box, leaving) for box in (part.box, region))
    return part if WASTE * run >= min(all_of_it, leaving.least_run_bytes) else None


def ends_of(own: Span, wanted: Span) -> tuple[int, Affine] | None:
    """Where pieces of a region end, counted from where it begins, as a bound and a limit: the region, the map, and what
    is made all end them; None where more than one of these is not the same everywhere."""
    extent, of_map = wanted.extent, Affine(wanted.bound) - wanted.start
    if own.limit is None:
        return extent, of_map
    of_made = own.limit - wanted.start
    if of_made.is_constant:
        return min(extent, of_made.base), of_map
    return (min(extent, of_map.base), of_made) if of_map.is_constant else None


def run_bytes(box: Box, leaving: Leaving) -> int:
    """The bytes of a box that follow each other at the destination."""
    run = ELEMENT_BYTES[leaving.tile.element]
    for stride, extent in sorted(zip(leaving.strides, box.extent, strict=True)):
        if extent > 1:
            if stride != run:
                break
            run *= extent
    return run


def _all_cores(piece: Piece, cores: int) -> Box:
    """The box of what all cores of a cluster make in one pass."""
    spans = piece.box.spans
    return Box.of(
        *(replace(s, start=replace(s.start, core=0), extent=s.extent * (cores if s.start.core else 1)) for s in spans)
    )
