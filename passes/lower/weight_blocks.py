"""Weights as blocks in slots: made, stored under keys of their own, and brought into a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np

from frustum.dialects.extents import ALIGNMENT_BYTES
from frustum.dialects.isa.instruction import attribute_of, integer, integers, value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine, Box, Element, Span, View
from frustum.dialects.isa.sync import ExternalOp, ProgramOp
from frustum.dialects.target import Target
from frustum.dialects.weights.codec import Codec, compress_all, in_slots
from frustum.passes.lower.weight_slots import Bytes, Flow, Slots, StaysRaw
from frustum.passes.weights import NUMPY_BY_NAME, Array, WeightStore

Key = tuple[ExternalOp, bytes]


@dataclass
class Blocks:
    """The blocks of one program's weights, by `codec`."""

    store: WeightStore
    target: Target
    codec: Codec | Literal["raw"]
    made: dict[Key, tuple[ExternalOp, int]] = field(default_factory=dict)
    """Tensors of blocks by the original and the places of its pieces; with the bytes of a slot."""

    def bring(self, flow: Flow, is_worth: Callable[[Slots, int], bool]) -> None:
        """Rewrite one flow; StaysRaw where that is not possible, or not worth it with slots of so many bytes."""
        slots = Slots(flow, self.target.chip.clusters, self.target.cluster.cores)
        if not slots.runs:
            raise StaysRaw("nothing is loaded")
        places = (slots.is_full.shape, slots.tensor_start, flow.load.src_view.data.strides)
        key = flow.external, b"".join(part.tobytes() for part in slots.ranges) + repr(places).encode()
        known = self.made.get(key)
        data = self.blocks(slots) if known is None else np.empty((0, known[1]), np.uint8)
        slot_bytes = data.shape[1]
        if not is_worth(slots, slot_bytes):
            raise StaysRaw("is not smaller")
        external = self.declare(data, key) if known is None else known[0]
        rewrite(flow, slots, external, slot_bytes)

    def blocks(self, slots: Slots) -> Bytes:
        """The pieces as blocks: `[slots, bytes]`."""
        external = slots.flow.external
        dtype = NUMPY_BY_NAME[external.element.data]
        tensor = np.ascontiguousarray(self.store[external.external_name.data], dtype).reshape(-1).view(np.uint8)
        raw, ends = slots.pieces(tensor)
        return in_slots(*compress_all(raw, ends, dtype.itemsize, self.codec), ALIGNMENT_BYTES)

    def declare(self, data: Bytes, key: Key) -> ExternalOp:
        """The external of a tensor in blocks: `[slots, bytes]`."""
        original = key[0]
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


def weights_of(program: ProgramOp) -> list[ExternalOp]:
    """The weights that a program brings along."""
    return [op for op in program.body.block.ops if isinstance(op, ExternalOp) and op.class_.data == "weight"]


def raw_bytes(external: ExternalOp) -> int:
    """Of the tensor, however it is held."""
    return prod(value_of(external.shape)) * NUMPY_BY_NAME[external.element.data].itemsize
