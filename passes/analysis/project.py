"""Which part of every map a tile of a unit's output needs: shape inference from the output backwards.

Source: docs/techniques/tfu.md, docs/techniques/frustum.md, "Regions".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.module import MAP
from frustum.dialects.tile import Axis, MapAttr, Raster, SubMap, Tile
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer, MapOperand, dense
from frustum.passes.analysis.roll import COLUMNS, ROWS, Rolling, rates_of, ring_rows, roll
from frustum.passes.analysis.unit_layers import Source, UnitLayers, Unprojectable, layers_of, unit_layers

IMAGES = 0
Starts = tuple[Affine, Affine, Affine, Affine]


@dataclass(frozen=True)
class Region:
    """A box of a map: where it starts (in tile indices and the cluster number) and its nominal extents."""

    start: Starts
    extent: Extents

    def box(self, bound: Extents) -> Box:
        return Box(self.start, self.extent, bound)

    @property
    def is_fixed(self) -> bool:
        """The same for every tile of a cluster."""
        return not any(s.loops for s in self.start)

    @property
    def elements(self) -> int:
        return math.prod(self.extent)


def dealt(extent: int, tile: int, clusters: int) -> int:
    """Passes of a loop whose tiles are dealt to `clusters`."""
    return math.ceil(math.ceil(extent / tile) / clusters)


def tile_counts(dims: Extents, partition: Partition, clusters: int) -> Extents:
    """Passes of the loop over the tiles, per dimension, when borders overlap (`Projection.counts` has them always)."""
    n, c, h, w = (
        dealt(e, t, clusters if d == partition.clusters else 1)
        for d, (e, t) in enumerate(zip(dims, partition.tile, strict=True))
    )
    return (n, c, h, w)


def output_region(dims: Extents, partition: Partition, clusters: int) -> Region:
    """The region of the unit's output that pass (i0, i1, i2, i3) of cluster k makes."""
    counts = tile_counts(dims, partition, clusters)
    starts = []
    for d, tile in enumerate(partition.tile):
        is_dealt = d == partition.clusters and clusters > 1
        own = counts[d] if d == IMAGES else 1  # a cluster's images follow each other, tiles of rows are dealt in turn
        step = tile * (clusters if is_dealt and d != IMAGES else 1)
        start = Affine.index(d, step) if counts[d] > 1 else Affine()
        starts.append(start + Affine(cluster=tile * own) if is_dealt else start)
    return Region(_starts(starts), partition.tile)


def _starts(values: Sequence[Affine]) -> Starts:
    a, b, c, d = values
    return (a, b, c, d)


def needed(region: Region, operand: MapOperand) -> Region:
    """What a region of a layer's output needs of one operand, trimmed to the map where it is the same for all tiles."""
    starts, extents = [], []
    for axis, start, extent, size in zip(
        operand.access, region.start, region.extent, operand.dims, strict=True
    ):
        low, length = axis.start(start), axis.extent(extent)
        if low.is_constant:
            end = min(low.base + length, size)
            low = Affine(max(0, low.base))
            length = max(1, end - low.base)
        starts.append(low)
        extents.append(length)
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


def needs_of(layer: Layer, made: Region, partition: Partition, counts: Extents) -> tuple[Region, ...]:
    """What a layer needs of each operand to make a region."""
    found = tuple(needed(made, operand) for operand in layer.maps)
    if not partition.trimmed:
        return found
    return tuple(trim(region, m.dims, counts) for region, m in zip(found, layer.maps, strict=True))


def trim(region: Region, dims: Extents, counts: Extents) -> Region:
    """What of a region is in the map, along dimensions with two tiles, if it is as much of both."""
    starts, extents = list(region.start), list(region.extent)
    for d, (start, extent) in enumerate(zip(region.start, region.extent, strict=True)):
        moves = any(start.loops) and not start.cluster and sum(map(bool, start.loops)) == 1
        if moves and len(start.loops) == d + 1 and counts[d] == 2:
            first, second = start.base, start.base + start.loops[d]
            lows = max(0, first), max(0, second)
            highs = min(dims[d], first + extent), min(dims[d], second + extent)
            if highs[0] - lows[0] == highs[1] - lows[1] > 0:
                starts[d] = Affine.index(d, lows[1] - lows[0]) + lows[0]
                extents[d] = highs[0] - lows[0]
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


def hull(a: Region, b: Region, dims: Extents) -> Region:
    """The smallest region that holds both; the whole dimension where they do not move alike."""
    starts, extents = [], []
    for d in range(len(dims)):
        x, y = a.start[d], b.start[d]
        if (x - y).is_constant:
            low = x if x.base <= y.base else y
            high = max(x.base + a.extent[d], y.base + b.extent[d])
            starts.append(low)
            extents.append(high - low.base)
        else:
            starts.append(Affine())
            extents.append(dims[d])
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


@dataclass(frozen=True)
class Projection:
    """Regions of one pass over a unit's tiles.

    `outputs`: of all layers' outputs, what the pass makes; `operands` (by layer, by operand): what it needs;
    `inputs`: what it loads of each input; `counts`: passes per dimension; `stores`: of each map that leaves the unit,
    what the pass writes: every element in exactly one pass.
    With exchanged borders `rings` and `input_rings` are the rows that are in use of each in a step (0: none beyond
    those that the step makes; see `ring_rows`); where columns are kept too, `columns` has those by number of the map.
    """

    outputs: tuple[Region, ...]
    operands: tuple[tuple[Region, ...], ...]
    inputs: tuple[Region, ...]
    counts: Extents
    rings: tuple[int, ...]
    input_rings: tuple[int, ...]
    stores: tuple[Region, ...] = ()
    columns: tuple[int, ...] = ()

    def region_of(self, number: int) -> Region:
        """Of a map by its number: what the pass makes or loads of it."""
        count = len(self.outputs)
        return self.outputs[number] if number < count else self.inputs[number - count]

    def ring_of(self, number: int) -> int:
        """Rows in use of a map by its number."""
        count = len(self.rings)
        return self.rings[number] if number < count else self.input_rings[number - count]

    def is_ring(self, number: int) -> bool:
        """Whether rows or columns of a map may go around in its buffer."""
        return bool(self.columns) or bool(self.rings and self.ring_of(number))


def project(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """Regions of every map of a unit for one tile of its output; raises `Unprojectable`."""
    check_options(unit, partition)
    if partition.borders == "raster":
        return project_raster(unit, partition, clusters)
    if partition.borders == "exchange":
        return project_steps(unit, partition, clusters)
    last = len(unit.layers) - 1
    out = output_region(unit.out.out_dims, partition, clusters)
    counts = tile_counts(unit.out.out_dims, partition, clusters)
    stores = {j: out if j == last else beside(unit, j, out, counts, clusters) for j in unit.stored}
    outputs: dict[int, Region] = {last: out, **stores}
    operands: dict[int, tuple[Region, ...]] = {}
    inputs: dict[int, Region] = {}
    for j in range(last, -1, -1):
        layer = unit.layers[j]
        if j not in outputs:
            raise Unprojectable(f"layer {j} ({layer.kind}) is neither used nor an output")
        outputs[j] = on_grid(layer, outputs[j], is_inside=j < last)
        check_whole(j, layer, outputs[j])
        operands[j] = needs_of(layer, outputs[j], partition, counts)
        for region, source, operand in zip(operands[j], unit.sources[j], layer.maps, strict=True):
            known, number = (outputs, source.layer) if source.layer is not None else (inputs, source.input)
            assert number is not None
            known[number] = hull(known[number], region, operand.dims) if number in known else region
    if partition.shared:
        inputs = {k: whole_input(unit, k, region) for k, region in inputs.items()}
    return Projection(
        tuple(outputs[j] for j in range(last + 1)),
        tuple(operands[j] for j in range(last + 1)),
        tuple(inputs[k] for k in range(len(unit.inputs))),
        counts,
        (0,) * (last + 1),
        (0,) * len(inputs),
        tuple(stores[j] for j in unit.stored),
    )


def check_options(unit: UnitLayers, partition: Partition) -> None:
    """Raises `Unprojectable` for a unit that has no regions, and for options that do not go together."""
    if unit.other_form is not None:
        j, i = unit.other_form
        raise Unprojectable(
            f"layer {j} ({unit.layers[j].kind}) sees the map of layer {i} ({unit.layers[i].kind}) in another form"
        )
    if partition.bands:
        raise Unprojectable(f"it goes in bands of {partition.bands} columns, each of which projects by itself")
    if partition.again and partition.borders == "overlap":
        raise Unprojectable("with borders overlap all layers are made again: none is named")
    if partition.shared and partition.borders != "overlap":
        raise Unprojectable(
            f"with borders {partition.borders} inputs are loaded as they are needed, not whole"
        )


def whole_input(unit: UnitLayers, k: int, region: Region) -> Region:
    """The region of input k with all rows and columns, so that one load serves all clusters; a map in SRAM stays as it
    is there."""
    own = unit.inputs[k]
    if own.resident:
        return region
    if unit.root(len(unit.layers) + k) != len(unit.layers) + k:
        raise Unprojectable(f"input {k} is part of a concatenation: it is not loaded whole")
    n, c, _, _ = region.start
    images, channels, _, _ = region.extent
    return Region((n, c, Affine(), Affine()), (images, channels, own.dims[ROWS], own.dims[COLUMNS]))


def grid_of(layer: Layer, d: int) -> int:
    """What the starts of a layer's tiles must be multiples of along a dimension."""
    axes = (m.access[d] for m in layer.maps)
    return math.lcm(layer.align[d], *(axis.den for axis in axes if isinstance(axis, Axis)))


def on_grid(layer: Layer, region: Region, *, is_inside: bool) -> Region:
    """The region from the multiple of the layer's steps before it on, of a map inside with all channels: what is made
    of a resized map, or of one of which channels are picked, may be more than its readers need."""
    starts, extents = list(region.start), list(region.extent)
    if is_inside:
        starts[1], extents[1] = Affine(), layer.out_dims[1]
    for d in range(len(starts)):
        beyond = starts[d].base % grid_of(layer, d)
        starts[d] = starts[d] + -beyond
        extents[d] += beyond
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


def check_whole(j: int, layer: Layer, region: Region) -> None:
    """Raises `Unprojectable` for a tile of a layer that cuts what must be whole, or starts between its steps."""
    for d, (start, extent) in enumerate(zip(region.start, region.extent, strict=True)):
        if d in layer.axes_all and extent < layer.out_dims[d]:
            raise Unprojectable(
                f"layer {j} ({layer.kind}) needs all {layer.out_dims[d]} positions of d{d} at once, a tile has {extent}"
            )
        step = grid_of(layer, d)
        if any(part % step for part in (start.base, start.cluster, *start.loops)):
            raise Unprojectable(
                f"layer {j} ({layer.kind}) is made in steps of {step} along d{d}, a tile starts at {start}"
            )


def project_steps(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """The same where rows roll: images, channels and columns as with whole columns of rows, rows by steps."""
    if partition.clusters == ROWS and clusters > 1:
        raise Unprojectable("with exchanged borders rows are not dealt to clusters: they roll through each")
    images, channels, rows, columns = partition.tile
    steps = roll(unit, rows, again=partition.again)
    height = unit.out.out_dims[ROWS]
    whole = replace(partition, tile=(images, channels, height, columns), borders="overlap", again=())
    plain = project(unit, whole, clusters)

    def rolled(regions: Sequence[Region], rolls: Sequence[Rolling]) -> tuple[Region, ...]:
        return tuple(rolling(region, step, steps.count) for region, step in zip(regions, rolls, strict=True))

    outputs = rolled(plain.outputs, steps.layers)
    operands = tuple(
        needs_of(layer, made, partition, plain.counts)
        for layer, made in zip(unit.layers, outputs, strict=True)
    )
    n, c, _, w = plain.counts
    return Projection(
        outputs,
        operands,
        rolled(plain.inputs, steps.inputs),
        (n, c, steps.count, w),
        tuple(r.kept for r in steps.layers),
        tuple(r.kept for r in steps.inputs),
        rolled(plain.stores, [steps.layers[j] for j in unit.stored]),
    )


def project_raster(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """The same where rows and columns are kept: steps along the columns inside steps along the rows."""
    if partition.clusters and clusters > 1:
        raise Unprojectable("where rows and columns are kept, only images (0) are dealt to clusters")
    if unit.groups or unit.kept or any(own.resident for own in unit.inputs):
        raise Unprojectable("with borders raster no map is part of a concatenation or stays in SRAM")
    images, channels, rows, columns = partition.tile
    by_rows, by_columns = roll(unit, rows, again=partition.again), roll(unit, columns, COLUMNS)
    _, _, height, width = unit.out.out_dims
    whole = replace(partition, tile=(images, channels, height, width), borders="overlap", again=())
    plain = project(unit, whole, clusters)

    def rolled(regions: Sequence[Region], numbers: Sequence[int]) -> tuple[Region, ...]:
        across = (*by_columns.layers, *by_columns.inputs)
        down = (*by_rows.layers, *by_rows.inputs)
        return tuple(
            rolling(rolling(region, down[k], by_rows.count), across[k], by_columns.count, COLUMNS)
            for region, k in zip(regions, numbers, strict=True)
        )

    count = len(unit.layers)
    outputs = rolled(plain.outputs, range(count))
    n, c, _, _ = plain.counts
    return Projection(
        outputs,
        tuple(
            tuple(needed(made, operand) for operand in layer.maps)
            for layer, made in zip(unit.layers, outputs, strict=True)
        ),
        rolled(plain.inputs, range(count, count + len(plain.inputs))),
        (n, c, by_rows.count, by_columns.count),
        tuple(r.kept for r in by_rows.layers),
        tuple(r.kept for r in by_rows.inputs),
        rolled(plain.stores, unit.stored),
        tuple(r.kept for r in (*by_columns.layers, *by_columns.inputs)),
    )


def beside(unit: UnitLayers, j: int, out: Region, counts: Extents, clusters: int) -> Region:
    """The part of another output of the unit that belongs to a tile of its last one: as many times its positions as
    the layers between them say; raises `Unprojectable` where these do not cover it."""
    starts, extents = [], []
    dims, out_dims = unit.layers[j].out_dims, unit.out.out_dims
    for d, (start, extent) in enumerate(zip(out.start, out.extent, strict=True)):
        if start.is_constant and extent >= out_dims[d]:
            starts.append(Affine())
            extents.append(dims[d])
            continue
        rate = rates_of(unit, d)[j]
        steps = [start.base, start.cluster, *start.loops, extent]
        own = counts[d] * max(1, clusters if start.cluster else 1) * extent * rate
        if any((step * rate).denominator != 1 for step in steps) or own < dims[d]:
            raise Unprojectable(
                f"tiles of {extent} positions of one output (of {out_dims[d]}) do not go evenly with the {dims[d]} "
                f"of another"
            )
        base, cluster, *loops = (int(step * rate) for step in (start.base, start.cluster, *start.loops))
        starts.append(Affine(base, tuple(loops), cluster))
        extents.append(int(extent * rate))
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


def rolling(region: Region, step: Rolling, count: int, dimension: int = ROWS) -> Region:
    """A region whose rows (or columns) are those of a step; unchanged where it is the same in all."""
    if not step.rows:
        return region
    start = Affine(step.start) if count == 1 else Affine.index(dimension, step.rows) + step.start
    starts, extents = list(region.start), list(region.extent)
    starts[dimension], extents[dimension] = start, step.extent
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


@dataclass(frozen=True)
class Place:
    """Where a map lies in SRAM: number of the map in whose buffer (its own, or that of a concatenation) and the
    channels before it there; start and extents of the buffer, whether it goes around, and if so along the columns too
    (`raster`: the extents are those of the rows that a step makes, in columns of its ring)."""

    root: int
    channel: int
    region: Region
    ring: bool
    raster: Raster | None = None

    @property
    def elements(self) -> int:
        """Of the buffer."""
        return self.region.elements if self.raster is None else self.raster.elements(self.region.extent)


def places_of(unit: UnitLayers, projection: Projection, depth: int) -> tuple[Place, ...]:
    """The place of every map of a unit by its number; `depth`: copies of what is loaded and stored."""
    once = projection.counts[0] * projection.counts[1] * projection.counts[3] == 1
    count = len(unit.layers) + len(unit.inputs)
    roots = {}
    for root in {unit.root(number) for number in range(count)}:
        members = unit.groups.get(root, (root,))
        roots[root] = buffer_of(unit, projection, members, depth, once=once)
    found = []
    for number in range(count):
        root = unit.root(number)
        own = Place(root, channel_of(unit, number), *roots[root])
        found.append(own if not projection.columns else raster_place(unit, projection, number, depth))
    return tuple(found)


def raster_place(unit: UnitLayers, projection: Projection, number: int, depth: int) -> Place:
    """The place of a map of which rows and columns are kept: the last rows of each step of rows in a ring of all
    columns (of as many steps back as its readers need), the others in a ring of a few columns."""
    region, width = projection.region_of(number), unit.dims_of(number)[COLUMNS]
    _, _, rows, columns = region.extent
    span, across = projection.ring_of(number), projection.columns[number]
    if not span and not across:
        return Place(number, 0, region, False)
    copies = depth if number >= len(unit.layers) or number in unit.stored else 1
    ring = max(across, columns) + (copies - 1) * columns
    kept = max(0, span - rows)
    back = -(-kept // rows)
    raster = Raster(min(kept, rows), back, back * width + ring if kept else 0, width)
    n, c, h, _ = region.start
    images, channels, _, _ = region.extent
    return Place(number, 0, Region((n, c, h, Affine()), (images, channels, rows, ring)), True, raster)


def buffer_of(
    unit: UnitLayers, projection: Projection, members: Sequence[int], depth: int, *, once: bool
) -> tuple[Region, bool]:
    """Start and extents of the buffer of some maps, of which the first has all channels; whether it is a ring."""
    root = members[0]
    dims, region = unit.dims_of(root), projection.region_of(root)
    for member in members[1:]:
        own = projection.region_of(member)
        (n, _, h, w), (images, _, rows, columns) = own.start, own.extent
        other = Region((n, region.start[1], h, w), (images, region.extent[1], rows, columns))
        region = hull(region, other, dims)
    kept = projection.ring_of(root)
    if not kept:
        return region, False
    crosses = any(m >= len(unit.layers) or m in unit.stored for m in members)
    n, c, _, w = region.start
    images, channels, _, columns = region.extent
    step = projection.region_of(root).extent[ROWS]
    rows = ring_rows(kept, step, depth if crosses else 1, dims[ROWS], once=once)
    return Region((n, c, Affine(), w), (images, channels, rows, columns)), True


def channel_of(unit: UnitLayers, number: int) -> int:
    """Channels before a map in the buffer in which it lies."""
    channel = 0
    while number in unit.places:
        number, k = unit.places[number]
        channel += sum(m.dims[1] for m in unit.layers[number].maps[:k])
    return channel


def memory_order(view_strides: Extents, dims: Extents) -> Extents:
    """Dimensions from the slowest to the fastest, as they lie in the tensor; dimensions of one element first."""

    def slowness(d: int) -> tuple[bool, int, int]:
        return (dims[d] == 1 or view_strides[d] == 0, abs(view_strides[d]), -d)

    n, c, h, w = sorted(range(len(dims)), key=slowness, reverse=True)
    return (n, c, h, w)


def strides_in(tile: Tile) -> Extents:
    """Strides in elements of a dense box whose dimensions lie in `tile.order`."""
    steps = dense([tile.extents[d] for d in tile.order])
    strides = [0, 0, 0, 0]
    for d, step in zip(tile.order, steps, strict=True):
        strides[d] = step
    n, c, h, w = strides
    return (n, c, h, w)


def map_of(op: Operation) -> SubMap | None:
    """The sub-map that `frustum-tile-partition` has left on a layer."""
    attribute = op.attributes.get(MAP)
    return attribute.data if isinstance(attribute, MapAttr) else None


__all__ = [
    "ROWS",
    "Place",
    "Projection",
    "Region",
    "Source",
    "UnitLayers",
    "Unprojectable",
    "layers_of",
    "places_of",
    "project",
    "ring_rows",
    "roll",
    "tile_counts",
    "unit_layers",
]
