"""The pass that holds weights compressed in DRAM and SRAM."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.module import COMPRESSION
from frustum.dialects.weights.codec import Codec
from frustum.passes.analysis.module import target_of
from frustum.passes.lower import weight_slots as ws
from frustum.passes.weights import store_of


@dataclass(frozen=True)
class CompressWeights(ModulePass):
    """Keep weights compressed until they enter WRAM.

    Before: weights lie in DRAM as tensors; copies bring them, or parts, into SRAM, and from there piece by piece into
    WRAM.  After: each piece is a block in a slot as large as the tensor's largest block needs; the copies into SRAM
    move slots as they are, those into WRAM expand them.  The compressed weights are externals with keys of their own,
    which keep shape and element of the tensor.

    1. `codec` says what a block may be: zero runs, Huffman codes, or (auto) either or both, whichever is smallest.
    2. A tensor of which the slots are not smaller than what is loaded now stays as it is; so does one that goes
       another way than from SRAM into WRAM by one copy.  Both are counted in the module attribute.
    3. Loops, buffers and what copies wait for stay as they are; buffers in SRAM get smaller.

    Source: docs/techniques/frustum.md, "Weights".
    """

    name = "frustum-lower-compress-weights"

    codec: Codec = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [each for each in op.walk() if isinstance(each, ProgramOp)]:
            done = compress(program, ws.Blocks(store_of(op), target_of(op), self.codec))
            op.attributes[COMPRESSION] = StringAttr(json.dumps(done))


def compress(program: ProgramOp, blocks: ws.Blocks) -> dict[str, Any]:
    """Compress what gets smaller by it; what the report says of it."""
    before = ws.weights_of(program)
    raw = Counter[str]()
    for flow in list(ws.flows(program)):
        try:
            if flow is None:
                raise ws.StaysRaw("goes another way")
            blocks.bring(flow, is_smaller)
        except ws.StaysRaw as reason:
            raw[str(reason)] += 1
    blocks.settle(before)
    weights = ws.weights_of(program)
    return {
        "codec": blocks.codec,
        "raw_bytes": sum(map(ws.raw_bytes, weights)),
        "stored_bytes": sum(external.bytes.value.data for external in weights),
        "compressed_tensors": sum(ws.raw_bytes(e) > 0 and ws.is_compressed(e.buffer) for e in weights),
        "raw_loads": dict(sorted(raw.items())),
    }


def is_smaller(slots: ws.Slots, slot_bytes: int) -> bool:
    """Whether less is moved and held than without blocks."""
    run_bytes = slots.run_slots * slot_bytes
    return run_bytes * slots.runs < slots.loaded_bytes and run_bytes <= slots.flow.held.bytes.value.data
