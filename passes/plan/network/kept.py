# Tests: test/passes/plan/network/test_kept.py
"""Maps that stay in SRAM between units: what of each every cluster holds, who can make and read it so, and how long it
takes to send what others make.

Source: docs/techniques/frustum.md, "Borders"; the boxes are those of `tile/resident.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import (
    SAME,
    Axis,
    BinaryLayer,
    ConvLayer,
    NormaliseLayer,
    SoftmaxLayer,
    UnaryLayer,
    Whole,
)
from frustum.passes.analysis.layer import SAME4, Layer
from frustum.passes.analysis.unit_layers import same_form
from frustum.passes.plan.network.groups import Boundary
from frustum.passes.plan.network.layer_order import LayerOrder, Map
from frustum.passes.plan.network.tile_shapes import (
    BY_CHANNELS,
    BY_COLUMNS,
    BY_IMAGES,
    BY_ROWS,
    Mask,
    TileShapes,
)

WHOLE = -1
AS_MADE = -5
"""Forms below it are those of `as_made`."""


class KeptMap(NamedTuple):
    """A map that stays in SRAM and how: `dealt` is the dimension of which each cluster holds its share; `WHOLE`: each
    holds all; less (`in_place`): each has room for all, and in it its share of a dimension along which it was not made;
    of these (`as_made`) what it made itself is read, too, in the shares in which it was made.
    """

    map: int
    dealt: int

    @property
    def dimension(self) -> int | None:
        """Of which each cluster has its share; None where it has all."""
        return self.dealt if self.dealt >= 0 else None if self.dealt == WHOLE else (WHOLE - 1 - self.dealt) % 4

    @property
    def made(self) -> int | None:
        """The dimension in shares of which it was made, where it is read so too."""
        return (WHOLE - 1 - self.dealt) // 4 - 1 if self.dealt < AS_MADE else None

    @property
    def is_in_place(self) -> bool:
        """There is room for all of it in each cluster."""
        return self.dealt < 0


def in_place(dimension: int) -> int:
    """The form of maps with room for all in each cluster, which has its share along a dimension."""
    return WHOLE - 1 - dimension


def as_made(dimension: int, made: int) -> int:
    """The same of maps of which each cluster also reads the share along another dimension that it has made itself."""
    return in_place(dimension) - 4 * (made + 1)


TWO_FORMS = ((BY_CHANNELS, BY_ROWS), (BY_CHANNELS, BY_COLUMNS), (BY_ROWS, BY_CHANNELS), (BY_COLUMNS, BY_CHANNELS))
"""Dimensions of which a cluster has its share, and along which it has made it, that two layers may read."""


Resident = frozenset[KeptMap]
NOTHING: Resident = frozenset()


def moved(maps: Resident, by: int) -> Resident:
    """The maps so many layers further on."""
    return frozenset(KeptMap(kept.map + by, kept.dealt) for kept in maps) if maps else maps


class HeldShare(NamedTuple):
    """What each cluster holds of a map along the dimension that is dealt: its share and the borders around it."""

    share: int
    before: int
    behind: int
    bytes: int
    made: int = 0
    """What each has made of it itself, along another dimension, and reads so too."""


def shares_of(order: LayerOrder, clusters: int) -> dict[KeptMap, HeldShare]:
    """What each cluster holds of every map that may stay: all of it, its images, its channels, or its share of rows or
    columns with the borders that single layers need of it.  A map of one position has no rows or columns to share: its
    forms would crowd out, among the states of a cut, those of the maps that matter."""
    found = {}
    for map_ in order.maps[: len(order.nodes)]:
        layer, number = order.nodes[map_.number].layer, map_.number
        if layer is None:
            continue
        found[KeptMap(number, WHOLE)] = HeldShare(0, 0, 0, aligned(map_.bytes))
        if clusters == 1:
            continue
        for d in (BY_ROWS, BY_COLUMNS, BY_IMAGES, BY_CHANNELS):
            size = layer.out_dims[d]
            share = ceil_div(size, clusters)
            before, behind = borders_of(order, map_, d, share, clusters) if d >= BY_ROWS else (0, 0)
            held = map_.bytes // size * min(size, share + before + behind)
            if size > 1 or (d >= BY_ROWS and max(layer.out_dims[2:]) > 1):
                found[KeptMap(number, d)] = HeldShare(share, before, behind, aligned(held))
                found[KeptMap(number, in_place(d))] = HeldShare(share, before, behind, aligned(map_.bytes))
        for d, made in TWO_FORMS:
            share, other = KeptMap(number, in_place(d)), KeptMap(number, in_place(made))
            both = KeptMap(number, as_made(d, made))
            if share in found and other in found and has_reader(order, both, 0):
                found[both] = found[share]._replace(made=found[other].share)
    return found


def borders_of(order: LayerOrder, map_: Map, d: int, share: int, clusters: int) -> tuple[int, int]:
    """Positions before and behind its share that layers need which are shared out along the same dimension."""
    before = behind = 0
    size = order.layer(map_.number).out_dims[d]
    for layer, axis in windows_of(order, map_.number, d):
        own = ceil_div(layer.out_dims[d], clusters)
        if own * axis.num == share * axis.den:
            before = max(before, -axis.low)
            behind = max(behind, own_extent(axis, own) + axis.low - share)
            continue
        for cluster in range(clusters):
            start = own * cluster * axis.num // axis.den + axis.low
            first, end = max(0, start), min(size, start + own_extent(axis, own))
            if first < end:
                before = max(before, share * cluster - first)
                behind = max(behind, end - share * (cluster + 1))
    return before, behind


def windows_of(order: LayerOrder, number: int, d: int) -> Iterator[tuple[Layer, Axis]]:
    """The layers that read a map along a dimension, and what they need of it there; also those that read what is made
    of it channel by channel, for they may do so in one unit: so norms of planes are made where they are read."""
    for k in order.maps[number].users:
        node = order.nodes[k]
        for read in node.reads:
            axis = read.rows if d == BY_ROWS else read.columns
            if read.map != number or node.layer is None or isinstance(axis, Whole) or not read.joins:
                continue
            yield node.layer, axis
            if axis == SAME and changes_channels(node.layer):
                yield from windows_of(order, k, d)


def changes_channels(layer: Layer) -> bool:
    """Whether each channel is changed by a number of its own, or all by one."""
    is_one = [max(m.dims[2:]) == 1 for m in layer.maps]
    return isinstance(layer.kind, BinaryLayer) and any(is_one) and not all(is_one)


def own_extent(axis: Axis, extent: int) -> int:
    """Positions that so many of a result need."""
    return (extent - 1) * axis.num // axis.den + 1 + axis.reach


# ---------------------------------------------------------------- who makes and reads it


def forms_behind(shapes: TileShapes, clusters: int) -> Iterator[int]:
    """How maps may stay behind a group with these shapes."""
    if clusters == 1:
        yield WHOLE
        return
    by_channels = bool((shapes.dealt == BY_CHANNELS).any())
    if (shapes.dealt == BY_IMAGES).any():
        yield BY_IMAGES
    if by_channels:
        yield from (BY_CHANNELS, in_place(BY_ROWS), in_place(BY_COLUMNS))
    else:
        yield from (BY_ROWS, BY_COLUMNS)
    yield from (as_made(d, made) for d, made in TWO_FORMS if (made == BY_CHANNELS) == by_channels)
    yield WHOLE
    if not by_channels:
        yield in_place(BY_CHANNELS)


def has_reader(order: LayerOrder, kept: KeptMap, stop: int) -> bool:
    """Some layer from `stop` on may read a map that stays so; of two shares each has its own."""
    forms = [d for d in (kept.dimension, kept.made) if d is not None]
    readers = [readers_along(order, kept.map, d, stop) for d in forms]
    return all(readers) and (kept.made is None or len(set().union(*readers)) > 1)


def read_forms(order: LayerOrder, number: int, stop: int) -> tuple[int, ...]:
    """The forms in which some layer from `stop` on may read a map."""
    forms = *range(4), *(as_made(*both) for both in TWO_FORMS)
    return tuple(form for form in forms if has_reader(order, KeptMap(number, form), stop))


def readers_along(order: LayerOrder, number: int, d: int, stop: int) -> set[int]:
    """The layers from `stop` on that need not all positions of a map along a dimension for any of their result."""
    reads = [(k, r) for k in order.maps[number].users if k >= stop for r in order.nodes[k].reads if r.map == number]
    if d == BY_CHANNELS:
        return {k for k, read in reads if read.by_channel}
    if d == BY_IMAGES:
        return {k for k, _ in reads}
    axes = [(k, read, read.rows if d == BY_ROWS else read.columns) for k, read in reads]
    return {k for k, read, axis in axes if read.joins and not (isinstance(axis, Whole) and read.dims[d] > 1)}


def is_read_whole(order: LayerOrder, number: int, d: int, stop: int) -> bool:
    """Some layer from `stop` on needs all positions of a map along a dimension for any of its result."""
    readers = (k for k in order.maps[number].users if k >= stop)
    reads = (read for k in readers for read in order.nodes[k].reads if read.map == number and read.joins)
    return any(isinstance(r.rows if d == BY_ROWS else r.columns, Whole) and r.dims[d] > 1 for r in reads)


def is_made_so(b: Boundary, kept: KeptMap, held: HeldShare | None, shapes: TileShapes) -> Mask:
    """In which shapes a cluster makes no more of a map than it holds, and once, so that it can send the others theirs;
    `held`: None where it cannot stay so."""
    counts = shapes.counts
    is_once = ((shapes.dealt != BY_ROWS) | (counts[1] == 1)) & (
        (shapes.dealt != BY_COLUMNS) | (counts[2] == 1)
    )
    if held is None:
        return np.zeros(len(shapes.dealt), np.bool_)
    if kept.dimension is not None and kept.is_in_place and kept.dimension >= BY_ROWS:
        # Of what passes make in turn along a dimension nobody is sent its share alone.
        is_once &= (counts[kept.dimension - 1] == 1) & ~shapes.is_roll
    if kept.made is not None:
        return is_once & shares_along(b, kept.made, held.made, shapes)
    if kept.is_in_place:
        return is_once & (shapes.dealt != kept.dimension)
    fits = shapes.dealt == kept.dealt
    if kept.dealt == BY_IMAGES:
        return fits & (shapes.images * counts[0] == held.share)
    if kept.dealt == BY_CHANNELS:
        return fits
    start, step, extent = b.rows if kept.dealt == BY_ROWS else b.columns
    fits &= is_once & (step == held.share)
    return fits & (start >= -held.before) & (start + extent <= held.share + held.behind)


def shares_along(b: Boundary, d: int, share: int, shapes: TileShapes) -> Mask:
    """In which shapes each cluster makes, or needs, no more than its share along a dimension."""
    fits = shapes.dealt == d
    if d == BY_CHANNELS:
        return fits
    start, step, extent = b.rows if d == BY_ROWS else b.columns
    return fits & (shapes.counts[d - 1] == 1) & (step == share) & (start >= 0) & (start + extent <= share)


def is_read_so(
    b: Boundary, kept: KeptMap, held: HeldShare | None, shapes: TileShapes, size: int, clusters: int
) -> Mask:
    """In which shapes a cluster needs no more than it has of a map with `size` positions along the dimension."""
    d = kept.dimension
    if held is None:
        return np.zeros(len(shapes.dealt), np.bool_)
    if d is None:
        return np.ones(len(shapes.dealt), np.bool_)
    if kept.made is not None:
        as_held = is_read_so(b, KeptMap(kept.map, in_place(d)), held, shapes, size, clusters)
        return as_held | (shares_along(b, kept.made, held.made, shapes) & (b.by_channel or kept.made != BY_CHANNELS))
    fits = shapes.dealt == d
    if d == BY_IMAGES:
        return fits & (shapes.images * shapes.counts[0] == held.share)
    if d == BY_CHANNELS:
        return fits & b.by_channel
    start, step, extent = b.rows if d == BY_ROWS else b.columns
    fits &= shapes.counts[d - 1] == 1
    if not fits.any():
        return fits
    cluster = np.arange(clusters)[:, np.newaxis]
    low = start + cluster * step
    high, low = np.minimum(low + extent, size), np.maximum(low, 0)
    own = cluster * held.share
    within = (low >= own - held.before) & (high <= own + held.share + held.behind)
    every: Mask = fits & ((low >= high) | within).all(axis=0)
    return every


# ---------------------------------------------------------------- what is sent


def send_cycles(order: LayerOrder, kept: KeptMap, held: HeldShare, target: Target) -> int:
    """Cycles in which a cluster sends others what they hold of a map that stays, and do not make."""
    clusters, cdma = target.chip.clusters, target.chip.cluster.cdma
    if clusters == 1 or cdma is None:
        return 0
    size_bytes, d = order.maps[kept.map].bytes, kept.dimension
    others = clusters - 1
    if d is None:
        sent_bytes = size_bytes * others // clusters
    elif kept.is_in_place:
        share = held.share + held.before + held.behind
        sent_bytes = size_bytes * others * share // (clusters * clusters * held.share)
    elif d in (BY_IMAGES, BY_CHANNELS):
        return 0
    else:
        sent_bytes = size_bytes * (held.before + held.behind) // order.layer(kept.map).out_dims[d]
        others = min(others, (held.before > 0) + (held.behind > 0))
    latency = 2 * target.cluster.sram.latency_cycles
    return sent_bytes // cdma.bytes_per_cycle + latency * (others > 0)


# ---------------------------------------------------------------- what takes the place of another map

WRITES_OVER = ConvLayer | UnaryLayer | BinaryLayer | NormaliseLayer | SoftmaxLayer
"""Layers of which a piece is made of the same piece of what it writes over: what a product adds, elements or rows."""


def place_for(layer: Layer) -> int | None:
    """Of the maps that a layer reads the one whose place its result may take: the last of the result's extents, if each
    piece of the result needs just that piece of it."""
    places = [j for j, own in enumerate(layer.maps) if own.dims == layer.out_dims]
    if not places or not isinstance(layer.kind, WRITES_OVER):
        return None
    own = layer.maps[places[-1]]
    held = tuple(Whole(size) if d in layer.axes_all else SAME for d, size in enumerate(own.dims))
    is_alike = own.access in (SAME4, held) and own.element_bytes == layer.out_bytes
    return places[-1] if is_alike and same_form(own.dims, own.view, layer.out_dims, layer.out_view) else None


def written_over(order: LayerOrder, k: int, found: Resident) -> Resident:
    """Of the maps in SRAM the one whose place the result of layer k may take (`place_for`), which nothing else reads
    behind."""
    layer, reads = order.layer(k), order.nodes[k].reads
    place = place_for(layer) if len(reads) == len(layer.maps) else None
    if place is None:
        return NOTHING
    read = reads[place]
    is_alone = sum(other.map == read.map for other in reads) == 1 and not order.maps[read.map].is_output
    if not is_alone or any(user > k or order.nodes[user].is_concat for user in order.maps[read.map].users):
        return NOTHING
    return frozenset(m for m in found if m.map == read.map)
