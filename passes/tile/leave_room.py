"""The pass that cuts units smaller where tensors between units may stay in SRAM beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from frustum.dialects import graph as g
from frustum.dialects.choices import AskedBorders
from frustum.dialects.extents import aligned, ceil_div, replaced
from frustum.dialects.module import POLICY, RESERVED, number_of, text_of
from frustum.dialects.target import Target
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of, value_bytes
from frustum.passes.analysis.project import map_of, unit_layers
from frustum.passes.analysis.regions import Region
from frustum.passes.analysis.unit_layers import Input, Unprojectable
from frustum.passes.plan.cost import CutUnit
from frustum.passes.plan.model import KEPT_SRAM_SHARE, LEAST_READS, ROOM_NRAM_SHARE
from frustum.passes.plan.network.given_units import plan_given
from frustum.passes.plan.unit import Budget, UnitPlan, evaluate, plan_unit
from frustum.passes.plan.unit_runs import planned
from frustum.passes.tile.choose_runs import kept_bytes
from frustum.passes.tile.partition import write


@dataclass(frozen=True)
class LeaveRoom(ModulePass):
    """Cut units smaller, where a tensor that units write to DRAM for others could stay in SRAM if they were.

    Before: units, some with partitions.  After: the units over which such a tensor lives fit into what it leaves of
    SRAM, and say so (`frustum.reserved`), where bytes of DRAM fall by a larger factor than cycles grow by, as in what
    `frustum-fuse-layers` takes to save time.  What units leave to parts of tensors already stays free.  Tensors that
    move most often are first, of these such as live over fewest units.  Which tensors stay in the end is for
    `frustum-lower-keep-tensors` to say.  Where all of a tensor finds no room, and each cluster reads a part of it that
    no other reads, room for the parts is looked for; units that read tiles in SRAM are then cut smaller too, along
    dimensions that are not dealt to clusters.  Networks that are not fused by policy optimal are left as they
    are, and so are units that keep tiles in SRAM.
    """

    name = "frustum-tile-leave-room"
    borders: AskedBorders = "auto"
    sram: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if text_of(op, POLICY) != "optimal":
            return
        for network in g.networks_of(op):
            units = [unit for unit in network.body.block.ops if isinstance(unit, UnitOp)]
            _Rooms(units, target_of(op), self.borders, self.sram).run()


@dataclass(frozen=True)
class TensorLife:
    """A tensor between units: the first and the last unit over which it lives, its bytes, how often it moves, and the
    units that read it; `is_written`: by a unit."""

    first: int
    last: int
    size: int
    transfers: int
    value: SSAValue
    readers: Sequence[int]
    is_written: bool


class _Rooms:
    """The units of a network while tensors find room beside them.

    `plans`: how each is cut, None for those that only move data; `new`: those of them that are smaller than they were;
    `reserved`: bytes of SRAM that tensors have beside each.
    """

    def __init__(self, units: Sequence[UnitOp], target: Target, borders: AskedBorders, share: float) -> None:
        self.units, self.target, self.borders = units, target, borders
        self.capacity = int(target.memory("sram").capacity_bytes * share)
        self.room = int(target.memory("sram").capacity_bytes * min(share, KEPT_SRAM_SHARE))
        self.held = kept_bytes(units, target)[1]
        self.reserved = [number_of(unit, RESERVED, 0) for unit in units]
        core = target.core
        nram = replace(core.nram, capacity_bytes=aligned(int(core.nram.capacity_bytes * ROOM_NRAM_SHARE)))
        cluster = replace(target.cluster, core=replace(core, nram=nram))
        self.smaller = replace(target, chip=replace(target.chip, cluster=cluster))
        self.plans: dict[int, UnitPlan] = {}
        self.new: set[int] = set()

    def run(self) -> None:
        found = sorted(self.tensors(), key=lambda each: (-each.transfers, each.last - each.first, each.size))
        if not found:
            return
        self.plans = {i: plan for i, unit in enumerate(self.units) if (plan := self.plan_now(unit)) is not None}
        moved = sum(plan.dram_bytes for plan in self.plans.values()) + sum(map(moved_bytes, self.units))
        cycles = sum(plan.cycles for plan in self.plans.values())
        for tensor in found:
            size = tensor.size
            new = self.beside(tensor, size)
            if new is None and (part := self.part_of(tensor)) is not None:
                size = part
                new = self.beside(tensor, size)
            if new is None:
                continue
            more = sum(plan.dram_bytes - self.plans[i].dram_bytes for i, plan in new.items())
            longer = sum(plan.cycles - self.plans[i].cycles for i, plan in new.items())
            fewer = tensor.size * tensor.transfers - more
            if 0 < fewer < moved and (cycles + longer) * (moved - fewer) <= cycles * moved:
                self.plans |= new
                self.new |= new.keys()
                moved, cycles = moved - fewer, cycles + longer
                for i in range(tensor.first, tensor.last + 1):
                    self.reserved[i] += size
        for i, unit in enumerate(self.units):
            if self.reserved[i]:
                unit.attributes[RESERVED] = IntegerAttr(self.reserved[i], i64)
            if i in self.new:
                write(unit, self.plans[i])

    def beside(self, tensor: TensorLife, size: int) -> dict[int, UnitPlan] | None:
        """New plans of units over which a tensor lives, so that so many bytes of it fit beside all of them; None where
        they do not."""
        new: dict[int, UnitPlan] = {}
        for i in range(tensor.first, tensor.last + 1):
            room = self.room - self.held[i] - self.reserved[i] - size
            if room <= 0:
                return None
            if is_move(self.units[i].body.block.ops):
                continue
            if i not in self.plans:
                return None
            if self.plans[i].cost.sram.total_bytes > room:
                smaller = self.planned(i, room, in_parts=size < tensor.size)
                if smaller is None:
                    return None
                new[i] = smaller
        return new

    def tensors(self) -> Iterator[TensorLife]:
        """What units write for others or read several times."""
        number = {unit: i for i, unit in enumerate(self.units)}
        read: dict[SSAValue, list[int]] = {}
        for i, unit in enumerate(self.units):
            for operand in unit.operands:
                read.setdefault(behind(operand), []).append(i)
        for value, readers in read.items():
            owner = value.owner
            size = value_bytes(value)
            if isinstance(owner, UnitOp):
                if value not in [owner.results[k] for k in owner.kept]:
                    yield TensorLife(number[owner], max(readers), size, 1 + len(readers), value, readers, True)
            elif len(readers) >= LEAST_READS:
                yield TensorLife(min(readers), max(readers), size, len(readers) - 1, value, readers, False)

    def plan_now(self, unit: UnitOp) -> UnitPlan | None:
        """How a unit is cut, or would be; None for one that only moves data, or takes part in what stays as tiles."""
        if is_move(unit.body.block.ops):
            return None
        layers = unit_layers(unit)
        if unit.partition is None:
            return self.plan_of(unit, self.capacity, self.target)
        maps = [map_of(op) for op in layers.ops]
        try:
            cut = CutUnit.of(layers, unit.partition.data, self.target, layers.kept)
            plans = planned(cut, maps)
        except Unprojectable:
            return None
        return None if plans is None else UnitPlan(unit.partition.data, tuple(maps), cut.cost(plans))

    def planned(self, i: int, room: int, *, in_parts: bool) -> UnitPlan | None:
        """A unit cut for so many bytes of SRAM; `in_parts`: each cluster has its part of a tensor beside it."""
        unit = self.units[i]
        if unit.kept:
            return None
        if any(own.resident for own in unit_layers(unit).inputs):
            return self.with_smaller_tiles(i, room) if in_parts else None
        return self.plan_of(unit, room, self.smaller)

    def with_smaller_tiles(self, i: int, room: int) -> UnitPlan | None:
        """The best cut of a unit in so many bytes of SRAM with smaller tiles than it has, each cluster with the same
        part of what it makes, since it reads what lies in SRAM so."""
        unit, own = unit_layers(self.units[i]), self.plans[i].partition
        found = [evaluate(unit, cut, 0, (), self.smaller, room, 0) for cut in smaller_tiles(own)]
        fits = [plan for plan in found if plan is not None]
        return min(fits, key=lambda plan: (plan.dram_bytes, plan.cycles), default=None)

    def part_of(self, tensor: TensorLife) -> int | None:
        """Bytes of a tensor that each cluster reads, where no two read the same and units write it; else None."""
        clusters = self.target.chip.clusters
        if clusters == 1 or self.target.cluster.cdma is None or not tensor.is_written or tensor.size % clusters:
            return None
        for i in tensor.readers:
            if i not in self.plans:
                return None
            layers = unit_layers(self.units[i])
            try:
                cut = CutUnit.of(layers, self.plans[i].partition, self.target, layers.kept)
            except Unprojectable:
                return None
            for read, region in zip(layers.inputs, cut.projection.inputs, strict=True):
                if behind(self.outside(i, read.value)) is tensor.value and not (
                    is_own_part(read, region, cut.projection.counts, tensor.size // clusters)
                ):
                    return None
        return tensor.size // clusters

    def outside(self, i: int, value: SSAValue) -> SSAValue:
        """What a unit is given, of what it sees inside."""
        unit = self.units[i]
        outer: dict[SSAValue, SSAValue] = dict(zip(unit.body.block.args, unit.operands, strict=True))
        return outer.get(value, value)

    def plan_of(self, unit: UnitOp, room: int, target: Target) -> UnitPlan | None:
        found = plan_given(unit, target, room, self.borders)
        return found or plan_unit(unit_layers(unit), target, Budget(room))


def smaller_tiles(partition: Partition) -> Iterator[Partition]:
    """The same with one copy of each tile, and with tiles that are halved along a dimension that is not dealt to
    clusters, once or several times."""
    if partition.borders != "overlap":
        return
    for depth in range(1, partition.depth + 1):
        if depth < partition.depth:
            yield replace(partition, depth=depth)
        for d, extent in enumerate(partition.tile):
            while d != partition.clusters and extent > 1:
                extent = ceil_div(extent, 2)
                yield replace(partition, depth=depth, tile=replaced(partition.tile, d, extent))


def is_own_part(read: Input, region: Region, counts: Sequence[int], part: int) -> bool:
    """Whether each cluster reads in all passes what lies in so many bytes, one cluster's behind the other's."""
    view, size, last, step = read.view, read.element_bytes, read.view.offset, 0
    if view.block > 1 or read.resident or any(own.base < 0 or min(own.loops, default=0) < 0 for own in region.start):
        return False
    for stride, own, extent in zip(view.strides, region.start, region.extent, strict=True):
        moved = sum(by * (count - 1) for by, count in zip(own.loops, counts, strict=False))
        last += stride * (own.base + moved + extent - 1)
        step += stride * own.cluster
    return step * size == part and last * size < part


def moved_bytes(unit: UnitOp) -> int:
    """What a unit that only moves data reads and writes."""
    if not is_move(unit.body.block.ops):
        return 0
    return 2 * sum(map(value_bytes, unit.results))


def behind(value: SSAValue) -> SSAValue:
    """What a value is another shape of."""
    while isinstance(value.owner, g.ReshapeOp):
        value = value.owner.x
    return value
