# Tests: test/pipeline/test_kept_weights.py
"""Weights that stay in WRAM while a unit runs: those that every tile needs are loaded for the first tile only.

The copy stays where it is, in the loops over tiles; its box is empty in all passes but the first, where it does
nothing.  So the first tile's layers still begin as their own weights arrive.
Source: docs/techniques/tfu.md, "Running a unit" (what a loop does not move is loaded outside of it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.tile import INPUTS, ComputeOp, ConvLayer
from frustum.passes.analysis.piece_nest import CHANNELS_IN, GROUP, build
from frustum.passes.lower.unit.layer_nest import WeightSource
from frustum.passes.lower.unit.layer_pieces import OUTPUTS
from frustum.passes.lower.unit.memory_map import Placed


@dataclass(frozen=True)
class WramNeed:
    """WRAM bytes of a layer: of the buffer or the two for its weights, and of the vectors beside them; `may_stay`: each
    core needs one and the same piece in every tile; `is_kept`: all pieces are there from the start, as its map says."""

    weights: int
    vectors: int
    may_stay: bool
    is_kept: bool = False


def wram_need(
    run: Sequence[tuple[ComputeOp, WeightSource | None, Mapping[str, Placed]]], cores: int
) -> WramNeed | None:
    """What the layers of a run take of WRAM, or one alone, with their weights and vectors; None without weights."""
    own = [each for each in (need_alone(*layer, cores, is_whole=len(run) > 1) for layer in run) if each is not None]
    if not own:
        return None
    weights, vectors = (sum(sizes) for sizes in zip(*((each.weights, each.vectors) for each in own), strict=True))
    return WramNeed(weights, vectors, all(each.may_stay for each in own), own[0].is_kept)


def need_alone(
    op: ComputeOp, source: WeightSource | None, vectors: Mapping[str, Placed], cores: int, *, is_whole: bool
) -> WramNeed | None:
    """What one layer takes; in a run all of its weights, whatever its map says (`is_whole`)."""
    conv, submap = op.layer, op.map.data
    if source is None or not isinstance(conv, ConvLayer):
        return None
    outputs, inputs = op.region.data.extent[1], conv.channels
    made, read = (outputs, inputs) if is_whole else (submap.extent[1], submap.channels)
    dealt = [cores if d == submap.cores else 1 for d in (1, INPUTS)]
    is_one = made * dealt[0] >= outputs and read * dealt[1] >= inputs
    piece = aligned(made * read * math.prod(conv.kernel) * ELEMENT_BYTES[source.tensor.element])
    beside = sum(aligned(made * ELEMENT_BYTES[each.element]) for each in vectors.values())
    if submap.weights == "core":
        region = op.region.data
        nest = build(submap, region.start, region.extent, region.bound, conv, cores, 0)
        pieces = math.prod(count for name, count in nest.loops if name in (GROUP, 1, CHANNELS_IN))
        return WramNeed(piece * pieces, beside * (1 if is_one else 2), may_stay=False, is_kept=True)
    is_same = source.held is not None and not source.held.start[OUTPUTS].loops and not source.is_batched
    return WramNeed(piece * (1 if is_one else 2), beside * (1 if is_one else 2), is_one and is_same)


def staying(needs: Sequence[WramNeed | None], capacity: int) -> list[bool]:
    """The layers whose weights stay too, the smallest first, as long as all others still have room one after the other
    beside those that are there from the start."""
    found = [False] * len(needs)
    smallest = sorted((need.weights, k) for k, need in enumerate(needs) if need is not None and need.may_stay)
    held = sum(need.weights for need in needs if need is not None and need.is_kept)
    alone = [0 if need is None or need.is_kept else need.weights for need in needs]
    for size, k in smallest:
        others = [n.vectors + alone[j] * (j != k and not found[j]) for j, n in enumerate(needs) if n is not None]
        if held + size + max(others, default=0) > capacity:
            break
        found[k], held = True, held + size
    return found
