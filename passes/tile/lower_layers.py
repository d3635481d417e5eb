# Tests: test/passes/tile/test_lower_units.py
"""A unit of layers as a loop over tiles: loads, computations and stores by projection from its outputs back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.extents import Extents, replaced
from frustum.dialects.graph import WeightOp, is_integer
from frustum.dialects.isa.program import MAX_LOOPS, Affine, Box
from frustum.dialects.module import IN_CORE, LAYOUT, MACS, OWN_ELEMENTS, PART_OF_SUM, PREDICTED_CYCLES
from frustum.dialects.target import Target
from frustum.dialects.unit import Owners, UnitOp
from frustum.passes.analysis.layer import SAME4
from frustum.passes.analysis.module import element_in
from frustum.passes.analysis.project import map_of, memory_order
from frustum.passes.analysis.regions import Projection
from frustum.passes.analysis.roll import COLUMNS, ROWS
from frustum.passes.analysis.strips import handed
from frustum.passes.analysis.unit_layers import UnitLayers, view_of
from frustum.passes.plan.layer_work import copy_of, work_of
from frustum.passes.plan.pieces import plan_layer
from frustum.passes.tile.kept_maps import Cut, Results


def empty(
    unit: UnitOp,
    counts: Extents,
    clusters: int,
    depth: int,
    loops: Extents,
    results: Sequence[Attribute] | None = None,
) -> t.UnitOp:
    """The lowered unit without its body."""
    return t.UnitOp(
        unit.unit_name.data,
        list(unit.operands),
        list(unit.result_types) if results is None else results,
        counts=counts,
        clusters=clusters,
        depth=depth,
        mode=unit.mode,
        stopped_by=unit.stopped_by,
        loops=loops,
    )


class Inside:
    """Values of a unit's body in the lowered unit: block arguments, and weights as they are first asked for."""

    def __init__(self, unit: UnitOp, lowered: t.UnitOp):
        self.block: Block = lowered.body.block
        self.values: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, self.block.args, strict=True))
        self.outer: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, unit.operands, strict=True))

    def tensor(self, value: SSAValue) -> SSAValue:
        if value not in self.values:
            assert isinstance(value.owner, WeightOp)
            copy = value.owner.clone()
            self.block.add_op(copy)
            self.values[value] = copy.result
        return self.values[value]


def lower_cut(unit: UnitOp, cut: Cut, results: Results, target: Target) -> t.UnitOp:
    """The loops over the tiles of a unit's layers, cut so."""
    counts, partition = cut.projection.counts, cut.partition
    lowered = empty(unit, counts, partition.clusters, partition.depth, loops_of(cut), results.types)
    if PREDICTED_CYCLES in unit.attributes:
        lowered.attributes[PREDICTED_CYCLES] = unit.attributes[PREDICTED_CYCLES]
    if LAYOUT in unit.attributes:  # before the stores, which ask how the results lie
        lowered.attributes[LAYOUT] = unit.attributes[LAYOUT]
    if PREDICTED_CYCLES in unit.attributes:
        lowered.attributes[PREDICTED_CYCLES] = unit.attributes[PREDICTED_CYCLES]
    if partition.borders == "exchange":
        lowered.properties["way"] = StringAttr(partition.way)
    if owners_of(cut, target) == "cores":
        lowered.properties["owners"] = StringAttr("cores")
    if partition.has_owned_tiles:
        lowered.properties["owners"] = StringAttr("clusters")
    body = Body(cut, Inside(unit, lowered), target, results, lowered)
    for j in range(len(cut.layers.layers)):
        body.layer(j)
    body.stores()
    body.inside.block.add_op(t.YieldOp([body.tiles[j] for j in results.kept]))
    return lowered


def owners_of(cut: Cut, target: Target) -> Owners:
    """Who owns tiles: the cores where each has one part of every layer's tile, along the same rows or columns."""
    if target.cluster.cores == 1:
        return "clusters"
    regions = zip(cut.layers.ops, cut.layers.layers, cut.projection.outputs, strict=True)
    dealt = set()
    for op, layer, region in regions:
        submap = map_of(op)
        if submap is not None and submap.cores not in (ROWS, COLUMNS):
            return "clusters"
        if submap is not None and not layer.kind.is_place:
            share = submap.extent[submap.cores] * target.cluster.cores
            dealt.add(submap.cores if share >= region.extent[submap.cores] else None)
    return "cores" if dealt in ({ROWS}, {COLUMNS}) else "clusters"


def loops_of(cut: Cut) -> Extents:
    """Dimensions of the loops over tiles from the outermost.  Independent tiles go through the images innermost where
    these are more: loads run ahead and stores behind within the innermost loop only."""
    partition, projection = cut.partition, cut.projection
    if partition.borders == "exchange":
        return t.ROLLING_LOOPS if partition.along == ROWS else t.TILE_LOOPS
    if partition.inside:
        return t.CHANNEL_LOOPS
    many = {d for d in (0, 2, 3) if projection.counts[d] > 1}
    loaded = [r for r, own in zip(projection.inputs, cut.layers.inputs, strict=True) if not own.resident]
    move = all(any(len(s.loops) > d and s.loops[d] for s in region.start) for region in loaded for d in many)
    images, _, rows, columns = projection.counts
    if any(layer.streamed for layer in cut.layers.layers):
        return t.TILE_LOOPS
    is_longest = images > (columns if columns > 1 else rows) > 1
    return t.IMAGE_LOOPS if partition.borders == "overlap" and move and is_longest else t.TILE_LOOPS


class Body:
    """The body of a lowered unit as it grows: one pass over the tiles."""

    def __init__(self, cut: Cut, inside: Inside, target: Target, results: Results, lowered: t.UnitOp):
        self.cut = cut
        self.inside = inside
        self.target = target
        self.layers: UnitLayers = cut.layers
        self.projection: Projection = cut.projection
        self.tiles: dict[int, SSAValue] = {}  # by the number of the map
        self.results = results
        self.lowered = lowered
        self.stored: dict[int, OpResult] = {results.layers[n]: lowered.results[n] for n in results.tensor.values()}

    def layer(self, j: int) -> None:
        """Loads what it reads for the first time, then computes."""
        op, layer = self.layers.ops[j], self.layers.layers[j]
        operands = [self.operand(j, k) for k in range(len(layer.maps))]
        made = self.concat(j, operands) if layer.kind.is_place else self.compute(j, operands)
        self.tiles[j] = self.put(made, op).results[0]
        if j in self.results.kept:
            self.sends(j)
        self.hand_on(j, op)

    def put(self, made: Operation, of: Operation) -> Operation:
        """Append what is made for a layer."""
        made.location = of.location
        self.inside.block.add_op(made)
        return made

    def operand(self, j: int, k: int) -> SSAValue:
        """The tile of operand k of layer j."""
        source = self.layers.sources[j][k]
        number = self.layers.number_of(source)
        if number not in self.tiles:
            stays = source.input is not None and self.layers.inputs[source.input].resident
            self.tiles[number] = self.inside.values[source.value] if stays else self.load(number, self.layers.ops[j])
        return self.tiles[number]

    def load(self, number: int, reader: Operation) -> SSAValue:
        own = self.layers.inputs[number - len(self.layers.layers)]
        region = self.projection.region_of(number)
        view = view_of(self.inside.outer.get(own.value), own.view)
        view = replace(view, offset=view.offset + own.first_column * view.strides[COLUMNS])
        loaded = t.LoadOp(self.inside.tensor(own.value), view, region.box(own.dims), self.tile(number))
        self.tiles[number] = self.put(loaded, reader).results[0]
        self.hand_on(number, reader)
        return self.tiles[number]

    def hand_on(self, number: int, of: Operation) -> None:
        """What the clusters next to each one read of a map that it makes or loads."""
        for by, region in handed_on(self.cut, number, self.target.chip.clusters):
            self.put(t.SendOp(self.tiles[number], by, region), of)

    def compute(self, j: int, tiles: list[SSAValue]) -> Operation:
        op, layer = self.layers.ops[j], self.layers.layers[j]
        submap = map_of(op)
        if submap is None:
            raise PassFailedException(f"{op.name} has no frustum.map: run frustum-tile-partition first")
        numbers = (layer.weight, *layer.vectors, *layer.streamed)
        tensors = [self.inside.tensor(op.operands[i]) for i in numbers if i is not None]
        box, accesses = self.projection.outputs[j].box(layer.out_dims), [m.access for m in layer.maps]
        made = t.ComputeOp(layer.kind, [*tiles, *tensors], box, accesses, submap, self.tile(j))
        made.attributes[MACS] = IntegerAttr(layer.macs, i64)
        if PART_OF_SUM in op.attributes:
            made.attributes[PART_OF_SUM] = op.attributes[PART_OF_SUM]
        if self.cut.own_elements:
            made.attributes[OWN_ELEMENTS] = IntegerAttr(self.cut.own_elements[j], i64)
        return made

    def concat(self, j: int, tiles: list[SSAValue]) -> Operation:
        """The operands that lie elsewhere are copied to their places."""
        sources = self.layers.sources[j]
        parts = [
            tile if self.layers.places.get(self.layers.number_of(source)) == (j, k) else self.copy(j, k, tile)
            for k, (tile, source) in enumerate(zip(tiles, sources, strict=True))
        ]
        return t.ConcatOp(parts, self.tile(j))

    def copy(self, j: int, k: int, tile: SSAValue) -> SSAValue:
        """Operand k of a concatenation again, in its place there."""
        operand, region = self.layers.layers[j].maps[k], self.projection.operands[j][k]
        layer = copy_of(operand, is_integral=is_integer(self.layers.sources[j][k].value))
        free = MAX_LOOPS - sum(count > 1 for count in self.projection.counts)
        plan = plan_layer(work_of(layer, region.extent), self.target, "unit", free)
        if plan is None:
            raise PassFailedException(f"{self.layers.ops[j].name}: no piece of operand {k}, which is copied, fits NRAM")
        whole = self.tile(j)
        placed = replace(whole, extents=replaced(whole.extents, 1, operand.dims[1]))
        box = region.box(operand.dims)
        made = t.ComputeOp(layer.kind, [tile], box, [SAME4], plan.map, placed)
        return self.put(made, self.layers.ops[j]).results[0]

    def sends(self, j: int) -> None:
        """What other clusters need of a kept map."""
        if not any(readers for n, readers in self.results.readers.items() if self.results.layers[n] == j):
            return
        if self.cut.partition.has_owned_tiles:
            return
        for by, region in self.results.kept[j][1].sends():
            self.put(t.SendOp(self.tiles[j], by, region), self.layers.ops[j])

    def stores(self) -> None:
        """What leaves the unit for DRAM."""
        for number in self.results.tensor.values():
            j = self.results.layers[number]
            layer, region = self.layers.layers[j], self.projection.stores[self.layers.stored.index(j)]
            view = view_of(self.lowered.results[number], layer.out_view)
            stored = t.StoreOp(self.tiles[j], number, view, region.box(layer.out_dims))
            self.put(stored, self.layers.ops[j])

    # ------------------------------------------------------------ tiles

    def tile(self, number: int) -> t.Tile:
        """The type of a map's tile: of those that share a buffer, its own channels of the buffer's box."""
        if number < len(self.layers.ops) and IN_CORE in self.layers.ops[number].attributes:
            region = self.projection.region_of(number)
            return t.Tile(element_in(self.value(number)), region.extent, self.order(number), core=True)
        place, region = self.cut.places[number], self.projection.region_of(number)
        if place.root in self.results.kept:
            whole = self.results.kept[place.root][0]
            assert whole.origin is not None
            if number == place.root:
                return whole
            extents = replaced(whole.extents, 1, self.layers.dims_of(number)[1])
            return replace(whole, extents=extents, origin=replaced(whole.origin, 1, Affine()))
        own, element = place.region, element_in(self.value(number))
        if place.raster is not None:
            return t.Tile(element, own.extent, self.order(number), own.start, raster=place.raster)
        order = self.order(place.root)
        is_alone = place.root not in self.layers.groups and not self.is_concat(place.root)
        if not place.ring and is_alone and own == region:
            return t.Tile(element, region.extent, order)
        own = own.at(1, *region.parts[1])
        return t.Tile(element, own.extent, order, own.start, place.ring)

    def is_concat(self, number: int) -> bool:
        return number < len(self.layers.layers) and self.layers.layers[number].kind.is_place

    def value(self, number: int) -> SSAValue:
        count = len(self.layers.ops)
        return self.layers.ops[number].results[0] if number < count else self.layers.inputs[number - count].value

    def order(self, number: int) -> Extents:
        """From the slowest dimension to the fastest, as the map lies in DRAM where it does."""
        value, count = self.value(number), len(self.layers.ops)
        if number >= count:
            own = self.layers.inputs[number - count]
            return memory_order(view_of(self.inside.outer.get(value), own.view).near, own.dims)
        layer = self.layers.layers[number]
        return memory_order(view_of(self.stored.get(number), layer.out_view).near, layer.out_dims)


def handed_on(cut: Cut, number: int, clusters: int) -> Iterator[tuple[int, Box]]:
    """(D, region): what each pass makes or loads of a map and the cluster D further on reads beside its own strip; no
    cluster is beyond the last: a limit takes the region away from those that have no neighbour there."""
    projection, beside = cut.projection, cut.partition.clusters
    if not projection.held:
        return
    made, bound = projection.region_of(number), cut.layers.dims_of(number)
    width = made.extent[beside]
    low, high = handed(made, projection.held[number], beside)
    for by, first, extent in ((1, width - low, low), (-1, 0, high)):
        if extent > 0:
            region = made.at(beside, made.start[beside] + first, extent)
            channels = bound[1]
            far = channels * (clusters - 1)
            limit = Affine(far, cluster=-channels) if by > 0 else Affine(cluster=channels)
            yield by, Box(region.start, region.extent, bound, (None, limit, None, None))
