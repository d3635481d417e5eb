"""The pass that measures how small weights will be compressed, for the planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from frustum.dialects import graph as g
from frustum.dialects.extents import ALIGNMENT_BYTES, ceil_div
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.module import HELD_BYTES, HELD_RUN
from frustum.dialects.weights.codec import Codec, compress_all, in_slots
from frustum.passes.analysis.module import element_of, target_of
from frustum.passes.dequantised import is_packed, noted_at
from frustum.passes.weights import NUMPY_BY_NAME, Array, WeightStore, store_of

MATRIX_RANK = 2
PIECE_BYTES = 32 << 10
SAMPLES = 8
"""Pieces of a tensor that are compressed: the largest says how large a slot is."""
LEAST_RUN, LITTLE = 128, 64
"""Input channels of a piece of integers with scales at least; and how often its scales fit into them.  In pieces of 64
outputs a block adds 0.6 % to what the file has of 4 bits, and repeated scales 1.6 % (2026-11-27)."""
SPARE = 1.03
"""Slots are so much larger than the largest of the samples."""


@dataclass(frozen=True)
class MeasureWeights(ModulePass):
    """Note on weights how many bytes they will take in SRAM and DRAM once `frustum-lower-compress-weights` has run.

    Before: a network, in units or not.  After: weights of products that get smaller have `frustum.held_bytes`, which
    partitions are sized with: with `stored` those that stay integers with scales, with a codec others too, with `none`
    no weight.  It is an estimate: how large pieces are is not known yet,
    and some are sampled (docs/techniques/frustum.md, "Sizing").  Where buffers do not fit in the end,
    `backend/compile.py` plans again with weights as they are.
    """

    name = "frustum-graph-measure-weights"
    codec: Codec | Literal["stored", "none"] = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        weights = [each for each in op.walk() if isinstance(each, g.WeightOp)]
        for weight in weights:
            weight.attributes.pop(HELD_BYTES, None)
            weight.attributes.pop(HELD_RUN, None)
        if self.codec == "none":
            return
        store, most = store_of(op), min(PIECE_BYTES, target_of(op).core.wram.capacity_bytes // 4)
        known: dict[str, int] = {}
        for weight in weights:
            key = weight.key.data
            if is_of_products(weight):
                if key not in known:
                    known[key] = self.measured(weight, store, most)
                if known[key] < raw_bytes(weight):
                    run = run_of(weight, store)
                    if run != (1, 1):
                        weight.attributes[HELD_RUN] = DenseArrayBase.from_list(i64, run)
                    weight.attributes[HELD_BYTES] = IntegerAttr(known[key], i64)


    def measured(self, weight: g.WeightOp, store: WeightStore, most: int) -> int:
        """Bytes of a weight in slots, of pieces of so many bytes at most."""
        sizes, found = [raw_bytes(weight)], noted_at(weight, store)
        if found is not None and is_packed(weight):
            sizes.append(int(found.stored_bytes * SPARE))
        if self.codec != "stored" and self.codec != "none":
            kind = element_of(weight.result.type.element_type)
            sizes.append(held_bytes(np.asarray(store[weight.key.data], NUMPY_BY_NAME[kind]), most, self.codec))
        return min(sizes)


def is_of_products(weight: g.WeightOp) -> bool:
    """Whether only products read it, as their weights, all channels at once: these go from SRAM into WRAM."""
    users = [(use.operation, use.index) for use in weight.result.uses]
    return bool(users) and all(
        place == 1
        and ((isinstance(op, g.ConvOp) and op.groups == 1) or (isinstance(op, g.MatmulOp) and is_matrix(weight)))
        for op, place in users
    )


def run_of(weight: g.WeightOp, store: WeightStore) -> tuple[int, int]:
    """Input channels that share a scale; and how many have integers that take so much that scales which pieces repeat,
    and what blocks add, are little."""
    found = noted_at(weight, store)
    if found is None or not is_packed(weight):
        return 1, 1
    taps, runs = prod(g.shape_of(weight.result)[2:]), [(1, 1)]
    for use in weight.result.uses:
        op = use.operation
        axis = 0 if isinstance(op, g.MatmulOp) and not op.trans_b else 1
        is_shared = axis != found.axis or found.scales.size == 1
        scale_bytes = found.scales.dtype.itemsize if is_shared and not found.block else 0
        least = max(LEAST_RUN, LITTLE * 8 * scale_bytes // found.bits)
        block = found.block if found.axis == axis and found.block else 1
        runs.append((block, ceil_div(least, taps)))
    return max(runs)


def is_matrix(weight: g.WeightOp) -> bool:
    return len(g.shape_of(weight.result)) == MATRIX_RANK


def raw_bytes(weight: g.WeightOp) -> int:
    kind = element_of(weight.result.type.element_type)
    total = ELEMENT_BYTES[kind]
    for extent in g.shape_of(weight.result):
        total *= extent
    return total


def held_bytes(weights: Array, piece_bytes: int, codec: Codec) -> int:
    """Bytes of all slots of a tensor: as many as it has pieces, each as large as the largest of some needs."""
    pieces = list(pieces_of(weights, piece_bytes))
    sampled = [pieces[k] for k in np.linspace(0, len(pieces) - 1, min(SAMPLES, len(pieces))).astype(int)]
    raw, ends = np.concatenate(sampled), np.cumsum([len(piece) for piece in sampled])
    slot = in_slots(*compress_all(raw, ends, weights.itemsize, codec), ALIGNMENT_BYTES).shape[1]
    return int(slot * len(pieces) * SPARE)


def pieces_of(weights: Array, piece_bytes: int) -> Iterator[Array]:
    """The tensor in pieces of whole rows, or of parts of a row where one is larger."""
    flat = np.ascontiguousarray(weights).reshape(-1).view(np.uint8)
    row = max(1, len(flat) // max(1, weights.shape[0]))
    step = row * max(1, piece_bytes // row) if row <= piece_bytes else piece_bytes // 8 * 8
    for first in range(0, len(flat), step):
        yield flat[first : first + step]


