# Tests: test/passes/tile/test_choose_runs.py
"""What a run of layers in a core takes: which pieces its last layer has, and their cycles.

The pieces of the last layer are looked at as those of a layer alone are (`pieces.py`); from each the pieces of the maps
between, of the maps that are loaded, and of the weights follow.  All of these are in NRAM and WRAM together, in as many
copies as the lowering makes.  Both units of a core work at a time where pieces follow each other.
Source: docs/techniques/tfu.md, "Running a unit"; the cycles are those of `piece_cycles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import Extents, Int, aligned, ceil_div
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target
from frustum.dialects.tile import ConvLayer, Residency, SubMap, Whole
from frustum.passes.plan.layer_work import (
    LayerWork,
    channels_beside,
    group_outputs,
    work_of,
)
from frustum.passes.plan.model import LATE, MOST_PLANS, QUEUED
from frustum.passes.plan.network.tile_shapes import Mask
from frustum.passes.plan.piece_cycles import (
    Ints,
    Loops,
    Moves,
    Nest,
    bus_cycles,
    clipped,
    copy_cycles,
    filling_heights,
    load_cycles,
    moves,
    nest_cycles,
    predicted_cycles,
    seen_by_pieces,
)
from frustum.passes.plan.piece_extents import grid, halves, needs, nested, piece_extents, product
from frustum.passes.plan.run_layers import CHANNELS, Made, Member, Side, UnitsInTurn


@dataclass(frozen=True)
class RunPlan:
    """A run by the number of its last layer: the sub-maps of its layers, also by number, the concatenations that are
    only places in it, and the modelled cycles of one pass of the unit's tiles."""

    last: int
    maps: dict[int, SubMap]
    places: tuple[int, ...]
    cycles: float
    core_cycles: float
    """Without what is waited for weights from DRAM."""


def plan_run(
    run: Member,
    extent: Extents,
    target: Target,
    residency: Residency,
    loops: int,
    least_cycles: float,
    owned: int | None = None,
) -> RunPlan | None:
    """The fastest pieces of a run whose last layer makes a region of these extents, in at most `loops` nested loops;
    `residency`: where the last layer's weights wait; `owned`: the dimension of which each core has one part.  None
    where nothing fits, or takes `least_cycles` or more."""
    seen = seen_by_pieces(target, residency, loops)
    found = fastest_run(run, extent, seen, residency, loops, owned)
    return found if found is not None and found.cycles < least_cycles else None


@lru_cache(maxsize=MOST_PLANS)
def fastest_run(
    run: Member, extent: Extents, target: Target, residency: Residency, loops: int, owned: int | None
) -> RunPlan | None:
    """The same, however many cycles it takes."""
    best: tuple[float, float, RunPieces, int] | None = None
    for cores_dim in (1, 2, 3, 0) if owned is None else (owned,):
        pieces = RunPieces.of(run, extent, target, cores_dim, owned)
        pieces = None if pieces is None else pieces.fitting(residency, loops)
        if pieces is None:
            continue
        nest, queued = pieces.moving()
        own = nest_cycles(target, nest) + queued
        cycles = pieces.with_weights(own, residency, is_alone=loops == MAX_LOOPS)
        k = int(np.argmin(cycles))
        if best is None or cycles[k] < best[0]:
            alone = float(predicted_cycles(target, nest.of(k))[0])
            best = float(cycles[k]), alone, pieces, k
    return None if best is None else best[2].plan(best[3], residency, best[0], best[1])


@dataclass(frozen=True)
class Buffer:
    """Extents of a piece in NRAM, as arrays, bytes of an element; whether it moves along the channels of the last
    layer, and how many copies there are if loops move it."""

    extents: list[Ints]
    element_bytes: int
    by_channels: bool
    copies: int = 2

    @cached_property
    def size_bytes(self) -> Ints:
        return aligned(product(self.extents) * self.element_bytes)


@dataclass(frozen=True)
class Loaded:
    """A piece that comes from SRAM, of a map so many columns wide; to all cores at once where `by_bus`; for a layer of
    this stage."""

    buffer: Buffer
    columns: int
    by_bus: bool
    stage: int


class RunPieces:
    """The pieces of a run that are looked at when dimension `cores_dim` is dealt to the cores, one in each element of
    flat arrays, and what they take of the cores."""

    def __init__(self, run: Member, extent: Extents, target: Target, cores_dim: int, extents: list[Ints]):
        self.run = run
        self.extent = extent
        self.target = target
        self.cores_dim = cores_dim
        self.extents = extents
        self.cores: int = target.cluster.cores
        self.dealt: list[int] = [self.cores if d == cores_dim else 1 for d in range(4)]
        tiles = [ceil_div(size, piece) for size, piece in zip(extent, extents, strict=True)]
        self.counts: list[Int] = [ceil_div(count, dealt) for count, dealt in zip(tiles, self.dealt, strict=True)]
        self.order: tuple[int, ...] = (0, 2, 3, 1) if run.layer.is_matrix else (0, 1, 2, 3)
        self.nest: list[Int] = [self.counts[d] for d in self.order]
        self.total: Ints = product(self.counts)
        self.made: dict[int, Made] = {}
        self.places: list[int] = []
        self.copied: dict[int, Buffer] = {}
        self.between: list[Buffer] = []
        self.loaded: list[Loaded] = []
        self.is_whole: Mask = np.ones(len(extents[0]), np.bool_)
        sizes = zip(extent, extents, self.counts, self.dealt, strict=True)
        self.ends: list[list[tuple[Ints, Ints]]] = [clipped(*each) for each in sizes]
        self.take(run, extents, [end[1][0] for end in self.ends], by_channels=True)

    @staticmethod
    def of(
        run: Member, extent: Extents, target: Target, cores_dim: int, owned: int | None = None
    ) -> RunPieces | None:
        """None where cores would idle, or make the same."""
        work = replace(work_of(run.layer, extent), owned=owned)
        idle = extent[cores_dim] == 1 and any(
            size > 1 for d, size in enumerate(extent) if d not in work.whole
        )
        if target.cluster.cores > 1 and (cores_dim in work.whole or idle):
            return None
        found = RunPieces(run, extent, target, cores_dim, grid(*extents_of(run, work, target, cores_dim)))
        makes_same = cores_dim == CHANNELS and target.cluster.cores > 1 and not found.is_all_by_channels
        return None if makes_same else found

    def fitting(self, residency: Residency, loops: int) -> RunPieces | None:
        """Those that fit; None where there are none."""
        fits = self.fit(residency, loops)
        extents = [each[fits] for each in self.extents]
        return RunPieces(self.run, self.extent, self.target, self.cores_dim, extents) if fits.any() else None

    @property
    def is_all_by_channels(self) -> bool:
        """Every layer makes other channels for other channels of the last."""
        return all(made.by_channels for made in self.made.values())

    def take(self, member: Member, extents: list[Ints], last: list[Ints], *, by_channels: bool) -> None:
        """Note what the run makes of a layer, and of those before it."""
        self.made[member.number] = Made(member, extents, last, by_channels)
        kind, outputs = member.layer.kind, group_outputs(member.layer)
        self.is_whole &= extents[CHANNELS] % outputs == 0
        for k, (operand, made) in enumerate(zip(member.layer.maps, member.operands, strict=True)):
            read, read_last = needs(operand.access, extents), needs(operand.access, last)
            if k == 0 and isinstance(kind, ConvLayer) and kind.groups > 1:
                read[CHANNELS] = read_last[CHANNELS] = extents[CHANNELS] // outputs * kind.channels
            moves_on = by_channels and not isinstance(operand.access[CHANNELS], Whole)
            if made is None:
                has_own_weights = member.layer.is_matrix and by_channels and self.dealt[CHANNELS] > 1
                buffer = Buffer(read, operand.element_bytes, moves_on)
                by_bus = has_own_weights and not moves_on
                self.loaded.append(Loaded(buffer, operand.dims[3], by_bus, member.stage))
                continue
            if isinstance(made, Member) and made.layer.kind.is_copied:
                self.moved_as_read(made, Buffer(read, operand.element_bytes, moves_on, 1 + member.stage))
                continue
            parts = made.parts if isinstance(made, Side) else (made,)
            copies = 1 + member.stage - min(part.stage for part in parts)
            self.between.append(Buffer(read, operand.element_bytes, moves_on, copies))
            if isinstance(made, Side):
                self.places.append(made.number)
                is_all = not moves_on or self.dealt[CHANNELS] == 1
                self.is_whole &= (read[CHANNELS] == made.dims[CHANNELS]) & is_all
            for part in parts:
                of_part = np.full_like(read[CHANNELS], part.layer.out_dims[CHANNELS])
                channels = of_part if isinstance(made, Side) else read[CHANNELS]
                own = ([each[0], channels, *each[2:]] for each in (read, read_last))
                self.take(part, *own, by_channels=moves_on)

    def moved_as_read(self, member: Member, buffer: Buffer) -> None:
        """What only moves elements is loaded as its reader needs it, all channels at once, or some of each group."""
        self.copied[member.number] = buffer
        self.loaded.append(Loaded(buffer, member.layer.out_dims[3], False, 1))
        is_all = buffer.extents[CHANNELS] == member.layer.out_dims[CHANNELS]
        is_all &= not buffer.by_channels or self.dealt[CHANNELS] == 1
        self.is_whole &= is_all | (buffer.extents[CHANNELS] % channels_beside(member.layer) == 0)

    def moved(self, buffer: Buffer) -> list[int]:
        """The loops of the nest that move a buffer."""
        return [i for i, d in enumerate(self.order) if d != CHANNELS or buffer.by_channels]

    def bytes_of(self, buffer: Buffer) -> Ints:
        """Of all copies."""
        passes = product(self.nest[i] for i in self.moved(buffer))
        return buffer.size_bytes * np.where(passes > 1, buffer.copies, 1)

    @cached_property
    def result(self) -> Buffer:
        return Buffer(self.extents, self.run.layer.out_bytes, True)

    # ------------------------------------------------------------ what fits

    def fit(self, residency: Residency, loops: int) -> NDArray[np.bool_]:
        """Which fit NRAM, WRAM and the loops that are left; streamed weights are loaded once, in halves of SRAM."""
        core = self.target.core
        nram = sum(map(self.bytes_of, (self.result, *self.between, *(each.buffer for each in self.loaded))))
        for made in self.made.values():
            nram = nram + made.vectors * (2 if made.member.on_vector else 0)
        wram = sum(self.weights(made) * np.where(self.repeats(made), 2, 1) for made in self.made.values())
        fits = (nram <= core.nram.capacity_bytes) & (wram <= core.wram.capacity_bytes)
        fits &= (nested(self.counts) <= loops) & self.is_whole
        if not self.run.layer.is_matrix and not self.is_all_by_channels:
            fits &= self.counts[CHANNELS] == 1  # loops over rows are inside of those over channels
        if residency == "stream":
            half = self.target.cluster.sram.capacity_bytes // 2
            fits &= (self.in_space == 1) & (self.weights(self.made[self.run.number]) * 2 <= half)
        return fits

    @cached_property
    def in_space(self) -> Ints:
        """Pieces of a core along images, rows and columns."""
        return self.counts[0] * self.counts[2] * self.counts[3]

    def repeats(self, made: Made) -> NDArray[np.bool_]:
        """Whether a layer's weights change from piece to piece."""
        return (self.counts[CHANNELS] > 1) & made.by_channels

    def weights(self, made: Made) -> Ints:
        """Bytes of WRAM for a layer's weights and vectors."""
        layer, channels = made.layer, made.extents[CHANNELS]
        return made.vectors + aligned(channels * layer.kind.channel_weights * layer.weight_bytes)

    # ------------------------------------------------------------ cycles

    def moving(self) -> tuple[Nest, Ints]:
        """Computing and copies of all pieces, all weights in SRAM, where what is computed while first pieces are loaded
        is no part of computing; cycles in which first pieces wait for others, as searches compare runs."""
        target, compute = self.target, self.units.compute
        result = self.copy(self.result, self.run.layer.out_dims[3])
        loops = Loops.of(self.nest)
        moved = [(moves(loops, range(4), is_stored=True), result)]
        by_bus: list[tuple[Moves, Ints]] = []
        queued = hidden = most = np.zeros_like(self.total)
        latency = target.cluster.sram.latency_cycles + target.core.nram.latency_cycles
        for each in self.loaded:
            loads = moves(loops, self.moved(each.buffer))
            cycles = self.copy(each.buffer, each.columns, by_bus=each.by_bus)
            (by_bus if each.by_bus else moved).append((loads, cycles))
            if each.by_bus:
                continue
            if each.stage <= 1:  # the first waits for the port behind second ones of other cores
                queued = queued + QUEUED * loads.restarts * (loads.times > loads.restarts) * cycles
            else:  # a first piece comes while layers before its reader are computed
                hidden = hidden + loads.restarts * (cycles + latency)
                most = np.maximum(most, loads.restarts * self.units.before(each.stage))
        for made in self.made.values():
            size = self.weights(made)
            fills = moves(loops, [self.order.index(CHANNELS)] if made.by_channels else [])
            if made.by_channels and self.dealt[CHANNELS] > 1:
                moved.append((fills, copy_cycles(target, size, size, self.cores)))
            else:
                by_bus.append((fills, bus_cycles(target, size, size)))
        compute = compute - np.minimum(np.minimum(hidden, most), compute)
        return Nest(compute, self.total, moved, by_bus), queued

    @cached_property
    def units(self) -> UnitsInTurn:
        return UnitsInTurn(self.target, self.made, self.counts, self.ends)

    def with_weights(self, cycles: Ints, residency: Residency, *, is_alone: bool) -> Ints:
        """The cycles, and what of the weights is waited for."""
        if not (is_alone or residency == "stream"):
            return cycles
        for made in self.made.values():
            whole = np.asarray(
                made.layer.out_dims[1] * made.layer.kind.channel_weights * made.layer.weight_bytes
            )
            from_dram = load_cycles(self.target, whole, whole)
            is_last = made is self.made[self.run.number]
            comes_once = is_alone & (self.in_space == 1) & self.repeats(made)
            streamed = is_last & ((residency == "stream") | comes_once)
            late = is_alone * (from_dram * LATE).astype(np.int64)
            cycles = np.where(streamed, np.maximum(cycles, from_dram), cycles + late)
        return cycles

    def copy(self, buffer: Buffer, columns: int, *, by_bus: bool = False) -> Ints:
        """Cycles of one copy of a piece of a map so many columns wide."""
        _, _, rows, width = buffer.extents
        run = np.where(width >= columns, rows * width, width) * buffer.element_bytes
        if by_bus:
            return bus_cycles(self.target, buffer.size_bytes, run)
        return copy_cycles(self.target, buffer.size_bytes, run, self.cores)

    def plan(self, k: int, residency: Residency, cycles: float, core_cycles: float) -> RunPlan:
        """What is to be written of the candidate number k."""
        maps = {
            number: SubMap(tuple(int(size[k]) for size in own.extents), self.cores_dim)
            for number, own in self.copied.items()
        }
        for number, made in self.made.items():
            extent = tuple(int(size[k]) for size in made.extents)
            channels = made.layer.kind.channels if isinstance(made.layer.kind, ConvLayer) else 0
            where = residency if number == self.run.number else "unit"
            is_on_vector = made.member.on_vector
            beside = int(self.units.beside[number][k]) if made.member.is_shared else 0
            own = SubMap(extent, self.cores_dim, channels, "space", where, on_vector=is_on_vector, beside=beside)
            maps[number] = own
        return RunPlan(self.run.number, maps, tuple(self.places), cycles, core_cycles)


def extents_of(run: Member, work: LayerWork, target: Target, cores_dim: int) -> list[list[int]]:
    """Extents of the last layer's pieces to be looked at in each dimension: halvings, and along rows and columns
    powers of two, and of rows those with which the pieces of layers before it fill the lines of the matrix unit too."""
    if work.is_matrix:
        found = piece_extents(work, target, cores_dim)
    else:
        cores = target.cluster.cores
        shares = (ceil_div(size, cores) if d == cores_dim else size for d, size in enumerate(work.extent))
        found = [
            [work.extent[d]] if d in work.whole else [1] if d == 0 else halves(share, work.align[d])
            for d, share in enumerate(shares)
        ]
    for d in (2, 3):
        if d == work.owned:
            found[d] = found[d][:1]
        elif d not in work.whole and work.align[d] == 1:
            powers = (1 << k for k in range(max(found[d]).bit_length()))
            found[d] = sorted({*found[d], *(size for size in powers if size < max(found[d]))}, reverse=True)
    if CHANNELS not in work.whole:
        shuffles = (channels_beside(m.layer) for m in run.members if m.layer.kind.is_copied)
        some = {ceil_div(size, each) * each for each in shuffles for size in found[CHANNELS]}
        fitting = {size for size in some if size < work.extent[CHANNELS] and size % group_outputs(run.layer) == 0}
        found[CHANNELS] = sorted({*found[CHANNELS], *fitting}, reverse=True)
    if 2 not in (*work.whole, work.owned) and work.align[2] == 1:
        heights = filling_rows(run, target, max(found[3]))
        found[2] = sorted({*found[2], *(h for h in heights if h < max(found[2]))}, reverse=True)
    return found


def filling_rows(run: Member, target: Target, width: int) -> set[int]:
    """Rows of the last layer's pieces of this width for which those of products before it fill the lines."""
    found: set[int] = set()
    for member in run.members:
        rows, columns = (max(1, member.layer.out_dims[d] // run.layer.out_dims[d]) for d in (2, 3))
        if member is not run and member.is_matrix:
            found |= {h // rows for h in filling_heights(width * columns, target.core.matrix.lines)} - {0}
    return found
