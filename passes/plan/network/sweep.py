"""All groups that end at one layer, from the shortest to the longest: what each needs of SRAM and moves from DRAM.

A group is an interval of a `LayerOrder`.  Going back one layer costs a few numpy operations on arrays over all tile
shapes (`Shapes`): what a layer's consumers need of it never changes by what stands before it.
Source: docs/techniques/frustum.md, "Regions", "Borders"; Occam (doi 10.1145/3566052) in the form of rates and leads;
the same numbers as `analysis/project.py` and `plan/cost.py` give for one unit and one partition.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import cast

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import Extents
from frustum.dialects.target import Target
from frustum.dialects.tile import AnyAxis, Whole
from frustum.dialects.unit import Borders, Partition
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import grid_of
from frustum.passes.plan.model import FEWEST_COLUMNS, LAYER_CYCLES, MOST_RECOMPUTED, PIECE_SHARE, STRIPS
from frustum.passes.plan.nest_cycles import over
from frustum.passes.plan.network.layer_order import LayerOrder, Node, Read
from frustum.passes.plan.pieces import halves, operations_of, passes_of

Ints = NDArray[np.int64]
SINGLE, OVERLAP, ROLL = 0, 1, 2
SPATIAL = ("conv", "pool", "unary", "binary", "lrn", "resize", "concat", "shuffle", "pick")
BY_IMAGES, BY_ROWS, BY_COLUMNS = 0, 2, 3  # what is dealt to the clusters
FAR = 1 << 40


@dataclass(frozen=True)
class Shapes:
    """Tile shapes of a last layer: rows, columns, images of each tile, what happens at borders, the dimension that is
    dealt to the clusters, and passes."""

    mode: Ints
    dealt: Ints
    rows: Ints
    columns: Ints
    images: Ints
    counts: tuple[Ints, Ints, Ints]
    """Passes over images, rows (of `ROLL` not known yet: 1), columns."""
    tiles: tuple[Ints, Ints]
    """Tiles along rows and columns, of all clusters together."""
    depth: Ints
    """Copies of what is loaded and stored: 1 where load, computation and store of tiles follow each other."""
    shared: NDArray[np.bool_]
    """Inputs are loaded with all rows and columns, once for all clusters: borders are not read again."""

    @property
    def is_roll(self) -> NDArray[np.bool_]:
        return self.mode == ROLL

    def partition(self, k: int, channels: int, steps: int) -> Partition:
        tile: Extents = (int(self.images[k]), channels, int(self.rows[k]), int(self.columns[k]))
        many = steps * int(self.counts[0][k]) * int(self.counts[2][k]) > 1
        borders: Borders = "exchange" if self.mode[k] == ROLL else "overlap"
        depth = int(self.depth[k]) if many else 1
        return Partition(tile, int(self.dealt[k]), depth, borders, shared=bool(self.shared[k]))


def shapes_of(
    dims: Extents, whole: Sequence[int], borders: str, clusters: int = 1, grains: Sequence[int] = (1,)
) -> Shapes:
    """The whole map, or each cluster's share of it; rows at a time, in column strips, rolling or overlapping; image by
    image, or some images at a time where these are whole.  Shares and strips are also multiples of `grains`."""
    images, _, height, width = dims
    found = (
        by_images(dims, whole, borders, clusters) if clusters > 1 and images > 1 and 0 not in whole else []
    )
    across = (3, 2) if width > height else (2, 3)  # of equal ones the first is taken: the one with fewer borders
    dealings = [d for d in across if d not in whole] if clusters > 1 else [2]
    sizes = [
        (
            dealt,
            rounded(over_int(height, clusters), grain) if dealt == 2 else height,
            rounded(over_int(width, clusters), grain) if dealt == 3 else width,
        )
        for dealt in dealings
        for grain in grains
    ] or [(2, height, width)]
    for dealt, tall, wide in dict.fromkeys(sizes):
        found.append((SINGLE, dealt, tall, wide, images))
        found += [(OVERLAP, dealt, tall, wide, some) for some in halves(images) if some < images]
        heights = [tall] if 2 in whole else sorted({*halves(tall), *(r for r in (1, 2, 4, 8) if r < tall)})
        strips = [s for s in STRIPS if s == 1 or wide >= s * FEWEST_COLUMNS]
        widths = {rounded(over_int(wide, s), grain) for s in strips for grain in grains}
        for rows in heights:
            for columns in [wide] if 3 in whole else sorted(c for c in widths if c <= wide):
                if rows < height and borders in ("auto", "exchange") and (clusters == 1 or dealt == 3):
                    found.append((ROLL, dealt, rows, columns, 1))
                if (rows, columns) != (tall, wide) and borders in ("auto", "overlap"):
                    found.append((OVERLAP, dealt, rows, columns, 1))
    twice = [(*shape, 2, 0) for shape in found] + [(*shape, 1, 0) for shape in found if shape[0] != SINGLE]
    if clusters > 1:
        twice += [(*shape, 2, 1) for shape in found if shape[0] == SINGLE and shape[1] != BY_IMAGES]
    columns_of = zip(*twice, strict=True)
    mode, dealt_, rows_, columns_, images_, depth, shared = (
        np.array(values, np.int64) for values in columns_of
    )
    tiles = np.where(mode == ROLL, 1, over(np.full_like(rows_, height), rows_)), over(width, columns_)
    in_turn = (over(images, images_), *tiles)
    share = [np.where(dealt_ == d, clusters, 1) for d in (0, 2, 3)]
    one, down, right = (over(t, by) for t, by in zip(in_turn, share, strict=True))
    tiles = down * share[1], right * share[2]  # a cluster without work loads its borders too
    return Shapes(mode, dealt_, rows_, columns_, images_, (one, down, right), tiles, depth, shared > 0)


def by_images(
    dims: Extents, whole: Sequence[int], borders: str, clusters: int
) -> list[tuple[int, int, int, int, int]]:
    """Shapes of which each cluster makes its own images: some at a time, or rows and columns of one."""
    images, _, height, width = dims
    share = over_int(images, clusters)
    found = [(OVERLAP if n < share else SINGLE, BY_IMAGES, height, width, n) for n in halves(share)]
    heights = [height] if 2 in whole else sorted({*halves(height), *(r for r in (1, 2, 4, 8) if r < height)})
    strips = [s for s in STRIPS if s == 1 or width >= s * FEWEST_COLUMNS]
    for rows in heights:
        for columns in [width] if 3 in whole else sorted({over_int(width, s) for s in strips}):
            if rows < height and borders in ("auto", "exchange"):
                found.append((ROLL, BY_IMAGES, rows, columns, 1))
            if (rows, columns) != (height, width) and borders in ("auto", "overlap"):
                found.append((OVERLAP, BY_IMAGES, rows, columns, 1))
    return found


def over_int(a: int, b: int) -> int:
    return -(-a // b)


def rounded(size: int, grain: int) -> int:
    return -(-size // grain) * grain


@dataclass
class Need:
    """What is needed of a map in each shape, by its consumers in the group.

    Rows: `lead` and `oldest` (rolling; before any consumer -FAR and FAR), or a box; columns: a box.
    Boxes: start = `base` + tile number * `step`, and extent.
    """

    lead: Ints
    oldest: Ints
    rows: tuple[Ints, Ints, Ints]
    columns: tuple[Ints, Ints, Ints]


@dataclass(frozen=True)
class Boundary:
    """A map that enters or leaves a group: bytes of its buffer in each shape, bytes it moves, and by how many steps
    a loaded map is ahead; whether it can be in SRAM instead."""

    map: int
    buffer: Ints
    moved: Ints
    late: Ints
    can_stay: bool
    rows: tuple[Ints, Ints, Ints]
    """What one cluster makes or needs of it: a box as in `Need`."""
    columns: tuple[Ints, Ints, Ints]
    spare: Ints
    """Cycles of a pass in which its only copy may be loaded or stored: behind its last reader, before its maker."""
    short: Ints
    """Bytes that the DRAM port is busy with beyond those that it moves: of rows shorter than a whole run."""


@dataclass
class Root:
    """A concatenation in whose buffer other maps lie: what is needed of any of them, and since which layer."""

    need: Need
    first: int
    is_stored: bool
    crosses: bool
    """Some of its maps is loaded or stored."""


@dataclass
class Group:
    """An interval [first, stop) of the list with all shapes of its tiles."""

    first: int
    stop: int
    shapes: Shapes
    valid: NDArray[np.bool_]
    inside: Ints
    """Bytes of maps that neither enter nor leave, and of constants."""
    inputs: list[Boundary]
    outputs: list[Boundary]
    late: Ints
    behind: Ints
    """Steps of a rolling group: `late` (at least, and of every loaded map) + `behind`."""
    vector_bytes: int
    weights: tuple[int, ...]
    """Of each layer that has any, ascending; what one cluster holds of them."""
    constant_bytes: int
    work: Ints
    """Cycles of one pass."""
    spent: Ints
    """Cycles of all passes in which layers have something to do."""
    channels: int
    """Of a tile."""
    shares: int = 1
    """Clusters that hold different parts of the weights."""


class Sweep:
    """The groups that end before `stop`."""

    def __init__(self, order: LayerOrder, target: Target, stop: int, borders: str = "auto", clusters: int = 0):
        self.order, self.target, self.stop = order, target, stop
        self.last = stop - 1
        node = order.nodes[self.last]
        assert node.layer is not None
        layer = node.layer
        self.dims = layer.out_dims
        self.channels = self.dims[1]
        self.clusters = clusters or target.chip.clusters
        self.shapes = shapes_of(
            self.dims, [d for d in layer.axes_all if d != 1], borders, self.clusters, order.grains
        )
        self.size = len(self.shapes.mode)
        self.needs: dict[int, Need] = {}
        self.readers: dict[int, int] = {}
        self.channels_of: dict[int, tuple[int, int]] = {}
        self.plain_reads: set[int] = set()
        self.parts = Parts()
        self.live = np.zeros((0, self.size), np.int64)
        self.rings = np.zeros(self.size, np.int64)
        self.valid = np.ones(self.size, np.bool_)
        self.late = np.zeros(self.size, np.int64)
        self.behind = np.zeros(self.size, np.int64)
        self.work = np.zeros(self.size, np.int64)
        self.spent = np.zeros(self.size, np.int64)
        self.macs = np.zeros(self.size, np.float64)
        self.useful_macs = 0
        self.overlaps = np.zeros(self.size, np.bool_) if borders in ("exchange", "sent") else None
        self.behind_readers: dict[int, Ints] = {}
        self.from_maker: dict[int, Ints] = {}
        self.vector_bytes = 0
        self.weights: list[int] = []
        self.stored: dict[int, Boundary] = {}
        self.place_of: dict[int, int] = {}
        self.roots: dict[int, Root] = {}
        once = (self.shapes.counts[0] == 1) & (self.shapes.counts[2] == 1)
        self.once = once
        counts = self.shapes.counts
        is_one = ~self.shapes.is_roll & (counts[0] * counts[1] * counts[2] == 1)
        self.copies = np.where(is_one, 1, self.shapes.depth)
        self.only_single = False

    def groups(
        self, most_bytes: int, is_wanted: Callable[[int, int], bool] | None = None, farthest: int = 0
    ) -> Iterator[Group]:
        """Groups from one layer on, until none larger can fit `most_bytes` of SRAM or be a unit at all, or begins
        before `farthest`; of those only what `is_wanted`, by its first layer and the bytes of its weights."""
        weight_bytes = 0
        for k in range(self.last, farthest - 1, -1):
            node = self.order.nodes[k]
            if node.layer is None or node.batched_weights or (k in self.plain_reads):
                return
            if not self.add(k, node):
                return
            weight_bytes += node.weight_bytes + node.vector_bytes
            if not (self.rings + self.peak() + self.vector_bytes <= most_bytes)[self.valid].any():
                return
            if is_wanted is None or is_wanted(k, weight_bytes):
                yield self.group(k)

    def rate(self, number: int, dimension: int) -> Fraction:
        """Rows (0) or columns (1) of a map for one of the last layer's output."""
        rates = self.order.rates[dimension]
        return rates[number] / rates[self.last]

    def made(self, number: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Rows of a map in one rolling step, and where they are whole rows."""
        ratio = self.rate(number, 0)
        rows = self.shapes.rows * ratio.numerator
        return rows // ratio.denominator, rows % ratio.denominator == 0

    def add(self, k: int, node: Node) -> bool:
        layer = node.layer
        assert layer is not None
        shapes = self.shapes
        map_ = self.order.maps[k]
        need = self.needs.pop(k, None)
        self.readers.pop(k, None)
        is_stored = map_.is_output or map_.last_use >= self.stop or not map_.users or k == self.last
        if need is None and not is_stored:
            return False
        if is_stored:
            own = self.own_need() if k == self.last else self.beside(k, layer.out_dims)
            need = self.joined(need, own, layer.out_dims)
        assert need is not None
        made, is_whole = self.made(k)
        align = layer.align[2]
        lead = -(-need.lead // align) * align
        oldest = np.minimum(need.oldest, lead)
        self.parts.add(k)
        is_roll = shapes.is_roll
        self.valid &= ~is_roll | (is_whole & (made % align == 0) & (made > 0))
        self.only_single |= layer.kind not in SPATIAL
        if self.only_single:
            self.valid &= shapes.mode == SINGLE
        if (
            0 in layer.axes_all
            or layer.out_dims[0] != self.dims[0]
            or not all(r.by_image for r in node.reads)
        ):
            self.valid &= shapes.dealt != BY_IMAGES
        rows, columns = (self.on_grid(layer, d, box) for d, box in ((2, need.rows), (3, need.columns)))
        need = Need(lead, oldest, rows, columns)
        made = np.maximum(made, 1)
        self.late = np.maximum(self.late, -(-lead // made))
        if is_stored:
            self.behind = np.maximum(self.behind, -(-(layer.out_dims[2] - lead) // made))
        self.place(k, node, need, made, is_stored)
        for read in node.reads:
            self.behind_readers.setdefault(read.map, self.work)
        self.count_work(node, need, made)
        self.from_maker[k] = self.work
        self.vector_bytes += node.vector_bytes
        if node.weight_bytes:
            insort(self.weights, node.weight_bytes)
        return all(self.ask(k, node, read, need, made) for read in node.reads)

    def on_grid(self, layer: Layer, d: int, box: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
        """A box from the multiple of the layer's steps before it on; rows that roll have steps of their own."""
        grid = grid_of(layer, d)
        if grid == 1:
            return box
        base, step, extent = box
        self.valid &= (step % grid == 0) | (self.shapes.is_roll if d == 2 else False)
        beyond = base % grid
        return base - beyond, step, extent + beyond

    def ask(self, k: int, node: Node, read: Read, need: Need, made: Ints) -> bool:
        """Let a layer ask for one of its operands; False where the group cannot be a unit."""
        if self.order.maps[read.map].is_constant:
            self.rings = self.rings + -(-read.bytes // 16) * 16
            return True
        if not read.joins:
            self.plain_reads.add(read.map)
        if node.is_concat:
            if read.map in self.place_of:
                return False  # an operand of two: one of them is a copy
            self.place_of[read.map] = self.place_of.get(k, k)
        self.pull(k, read, need, made)
        return True

    def own_need(self) -> Need:
        shapes = self.shapes
        zero = np.zeros(self.size, np.int64)
        is_shared = self.clusters > 1
        rows = np.where(
            (shapes.counts[1] > 1) | shapes.is_roll | (is_shared & (shapes.dealt == 2)), shapes.rows, 0
        )
        columns = np.where((shapes.counts[2] > 1) | (is_shared & (shapes.dealt == 3)), shapes.columns, 0)
        return Need(zero, np.full_like(zero, FAR), (zero, rows, shapes.rows), (zero, columns, shapes.columns))

    def beside(self, k: int, dims: Extents) -> Need:
        """The part of another output that belongs to a tile of the last one."""
        own = self.own_need()
        boxes = []
        counts = self.shapes.tiles
        for d, (base, step, extent), count in zip((2, 3), (own.rows, own.columns), counts, strict=True):
            rate = self.rate(k, d - 2)
            whole = (step == 0) & (extent >= self.dims[d])
            if d == 2:
                whole |= self.shapes.is_roll
            own_extent, rest = np.divmod(extent * rate.numerator, rate.denominator)
            self.valid &= whole | ((rest == 0) & (count * own_extent >= dims[d]))
            own_step = step * rate.numerator // rate.denominator
            boxes.append((base, np.where(whole, 0, own_step), np.where(whole, dims[d], own_extent)))
        zero = np.zeros(self.size, np.int64)
        return Need(zero, np.full_like(zero, FAR), boxes[0], boxes[1])

    def joined(self, a: Need | None, b: Need, dims: Extents) -> Need:
        if a is None:
            return b
        return Need(
            np.maximum(a.lead, b.lead),
            np.minimum(a.oldest, b.oldest),
            hull(a.rows, b.rows, dims[2]),
            hull(a.columns, b.columns, dims[3]),
        )

    def pull(self, k: int, read: Read, need: Need, made: Ints) -> None:
        """Let a layer ask for what it needs of a map."""
        number, axis = read.map, read.rows
        self.parts.join(k, number)
        made_there, is_whole = self.made(number)
        lead = np.full(self.size, -FAR)
        oldest = np.full(self.size, FAR)
        if isinstance(axis, Whole):
            if read.dims[2] > 1:
                self.valid &= ~self.shapes.is_roll
        else:
            if (k, number) in self.order.uneven[0] | self.order.uneven[1]:
                self.valid &= ~self.shapes.is_roll
            oldest = need.lead * axis.num // axis.den + axis.low
            lead = oldest + (made - 1) * axis.num // axis.den + 1 + axis.reach - made_there
            self.valid &= ~self.shapes.is_roll | is_whole
        asked = Need(
            lead,
            oldest,
            self.window(axis, need.rows, read.dims[2]),
            self.window(read.columns, need.columns, read.dims[3]),
        )
        self.needs[number] = self.joined(self.needs.get(number), asked, read.dims)
        first, end = read.channels if read.channels[1] else (0, read.dims[1])
        others = self.channels_of.get(number, (first, end))
        self.channels_of[number] = min(first, others[0]), max(end, others[1])
        self.readers[number] = max(self.readers.get(number, 0), k)

    def window(self, axis: AnyAxis, box: tuple[Ints, Ints, Ints], size: int) -> tuple[Ints, Ints, Ints]:
        """The box of an operand, trimmed to the map where it is the same for all tiles."""
        base, step, extent = box
        if isinstance(axis, Whole):
            zero = np.zeros_like(base)
            return zero, zero, np.full_like(base, axis.size)
        low = base * axis.num // axis.den + axis.low
        length = (extent - 1) * axis.num // axis.den + 1 + axis.reach
        is_fixed = step == 0
        end = np.minimum(low + length, size)
        low = np.where(is_fixed, np.maximum(low, 0), low)
        return low, step * axis.num // axis.den, np.where(is_fixed, np.maximum(end - low, 1), length)

    # ------------------------------------------------------------ bytes on chip

    def place(self, k: int, node: Node, need: Need, made: Ints, is_stored: bool) -> None:
        """Count a layer's own map: for the whole pass (rings), while it lives, or as one that leaves."""
        layer = node.layer
        assert layer is not None
        self.live = np.concatenate([np.zeros((1, self.size), np.int64), self.live])
        shared = k in self.place_of or node.is_concat
        size, is_ring = np.zeros(self.size, np.int64), self.once
        if shared:
            self.share(k, need, is_stored)
        else:
            plane = self.shapes.images * layer.out_dims[1] * layer.out_bytes
            copies = self.copies if is_stored else np.ones_like(self.copies)
            size, is_ring = self.buffer(need, made, plane, copies, layer.out_dims)
        if is_stored:
            moved = np.full(self.size, self.order.maps[k].bytes)
            can_stay = k not in self.place_of
            zero = np.zeros_like(moved)
            short = self.short(moved, need, layer.out_dims[3], layer.out_bytes)
            self.stored[k] = Boundary(k, size, moved, zero, can_stay, need.rows, need.columns, zero, short)
        elif not shared:
            self.rings = self.rings + np.where(is_ring, size, 0)
            self.live[: self.last_use(k) - k + 1] += np.where(is_ring, 0, size)

    def last_use(self, k: int) -> int:
        return max((u for u in self.order.maps[k].users if u < self.stop), default=k)

    def share(self, k: int, need: Need, is_stored: bool) -> None:
        """A concatenation, or a map that lies in one."""
        if k not in self.place_of:
            self.roots[k] = Root(need, k, is_stored, is_stored)
            return
        root = self.roots[self.place_of[k]]
        root.need = self.spanned(root.need, need)
        root.first, root.crosses = k, root.crosses or is_stored

    def spanned(self, a: Need, b: Need) -> Need:
        """What must be kept of maps in one buffer."""
        both = self.joined(a, b, self.dims)
        return Need(both.lead, np.minimum(both.oldest, np.minimum(a.lead, b.lead)), both.rows, both.columns)

    def root_buffers(self, first: int) -> tuple[Ints, Ints]:
        """Bytes of rings of concatenations, and at most of other buffers that live; updates those that are stored."""
        live, rings = self.live, np.zeros(self.size, np.int64)
        for k, root in self.roots.items():
            layer = self.order.nodes[k].layer
            assert layer is not None
            need, since, crosses = root.need, root.first, root.crosses
            for number, place in self.place_of.items():
                if place == k and number in self.needs:
                    need, crosses = self.spanned(need, self.needs[number]), True
            made, _ = self.made(k)
            plane = self.shapes.images * layer.out_dims[1] * layer.out_bytes
            copies = self.copies if crosses else np.ones_like(self.copies)
            size, is_ring = self.buffer(need, made, plane, copies, layer.out_dims)
            if root.is_stored:
                old = self.stored[k]
                self.stored[k] = replace(old, buffer=size, rows=need.rows, columns=need.columns)
            elif crosses:
                rings = rings + size
            else:
                live = live.copy() if live is self.live else live
                rings = rings + np.where(is_ring, size, 0)
                live[since - first : self.last_use(k) - first + 1] += np.where(is_ring, 0, size)
        return rings, live.max(axis=0)

    def buffer(
        self, need: Need, made: Ints, plane: Ints | int, copies: Ints, dims: Extents
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Bytes of a map's buffer, and where it is a ring."""
        is_roll = self.shapes.is_roll
        span = need.lead + made - np.minimum(need.oldest, need.lead)
        has_rows = need.lead > -FAR
        is_ring = is_roll & has_rows & (span > made)
        ring = span + (copies - 1) * made
        ring = np.where(self.once, np.minimum(ring, dims[2]), ring)
        rows = np.where(is_ring, ring, np.where(is_roll & has_rows, made, need.rows[2]))
        size = over(plane * rows * need.columns[2], 16) * 16
        return np.where(is_ring, size, size * copies), is_ring

    def peak(self) -> Ints:
        return cast(Ints, self.live.max(axis=0))

    # ------------------------------------------------------------ a group as it stands

    def group(self, first: int) -> Group:
        valid = self.valid
        if self.parts.count(first, self.stop) > 1:
            valid = valid & (self.shapes.rows == self.dims[2]) & (self.shapes.columns == self.dims[3])
        if self.useful_macs:
            valid = valid & (self.macs <= MOST_RECOMPUTED * self.useful_macs)
        if self.overlaps is not None:
            valid = valid & ~self.overlaps
        rings, live = self.root_buffers(first)
        inputs, constants = [], 0
        for number, need in self.needs.items():
            inputs.append(self.loaded(number, need))
            if number in self.place_of:
                valid = valid & ~self.shapes.shared
        for k in range(first, self.stop):
            for read in self.order.nodes[k].reads:
                if self.order.maps[read.map].is_constant:
                    constants += read.bytes
        outputs = [replace(b, spare=self.work - self.from_maker[b.map]) for b in self.stored.values()]
        return Group(
            first, self.stop, self.shapes, valid, self.rings + rings + live, inputs, outputs,
            self.late, self.behind, self.vector_bytes, tuple(self.weights), constants, self.work, self.spent,
            self.channels,
        )  # fmt: skip

    def loaded(self, number: int, need: Need) -> Boundary:
        """An input: its buffer, and the bytes of its boxes over all tiles."""
        map_, shapes = self.order.maps[number], self.shapes
        read = next(r for r in self.order.nodes[self.readers[number]].reads if r.map == number)
        made, _ = self.made(number)
        made = np.maximum(made, 1)
        _, _, height, width = read.dims
        rows_here, columns_here = need.rows, need.columns  # of a map in SRAM
        need = whole_where(shapes.shared, need, height, width)
        first, end = self.channels_of[number]
        channels = end - first
        moves_down = (need.rows[1] != 0) & (shapes.counts[1] > 1)
        moves_right = (need.columns[1] != 0) & (shapes.counts[2] > 1)
        is_fixed = ~moves_down & ~moves_right & (shapes.counts[0] == 1)
        is_fixed &= ~shapes.is_roll | (need.lead <= -FAR)
        copies = np.where(is_fixed, 1, self.copies)
        plane = np.minimum(shapes.images, read.dims[0]) * channels * read.element_bytes
        size, _ = self.buffer(need, made, plane, copies, read.dims)
        if number in self.place_of:
            size = np.zeros_like(size)
        columns = covered(*need.columns, shapes.tiles[1], width)
        rolled = np.minimum(height, need.lead + self.behind * made)  # the last rows may be needed by nobody
        rows = np.where(
            shapes.is_roll & (need.lead > -FAR), rolled, covered(*need.rows, shapes.tiles[0], height)
        )
        # tiles run row by row: strips that are all alike are loaded once for each row of tiles
        rows = np.where(~moves_down & moves_right & ~shapes.is_roll, rows * shapes.counts[1], rows)
        moved = columns * rows * channels * read.dims[0] * read.element_bytes
        late = np.where(need.lead > -FAR, -(-need.lead // made), 0)
        joins = all(
            r.joins
            for k in map_.users
            if k < self.stop
            for r in self.order.nodes[k].reads
            if r.map == number
        )
        spare = self.behind_readers[number]
        short = self.short(moved, need, width, read.element_bytes)
        return Boundary(number, size, moved, late, joins, rows_here, columns_here, spare, short)

    def short(self, moved: Ints, need: Need, width: int, element_bytes: int) -> Ints:
        """What the DRAM port loses with rows of part of a map, where they are shorter than its shortest run."""
        run = np.where(need.columns[2] < width, need.columns[2] * element_bytes, FAR)
        least = self.target.chip.dram.minimum_run_bytes
        return np.where(run < least, moved * (least - run) // np.maximum(run, 1), 0)

    def count_work(self, node: Node, need: Need, made: Ints) -> None:
        layer = node.layer
        assert layer is not None
        core, cores = self.target.core, self.target.cluster.cores
        has_rows = self.shapes.is_roll & (need.lead > -FAR)
        rows = np.where(has_rows, made, need.rows[2])
        window = rows * need.columns[2]
        plane = self.shapes.images * window
        if self.overlaps is not None:
            _, _, height, width = layer.out_dims
            down = covered(*need.rows, self.shapes.tiles[0], height) > height
            right = covered(*need.columns, self.shapes.tiles[1], width) > width
            self.overlaps |= ~self.shapes.is_roll & (down | right)
            if self.clusters > 1:  # what all clusters need alike, each of them makes
                self.overlaps |= (self.shapes.dealt == 2) & (need.rows[1] == 0) & ~self.shapes.is_roll
                self.overlaps |= (self.shapes.dealt == 3) & (need.columns[1] == 0)
        if layer.is_matrix:
            groups, kernel = cast(int, layer.params["groups"]), cast(tuple[int, int], layer.params["kernel"])
            per_group = cast(int, layer.params["channels"])
            made_per_group = layer.out_dims[1] // groups
            passes = self.line_passes(rows, need.columns[2], made_per_group)
            steps = passes * (groups * per_group * math.prod(kernel))
            cycles = steps * core.matrix.cycles_per_step.of(layer.maps[0].element_bytes)
            moved = layer.out_dims[1] * (layer.out_bytes + sum(m.element_bytes for m in layer.maps[1:]))
            moved += groups * per_group * layer.maps[0].element_bytes  # about as many positions as the output has
            cycles = np.maximum(cycles, plane * moved // (cores * core.mvdma.bytes_per_cycle)) + LAYER_CYCLES
            _, channels, height, width = layer.out_dims
            rows_all = np.where(has_rows, height, covered(*need.rows, self.shapes.tiles[0], height))
            columns_all = covered(*need.columns, self.shapes.tiles[1], width)
            self.macs += (
                rows_all * columns_all * (layer.out_dims[0] * channels * per_group * math.prod(kernel))
            )
            self.useful_macs += layer.macs
        else:
            widest = max(layer.out_bytes, *(m.element_bytes for m in layer.maps))
            each = core.vector.cycles_per_element.of(widest)
            passes_ = passes_of(operations_of(layer), core.vector)
            work = math.prod(layer.maps[0].dims[2:]) if layer.kind == "reduce" else 1
            steps = plane * layer.out_dims[1] * work * passes_ * each
            cycles = over(steps, core.vector.lanes * cores) + LAYER_CYCLES * (passes_ > 0)
        self.work = self.work + cycles
        has_work = layer.kind != "concat"
        self.spent = self.spent + has_work * self.all_passes(node, need, made, rows, cycles - LAYER_CYCLES)

    def all_passes(self, node: Node, need: Need, made: Ints, rows: Ints, busy: Ints) -> Ints:
        """A layer's cycles over all passes in which it has something to do: `busy` or the copies to and from the cores,
        and the first load and last store of each pass."""
        layer, shapes = node.layer, self.shapes
        assert layer is not None
        core, cores = self.target.core, self.target.cluster.cores
        _, channels, height, width = layer.out_dims
        plane = shapes.images * rows * need.columns[2]
        has_rows = shapes.is_roll & (need.lead > -FAR)
        passes = shapes.counts[0] * shapes.counts[2] * np.where(has_rows, over(height, made), shapes.counts[1])
        made_bytes = plane * channels * layer.out_bytes
        read_bytes = np.zeros_like(plane)
        for read in node.reads:
            read_bytes = read_bytes + plane * math.prod(read.dims[1:]) // (height * width) * read.element_bytes
        piece = core.nram.capacity_bytes // PIECE_SHARE
        ends = np.minimum(made_bytes // cores, piece) + np.minimum(read_bytes // cores, piece)
        moved = (made_bytes + read_bytes + node.weight_bytes) // cores
        latency = 2 * self.target.cluster.sram.latency_cycles
        rate = core.mvdma.bytes_per_cycle
        return cast(Ints, passes * (np.maximum(busy, moved // rate) + ends // rate + latency))


    def line_passes(self, rows: Ints, columns: Ints, channels: int) -> Ints:
        """Fills of the lines for all output channels of a group, on the core that has the most: rows, columns, images
        or channels dealt to the cores, whichever takes fewest."""
        unit, cores, images = self.target.core.matrix, self.target.cluster.cores, self.shapes.images
        slices = over_int(channels, unit.channels)
        share = over_int(over_int(channels, cores), unit.channels)
        most = over(images * rows * columns, unit.lines) * share
        for windows in (
            images * over(rows, cores) * columns,
            images * rows * over(columns, cores),
            over(images, cores) * rows * columns,
        ):
            most = np.minimum(most, over(windows, unit.lines) * slices)
        return most


def by_channels(order: LayerOrder, target: Target, stop: int, borders: str = "auto") -> Group | None:
    """The last layer before `stop` alone, its output channels dealt to the clusters, each of which reads all that the
    layer reads (some images, or some rows of one at a time); None where it cannot be."""
    node, clusters = order.nodes[stop - 1], target.chip.clusters
    layer, numbers = node.layer, [read.map for read in node.reads]
    if (
        layer is None
        or clusters == 1
        or not layer.is_matrix
        or layer.params["groups"] != 1
        or node.batched_weights
    ):
        return None
    images, channels, height, width = layer.out_dims
    if channels < clusters or len(set(numbers)) < len(numbers):
        return None
    share = over_int(channels, clusters)
    first, *others = node.reads
    parts = [replace(r, dims=(r.dims[0], min(share, r.dims[1]), *r.dims[2:])) for r in others]
    part = replace(node, layer=replace(layer, out_dims=(images, share, height, width)), reads=(first, *parts))
    alone = copy(order)
    alone.nodes = [*order.nodes[: stop - 1], part]
    group = next(Sweep(alone, target, stop, borders, clusters=1).groups(FAR), None)
    if group is None:
        return None
    whole = {read.map: read.bytes for read in others}
    inputs = [
        replace(b, moved=np.full_like(b.moved, whole[b.map])) if b.map in whole else b for b in group.inputs
    ]
    shapes = replace(group.shapes, dealt=np.ones_like(group.shapes.dealt))
    weights = (aligned(over_int(node.weight_bytes, clusters)),)
    return replace(group, shapes=shapes, inputs=inputs, weights=weights, shares=clusters)


def whole_where(shared: NDArray[np.bool_], need: Need, height: int, width: int) -> Need:
    """What is loaded of an input: all rows and columns in shapes that share it."""
    rows, columns = (
        (np.where(shared, 0, base), np.where(shared, 0, step), np.where(shared, size, extent))
        for (base, step, extent), size in ((need.rows, height), (need.columns, width))
    )
    return replace(need, rows=rows, columns=columns)


def aligned(size: int) -> int:
    return -(-size // 16) * 16


def hull(a: tuple[Ints, Ints, Ints], b: tuple[Ints, Ints, Ints], size: int) -> tuple[Ints, Ints, Ints]:
    alike = a[1] == b[1]
    low = np.minimum(a[0], b[0])
    high = np.maximum(a[0] + a[2], b[0] + b[2])
    return np.where(alike, low, 0), np.where(alike, a[1], 0), np.where(alike, high - low, size)


def covered(base: Ints, step: Ints, extent: Ints, count: Ints, size: int) -> Ints:
    """Positions of `count` intervals, each clipped to [0, size), summed."""
    fixed = np.minimum(base + extent, size) - np.maximum(base, 0)
    pace = np.maximum(step, 1)
    total = count * extent
    # cut off below 0: interval i loses min(extent, -(base + i step)) while that is positive
    total = total - cut(-base, pace, extent, count)
    total = total - cut(base + (count - 1) * pace + extent - size, pace, extent, count)
    return np.where(step == 0, np.maximum(fixed, 0), total)


def cut(first: Ints, pace: Ints, extent: Ints, count: Ints) -> Ints:
    """sum over i < count of clip(first - i * pace, 0, extent)"""
    return below(first, pace, count) - below(first - extent, pace, count)


def below(first: Ints, pace: Ints, count: Ints) -> Ints:
    """sum over i < count of max(first - i * pace, 0)"""
    terms = np.minimum(np.maximum(over(first, pace), 0), count)
    return cast(Ints, terms * first - pace * (terms * (terms - 1) // 2))


@dataclass
class Parts:
    """Maps that windows connect (union-find): a rolling group has one part."""

    above: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def add(self, map_: int) -> None:
        self.above.setdefault(map_, map_)
        self.size += 1

    def find(self, map_: int) -> int:
        self.above.setdefault(map_, map_)
        while self.above[map_] != map_:
            self.above[map_] = self.above[self.above[map_]]
            map_ = self.above[map_]
        return map_

    def join(self, a: int, b: int) -> None:
        self.above[self.find(a)] = self.find(b)

    def count(self, first: int, stop: int) -> int:
        return len({self.find(k) for k in range(first, stop)})
