"""The pass that holds weights compressed in DRAM and SRAM."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.dialects.isa.instruction import attribute_of, integer, integers, value_of
from frustum.dialects.isa.program import Affine, Box, Element, Span, View
from frustum.dialects.isa.sync import ALIGNMENT_BYTES, ExternalOp, ProgramOp
from frustum.dialects.isa.transfer import CopyOp
from frustum.dialects.target import Target
from frustum.dialects.weight_codec import Codec, compress_all, in_slots
from frustum.passes.analysis.module import target_of
from frustum.passes.element_types import NUMPY_BY_NAME
from frustum.passes.lower.weight_slots import Bytes, Flow, Slots, StaysRaw, flows, is_compressed
from frustum.passes.weights import Array, WeightStore, store_of

COMPRESSION = "frustum.compression"
"""Module attribute: what compression came to, as JSON; for the report."""


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

    Source: Frustum specification, "Weights".
    """

    name = "frustum-lower-compress-weights"

    codec: Codec = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [each for each in op.walk() if isinstance(each, ProgramOp)]:
            done = _Program(store_of(op), target_of(op), self.codec).run(program)
            op.attributes[COMPRESSION] = StringAttr(json.dumps(done))


@dataclass
class _Program:
    """The weights of one program."""

    store: WeightStore
    target: Target
    codec: Codec
    made: dict[tuple[ExternalOp, bytes], tuple[ExternalOp, int]] = field(default_factory=dict)
    """Compressed tensors by the original and the ranges of their pieces; with the bytes of a slot."""

    def run(self, program: ProgramOp) -> dict[str, Any]:
        before = _weights(program)
        raw = Counter[str]()
        for flow in list(flows(program)):
            try:
                if flow is None:
                    raise StaysRaw("goes another way")
                self.compress(flow)
            except StaysRaw as reason:
                raw[str(reason)] += 1
        self.settle(before)
        weights = _weights(program)
        return {
            "codec": self.codec,
            "raw_bytes": sum(map(_raw_bytes, weights)),
            "stored_bytes": sum(external.bytes.value.data for external in weights),
            "compressed_tensors": sum(_raw_bytes(e) > 0 and is_compressed(e.buffer) for e in weights),
            "raw_loads": dict(sorted(raw.items())),
        }

    def compress(self, flow: Flow) -> None:
        """Rewrite one flow; StaysRaw where that is not possible or not worth it."""
        slots = Slots(flow, self.target.chip.clusters, self.target.cluster.cores)
        if not slots.runs:
            raise StaysRaw("nothing is loaded")
        key = flow.external, b"".join(part.tobytes() for part in slots.ranges)
        known = self.made.get(key)
        data = None
        if known is None:
            data = self.blocks(slots)
            slot_bytes = data.shape[1]
        else:
            slot_bytes = known[1]
        run_bytes = slots.run_slots * slot_bytes
        if run_bytes * slots.runs >= slots.loaded_bytes or run_bytes > flow.held.bytes.value.data:
            raise StaysRaw("is not smaller")
        external = known[0] if known else self.declare(flow, data, key)
        rewrite(flow, slots, external, slot_bytes)

    def blocks(self, slots: Slots) -> Bytes:
        """The pieces compressed: `[slots, bytes]`."""
        external = slots.flow.external
        dtype = NUMPY_BY_NAME[external.element.data]
        tensor = np.ascontiguousarray(self.store[external.external_name.data], dtype).reshape(-1).view(np.uint8)
        raw, ends = slots.pieces(tensor)
        return in_slots(*compress_all(raw, ends, dtype.itemsize, self.codec), ALIGNMENT_BYTES)

    def declare(self, flow: Flow, data: Bytes | None, key: tuple[ExternalOp, bytes]) -> ExternalOp:
        """The external of the compressed tensor."""
        assert data is not None
        original = flow.external
        element: Element = original.element.data  # type: ignore[assignment]  # verified
        stored = data.reshape(-1).view(NUMPY_BY_NAME[element])
        name = self.keep(f"{original.external_name.data}:{self.codec}", stored)
        external = ExternalOp(name, "weight", data.size, value_of(original.shape), element)
        block = original.parent
        assert block is not None
        block.insert_op_after(external, original)
        self.made[key] = external, data.shape[1]
        return external

    def keep(self, stem: str, stored: Array) -> str:
        """The key of these bytes: the one that another attempt has given them, or a new one."""
        number, key = 0, stem
        while key in self.store:
            if np.array_equal(self.store[key].reshape(-1).view(np.uint8), stored.view(np.uint8)):
                return key
            number += 1
            key = f"{stem}.{number}"
        self.store[key] = stored
        return key

    def settle(self, before: list[ExternalOp]) -> None:
        """Remove tensors that nobody loads any more; of several externals of one tensor, one has its shape."""
        gone = {external for external in before if not any(external.buffer.uses)}
        counted = set()
        for (original, _), (external, _) in self.made.items():
            if original not in gone or original in counted:
                external.properties["shape"] = integers((0,))
            counted.add(original)
        for external in gone & counted:
            external.detach()
            external.erase()


def rewrite(flow: Flow, slots: Slots, external: ExternalOp, slot_bytes: int) -> None:
    """The load moves slots, the fill expands them, the buffer holds a run of them."""
    element, size = flow.load.src_view.data.element, slots.element_bytes
    run = slots.run_slots * slot_bytes // size
    place = slots.number(slots.slow) * run
    one = Span(Affine(), 1, 1)
    strides = (0, 0, 0, size)
    _set(
        flow.load,
        src_view=View(element, place * size, strides),
        dst_view=View(element, Affine(), strides),
        box=Box.of(one, one, one, Span(place, run, slots.runs * run)),
    )
    flow.load.operands[0] = external.buffer
    flow.held.properties["bytes"] = integer(run * size)
    _set(
        flow.fill,
        src_view=View(element, slots.number(slots.fast) * slot_bytes, (0, 0, 0, 0)),
        expand=slot_bytes,
    )


def _set(copy: CopyOp, **fields: Any) -> None:
    for name, value in fields.items():
        copy.properties[name] = attribute_of(value)


def _weights(program: ProgramOp) -> list[ExternalOp]:
    return [op for op in program.body.block.ops if isinstance(op, ExternalOp) and op.class_.data == "weight"]


def _raw_bytes(external: ExternalOp) -> int:
    """Of the tensor, however it is held."""
    return prod(value_of(external.shape)) * NUMPY_BY_NAME[external.element.data].itemsize
