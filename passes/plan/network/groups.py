"""All groups that end at one layer, from the shortest to the longest: what each needs of SRAM and moves from DRAM.

A group is an interval of a `LayerOrder`.  Going back one layer costs a few numpy operations on arrays over all tile
shapes (`TileShapes`): what a layer's consumers need of it never changes by what stands before it.
Source: docs/techniques/frustum.md, "Sizing"; the same numbers as `plan/cost.py` gives for one unit and one partition.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterator
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import aligned, ceil_div, replaced
from frustum.dialects.target import Target
from frustum.dialects.tile import ConvLayer
from frustum.passes.analysis.layer import Layer
from frustum.passes.plan.model import HELD_CONSTANT
from frustum.passes.plan.network.group_work import GroupWork, product_of
from frustum.passes.plan.network.layer_order import LayerNode, LayerOrder, Read
from frustum.passes.plan.network.needs import FAR, GroupLayer, GroupNeeds, Intervals, MapNeed, raster_from
from frustum.passes.plan.network.tile_shapes import BY_CHANNELS, Ints, Mask, TileShapes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Boundary:
    """A map that enters or leaves a group: bytes of its buffer in each shape, bytes it moves, and by how many steps
    a loaded map is ahead; whether it can be in SRAM instead."""

    map: int
    buffer: Ints
    moved: Ints
    late: Ints
    can_stay: bool
    rows: Intervals
    """What one cluster makes or needs of it."""
    columns: Intervals
    spare: Ints
    """Cycles of a pass in which its only copy may be loaded or stored: behind its last reader, before its maker."""
    short: Ints
    """Bytes that the DRAM port is busy with beyond those that it moves: of rows shorter than a whole run."""
    copied: Ints
    """Cycles in which cores copy it into a concatenation that it is a part of, if it lies in SRAM before."""
    by_channel: bool = False
    """Each cluster needs of it the channels that it makes, where it makes a share of the channels."""


@dataclass(frozen=True)
class Group:
    """An interval [first, stop) of the list with all shapes of its tiles."""

    first: int
    stop: int
    shapes: TileShapes
    valid: Mask
    inside: Ints
    """Bytes of maps that neither enter nor leave."""
    inputs: list[Boundary]
    outputs: list[Boundary]
    late: Ints
    behind: Ints
    """Steps of a rolling group: `late` (at least, and of every loaded map) + `behind`."""
    vector_bytes: int
    weights: tuple[int, ...]
    """Of each layer that has any, ascending; what one cluster holds of them."""
    constant_bytes: int
    """Of those that every tile reads and that stay whole."""
    work: Ints
    """Cycles of one pass."""
    spent: Ints
    """Cycles of all passes in which layers have something to do."""
    channels: int
    """Of a tile."""
    energy_pj: Floats
    """Of the cores, and of what passes between them and SRAM."""
    across: Ints
    """Trip counts over columns."""
    shares: int = 1
    """Clusters that hold different parts of the weights."""

    @property
    def by_channels(self) -> bool:
        """Its channels are dealt to the clusters."""
        return self.shares > 1


class GroupsBefore:
    """The groups that end before layer `stop`."""

    def __init__(
        self, order: LayerOrder, target: Target, stop: int, borders: str = "auto", clusters: int = 0
    ):
        self.order = order
        self.target = target
        self.stop = stop
        raster = raster_from(order, stop, target)
        self.needs: GroupNeeds = GroupNeeds(order, stop, borders, clusters or target.chip.clusters, raster)
        self.shapes: TileShapes = self.needs.shapes
        self.buffers: Buffers = Buffers(self.needs, target.chip.dram.minimum_run_bytes)
        parts = target.chip.clusters // self.needs.clusters
        self.work: GroupWork = GroupWork(self.needs, target, parts, counts_overlaps=borders in ("exchange", "sent"))
        self.read_apart: set[int] = set()
        """Maps that are read in another form than they are made: their makers are in no such group."""
        self.factors: dict[int, Read] = {}
        """Maps that a product of two maps reads as both of its factors: how it reads the second one."""
        self.vector_bytes: int = 0
        self.constant_bytes: int = 0
        self.held_bytes: int = int(HELD_CONSTANT * target.cluster.sram.capacity_bytes)
        self.weights: list[int] = []
        self.known_inputs: dict[int, tuple[tuple[object, ...], Boundary]] = {}
        """With what they rest on: most are the same of a group and of the next larger one."""

    def within(
        self, most_bytes: int, wanted: Container[int] | None = None, farthest: int = 0
    ) -> Iterator[Group]:
        """Groups from one layer on, until none larger can fit `most_bytes` of SRAM or be a unit at all, or begins
        before `farthest`; of those only the ones whose first layer is `wanted`."""
        for k in range(self.stop - 1, farthest - 1, -1):
            node = self.order.nodes[k]
            if node.layer is None or node.batched_weights or k in self.read_apart or not self.add(k):
                return
            least = self.buffers.rings + self.buffers.peak() + self.vector_bytes
            if not (least <= most_bytes)[self.needs.valid].any():
                return
            if wanted is None or k in wanted:
                yield self.group(k)

    def add(self, k: int) -> bool:
        """Let a layer join; False where the group cannot be a unit."""
        joining = self.needs.take(k)
        if joining is None:
            return False
        self.buffers.place(joining)
        self.work.add(joining)
        node = joining.node
        if node.has_factors:  # in every tile of an image again
            self.needs.valid &= (self.shapes.counts[1] == 1) & (self.shapes.counts[2] == 1)
            self.needs.valid &= ~self.shapes.is_roll
        self.vector_bytes += node.vector_bytes
        if node.weight_bytes:
            insort(self.weights, node.weight_bytes)
        return all(self.ask(joining, read) for read in node.reads)

    def ask(self, reader: GroupLayer, read: Read) -> bool:
        """Let a layer ask for one of its operands; False where the group cannot be a unit."""
        if self.order.maps[read.map].is_constant and read.bytes <= self.held_bytes:
            self.buffers.rings = self.buffers.rings + aligned(read.bytes)
            self.constant_bytes += read.bytes
            return True
        if not read.joins:
            self.read_apart.add(read.map)
            others = [each for each in reader.node.reads if each.map == read.map]
            if reader.node.has_factors and len(others) > 1 and read is others[-1]:
                self.factors[read.map] = read
                return True
        if reader.node.is_concat and not self.buffers.lies_in(read.map, reader.number):
            return False
        self.needs.pull(reader, read)
        return True

    def group(self, first: int) -> Group:
        """The group as it stands."""
        needs, shapes = self.needs, self.shapes
        valid = needs.valid & self.work.is_allowed()
        if len(needs.parts.of_layers) > 1:
            valid &= (shapes.rows == needs.dims[2]) & (shapes.columns == needs.dims[3])
        if any(number in self.buffers.place_of for number in needs.of_map):
            valid &= ~shapes.shared
        if self.buffers.place_of:
            valid &= ~shapes.is_raster
        valid[needs.raster.index] &= needs.raster.valid
        inside = self.buffers.inside(first)
        inputs = [self.loaded(number, need) for number, need in needs.of_map.items()]
        total, before = self.work.cycles, self.work.before_maker
        outputs = [replace(b, spare=total - before[b.map]) for b in self.buffers.stored.values()]
        return Group(
            first, self.stop, shapes, valid, inside, inputs, outputs, needs.late, needs.behind, self.vector_bytes,
            tuple(self.weights), self.constant_bytes, total, self.work.spent, needs.dims[1],
            self.work.energy_pj, needs.raster.steps(shapes.counts[2], list(needs.of_map)),
        )  # fmt: skip

    def loaded(self, number: int, needed: MapNeed) -> Boundary:
        """An input: its buffer, and the bytes of its boxes over all tiles."""
        behind, across = self.needs.behind, self.needs.raster
        is_apart, has_place = number in self.read_apart, number in self.buffers.place_of
        known = needed, behind, self.needs.channels[number], has_place, across.behind, is_apart
        before, found = self.known_inputs.get(number, ((), None))
        if found is None or any(x is not y for x, y in zip(before, known, strict=True)):
            found = self.newly_loaded(number, needed)
            self.known_inputs[number] = known, found
        return found

    def newly_loaded(self, number: int, needed: MapNeed) -> Boundary:
        """The same, as it is now."""
        shapes, (made, _) = self.shapes, self.needs.made(number)
        read = next(r for r in self.order.nodes[self.needs.readers[number]].reads if r.map == number)
        images, _, height, width = read.dims
        rows, columns = (
            needed.rows.or_whole(shapes.shared, height),
            needed.columns.or_whole(shapes.shared, width),
        )
        need = replace(needed, rows=rows, columns=columns)
        first, end = self.needs.channels[number]
        moves_down = (rows.step != 0) & (shapes.counts[1] > 1)
        moves_right = (columns.step != 0) & (shapes.counts[2] > 1)
        goes_on = (shapes.counts[0] > 1) & (images == self.needs.dims[0])  # else one map is that of all images
        is_fixed = ~moves_down & ~moves_right & ~goes_on
        rolls = shapes.is_roll & (need.lead > -FAR)
        copies = np.where(is_fixed & ~rolls, 1, self.buffers.copies)
        if number in self.buffers.place_of:
            size = np.zeros_like(made)
        else:
            plane = self.needs.images(images) * (end - first) * read.element_bytes
            size, _ = self.buffers.sized(number, need, made, plane, copies, height)
        rolled = np.minimum(
            height, need.lead + self.needs.behind * made
        )  # the last rows may be needed by nobody
        down = np.where(rolls, rolled, rows.covered(shapes.tiles[0], height))
        # tiles run row by row: strips that are all alike are loaded once for each row of tiles
        down = np.where(~moves_down & moves_right & ~shapes.is_roll, down * shapes.counts[1], down)
        right = self.needs.raster.loaded(number, width, columns.covered(shapes.tiles[1], width))
        right = np.where(rolls & ~moves_right, right * shapes.counts[2], right)  # steps run strip by strip
        moved = right * down * (end - first) * images * read.element_bytes
        moved = moved * np.where(goes_on | (is_fixed & ~rolls), 1, shapes.counts[0])  # begun anew for each image
        late = np.where(need.lead > -FAR, ceil_div(need.lead, made), 0)
        joins = number not in self.read_apart  # by layers of this group; what others read of it is their affair
        inside = self.needs.raster.inside(number, columns.extent)
        short = self.buffers.short(moved, inside, width, read.element_bytes) * read.in_rows
        if number in self.factors:  # loaded by itself, all of some images
            factor = self.factors[number]
            of_image = factor.bytes // factor.dims[0]
            size = size + aligned(self.needs.images(factor.dims[0]) * of_image) * copies
            moved = moved + factor.bytes
        copied = np.zeros_like(moved)
        if number in self.buffers.place_of:
            copied = self.work.copied(moved)
        spare = self.work.behind_reader[number]
        return Boundary(number, size, moved, late, joins, needed.rows, needed.columns, spare, short, copied)


@dataclass
class Root:
    """A concatenation in whose buffer other maps lie: what is needed of any of them, and since which layer."""

    need: MapNeed
    first: int
    is_stored: bool
    crosses: bool
    """Some of its maps is loaded or stored."""


class Buffers:
    """SRAM bytes of the maps of a growing group: for the whole pass (`rings`), while they live, or as maps that
    leave."""

    def __init__(self, needs: GroupNeeds, run_bytes: int):
        self.needs = needs
        self.order: LayerOrder = needs.order
        self.shapes: TileShapes = needs.shapes
        self.run_bytes = run_bytes
        self.live: Ints = np.zeros((0, needs.size), np.int64)
        self.rings: Ints = np.zeros(needs.size, np.int64)
        self.place_of: dict[int, int] = {}
        """Of a map that lies in a concatenation: the outermost one."""
        self.roots: dict[int, Root] = {}
        self.stored: dict[int, Boundary] = {}
        self.once: Mask = (self.shapes.counts[0] == 1) & (self.shapes.counts[2] == 1)
        self.copies: Ints = np.where(~self.shapes.is_roll & (self.shapes.passes == 1), 1, self.shapes.depth)

    def lies_in(self, number: int, concat: int) -> bool:
        """Give a concatenation's operand its place; False for an operand of two: one of them is a copy."""
        if number in self.place_of:
            return False
        self.place_of[number] = self.place_of.get(concat, concat)
        return True

    def place(self, made: GroupLayer) -> None:
        """Count a layer's own map."""
        k, need, is_stored = made.number, made.need, made.is_stored
        zero = np.zeros(self.needs.size, np.int64)
        self.live = np.concatenate([zero[np.newaxis], self.live])
        has_place = k in self.place_of
        size = zero
        if has_place:
            root = self.roots[self.place_of[k]]
            root.need = root.need.spanned(need, self.needs.dims)
            root.first, root.crosses = k, root.crosses or is_stored
        elif made.node.is_concat:
            self.roots[k] = Root(need, k, is_stored, is_stored)
        else:
            size, is_ring = self.buffer(k, need, crosses=is_stored)
            if not is_stored:
                self.rings = self.rings + np.where(is_ring, size, 0)
                self.live[: self.last_use(k) - k + 1] += np.where(is_ring, 0, size)
        if is_stored:
            moved = np.full(self.needs.size, self.order.maps[k].bytes)
            short = self.short(moved, made.columns, made.layer.out_dims[3], made.layer.out_bytes)
            short = short * (made.layer.out_view.strides[3] == 1)
            self.stored[k] = Boundary(
                k, size, moved, zero, not has_place, need.rows, need.columns, zero, short, zero
            )

    def last_use(self, k: int) -> int:
        return max((u for u in self.order.maps[k].users if u < self.needs.stop), default=k)

    def peak(self) -> Ints:
        """The most that lives at a time."""
        return self.live.max(axis=0)

    def inside(self, first: int) -> Ints:
        """Bytes of all maps that neither enter nor leave a group from `first` on; updates the buffers of
        concatenations that are stored."""
        live, rings = self.live, self.rings
        for k, root in self.roots.items():
            need, crosses = root.need, root.crosses
            for number, place in self.place_of.items():
                if place == k and number in self.needs.of_map:
                    need, crosses = need.spanned(self.needs.of_map[number], self.needs.dims), True
            size, is_ring = self.buffer(k, need, crosses=crosses)
            if root.is_stored:
                self.stored[k] = replace(self.stored[k], buffer=size, rows=need.rows, columns=need.columns)
            elif crosses:
                rings = rings + size
            else:
                live = live.copy() if live is self.live else live
                rings = rings + np.where(is_ring, size, 0)
                live[root.first - first : self.last_use(k) - first + 1] += np.where(is_ring, 0, size)
        return rings + live.max(axis=0)

    def buffer(self, k: int, need: MapNeed, *, crosses: bool) -> tuple[Ints, Mask]:
        """Bytes of the buffer of a layer's map, and where it is a ring; with copies if it is loaded or stored."""
        layer, (made, _) = self.order.layer(k), self.needs.made(k)
        plane = self.needs.images(layer.out_dims[0]) * layer.out_dims[1] * layer.out_bytes
        return self.sized(
            k, need, made, plane, self.copies if crosses else np.ones_like(made), layer.out_dims[2]
        )

    def sized(self, k: int, need: MapNeed, made: Ints, plane: Ints, copies: Ints, height: int) -> tuple[Ints, Mask]:
        """Bytes of a buffer, and where it is a ring."""
        rolls = self.shapes.is_roll & (need.lead > -FAR)
        span = need.lead + made - np.minimum(need.oldest, need.lead)
        is_ring = rolls & (span > made)
        ring = span + (copies - 1) * made
        ring = np.where(self.once, np.minimum(ring, height), ring)
        rows = np.where(is_ring, ring, np.where(rolls, made, need.rows.extent))
        size = aligned(plane * rows * need.columns.extent)
        size = np.where(is_ring, size, size * copies)
        return self.needs.raster.sized(k, size, is_ring, span, made, plane, copies)

    def short(self, moved: Ints, columns: Ints, width: int, element_bytes: int) -> Ints:
        """What the DRAM port loses with rows of part of a map, where they are shorter than its shortest run."""
        run = np.where(columns < width, columns * element_bytes, FAR)
        return np.where(run < self.run_bytes, moved * (self.run_bytes - run) // np.maximum(run, 1), 0)


def by_channels(order: LayerOrder, target: Target, stop: int, borders: str = "auto") -> Group | None:
    """The last layer before `stop` alone, its output channels dealt to the clusters: each reads all that a product
    reads (some images, or some rows of one at a time), of other maps its own channels; None where it cannot be."""
    node, clusters = order.nodes[stop - 1], target.chip.clusters
    if clusters == 1 or not may_deal_channels(order, node, clusters):
        return None
    layer, share = order.layer(stop - 1), ceil_div(order.layer(stop - 1).out_dims[1], clusters)
    images, _, height, width = layer.out_dims
    reads = (
        replace(r, dims=replaced(r.dims, 1, share), channels=(0, share)) if r.by_channel else r
        for r in node.reads
    )
    own_layer = replace(layer, out_dims=(images, share, height, width))
    if is_depthwise(layer):
        assert isinstance(layer.kind, ConvLayer)
        own_layer = replace(own_layer, kind=replace(layer.kind, groups=share))
    part = replace(node, layer=own_layer, reads=tuple(reads))
    alone = copy(order)
    alone.nodes = [*order.nodes[: stop - 1], part]
    group = next(GroupsBefore(alone, target, stop, borders, clusters=1).within(FAR), None)
    if group is None:
        return None
    own = {read.map: read.dims[1] for read in node.reads if read.by_channel}
    inputs = [
        replace(b, moved=b.moved // share * own[b.map], by_channel=True) if b.map in own else b
        for b in group.inputs
    ]
    shapes = replace(group.shapes, dealt=np.full_like(group.shapes.dealt, BY_CHANNELS))
    weights = (aligned(ceil_div(node.weight_bytes, clusters)),) if node.weight_bytes else ()
    return replace(group, shapes=shapes, inputs=inputs, weights=weights, shares=clusters)


def is_depthwise(layer: Layer) -> bool:
    """A convolution of each channel by itself, into as many channels."""
    return isinstance(layer.kind, ConvLayer) and layer.kind.groups == layer.out_dims[1] == layer.maps[0].dims[1]


def may_deal_channels(order: LayerOrder, node: LayerNode, clusters: int) -> bool:
    """A product, or a layer of which each channel of the result needs that channel of every map alone."""
    layer, numbers = node.layer, [read.map for read in node.reads]
    if (
        layer is None
        or node.is_concat
        or node.batched_weights
        or node.has_factors
        or layer.out_dims[1] < clusters
        or 1 in layer.axes_all
        or ceil_div(layer.out_dims[1], clusters) % layer.align[1]
    ):
        return False
    if len(set(numbers)) < len(numbers):
        return False
    if is_depthwise(layer):  # behind other layers it shares rows with them, and runs in a core
        return all(r.by_channel and order.maps[r.map].producer is None for r in node.reads)
    if layer.is_matrix:
        return product_of(layer)[0] == 1 and all(r.by_channel for r in node.reads[1:])
    return bool(node.reads) and all(r.by_channel for r in node.reads)
