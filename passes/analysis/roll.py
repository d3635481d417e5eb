"""Units that run in steps along their rows, and keep the rows that later steps still need.

Source: docs/techniques/frustum.md, "Borders"; rate form of Occam's dependence closure (doi 10.1145/3566052).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.tile import Whole
from frustum.passes.analysis.layer import Layer, MapOperand
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


def roll(unit: UnitLayers, rows: int, dimension: int = ROWS, again: Collection[int] = ()) -> Steps:
    """Steps of a unit of which each makes `rows` rows of the last layer's output, after the first few; with another
    `dimension` the same of its positions (columns).  Of the layers `again` no rows are kept: a step makes all that its
    consumers need.

    Every layer leads its consumers by just so many rows as their windows reach ahead (warm-up: all leads are moved
    before the first row, where nothing is computed).  `kept` is from the oldest row that a consumer still needs in a
    step to the newest that the step makes; maps in one buffer keep the same rows; what stays in SRAM has all rows.
    """
    check_again(unit, again)
    made = rows_made(unit, rows, dimension)
    leads = leads_of(unit, made, dimension, again)
    spans = leads.spans(unit)
    late = max(0, *(ceil_div(lead, made[number]) for number, lead in leads.ahead.items()))

    def rolled(number: int) -> Rolling:
        if number not in leads.ahead:
            return Rolling(0, 0, 0, 0)
        first = leads.firsts.get(number, leads.ahead[number])
        keeps_none = number in again or unit.root(number) in unit.kept
        span = 0 if keeps_none else spans[number][1] - spans[number][0]
        extent = leads.ahead[number] + made[number] - first
        return Rolling(made[number], first - late * made[number], span if span > made[number] else 0, extent)

    ends = [
        late + Fraction(unit.layers[j].out_dims[dimension] - leads.ahead[j], made[j]) for j in unit.stored
    ]
    return Steps(tuple(map(rolled, range(len(made)))), max(math.ceil(end) for end in ends))


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
        if j in unit.stored or unit.root(j) != j or j in unit.groups:
            raise Unprojectable(f"layer {j} ({unit.layers[j].kind}) leaves the unit or is part of a concatenation")


def rows_made(unit: UnitLayers, rows: int, dimension: int = ROWS) -> list[int]:
    """Rows of every map (layers, then inputs) for `rows` rows of the last layer's output."""
    made = [rows * rate for rate in rates_of(unit, dimension)]
    if any(m.denominator != 1 for m in made):
        what = WORDS[dimension]
        raise Unprojectable(f"{rows} {what} of the output are no whole {what} of every layer")
    return [int(m) for m in made]


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
