"""The pieces that a product may be cut into, all at once, and what each takes of the cores.

Pieces of a depthwise convolution may be made by both units of a core at once: the vector unit makes some channels of
a piece while the matrix unit makes the others, from the same copy of the operand, into the same piece of the result.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import Int, aligned, ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import INPUTS, Outer, Residency
from frustum.passes.plan.layer_work import LayerWork, passes_of
from frustum.passes.plan.model import PIECE_CYCLES
from frustum.passes.plan.piece_cycles import (
    Ints,
    Loops,
    Moves,
    Nest,
    bus_cycles,
    copy_cycles,
    moves,
    predicted_cycles,
    share_of_matrix,
)
from frustum.passes.plan.piece_extents import (
    ACCUMULATOR_BYTES,
    busy_over_space,
    grid,
    is_bias,
    kernel_of,
    needs,
    nested,
    over_space,
    pieces_of_a_core,
    product_choices,
)

CHUNKS = 5  # the loop over input channels, the innermost of a product


class ProductPieces:
    """The pieces of a product that are looked at when dimension `cores_dim` is dealt to the cores, one in each element
    of flat arrays, and what they take of the cores."""

    on_vector = False

    @cached_property
    def beside(self) -> Ints:
        """Channels of a piece that another unit makes meanwhile."""
        return np.zeros_like(self.inputs)

    def __init__(self, work: LayerWork, target: Target, cores_dim: int, compact: bool, residency: Residency):
        self.residency = residency
        self.work = work
        self.target = target
        self.cores_dim = cores_dim
        self.compact = compact
        self.outer: Outer = "space"
        self.cores: int = target.cluster.cores
        self.is_grouped: bool = work.groups > 1
        self.is_summed: bool = cores_dim == INPUTS
        each = ceil_div(work.channels, self.cores) if self.is_summed else work.channels
        self.choices: tuple[tuple[int, ...], ...] = product_choices(work, target, cores_dim, each, residency)
        self.extents: list[Ints] = grid(*self.choices)
        self.inputs: Ints = self.extents.pop()
        self.dealt: list[int] = [self.cores if d == cores_dim else 1 for d in range(4)]
        self.counts: list[Ints] = pieces_of_a_core(work, self.extents, cores_dim, self.cores)
        self.groups: Ints = np.ones_like(self.inputs)
        self.in_groups: Ints = self.groups
        if self.is_grouped:  # of a piece either whole groups, or a part of one
            outputs, made = work.group_outputs, self.extents[1]
            self.in_groups = np.maximum(made // outputs, 1)
            self.counts[1] = np.where(made < outputs, ceil_div(ceil_div(outputs, made), self.dealt[1]), self.counts[1])
            self.groups = np.where(made < outputs, ceil_div(work.extent[1], outputs), 1)
        self.chunks: Int = ceil_div(each, self.inputs)
        self.in_space: Ints = self.counts[0] * self.counts[2] * self.counts[3]
        self.of_weights: Int = self.counts[1] * self.groups * self.chunks
        self.positions: Ints = self.extents[0] * self.extents[2] * self.extents[3]
        self.made: Ints = self.extents[1] * self.positions

    def in_order(self, outer: Outer) -> ProductPieces:
        """The same pieces with these loops outside: what is known of them and asks for no order is not asked again."""
        found = copy(self)
        found.outer = outer
        for name in ("weights_once", "fills", "loops_in_order", "loops"):
            vars(found).pop(name, None)
        return found

    @cached_property
    def read(self) -> list[Ints]:
        """Extents of what a piece reads; channels are `inputs` of each group."""
        return needs(self.work.accesses[0], self.extents)

    @cached_property
    def in_bytes(self) -> Ints:
        images, _, rows, columns = self.read
        return aligned(images * self.inputs * self.in_groups * rows * columns * self.work.map_bytes[0])

    @cached_property
    def out_bytes(self) -> Ints:
        """With residuals, which lie as the output does and move with it."""
        sizes = (self.work.out_bytes, *self.work.map_bytes[1:])
        return sum(aligned(self.made * size) for size in sizes)

    @cached_property
    def weight_bytes(self) -> Ints:
        return aligned(self.extents[1] * self.inputs * math.prod(self.work.kernel) * self.work.weight_bytes)

    @cached_property
    def chunk_bytes(self) -> Ints:
        """Of the weights that all cores need at a time."""
        return self.weight_bytes * (self.cores if self.is_summed else self.dealt[1])

    @cached_property
    def own_sums(self) -> Ints:
        """Bytes of what a core adds up for a piece where input channels are dealt to the cores; else none."""
        return aligned(self.made * ACCUMULATOR_BYTES) * self.is_summed

    @property
    def sums_bytes(self) -> Ints:
        """SRAM where the sums of all cores meet."""
        return self.own_sums * self.cores * np.where(self.in_space * self.of_outputs > 1, 2, 1)

    @property
    def of_outputs(self) -> Ints:
        """Pieces of the result at one place."""
        return self.counts[1] * self.groups

    @cached_property
    def least_cycles(self) -> Ints:
        """All is computed, and takes something for each piece: `nest_cycles` is no less."""
        return self.of_outputs * self.all_computing + PIECE_CYCLES * self.in_space * self.of_weights

    @cached_property
    def weights_once(self) -> NDArray[np.bool_]:
        """Every weight crosses the bus once."""
        again = self.of_weights > 1 if self.outer == "space" else self.chunks > 1
        return ~again | (self.in_space == 1)

    def fit(self, loops: int) -> NDArray[np.bool_]:
        """Which fit NRAM, WRAM and the loops that are left; streamed weights also half of SRAM."""
        work, core, residency = self.work, self.target.core, self.residency
        total = self.in_space * self.of_weights
        waiting = (self.in_space > 1) | (self.chunks > 1) | (self.is_grouped & (self.of_weights > 1))
        nram = self.in_bytes * np.where(waiting, 2, 1) + self.out_bytes * np.where(total > 1, 2, 1)
        copies = np.where(self.in_space * self.of_outputs > 1, 2, 1)
        if self.is_summed:  # own sums, everybody's of a share, two steps on the way to the result
            nram = nram + copies * (2 * self.own_sums + 2 * ceil_div(self.own_sums, self.cores))
        else:
            nram = nram + aligned(self.made * work.accumulator_bytes) * (self.chunks > 1)
        vectors = sum((aligned(self.extents[1] * size) for size in work.channel_bytes), np.zeros_like(total))
        vectors = vectors * np.where(self.of_outputs > 1, 2, 1)
        in_wram = 0 if self.is_summed or (residency == "stream" and is_bias(work)) else vectors
        if self.on_vector and is_bias(work):  # in NRAM where weights of a unit of one pass come piece by piece
            nram = nram + vectors
        turns = (self.of_weights > 1) | work.has_images  # those of the next image arrive meanwhile
        held = self.of_weights if residency == "core" else np.where(turns, 2, 1)
        nram, wram = nram + vectors - in_wram, self.weight_bytes * held + in_wram
        fits = (nram <= core.nram.capacity_bytes) & (wram <= core.wram.capacity_bytes)
        fits &= nested((*self.counts, self.groups, self.chunks)) <= loops
        if self.is_summed:  # every core has channels in every pass, and a share of whole positions
            fits &= (self.chunks * self.cores - 1) * self.inputs < work.channels
            fits &= reduce(np.logical_or, [size % self.cores == 0 for size in self.extents[1:]])
        if residency == "stream":
            half = self.target.cluster.sram.capacity_bytes // 2
            fits &= aligned(self.chunk_bytes) * 2 <= half
        return fits

    @cached_property
    def fills(self) -> Moves:
        """How weights go into the cores; never where they stay there."""
        if self.residency == "core":
            return Moves(np.zeros_like(self.inputs), np.zeros_like(self.inputs))
        return moves(self.loops, (*self.loops_in_order[2], CHUNKS))

    @cached_property
    def loops(self) -> Loops:
        """How often each of the loops in order goes."""
        return Loops.of(self.loops_in_order[0])

    @cached_property
    def loops_in_order(self) -> tuple[list[Ints], tuple[int, ...], tuple[int, ...]]:
        """Passes of the loops from the outermost on; which of them are those of space, and of output channels."""
        space, inside = [self.counts[0], *self.counts[2:]], [self.groups, self.counts[1]]
        if self.outer == "space":
            return [*space, *inside, self.chunks], (0, 1, 2), (3, 4)
        return [*inside, *space, self.chunks], (2, 3, 4), (0, 1)

    @cached_property
    def filled(self) -> Ints:
        """Cycles of one chunk of the weights from SRAM to the cores."""
        if self.is_summed or self.dealt[1] == self.cores:
            return copy_cycles(self.target, self.weight_bytes, self.weight_runs, self.cores)
        return bus_cycles(self.target, self.weight_bytes, self.weight_runs)

    @cached_property
    def loaded(self) -> Ints:
        """Cycles of one piece of the input from SRAM to a core."""
        return copy_cycles(self.target, self.in_bytes, self.runs[0], self.cores)

    @cached_property
    def left(self) -> Ints:
        """Cycles of one piece of the result, with residuals."""
        return self.leaving_cycles(self.out_bytes, self.runs[1])

    def nest(self, *, is_chosen: bool = False) -> Nest:
        """Computing and copies, all weights in SRAM; residuals move with the result, but of what `is_chosen`."""
        target, (_, of_space, of_channels) = self.target, self.loops_in_order
        of_input = (*of_space, *(of_channels if self.is_grouped else ()), CHUNKS)
        in_runs, out_runs = self.runs
        results = moves(self.loops, (*of_space, *of_channels), is_stored=True)
        out_bytes = aligned(self.made * self.work.out_bytes) if is_chosen else self.out_bytes
        left = self.leaving_cycles(out_bytes, out_runs) if is_chosen else self.left
        stored, maps = (results, left), moves(self.loops, of_input)
        added = self.added_copies(replace(results, is_stored=False), out_runs) if is_chosen else []
        copies, fills = [*added, stored], self.fills
        nest = Nest(self.of_outputs * self.all_computing, self.in_space * self.of_weights, copies)
        loaded = maps, self.loaded
        if not (self.is_summed or self.dealt[1] == self.cores):  # all have the same weights
            if not is_chosen:  # they came before
                fills = replace(fills, restarts=np.where(fills.times > 1, fills.restarts, 0))
            return replace(nest, copies=[loaded, *copies], by_bus=[(fills, self.filled)])
        own = self.fills, self.filled
        if self.cores == 1 or self.is_grouped or self.is_summed:
            return replace(nest, copies=[loaded, *copies, own])
        return replace(nest, copies=[*copies, own], by_bus=[(maps, bus_cycles(target, self.in_bytes, in_runs))])

    def own_cycles(self, k: int) -> float:
        """Of candidate number k, where weights that are loaded once were there before."""
        return float(predicted_cycles(self.target, self.nest(is_chosen=True).of(k, before=self.fills))[0])

    def added_copies(self, made: Moves, runs: Ints) -> list[tuple[Moves, Ints]]:
        """Of residuals, which lie as the result does; what adds sums adds them there."""
        sizes = () if self.is_summed else self.work.map_bytes[1:]
        each = [(aligned(self.made * size), runs * size // self.work.out_bytes) for size in sizes]
        return [(made, copy_cycles(self.target, whole, run, self.cores)) for whole, run in each]

    def leaving_cycles(self, out_bytes: Ints, runs: Ints) -> Ints:
        """From the matrix unit to SRAM: a copy, or where the cores add their sums three of them, and additions."""
        target, vector = self.target, self.target.core.vector
        if not self.is_summed:
            return copy_cycles(target, out_bytes, runs, self.cores)
        met = 2 * copy_cycles(target, self.own_sums, self.own_sums, self.cores)
        share = ceil_div(self.out_bytes, self.cores)
        latencies = 2 * (target.cluster.sram.latency_cycles + target.core.nram.latency_cycles)
        per_sum = vector.cycles_per_element.of(ACCUMULATOR_BYTES)
        added = ceil_div(self.own_sums // ACCUMULATOR_BYTES * per_sum, vector.lanes)
        terms = len(self.work.channel_bytes) + len(self.work.map_bytes)  # with the activation
        steps = added + terms * ceil_div(added, self.cores)
        return met + copy_cycles(target, share, ceil_div(runs, self.cores), self.cores) + steps + latencies

    @cached_property
    def all_computing(self) -> Ints:
        return self.computing()

    def computing(self) -> Ints:
        """Cycles of the matrix unit for the output channels of a piece over all images, rows and columns, those pieces
        at the ends as large as they are."""
        slices = ceil_div(self.extents[1] // self.in_groups, self.target.core.matrix.channels) * self.in_groups
        channels = np.minimum(self.chunks * self.inputs, self.work.channels)
        (images, _, *plane), (n, _, *of_plane), (dealt, _, *across) = self.choices[:4], self.work.extent, self.dealt
        space = busy_over_space(
            self.target.core.matrix, kernel_of(self.work), (n, *of_plane), (images, *plane), (dealt, *across)
        )
        shape = tuple(map(len, self.choices))
        return slices * channels * np.broadcast_to(space.reshape(shape[0], 1, *shape[2:4], 1), shape).ravel()

    @cached_property
    def runs(self) -> tuple[Ints, Ints]:
        """Bytes of the contiguous runs in SRAM that a piece of the input and of the output has."""
        size, (_, _, rows, columns), width = self.work.map_bytes[0], self.read, self.extents[3]
        is_wide = width >= self.work.extent[3]
        in_runs = np.where(is_wide, rows * columns, columns) * size
        out_runs = np.where(is_wide, self.positions, width) * self.work.out_bytes
        return (np.full_like(in_runs, size) if self.compact else in_runs), out_runs

    @cached_property
    def weight_runs(self) -> Ints:
        """Bytes of the contiguous runs in DRAM that hold the weights of a piece of all cores."""
        work, outputs, inputs = self.work, self.extents[1] * self.dealt[1], self.inputs
        if work.are_outputs_apart:
            apart = np.where(inputs < work.channels, inputs, outputs * inputs)
            return apart * math.prod(work.kernel) * work.weight_bytes
        return np.where(outputs < work.group_outputs, outputs, outputs * inputs) * work.weight_bytes


class VectorProductPieces(ProductPieces):
    """The pieces of a depthwise convolution that the vector unit computes."""

    on_vector = True

    def by_vector(self, channels: Ints) -> Ints:
        """Cycles of the vector unit for so many channels of a piece over all images, rows and columns."""
        vector, widest = self.target.core.vector, max(self.work.out_bytes, self.work.map_bytes[0])
        each = channels * vector.cycles_per_element.of(widest)
        extent, sizes, counts, dealt = (
            [of[0], *of[2:]] for of in (self.work.extent, self.extents, self.counts, self.dealt)
        )
        elements = over_space(extent, sizes, counts, dealt, lambda n, h, w: ceil_div(n * h * w * each, vector.lanes))
        return elements * passes_of(self.work.steps, vector)

    def computing(self) -> Ints:
        """As above, of the vector unit."""
        return self.by_vector(self.extents[1])


class SharedProductPieces(VectorProductPieces):
    """The pieces of a depthwise convolution of which the vector unit makes some channels, and the matrix unit the
    others meanwhile."""

    @cached_property
    def by_matrix(self) -> Ints:
        """Cycles of the matrix unit for all channels of a piece over all images, rows and columns."""
        return ProductPieces.computing(self)

    @cached_property
    def beside(self) -> Ints:
        """Channels of a piece that the matrix unit makes."""
        return share_of_matrix(self.extents[1], self.by_vector(self.extents[1]), self.by_matrix)

    def computing(self) -> Ints:
        """As above, of the unit that takes longer."""
        on_matrix = ceil_div(self.by_matrix * self.beside, self.extents[1])
        return np.maximum(self.by_vector(self.extents[1] - self.beside), on_matrix)
