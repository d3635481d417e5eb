# Tests: test/passes/tile/test_assign_owners.py
"""Strips of a unit's maps side by side, each with an owner that hands the ends of it over to the owners next to it.

Source: docs/techniques/frustum.md, "Borders".
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from frustum.dialects.isa.program import Affine
from frustum.dialects.unit import Partition
from frustum.passes.analysis.regions import Projection, Region, grid_of, hull, needs_of
from frustum.passes.analysis.roll import WORDS, rates_of
from frustum.passes.analysis.unit_layers import UnitLayers, Unprojectable


def handed_over(
    unit: UnitLayers, plain: Projection, partition: Partition, clusters: int, beside: int
) -> Projection:
    """The regions of clusters that lie side by side in strips, each of which makes its own strip of every map and is
    sent what its layers read of the strips next to it; raises `Unprojectable` where maps have no such strips.

    `plain`: the same where all make again what they read.  Strips are as wide as the strides between a map and the
    unit's last one say, so that what a layer reads begins at the same distance from each.
    """
    if partition.clusters != beside or unit.groups:
        raise Unprojectable("owners side by side hand over borders of maps that are no part of a concatenation")
    count, rates = len(unit.layers), rates_of(unit, beside)
    if plain.counts[beside] > 1 or plain.outputs[-1].start[beside].is_constant:
        raise Unprojectable(f"each owner has one strip of the {WORDS[beside]}")
    made = [strip(unit, j, plain.outputs[j], plain.outputs[-1].extent[beside] * rates[j], beside, clusters)
            for j in range(count)]
    held: list[Region | None] = [*made, *(None for _ in unit.inputs)]
    for layer, sources, region in zip(unit.layers, unit.sources, made, strict=True):
        for source, need in zip(sources, needs_of(layer, region, partition, plain.counts), strict=True):
            number = unit.number_of(source)
            known = held[number]
            held[number] = need if known is None else hull(known, need.at(1, *known.parts[1]), unit.dims_of(number))
    found = tuple(region or plain.region_of(k) for k, region in enumerate(held))
    for j, (own, region) in enumerate(zip(made, found, strict=False)):
        low, high = handed(own, region, beside)
        if region.start[beside].is_constant or max(low, high) > own.extent[beside] or (j in unit.kept and low + high):
            raise Unprojectable(
                f"what is read of layer {j} ({unit.layers[j].kind}) beside a strip of {own.extent[beside]} "
                f"{WORDS[beside]} is more than the next owner has, or the map stays in SRAM"
            )
    stores = tuple(s.at(beside, *made[j].parts[beside]) for s, j in zip(plain.stores, unit.stored, strict=True))
    return replace(plain, outputs=tuple(made), inputs=found[count:], stores=stores, held=found)


def with_handed_inputs(
    unit: UnitLayers, projection: Projection, partition: Partition, clusters: int
) -> Projection:
    """The regions where each cluster loads its own strip of an input, and is sent what its layers read beside it by
    the clusters next to it, which go through their tiles in step; unchanged where inputs have no such strips."""
    d, count = partition.clusters, len(unit.layers)
    if clusters == 1 or d not in WORDS or projection.counts[d] > 1:
        return projection
    inputs = list(projection.inputs)
    for k, own in enumerate(unit.inputs):
        if not own.resident and unit.root(count + k) == count + k:
            start, extent = own_strip(*inputs[k].parts[d], own.dims[d], clusters)
            inputs[k] = inputs[k].at(d, start, extent)
    held = projection.held or (*projection.outputs, *projection.inputs)
    return replace(projection, inputs=tuple(inputs), held=held)


def own_strip(start: Affine, extent: int, size: int, clusters: int) -> tuple[Affine, int]:
    """Parts of intervals that overlap from cluster to cluster, cut off at a map's ends: each position is in one;
    unchanged where such parts do not cover them, or are narrower than what the next cluster needs of them."""
    width = start.cluster
    if width <= 0 or any(start.loops) or extent <= width:
        return start, extent
    first = max(start.base, 0)
    low, high = first - start.base, extent - width - (first - start.base)
    end = min(size, start.base + width * (clusters - 1) + extent)
    if not 0 <= high <= width or low > width or first + clusters * width < end:
        return start, extent
    return Affine(first, cluster=width), width


def strip(unit: UnitLayers, j: int, plain: Region, width: Fraction, beside: int, clusters: int) -> Region:
    """The strip of a layer's map that each cluster makes; raises `Unprojectable` where these do not cover what is
    read of it."""
    layer, start = unit.layers[j], plain.start[beside]
    end = start.base + (clusters - 1) * start.cluster + plain.extent[beside]
    covers = width.denominator == 1 and min(end, layer.out_dims[beside]) <= clusters * width
    if start.is_constant or not covers or int(width) % grid_of(layer, beside):
        raise Unprojectable(f"layer {j} ({layer.kind}) has no strips of {width} {WORDS[beside]}")
    return plain.at(beside, Affine(cluster=int(width)), int(width))


def handed(made: Region, held: Region, beside: int) -> tuple[int, int]:
    """Positions that a cluster has of a map before and behind those that it makes."""
    low = (made.start[beside] - held.start[beside]).base
    return low, held.extent[beside] - low - made.extent[beside]
