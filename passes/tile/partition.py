"""Decide every unit's tiles and every layer's pieces, by the model of `plan_unit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.graph import ConcatOp
from frustum.dialects.module import MAP, MAPS, TILED
from frustum.dialects.target import Target
from frustum.dialects.tile import MapAttr, SubMap
from frustum.dialects.unit import Partition, PartitionAttr, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import unit_layers
from frustum.passes.plan.forced import Asked, force
from frustum.passes.plan.network.optimal import plan_given
from frustum.passes.plan.shortage import does_not_fit, shortage
from frustum.passes.plan.tile_search import Search
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit


@dataclass(frozen=True)
class PartitionUnits(ModulePass):
    """Give every unit its partition and every layer its map.

    Before: units of layers.  After: they also have `partition`, their layers `frustum.map`.
    `sram` is the share of each cluster's SRAM that a unit may use; less where the allocator found holes.
    `search` is how the tile of a unit is looked for: `all` tries every halving (docs/fusion.md).
    With `tile` (four extents of the output; 0: the whole dimension) units are cut just so, with these `borders`,
    the dimension `clusters` dealt to clusters and `depth` copies of what is loaded and stored; `only` (names of
    units, by commas) leaves the others to the search.  With `bands` bands of so many columns of the output, which
    overlap, are made one after the other, each from top to bottom; of the layers called `again` (by commas) no rows are
    kept.  Without `tile`, `borders` says which shapes are looked at: `overlap` halvings, `auto` those of policy
    `optimal` too, `exchange` only shapes whose rows roll.
    Raises `DoesNotFit` for a unit that no partition makes fit, `PassFailedException` for one that cannot be cut so.
    """

    name = "frustum-tile-partition"
    sram: float = 1.0
    search: Search = "all"
    borders: Literal["overlap", "exchange", "raster", "auto"] = "overlap"
    tile: tuple[int, ...] = ()
    clusters: int = 3
    depth: int = 2
    only: str = ""
    bands: int = 0
    again: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        budget = Budget(int(target.cluster.sram.capacity_bytes * self.sram), search=self.search)
        op.attributes[TILED] = UnitAttr()
        units = [o for o in op.walk() if isinstance(o, UnitOp) and not is_move(o.body.block.ops)]
        forced = self.forced(units)
        for unit in units:
            if unit in forced:
                realised(unit, force(unit, self.asked(), target, within(unit, budget).sram_bytes))
            elif unit.partition is None:
                partition_unit(unit, target, within(unit, budget), self.borders)

    def asked(self) -> Asked:
        if self.borders == "auto":
            raise PassFailedException("frustum-tile-partition: with a tile, borders is overlap, exchange or raster")
        return Asked(self.tile, self.borders, self.clusters, self.depth, self.bands, words(self.again))

    def forced(self, units: Sequence[UnitOp]) -> list[UnitOp]:
        """The units to be cut as asked; raises `PassFailedException` for names that none has."""
        names = words(self.only)
        known = [unit.unit_name.data for unit in units]
        for name in names:
            if name not in known:
                raise PassFailedException(
                    f"frustum-tile-partition: no unit of layers is called '{name}'{did_you_mean(name, known)} "
                    f"(there are {len(known)})"
                )
        if not self.tile:
            if names or self.borders == "raster" or self.bands or self.again:
                raise PassFailedException(
                    "frustum-tile-partition: only=, bands=, again= and borders=raster go with tile=n,c,h,w"
                )
            return []
        return [unit for unit in units if not names or unit.unit_name.data in names]


def words(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def within(unit: UnitOp, budget: Budget) -> Budget:
    """The budget, with the images that the unit was fused for."""
    maps = unit.attributes.get(MAPS)
    return replace(budget, maps=maps.value.data) if isinstance(maps, IntegerAttr) else budget


def partition_unit(unit: UnitOp, target: Target, budget: Budget, borders: str = "overlap") -> None:
    """Cut a unit by the search, with borders of these kinds."""
    if borders != "overlap" and (found := plan_given(unit, target, budget.sram_bytes, borders)) is not None:
        realised(unit, found)
        return
    layers = unit_layers(unit)
    plan = plan_unit(layers, target, budget)
    if plan is None:
        raise does_not_fit(unit.unit_name.data, layers, shortage(layers, target, budget))
    write(unit, plan.partition, plan.maps)


def realised(unit: UnitOp, found: UnitPlan) -> None:
    """Write what was found with exact numbers; a unit that is tried again has another partition already."""
    write(unit, found.partition, found.maps)


def write(unit: UnitOp, partition: Partition, maps: Sequence[SubMap | None]) -> None:
    """The unit's partition, and the maps of its layers."""
    layers = unit_layers(unit)
    unit.properties["partition"] = PartitionAttr(partition)
    unit.properties["mode"] = StringAttr("small" if partition.tile == layers.out.out_dims else "large")
    for op, submap in zip(layers.ops, maps, strict=True):
        if not isinstance(op, ConcatOp):
            assert submap is not None
            op.attributes[MAP] = MapAttr(submap)
