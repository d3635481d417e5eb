# Tests: test/passes/lower/unit/test_attention.py
"""How attention on a region is cut into the pieces of cores: one group of heads, some rows of queries, blocks of keys.

A piece goes through the keys in blocks, with running maxima and sums; what of a block the matrix unit and the vector
unit do overlaps with what they do of other blocks, or, of one block, of other pieces.  Where the vector unit would have
more to do than the matrix unit, this one makes scores *twice*: for their maxima, and again as powers of e, less the
maxima that sums begin with, on their way out.
Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention, 2022;
docs/techniques/machine.md, "Matrix unit", "Vector unit".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from frustum.dialects.extents import aligned, ceil_div, replaced
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.target import Target
from frustum.dialects.target.durations import address_cycles, vector_passes
from frustum.dialects.tile import AttentionLayer, SubMap
from frustum.passes.plan.layer_work import LayerPlan, LayerWork
from frustum.passes.plan.model import PIECE_CYCLES
from frustum.passes.plan.piece_extents import halves

IMAGES, CHANNELS, ROWS = 0, 1, 3
"""The dimensions of the result that are cut: rows are those of queries, but of planes (`AttentionLayer.position`)."""
WIDE = 4
"""Bytes of a sum."""
SCORE_COPIES = 3
"""Blocks of scores: one that is made, one that becomes weights, one that is multiplied with values."""
WIDE_COPIES = 2
"""Blocks of wide scores, and of what they become: one that is made, one that is read."""

SHOWN = 0.05
"""Of loads of keys and values, part that shows though products take longer: other engines want the ports meanwhile.
`diffusion_res_attn_32` takes 50,136 cycles on `default` with it, 50,799 without."""
LEAVING = 0.5
"""Part of the results of last pieces that is on its way to DRAM, or as long to other clusters, when all else is done;
some stay in their cluster.  With 1 `heads_split` took 8,835 cycles instead of 8,635.  `diffusion_res_attn_32` took
53,932 where nothing of it counted, and one piece of 256 rows in each core was sent when all was done."""
SUM_COPIES = 3
"""Wide results so far of pieces: one that comes, one that becomes less, one that is added to."""


@dataclass(frozen=True)
class Room:
    """What of a piece a core holds, with its copies."""

    nram_bytes: int
    wram_bytes: int


def room(work: LayerWork, kind: AttentionLayer, rows: int, keys: int, *, is_only: bool, twice: bool = False) -> Room:
    """Bytes of a core for pieces of so many rows of queries, with blocks of so many keys; `is_only`: the core
    has no other piece."""
    copies = 1 if is_only else 2
    blocks = 1 if is_only and keys >= kind.keys else 2
    size, queries = work.map_bytes[0], kind.share * rows
    blocks_of_scores = 1 if blocks == 1 else SCORE_COPIES
    held = blocks + (twice and blocks > 1)
    nram = copies * aligned(queries * kind.size * size) * (2 if is_scaled_before(work, kind) or twice else 1)
    nram += score_bytes(kind, queries, keys, size, blocks_of_scores)
    nram += 2 * copies * aligned(queries * score_size(kind, size)) + 3 * twice * aligned(queries * WIDE)
    nram += 3 * copies * aligned(queries * WIDE)
    nram += copies * aligned(queries * kind.value_size * WIDE) + copies * aligned(queries * kind.value_size * size)
    if len(work.accesses) > MASK:
        nram += held * aligned(keys * queries * size)
    wram = held * aligned(keys * kind.size * size) + blocks * aligned(keys * kind.value_size * size)
    return Room(nram, wram)


def score_size(kind: AttentionLayer, size: int) -> int:
    """Bytes of a score."""
    if kind.scales is not None:
        return ELEMENT_BYTES[kind.score_element("i8")]
    return WIDE if kind.has_wide_scores else size


def score_bytes(kind: AttentionLayer, queries: int, keys: int, size: int, copies: int) -> int:
    """Bytes of the blocks of scores that a core has at a time; what they become lies beside them where they are wider
    than it."""
    own = score_size(kind, size)
    if own == size:
        return copies * aligned(keys * queries * size)
    return min(copies, WIDE_COPIES) * (aligned(keys * queries * own) + aligned(keys * queries * size))


MASK = 3
"""The operand that is added to scores, if there is one."""


def is_scaled_before(work: LayerWork, kind: AttentionLayer) -> bool:
    """Whether queries are scaled, and not the scores on their way out: something else is done with these there."""
    return len(work.accesses) > MASK or kind.softcap > 0


def may_be_twice(kind: AttentionLayer) -> bool:
    """Whether nothing but a mask comes between products of queries and keys and powers of e: only that the way out of
    the matrix unit has room for.  Not of wide scores: these are chosen where they take hardly more cycles,
    and made twice they were taken on `edge` where they took 3 % more (`swin_block_28_shift`)."""
    is_plain = kind.softcap == 0 and kind.causal_from is None
    return is_plain and kind.scales is None and not kind.has_wide_scores


def is_better_twice(work: LayerWork, kind: AttentionLayer, target: Target, rows: int, keys: int) -> bool:
    """Whether the matrix unit makes all products, those of scores twice, while the vector unit alone would make powers
    of all scores: both work at a time, on different blocks."""
    if not may_be_twice(kind):
        return False
    busiest = vector_cycles(work, kind, target, rows, keys, ceil_div(kind.keys, keys))
    return matrix_cycles(work, kind, target, rows, keys, twice=True) < busiest


def plan_attention(work: LayerWork, kind: AttentionLayer, target: Target, loops: int) -> LayerPlan | None:
    """The fastest pieces; None where no rows and keys fit."""
    best: LayerPlan | None = None
    for submap in candidates(work, kind, target, loops):
        cycles = cycles_of(work, kind, target, submap)
        if best is None or cycles < best.cycles:
            best = LayerPlan(submap, cycles)
    return best


def candidates(work: LayerWork, kind: AttentionLayer, target: Target, loops: int) -> Iterator[SubMap]:
    """Pieces that fit NRAM and WRAM in so many nested loops."""
    core, cores, along = target.core, target.cluster.cores, kind.position
    for dealt in (CHANNELS, along, IMAGES):
        if cores > 1 and work.extent[dealt] <= (kind.group_channels if dealt == CHANNELS else 1) and dealt != CHANNELS:
            continue
        share = ceil_div(work.extent[along], cores) if dealt == along else work.extent[along]
        for rows in row_counts(share, target.core.matrix.lines, kind.share * kind.width):
            for keys in block_sizes(kind):
                extent = replaced((1, kind.group_channels, 1, kind.width if along == 2 else 1), along, rows)
                counts = passes(work, extent, dealt, cores)
                nested = sum(count > 1 for count in counts) + (keys < kind.keys)
                own, is_only = (rows * kind.width, min(keys, kind.keys)), math.prod(counts) == 1
                for twice in (False, True)[: 1 + is_better_twice(work, kind, target, *own)]:
                    held = room(work, kind, *own, is_only=is_only, twice=twice)
                    fits = held.nram_bytes <= core.nram.capacity_bytes and held.wram_bytes <= core.wram.capacity_bytes
                    if fits and nested <= loops:
                        yield SubMap(extent, dealt, own[1], twice=twice)


def block_sizes(kind: AttentionLayer) -> list[int]:
    """Keys of a block to be looked at; sums of integers cannot be made smaller between blocks: these have all."""
    return [kind.keys] if kind.scales is not None else halves(kind.keys, math.lcm(16, kind.key_width))


def row_counts(share: int, lines: int, heads: int) -> list[int]:
    """Rows of a piece to be looked at: halvings, and those that fill the lines."""
    filling = {count for fills in (1, 2, 4, 8) if 0 < (count := lines * fills // heads) < share}
    return sorted({*halves(share), *filling}, reverse=True)


def passes(work: LayerWork, extent: tuple[int, ...], dealt: int, cores: int) -> list[int]:
    """Of each dimension the pieces of the core that has most."""
    counts = [ceil_div(size, own) for size, own in zip(work.extent, extent, strict=True)]
    return [ceil_div(count, cores) if d == dealt else count for d, count in enumerate(counts)]


def cycles_of(work: LayerWork, kind: AttentionLayer, target: Target, submap: SubMap) -> float:
    """Cycles of the core that has most to do, until what it made last has left the cluster.

    Steps follow those of the piece before in the innermost loop at once: only what the vector unit does with sums is
    behind all products of a piece in blocks, and of pieces of one block behind the last of the loop.  Either unit waits
    for the other at both ends of that loop: the matrix unit with the first weights, while it makes one block of scores
    ahead, and with the last.
    """
    counts = passes(work, submap.extent, submap.cores, target.cluster.cores)
    pieces, blocks = math.prod(counts), ceil_div(kind.keys, submap.channels)
    rows = submap.extent[kind.position] * kind.width
    keys = ceil_div(kind.keys, blocks)
    scores, values = product_cycles(work, kind, target, rows, keys, twice=submap.twice)
    matrix = scores + values
    vector = vector_cycles(work, kind, target, rows, keys, blocks, twice=submap.twice)
    once = cycles_of_sums(work, kind, target, rows, twice=submap.twice)
    size, cores = work.map_bytes[0], target.cluster.cores
    is_bus = submap.cores == kind.position and cores > 1
    held = counts[kind.position] if blocks == 1 else 1  # keys and values of one block stay for all rows of a head
    of_keys, of_values = (copied(target, keys * own * size, 1 if is_bus else cores)
                          for own in (kind.size, kind.value_size))  # fmt: skip
    load = (of_keys + of_values) / held
    if len(work.accesses) > MASK:
        load += copied(target, keys * kind.share * rows * size, cores)
    own = copied(target, kind.share * rows * (kind.size + kind.value_size) * size, cores)
    innermost = next((count for count in reversed(counts) if count > 1), 1)
    ends, steps = (pieces // innermost, innermost) if blocks == 1 else (pieces, blocks)
    between = 0 if submap.twice else vector - once / blocks
    waited = between if steps == 1 else max(0, between - scores) + max(0, between - values)
    busiest = max(
        ends * (steps * matrix + once) + waited, ends * (steps * vector + matrix), pieces * (blocks * load + own)
    )
    busiest += SHOWN * pieces * blocks * load
    latency = target.cluster.sram.latency_cycles + target.core.nram.latency_cycles
    left = cores * target.chip.clusters * kind.share * rows * kind.value_size * size
    behind = of_keys + own + latency + LEAVING * left / target.chip.dram.port_bytes_per_cycle
    return busiest + behind + PIECE_CYCLES * pieces * blocks


def copied(target: Target, size_bytes: float, cores: int) -> float:
    """A copy to or from a core, while so many do the same."""
    sram, engine = target.cluster.sram, target.core.mvdma
    return max(size_bytes / engine.bytes_per_cycle, size_bytes * cores / sram.port_bytes_per_cycle)


def matrix_cycles(
    work: LayerWork, kind: AttentionLayer, target: Target, rows: int, keys: int, *, twice: bool = False
) -> float:
    """Both products of a block, the first perhaps `twice`."""
    return sum(product_cycles(work, kind, target, rows, keys, twice=twice))


def product_cycles(
    work: LayerWork, kind: AttentionLayer, target: Target, rows: int, keys: int, *, twice: bool
) -> tuple[float, float]:
    """Of a block the product of queries and keys, perhaps `twice`, and that with values."""
    unit, size, queries = target.core.matrix, work.map_bytes[0], kind.share * rows
    fills, step = ceil_div(queries, unit.lines), unit.cycles_per_step.of(size)
    scores = fills * ceil_div(keys, unit.channels) * kind.size * step
    values = fills * ceil_div(kind.value_size, unit.channels) * keys * step
    full = (1, kind.share, rows)
    found = [address_cycles(unit, (*full, taps), 1, part=(*full, taps)) for taps in (kind.size, keys)]
    return max(scores, found[0]) * (1 + twice), max(values, found[1])


def vector_cycles(
    work: LayerWork, kind: AttentionLayer, target: Target, rows: int, keys: int, blocks: int, *, twice: bool = False
) -> float:
    """All that the vector unit does for a block, with its share of what it does once for a piece."""
    size, queries, taken = work.map_bytes[0], kind.share * rows, partial(vector_busy, target)
    wide = score_size(kind, size)
    if twice:
        total = taken(keys * queries, wide, "reduce") + taken(keys * queries, WIDE, "reduce")  # sums are wide
    elif kind.scales is None:
        total = taken(keys * queries, wide, "reduce", "sub", "exp") + taken(keys * queries, size, "reduce")
    else:  # powers become integers, and are numbers again in sums of f32
        total = taken(keys * queries, wide, "reduce", "sub", "exp", "identity")
        total += taken(keys * queries, WIDE, "reduce", "identity")
    if kind.softcap > 0:
        total += taken(keys * queries, wide, "affine", *["add"] * (len(work.accesses) > MASK))
    if kind.causal_from is not None:
        total += taken(keys * queries, wide, "hide")
    if blocks > 1:
        total += taken(queries, WIDE, "identity", "sub", "exp", "mul")
        total += taken(kind.value_size * queries, WIDE, "mul")
    return total + cycles_of_sums(work, kind, target, rows, twice=twice) / blocks


def cycles_of_sums(work: LayerWork, kind: AttentionLayer, target: Target, rows: int, *, twice: bool = False) -> float:
    """What the vector unit does once for a piece: values by sums, and queries by the scale."""
    size, queries = work.map_bytes[0], kind.share * rows
    once = vector_busy(target, kind.value_size * queries, WIDE, "div")
    if is_scaled_before(work, kind) or twice:
        once += vector_busy(target, kind.size * queries, size, "affine")
    return once


def vector_busy(target: Target, elements: int, size_bytes: int, *kinds: str) -> float:
    """The vector unit, for some elementary operations on so many elements."""
    unit = target.core.vector
    busy = ceil_div(elements * unit.cycles_per_element.of(size_bytes), unit.lanes)
    return busy * sum(vector_passes(unit, each) for each in kinds)
