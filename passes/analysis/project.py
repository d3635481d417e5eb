"""Which part of every map a tile of a unit's output needs: shape inference from the output backwards.

Source: tfu.md (first paragraph), frustum.md "Regions (backward projection)".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.tile import MapAttr, SubMap, Tile
from frustum.dialects.unit import Extents, Partition, UnitOp
from frustum.passes.analysis.layer import Layer, MapOperand, dense, layer_of

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


@dataclass(frozen=True)
class Source:
    """Where a map operand of a layer comes from: another layer of the unit, or a tensor in DRAM."""

    layer: int | None
    value: SSAValue


@dataclass(frozen=True)
class UnitLayers:
    """The layers of a unit in order, and where their map operands come from."""

    ops: tuple[Operation, ...]
    layers: tuple[Layer, ...]
    sources: tuple[tuple[Source, ...], ...]

    @property
    def out(self) -> Layer:
        return self.layers[-1]

    def last_use(self, layer: int) -> int:
        """The last layer that reads this one's output (its own number for the last layer)."""
        return max((j for j, s in enumerate(self.sources) if any(x.layer == layer for x in s)), default=layer)


def layers_of(ops: Sequence[Operation]) -> UnitLayers:
    """The operations of a unit as layers; weights are not layers."""
    ops = tuple(op for op in ops if not isinstance(op, WeightOp))
    number: dict[SSAValue, int] = {op.results[0]: i for i, op in enumerate(ops)}
    layers = tuple(layer_of(op) for op in ops)
    sources = tuple(
        tuple(Source(number.get(op.operands[m.index]), op.operands[m.index]) for m in layer.maps)
        for op, layer in zip(ops, layers, strict=True)
    )
    return UnitLayers(ops, layers, sources)


def unit_layers(unit: UnitOp) -> UnitLayers:
    return layers_of([op for op in unit.body.block.ops if op is not unit.body.block.last_op])


def dealt(extent: int, tile: int, clusters: int) -> int:
    """Passes of a loop whose tiles are dealt to `clusters`."""
    return math.ceil(math.ceil(extent / tile) / clusters)


def tile_counts(dims: Extents, partition: Partition, clusters: int) -> Extents:
    """Passes of the loop over the tiles, per dimension."""
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
        step = tile * (clusters if is_dealt else 1)
        start = Affine.index(d, step) if counts[d] > 1 else Affine()
        starts.append(start + Affine(cluster=tile) if is_dealt else start)
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
    """Regions of all layers' outputs, and of every map operand (by layer, by operand)."""

    outputs: tuple[Region, ...]
    operands: tuple[tuple[Region, ...], ...]


def project(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """Regions of every map of a unit for one tile of its output."""
    last = len(unit.layers) - 1
    outputs: dict[int, Region] = {last: output_region(unit.out.out_dims, partition, clusters)}
    operands: dict[int, tuple[Region, ...]] = {}
    for j in range(last, -1, -1):
        layer = unit.layers[j]
        operands[j] = tuple(needed(outputs[j], operand) for operand in layer.maps)
        for region, source in zip(operands[j], unit.sources[j], strict=True):
            if source.layer is not None:
                known = outputs.get(source.layer)
                dims = unit.layers[source.layer].out_dims
                outputs[source.layer] = hull(known, region, dims) if known else region
    return Projection(tuple(outputs[j] for j in range(last + 1)), tuple(operands[j] for j in range(last + 1)))


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
    attribute = op.attributes.get("frustum.map")
    return attribute.data if isinstance(attribute, MapAttr) else None
