"""What leaves a tile goes piece by piece, as soon as all cores of a cluster have made theirs: stores and sends.

A piece of all cores is a box whose place is affine in the loops of the layer's nest.  What goes is its meeting with
the region that is stored or sent.  Along a dimension where that is not all that the layer makes, the copy's box counts
from the region's beginning, so that clipping to the box's bound is clipping to the region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from xdsl.ir import Operation

from frustum.dialects.isa.program import Affine, Box, Span
from frustum.passes.lower.blocks import Part
from frustum.passes.lower.memory_map import Placed
from frustum.passes.lower.nest import Piece
from frustum.passes.lower.raster import RasterPlaced

Copy = Callable[[Part, int], Operation]
"""The copy of a part, at a stage."""


@dataclass(frozen=True)
class Leaving:
    """A region of a tile (at loop levels) that is copied elsewhere, and how."""

    region: Box
    copy: Copy


def part_of_pieces(leaving: Leaving, piece: Piece, made: Placed, cores: int, clusters: int) -> Part | None:
    """What the pieces of all cores have of the region; None where it has to go as a whole.

    `made` is the tile of which each pass of the nest makes one piece for each core.
    """
    if made.wrap is not None or isinstance(made, RasterPlaced):
        return None
    region = leaving.region
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
        elif wanted.extent > own.extent and _is_inside(region, d, clusters):
            starts.append(own.start)
            spans.append(Span(own.start - wanted.start, own.extent, wanted.extent))
        else:
            return None
    return Part(tuple(starts), Box.of(*spans))


def _all_cores(piece: Piece, cores: int) -> Box:
    """The box of what all cores of a cluster make in one pass."""
    starts = [replace(start, core=0) for start in piece.start]
    extents = [e * (cores if s.core else 1) for s, e in zip(piece.start, piece.extent, strict=True)]
    return Box(cast(Any, tuple(starts)), cast(Any, tuple(extents)), piece.bound, cast(Any, piece.limit))


def _is_inside(region: Box, d: int, clusters: int) -> bool:
    """Whether a region, on the clusters where it is not empty, lies within its bound along a dimension as it is."""
    span = region.spans[d]
    if span.limit is not None or any(start.loops for start in region.start):
        return False
    active = [k for k in range(clusters) if all(_size(s, k) > 0 for s in region.spans)]
    return all(0 <= span.start.at((), k) <= span.bound - span.extent for k in active)


def _size(span: Span, cluster: int) -> int:
    limit = span.limit
    if limit is not None and limit.loops:
        return 1
    start, stop = span.clip((), cluster)
    return stop - start


def whole(region: Box, starts: Sequence[Affine]) -> Part:
    """The region as one part."""
    return Part(tuple(starts), region)
