"""The pass that holds weights in a stored form in DRAM and SRAM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.module import COMPRESSION, EXPANDED, LAYERS, texts_of
from frustum.dialects.weights.codec import Codec
from frustum.passes.analysis.module import target_of
from frustum.passes.dequantised import is_packed
from frustum.passes.lower import fills_at_once
from frustum.passes.lower import weight_runs as wr
from frustum.passes.lower import weight_slots as ws
from frustum.passes.weights import store_of

SMALL = 2048
"""Bytes of a piece of which the codes of a block are a part that counts: f16 with 30 exponents have codes of 60 bytes.
2026-11-28."""


@dataclass(frozen=True)
class CompressWeights(ModulePass):
    """Keep weights in a stored form until they enter WRAM or NRAM.

    Before: weights lie in DRAM as tensors; copies bring them, or parts, into SRAM, and from there piece by piece into
    WRAM or NRAM.  After: each piece is a block in a slot as large as the tensor's largest block needs; the copies into
    SRAM move slots as they are, those into the cores expand them.  The stored weights are externals with keys of their
    own, which keep shape and element of the tensor.

    1. `codec` says what a block may be: zero runs, Huffman codes, or (auto) either or both, whichever is smallest; with
       none, tensors stay as they are but for case 2.
    2. A tensor that the model dequantises from integers is held as these, with their scales and zero points, unless
       the codec makes it smaller.
    3. Each load is looked at by itself.  One of which the slots are not smaller than what is loaded now stays as it
       is; so does one whose weights go another way than from SRAM into the cores, by copies that each take what that
       load has brought (`weight_chunks.py`), and one of `raw_layers`.  They are counted in the module attribute.
    4. Loops, buffers and what copies wait for stay as they are; buffers in SRAM get smaller.  But with `at_once` the
       small pieces of all passes of a loop become one block, and come into WRAM by one copy a pass of the loop around
       ahead, where cores have room (`fills_at_once.py`).

    Source: docs/techniques/frustum.md, "Weights".
    """

    name = "frustum-lower-compress-weights"

    codec: Codec | Literal["none"] = "auto"
    even: bool = False
    """Whether every slot of a tensor has the same size, as `frustum-lower-share-weights` asks for."""
    raw_layers: tuple[str, ...] = ()
    """Layers whose weights stay as they are."""
    at_once: bool = False
    """Whether small pieces of the passes of a loop may come into the cores at once (`fills_at_once.py`)."""
    apart_layers: tuple[str, ...] = ()
    """Layers of which they may not."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        layers = texts_of(op, LAYERS)
        raw, apart = ({k for k, n in enumerate(layers) if n in names} for names in (self.raw_layers, self.apart_layers))
        apart = apart if self.at_once else set(range(len(layers)))
        for program in [each for each in op.walk() if isinstance(each, ProgramOp)]:
            blocks = wr.Blocks(store_of(op), target_of(op), self.codec, self.even)
            done = compress(program, blocks, raw, apart)
            if done is not None:
                op.attributes[COMPRESSION] = StringAttr(json.dumps(done))


def compress(
    program: ProgramOp, blocks: wr.Blocks, raw_layers: Container[int] = (), apart_layers: Container[int] | None = None
) -> dict[str, Any] | None:  # fmt: skip
    """Put what gets smaller by it into a stored form, but for weights of some layers; what the report says of it, None
    where none was asked for.  Small pieces come at once but for those of other layers; None: of all."""
    before = wr.weights_of(program)
    raw, expanded = Counter[str](), Counter[str]()
    for external, ways in list(ws.loads(program)):
        is_stored = is_packed(external)
        if (reason := external.attributes.get(EXPANDED)) is not None:
            assert isinstance(reason, StringAttr)
            expanded[reason.data] += 1
        if blocks.codec == "none" and not is_stored:
            continue
        try:
            if not ways:
                raise ws.StaysRaw("goes another way")
            layers = [way.fill.layer.value.data for way in ways]
            if not is_stored and any(layer in raw_layers for layer in layers):
                raise ws.StaysRaw("takes more cycles")
            is_apart = is_stored or apart_layers is None or any(layer in apart_layers for layer in layers)
            if is_apart or not _joined(program, ways, blocks):
                blocks.bring(ways, is_smaller)
        except ws.StaysRaw as reason:
            (expanded if is_stored else raw)[str(reason)] += 1
    blocks.settle(before)
    weights = wr.weights_of(program)
    if blocks.codec == "none" and not blocks.scaled_ones and not expanded:
        return None
    in_slots = [each for each in weights if wr.raw_bytes(each) > 0 and ws.is_compressed(each.buffer)]
    packed = sum(each in blocks.scaled_ones for each in in_slots)
    return {
        "codec": blocks.codec,
        "raw_bytes": sum(map(wr.raw_bytes, weights)),
        "stored_bytes": sum(external.bytes.value.data for external in weights),
        "compressed_tensors": len(in_slots) - packed,
        "packed_tensors": packed,
        "raw_loads": dict(sorted(raw.items())),
        "expanded_loads": dict(sorted(expanded.items())),
    }


def _joined(program: ProgramOp, ways: Sequence[ws.Flow], blocks: wr.Blocks) -> bool:
    """Bring the pieces of all passes of a loop as one block where pieces are small; whether that was possible, and made
    them smaller."""
    all_ = [fills_at_once.at_once(program, way, blocks.target) if _is_small(way) else None for way in ways]
    found = [each for each in all_ if each is not None]
    if not found:
        return False
    try:
        blocks.bring([way if each is None else each.flow for way, each in zip(ways, all_, strict=True)], is_smaller)
    except ws.StaysRaw:
        for each in found:
            each.undo()
        return False
    for each in found:
        each.settle()
    return True


def _is_small(way: ws.Flow) -> bool:
    fill = way.fill
    return prod(fill.box.data.extent) * ELEMENT_BYTES[fill.src_view.data.element] < SMALL


def is_smaller(run: wr.WeightRun) -> bool:
    """Whether less is moved and held than without blocks."""
    is_less = run.run_bytes * run.runs < run.chunks.loaded_bytes
    return is_less and run.run_bytes <= run.flow.held.bytes.value.data
