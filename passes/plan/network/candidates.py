# Tests: test/passes/plan/network/test_optimal.py
"""All ways to run a group: its tile shapes, how many of its weights are streamed, which maps are or stay in SRAM."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import and_

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target
from frustum.passes.plan.core_weights import kept_room, waiting
from frustum.passes.plan.cost import chunk_bytes
from frustum.passes.plan.makespan import UnitWork, port_cycles, work_of_parts
from frustum.passes.plan.model import MOST_KEPT
from frustum.passes.plan.network.groups import Boundary, Group, GroupsBefore, by_channels
from frustum.passes.plan.network.kept import (
    NOTHING,
    WHOLE,
    HeldShare,
    KeptMap,
    Resident,
    forms_behind,
    has_reader,
    is_made_so,
    is_read_so,
    is_read_whole,
    moved,
    send_cycles,
    shares_of,
)
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.tile_shapes import BY_COLUMNS, BY_ROWS, Ints, Mask
from frustum.passes.plan.unit import UnitPlan

HUGE = 1 << 62


@dataclass(frozen=True)
class UnitChoice:
    """A unit of a solution: layers [first, stop), its tile shape (None: as `plan_unit` has it), how many of its
    largest weights are streamed, which maps it finds in SRAM and which it leaves there."""

    first: int
    stop: int
    bytes: int
    cycles: int
    free_bytes: int
    """Of SRAM, for this unit: without what passes by and what it reads and leaves there."""
    shape: int | None = None
    streamed: int = 0
    resident: Resident = NOTHING
    kept: Resident = NOTHING
    passes: int = 1
    by_channels: bool = False
    energy_pj: float = 0.0
    """Of the cores, and of what passes between them and SRAM."""
    plan: UnitPlan | None = None
    """How it is cut, by exact numbers; None: by `frustum-tile-partition`."""

    @property
    def exact_bytes(self) -> int:
        return self.bytes if self.plan is None else self.plan.dram_bytes

    def leaving(self, order: LayerOrder) -> list[SSAValue]:
        """Results that are read behind the unit; at least the last one."""
        maps = order.maps[self.first : self.stop]
        found = [m.number for m in maps if m.last_use >= self.stop or m.is_output]
        return [order.nodes[k].op.results[0] for k in found or [self.stop - 1]]

    def moved(self, by: int) -> UnitChoice:
        """The same, so many layers further on."""
        resident, kept = moved(self.resident, by), moved(self.kept, by)
        return replace(self, first=self.first + by, stop=self.stop + by, resident=resident, kept=kept)

    def work(self, target: Target) -> UnitWork:
        """What it takes of the cores and of the DRAM port."""
        parts = None if self.plan is None else self.plan.cost.parts
        if parts is None:
            return UnitWork(0, 0, 0, port_cycles(self.bytes, target), 0)
        return work_of_parts(parts, target)

    @property
    def exact_cycles(self) -> int:
        return self.cycles if self.plan is None else int(self.plan.cycles)


@dataclass(frozen=True)
class Setting:
    """What the search over an order of layers may use, and what is to be least."""

    order: LayerOrder
    target: Target
    capacity: int
    """Bytes of each cluster's SRAM."""
    borders: str = "auto"
    keep: bool = True
    """Maps may stay in SRAM between units."""
    fastest: bool = False
    """Cycles before bytes."""
    byte_pj: float | None = None
    """Energy of a DRAM byte, where energy is to be least: other energy counts as so many more bytes."""
    once: bool = False
    """No weights are read from DRAM more than once."""
    in_cores: bool = False
    """Streamed weights of one image wait in the cores that have room for a layer's, whatever time that takes."""
    slower: dict[tuple[int, int, bool, bool], float] = field(default_factory=dict)
    """Of layers [first, stop) cut by channels or not, with several images in a tile or not: how many times the cycles
    of this model exact numbers say."""

    def slower_of(self, group: Group | UnitChoice) -> tuple[float, float]:
        """Of a group with one image in a tile, and with several: times the cycles of the model."""
        of_group = group.first, group.stop, group.by_channels
        return self.slower.get((*of_group, False), 1.0), self.slower.get((*of_group, True), 1.0)

    def cost(self, bytes_: float, cycles: float) -> tuple[float, float]:
        """What is to be least: DRAM bytes, then cycles, or the other way round."""
        return (cycles, bytes_) if self.fastest else (bytes_, cycles)

    @property
    def port_rate(self) -> int:
        return self.target.chip.dram.port_bytes_per_cycle

    @property
    def chunk_bytes(self) -> int:
        return chunk_bytes(self.capacity)

    def groups_before(self, stop: int) -> GroupsBefore:
        return GroupsBefore(self.order, self.target, stop, self.borders)

    def by_channels(self, stop: int) -> Group | None:
        return by_channels(self.order, self.target, stop, self.borders)

    @cached_property
    def shares(self) -> dict[KeptMap, HeldShare]:
        return shares_of(self.order, self.target.chip.clusters)

    @cached_property
    def sizes(self) -> dict[Resident, int]:
        """`size` of what it was asked for."""
        return {}

    def size(self, maps: Resident) -> int:
        """Bytes of what stays, in one cluster."""
        if maps not in self.sizes:
            self.sizes[maps] = sum(self.shares[kept].bytes for kept in maps)
        return self.sizes[maps]

    def send_cycles(self, kept: KeptMap) -> int:
        """Cycles in which a cluster sends others what they hold of a map that stays, and do not make."""
        return send_cycles(self.order, kept, self.shares[kept], self.target)


class Candidates:
    """All ways to run a group: tile shapes, and which of its maps are or stay in SRAM."""

    def __init__(self, group: Group, setting: Setting):
        self.group = group
        self.setting = setting
        shapes = group.shapes
        largest_first = np.array(group.weights[::-1], np.int64)
        self.held_weights: int = int(largest_first.sum())
        self.total_weights: int = self.held_weights * group.shares
        self.least: int = group.constant_bytes + group.vector_bytes + self.total_weights
        images = setting.order.layer(group.stop - 1).out_dims[0]
        self.kept: int = kept_room(setting.target) * setting.target.cluster.cores if images > 1 else 0
        """Bytes of streamed weights of several images that a cluster's cores keep through all passes."""
        self.streamed: Ints = np.concatenate([[0], np.cumsum(largest_first)])
        may_wait = setting.in_cores and images == 1 and not group.by_channels
        waits = np.array(waiting(group.weights[::-1], setting.target) if may_wait else [], np.bool_)
        self.again: Ints = np.concatenate([[0], np.cumsum(largest_first * ~waits)]) if waits.any() else self.streamed
        """Bytes that every pass but the first reads again, by how many of the largest weights are streamed."""
        chunk = 2 * min(int(largest_first[0]), setting.chunk_bytes) if group.weights else 0
        self.gain: Ints = np.maximum.accumulate(self.streamed - np.where(self.streamed > 0, chunk, 0))
        fixed = group.inside + group.vector_bytes + self.held_weights
        may_fit = group.valid & (fixed - self.gain[-1] <= setting.capacity)
        if shapes.is_raster.any() and has_whole_rows(group, fixed, setting.capacity):
            may_fit &= ~shapes.is_raster
        self.index: Ints = np.flatnonzero(may_fit)
        """Shapes that may fit; arrays below are over these."""
        self.is_roll: Mask = shapes.is_roll[self.index]
        self.in_turn: Mask = (shapes.depth == 1)[self.index]
        every = fixed, group.late, group.behind, group.work, group.spent
        self.fixed: Ints
        self.late: Ints
        self.behind: Ints
        self.work: Ints
        self.spent: Ints
        self.fixed, self.late, self.behind, self.work, self.spent = (each[self.index] for each in every)
        self.images: Ints
        self.rows: Ints
        self.images, self.rows = (count[self.index] for count in shapes.counts[:2])
        self.columns: Ints = group.across[self.index]
        self.steps: Ints = self.images * self.rows * self.columns
        self.every: int = (1 << len(self.index)) - 1
        self.plain: int = packed(~shapes.is_raster[self.index])
        """A bit for each shape in which maps may be in SRAM before or behind the group."""
        self.within_share: dict[tuple[KeptMap, bool], int] = {}
        self.inputs: dict[int, Boundary]
        self.outputs: dict[int, Boundary]
        self.inputs, self.outputs = ({b.map: b for b in each} for each in (group.inputs, group.outputs))

    @cached_property
    def stays(self) -> list[Resident]:
        """The sets of maps that may stay behind the group."""
        setting, group = self.setting, self.group
        if not self.every:
            return []
        may_stay = [b.map for b in group.outputs if self.can_stay(b)][-MOST_KEPT:] if setting.keep else []
        order, shapes, clusters = setting.order, group.shapes, setting.target.chip.clusters
        few = [some for r in range(1, len(may_stay) + 1) for some in itertools.combinations(may_stay, r)]
        found = [NOTHING]
        for form in forms_behind(shapes, clusters) if few else ():
            each = {m: KeptMap(m, form) for m in may_stay}
            fits = {
                m: self.allowed([kept], are_made=True)
                for m, kept in each.items()
                if has_reader(order, kept, group.stop)
            }
            found += [
                frozenset(each[m] for m in some)
                for some in few
                if reduce(and_, (fits.get(m, 0) for m in some), self.every)
            ]
        return found + [some for some in self.mixed(few) if self.allowed(some, are_made=True)]

    def mixed(self, few: Sequence[tuple[int, ...]]) -> Iterator[Resident]:
        """Of these sets of maps those of which some readers want all (keys and values, a product's second factor) and
        others their share: each stays as it is read."""
        order, shapes, clusters = self.setting.order, self.group.shapes, self.setting.target.chip.clusters
        forms = set(forms_behind(shapes, clusters)) & {BY_ROWS, BY_COLUMNS} if clusters > 1 else ()
        for form, some in itertools.product(sorted(forms), few):
            whole = [is_read_whole(order, m, form, self.group.stop) for m in some]
            if len(set(whole)) > 1:
                made = zip(some, whole, strict=True)
                yield frozenset(KeptMap(m, WHOLE if is_whole else form) for m, is_whole in made)

    def can_stay(self, output: Boundary) -> bool:
        """Somebody behind the group reads it as it was made."""
        order = self.setting.order
        return output.can_stay and any(
            r.joins for r in order.reads_of(output.map, self.group.stop, len(order.nodes))
        )

    def allowed(self, stay: Collection[KeptMap], *, are_made: bool) -> int:
        """In which shapes the clusters make, or need, no more of these maps than they hold: a bit for each shape, the
        first one the highest."""
        fits, boundaries = self.plain if stay else self.every, self.outputs if are_made else self.inputs
        for kept in stay if self.setting.target.chip.clusters > 1 else ():
            if kept.map in boundaries:
                fits &= self.within(boundaries[kept.map], kept, are_made=are_made)
        return fits

    def masks(self, sets: Sequence[Resident], *, are_made: bool) -> Mask:
        """The same of several sets, a line for each."""
        count = len(self.index)
        size = ceil_div(count, 8)
        bits = (self.allowed(stay, are_made=are_made) << (8 * size - count) for stay in sets)
        lines = np.frombuffer(b"".join(each.to_bytes(size, "big") for each in bits), np.uint8)
        return np.unpackbits(lines.reshape(len(sets), size), axis=1, count=count).view(np.bool_)

    def within(self, b: Boundary, kept: KeptMap, *, are_made: bool) -> int:
        """Where a cluster makes, or needs, no more of a map than it holds of it."""
        key = kept, are_made
        if key not in self.within_share:
            setting, shapes = self.setting, self.group.shapes
            held, clusters = setting.shares.get(kept), setting.target.chip.clusters
            if are_made:
                fits = is_made_so(b, kept, held, shapes)
            else:
                size = setting.order.layer(kept.map).out_dims[kept.dimension or 0]
                fits = is_read_so(b, kept, held, shapes, size, clusters)
            self.within_share[key] = packed(fits[self.index])
        return self.within_share[key]


def has_whole_rows(group: Group, fixed: Ints, capacity: int) -> bool:
    """Whether rows of all maps fit whole, with all weights: then to keep columns too saves nothing."""
    shapes, buffers = group.shapes, (b.buffer for b in (*group.inputs, *group.outputs))
    is_whole = shapes.is_roll & ~shapes.is_raster & (shapes.counts[2] == 1)
    return bool((group.valid & is_whole & (sum(buffers, fixed) <= capacity)).any())


def packed(fits: Mask) -> int:
    """A bit for each shape, the first one the highest."""
    return int.from_bytes(np.packbits(fits).tobytes(), "big") >> (-len(fits) % 8)


def values_of(maps: Resident, order: LayerOrder) -> set[SSAValue]:
    """What the layers make of which these are the maps."""
    return {order.nodes[m.map].op.results[0] for m in maps}
