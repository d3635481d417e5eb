"""In which order, and by which cluster, the tiles of every unit are made (docs/traversal.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.attributes import BoxAttr
from frustum.dialects.isa.program import MAX_LOOPS, Affine, Starts
from frustum.dialects.target import Target
from frustum.dialects.tile import Sweep, SweepsAttr
from frustum.dialects.unit import WAYS
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.piece_nest import build
from frustum.passes.analysis.roll import COLUMNS, ROWS
from frustum.passes.tile.assign_owners import grid_of
from frustum.passes.tile.orders import (
    DIRECTIONS,
    ORDERS,
    Bands,
    Grid,
    TileNest,
    are_strips,
    nests_of,
    steps_of,
)
from frustum.passes.tile.owned_tiles import hand_over, has_owned_tiles, read


@dataclass(frozen=True)
class AssignOrder(ModulePass):
    """Give every unit the sweeps over its tiles that an order says.

    Before: `ftile.unit`.  After: those with more than one tile along d2 and d3 have `sweeps`; where the tiles were
    dealt to the clusters along these, no map stays in SRAM between units, and clusters send each other nothing, the
    order says who makes which, otherwise each cluster goes through its own tiles in the order.  `bands` is how many
    tiles deep a band is, `direction` where it goes.  Units whose rows roll have an order of their own: strip by strip,
    each from top to bottom.
    Raises `PassFailedException` for an unknown order, and for one that a rolling unit does not have.
    Source: docs/techniques/frustum.md, "Orders".
    """

    name = "frustum-tile-assign-order"
    order: str = "row-major"
    bands: int = 1
    direction: str = "left-right"

    def __post_init__(self) -> None:
        for what, found, allowed in (
            ("order", self.order, ORDERS),
            ("direction", self.direction, DIRECTIONS),
        ):
            if found not in allowed:
                raise PassFailedException(
                    f"{self.name}: {what} is one of {', '.join(allowed)}, found '{found}'"
                )
        if self.bands < 1:
            raise PassFailedException(
                f"{self.name}: a band is at least one tile deep, found bands={self.bands}"
            )

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        units = [o for o in op.walk() if isinstance(o, t.UnitOp)]
        for unit in units:
            self.assign(unit, target)
        for unit in units:
            if has_owned_tiles(unit):
                hand_over(unit, target.chip.clusters)

    def assign(self, unit: t.UnitOp, target: Target) -> None:
        if unit.loop_order == t.IMAGE_LOOPS:  # of independent tiles: any order will do
            del unit.properties["loops"]
        if unit.way is not None:
            self.check_rolling(unit, target)
            return
        counts, owners = list(unit.tile_counts), 1
        if is_shared_out(unit, target.chip.clusters):
            owners, dimension = target.chip.clusters, unit.clusters.value.data
            counts[dimension] = tiles_along(unit, dimension)
        _, _, rows, columns = counts
        if rows * columns == 1:
            return  # as it is: dealt, so that one cluster makes it
        if owners > 1:
            number_by_grid(unit, owners, counts)
        grid = Grid(rows, columns, owners)
        ways = steps_of(self.order, grid, Bands(self.bands, self.direction))
        nests = nests_of(ways, grid, loops_free(unit, target), (reach(unit, ROWS), reach(unit, COLUMNS)))
        unit.properties["sweeps"] = SweepsAttr(tuple(sweep_of(nest) for nest in nests))

    def check_rolling(self, unit: t.UnitOp, target: Target) -> None:
        """Strips side by side, each from end to end: no other order has its borders in time."""
        boxes = [op.region.data for op in unit.body.block.ops if isinstance(op, (t.StoreOp, t.ComputeOp))]
        box, word = boxes[-1], unit.way.data if unit.way else "down"
        band, way = Bands(self.bands, self.direction), next(each for each in WAYS if each == word)
        width = band.depth if self.order == "bands" else 1
        clusters = target.chip.clusters if any(start.cluster for start in box.start) else 1
        grids = [grid_of(box.bound, box.extent, way, clusters, cores, width) for cores in (1, target.cluster.cores)]
        if not any(are_strips(self.order, grid, band, way) for grid in grids):
            raise PassFailedException(
                f"unit {unit.unit_name.data} exchanges borders in steps that go {way}: owners have no such strips in "
                f"order {self.order}; it exchanges layer by layer (depth=breadth-first)"
            )


def is_shared_out(unit: t.UnitOp, clusters: int) -> bool:
    """Whether any cluster may make any tile: those along d2 or d3 are dealt, no map is at a fixed place, and clusters
    send each other nothing; or all its maps are everywhere."""
    values: Sequence[SSAValue] = (*unit.operands, *unit.results)
    stays = any(isinstance(value.type, t.TileType) for value in values) and not has_owned_tiles(unit)
    sends = any(isinstance(op, t.SendOp) for op in unit.body.block.ops)
    return clusters > 1 and unit.clusters.value.data in (ROWS, COLUMNS) and not stays and not sends


def number_by_grid(unit: t.UnitOp, clusters: int, counts: Sequence[int]) -> None:
    """Regions in indices of the grid instead of the cluster's own."""
    dimension = unit.clusters.value.data

    def moved(starts: Starts) -> Starts:
        return tuple(by_grid(start, dimension, clusters) for start in starts)

    for op in unit.body.block.ops:
        if isinstance(op, t.LoadOp | t.ComputeOp | t.StoreOp):
            box = op.region.data
            op.properties["region"] = BoxAttr(replace(box, start=moved(box.start)))
        for result in op.results:
            if isinstance(result.type, t.TileType) and (origin := result.type.data.origin) is not None:
                kind = t.TileType(replace(result.type.data, origin=moved(origin)))
                Rewriter.replace_value_with_new_type(result, kind)
    unit.properties["counts"] = DenseArrayBase.from_list(i64, counts)


def by_grid(start: Affine, dimension: int, clusters: int) -> Affine:
    """Cluster k's tile number i along the dimension is tile K*i + k of the grid."""
    step = start.loops[dimension] if dimension < len(start.loops) else 0
    if step not in (0, clusters * start.cluster) or (step and not start.cluster):
        raise PassFailedException(f"tiles along d{dimension} are not dealt to the clusters: they begin at {start}")
    others = tuple(0 if d == dimension else k for d, k in enumerate(start.loops))
    return Affine(start.base, others) + Affine.index(dimension, start.cluster)


def reach(unit: t.UnitOp, dimension: int) -> int:
    """Tiles beyond the grid, on either side, of which some map of the unit still has a part (borders of the tile)."""
    count, most = unit.tile_counts[dimension], 0
    for op in unit.body.block.ops:
        if not isinstance(op, t.LoadOp | t.ComputeOp):
            continue
        boxes = [op.region.data]
        if isinstance(op, t.ComputeOp) and has_owned_tiles(unit):
            pairs = zip(op.access.data, op.tiles, strict=False)
            boxes += [read(op, access.data, t.tile_of(tile).extents) for access, tile in pairs]
        for box in boxes:
            start, extent, bound = box.start[dimension], box.extent[dimension], box.bound[dimension]
            step = start.loops[dimension] if len(start.loops) > dimension else 0
            if step > 0:  # what is the same for all tiles is there wherever they are
                behind, before = bound - start.base - step * count, start.base + extent - 1
                most = max(most, ceil_div(behind, step), before // step)
    return most


def tiles_along(unit: t.UnitOp, dimension: int) -> int:
    """Tiles of the unit's results along the dimension that is dealt."""
    kind = t.ComputeOp if has_owned_tiles(unit) else t.StoreOp
    boxes = [op.region.data for op in unit.body.block.ops if isinstance(op, kind)]
    spans = [box.spans[dimension] for box in boxes]
    return max(ceil_div(s.bound - s.start.base, s.start.cluster) for s in spans if s.start.cluster)


def loops_free(unit: t.UnitOp, target: Target) -> int:
    """Loops that a sweep may have, beside those of the layers and those around all sweeps."""
    counts, cores = unit.tile_counts, target.cluster.cores
    outside = sum(count > 1 for count in counts[:ROWS])
    layers = [op for op in unit.body.block.ops if isinstance(op, t.ComputeOp)]
    return MAX_LOOPS - outside - max((loops_of(op, cores) for op in layers), default=0)


def loops_of(op: t.ComputeOp, cores: int) -> int:
    """Loops over the pieces of a layer."""
    layer, box = op.layer, op.region.data
    extent, bound = box.extent, box.bound
    if layer.cuts_operand:
        extent = bound = t.tile_of(op.tiles[0]).extents
    return len(build(op.map.data, box.start, extent, bound, layer, cores, 0).loops)


def sweep_of(nest: TileNest) -> Sweep:
    row, column = (
        Affine(nest.start[d], tuple(step[d] for step, _ in nest.loops), nest.apart[d]) for d in (0, 1)
    )
    return Sweep(tuple(count for _, count in nest.loops), row, column)
