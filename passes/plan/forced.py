"""A partition that somebody asks for: for design points that others have published.

It is checked like any other (tiles that project, pieces that fit the cores, SRAM), and refused with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.extents import Extents
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import Borders, Partition, UnitOp
from frustum.passes.analysis.bands import bands_of
from frustum.passes.analysis.module import node_name
from frustum.passes.analysis.project import UnitLayers, Unprojectable, project, unit_layers
from frustum.passes.analysis.roll import COLUMNS
from frustum.passes.plan.cost import Cost, chunk_bytes, footprint
from frustum.passes.plan.unit import UnitPlan, evaluate, residencies

DIMENSIONS = ("images", "channels", "rows", "columns")


@dataclass(frozen=True)
class Asked:
    """Extents of a tile of the output (0: the whole dimension), borders, the dimension dealt to clusters, copies of
    what is loaded and stored; columns of a band (0: one band), names of the layers of which no rows are kept."""

    tile: tuple[int, ...]
    borders: Borders
    clusters: int
    depth: int
    bands: int = 0
    again: tuple[str, ...] = ()

    def partition(self, unit: UnitOp, dims: Extents) -> Partition:
        """For an output of these extents; raises `PassFailedException` for a tile that is none of it."""
        name = unit.unit_name.data
        if len(self.tile) != len(dims):
            raise PassFailedException(
                f"unit {name}: a tile has four extents ({', '.join(DIMENSIONS)}), found {len(self.tile)}"
            )
        for word, extent, size in zip(DIMENSIONS, self.tile, dims, strict=True):
            if not 0 <= extent <= size:
                raise PassFailedException(
                    f"unit {name}: the tile asked for has {extent} {word}, its output has {size} (0: all)"
                )
        n, c, h, w = (extent or size for extent, size in zip(self.tile, dims, strict=True))
        bands = self.bands if self.bands < dims[COLUMNS] else 0
        again = layers_called(unit, self.again)
        trimmed = self.borders != "raster" and not bands
        return Partition((n, c, h, w), self.clusters, self.depth, self.borders, trimmed, bands, again)


def layers_called(unit: UnitOp, names: Sequence[str]) -> tuple[int, ...]:
    """The layers of a unit with these names, by number; raises `PassFailedException` for a name that none has."""
    known = {node_name(op): j for j, op in enumerate(unit_layers(unit).ops)}
    for name in names:
        if name not in known:
            raise PassFailedException(
                f"unit {unit.unit_name.data}: no layer is called '{name}'{did_you_mean(name, list(known))} "
                f"(there are {len(known)})"
            )
    return tuple(sorted(known[name] for name in names))


def force(unit: UnitOp, asked: Asked, target: Target, sram_bytes: int) -> UnitPlan:
    """The unit cut as asked, with as few of its weights streamed as make it fit.

    Raises `PassFailedException` where it cannot be cut so, `DoesNotFit` where that does not fit.
    """
    layers = unit_layers(unit)
    partition = asked.partition(unit, layers.out.out_dims)
    if partition.bands:
        return force_bands(unit, layers, partition, target, sram_bytes)
    if not projects(layers, partition, target.chip.clusters):
        partition = replace(partition, trimmed=False)
    check_covers(unit, layers, partition, target.chip.clusters)
    for streamed in range(len(layers.layers) + 1):
        found = evaluate(layers, partition, streamed, (), target, sram_bytes, chunk_bytes(sram_bytes))
        if found is not None:
            return found
    raise too_large(unit, layers, partition, target, sram_bytes)


def force_bands(
    unit: UnitOp, layers: UnitLayers, partition: Partition, target: Target, sram_bytes: int
) -> UnitPlan:
    """The same in bands of columns, all with the same pieces; the most that one of them needs, bytes and cycles of
    all."""
    try:
        bands = bands_of(layers, partition)
    except Unprojectable as reason:
        raise PassFailedException(f"unit {unit.unit_name.data} cannot be cut as asked: {reason}") from reason
    for band in bands:
        check_covers(unit, band.layers, band.partition, target.chip.clusters)
    chunk = chunk_bytes(sram_bytes)
    for streamed in range(len(layers.layers) + 1):
        found = [evaluate(b.layers, b.partition, streamed, (), target, sram_bytes, chunk) for b in bands]
        own = [each for each in found if each is not None]
        if len(own) == len(found):
            if any(each.maps != own[0].maps for each in own):
                raise PassFailedException(
                    f"unit {unit.unit_name.data}: bands of {partition.bands} columns differ in their pieces; "
                    f"take tiles with fewer columns, found {partition.tile[COLUMNS]}"
                )
            most = max((each.cost.sram for each in own), key=lambda f: f.total_bytes)
            moved, cycles = sum(e.dram_bytes for e in own), sum(e.cycles for e in own)
            return UnitPlan(partition, own[0].maps, Cost(most, moved, cycles))
    raise too_large(unit, bands[0].layers, bands[0].partition, target, sram_bytes)


def projects(layers: UnitLayers, partition: Partition, clusters: int) -> bool:
    try:
        project(layers, partition, clusters)
    except Unprojectable:
        return False
    return True


def check_covers(unit: UnitOp, layers: UnitLayers, partition: Partition, clusters: int) -> None:
    """Raises `PassFailedException` where the unit does not project, or no channels of it may be cut."""
    where = f"unit {unit.unit_name.data} cannot be cut as asked, {partition.tile} with borders {partition.borders}"
    if partition.tile[1] < layers.out.out_dims[1] and len(layers.layers) > 1:
        raise PassFailedException(
            f"{where}: a unit of {len(layers.layers)} layers holds all {layers.out.out_dims[1]} channels"
        )
    try:
        project(layers, partition, clusters)
    except Unprojectable as reason:
        raise PassFailedException(f"{where}: {reason}") from reason


def too_large(
    unit: UnitOp, layers: UnitLayers, partition: Partition, target: Target, sram_bytes: int
) -> DoesNotFit:
    """What the maps and vectors alone need of SRAM; where that fits, no piece of some layer does."""
    projection = project(layers, partition, target.chip.clusters)
    every = residencies(layers, len(layers.layers))
    needed = footprint(layers, partition, projection, every).total_bytes
    tile = "x".join(map(str, partition.tile))
    what = f"its tile of {tile} with borders {partition.borders}, {math.prod(projection.counts)} of them,"
    available = f"{sram_bytes} B of SRAM"
    if needed <= sram_bytes:
        return DoesNotFit(
            what, f"unit {unit.unit_name.data}", f"{needed} B and streamed weights", available, "sram"
        )
    return DoesNotFit(what, f"unit {unit.unit_name.data}", f"{needed} B", available, "sram")
