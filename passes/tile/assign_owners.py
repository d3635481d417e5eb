"""Who owns the strips of a unit, and where its steps go: partitions in which owners hand borders over, for an order.

Each owner has one strip of every map from end to end, a cluster or a core of one.  In a step all make the same rows of
a layer (columns, where the steps go along these), then send the ends of them to the owners next to them, then make the
next layer: depth first, in step, and nothing twice.
Source: docs/techniques/frustum.md, "Borders".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.target import Target
from frustum.dialects.target.fit import OrderDoesNotFit
from frustum.dialects.tile import ROLLING_LOOPS, TILE_LOOPS
from frustum.dialects.unit import OWNERS, Owners, Partition, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import ROWS, UnitLayers, Unprojectable, project, unit_layers
from frustum.passes.analysis.strips import handed
from frustum.passes.plan.cost import chunk_bytes
from frustum.passes.plan.cut_bytes import loaded_elements
from frustum.passes.plan.model import PASS_CYCLES
from frustum.passes.plan.partitions import alignment
from frustum.passes.plan.unit import UnitPlan, evaluate
from frustum.passes.tile.choose_runs import kept_bytes
from frustum.passes.tile.orders import Bands, Grid, are_strips, directions_of
from frustum.passes.tile.partition import describe, write

STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 19, 20, 23, 24, 27, 28, 32)
"""Rows (columns) of a step that are looked at; odd and even numbers of steps among them, as some orders go in strips
with one of these alone."""
WIDER = 4
"""A strip may be so many positions wider than an even share, where that makes the strips of all layers cover theirs."""

HELD = 1.06
"""Maps that stay between units take so many times their bytes, with the holes beside them: where buffers of a unit
leave none the allocator finds no room, and all is planned again with a tenth less (the head of VGG on `default`, f16:
steps of 16 rows instead of 28, 167,626 cycles instead of 151,691)."""


@dataclass(frozen=True)
class AssignOwners(ModulePass):
    """Give units whose tiles would make something twice, or cannot go in the order, strips with owners.

    Before: units with partitions.  After: of those of which each owner can go through one strip in the `order`, and
    that would otherwise compute again or go elsewhere, the cheapest such partition with `owners` and `way` (in DRAM
    bytes, then cycles), with maps on the layers; the others as they were (`frustum-tile-split-breadth-first`).
    Where the owners are to be cores, of a unit of one layer too each core makes a part of its own, if it can.
    `owners`: clusters or cores, or either.  `bands`, `direction`: of the order bands.  Without an order steps may go
    along the rows or the columns.  `sram` is the share that a unit may use of the SRAM that maps leave which stay.
    Raises `OrderDoesNotFit` where the owners are to be cores and a unit of several layers has no strips for them.
    Source: docs/techniques/frustum.md, "Borders" and "Orders".
    """

    name = "frustum-tile-assign-owners"
    order: str | None = None
    bands: int = 1
    direction: str = "left-right"
    owners: Owners | None = None
    sram: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        sram_bytes = target.cluster.sram.capacity_bytes
        units = [each for each in op.walk() if isinstance(each, UnitOp)]
        for unit, held in zip(units, kept_bytes(units, target)[1], strict=True):
            if is_move(unit.body.block.ops):
                continue
            layers = unit_layers(unit)
            is_alone = len(layers.layers) == 1
            if unit.partition is None or (is_alone and self.owners != "cores"):
                continue
            if self.is_done(layers, unit.partition.data, target):
                continue
            free_bytes = int(self.sram * (sram_bytes - HELD * held))
            plan = self.cheapest(unit, layers, target, free_bytes)
            if plan is not None:
                write(unit, plan)
            elif self.owners == "cores" and not is_alone:  # layer by layer the owners would be clusters
                raise OrderDoesNotFit(
                    f"a strip for each core of every map from {describe(layers.ops[0])} to {describe(layers.ops[-1])}",
                    f"unit {unit.unit_name.data}",
                    "strips side by side from end to end",
                    self.missing(layers, target, free_bytes),
                )

    def is_done(self, layers: UnitLayers, partition: Partition, target: Target) -> bool:
        """Whether a unit makes nothing twice as it is, in the order, with the owners asked for."""
        if makes_twice(layers, partition, target.chip.clusters):
            return False
        if partition.borders != "exchange":
            return self.owners != "cores"
        return self.owners in (None, partition.owners) and self.goes(layers, partition, target)

    def goes(self, layers: UnitLayers, partition: Partition, target: Target) -> bool:
        """Whether steps of a partition go as the order says: `is_in_order`."""
        return self.order is None or is_in_order(self.order, self.band, layers.out.out_dims, partition, target)

    @property
    def band(self) -> Bands:
        return Bands(self.bands, self.direction)

    def cheapest(self, unit: UnitOp, layers: UnitLayers, target: Target, free_bytes: int) -> UnitPlan | None:
        """The best of the partitions in strips that go in the order and fit; of those alone under which maps that stay
        lie on the clusters as their other units know them, if there are any."""
        alone = [unit.partition.data] if unit.partition is not None and len(layers.layers) == 1 else []
        as_it_is = (replace(own, owners=self.owners) for own in alone if own.borders == "overlap")
        found = [
            own
            for own in (*as_it_is, *self.partitions(layers, target))
            if not makes_twice(layers, own, target.chip.clusters) and can_send(layers, own, target)
        ]
        alike = [own for own in found if lie_alike(unit, layers, own)]
        best = self.cheapest_of(alike, layers, target, free_bytes)
        return self.cheapest_of(found, layers, target, free_bytes) if best is None else best

    def cheapest_of(
        self, partitions: Sequence[Partition], layers: UnitLayers, target: Target, free_bytes: int
    ) -> UnitPlan | None:
        """The best of these that fit."""
        kept, chunk = set(layers.kept), chunk_bytes(target.cluster.sram.capacity_bytes)
        best: UnitPlan | None = None
        for partition in partitions:
            for streamed in range(len(layers.layers) + 1):
                plan = evaluate(layers, partition, streamed, kept, target, free_bytes, chunk)
                if plan is not None:
                    break
            if plan is not None and (best is None or rank(plan, layers) < rank(best, layers)):
                best = plan
        return best

    def missing(self, layers: UnitLayers, target: Target, free_bytes: int) -> str:
        """What a unit has instead of strips that fit."""
        clusters, anywhere = target.chip.clusters, replace(self, order=None)
        found = list(self.partitions(layers, target))
        once = [own for own in found if not makes_twice(layers, own, clusters)]
        if not found and next(anywhere.partitions(layers, target), None) is not None:
            return "tiles through which a core goes in another way in this order"
        if not found:
            return next(anywhere.reasons(layers, target), "one row or column alone")
        if not once:
            return "strips that overlap"
        if not any(can_send(layers, own, target) for own in once):
            return "no cdma (chip.cluster.cdma) for what clusters send each other"
        return f"{free_bytes} B of SRAM for all maps of a step, which is less than the shortest steps need"

    def partitions(self, layers: UnitLayers, target: Target) -> Iterator[Partition]:
        """Strips with steps of several sizes, for each direction and each kind of owner."""
        for start in self.starts(layers, target):
            own = in_strips(layers, start, target.chip.clusters)
            if own is not None and self.goes(layers, own, target):
                yield own

    def starts(self, layers: UnitLayers, target: Target) -> Iterator[Partition]:
        """The same with steps as wide as the map."""
        dims, align = layers.out.out_dims, alignment(layers)
        ways = ("down", "right") if self.order is None else directions_of(self.order, self.band)
        kinds = OWNERS if self.owners is None and target.cluster.cores > 1 else (self.owners or "clusters",)
        for way in ways:
            start = Partition(dims, 0, 2, "exchange", way=way)
            beside, along = start.beside, start.along
            for rows in (r for r in STEPS if r < dims[along] and r % align[along] == 0):
                for owners in kinds:
                    tile = replaced(replaced(dims, along, rows), 0, 1)
                    yield replace(start, tile=tile, clusters=beside, owners=owners)

    def reasons(self, layers: UnitLayers, target: Target) -> Iterator[str]:
        """Why maps have no strips."""
        for start in self.starts(layers, target):
            beside = start.beside
            width = ceil_div(layers.out.out_dims[beside], target.chip.clusters)
            try:
                project(layers, replace(start, tile=replaced(start.tile, beside, width)), target.chip.clusters)
            except Unprojectable as reason:
                yield f"none: {reason}"


def lie_alike(unit: UnitOp, layers: UnitLayers, partition: Partition) -> bool:
    """Whether maps that stay between units lie on the clusters along the dimension that their other units know: else
    each cluster would hold all of them."""
    stay = unit.kept or any(own.resident for own in layers.inputs)
    before = None if unit.partition is None or not stay else unit.partition.data.clusters
    return before not in (2, 3) or partition.clusters == before


def in_strips(layers: UnitLayers, partition: Partition, clusters: int) -> Partition | None:
    """With strips of one width that cover all maps; None where there are none."""
    size, beside = layers.out.out_dims[partition.beside], partition.beside
    share = ceil_div(size, clusters)
    for width in range(share, min(share + WIDER, size) + 1):
        own = replace(partition, tile=replaced(partition.tile, beside, width))
        try:
            project(layers, own, clusters)
        except Unprojectable:
            continue
        return own
    return None


def is_in_order(order: str, band: Bands, dims: Extents, partition: Partition, target: Target) -> bool:
    """Whether the steps of a unit with such an output go as an order says, on the grid of its tiles."""
    cores = target.cluster.cores if partition.owners == "cores" else 1
    width = band.depth if order == "bands" else 1
    grid = grid_of(dims, partition.tile, partition.way, target.chip.clusters, cores, width)
    return partition.way in directions_of(order, band) and are_strips(order, grid, band, partition.way)


def grid_of(dims: Extents, tile: Extents, way: str, clusters: int, cores: int, width: int) -> Grid:
    """The grid of tiles of a map in strips, `width` tiles across each, which a step makes together; `tile`: what a
    cluster makes in a step; `cores`: how many owners a cluster has."""
    rows, columns = (ceil_div(dims[d], tile[d]) for d in (2, 3))
    if way in ("down", "up"):
        return Grid(rows, columns * cores * width, clusters * cores)
    return Grid(rows * cores * width, columns, clusters * cores)


def makes_twice(layers: UnitLayers, partition: Partition, clusters: int) -> bool:
    """Whether tiles of some layer's map overlap, or all clusters make the same of it."""
    projection = project(layers, partition, clusters)
    rolls = partition.borders == "exchange" and partition.along == ROWS
    order = ROLLING_LOOPS if rolls else TILE_LOOPS
    return any(
        (clusters > 1 and not any(start.cluster for start in region.start))
        or loaded_elements(region, layer.out_dims, projection.counts, clusters, order) > math.prod(layer.out_dims)
        for region, layer in zip(projection.outputs, layers.layers, strict=True)
    )


def can_send(layers: UnitLayers, partition: Partition, target: Target) -> bool:
    """Whether owners that are clusters have an engine for what they hand over, if they do."""
    if target.chip.clusters == 1 or target.cluster.cdma is not None:
        return True
    projection = project(layers, partition, target.chip.clusters)
    pairs = zip(projection.outputs, projection.held, strict=False)
    return not any(sum(handed(made, held, partition.beside)) for made, held in pairs)


def rank(plan: UnitPlan, layers: UnitLayers) -> tuple[int, float]:
    """DRAM bytes, then cycles, with what filling and draining takes of each layer of each step, behind which owners
    wait for each other."""
    along = plan.partition.along
    steps = ceil_div(layers.out.out_dims[along], plan.partition.tile[along])
    return plan.dram_bytes, plan.cycles + PASS_CYCLES * steps * len(layers.layers)
