"""A unit of layers as a loop over tiles: loads, computations and stores by projection from its outputs back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import IntegerAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.extents import Extents
from frustum.dialects.graph import Function, WeightOp, is_integer, shape_of, tensor_of
from frustum.dialects.isa.program import MAX_LOOPS, Affine, Element, Scale
from frustum.dialects.module import LAYOUT, MACS, OWN_ELEMENTS
from frustum.dialects.target import Target
from frustum.dialects.target.fit import OrderDoesNotFit
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import SAME4, Layer, MapOperand, contiguous, loops
from frustum.passes.analysis.module import element_of
from frustum.passes.analysis.project import (
    Place,
    Projection,
    UnitLayers,
    Unprojectable,
    map_of,
    memory_order,
    places_of,
    project,
    unit_layers,
)
from frustum.passes.analysis.roll import COLUMNS
from frustum.passes.analysis.unit_layers import layout_of, view_in, view_of
from frustum.passes.plan.layer_work import work_of
from frustum.passes.plan.pieces import plan_layer
from frustum.passes.tile.partition import describe
from frustum.passes.tile.resident import (
    Resident,
    Span,
    in_map,
    joined,
    made_of,
    over_all_passes,
    readers_of,
    resident_in,
    resident_of,
    settled,
)
from frustum.passes.tile.side_by_side import is_resident_concat, name_of, outermost, parts_of, wholes_of


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
        self.block = lowered.body.block
        self.values: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, self.block.args, strict=True))
        self.outer: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, unit.operands, strict=True))

    def tensor(self, value: SSAValue) -> SSAValue:
        if value not in self.values:
            assert isinstance(value.owner, WeightOp)
            copy = value.owner.clone()
            self.block.add_op(copy)
            self.values[value] = copy.result
        return self.values[value]


@dataclass(frozen=True)
class Cut:
    """A unit's layers with how they are cut: regions of every pass, and where every map lies in SRAM."""

    layers: UnitLayers
    partition: Partition
    projection: Projection
    places: tuple[Place, ...]
    own_elements: tuple[int, ...] = ()
    """Of each layer the elements of the network's map that this cut counts for; none: all."""


def cut_of(unit: UnitOp, target: Target) -> Cut:
    """By the unit's partition; raises `PassFailedException` where it has none, or one that does not go."""
    name = unit.unit_name.data
    if unit.partition is None:
        raise PassFailedException(f"unit {name} has no partition: run frustum-tile-partition first")
    partition = unit.partition.data
    try:
        layers = unit_layers(unit)
        projection = project(layers, partition, target.chip.clusters)
    except Unprojectable as reason:
        raise PassFailedException(f"unit {name} cannot be cut as {unit.partition}: {reason}") from reason
    return Cut(layers, partition, projection, places_of(layers, projection, partition.depth))


def lower_layers(unit: UnitOp, target: Target, known: dict[OpResult, Resident]) -> tuple[t.UnitOp, Results]:
    """The loops over the tiles of a unit of layers, and who reads which of its results.

    `known`: parts of concatenations in SRAM that other units have found the places of.
    """
    cut = cut_of(unit, target)
    results = results_of(unit, cut, target, known)
    return lower_cut(unit, cut, results, target), results


def lower_cut(unit: UnitOp, cut: Cut, results: Results, target: Target) -> t.UnitOp:
    """The loops over the tiles of a unit's layers, cut so."""
    counts, partition = cut.projection.counts, cut.partition
    lowered = empty(unit, counts, partition.clusters, partition.depth, loops_of(cut), results.types)
    if LAYOUT in unit.attributes:  # before the stores, which ask how the results lie
        lowered.attributes[LAYOUT] = unit.attributes[LAYOUT]
    body = Body(cut, Inside(unit, lowered), target, results, lowered)
    for j in range(len(cut.layers.layers)):
        body.layer(j)
    body.stores()
    body.inside.block.add_op(t.YieldOp([body.tiles[j] for j in results.kept]))
    return lowered


def loops_of(cut: Cut) -> Extents:
    """Dimensions of the loops over tiles from the outermost.  Independent tiles go through the images innermost where
    these are more: loads run ahead and stores behind within the innermost loop only."""
    partition, projection = cut.partition, cut.projection
    if partition.borders == "exchange":
        return t.ROLLING_LOOPS
    many = {d for d in (0, 2, 3) if projection.counts[d] > 1}
    loaded = [r for r, own in zip(projection.inputs, cut.layers.inputs, strict=True) if not own.resident]
    move = all(any(len(s.loops) > d and s.loops[d] for s in region.start) for region in loaded for d in many)
    images, _, rows, columns = projection.counts
    is_longest = images > (columns if columns > 1 else rows) > 1
    return t.IMAGE_LOOPS if partition.borders == "overlap" and move and is_longest else t.TILE_LOOPS


@dataclass(frozen=True)
class Results:
    """Of the lowered unit: `types`; by number the layer that each gives; for each result of the unit its tile and its
    tensor by number, and the units that read the tile; the kept maps' tiles by layer."""

    types: list[Attribute]
    layers: list[int]
    tile: dict[int, int]
    tensor: dict[int, int]
    readers: dict[int, list[UnitOp]]
    kept: dict[int, tuple[t.Tile, Resident]]


def results_of(unit: UnitOp, cut: Cut, target: Target, known: dict[OpResult, Resident]) -> Results:
    """Kept maps are tiles; what else than units of layers reads of them is also stored."""
    end = unit.body.block.last_op
    assert end is not None
    layers = [next(j for j in cut.layers.stored if cut.layers.ops[j].results[0] is v) for v in end.operands]
    found = Results(list(unit.result_types), layers, {}, {}, {}, {})
    for number, result in enumerate(unit.results):
        if number not in unit.kept:
            found.tensor[number] = number
            continue
        layer = cut.layers.layers[layers[number]]
        readers = readers_of(result, layer.out_dims, layer.out_view)
        readers += {u.operation: None for u in result.uses if is_resident_concat(u.operation)}
        found.tile[number], found.readers[number] = number, readers
        found.types[number] = t.TileType(keep(unit, cut, layers[number], result, readers, found, target, known))
        if any(use.operation not in readers for use in result.uses):
            found.tensor[number] = len(found.types)
            found.types.append(result.type)
            found.layers.append(layers[number])
    return found


def keep(
    unit: UnitOp,
    cut: Cut,
    j: int,
    result: OpResult,
    readers: Sequence[UnitOp],
    found: Results,
    target: Target,
    known: dict[OpResult, Resident],
) -> t.Tile:
    """The tile of a kept map on each cluster."""
    if j not in found.kept:
        layer, clusters = cut.layers.layers[j], target.chip.clusters
        try:
            concat = outermost(result)
            if concat is None:
                needs = [need_of(reader, result, target) for reader in readers]
                resident = resident_of(cut.layers, cut.projection, j, needs, clusters)
            else:
                if result not in known:
                    known.update(beside_others(concat, target))
                resident = known[result]
        except Unprojectable as reason:
            raise PassFailedException(f"unit {unit.unit_name.data} cannot keep {layer.kind}: {reason}") from reason
        if target.cluster.cdma is None and readers and resident.sends():
            raise not_sent(unit, cut.layers.ops[j], readers)
        view = layer.out_view
        if unit.attributes.get(LAYOUT) is not None:
            view = view_in(layout_of(result), layer.out_dims)
        element = element_of(tensor_of(result).element_type)
        region = resident.region
        order = memory_order(view.near, layer.out_dims) if concat is None else (0, 1, 2, 3)
        found.kept[j] = t.Tile(element, region.extent, order, region.start), resident
    return found.kept[j][0]


def not_sent(unit: UnitOp, op: Operation, readers: Sequence[UnitOp]) -> OrderDoesNotFit:
    """What other clusters need of a map in SRAM has no way to them."""
    reader = next(o for o in readers[0].body.block.ops if not isinstance(o, WeightOp))
    return OrderDoesNotFit(
        f"what clusters send each other between {describe(op)} and {describe(reader)}",
        f"unit {unit.unit_name.data}",
        "cdma (chip.cluster.cdma)",
        "none",
    )


def beside_others(concat: OpResult, target: Target) -> dict[OpResult, Resident]:
    """The parts of a concatenation in SRAM, all in one box but for their channels: what units make of them, and what
    is read of them and of the whole."""
    needs, parts = [], list(parts_of(concat))
    for whole in wholes_of(concat):
        dims = loops(shape_of(whole))
        readers = readers_of(whole, dims, contiguous(dims))
        other = next((u.operation for u in whole.uses if not is_reader(u.operation, readers)), None)
        if other is not None:
            raise PassFailedException(f"{name_of(whole.owner)} keeps a map that {other.name} needs in DRAM")
        needs += [need_of(reader, whole, target) for reader in readers]
    cuts, box = [], list[Span]()
    for part in parts:
        assert isinstance(part.owner, UnitOp)
        cut = cut_of(part.owner, target)
        end = part.owner.body.block.last_op
        assert end is not None
        j = cut.layers.ops.index(end.operands[part.index].owner)
        layer = cut.layers.layers[j]
        cuts.append((cut, j))
        needs += [need_of(reader, part, target) for reader in readers_of(part, layer.out_dims, layer.out_view)]
        needs.append(made_of(cut.layers, cut.projection, j))
    dims = cuts[0][0].layers.layers[cuts[0][1]].out_dims
    box = needs[0]
    for need in needs[1:]:
        box = [joined(a, b, size) for a, b, size in zip(box, need, dims, strict=True)]
    clusters, residents = target.chip.clusters, []
    for cut, j in cuts:
        channels = Span(Affine(), cut.layers.layers[j].out_dims[1])
        own = [box[0], channels, *box[2:]]
        residents.append(resident_in(cut.layers, cut.projection, j, own, clusters))
    return dict(zip(parts, settled(residents), strict=True))


def is_reader(op: Operation, readers: Sequence[UnitOp]) -> bool:
    return op in readers or is_resident_concat(op)


def need_of(reader: UnitOp, result: OpResult, target: Target) -> list[Span]:
    """What all passes of a reading unit need of a map on each cluster."""
    cut = cut_of(reader, target)
    inside = [a for a, o in zip(reader.body.block.args, reader.operands, strict=True) if o is result]
    spans: list[Span] | None = None
    for number, own in enumerate(cut.layers.inputs):
        if own.value in inside:
            need = in_map(over_all_passes(cut.projection.inputs[number], cut.projection.counts), own.dims)
            pairs = zip(spans or need, need, own.dims, strict=True)
            spans = [joined(a, b, size) for a, b, size in pairs]
    assert spans is not None
    return spans


class Body:
    """The body of a lowered unit as it grows: one pass over the tiles."""

    def __init__(self, cut: Cut, inside: Inside, target: Target, results: Results, lowered: t.UnitOp):
        self.cut, self.inside, self.target = cut, inside, target
        self.layers, self.projection = cut.layers, cut.projection
        self.tiles: dict[int, SSAValue] = {}  # by the number of the map
        self.results, self.lowered = results, lowered
        self.stored = {results.layers[n]: lowered.results[n] for n in results.tensor.values()}

    def layer(self, j: int) -> None:
        """Loads what it reads for the first time, then computes."""
        op, layer = self.layers.ops[j], self.layers.layers[j]
        operands = [self.operand(j, k) for k in range(len(layer.maps))]
        made = self.concat(j, operands) if layer.kind.is_place else self.compute(j, operands)
        made.location = op.location
        self.inside.block.add_op(made)
        self.tiles[j] = made.results[0]
        if j in self.results.kept:
            self.sends(j)

    def operand(self, j: int, k: int) -> SSAValue:
        """The tile of operand k of layer j."""
        number = self.layers.number_of(self.layers.sources[j][k])
        if number not in self.tiles:
            source = self.layers.sources[j][k]
            is_resident = source.input is not None and self.layers.inputs[source.input].resident
            self.tiles[number] = (
                self.inside.values[source.value] if is_resident else self.load(number, self.layers.ops[j])
            )
        return self.tiles[number]

    def load(self, number: int, reader: Operation) -> SSAValue:
        own = self.layers.inputs[number - len(self.layers.layers)]
        region = self.projection.region_of(number)
        view = view_of(self.inside.outer.get(own.value), own.view)
        view = replace(view, offset=view.offset + own.first_column * view.strides[COLUMNS])
        loaded = t.LoadOp(self.inside.tensor(own.value), view, region.box(own.dims), self.tile(number))
        loaded.location = reader.location
        self.inside.block.add_op(loaded)
        return loaded.result

    def compute(self, j: int, tiles: list[SSAValue]) -> Operation:
        op, layer = self.layers.ops[j], self.layers.layers[j]
        submap = map_of(op)
        if submap is None:
            raise PassFailedException(f"{op.name} has no frustum.map: run frustum-tile-partition first")
        tensors = [self.inside.tensor(op.operands[i]) for i in (layer.weight, *layer.vectors) if i is not None]
        box, accesses = self.projection.outputs[j].box(layer.out_dims), [m.access for m in layer.maps]
        made = t.ComputeOp(layer.kind, [*tiles, *tensors], box, accesses, submap, self.tile(j))
        made.attributes[MACS] = IntegerAttr(layer.macs, i64)
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
        layer = identity(operand, is_integer(self.layers.sources[j][k].value))
        free = MAX_LOOPS - sum(count > 1 for count in self.projection.counts)
        plan = plan_layer(work_of(layer, region.extent), self.target, "unit", free)
        if plan is None:
            raise PassFailedException(f"{self.layers.ops[j].name}: no piece of operand {k}, which is copied, fits NRAM")
        whole = self.tile(j)
        extents = (whole.extents[0], operand.dims[1], *whole.extents[2:])
        placed = replace(whole, extents=extents)
        made = t.ComputeOp(layer.kind, [tile], region.box(operand.dims), [SAME4], plan.map, placed)
        made.location = self.layers.ops[j].location
        self.inside.block.add_op(made)
        return made.result

    def sends(self, j: int) -> None:
        """What other clusters need of a kept map."""
        if not any(self.results.readers[n] for n, i in self.results.tile.items() if self.results.layers[i] == j):
            return
        for by, region in self.results.kept[j][1].sends():
            sent = t.SendOp(self.tiles[j], by, region)
            sent.location = self.layers.ops[j].location
            self.inside.block.add_op(sent)

    def stores(self) -> None:
        """What leaves the unit for DRAM."""
        for number in self.results.tensor.values():
            j = self.results.layers[number]
            layer, region = self.layers.layers[j], self.projection.stores[self.layers.stored.index(j)]
            view = view_of(self.lowered.results[number], layer.out_view)
            stored = t.StoreOp(self.tiles[j], number, view, region.box(layer.out_dims))
            stored.location = self.layers.ops[j].location
            self.inside.block.add_op(stored)

    # ------------------------------------------------------------ tiles

    def tile(self, number: int) -> t.Tile:
        """The type of a map's tile: of those that share a buffer, its own channels of the buffer's box."""
        place, region = self.cut.places[number], self.projection.region_of(number)
        if place.root in self.results.kept:
            whole = self.results.kept[place.root][0]
            assert whole.origin is not None
            if number == place.root:
                return whole
            n, _, h, w = whole.origin
            extents = (whole.extents[0], self.layers.dims_of(number)[1], *whole.extents[2:])
            return replace(whole, extents=extents, origin=(n, Affine(), h, w))
        if place.raster is not None:
            n, c, h, w = place.region.start
            return t.Tile(
                self.element(number), place.region.extent, self.order(number), (n, c, h, w), raster=place.raster
            )
        is_shared = place.root in self.layers.groups or self.is_concat(place.root)
        order, element = self.order(place.root), self.element(number)
        if not is_shared and not place.ring:
            return t.Tile(element, region.extent, order)
        (n, _, h, w), (images, _, rows, columns) = place.region.start, place.region.extent
        channels, first = region.extent[1], region.start[1]
        return t.Tile(element, (images, channels, rows, columns), order, (n, first, h, w), place.ring)

    def is_concat(self, number: int) -> bool:
        return number < len(self.layers.layers) and self.layers.layers[number].kind.is_place

    def value(self, number: int) -> SSAValue:
        count = len(self.layers.ops)
        if number < count:
            return self.layers.ops[number].results[0]
        return self.layers.inputs[number - count].value

    def element(self, number: int) -> Element:
        kind = self.value(number).type
        assert isinstance(kind, TensorType)
        return element_of(kind.element_type)

    def order(self, number: int) -> Extents:
        """From the slowest dimension to the fastest, as the map lies in DRAM where it does."""
        value, count = self.value(number), len(self.layers.ops)
        if number >= count:
            own = self.layers.inputs[number - count]
            return memory_order(view_of(self.inside.outer.get(value), own.view).near, own.dims)
        layer = self.layers.layers[number]
        return memory_order(view_of(self.stored.get(number), layer.out_view).near, layer.out_dims)


def identity(operand: MapOperand, is_integral: bool) -> Layer:
    """A layer that only copies; integers stand for themselves."""
    kind = t.UnaryLayer(Function.IDENTITY, scales=(Scale(), Scale()) if is_integral else None)
    own = replace(operand, index=0, access=SAME4)
    return Layer(kind, operand.dims, operand.view, (own,), out_bytes=operand.element_bytes)
