# Tests: test/passes/plan/test_pieces.py
"""How a region of a layer that is no product of weights is cut into the pieces that cores compute."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import SubMap
from frustum.passes.plan.attention.attention_pieces import plan_attention
from frustum.passes.plan.layer_work import LayerPlan, LayerWork, passes_of
from frustum.passes.plan.model import MOST_PLANS
from frustum.passes.plan.piece_cycles import (
    Loops,
    Nest,
    copy_cycles,
    first_fastest,
    moves,
    nest_cycles,
    predicted_cycles,
)
from frustum.passes.plan.piece_extents import (
    IN_TURN,
    dealt_along,
    grid,
    leaves_cores_idle,
    nested,
    operand_bytes,
    pieces_of_a_core,
    product,
    read_runs,
    vector_extents,
)


@lru_cache(maxsize=MOST_PLANS)
def plan_others(work: LayerWork, target: Target, loops: int) -> LayerPlan | None:
    """The fastest sub-map, in at most `loops` loops, of what is no product of weights; None where nothing fits."""
    if work.attention is not None:
        return plan_attention(work, work.attention, target, loops)
    return plan_vector(work, target, loops)


def plan_vector(work: LayerWork, target: Target, loops: int) -> LayerPlan | None:
    """The fastest pieces; what is reduced is cut where nothing else fits."""
    for splits_reduced in (False, True) if work.reduced else (False,):
        dims = dealt_along(work, IN_TURN)
        plans = (plan_vector_with(work, target, loops, d, splits_reduced) for d in dims)
        best = min((plan for plan in plans if plan is not None), key=lambda plan: plan.cycles, default=None)
        if best is not None:
            return best
    return None


def plan_vector_with(
    work: LayerWork, target: Target, loops: int, cores_dim: int, splits_reduced: bool
) -> LayerPlan | None:
    """The best pieces when dimension `cores_dim` is dealt to the cores."""
    core, cores = target.core, target.cluster.cores
    if cores_dim in (*work.whole, *work.reduced) or (cores > 1 and leaves_cores_idle(work, cores_dim)):
        return None
    split = next((d for d in work.reduced if work.extent[d] > 1), None) if splits_reduced else None
    pieces = grid(*vector_extents(work, cores_dim, cores, split))
    counts = pieces_of_a_core(work, pieces, cores_dim, cores)
    ins, out_bytes = operand_bytes(work, pieces, split)
    total = product(counts)
    nram = (sum(ins) + out_bytes) * np.where(total > 1, 2, 1)
    fits = (nram <= core.nram.capacity_bytes) & (nested(counts) <= loops)
    if not fits.any():
        return None
    order = [*(d for d in range(4) if d not in work.reduced), *work.reduced]
    nest, of_result = Loops.of([counts[d] for d in order]), range(4 - len(work.reduced))
    run = np.where(pieces[3] >= work.extent[3], pieces[2] * pieces[3], pieces[3])
    moved = [
        (moves(nest, range(4)), copy_cycles(target, size, read_runs(access, pieces, work, run) * each, cores))
        for access, size, each in zip(work.accesses, ins, work.map_bytes, strict=True)
    ]
    results = copy_cycles(target, out_bytes, run * work.out_bytes, cores)
    moved.append((moves(nest, of_result, is_stored=True), results))
    widest = max(work.out_bytes, *work.map_bytes)
    busy = ceil_div(product(pieces) * core.vector.cycles_per_element.of(widest), core.vector.lanes)
    whole = Nest(total * busy * passes_of(work.steps, core.vector), total, moved)
    cycles = nest_cycles(target, whole)
    k = first_fastest(fits, cycles)
    own = float(predicted_cycles(target, whole.of(k))[0])
    submap = SubMap(tuple(int(size[k]) for size in pieces), cores_dim)
    return LayerPlan(submap, float(cycles[k]), core_cycles=own)
