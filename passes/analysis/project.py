"""Which part of every map a tile of a unit's output needs: shape inference from the output backwards.

Source: tfu.md (first paragraph), frustum.md "Regions (backward projection)".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from xdsl.ir import Operation, SSAValue

from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.tile import MapAttr, SubMap, TensorView, Tile, Whole
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
    """Where a map operand of a layer comes from: layer `layer` of the unit, or its input number `input`."""

    layer: int | None
    value: SSAValue
    input: int | None = None


@dataclass(frozen=True)
class Input:
    """A map that a unit reads: a tensor seen as four dimensions."""

    value: SSAValue
    dims: Extents
    view: TensorView
    element_bytes: int


@dataclass(frozen=True)
class UnitLayers:
    """The layers of a unit in order, where their map operands come from, and the layers whose maps leave the unit."""

    ops: tuple[Operation, ...]
    layers: tuple[Layer, ...]
    sources: tuple[tuple[Source, ...], ...]
    inputs: tuple[Input, ...] = ()
    stored: tuple[int, ...] = ()

    @property
    def out(self) -> Layer:
        return self.layers[-1]

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each layer: which layers read it, as which map operand."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.layers]
        for j, sources in enumerate(self.sources):
            for k, source in enumerate(sources):
                if source.layer is not None:
                    found[source.layer].append((j, k))
        return tuple(tuple(each) for each in found)

    def last_use(self, layer: int) -> int:
        """The last layer that reads this one's output (its own number where none does)."""
        return max((j for j, _ in self.consumers[layer]), default=layer)


def layers_of(ops: Sequence[Operation], outputs: Sequence[SSAValue] | None = None) -> UnitLayers:
    """The operations of a unit as layers; weights are not layers.

    `outputs` are the values that leave it; by default the last operation's result.
    """
    ops = tuple(op for op in ops if not isinstance(op, WeightOp))
    number: dict[SSAValue, int] = {op.results[0]: i for i, op in enumerate(ops)}
    layers = tuple(layer_of(op) for op in ops)
    inputs: dict[tuple[SSAValue, Extents, TensorView], int] = {}
    sizes: list[int] = []
    sources = []
    for op, layer in zip(ops, layers, strict=True):
        own = []
        for m in layer.maps:
            value = op.operands[m.index]
            place = None
            if value not in number:
                place = inputs.setdefault((value, m.dims, m.view), len(inputs))
                sizes += [m.element_bytes] * (len(inputs) - len(sizes))
            own.append(Source(number.get(value), value, place))
        sources.append(tuple(own))
    stored = (len(ops) - 1,) if outputs is None else tuple(number[v] for v in outputs)
    return UnitLayers(
        ops,
        layers,
        tuple(sources),
        tuple(Input(*key, size) for key, size in zip(inputs, sizes, strict=True)),
        stored,
    )


def unit_layers(unit: UnitOp) -> UnitLayers:
    end = unit.body.block.last_op
    assert end is not None
    return layers_of([op for op in unit.body.block.ops if op is not end], list(end.operands))


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
    """Regions of one pass over a unit's tiles.

    `outputs`: of all layers' outputs, what the pass makes; `operands` (by layer, by operand): what it needs;
    `inputs`: what it loads of each input; `counts`: passes per dimension.
    With exchanged borders `rings` and `input_rings` are the rows that are in use of each in a step (0: none beyond
    those that the step makes; see `ring_rows`).
    """

    outputs: tuple[Region, ...]
    operands: tuple[tuple[Region, ...], ...]
    inputs: tuple[Region, ...]
    counts: Extents
    rings: tuple[int, ...]
    input_rings: tuple[int, ...]


def project(unit: UnitLayers, partition: Partition, clusters: int) -> Projection:
    """Regions of every map of a unit for one tile of its output; raises `Unprojectable`."""
    last = len(unit.layers) - 1
    steps = roll(unit, partition.tile[ROWS]) if partition.borders == "exchange" else None
    if steps is not None and partition.clusters == ROWS and clusters > 1:
        raise Unprojectable("with exchanged borders rows are not dealt to clusters: they roll through each")
    outputs: dict[int, Region] = {last: output_region(unit.out.out_dims, partition, clusters)}
    for j in unit.stored:
        if j != last:
            outputs[j] = beside(outputs[last], unit.layers[j].out_dims, unit.out.out_dims)
    operands: dict[int, tuple[Region, ...]] = {}
    inputs: dict[int, Region] = {}
    for j in range(last, -1, -1):
        layer = unit.layers[j]
        if j not in outputs:
            raise Unprojectable(f"layer {j} ({layer.kind}) is neither used nor an output")
        operands[j] = tuple(needed(outputs[j], operand) for operand in layer.maps)
        for region, source, operand in zip(operands[j], unit.sources[j], layer.maps, strict=True):
            known, number = (outputs, source.layer) if source.layer is not None else (inputs, source.input)
            assert number is not None
            known[number] = hull(known[number], region, operand.dims) if number in known else region
    counts = tile_counts(unit.out.out_dims, partition, clusters)
    made = tuple(outputs[j] for j in range(last + 1))
    loaded = tuple(inputs[k] for k in range(len(unit.inputs)))
    asked = tuple(operands[j] for j in range(last + 1))
    if steps is None:
        return Projection(made, asked, loaded, counts, (0,) * len(made), (0,) * len(loaded))
    return Projection(
        tuple(map(rolling, made, steps.layers)),
        asked,
        tuple(map(rolling, loaded, steps.inputs)),
        (counts[0], counts[1], steps.count, counts[3]),
        tuple(r.kept for r in steps.layers),
        tuple(r.kept for r in steps.inputs),
    )


def beside(region: Region, dims: Extents, out_dims: Extents) -> Region:
    """The part of another output of the unit that belongs to a tile of its last one."""
    starts, extents = [], []
    for start, extent, size, out_size in zip(region.start, region.extent, dims, out_dims, strict=True):
        if start.is_constant and extent >= out_size:
            starts.append(Affine())
            extents.append(size)
            continue
        rate = -(-size // out_size)
        if size <= (out_size - 1) * rate and size != out_size:
            raise Unprojectable(f"{size} positions of one output do not go evenly with {out_size} of another")
        starts.append(start * rate)
        extents.append(extent * rate)
    n, c, h, w = extents
    return Region(_starts(starts), (n, c, h, w))


class Unprojectable(Exception):
    """A unit that cannot be cut in this way; says why."""


ROWS = 2
"""The dimension along which borders roll."""


@dataclass(frozen=True)
class Rolling:
    """Rows that one step makes (`rows`; 0: the same in all steps), where the first step starts (`start`, at most 0),
    rows to keep in a ring (`kept`; 0: none beyond what the step makes)."""

    rows: int
    start: int
    kept: int


@dataclass(frozen=True)
class Steps:
    """A unit in steps along its rows: step i of a layer makes rows [rows*i + start, rows*(i+1) + start)."""

    layers: tuple[Rolling, ...]
    inputs: tuple[Rolling, ...]
    count: int


def roll(unit: UnitLayers, rows: int) -> Steps:
    """Steps of a unit of which each makes `rows` rows of the last layer's output, after the first few.

    Every layer leads its consumers by just so many rows as their windows reach ahead (warm-up: all leads are moved
    before the first row, where nothing is computed).  `kept` is from the oldest row that a consumer still needs in a
    step to the newest that the step makes.
    Source: frustum.md "exchange"; rate form of Occam's dependence closure (doi 10.1145/3566052).
    """
    last = len(unit.layers) - 1
    made = [rows * rate for rate in rates_of(unit)]
    if any(m.denominator != 1 for m in made):
        raise Unprojectable(f"{rows} rows of the output are no whole rows of every layer")
    leads: dict[int, int] = dict.fromkeys(unit.stored, 0) | {last: 0}
    oldest: dict[int, int] = {}
    for j in range(last, -1, -1):
        layer, align = unit.layers[j], unit.layers[j].align[ROWS]
        if j not in leads or made[j] % align:
            raise Unprojectable(f"layer {j} ({layer.kind}) is not made in steps of whole rows")
        lead = leads[j] = -(-leads[j] // align) * align
        for operand, source in zip(layer.maps, unit.sources[j], strict=True):
            axis = operand.access[ROWS]
            number = place_of(source, last)
            if isinstance(axis, Whole):
                if operand.dims[ROWS] > 1:
                    raise Unprojectable(f"layer {j} ({layer.kind}) needs all rows of its operand at once")
                continue
            first = lead * axis.num // axis.den + axis.low
            ahead = first + axis.extent(int(made[j])) - int(made[number])
            leads[number] = max(leads.get(number, ahead), ahead)
            oldest[number] = min(oldest.get(number, first), first)
    for j in unit.stored:
        oldest[j] = min(oldest.get(j, leads[j]), leads[j])
    late = max(0, *(-(-lead // int(made[number])) for number, lead in leads.items()))

    def rolled(number: int) -> Rolling:
        if number not in leads:
            return Rolling(0, 0, 0)
        step, lead = int(made[number]), leads[number]
        span = step + lead - oldest.get(number, lead)
        return Rolling(step, lead - late * step, span if span > step else 0)

    ends = [late + Fraction(unit.layers[j].out_dims[ROWS] - leads[j]) / made[j] for j in unit.stored]
    layers = tuple(rolled(j) for j in range(last + 1))
    inputs = tuple(rolled(last + 1 + k) for k in range(len(unit.inputs)))
    return Steps(layers, inputs, max(math.ceil(end) for end in ends))


def place_of(source: Source, last: int) -> int:
    """Number of a source when the inputs of a unit follow its layers."""
    return source.layer if source.layer is not None else last + 1 + (source.input or 0)


def rates_of(unit: UnitLayers) -> list[Fraction]:
    """Rows of every layer's output, then of every input, for one row of the last layer's output."""
    last = len(unit.layers) - 1
    rates: list[Fraction | None] = [None] * (last + 1 + len(unit.inputs))
    rates[last] = Fraction(1)
    ways: list[list[tuple[int, Fraction]]] = [[] for _ in rates]
    for j, (layer, sources) in enumerate(zip(unit.layers, unit.sources, strict=True)):
        for operand, source in zip(layer.maps, sources, strict=True):
            axis = operand.access[ROWS]
            if isinstance(axis, Whole):
                continue
            number = place_of(source, last)
            ratio = Fraction(axis.num, axis.den)
            ways[j].append((number, ratio))
            ways[number].append((j, 1 / ratio))
    waiting = [last]
    while waiting:
        here = waiting.pop()
        rate = rates[here]
        assert rate is not None
        for there, ratio in ways[here]:
            if rates[there] is None:
                rates[there] = rate * ratio
                waiting.append(there)
            elif rates[there] != rate * ratio:
                raise Unprojectable("two ways through the unit have different strides")
    return [Fraction(1) if rate is None else rate for rate in rates]


def ring_rows(kept: int, rows: int, copies: int, height: int, *, once: bool) -> int:
    """Rows of the ring of a map of which steps make `rows` rows and `kept` are in use, when `copies - 1` steps may run
    ahead; no more than the map has where the steps run through it `once`."""
    wanted = kept + (copies - 1) * rows
    return min(wanted, height) if once else wanted


def rolling(region: Region, step: Rolling) -> Region:
    """A region whose rows are those of a step; unchanged where it is the same in all."""
    if not step.rows:
        return region
    n, c, _, w = region.start
    start = Affine.index(ROWS, step.rows) + step.start
    images, channels, _, columns = region.extent
    return Region((n, c, start, w), (images, channels, step.rows, columns))


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
