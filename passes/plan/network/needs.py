# Tests: test/passes/plan/network/test_groups.py
"""What a group needs of each of its maps, from its last layer back, for all tile shapes at once.

Source: docs/techniques/frustum.md, "Regions", "Borders"; Occam (doi 10.1145/3566052) in the form of rates and leads;
the same numbers as `analysis/project.py` gives for one unit and one partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from frustum.dialects.extents import Extents, aligned, ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import AnyAxis, Axis, Whole
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import grid_of
from frustum.passes.plan.model import FEWEST_COLUMNS, RASTER_SHARE
from frustum.passes.plan.network.layer_order import LayerNode, LayerOrder, Read
from frustum.passes.plan.network.raster_columns import RasterColumns
from frustum.passes.plan.network.tile_shapes import BY_IMAGES, Ints, Mask, TileShapes, shapes_of

FAR = 1 << 40
"""Before any consumer of a map that rolls, a lead is -FAR and the oldest row is FAR."""


class Intervals(NamedTuple):
    """What tiles need of a map along one dimension: tile i of each shape from `base + i * step` on."""

    base: Ints
    step: Ints
    extent: Ints

    def hull(self, other: Intervals, size: int) -> Intervals:
        """What holds both; all of the map's `size` where their steps differ."""
        alike = self.step == other.step
        low = np.minimum(self.base, other.base)
        high = np.maximum(self.base + self.extent, other.base + other.extent)
        return Intervals(
            np.where(alike, low, 0), np.where(alike, self.step, 0), np.where(alike, high - low, size)
        )

    def window(self, axis: AnyAxis, size: int) -> Intervals:
        """The same of an operand, trimmed to the map where it is the same for all tiles."""
        base, step, extent = self
        if isinstance(axis, Whole):
            zero = np.zeros_like(base)
            return Intervals(zero, zero, np.full_like(base, axis.size))
        low = base * axis.num // axis.den + axis.low
        length = (extent - 1) * axis.num // axis.den + 1 + axis.reach
        is_fixed = step == 0
        end = np.minimum(low + length, size)
        low = np.where(is_fixed, np.maximum(low, 0), low)
        return Intervals(
            low, step * axis.num // axis.den, np.where(is_fixed, np.maximum(end - low, 1), length)
        )

    def or_whole(self, is_whole: Mask, size: int) -> Intervals:
        """All of the map in some shapes."""
        return Intervals(*(np.where(is_whole, x, y) for x, y in zip((0, 0, size), self, strict=True)))

    def covered(self, count: Ints, size: int) -> Ints:
        """Positions of `count` intervals, each clipped to [0, size), summed."""
        base, step, extent = self
        fixed = np.minimum(base + extent, size) - np.maximum(base, 0)
        pace = np.maximum(step, 1)
        # cut off below 0: interval i loses min(extent, -(base + i step)) while that is positive
        behind = base + (count - 1) * pace + extent - size
        clips = below(np.stack((-base, -base - extent, behind, behind - extent)), pace, count)
        return np.where(
            step == 0, np.maximum(fixed, 0), count * extent - clips[0] + clips[1] - clips[2] + clips[3]
        )


def below(first: Ints, pace: Ints, count: Ints) -> Ints:
    """sum over i < count of max(first - i * pace, 0)"""
    terms = np.minimum(np.maximum(-(-first // pace), 0), count)
    return terms * first - pace * (terms * (terms - 1) // 2)


@dataclass(frozen=True)
class MapNeed:
    """What is needed of a map in each shape, by its consumers in the group: of rows that roll `lead` and `oldest`."""

    lead: Ints
    oldest: Ints
    rows: Intervals
    columns: Intervals

    def joined(self, other: MapNeed, dims: Extents) -> MapNeed:
        """What both need of a map of these extents."""
        return MapNeed(
            np.maximum(self.lead, other.lead),
            np.minimum(self.oldest, other.oldest),
            self.rows.hull(other.rows, dims[2]),
            self.columns.hull(other.columns, dims[3]),
        )

    def spanned(self, other: MapNeed, dims: Extents) -> MapNeed:
        """What must be kept of two maps in one buffer."""
        both = self.joined(other, dims)
        oldest = np.minimum(both.oldest, np.minimum(self.lead, other.lead))
        return MapNeed(both.lead, oldest, both.rows, both.columns)


class GroupLayer(NamedTuple):
    """A layer as it joins a group: what is needed of its map, and how many rows of it a step makes."""

    number: int
    node: LayerNode
    layer: Layer
    need: MapNeed
    made: Ints
    columns: Ints
    """Of its map that are made in a pass."""
    turns: Ints
    """Passes along the columns in which it has something to do."""
    is_stored: bool
    """Its map leaves the group."""


class GroupNeeds:
    """What a group that ends before layer `stop` needs of the maps before its first layer, and which shapes it can
    have; layers join from the last one back."""

    def __init__(self, order: LayerOrder, stop: int, borders: str, clusters: int, raster: int = 0):
        self.order = order
        self.stop = stop
        self.last: int = stop - 1
        self.clusters = clusters
        layer = order.layer(self.last)
        self.dims: Extents = layer.out_dims
        whole = tuple(d for d in layer.axes_all if d != 1)
        fewest = fewest_columns(layer)
        self.shapes: TileShapes = shapes_of(
            self.dims, whole, borders, clusters, order.grains, raster=raster, fewest=fewest,
            in_slices=order.has_slices,
        )  # fmt: skip
        self.raster: RasterColumns = RasterColumns(order, stop, self.shapes)
        self.size: int = len(self.shapes.mode)
        self.of_map: dict[int, MapNeed] = {}
        self.readers: dict[int, int] = {}
        """Of maps before the group: the last layer that reads each."""
        self.channels: dict[int, tuple[int, int]] = {}
        self.valid: Mask = np.ones(self.size, np.bool_)
        self.late: Ints = np.zeros(self.size, np.int64)
        self.behind: Ints = np.zeros(self.size, np.int64)
        self.parts: Parts = Parts()
        self.steps: dict[int, tuple[Ints, Mask]] = {}
        self.for_all: set[int] = set()
        """Maps of one row that a layer reads for all of its rows: made in one step, they would be gone in the next."""

    def images(self, extent: int) -> Ints:
        """Images of a tile, of a map that has so many: all of it where a tile has all of the last layer's."""
        if extent == self.dims[0]:
            return self.shapes.images
        return np.where(self.shapes.images == self.dims[0], extent, np.minimum(self.shapes.images, extent))

    def made(self, number: int) -> tuple[Ints, Mask]:
        """Rows of a map in one rolling step, and where they are whole rows."""
        if number not in self.steps:
            ratio = self.order.rate(number, self.last, 2)
            rows = self.shapes.rows * ratio.numerator
            whole_rows = np.maximum(rows // ratio.denominator, 1)
            self.steps[number] = whole_rows, rows % ratio.denominator == 0
        return self.steps[number]

    def take(self, k: int) -> GroupLayer | None:
        """Let a layer join; None where nobody needs its map."""
        node, map_, layer, shapes = self.order.nodes[k], self.order.maps[k], self.order.layer(k), self.shapes
        need = self.of_map.pop(k, None)
        self.readers.pop(k, None)
        is_stored = map_.is_output or map_.last_use >= self.stop or not map_.users or k == self.last
        if is_stored:
            own = self.own if k == self.last else self.beside(k, layer.out_dims)
            need = own if need is None else need.joined(own, layer.out_dims)
        if need is None:
            return None
        self.parts.add(k)
        made, is_whole = self.made(k)
        align = layer.align[2]
        self.valid &= ~shapes.is_roll | (is_whole & (made % align == 0) & (k not in self.for_all))
        need = self.held_whole(layer, need, is_last=k == self.last)
        has_images = 0 not in layer.axes_all and layer.out_dims[0] == self.dims[0]
        if not has_images or not all(read.by_image for read in node.reads):
            self.valid &= shapes.dealt != BY_IMAGES
        if any(read.images_mix for read in node.reads):
            self.valid &= shapes.images == self.dims[0]
        rows, columns = self.on_grid(layer, 2, need.rows), self.on_grid(layer, 3, need.columns)
        lead = aligned(need.lead, align)
        self.late = np.maximum(self.late, ceil_div(lead, made))
        if is_stored:
            self.behind = np.maximum(self.behind, ceil_div(layer.out_dims[2] - lead, made))
        need = MapNeed(lead, np.minimum(need.oldest, lead), rows, columns)
        self.raster.take(k, layer, is_stored=is_stored)
        inside = self.raster.inside(k, columns.extent)
        turns = self.raster.turns(k, layer.out_dims[3], shapes.counts[2])
        return GroupLayer(k, node, layer, need, made, inside, turns, is_stored)

    def held_whole(self, layer: Layer, need: MapNeed, *, is_last: bool) -> MapNeed:
        """Tiles with all positions along the dimensions of which a layer needs all; others are not looked at."""
        along = {0: self.images(layer.out_dims[0]), 2: need.rows.extent, 3: need.columns.extent}
        found = {2: need.rows, 3: need.columns}
        for d in (d for d in along if d in layer.axes_all and layer.out_dims[d] > 1):
            is_whole = along[d] >= layer.out_dims[d]
            self.valid &= is_whole
            if d == 2:
                self.valid &= ~self.shapes.is_roll
            if d in found and not is_last:
                found[d] = found[d].or_whole(is_whole, layer.out_dims[d])
        return replace(need, rows=found[2], columns=found[3])

    def on_grid(self, layer: Layer, d: int, needed: Intervals) -> Intervals:
        """From the multiple of the layer's steps before it on; rows that roll have steps of their own."""
        grid = grid_of(layer, d)
        if grid == 1:
            return needed
        base, step, extent = needed
        self.valid &= (step % grid == 0) | (self.shapes.is_roll if d == 2 else False)
        beyond = base % grid
        return Intervals(base - beyond, step, extent + beyond)

    @cached_property
    def own(self) -> MapNeed:
        """The last layer's own tiles."""
        shapes, zero, is_shared = self.shapes, np.zeros(self.size, np.int64), self.clusters > 1
        moves_down = (shapes.counts[1] > 1) | shapes.is_roll | (is_shared & (shapes.dealt == 2))
        moves_right = (shapes.counts[2] > 1) | (is_shared & (shapes.dealt == 3))
        rows = Intervals(zero, np.where(moves_down, shapes.rows, 0), shapes.rows)
        wide = np.where(shapes.is_raster, self.dims[3], shapes.columns)
        columns = Intervals(zero, np.where(moves_right, wide, 0), wide)
        return MapNeed(zero, np.full_like(zero, FAR), rows, columns)

    def beside(self, k: int, dims: Extents) -> MapNeed:
        """The part of another output that belongs to a tile of the last one."""
        own, found = self.own, []
        for d, (base, step, extent), count in zip(
            (2, 3), (own.rows, own.columns), self.shapes.tiles, strict=True
        ):
            rate = self.order.rate(k, self.last, d)
            whole = (step == 0) & (extent >= self.dims[d])
            if d == 2:
                whole |= self.shapes.is_roll
            own_extent, rest = np.divmod(extent * rate.numerator, rate.denominator)
            self.valid &= whole | ((rest == 0) & (count * own_extent >= dims[d]))
            own_step = step * rate.numerator // rate.denominator
            found.append(Intervals(base, np.where(whole, 0, own_step), np.where(whole, dims[d], own_extent)))
        return MapNeed(own.lead, own.oldest, *found)

    def pull(self, reader: GroupLayer, read: Read) -> None:
        """Let a layer ask for what it needs of a map."""
        number, axis, need, is_roll = read.map, read.rows, reader.need, self.shapes.is_roll
        if not self.order.maps[number].is_constant:
            self.parts.join(reader.number, number)
        self.raster.pull(reader.number, read)
        lead, oldest = np.full(self.size, -FAR), np.full(self.size, FAR)
        if not isinstance(axis, Whole):
            made, is_whole = self.made(number)
            self.valid &= ~is_roll | (is_whole & ((reader.number, number) not in self.order.uneven))
            oldest = need.lead * axis.num // axis.den + axis.low
            lead = oldest + (reader.made - 1) * axis.num // axis.den + 1 + axis.reach - made
        elif read.dims[2] > 1:
            self.valid &= ~is_roll
        else:
            self.for_all.add(number)
        rows, columns = need.rows.window(axis, read.dims[2]), need.columns.window(read.columns, read.dims[3])
        asked = MapNeed(lead, oldest, rows, columns)
        others = self.of_map.get(number)
        self.of_map[number] = asked if others is None else others.joined(asked, read.dims)
        first, end = read.channels if read.channels[1] else (0, read.dims[1])
        low, high = self.channels.get(number, (first, end))
        self.channels[number] = min(first, low), max(end, high)
        self.readers[number] = max(self.readers.get(number, 0), reader.number)


def raster_from(order: LayerOrder, stop: int, target: Target) -> int:
    """Positions of the smallest step in which rows and columns are kept, of groups that end before layer `stop`: one
    for every line of the cores; 0: there are none, for there are several clusters, or rows of the last layer and of
    what it reads take so little of SRAM that whole ones fit."""
    if target.chip.clusters > 1:
        return 0
    node, layer = order.nodes[stop - 1], order.layer(stop - 1)
    images, _, height, _ = layer.out_dims
    rows = [order.maps[stop - 1].bytes // max(1, images * height)]
    rows += [r.bytes // max(1, r.dims[0] * r.dims[2]) for r in node.reads if not order.maps[r.map].is_constant]
    is_wide = max(rows) * RASTER_SHARE > target.cluster.sram.capacity_bytes
    return target.cluster.cores * target.core.matrix.lines if is_wide else 0


def fewest_columns(last: Layer) -> int:
    """Of a strip of a last layer: one is enough of what has a window of many columns."""
    axis = last.maps[0].access[3] if last.maps else None
    return 1 if isinstance(axis, Axis) and axis.num >= FEWEST_COLUMNS * axis.den else FEWEST_COLUMNS


class Parts:
    """Maps that windows connect (union-find): a rolling group has one part."""

    def __init__(self) -> None:
        self.above: dict[int, int] = {}
        self.of_layers: set[int] = set()
        """The parts that layers of the group are in."""

    def add(self, map_: int) -> None:
        """A layer of the group."""
        self.of_layers.add(self.find(map_))

    def find(self, map_: int) -> int:
        above = self.above.setdefault(map_, map_)
        while above != map_:
            self.above[map_] = self.above[above]
            map_, above = above, self.above[above]
        return map_

    def join(self, layer: int, map_: int) -> None:
        """What a layer of the group reads."""
        reader, read = self.find(layer), self.find(map_)
        self.above[reader] = read
        self.of_layers.discard(reader)
        self.of_layers.add(read)
