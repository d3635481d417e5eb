"""Which part of every map a tile of a unit's output needs: shape inference from the output backwards.

Source: docs/techniques/tfu.md, docs/techniques/frustum.md, "Regions".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation

from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.isa.program import Affine
from frustum.dialects.module import MAP
from frustum.dialects.tile import MapAttr, Raster, SubMap, Tile
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer, dense
from frustum.passes.analysis.regions import Projection, Region, grid_of, hull, needed, needs_of
from frustum.passes.analysis.roll import COLUMNS, ROWS, WORDS, Rolling, rates_of, reflected, ring_rows, roll
from frustum.passes.analysis.strips import handed_over, with_handed_inputs
from frustum.passes.analysis.unit_layers import Source, UnitLayers, Unprojectable, layers_of, unit_layers

IMAGES = 0


def tile_counts(dims: Extents, partition: Partition, clusters: int) -> Extents:
    """Passes of the loop over the tiles, per dimension, when borders overlap (`Projection.counts` has them always)."""
    counts = [-(-extent // own) for extent, own in zip(dims, partition.tile, strict=True)]
    counts[partition.clusters] = -(-counts[partition.clusters] // clusters)
    return tuple(counts)


def output_region(dims: Extents, partition: Partition, clusters: int) -> Region:
    """The region of the unit's output that pass (i0, i1, i2, i3) of cluster k makes."""
    starts = []
    counts = tile_counts(dims, partition, clusters)
    for d, (tile, count) in enumerate(zip(partition.tile, counts, strict=True)):
        is_dealt = d == partition.clusters and clusters > 1
        own = count if d == IMAGES else 1  # a cluster's images follow each other, tiles of rows are dealt in turn
        step = tile * (clusters if is_dealt and d != IMAGES else 1)
        start = Affine.index(d, step) if count > 1 else Affine()
        starts.append(start + Affine(cluster=tile * own) if is_dealt else start)
    return Region(tuple(starts), partition.tile)


def project(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """Regions of every map of a unit for one tile of its output; raises `Unprojectable`."""
    key = partition, clusters
    found = unit.projected.get(key)
    if isinstance(found, str):
        raise Unprojectable(found)
    if not isinstance(found, Projection):
        try:
            found = newly_projected(unit, partition, clusters)
            if partition.handed:
                found = with_handed_inputs(unit, found, partition, clusters)
        except Unprojectable as error:
            unit.projected[key] = str(error)
            raise
        unit.projected[key] = found
    return found


def newly_projected(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """The same, for the first time."""
    check_options(unit, partition)
    if partition.borders != "overlap":
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
        outputs[j] = on_grid(layer, outputs[j], is_inside=j < last and not unit.is_by_heads)
        outputs[j] = whole(layer, outputs[j]) if j < last else outputs[j]
        check_whole(j, layer, outputs[j])
        check_grid(j, layer, outputs[j])
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
        (0,) * (last + 1 + len(inputs)),
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
    if partition.handed and (partition.shared or partition.borders == "raster"):
        raise Unprojectable("inputs are handed over where each cluster loads a strip of rows or columns")
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
    return region.at(ROWS, Affine(), own.dims[ROWS]).at(COLUMNS, Affine(), own.dims[COLUMNS])


def on_grid(layer: Layer, region: Region, *, is_inside: bool) -> Region:
    """The region from the multiple of the layer's steps before it on, of a map inside with all channels: what is made
    of a resized map, or of one of which channels are picked, may be more than its readers need."""
    if is_inside:
        region = region.at(1, Affine(), layer.out_dims[1])
    beyond = [start.base % grid_of(layer, d) for d, start in enumerate(region.start)]
    if not any(beyond):
        return region
    return Region.of(
        (start + -more, extent + more) for (start, extent), more in zip(region.parts, beyond, strict=True)
    )


def whole(layer: Layer, region: Region) -> Region:
    """The region with all positions along dimensions of which the layer needs all at once, where it is as long: it may
    move over the map's borders, as shares of clusters with theirs do."""
    for d in (d for d in layer.axes_all if layer.out_dims[d] > 1):
        if region.extent[d] >= layer.out_dims[d]:
            region = region.at(d, Affine(), layer.out_dims[d])
    return region


def check_whole(j: int, layer: Layer, region: Region) -> None:
    """Raises `Unprojectable` for a tile of a layer that cuts what must be whole."""
    for d in layer.axes_all:
        if region.extent[d] < layer.out_dims[d]:
            raise Unprojectable(
                f"layer {j} ({layer.kind}) needs all {layer.out_dims[d]} positions of d{d} at once, a tile has "
                f"{region.extent[d]}"
            )


def check_grid(j: int, layer: Layer, region: Region) -> None:
    """Raises `Unprojectable` for a tile of a layer that starts between its steps."""
    for d, start in enumerate(region.start):
        step = grid_of(layer, d)
        if any(part % step for part in (start.base, start.cluster, *start.loops)):
            raise Unprojectable(
                f"layer {j} ({layer.kind}) is made in steps of {step} along d{d}, a tile starts at {start}"
            )


def project_steps(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """The same where rows roll, or rows and columns are kept (`raster`): these go by steps (of columns inside those of
    rows), other dimensions as in tiles that are whole along these."""
    is_raster = partition.borders == "raster"
    check_steps(unit, partition, clusters)
    along, is_back = partition.along, partition.way in ("up", "left")
    seen = reflected(unit, along) if is_back else unit
    # The search counts whole steps along rows downward, of which each layer is made once: these stay as it counts them.
    saves = not is_raster and (bool(partition.again) or partition.way != "down")
    steps = {along: roll(seen, partition.tile[along], along, again=partition.again, saves=saves)}
    if is_raster:
        steps[COLUMNS] = roll(unit, partition.tile[COLUMNS], COLUMNS)
    tile = partition.tile
    for d in steps:
        tile = replaced(tile, d, unit.out.out_dims[d])
    whole = replace(partition, tile=tile, borders="overlap", again=(), owners=None, way="down")
    plain = project(unit, whole, clusters)
    if partition.owners and partition.borders == "exchange" and clusters > 1:
        plain = handed_over(unit, plain, whole, clusters, partition.beside)

    def rolled(regions: Sequence[Region], numbers: Sequence[int]) -> tuple[Region, ...]:
        for d, own in steps.items():
            sizes = {k: unit.dims_of(k)[d] if is_back else None for k in numbers}
            pairs = zip(regions, numbers, strict=True)
            regions = [rolling(r, own.maps[k], own.count, d, sizes[k]) for r, k in pairs]
        return tuple(regions)

    count, trimmed = len(unit.layers), replace(partition, trimmed=False) if is_raster else partition
    outputs = rolled(plain.outputs, range(count))
    for j, layer in enumerate(unit.layers):
        check_whole(j, layer, outputs[j])
    return Projection(
        outputs,
        tuple(needs_of(*each, trimmed, plain.counts) for each in zip(unit.layers, outputs, strict=True)),
        rolled(plain.inputs, range(count, count + len(plain.inputs))),
        tuple(steps[d].count if d in steps else passes for d, passes in enumerate(plain.counts)),
        tuple(r.kept for r in steps[along].maps),
        rolled(plain.stores, unit.stored),
        tuple(r.kept for r in steps[COLUMNS].maps) if is_raster else (),
        along,
        rolled(plain.held, range(count + len(plain.inputs))) if plain.held else (),
    )


def check_steps(unit: UnitLayers, partition: Partition, clusters: int) -> None:
    """Raises `Unprojectable` for a unit that does not go in steps so."""
    if partition.borders == "exchange":
        if partition.clusters == partition.along and clusters > 1:
            what = WORDS[partition.along]
            raise Unprojectable(f"with exchanged borders {what} are not dealt to clusters: they roll through each")
        return
    if partition.clusters and clusters > 1:
        raise Unprojectable("where rows and columns are kept, only images (0) are dealt to clusters")
    if unit.groups or unit.kept or any(own.resident for own in unit.inputs):
        raise Unprojectable("with borders raster no map is part of a concatenation or stays in SRAM")


def beside(unit: UnitLayers, j: int, out: Region, counts: Extents, clusters: int) -> Region:
    """The part of another output of the unit that belongs to a tile of its last one: as many times its positions as
    the layers between them say; raises `Unprojectable` where these do not cover it."""
    parts = []
    dims, out_dims = unit.layers[j].out_dims, unit.out.out_dims
    for d, (start, extent) in enumerate(out.parts):
        if start.is_constant and extent >= out_dims[d]:
            parts.append((Affine(), dims[d]))
            continue
        rate = rates_of(unit, d)[j]
        steps = [start.base, start.cluster, *start.loops, extent]
        own = counts[d] * max(1, clusters if start.cluster else 1) * extent * rate
        if any((step * rate).denominator != 1 for step in steps) or own < dims[d]:
            raise Unprojectable(
                f"tiles of {extent} positions of one output (of {out_dims[d]}) do not go evenly with the {dims[d]} "
                f"of another"
            )
        base, cluster, *loops, length = (int(step * rate) for step in steps)
        parts.append((Affine(base, tuple(loops), cluster), length))
    return Region.of(parts)


def rolling(region: Region, step: Rolling, count: int, dimension: int = ROWS, size: int | None = None) -> Region:
    """A region whose rows (or columns) are those of a step; unchanged where it is the same in all.  With the `size` of
    the map steps go from its end to its beginning."""
    if not step.rows:
        return region
    start = Affine(step.start) if count == 1 else Affine.index(dimension, step.rows) + step.start
    if size is not None:
        start = Affine(size - step.extent) - start
    return region.at(dimension, start, step.extent)


@dataclass(frozen=True)
class Place:
    """Where a map lies in SRAM: number of the map in whose buffer (its own, or that of a concatenation) and the
    channels before it there; start and extents of the buffer, the dimension along which it goes around (0: none), and
    if so along the columns too (`raster`: the extents are those of the rows that a step makes, in columns of its ring).
    """

    root: int
    channel: int
    region: Region
    ring: int
    raster: Raster | None = None

    @property
    def elements(self) -> int:
        """Of the buffer."""
        return self.region.elements if self.raster is None else self.raster.elements(self.region.extent)


def places_of(unit: UnitLayers, projection: Projection, depth: int) -> tuple[Place, ...]:
    """The place of every map of a unit by its number; `depth`: copies of what is loaded and stored."""
    once = math.prod(count for d, count in enumerate(projection.counts) if d != projection.along) == 1
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
    span, across = projection.rings[number], projection.columns[number]
    if not span and not across:
        return Place(number, 0, region, 0)
    copies = depth if number >= len(unit.layers) or number in unit.stored else 1
    ring = max(across, columns) + (copies - 1) * columns
    kept = max(0, span - rows)
    back = ceil_div(kept, rows)
    raster = Raster(min(kept, rows), back, back * width + ring if kept else 0, width)
    return Place(number, 0, region.at(COLUMNS, Affine(), ring), ROWS, raster)


def buffer_of(
    unit: UnitLayers, projection: Projection, members: Sequence[int], depth: int, *, once: bool
) -> tuple[Region, int]:
    """Start and extents of the buffer of some maps, of which the first has all channels; the dimension along which it
    is a ring, if it is one."""
    root, along = members[0], projection.along
    dims, region = unit.dims_of(root), projection.held_of(root)
    for member in members[1:]:
        region = hull(region, projection.held_of(member).at(1, *region.parts[1]), dims)
    kept = projection.rings[root]
    if not kept:
        return region, 0
    crosses = any(m >= len(unit.layers) or m in unit.stored for m in members)
    step = projection.region_of(root).extent[along]
    rows = ring_rows(kept, step, depth if crosses else 1, dims[along], once=once)
    return region.at(along, Affine(), rows), along


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

    return tuple(sorted(range(len(dims)), key=slowness, reverse=True))


def strides_in(tile: Tile) -> Extents:
    """Strides in elements of a dense box whose dimensions lie in `tile.order`."""
    steps = dict(zip(tile.order, dense([tile.extents[d] for d in tile.order]), strict=True))
    return tuple(steps[d] for d in range(len(steps)))


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
    "grid_of",
    "hull",
    "layers_of",
    "needed",
    "needs_of",
    "places_of",
    "project",
    "ring_rows",
    "roll",
    "tile_counts",
    "unit_layers",
]
