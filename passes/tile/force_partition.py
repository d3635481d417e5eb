"""Partitions that somebody asks for: for design points that others have published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.module import TILED
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import Owners, Partition, UnitOp, Way
from frustum.passes.analysis.module import node_name, target_of
from frustum.passes.analysis.project import UnitLayers, Unprojectable, project, unit_layers
from frustum.passes.analysis.roll import COLUMNS, bands_of
from frustum.passes.plan.cost import CutUnit, UnitCost, chunk_bytes
from frustum.passes.plan.unit import UnitPlan, evaluate, residencies
from frustum.passes.plan.unit_ops import units_of
from frustum.passes.tile.partition import write

DIMENSIONS = ("images", "channels", "rows", "columns")


@dataclass(frozen=True)
class ForcePartition(ModulePass):
    """Cut units just so, with as few of their weights streamed as make them fit.

    Before: units of layers.  After: those called `only` (names by commas; all where there are none) have the partition
    asked for, their layers `frustum.map`; the others are left to `frustum-tile-partition`.
    `tile`: four extents of the output (0: the whole dimension), with these `borders`; `clusters`: the dimension dealt
    to clusters; `depth`: copies of what is loaded and stored.  With `bands` bands of so many columns of the output,
    which overlap, are made one after the other, each from top to bottom.  Of the layers called `again` (by commas) no
    rows are kept.  `sram` is the share of each cluster's SRAM that a unit may use.  With `owners` (clusters or cores)
    and borders exchange, these hand over borders; `way` says where the steps go (down, up, right, left).
    It is checked like any other partition (tiles that project, pieces that fit the cores, SRAM).
    Raises `PassFailedException` for units that cannot be cut so, `DoesNotFit` where that does not fit.
    """

    name = "frustum-tile-force-partition"
    tile: tuple[int, ...]
    borders: Literal["overlap", "exchange", "raster"] = "overlap"
    clusters: int = 3
    depth: int = 2
    only: str = ""
    bands: int = 0
    again: str = ""
    sram: float = 1.0
    owners: Owners | None = None
    way: Way = "down"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, units = target_of(op), units_of(op)
        known = {unit.unit_name.data: unit for unit in units}
        names = words(self.only) or list(known)
        for name in names:
            if name not in known:
                raise PassFailedException(
                    f"{self.name}: no unit of layers is called '{name}'{did_you_mean(name, list(known))} "
                    f"(there are {len(known)})"
                )
        for unit in units:
            if unit.unit_name.data in names:
                write(unit, self.plan(unit, target))
        if all(unit.partition is not None for unit in units):
            op.attributes[TILED] = UnitAttr()

    def plan(self, unit: UnitOp, target: Target) -> UnitPlan:
        """The unit cut as asked; raises as the pass does.  In bands all have the same pieces: the most that one of them
        needs, bytes and cycles of all."""
        layers, sram_bytes = unit_layers(unit), int(target.cluster.sram.capacity_bytes * self.sram)
        partition = self.partition_of(unit, layers, target)
        parts = parts_of(unit, layers, partition)
        for part, own in parts:
            check_covers(unit, part, own, target.chip.clusters)
        chunk = chunk_bytes(sram_bytes)
        for streamed in range(len(layers.layers) + 1):
            found = [evaluate(*part, streamed, (), target, sram_bytes, chunk) for part in parts]
            plans = [each for each in found if each is not None]
            if len(plans) < len(found):
                continue
            if any(each.maps != plans[0].maps for each in plans):
                raise PassFailedException(
                    f"unit {unit.unit_name.data}: bands of {partition.bands} columns differ in their pieces; "
                    f"take tiles with fewer columns, found {partition.tile[COLUMNS]}"
                )
            most = max((each.cost.sram for each in plans), key=lambda sram: sram.total_bytes)
            moved, cycles = sum(each.dram_bytes for each in plans), sum(each.cycles for each in plans)
            return UnitPlan(partition, plans[0].maps, UnitCost(most, moved, cycles))
        raise too_large(unit, *parts[0], target, sram_bytes)

    def partition_of(self, unit: UnitOp, layers: UnitLayers, target: Target) -> Partition:
        """What is asked of this unit; raises `PassFailedException` for a tile that is none of its output."""
        where, dims = f"unit {unit.unit_name.data}", layers.out.out_dims
        if len(self.tile) != len(dims):
            raise PassFailedException(
                f"{where}: a tile has four extents ({', '.join(DIMENSIONS)}), found {len(self.tile)}"
            )
        for word, extent, size in zip(DIMENSIONS, self.tile, dims, strict=True):
            if not 0 <= extent <= size:
                raise PassFailedException(
                    f"{where}: the tile asked for has {extent} {word}, its output has {size} (0: all)"
                )
        tile = tuple(extent or size for extent, size in zip(self.tile, dims, strict=True))
        bands = self.bands if self.bands < dims[COLUMNS] else 0
        again, trimmed = layers_called(unit, layers, words(self.again)), self.borders != "raster" and not bands
        whole = Partition(
            tile, self.clusters, self.depth, self.borders, trimmed, bands, again, owners=self.owners, way=self.way
        )
        if bands or projects(layers, whole, target.chip.clusters):
            return whole
        return replace(whole, trimmed=False)


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def layers_called(unit: UnitOp, layers: UnitLayers, names: Sequence[str]) -> tuple[int, ...]:
    """The layers of a unit with these names, by number; raises `PassFailedException` for a name that none has."""
    known = {node_name(op): j for j, op in enumerate(layers.ops)}
    for name in names:
        if name not in known:
            raise PassFailedException(
                f"unit {unit.unit_name.data}: no layer is called '{name}'{did_you_mean(name, list(known))} "
                f"(there are {len(known)})"
            )
    return tuple(sorted(known[name] for name in names))


def parts_of(unit: UnitOp, layers: UnitLayers, partition: Partition) -> list[tuple[UnitLayers, Partition]]:
    """The bands of a unit with the partition of each, or the unit itself."""
    if not partition.bands:
        return [(layers, partition)]
    try:
        return [(band.layers, band.partition) for band in bands_of(layers, partition)]
    except Unprojectable as reason:
        raise PassFailedException(f"unit {unit.unit_name.data} cannot be cut as asked: {reason}") from reason


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
    cut = CutUnit.of(layers, partition, target)
    needed = cut.footprint(residencies(layers, len(layers.layers))).total_bytes
    tile = "x".join(map(str, partition.tile))
    what = f"its tile of {tile} with borders {partition.borders}, {cut.passes} of them,"
    streams = " and streamed weights" if needed <= sram_bytes else ""
    where, available = f"unit {unit.unit_name.data}", f"{sram_bytes} B of SRAM"
    return DoesNotFit(what, where, f"{needed} B{streams}", available, "sram")
