# Tests: test/passes/tile/test_lower_units.py
"""What stays in SRAM between units: tiles of kept maps, alone or as parts of a concatenation that is only a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents, replaced
from frustum.dialects.graph import WeightOp, shape_of
from frustum.dialects.isa.program import Affine
from frustum.dialects.module import LAYOUT
from frustum.dialects.target import Target
from frustum.dialects.target.fit import OrderDoesNotFit
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import contiguous, loops
from frustum.passes.analysis.module import element_in
from frustum.passes.analysis.project import (
    Place,
    Projection,
    Region,
    UnitLayers,
    Unprojectable,
    memory_order,
    places_of,
    project,
    unit_layers,
)
from frustum.passes.analysis.unit_layers import layout_of, view_in
from frustum.passes.tile.partition import describe
from frustum.passes.tile.resident import (
    Interval,
    Intervals,
    Resident,
    in_map,
    made_of,
    over_all_passes,
    readers_of,
    resident_in,
    resident_of,
    settled,
    together,
)


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
    if unit.partition is None:
        raise PassFailedException(f"{name_of(unit)} has no partition: run frustum-tile-partition first")
    with cutting(unit):
        return cut_as(unit_layers(unit), unit.partition.data, target)


def cut_as(layers: UnitLayers, partition: Partition, target: Target, own_elements: tuple[int, ...] = ()) -> Cut:
    """Raises `Unprojectable`."""
    projection = project(layers, partition, target.chip.clusters)
    return Cut(layers, partition, projection, places_of(layers, projection, partition.depth), own_elements)


@contextmanager
def cutting(unit: UnitOp) -> Iterator[None]:
    """Says of which unit, and of which partition, something is `Unprojectable`."""
    try:
        yield
    except Unprojectable as reason:
        raise PassFailedException(f"{name_of(unit)} cannot be cut as {unit.partition}: {reason}") from reason


@dataclass(frozen=True)
class Results:
    """Of the lowered unit: `types`; by number the layer that each gives; of each result of the unit its tensor by
    number, and the units that read its tile; the kept maps' tiles by layer."""

    types: list[Attribute]
    layers: list[int]
    tensor: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[UnitOp]] = field(default_factory=dict)
    kept: dict[int, tuple[t.Tile, Resident]] = field(default_factory=dict)


class KeptMaps:
    """The maps of a network that stay in SRAM; `known`: parts of concatenations whose places have been found."""

    def __init__(self, target: Target):
        self.target = target
        self.known: dict[OpResult, Resident] = {}

    def results_of(self, unit: UnitOp, cut: Cut) -> Results:
        """Kept maps are tiles; what else than units of layers reads of them is also stored."""
        values = unit.body.block.last_op
        assert values is not None
        layers = [next(j for j in cut.layers.stored if cut.layers.ops[j].results[0] is v) for v in values.operands]
        found = Results(list(unit.result_types), list(layers))
        for number, (result, j) in enumerate(zip(unit.results, layers, strict=True)):
            if number not in unit.kept:
                found.tensor[number] = number
                continue
            layer = cut.layers.layers[j]
            readers = readers_of(result, layer.out_dims, layer.out_view)
            readers += {u.operation: None for u in result.uses if is_resident_concat(u.operation)}
            found.readers[number] = readers
            if j not in found.kept:
                found.kept[j] = self.tile(unit, cut, j, result, readers)
            found.types[number] = t.TileType(found.kept[j][0])
            if any(use.operation not in readers for use in result.uses):
                found.tensor[number] = len(found.types)
                found.types.append(result.type)
                found.layers.append(j)
        return found

    def tile(
        self, unit: UnitOp, cut: Cut, j: int, result: OpResult, readers: Sequence[UnitOp]
    ) -> tuple[t.Tile, Resident]:
        """The tile of a kept map on each cluster."""
        layer, concat = cut.layers.layers[j], outermost(result)
        try:
            if cut.partition.has_owned_tiles:
                resident = everywhere(cut, layer.out_dims, self.target.chip.clusters)
            elif concat is None:
                needs = [self.need_of(reader, result) for reader in readers]
                resident = resident_of(cut.layers, cut.projection, j, needs, self.target.chip.clusters)
            else:
                if result not in self.known:
                    self.known.update(self.beside_others(concat))
                resident = self.known[result]
        except Unprojectable as reason:
            raise PassFailedException(f"{name_of(unit)} cannot keep {layer.kind}: {reason}") from reason
        if self.target.cluster.cdma is None and readers and resident.sends():
            reader = next(o for o in readers[0].body.block.ops if not isinstance(o, WeightOp))
            what = f"what clusters send each other between {describe(cut.layers.ops[j])} and {describe(reader)}"
            raise OrderDoesNotFit(what, name_of(unit), "cdma (chip.cluster.cdma)", "none")
        view = layer.out_view
        if unit.attributes.get(LAYOUT) is not None:
            view = view_in(layout_of(result), layer.out_dims)
        order = memory_order(view.near, layer.out_dims) if concat is None else (0, 1, 2, 3)
        region = resident.region
        return t.Tile(element_in(result), region.extent, order, region.start), resident

    def beside_others(self, concat: OpResult) -> dict[OpResult, Resident]:
        """The parts of a concatenation in SRAM, all in one box but for their channels: what units make of them, and
        what is read of them and of the whole."""
        needs, made, parts, cuts, clusters = [], [], list(parts_of(concat)), [], self.target.chip.clusters
        for whole in wholes_of(concat):
            dims = loops(shape_of(whole))
            readers = readers_of(whole, dims, contiguous(dims))
            others = [u.operation for u in whole.uses if u.operation not in readers]
            other = next((op for op in others if not is_resident_concat(op)), None)
            if other is not None:
                raise PassFailedException(f"{name_of(whole.owner)} keeps a map that {other.name} needs in DRAM")
            needs += [self.need_of(reader, whole) for reader in readers]
        for part in parts:
            assert isinstance(part.owner, UnitOp)
            cut, values = cut_of(part.owner, self.target), part.owner.body.block.last_op
            assert values is not None
            j = cut.layers.ops.index(values.operands[part.index].owner)
            layer = cut.layers.layers[j]
            cuts.append((cut, j, layer.out_dims))
            needs += [self.need_of(reader, part) for reader in readers_of(part, layer.out_dims, layer.out_view)]
            made.append(made_of(cut.layers, cut.projection, j, clusters))
        box = together([*made, *needs], cuts[0][2], clusters)
        residents = [
            resident_in(cut.layers, cut.projection, j, replaced(box, 1, Interval(Affine(), dims[1])), clusters)
            for cut, j, dims in cuts
        ]
        return dict(zip(parts, settled(residents), strict=True))

    def need_of(self, reader: UnitOp, result: OpResult) -> Intervals:
        """What all passes of a reading unit need of a map on each cluster."""
        cut, needs = cut_of(reader, self.target), []
        inside = [a for a, o in zip(reader.body.block.args, reader.operands, strict=True) if o is result]
        for number, own in enumerate(cut.layers.inputs):
            if own.value in inside:
                dims = own.dims
                needs.append(in_map(over_all_passes(cut.projection.inputs[number], cut.projection.counts), dims))
        return together(needs, dims, self.target.chip.clusters)


def everywhere(cut: Cut, dims: Extents, clusters: int) -> Resident:
    """A map that lies in the SRAM of every cluster, whoever makes which of its tiles: nothing of it is sent before that
    is known (`owned_tiles.py`)."""
    whole = tuple(Interval(Affine(), size) for size in dims)
    part = Region((Affine(),) * len(dims), dims)
    return Resident(dims, whole, whole, part, cut.projection.counts, clusters, whole)


# -------------------------------------------------------------------- concatenations in SRAM


def concat_of(unit: Operation) -> g.ConcatOp | None:
    """The concatenation that is all of a unit."""
    if not isinstance(unit, UnitOp):
        return None
    ops = list(unit.body.block.ops)
    first = ops[0]
    return first if len(ops) == 2 and isinstance(first, g.ConcatOp) else None


def is_resident_concat(unit: Operation) -> bool:
    """Whether a unit only names kept maps side by side another kept map."""
    concat = concat_of(unit)
    return concat is not None and isinstance(unit, UnitOp) and bool(unit.kept)


def outermost(value: SSAValue) -> OpResult | None:
    """The result of the last resident concatenation of which a map is a part; None if it is of none."""
    users = {use.operation for use in value.uses}
    concats = [user for user in users if is_resident_concat(user)]
    if not concats:
        return None
    if len(concats) > 1 or len([use for use in value.uses if use.operation is concats[0]]) > 1:
        raise PassFailedException(f"{name_of(concats[0])} keeps a map that has another place in SRAM")
    result = concats[0].results[0]
    assert isinstance(result, OpResult)
    return outermost(result) or result


def parts_of(concat: OpResult) -> Iterator[OpResult]:
    """The maps that units of layers make, of a resident concatenation and of those in it."""
    for operand in concat.owner.operands:
        unit = operand.owner
        if not isinstance(operand, OpResult) or not isinstance(unit, UnitOp) or operand.index not in unit.kept:
            raise PassFailedException(f"{name_of(concat.owner)} keeps a map of which a part is not in SRAM")
        if is_resident_concat(unit):
            yield from parts_of(operand)
        else:
            yield operand


def wholes_of(concat: OpResult) -> Iterator[OpResult]:
    """The results of a resident concatenation and of those in it."""
    yield concat
    for operand in concat.owner.operands:
        if isinstance(operand, OpResult) and is_resident_concat(operand.owner):
            yield from wholes_of(operand)


def name_of(unit: Operation) -> str:
    assert isinstance(unit, UnitOp)
    return f"unit {unit.unit_name.data}"
