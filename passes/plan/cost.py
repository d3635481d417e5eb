"""What a unit with a partition costs: SRAM bytes as the lowering will allocate them, DRAM bytes, and cycles.

Layers of a pass follow each other; every layer is computed once for each pass in which it has something to do.
The search over a whole network (`network/`) has the same as arrays over all shapes of tiles, tested against this.
Source: docs/techniques/frustum.md, "Sizing" (weights, adjacent tiles, kept borders, skip tiles until their last use)
and "Borders" (with exchange nothing is read twice, with overlap the boxes of all tiles are); docs/techniques/tfu.md,
rules 12 to 15 and "Running a unit" (boxes are clipped to the map, and loaded when a loop moves them).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from frustum.dialects.extents import ALIGNMENT_BYTES, aligned, ceil_div
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target
from frustum.dialects.tile import Residency, SubMap
from frustum.dialects.unit import Partition
from frustum.passes.analysis.layer import Layer
from frustum.passes.analysis.project import Projection, Region, UnitLayers, project
from frustum.passes.plan.cut_bytes import bytes_loaded, bytes_of_maps, clipped
from frustum.passes.plan.layer_work import LayerPlan, copy_of, work_of
from frustum.passes.plan.model import (
    CHUNK_SHARE,
    HIDDEN,
    OVERLAPPED,
    PASS_CYCLES,
    SMALLEST_CHUNK_BYTES,
    WAITED,
)
from frustum.passes.plan.pieces import plan_layer

Number = Any  # a number, or a numpy array of them


@dataclass(frozen=True)
class Footprint:
    """Bytes of one cluster's SRAM that a unit holds at its fullest."""

    crossing_bytes: int
    """Maps that are loaded or stored, with their copies."""
    kept_bytes: int
    """Rings of maps inside."""
    inside_bytes: int
    """Maps inside that live from layer to layer: as many as live at a time."""
    weight_bytes: int
    """Weights that stay, and all vectors with one number per channel."""
    stream_bytes: int
    """Two chunks of streamed weights."""

    @property
    def map_bytes(self) -> int:
        return self.crossing_bytes + self.kept_bytes + self.inside_bytes

    @property
    def total_bytes(self) -> int:
        return self.map_bytes + self.weight_bytes + self.stream_bytes


@dataclass(frozen=True)
class CostParts:
    """Cycles of the cores, as if all that they read were there; bytes that the DRAM port is busy with for weights, for
    maps that are loaded and for maps that are stored; passes over the tiles; SRAM bytes of one cluster in use
    meanwhile, and of these what weights take that stay for all passes; cycles of what clusters send each other, and
    in which the cores wait for streamed weights: a layer's come while it computes, and not before."""

    work_cycles: int
    weight_bytes: int
    loaded_bytes: int
    stored_bytes: int
    passes: int
    used_bytes: int
    early_bytes: int
    send_cycles: int = 0
    stream_cycles: int = 0


@dataclass(frozen=True)
class UnitCost:
    """SRAM of one cluster, bytes over the DRAM port, cycles with what of computing and transfers does not overlap."""

    sram: Footprint
    dram_bytes: int
    cycles: float
    parts: CostParts | None = None
    """None where only whole plans are compared."""

    def with_maps(self, stored_bytes: int, send_cycles: int = 0, beside_bytes: int = 0) -> UnitCost:
        """The same with so many bytes of maps that stay and are stored too, so much time to send what stays, and so
        many bytes of SRAM beside the unit's own."""
        moved, cycles, parts = self.dram_bytes + stored_bytes, self.cycles + send_cycles, self.parts
        if parts is not None:
            stored, used = parts.stored_bytes + stored_bytes, parts.used_bytes + beside_bytes
            parts = replace(parts, stored_bytes=stored, send_cycles=send_cycles, used_bytes=used)
        return replace(self, dram_bytes=moved, cycles=cycles, parts=parts)


@dataclass(frozen=True)
class CutUnit:
    """A unit with a partition and the regions of a pass over its tiles; `kept` are the layers whose maps stay in SRAM
    after the unit, `in_core` those, by number, whose maps are in the cores alone."""

    unit: UnitLayers
    partition: Partition
    projection: Projection
    target: Target
    kept: Collection[int] = ()
    in_core: Collection[int] = ()
    in_rounds: bool = False
    """The first input of its only layer comes some channels at a time, again in each pass; what it adds piece by piece
    at the end."""

    @staticmethod
    def of(unit: UnitLayers, partition: Partition, target: Target, kept: Collection[int] = ()) -> CutUnit:
        """Raises `Unprojectable` where the unit cannot be cut so."""
        return CutUnit(unit, partition, project(unit, partition, target.chip.clusters), target, kept)

    @property
    def passes(self) -> int:
        return math.prod(self.projection.counts)

    @property
    def turns(self) -> int:
        """Passes of the innermost loop over tiles; of images, where there are more of these."""
        counts = self.projection.counts
        if self.partition.borders == "exchange":
            return max(counts[self.partition.along], 1)
        return max(counts[0], counts[3] if counts[3] > 1 else counts[2])

    @property
    def port_bytes_per_cycle(self) -> float:
        return self.target.chip.dram.port_bytes_per_cycle

    def worked_region(self, j: int) -> Region:
        """What the pieces of layer j divide: its output, of reductions the input."""
        projection = self.projection
        return projection.operands[j][0] if self.unit.layers[j].kind.cuts_operand else projection.outputs[j]

    def cost(self, plans: Sequence[LayerPlan | None]) -> UnitCost:
        """What the unit costs; `plans` has None for what is no work (a concatenation)."""
        residency = residency_of(plans)
        sram, moved = self.footprint(residency, stream_bytes(plans)), self.traffic(residency)
        parts = self.parts(plans)
        filled = self.filling_cycles(plans)
        if self.unit.out.out_dims[0] == 1:  # bytes decide, and of equal ones the cycles of the cores
            return UnitCost(sram, moved, self.one_image_cycles(plans, moved) + filled, parts)
        cycles = self.in_turn_cycles(plans, moved) + self.waiting_cycles(plans) + filled
        return UnitCost(sram, moved, cycles, parts)

    def parts(self, plans: Sequence[LayerPlan | None]) -> CostParts:
        """What of the cost is what."""
        residency, maps = residency_of(plans), self.traffic()
        sram = self.footprint(residency, stream_bytes(plans))
        stored = sum(stored_bytes(self.unit.layers[j]) for j in self.unit.stored if j not in self.kept)
        return CostParts(
            math.ceil(self.own_cycles(plans) + self.filling_cycles(plans)),
            self.traffic(residency) - maps,
            maps - stored + (short_runs(self) if maps > stored else 0),
            stored,
            self.passes,
            sram.total_bytes,
            0 if self.partition.inside else sram.weight_bytes,
            stream_cycles=math.ceil(stream_cycles(self, plans)),
        )

    # ------------------------------------------------------------ SRAM

    def footprint(
        self, residency: Sequence[Residency | None] = (), streams: int = 0, *, grain: int = ALIGNMENT_BYTES
    ) -> Footprint:
        """What the unit needs; weights count where `residency` says that they stay, in whole `grain`s; maps that stay
        after the unit, like resident inputs, are not counted here."""
        unit, (crossing, rings, inside) = self.unit, self.bytes_of_maps
        pairs = zip(unit.layers, self.projection.outputs, strict=True)
        weights = sum(self.weight_copies * vector_bytes(x, region.extent[1], grain) for x, region in pairs)
        held = zip(self.held_weights(grain), residency, strict=True) if residency else ()
        weights += sum(size for size, where in held if where == "unit")
        return Footprint(crossing, rings, inside, weights, streams)

    @cached_property
    def bytes_of_maps(self) -> tuple[int, int, int]:
        """Of a footprint what maps take (crossing, kept, inside); counted once of equal units that are cut alike."""
        clusters, *own = self.target.chip.clusters, frozenset(self.kept), frozenset(self.in_core), self.in_rounds
        key = "bytes of maps", self.partition, clusters, *own
        found = self.unit.projected.get(key)
        if not isinstance(found, tuple):
            stay = {*self.kept, *self.in_core}
            found = bytes_of_maps(self.unit, self.projection, self.partition.depth, stay, in_rounds=self.in_rounds)
            self.unit.projected[key] = found
        return found

    def held_weights(self, grain: int = 1) -> list[int]:
        """SRAM that the weights of each layer take where they stay."""
        pairs = zip(self.unit.layers, self.projection.outputs, strict=True)
        return [self.weight_copies * aligned(held_bytes(x, region.extent[1]), grain) for x, region in pairs]

    @property
    def weight_copies(self) -> int:
        """Of weights that change from tile to tile the next ones are loaded meanwhile."""
        return 2 if self.projection.counts[1] > 1 else 1

    # ------------------------------------------------------------ DRAM

    def traffic(self, residency: Sequence[Residency | None] = (), *, is_alone: bool = False) -> int:
        """Bytes over the DRAM port: boxes of the inputs that are not resident, weights as often as they are loaded
        (only those that `residency` knows), what is stored.

        Of a unit that `is_alone` every input is loaded and the last map alone is stored: so `plan_unit` compares tiles.
        """
        layers, counts = self.unit.layers, self.projection.counts
        stored = (len(layers) - 1,) if is_alone else self.unit.stored
        total = sum(stored_bytes(layers[j]) for j in stored if j not in self.kept)
        loaded = zip(self.unit.inputs, self.loaded_bytes, strict=True)
        total += sum(size for own, size in loaded if is_alone or not own.resident)
        for layer, where in zip(layers, residency, strict=False):
            if where is not None:
                turns = counts[0] * counts[2] * counts[3]
                times = turns if where == "stream" or self.partition.inside else 1
                if layer.kind.is_batched:
                    times = layer.out_dims[0] * counts[2] * counts[3]
                total += times * held_bytes(layer, layer.out_dims[1])
                total += (turns if self.partition.inside else 1) * vector_bytes(layer, layer.out_dims[1])
        return total

    @cached_property
    def loaded_bytes(self) -> Sequence[int]:
        """Of each input, over all tiles; counted once of equal units that are cut alike."""
        key = "loaded bytes", self.partition, self.target.chip.clusters, self.in_rounds
        found = self.unit.projected.get(key)
        if not isinstance(found, tuple):
            way = self.partition, self.target.chip.clusters
            found = bytes_loaded(self.unit, self.projection, *way, in_rounds=self.in_rounds)
            self.unit.projected[key] = found
        return found

    # ------------------------------------------------------------ cycles

    def in_turn_cycles(self, plans: Sequence[LayerPlan | None], moved: int) -> float:
        """Of a unit of several images, or of tiles that are compared: every pass does all that one can have to do, but
        for rows that roll, of which the first ones are made ahead of their readers."""
        one_pass = sum(plan.cycles for plan in plans if plan is not None)
        work = self.compute_cycles(plans) if self.partition.borders != "overlap" else self.passes * one_pass
        compute = work + self.passes * PASS_CYCLES
        transfer = moved / self.port_bytes_per_cycle
        return max(compute, transfer) + OVERLAPPED * (compute + transfer)

    def least_cycles(self, moved: int) -> float:
        """`in_turn_cycles` is no less, however long the layers take."""
        return self.in_turn_cycles([None] * len(self.unit.layers), moved)

    def waiting_cycles(self, plans: Sequence[LayerPlan | None]) -> float:
        """Cycles in which the cores wait for maps of several images: of the first and last pass of each innermost loop,
        and of one copy what is not loaded behind its last reader, or stored before its maker in the next pass."""
        unit, runs = self.unit, self.turns
        is_one = self.partition.depth == 1 and self.passes > 1
        took = [0.0 if p is None else p.cycles for p in plans]

        def waited(size: int, meanwhile: Sequence[float]) -> float:
            """For a map of so many bytes, with what layers take while its only copy is free."""
            moved = size / self.port_bytes_per_cycle
            return moved / runs + is_one * max(0.0, moved - self.passes * sum(meanwhile))

        total = 0.0
        for k, size in enumerate(self.loaded_bytes):
            if not unit.inputs[k].resident:
                readers = [j for j, sources in enumerate(unit.sources) if any(s.input == k for s in sources)]
                total += waited(size, took[max(readers, default=0) + 1 :])
        for j in unit.stored:
            if j not in self.kept:
                total += waited(stored_bytes(unit.layers[j]), took[:j])
        return total

    def one_image_cycles(self, plans: Sequence[LayerPlan | None], moved: int) -> float:
        """Of a unit of one image, by the passes in which each layer has something to do."""
        rate, passes, padding = self.port_bytes_per_cycle, self.passes, short_runs(self)
        residency = zip(self.unit.layers, residency_of(plans), strict=True)
        held = sum(weight_bytes(layer, layer.out_dims[1]) for layer, where in residency if where == "unit")
        waited, is_in_turn = held / rate if passes > 1 else 0.0, self.partition.depth == 1
        transfer, maps = (moved + padding) / rate, (self.traffic() + padding) / rate
        return float(overlapped(self.compute_cycles(plans), transfer, maps, waited, passes, is_in_turn))

    def compute_cycles(self, plans: Sequence[LayerPlan | None]) -> float:
        """Cycles in which the cluster with the most work computes all passes."""
        own = [(j, plan.cycles) for j, plan in enumerate(plans) if plan is not None]
        own += [(j, self.copied_cycles(j)) for j, layer in enumerate(self.unit.layers) if layer.kind.is_place]
        clusters = range(self.target.chip.clusters)
        return max(sum(cycles * self.times(j, cluster) for j, cycles in own) for cluster in clusters)

    def own_cycles(self, plans: Sequence[LayerPlan | None]) -> float:
        """The same as it is predicted of what is chosen: all weights in SRAM, whole pieces of the cores."""
        own = [(j, plan.own_cycles, plan.map) for j, plan in enumerate(plans) if plan is not None]
        places = (j for j, layer in enumerate(self.unit.layers) if layer.kind.is_place)
        every = [*own, *((j, self.copied_cycles(j), None) for j in places)]
        clusters = range(self.target.chip.clusters)
        return max(sum(cycles * self.times(j, k, submap) for j, cycles, submap in every) for k in clusters)

    def filling_cycles(self, plans: Sequence[LayerPlan | None]) -> float:
        """Cycles before the first pass in which the DRAM port brings weights that stay in the cores."""
        pairs = zip(self.unit.layers, residency_of(plans), strict=True)
        size = sum(held_bytes(layer, layer.out_dims[1]) for layer, where in pairs if where == "core")
        return size / self.port_bytes_per_cycle

    def copied_cycles(self, j: int) -> float:
        """Cycles of a pass for the operands of a concatenation that lie elsewhere."""
        unit, total = self.unit, 0.0
        loops = MAX_LOOPS - sum(count > 1 for count in self.projection.counts)
        for k, (source, operand) in enumerate(zip(unit.sources[j], unit.layers[j].maps, strict=True)):
            if unit.places.get(unit.number_of(source)) != (j, k):
                region = self.projection.operands[j][k]
                plan = plan_layer(work_of(copy_of(operand), region.extent), self.target, "unit", loops)
                total += 0.0 if plan is None else plan.cycles
        return total

    def times(self, j: int, cluster: int, submap: SubMap | None = None) -> float:
        """How many whole passes of layer j a cluster's clipped ones are; of pieces that are dealt to the cores the core
        with the most counts."""
        region, dims, total = self.worked_region(j), self.unit.layers[j].work_dims, 1.0
        for d, (start, extent, size) in enumerate(zip(region.start, region.extent, dims, strict=True)):
            count = self.projection.counts[d]
            step = start.loops[d] if len(start.loops) > d else 0
            first = start.base + cluster * start.cluster
            if step < 0:
                first, step = first + step * (count - 1), -step
            piece = submap.extent[d] if submap is not None and submap.cores == d else 0
            grain = (piece, self.target.cluster.cores) if piece else (1, 1)
            if step and count > 1:
                total *= clipped(first, step, count, extent, size, grain) / clipped(0, 1, 1, extent, extent, grain)
            else:
                whole = clipped(0, 1, 1, extent, extent, grain)
                total *= count * clipped(first, 1, 1, extent, size, grain) / whole
        return total


def short_runs(cut: CutUnit) -> int:
    """Bytes for which the DRAM port is busy beside those that move: narrow boxes have short rows, where columns
    are neighbours."""
    unit, least, total = cut.unit, cut.target.chip.dram.minimum_run_bytes, 0
    inputs = zip(cut.projection.inputs, unit.inputs, strict=True)
    stored = (
        (r, j) for r, j in zip(cut.projection.stores, unit.stored, strict=False) if j not in cut.kept
    )
    boxes = [(r, x.dims, x.view, x.element_bytes) for r, x in inputs if not x.resident]
    layers = ((r, unit.layers[j]) for r, j in stored)
    boxes += [(r, layer.out_dims, layer.out_view, layer.out_bytes) for r, layer in layers]
    for region, dims, view, element_bytes in boxes:
        run = region.extent[3] * element_bytes
        if region.extent[3] < dims[3] and run < least and view.strides[3] == 1:
            total += math.prod(dims) * element_bytes * (least - run) // run
    return total


def residency_of(plans: Sequence[LayerPlan | None]) -> list[Residency | None]:
    """Where the weights of each layer wait."""
    return [None if plan is None else plan.map.weights for plan in plans]


def stream_cycles(cut: CutUnit, plans: Sequence[LayerPlan | None]) -> float:
    """Cycles in which the cores wait for weights that are streamed while a layer computes: for all but the first
    chunks, which come before it."""
    counts, clusters, total = cut.projection.counts, range(cut.target.chip.clusters), 0.0
    for j, (layer, plan) in enumerate(zip(cut.unit.layers, plans, strict=True)):
        if plan is not None and plan.map.weights == "stream":
            size = counts[0] * counts[2] * counts[3] * held_bytes(layer, layer.out_dims[1])
            own = plan.own_cycles * max(cut.times(j, k, plan.map) for k in clusters)
            total += max(0.0, (size - plan.stream_bytes) / cut.port_bytes_per_cycle - own)
    return total


def stream_bytes(plans: Sequence[LayerPlan | None]) -> int:
    """SRAM for the chunks of streamed weights of whatever layer needs most."""
    return max((plan.stream_bytes for plan in plans if plan is not None), default=0)


def overlapped(
    compute: Number, transfer: Number, maps: Number, weights: Number, passes: Number, is_in_turn: Number
) -> Number:
    """Cycles of a unit that computes (`compute`) and moves all (`transfer`), of it its maps and the weights that are
    waited for, as far as they are.

    Nothing is computed during the first load and the last store; with one copy of tiles during none.
    """
    is_one = passes == 1
    edge = maps / (passes + is_in_turn * (1 - passes))
    busy = compute + edge + WAITED * weights
    moving = transfer + compute / passes * (1 - is_one)
    longer = busy + (moving - busy) * (moving > busy)
    return longer + HIDDEN * (compute + transfer)


# ---------------------------------------------------------------- bytes of layers and regions


def weight_bytes(layer: Layer, channels: int) -> int:
    """Bytes of the weights that make `channels` output channels."""
    return channels * layer.kind.channel_weights * layer.weight_bytes


def held_bytes(layer: Layer, channels: int) -> int:
    """The same as SRAM and DRAM hold them: compressed, where they are to be."""
    held, whole = layer.held
    return ceil_div(weight_bytes(layer, channels) * held, whole)


def vector_bytes(layer: Layer, channels: int, grain: int = 1) -> int:
    """Bytes of the bias, and of all else that has one number per output channel, each in whole `grain`s."""
    return sum(aligned(channels * size, grain) for size in layer.channel_bytes)


def chunk_bytes(sram_bytes: int) -> int:
    """The most that a chunk of streamed weights takes, where pieces of so many exist."""
    return max(SMALLEST_CHUNK_BYTES, sram_bytes // CHUNK_SHARE)


def tile_bytes(region: Region, element_bytes: int) -> int:
    """Of one copy of a region."""
    return aligned(region.elements * element_bytes)


def stored_bytes(layer: Layer) -> int:
    """Of a layer's whole map."""
    return math.prod(layer.out_dims) * layer.out_bytes
