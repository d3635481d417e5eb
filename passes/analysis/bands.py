"""Units in bands of columns: each band is the same layers on narrower maps, and what two bands need both make.

Source: Fused-layer CNN accelerators (Alwani et al., MICRO 2016), whose buffers of rows are as long as a map is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frustum.dialects.extents import Extents, replaced
from frustum.dialects.tile import Axis, Whole
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer, MapOperand, contiguous, dense
from frustum.passes.analysis.roll import COLUMNS
from frustum.passes.analysis.unit_layers import UnitLayers, Unprojectable

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
