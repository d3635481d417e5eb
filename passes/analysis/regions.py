# Tests: test/passes/analysis/test_project.py
"""Boxes of maps in tile indices and the cluster, what of an operand a box of a layer's output needs, and what is known
of all maps of a unit for one pass.

Source: docs/techniques/frustum.md, "Regions".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from frustum.dialects.extents import Extents, replaced
from frustum.dialects.isa.program import Affine, Box, Starts
from frustum.dialects.tile import AnyAxis, Axis
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer, MapOperand
from frustum.passes.analysis.roll import ROWS


@dataclass(frozen=True)
class Region:
    """A box of a map: where it starts (in tile indices and the cluster number) and its nominal extents."""

    start: Starts
    extent: Extents

    @staticmethod
    def of(parts: Iterable[tuple[Affine, int]]) -> Region:
        """By the start and the extent along each dimension."""
        starts, extents = zip(*parts, strict=True)
        return Region(starts, extents)

    def at(self, d: int, start: Affine, extent: int) -> Region:
        """With other positions along a dimension."""
        return Region(replaced(self.start, d, start), replaced(self.extent, d, extent))

    @property
    def parts(self) -> list[tuple[Affine, int]]:
        """The start and the extent along each dimension."""
        return list(zip(self.start, self.extent, strict=True))

    def box(self, bound: Extents) -> Box:
        return Box(self.start, self.extent, bound)

    @property
    def is_fixed(self) -> bool:
        """The same for every tile of a cluster."""
        return not any(s.loops for s in self.start)

    @property
    def elements(self) -> int:
        return math.prod(self.extent)


def needed(region: Region, operand: MapOperand) -> Region:
    """What a region of a layer's output needs of one operand, trimmed to the map where it is the same for all tiles."""

    def part(axis: AnyAxis, start: Affine, extent: int, size: int) -> tuple[Affine, int]:
        low, length = axis.start(start), axis.extent(extent)
        if not low.is_constant:
            return low, length
        first = max(0, low.base)
        return Affine(first), max(1, min(low.base + length, size) - first)

    return Region.of(map(part, operand.access, region.start, region.extent, operand.dims))


def needs_of(layer: Layer, made: Region, partition: Partition, counts: Extents) -> tuple[Region, ...]:
    """What a layer needs of each operand to make a region."""
    found = tuple(needed(made, operand) for operand in layer.maps)
    if not partition.trimmed:
        return found
    return tuple(trim(region, m.dims, counts) for region, m in zip(found, layer.maps, strict=True))


def trim(region: Region, dims: Extents, counts: Extents) -> Region:
    """What of a region is in the map, along dimensions with two tiles, if it is as much of both."""
    for d, (start, extent) in enumerate(region.parts):
        moves = any(start.loops) and not start.cluster and sum(map(bool, start.loops)) == 1
        if moves and len(start.loops) == d + 1 and counts[d] == 2:
            firsts = start.base, start.base + start.loops[d]
            lows = [max(0, first) for first in firsts]
            lengths = [min(dims[d], first + extent) - low for first, low in zip(firsts, lows, strict=True)]
            if lengths[0] == lengths[1] > 0:
                region = region.at(d, Affine.index(d, lows[1] - lows[0]) + lows[0], lengths[0])
    return region


def hull(a: Region, b: Region, dims: Extents) -> Region:
    """The smallest region that holds both; the whole dimension where they do not move alike."""

    def both(x: Affine, extent: int, y: Affine, other: int, size: int) -> tuple[Affine, int]:
        if not (x - y).is_constant:
            return Affine(), size
        low = x if x.base <= y.base else y
        return low, max(x.base + extent, y.base + other) - low.base

    return Region.of(map(both, a.start, a.extent, b.start, b.extent, dims))


@dataclass(frozen=True)
class Projection:
    """Regions of one pass over a unit's tiles.

    `outputs`: of all layers' outputs, what the pass makes; `operands` (by layer, by operand): what it needs;
    `inputs`: what it loads of each input; `counts`: passes per dimension; `stores`: of each map that leaves the unit,
    what the pass writes: every element in exactly one pass.
    With exchanged borders `rings` has by number of the map the rows that are in use of it in a step (0: none beyond
    those that the step makes; see `ring_rows`); where columns are kept too, `columns` has those.  Steps go `along` a
    dimension.  `held`, where owners hand borders over, is what a cluster holds of each map: what it makes, and beside
    it what others make and its layers read.
    """

    outputs: tuple[Region, ...]
    operands: tuple[tuple[Region, ...], ...]
    inputs: tuple[Region, ...]
    counts: Extents
    rings: tuple[int, ...]
    stores: tuple[Region, ...] = ()
    columns: tuple[int, ...] = ()
    along: int = ROWS
    held: tuple[Region, ...] = ()

    def region_of(self, number: int) -> Region:
        """Of a map by its number: what the pass makes or loads of it."""
        count = len(self.outputs)
        return self.outputs[number] if number < count else self.inputs[number - count]

    def held_of(self, number: int) -> Region:
        """Of a map by its number: what a cluster has of it in a pass."""
        return self.held[number] if self.held else self.region_of(number)

    def is_ring(self, number: int) -> bool:
        """Whether rows or columns of a map may go around in its buffer."""
        return bool(self.columns) or self.rings[number] > 0


def grid_of(layer: Layer, d: int) -> int:
    """What the starts of a layer's tiles must be multiples of along a dimension."""
    axes = (m.access[d] for m in layer.maps)
    return math.lcm(layer.align[d], *(axis.den for axis in axes if isinstance(axis, Axis)))
