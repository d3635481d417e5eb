"""Units that run in steps along their rows, and keep the rows that later steps still need; and units in bands of
columns: each band is the same layers on narrower maps, and what two bands need both make.

Source: docs/techniques/frustum.md, "Borders"; rate form of Occam's dependence closure (doi 10.1145/3566052).
Bands: Fused-layer CNN accelerators (Alwani et al., MICRO 2016), whose buffers of rows are as long as a map is wide.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from frustum.dialects.extents import Extents, aligned, ceil_div, replaced
from frustum.dialects.tile import AnyAxis, Axis, Whole
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer, MapOperand, contiguous, dense
from frustum.passes.analysis.unit_layers import UnitLayers, Unprojectable

ROWS = 2
"""The dimension along which borders roll."""
COLUMNS = 3
"""The other one, where both are kept (`raster`)."""
WORDS = {ROWS: "rows", COLUMNS: "columns"}


@dataclass(frozen=True)
class Rolling:
    """Rows that one step makes more (`rows`; 0: the same in all steps), where the first step starts (`start`, at most
    0), rows to keep in a ring (`kept`; 0: none beyond what the step makes), rows that the step makes, those of steps
    before that it makes again among them (`extent`)."""

    rows: int
    start: int
    kept: int
    extent: int


@dataclass(frozen=True)
class Steps:
    """A unit in steps along its rows: step i makes rows [rows*i + start, rows*i + start + extent) of each of the maps,
    which stand by number."""

    maps: tuple[Rolling, ...]
    count: int


def roll(
    unit: UnitLayers, rows: int, dimension: int = ROWS, again: Collection[int] = (), *, saves: bool = False
) -> Steps:
    """Steps of a unit of which each makes `rows` rows of the last layer's output, after the first few; with another
    `dimension` the same of its positions (columns).  Of the layers `again` no rows are kept: a step makes all that its
    consumers need.

    Every layer leads its consumers by just so many rows as their windows reach ahead (warm-up: all leads are moved
    before the first row, where nothing is computed; by whole steps, or, if it `saves` one, by less).  `kept` is
    from the oldest row that a consumer still needs in a step to the newest that the step makes; maps in one buffer keep
    the same rows; what stays in SRAM has all rows.
    """
    check_again(unit, again)
    made = rows_made(unit, rows, dimension)
    leads = leads_of(unit, made, dimension, again)
    spans = leads.spans(unit)
    late, count = warm_up(unit, leads, rows, dimension, saves=saves)

    def rolled(number: int) -> Rolling:
        if number not in leads.ahead:
            return Rolling(0, 0, 0, 0)
        first = leads.firsts.get(number, leads.ahead[number])
        keeps_none = number in again or unit.root(number) in unit.kept
        span = 0 if keeps_none else spans[number][1] - spans[number][0]
        extent = leads.ahead[number] + made[number] - first
        start = first - late * made[number] // rows
        return Rolling(made[number], start, span if span > made[number] else 0, extent)

    return Steps(tuple(map(rolled, range(len(made)))), count)


def warm_up(unit: UnitLayers, leads: Leads, rows: int, dimension: int, *, saves: bool) -> tuple[int, int]:
    """By how many rows of the output, of which a step makes `rows`, all leads are moved, and how many steps there are.

    Whole steps, or, if it `saves` one, where fewer rows save a step the most that do, so that the last step is a full
    one: a step costs the weights of all layers, however little it makes.
    """
    made, layers = leads.made, unit.layers
    end = max(Fraction(layers[j].out_dims[dimension] - leads.ahead[j], made[j]) for j in unit.stored)
    least = max(0, *(ceil_div(lead * rows, made[k]) for k, lead in leads.ahead.items()))
    whole = aligned(least, rows)

    def count(late: int) -> int:
        return math.ceil(Fraction(late, rows) + end)

    if not saves:
        return whole, count(whole)
    align = {k: layers[k].align[dimension] if k < len(layers) else 1 for k in leads.ahead}

    def is_whole(late: int) -> bool:
        """Whether the leads of all maps are moved by whole rows, as the layers make them."""
        return all(late * made[k] % (rows * own) == 0 for k, own in align.items())

    first = next(late for late in range(least, whole + 1) if is_whole(late))
    if count(first) == count(whole):
        return whole, count(whole)
    most = math.floor(rows * (count(first) - end))
    return next(late for late in range(most, first - 1, -1) if is_whole(late)), count(first)


@dataclass(frozen=True)
class Leads:
    """In a step, by number of the map: rows that it makes, by how many the first that is new is ahead of the step's
    place (`ahead`), the oldest that a reader needs, and of a layer the first that the step makes."""

    made: list[int]
    ahead: dict[int, int]
    oldest: dict[int, int] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)

    def spans(self, unit: UnitLayers) -> dict[int, tuple[int, int]]:
        """Of each map from the oldest row that is in use to the newest; of maps in one buffer the same."""
        spans = {k: (min(self.oldest[k], lead), lead + self.made[k]) for k, lead in self.ahead.items()}
        for members in unit.groups.values():
            lows, highs = zip(*(spans[m] for m in members), strict=True)
            spans.update(dict.fromkeys(members, (min(lows), max(highs))))
        return spans


def leads_of(unit: UnitLayers, made: list[int], dimension: int, again: Collection[int]) -> Leads:
    """From the last layer back: what each one's readers need beyond what they made before."""
    last = len(unit.layers) - 1
    found = Leads(made, dict.fromkeys(unit.stored, 0) | {last: 0})
    for j in range(last, -1, -1):
        layer, align = unit.layers[j], unit.layers[j].align[dimension]
        if j not in found.ahead or made[j] % align:
            raise Unprojectable(f"layer {j} ({layer.kind}) is not made in steps of whole {WORDS[dimension]}")
        lead = found.ahead[j] = aligned(found.ahead[j], align)
        oldest = found.oldest[j] = min(found.oldest.get(j, lead), lead)
        first_made = found.firsts[j] = oldest // align * align if j in again else lead
        for operand, source in zip(layer.maps, unit.sources[j], strict=True):
            axis, number = operand.access[dimension], unit.number_of(source)
            if source.input is not None and unit.inputs[source.input].resident:
                continue
            if isinstance(axis, Whole):
                check_one(j, layer, operand, dimension)
                if source.layer is not None and made[last] < unit.out.out_dims[dimension]:
                    raise Unprojectable(f"layer {j} ({layer.kind}) needs in every step what is made in one")
                continue
            first = first_made * axis.num // axis.den + axis.low
            ahead = first + axis.extent(lead + made[j] - first_made) - made[number]
            found.ahead[number] = max(found.ahead.get(number, ahead), ahead)
            found.oldest[number] = min(found.oldest.get(number, first), first)
    return found


def check_one(j: int, layer: Layer, operand: MapOperand, dimension: int) -> None:
    """Raises `Unprojectable` for an operand of which a layer needs several positions at once, whatever it makes."""
    if operand.dims[dimension] > 1:
        raise Unprojectable(f"layer {j} ({layer.kind}) needs all {WORDS[dimension]} of its operand at once")


def check_again(unit: UnitLayers, again: Collection[int]) -> None:
    """Raises `Unprojectable` for layers that cannot be made again: they leave the unit or share a buffer."""
    for j in again:
        if j >= len(unit.layers):
            raise Unprojectable(f"layer {j} is to be made again, there are {len(unit.layers)}")
        if j in unit.stored or not set(unit.groups.get(unit.root(j), ())) <= set(again):
            raise Unprojectable(f"layer {j} ({unit.layers[j].kind}) leaves the unit or is part of a concatenation")


def rows_made(unit: UnitLayers, rows: int, dimension: int = ROWS) -> list[int]:
    """Rows of every map (layers, then inputs) for `rows` rows of the last layer's output."""
    made = [rows * rate for rate in rates_of(unit, dimension)]
    if any(m.denominator != 1 for m in made):
        what = WORDS[dimension]
        raise Unprojectable(f"{rows} {what} of the output are no whole {what} of every layer")
    return [int(m) for m in made]


def reflected(unit: UnitLayers, dimension: int) -> UnitLayers:
    """The layers as they are counted from the other end of every map; raises `Unprojectable` for layers that make
    several positions of one."""

    def axis_of(layer: Layer, operand: MapOperand) -> AnyAxis:
        axis = operand.access[dimension]
        if isinstance(axis, Whole):
            return axis
        if axis.den != 1:
            raise Unprojectable(f"{layer.kind} makes {axis.den} {WORDS[dimension]} of one: steps go forward")
        last = (layer.out_dims[dimension] - 1) * axis.num
        return replace(axis, low=operand.dims[dimension] - last - axis.low - 1 - axis.reach)

    layers = [
        replace(x, maps=tuple(replace(m, access=replaced(m.access, dimension, axis_of(x, m))) for m in x.maps))
        for x in unit.layers
    ]
    return replace(unit, layers=tuple(layers))


def rates_of(unit: UnitLayers, dimension: int) -> list[Fraction]:
    """Positions of every map (layers, then inputs) along a dimension for one of the last layer's output.

    Layers that share no map with it get as many as their size is a multiple of its, rounded up.
    """
    ways = ways_of(unit, dimension)
    rates: list[Fraction | None] = [None] * len(ways)
    for j in reversed(range(len(unit.layers))):
        if rates[j] is None:
            rates[j] = Fraction(ceil_div(unit.layers[j].out_dims[dimension], unit.out.out_dims[dimension]))
            spread(rates, ways, j)
    return [Fraction(1) if rate is None else rate for rate in rates]


def ways_of(unit: UnitLayers, dimension: int) -> list[list[tuple[int, Fraction]]]:
    """Of every map: the maps that it is made from and that are made from it, with their positions for one of its."""
    ways: list[list[tuple[int, Fraction]]] = [[] for _ in range(len(unit.layers) + len(unit.inputs))]
    for j, (layer, sources) in enumerate(zip(unit.layers, unit.sources, strict=True)):
        for operand, source in zip(layer.maps, sources, strict=True):
            axis = operand.access[dimension]
            if isinstance(axis, Whole):
                continue
            number = unit.number_of(source)
            ratio = Fraction(axis.num, axis.den)
            ways[j].append((number, ratio))
            ways[number].append((j, 1 / ratio))
    return ways


def spread(rates: list[Fraction | None], ways: list[list[tuple[int, Fraction]]], first: int) -> None:
    """Give every map that is connected with the first its rate; raises `Unprojectable` where two ways differ."""
    waiting = [first]
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


def ring_rows(kept: int, rows: int, copies: int, height: int, *, once: bool) -> int:
    """Rows of the ring of a map of which steps make `rows` rows and `kept` are in use, when `copies - 1` steps may run
    ahead; no more than the map has where the steps run through it `once`."""
    wanted = kept + (copies - 1) * rows
    return min(wanted, height) if once else wanted


Span = tuple[int, int]
"""Columns of a map, half open."""


@dataclass(frozen=True)
class Band:
    """The layers as they make one band, in columns counted from where each map's band begins; the partition of it; of
    each layer the elements that no band before makes."""

    layers: UnitLayers
    partition: Partition
    own_elements: tuple[int, ...]


def bands_of(unit: UnitLayers, partition: Partition) -> tuple[Band, ...]:
    """The bands of a unit from left to right; raises `Unprojectable` where its maps cannot be cut so."""
    if (
        partition.clusters == COLUMNS
        or len(unit.stored) != 1
        or unit.kept
        or any(i.resident for i in unit.inputs)
    ):
        raise Unprojectable(
            "bands of columns go from DRAM to DRAM, with one output, and no columns are dealt to clusters (3)"
        )
    width = unit.out.out_dims[COLUMNS]
    if partition.tile[COLUMNS] > partition.bands:
        raise Unprojectable(
            f"bands of {partition.bands} columns are narrower than a tile of {partition.tile[COLUMNS]}"
        )
    starts = range(0, width, partition.bands)
    spans = [columns_of(unit, (start, min(start + partition.bands, width))) for start in starts]
    found, made = [], [0] * len(unit.layers)
    for number, own in enumerate(spans):
        layers, elements = narrowed(unit, own), []
        for j, layer in enumerate(unit.layers):
            end = layer.out_dims[COLUMNS] if number == len(spans) - 1 else own[j][1]
            elements.append(math.prod(layer.out_dims) // layer.out_dims[COLUMNS] * max(0, end - made[j]))
            made[j] = max(made[j], end)
        tile = replaced(partition.tile, COLUMNS, min(partition.tile[COLUMNS], layers.out.out_dims[COLUMNS]))
        found.append(
            Band(with_macs(layers, elements, unit), replace(partition, tile=tile, bands=0), tuple(elements))
        )
    return tuple(found)


def columns_of(unit: UnitLayers, out: Span) -> dict[int, Span]:
    """Of every map by its number: the columns that some columns of the unit's output need."""
    spans = {len(unit.layers) - 1: out}
    for j in range(len(unit.layers) - 1, -1, -1):
        layer = unit.layers[j]
        check(j, layer)
        if j not in spans:
            raise Unprojectable(f"layer {j} ({layer.kind}) is neither used nor an output")
        for operand, source in zip(layer.maps, unit.sources[j], strict=True):
            number, need = unit.number_of(source), columns_read(j, layer, operand, spans[j])
            known = spans.get(number, need)
            spans[number] = min(known[0], need[0]), max(known[1], need[1])
    return spans


def check(j: int, layer: Layer) -> None:
    """Raises `Unprojectable` for a layer that is not the same anywhere along the columns."""
    plain = zip(layer.out_view.strides, dense(layer.out_dims), layer.out_dims, strict=True)
    if layer.kind.knows_position or COLUMNS in layer.axes_all or layer.align[COLUMNS] != 1:
        raise Unprojectable(
            f"layer {j} ({layer.kind}) is not cut into bands: it computes with places along the columns"
        )
    if layer.out_view.offset or any(a != b and e > 1 for a, b, e in plain):
        raise Unprojectable(f"layer {j} ({layer.kind}) is not cut into bands: its map does not lie in nchw")


def columns_read(j: int, layer: Layer, operand: MapOperand, made: Span) -> Span:
    """Columns of an operand inside its map that some of a layer's output need."""
    axis, width = operand.access[COLUMNS], operand.dims[COLUMNS]
    if isinstance(axis, Whole):
        if width > 1:
            raise Unprojectable(f"layer {j} ({layer.kind}) needs all {width} columns of its operand at once")
        return 0, 1
    if axis.den != 1:
        raise Unprojectable(
            f"layer {j} ({layer.kind}) is not cut into bands: it makes {axis.den} columns of one"
        )
    first = made[0] * axis.num + axis.low
    return max(0, first), min(width, first + axis.extent(made[1] - made[0]))


def narrowed(unit: UnitLayers, spans: dict[int, Span]) -> UnitLayers:
    """The same layers on maps of these columns alone, counted from the first of each."""
    layers = []
    for j, layer in enumerate(unit.layers):
        maps = []
        for operand, source in zip(layer.maps, unit.sources[j], strict=True):
            axis, number = operand.access[COLUMNS], unit.number_of(source)
            if isinstance(axis, Axis):
                axis = replace(axis, low=axis.low + axis.num * spans[j][0] - spans[number][0])
            dims, access = across(operand.dims, spans[number]), replaced(operand.access, COLUMNS, axis)
            view = operand.view if source.layer is None else contiguous(dims)
            maps.append(replace(operand, dims=dims, view=view, access=access))
        dims = across(layer.out_dims, spans[j])
        layers.append(replace(layer, out_dims=dims, out_view=contiguous(dims), maps=tuple(maps)))
    first = len(layers)
    inputs = [
        replace(own, dims=across(own.dims, spans[first + k]), first_column=spans[first + k][0])
        for k, own in enumerate(unit.inputs)
    ]
    return replace(unit, layers=tuple(layers), inputs=tuple(inputs))


def with_macs(layers: UnitLayers, elements: Sequence[int], whole: UnitLayers) -> UnitLayers:
    """The layers with the multiply-accumulates of these elements of their maps."""
    counted = [
        replace(layer, macs=of_map.macs * own // math.prod(of_map.out_dims))
        for layer, own, of_map in zip(layers.layers, elements, whole.layers, strict=True)
    ]
    return replace(layers, layers=tuple(counted))


def across(dims: Extents, span: Span) -> Extents:
    return replaced(dims, COLUMNS, span[1] - span[0])
