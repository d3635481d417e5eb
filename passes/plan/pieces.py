"""How one layer's region is cut into the pieces that cores compute.

Pure searches over plain numbers: capacities and rates of the target in, extents and modelled cycles and bytes out.
All candidates of one question are evaluated at once in numpy.

Source: docs/techniques/tfu.md, "On-chip unit map" (splitting over H, W, Cout, Cin; halving along each dimension).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, get_args

import numpy as np

from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target
from frustum.dialects.tile import INPUTS, Outer, Residency, SubMap
from frustum.passes.analysis.layer import SAME4
from frustum.passes.plan.layer_work import LayerPlan, LayerWork
from frustum.passes.plan.model import (
    COMPACT_GAIN,
    COMPUTED_SHARE,
    LATE,
    MOST_PLANS,
    SHARED_GAIN,
    STREAM_COPIES,
    SUMS_GAIN,
)  # fmt: skip
from frustum.passes.plan.piece_cycles import (
    Ints,
    first_fastest,
    load_cycles,
    nest_cycles,
    seen_by_attention,
    seen_by_pieces,
)
from frustum.passes.plan.piece_extents import (
    IN_TURN,
    dealt_along,
    leaves_cores_idle,
    waits_for_weights,
)
from frustum.passes.plan.product_pieces import ProductPieces, SharedProductPieces, VectorProductPieces
from frustum.passes.plan.vector_pieces import plan_others


def plan_layer(
    work: LayerWork, target: Target, residency: Residency, loops: int, sums_bytes: int = 0
) -> LayerPlan | None:
    """The fastest sub-map of at most `loops` nested loops that fits NRAM and WRAM; None where nothing fits.

    `sums_bytes`: the most SRAM that the sums of all cores may take where input channels are dealt to them.
    """
    if work.is_matrix:
        return plan_matrix(work, target, residency, loops, sums_bytes)
    seen = seen_by_pieces(target, "core", loops) if work.attention is None else seen_by_attention(target)
    return plan_others(work, seen, loops)


def plan_matrix(
    work: LayerWork, target: Target, residency: Residency, loops: int, sums_bytes: int = 0
) -> LayerPlan | None:
    """The fastest pieces; compacted ones, and those whose sums the cores add, where they are clearly faster; those that
    the vector unit computes where they are faster, and those that both units share where that is clearly faster."""
    seen = seen_by_pieces(target, residency, loops)
    plan, plain_cycles = without_sums(work, seen, residency, loops)
    may_add = sums_bytes and work.may_add_sums and work.owned is None and target.cluster.cores > 1
    if not may_add or (plain_cycles is not None and waits_for_weights(work, target, plain_cycles)):
        return plan
    return with_sums(work, seen, residency, loops, sums_bytes, below(plan, SUMS_GAIN)) or plan


@lru_cache(maxsize=MOST_PLANS)
def with_sums(
    work: LayerWork, target: Target, residency: Residency, loops: int, sums_bytes: int, below: float
) -> LayerPlan | None:
    """Pieces whose sums the cores add, in fewer cycles."""
    found = best_piece(work, target, residency, loops, INPUTS, sums_bytes, below)
    return None if found is None else found.plan()


@lru_cache(maxsize=MOST_PLANS)
def without_sums(
    work: LayerWork, target: Target, residency: Residency, loops: int
) -> tuple[LayerPlan | None, float | None]:
    """The same without sums, which is so whatever SRAM is left for these; the cycles of what is neither compacted nor
    computed by the vector unit."""

    def best(
        below: float, kind: type[ProductPieces] = ProductPieces, *, is_compact: bool = False
    ) -> ChosenPiece | None:
        found = None
        for cores_dim in dealt_along(work, IN_TURN):
            rival = best_piece(work, target, residency, loops, cores_dim, 0, below, kind, is_compact=is_compact)
            if rival is not None:
                found, below = rival, rival.cycles
        return found

    plain = best(math.inf)
    cycles = None if plain is None else plain.cycles
    if work.may_compact:
        plain = best(below(plain, COMPACT_GAIN), is_compact=True) or plain
    if work.steps:
        plain = best(below(plain), VectorProductPieces) or plain
        shared = best(below(plain), SharedProductPieces)
        if plain is None or (shared is not None and shared.own_cycles < SHARED_GAIN * plain.own_cycles):
            plain = shared
    return None if plain is None else plain.plan(), cycles


def below(plain: ChosenPiece | LayerPlan | None, gain: float = 1.0) -> float:
    """The cycles that a rival must have fewer of."""
    return math.inf if plain is None else gain * plain.cycles


class ChosenPiece(NamedTuple):
    """One of many pieces, by its number, and its cycles as the search compares them."""

    cycles: float
    pieces: ProductPieces
    k: int

    @property
    def own_cycles(self) -> float:
        """As what is chosen is predicted, with the round trips of pieces."""
        return self.pieces.own_cycles(self.k)

    def plan(self) -> LayerPlan:
        """With what is predicted of it more exactly."""
        x, k, residency = self.pieces, self.k, self.pieces.residency
        extent = tuple(int(size[k]) for size in x.extents)
        inputs, beside = int(x.inputs[k]), int(x.beside[k])
        submap = SubMap(
            extent, x.cores_dim, inputs, x.outer, residency, x.compact, x.on_vector, beside=beside
        )
        chunk = int(aligned(x.chunk_bytes[k])) if residency == "stream" else 0
        kept = int(x.weight_bytes[k] * x.of_weights[k]) if residency == "core" else 0
        return LayerPlan(submap, self.cycles, 2 * chunk + int(x.sums_bytes[k]), kept, self.own_cycles)


def best_piece(
    work: LayerWork,
    target: Target,
    residency: Residency,
    loops: int,
    cores_dim: int,
    sums_bytes: int = 0,
    below: float = math.inf,
    kind: type[ProductPieces] = ProductPieces,
    *,
    is_compact: bool = False,
) -> ChosenPiece | None:
    """The best pieces when dimension `cores_dim` is dealt to the cores, in both orders of the loops; None where none
    has fewer cycles than `below`."""
    if cores_dim == INPUTS:
        if not (sums_bytes and work.may_add_sums and target.cluster.cores > 1):
            return None
    elif target.cluster.cores > 1 and (cores_dim in work.whole or leaves_cores_idle(work, cores_dim)):
        return None
    if cores_dim == 0 and (work.extent[0] == 1 or work.one_image):
        return None
    if is_compact:
        axes = (*work.accesses[0][:2], *SAME4[2:])
        work = replace(work, accesses=(axes, *work.accesses[1:]), strides=(1, 1))
    pieces, found = kind(work, target, cores_dim, is_compact, residency), None
    in_cores = pieces.fit(loops) & (pieces.sums_bytes <= sums_bytes)
    for outer in get_args(Outer) if in_cores.any() else ():
        pieces = pieces.in_order(outer)
        fits = in_cores & (pieces.least_cycles < below)  # no more is computed for what cannot be better
        if residency == "stream":
            fits &= pieces.weights_once
        if not fits.any():
            continue
        cycles = with_weights(pieces, nest_cycles(target, pieces.nest()), is_alone=loops == MAX_LOOPS)
        k = first_fastest(fits, cycles)
        if cycles[k] < below:
            found, below = ChosenPiece(float(cycles[k]), pieces, k), float(cycles[k])
    return found


def with_weights(pieces: ProductPieces, cycles: Ints, *, is_alone: bool) -> Ints:
    """The cycles, and what of the weights is waited for: in a unit of one pass weights that are read once come as
    the pieces need them; else all are waited for."""
    target, work, fills, residency = pieces.target, pieces.work, pieces.fills, pieces.residency
    if residency == "core" or not (is_alone or residency == "stream"):
        return cycles
    load = load_cycles(target, pieces.chunk_bytes, pieces.weight_runs)
    from_dram = fills.times * load
    is_streamed = (residency == "stream") | (is_alone & pieces.weights_once & (pieces.of_weights > 1))
    whole = np.asarray(work.extent[1] * work.channels * math.prod(work.kernel) * work.weight_bytes)
    cycles = cycles + is_alone * ~is_streamed * (load_cycles(target, whole, whole) * LATE).astype(np.int64)
    in_long_runs = fills.times * load_cycles(target, pieces.chunk_bytes, pieces.chunk_bytes)
    padding = from_dram - in_long_runs  # of the port, which others need
    if residency == "stream" and work.has_images and not is_alone:  # copies are free when chunks have gone on
        latency = target.chip.dram.latency_cycles + 2 * target.cluster.sram.latency_cycles
        from_dram = np.maximum(from_dram, fills.times * (load + pieces.filled + latency) // STREAM_COPIES)
    behind = behind_weights(pieces, load, from_dram)
    return np.where(is_streamed, np.maximum(cycles, from_dram + behind) + padding, cycles)


def behind_weights(pieces: ProductPieces, load: Ints, from_dram: Ints) -> Ints:
    """Cycles beside those in which weights come in chunks that take so long to load: what the cores do with the last
    chunk, and what small chunks wait for the latency of DRAM.  Where weights take longer than computing, and where the
    cores have one piece of the result, which leaves at the end; all others hide it, and what computes for little of
    the time gains more by longer runs."""
    target, computing = pieces.target, pieces.of_outputs * pieces.all_computing
    shows = (pieces.in_space * pieces.of_outputs == 1) | (computing < from_dram)
    shows &= computing > COMPUTED_SHARE * from_dram
    on_the_way = (load + target.chip.dram.latency_cycles) // target.transfers.in_flight
    late = np.maximum(pieces.fills.times * on_the_way - from_dram, 0)
    return (pieces.filled + pieces.all_computing // np.maximum(pieces.chunks, 1) + late) * shows
