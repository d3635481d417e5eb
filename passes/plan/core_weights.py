# Tests: test/pipeline/test_core_weights.py
"""Which weights of a unit stay in WRAM through all passes over its tiles, and in which pieces.

Weights that have no room in SRAM come from DRAM again in every pass, images among them.  The cores of a cluster have
memory of their own for weights, which a layer at a time leaves empty: what all its layers need there, it holds for the
whole unit, loaded once.  Weights that are dealt to the cores by output channels take the least of it.
Source: docs/techniques/tfu.md, "Running a unit" (what a loop does not move is loaded outside of it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target
from frustum.dialects.tile import ConvLayer, Residency
from frustum.passes.plan.cost import CutUnit, held_bytes, vector_bytes, weight_bytes
from frustum.passes.plan.layer_work import LayerPlan, LayerWork, work_of
from frustum.passes.plan.model import AMONG_OTHERS, CORE_SHARE, LEAST_KEPT
from frustum.passes.plan.pieces import plan_layer

HUGE = 1e18
CHUNK_ROOM = 4
"""Weights on their way to the cores take at most this part of SRAM."""


def work_in(cut: CutUnit, j: int, whole: tuple[int, ...] = ()) -> LayerWork:
    """Layer j as the search for its pieces sees it, with the dimensions `whole` not cut."""
    unit = cut.unit
    in_ring = cut.projection.is_ring(unit.number_of(unit.sources[j][0]))
    work = work_of(unit.layers[j], cut.worked_region(j).extent, in_ring=in_ring, whole=whole)
    return replace(work, owned=cut.partition.beside) if cut.partition.owners == "cores" else work


def loops_of(cut: CutUnit) -> int:
    """Loops that a layer's pieces may have beside those over tiles."""
    return MAX_LOOPS - sum(count > 1 for count in cut.projection.counts)


def kept_room(target: Target) -> int:
    """WRAM bytes of a core for weights that stay: beside them are the pieces of the layer that is computed."""
    return int(CORE_SHARE * target.core.wram.capacity_bytes)


def waiting(largest_first: Sequence[int], target: Target) -> list[bool]:
    """Of the weights of a unit's layers, which SRAM does not hold from the largest on, those that wait in the cores
    when each core has its output channels' share of them: beside a single layer's are its vectors alone, beside those
    of several the pieces of the largest of the others."""
    left, found = kept_room(target) if len(largest_first) == 1 else int(AMONG_OTHERS * kept_room(target)), []
    for size in largest_first:
        own = aligned(ceil_div(size, target.cluster.cores))
        found.append(size >= LEAST_KEPT and own <= left)
        left -= own * found[-1]
    return found


class Option(NamedTuple):
    """A layer with weights that stay, and how many cycles of all passes a byte of them in the cores saves."""

    gain: float
    layer: int
    plan: LayerPlan


def kept_in_cores(
    cut: CutUnit,
    residency: Sequence[Residency],
    streamed: Target,
    whole: tuple[int, ...] = (),
    *,
    for_one_image: bool = False,
) -> dict[int, LayerPlan]:
    """The pieces of the layers whose weights stay in the cores: of those that would be streamed, as the target
    `streamed` has room for their chunks, the ones that gain most with what room they take."""
    if not may_keep(cut, for_one_image=for_one_image):
        return {}
    layers, room = cut.unit.layers, kept_room(cut.target)
    found: dict[int, LayerPlan] = {}
    held = (j for j, where in enumerate(residency) if where == "stream" and not layers[j].kind.is_batched)
    options = [each for j in held for each in options_of(cut, j, room, streamed, whole)]
    for gain, j, plan in sorted(options, key=lambda each: -each.gain):
        if gain > 0 and j not in found and plan.core_bytes <= room:
            found[j], room = plan, room - plan.core_bytes
    return found


def options_of(
    cut: CutUnit, j: int, room: int, streamed: Target, whole: tuple[int, ...]
) -> Iterator[Option]:
    """The fastest pieces of a layer with weights that stay, and those of which each core has a share of the weights."""
    layer, target, passes = cut.unit.layers[j], cut.target, cut.passes
    moved = held_bytes(layer, layer.out_dims[1])
    if moved < LEAST_KEPT:
        return
    work, loops, channels = work_in(cut, j, whole), loops_of(cut), cut.projection.outputs[j].extent[1]
    before = plan_layer(work, streamed, "stream", loops)
    share = ceil_div(weight_bytes(layer, channels), target.cluster.cores) + vector_bytes(layer, channels)
    again = (passes - 1) * moved / cut.port_bytes_per_cycle
    most_of_sram = target.cluster.sram.capacity_bytes // CHUNK_ROOM
    for size in {room, min(room, share + share // 4)}:
        plan = plan_layer(work, with_wram(target, size), "core", loops)
        if plan is not None and plan.core_bytes <= room and chunk_of(cut, j, plan) <= most_of_sram:
            saved = HUGE if before is None else again + passes * (before.cycles - plan.cycles)
            yield Option(saved / max(plan.core_bytes, 1), j, plan)


def chunk_of(cut: CutUnit, j: int, plan: LayerPlan) -> int:
    """SRAM bytes on the way to the cores at least: two times one input channel of a piece, or a few that are a run."""
    layer, target, conv = cut.unit.layers[j], cut.target, cut.unit.layers[j].kind
    assert isinstance(conv, ConvLayer)
    dealt = target.cluster.cores if plan.map.cores == 1 else 1
    each = layer.weight_bytes * math.prod(conv.kernel)
    least = max(1, min(plan.map.channels, ceil_div(2 * target.chip.dram.minimum_run_bytes, each)))
    return 2 * dealt * plan.map.extent[1] * least * each


def may_keep(cut: CutUnit, *, for_one_image: bool) -> bool:
    """Whether every pass over the tiles needs the same weights, and there are several images, or one counts too: what
    it waits for before its first pass shows, so only where bytes alone are to be few."""
    is_asked = for_one_image or cut.unit.out.out_dims[0] > 1
    return is_asked and cut.passes > 1 and cut.projection.counts[1] == 1 and not cut.partition.inside


def beside_kept(target: Target, kept: Mapping[int, LayerPlan]) -> Target:
    """The target as all other layers must see it."""
    held = sum(plan.core_bytes for plan in kept.values())
    return with_wram(target, target.core.wram.capacity_bytes - aligned(held)) if held else target


@lru_cache(maxsize=256)
def with_wram(target: Target, size_bytes: int) -> Target:
    """The target with so much WRAM in each core."""
    core = target.core
    core = replace(core, wram=replace(core.wram, capacity_bytes=size_bytes))
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, core=core)))
