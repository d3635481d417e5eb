"""Let consecutive layers of a unit follow each other in the cores, where that is cheaper."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.extents import aligned
from frustum.dialects.graph import NetworkOp, networks_of
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.module import IN_CORE, RESERVED, number_of
from frustum.dialects.target import Target
from frustum.dialects.tile import TileType
from frustum.dialects.unit import Partition, UnitOp, YieldOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import map_of, unit_layers
from frustum.passes.analysis.unit_layers import UnitLayers, Unprojectable
from frustum.passes.plan.cost import CutUnit
from frustum.passes.plan.model import JOIN_GAIN
from frustum.passes.plan.unit import UnitPlan, maps_of
from frustum.passes.plan.unit_ops import annotate
from frustum.passes.plan.unit_runs import RUNS, Runs, UnitRuns, Wanted, choose_runs, planned
from frustum.passes.tile.kept_maps import KeptMaps, concat_of, cut_of


@dataclass(frozen=True)
class ChooseRuns(ModulePass):
    """Mark the layers whose maps stay in the core (`frustum.in_core`), with the pieces of every run.

    Before: units with partitions, layers with maps.  After: some of the maps between layers are never in SRAM; the
    partition of a unit may have changed (rows of a step, on several clusters strips); two units through which a run
    goes are one.
    `runs`: `auto`, those that the model finds cheaper; `longest`, as many layers as fit; `none`.  `overlap`: borders of
    pieces may be made again.  `sram`: the share of each cluster's SRAM that a unit may use.
    """

    name = "frustum-tile-choose-runs"
    runs: Runs = "auto"
    overlap: bool = True
    sram: float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.runs not in RUNS:
            raise PassFailedException(f"runs is one of {', '.join(RUNS)}, found {self.runs}")
        target, wanted = target_of(op), Wanted(self.runs, self.overlap)
        if self.runs == "none":
            return
        usable = int(target.cluster.sram.capacity_bytes * self.sram)
        for network in networks_of(op):
            units = [unit for unit in network.body.block.ops if isinstance(unit, UnitOp)]
            Chosen(units, target, wanted, usable).write()
            number_again(network)


def number_again(network: NetworkOp) -> None:
    """Units that are numbered, and of which some became one, have no gaps between their numbers."""
    units = [unit for unit in network.body.block.ops if isinstance(unit, UnitOp)]
    names = [NUMBERED.fullmatch(unit.unit_name.data) for unit in units]
    first = names[0] if names else None
    if first is not None and all(names):
        for number, unit in enumerate(units, int(first[1])):
            unit.properties["unit_name"] = StringAttr(f"u{number}")


NUMBERED = re.compile(r"u(\d+)")


class Chosen:
    """The units of a network with their runs; two that follow each other are one where a run goes through both.

    `held`: SRAM that maps which stay between units take while each runs; `tiles`: of each of these maps; `wider`: by
    how much some are larger since units that read them are one, which may read rows of what was read by channels.
    """

    def __init__(self, units: Sequence[UnitOp], target: Target, wanted: Wanted, usable_bytes: int):
        self.target = target
        self.wanted = wanted
        self.usable_bytes = usable_bytes
        self.tiles: dict[SSAValue, int] = kept_tiles(units, target)
        self.wider: dict[SSAValue, int] = {}
        sizes, held = kept_bytes(units, target, self.tiles)
        self.found: list[tuple[UnitOp, int, UnitRuns | None]] = []
        for unit, size in zip(units, held, strict=True):
            self.add(unit, size + number_of(unit, RESERVED, 0), sizes)

    def add(self, unit: UnitOp, held: int, sizes: dict[UnitOp, int]) -> None:
        """Take the next unit, with the one before it where a run goes through both."""
        held += sum(size for value, size in self.wider.items() if is_read_from(value, unit))
        own = self.planned(unit, held)
        if self.found and own is not None:
            before, held_before, plan = self.found[-1]
            if plan is not None and follows(before, unit):
                merged, together = joined(before, unit), held_before + sizes.get(unit, 0) - sizes.get(before, 0)
                held_by_both = max(held, together)
                both = self.planned(merged, held_by_both)
                if (
                    both is not None
                    and self.fits(both, held_by_both)
                    and is_better(both, plan, own, unit_layers(before))
                    and (wider := self.wider_for(merged, both, held_by_both)) is not None
                ):
                    self.found.pop()
                    self.widen(wider)
                    put_in_place(merged, before, unit)
                    sizes[merged] = sizes.get(unit, 0)
                    pairs = zip(unit.results, merged.results, strict=True)
                    self.tiles |= {new: self.tiles[old] for old, new in pairs if old in self.tiles}
                    unit, held, own = merged, held_by_both + sum(wider.values()), both
                else:
                    merged.erase()
        self.found.append((unit, held, own))

    def wider_for(self, merged: UnitOp, both: UnitRuns, held: int) -> dict[OpResult, int] | None:
        """By how much each map in SRAM is larger where two units are one, which may read rows of what the first of them
        read by channels; None where there is no room for that beside some unit while which it stays."""
        found: dict[OpResult, int] = {}
        for value in dict.fromkeys(merged.operands):
            maker = value.owner
            if isinstance(value, OpResult) and value in self.tiles and isinstance(maker, UnitOp):
                more = tile_bytes(KeptMaps(self.target), maker, self.target)[value.index] - self.tiles[value]
                if more > 0:
                    found[value] = more
        beside = (
            own is None or self.fits(own, size + sum(found[value] for value in found if self.is_there(value, k)))
            for k, (_, size, own) in enumerate(self.found[:-1] if found else ())
        )
        return found if all(beside) and (not found or self.fits(both, held + sum(found.values()))) else None

    def is_there(self, value: OpResult, k: int) -> bool:
        """Whether a map stays while unit k of those that were found runs: it, or one before it, makes it."""
        return any(unit is value.owner for unit, _, _ in self.found[: k + 1])

    def widen(self, wider: Mapping[OpResult, int]) -> None:
        """Count these maps as so much larger."""
        for value, more in wider.items():
            self.tiles[value] += more
            self.wider[value] = self.wider.get(value, 0) + more
            self.found = [
                (unit, held + more * self.is_there(value, k), own) for k, (unit, held, own) in enumerate(self.found)
            ]

    def fits(self, own: UnitRuns, held: int) -> bool:
        """Whether a unit fits beside so many bytes of maps that stay."""
        return held + own.cost.sram.total_bytes <= self.usable_bytes

    def planned(self, unit: UnitOp, held: int) -> UnitRuns | None:
        """A unit with the best runs, or without if it has none; None where it is not to have any."""
        partition = None if unit.partition is None else unit.partition.data
        if partition is None or not may_have_runs(partition) or is_move(unit.body.block.ops):
            return None
        layers = unit_layers(unit)
        maps = [map_of(op) for op in layers.ops]
        works = zip(maps, layers.layers, strict=True)
        if any(submap is None and not layer.kind.is_place for submap, layer in works):
            return None
        try:
            cut = CutUnit.of(layers, partition, self.target, layers.kept)
        except Unprojectable:
            return None
        found = choose_runs(cut, maps, self.wanted, self.usable_bytes - held)
        plans = planned(cut, maps) if found is None else None
        return found or (None if plans is None else UnitRuns(cut, tuple(plans), cut.cost(plans)))

    def write(self) -> None:
        """Into the units and layers."""
        for unit, _, found in self.found:
            if found is None or not found.cut.in_core:
                continue
            ops = found.cut.unit.ops
            plan = UnitPlan(found.cut.partition, maps_of(found.plans), found.cost)
            annotate(unit, ops, plan, is_small=plan.partition.tile == found.cut.unit.out.out_dims)
            for j in found.cut.in_core:
                ops[j].attributes[IN_CORE] = UnitAttr()


def is_better(both: UnitRuns, first: UnitRuns, second: UnitRuns, before: UnitLayers) -> bool:
    """Whether two units are better one: the map between them is in no SRAM, and the cores have less to do."""
    apart = sum(own.cut.compute_cycles(own.plans) for own in (first, second))
    moved = first.cost.dram_bytes + second.cost.dram_bytes
    is_through = len(before.layers) - 1 in both.cut.in_core
    return is_through and both.cut.compute_cycles(both.plans) < JOIN_GAIN * apart and both.cost.dram_bytes <= moved


def follows(before: UnitOp, unit: UnitOp) -> bool:
    """Whether a unit alone reads what the one directly before it makes last and leaves in SRAM alone."""
    if before.next_op is not unit or len(before.results) != 1 or before.kept != {0} or concat_of(unit) is not None:
        return False
    last = unit_layers(before)
    is_last = last.stored == (len(last.layers) - 1,)
    return is_last and concat_of(before) is None and before.results[0].has_one_use() and unit in uses(before)


def uses(unit: UnitOp) -> set[Operation]:
    return {use.operation for use in unit.results[0].uses}


def joined(first: UnitOp, second: UnitOp) -> UnitOp:
    """The layers of two units as one, which stands nowhere yet."""
    between = first.results[0]
    inputs = list(dict.fromkeys([*first.operands, *(o for o in second.operands if o is not between)]))
    merged = UnitOp(first.unit_name.data, inputs, list(second.result_types))
    merged.properties |= {name: second.properties[name] for name in UnitOp.OPTIONAL if name in second.properties}
    merged.attributes |= second.attributes
    merged.location = first.location
    inside, values = dict(zip(inputs, merged.body.block.args, strict=True)), dict[SSAValue, SSAValue]()
    for unit in (first, second):
        for argument, operand in zip(unit.body.block.args, unit.operands, strict=True):
            values[argument] = inside[operand] if operand in inside else values[end_of(first).operands[0]]
        for op in unit.body.block.ops:
            if op is not end_of(unit):
                merged.body.block.add_op(op.clone(values))
    merged.body.block.add_op(YieldOp([values[value] for value in end_of(second).operands]))
    return merged


def end_of(unit: UnitOp) -> Operation:
    end = unit.body.block.last_op
    assert end is not None
    return end


def put_in_place(merged: UnitOp, first: UnitOp, second: UnitOp) -> None:
    """One unit instead of two."""
    block = second.parent
    assert block is not None
    block.insert_op_before(merged, second)
    for old, new in zip(second.results, merged.results, strict=True):
        old.replace_all_uses_with(new)
    for unit in (second, first):
        unit.detach()
        unit.erase()


def kept_tiles(units: Sequence[UnitOp], target: Target) -> dict[SSAValue, int]:
    """SRAM of one cluster for each map that a unit leaves there."""
    found, kept = dict[SSAValue, int](), KeptMaps(target)
    for unit in units:
        if unit.kept and concat_of(unit) is None:
            found |= {unit.results[k]: size for k, size in tile_bytes(kept, unit, target).items()}
    return found


def tile_bytes(kept: KeptMaps, unit: UnitOp, target: Target) -> dict[int, int]:
    """The same of one unit, by the number of the result."""
    types = kept.results_of(unit, cut_of(unit, target)).types
    return {
        number: aligned(math.prod(kind.data.extents) * ELEMENT_BYTES[kind.data.element])
        for number, (_, kind) in enumerate(zip(unit.results, types, strict=False))
        if isinstance(kind, TileType)
    }


def kept_bytes(
    units: Sequence[UnitOp], target: Target, tiles: Mapping[SSAValue, int] | None = None
) -> tuple[dict[UnitOp, int], list[int]]:
    """SRAM of one cluster for the maps that each unit leaves there, and for those that are there while it runs;
    `tiles`: of each map, where that is known."""
    number, found = {unit: i for i, unit in enumerate(units)}, [0] * len(units)
    sizes: dict[UnitOp, int] = {}
    for value, size in (kept_tiles(units, target) if tiles is None else tiles).items():
        maker = value.owner
        assert isinstance(maker, UnitOp)
        sizes[maker] = sizes.get(maker, 0) + size
        for j in range(number[maker], last_reader(value, number) + 1):
            found[j] += size
    return sizes, found


def is_read_from(value: SSAValue, unit: UnitOp) -> bool:
    """Whether a unit, or one behind it, reads a map."""
    block = unit.parent
    return block is not None and any(
        not user.is_before_in_block(unit) for use in value.uses if (user := use.operation).parent is block
    )


def last_reader(value: SSAValue, number: Mapping[UnitOp, int]) -> int:
    """The last unit that reads a map that stays, or one of which it is a part."""
    readers = [use.operation for use in value.uses if use.operation in number]
    ends = [last_reader(reader.results[0], number) if concat_of(reader) else number[reader] for reader in readers]
    return max(ends, default=-1)


def may_have_runs(partition: Partition) -> bool:
    """Not in bands, where clusters hand over borders, where columns are kept, or where steps do not go down."""
    is_plain = not partition.bands and partition.owners != "clusters" and partition.way == "down"
    return is_plain and partition.borders != "raster"
