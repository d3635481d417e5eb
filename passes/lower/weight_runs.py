# Tests: test/passes/lower/test_weight_chunks.py
"""The chunks of weights as blocks, each in a slot of its own, under keys of their own, and programs that load these.

A load moves a run of slots, its place in DRAM is affine in the slow indices (`weight_chunks.py`), and the place of a
slot in the buffer is affine in the fast ones.  Copies that take other chunks of the same load than the first ones have
slots of their own behind those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import ALIGNMENT_BYTES, aligned
from frustum.dialects.isa import program as p
from frustum.dialects.isa.instruction import attribute_of, integer, integers, value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import ExternalOp, ProgramOp
from frustum.dialects.target import Target
from frustum.dialects.weights.codec import Codec, compress_all
from frustum.dialects.weights.scaled import SCALED, STORED, ScaledPiece, pack
from frustum.passes.dequantised import is_packed, noted_at
from frustum.passes.lower.executions import Ints
from frustum.passes.lower.weight_chunks import Chunks
from frustum.passes.lower.weight_chunks import Key as ChunkKey
from frustum.passes.lower.weight_slots import Flow, StaysRaw, index_of
from frustum.passes.weights import NUMPY_BY_NAME, Array, WeightStore

Bytes = NDArray[np.uint8]
Key = tuple[ExternalOp, tuple[ChunkKey, ...]]


@dataclass(frozen=True)
class Places:
    """Where the blocks of a run lie: a slot has `slot_bytes`, `steps` are bytes by fast index, and a run ends where its
    last slot does.  A slot may begin where the block before it ends."""

    slot_bytes: int
    steps: tuple[int, ...]
    run_bytes: int

    @staticmethod
    def of(chunks: Chunks, sizes: Ints, *, even: bool) -> Places:
        """For blocks of so many bytes, `[runs, slots of a run]`: one behind the other, or `even` in steps of a slot."""
        counts = [chunks.sizes[index] for index in chunks.fast]
        slot, steps = int(sizes.max()), [0] * len(counts)
        inside = np.zeros(prod(counts), np.int64)
        inside[: sizes.shape[1]] = slot if even else sizes.max(axis=0)
        inside = inside.reshape(counts)
        for nth in reversed(range(len(counts))):
            steps[nth] = int(inside[..., :-1].max(initial=0))
            ends = inside + np.arange(counts[nth]) * steps[nth]
            inside = np.where(inside > 0, ends, 0).max(axis=-1)
        own = Places(slot, tuple(steps), 0)
        last = own.offsets(chunks)[: sizes.shape[1]][(sizes > 0).any(axis=0)].max(initial=0)
        return Places(slot, tuple(steps), int(last) + slot)

    def offsets(self, chunks: Chunks) -> Ints:
        """Bytes from the start of a run to each of its chunks."""
        counts = [chunks.sizes[index] for index in chunks.fast]
        indices = np.indices(counts).reshape(len(counts), prod(counts))
        found: Ints = np.array(self.steps, np.int64) @ indices
        return found

    def offset(self, chunks: Chunks) -> p.Affine:
        """The same as a function of the indices."""
        return sum((index_of(k) * step for k, step in zip(chunks.fast, self.steps, strict=True)), p.Affine())


Blocked = tuple[Bytes, Ints]
"""Blocks one behind the other, and where each ends."""


@dataclass(frozen=True)
class WeightRun:
    """What a load brings: the slots of every kind of chunks, one kind behind the other."""

    kinds: tuple[Chunks, ...]
    places: tuple[Places, ...]

    @property
    def chunks(self) -> Chunks:
        """The first kind; runs are the same of all."""
        return self.kinds[0]

    @property
    def flow(self) -> Flow:
        return self.chunks.flow

    @property
    def runs(self) -> int:
        return max(each.runs for each in self.kinds)

    @property
    def run_bytes(self) -> int:
        return sum(each.run_bytes for each in self.places)

    @property
    def starts(self) -> list[int]:
        """Where the slots of each kind begin."""
        return [sum(each.run_bytes for each in self.places[:k]) for k in range(len(self.places))]


@dataclass
class Blocks:
    """The blocks of one program's weights, by `codec`."""

    store: WeightStore
    target: Target
    codec: Codec | Literal["none", "raw"]
    """With `none`, and with any codec where that is smaller, weights that are dequantised stay integers with scales."""
    even: bool = False
    """Whether every block has a slot of the same size."""
    scaled_ones: set[ExternalOp] = field(default_factory=set)
    made: dict[Key, tuple[ExternalOp, tuple[Places, ...]]] = field(default_factory=dict)
    """Tensors of blocks by the original and its chunks; with the places of the blocks."""

    def bring(self, flows: Sequence[Flow], is_worth: Callable[[WeightRun], bool]) -> None:
        """Rewrite a load with its fills; StaysRaw where that is not possible, or not worth it with blocks in these
        places."""
        each = [Chunks(flow, self.target.chip.clusters, self.target.cluster.cores) for flow in flows]
        if not all(chunks.runs for chunks in each):
            raise StaysRaw("nothing is loaded")
        kinds = dict[ChunkKey, Chunks]()
        for chunks in each:
            kinds.setdefault(chunks.key, chunks)
        gates = each[0].gates()
        if self.even and (gates or len(kinds) > 1):
            raise StaysRaw("two readers have other pieces" if len(kinds) > 1 else "is loaded in some passes only")
        key = flows[0].external, tuple(kinds)
        known = self.made.get(key)
        forms, places = self.smallest(list(kinds.values())) if known is None else ([], known[1])
        run = WeightRun(tuple(kinds.values()), places)
        if not is_worth(run):
            raise StaysRaw("is not smaller")
        external = self.declare(run, forms, key) if known is None else known[0]
        rewrite_load(run, external, gates)
        own = dict(zip(kinds, zip(places, run.starts, strict=True), strict=True))
        for chunks in each:
            rewrite_fill(chunks, *own[chunks.key])

    def smallest(self, kinds: Sequence[Chunks]) -> tuple[list[Blocked], tuple[Places, ...]]:
        """The chunks as blocks, in the form that makes runs smallest, and where they lie."""
        ways = list[tuple[list[Blocked], tuple[Places, ...]]]()
        for make in (self.scaled, self.blocks):
            forms = [form for chunks in kinds if (form := make(chunks)) is not None]
            if len(forms) == len(kinds):
                sizes = [self.sizes(*both) for both in zip(kinds, forms, strict=True)]
                placed = [Places.of(*both, even=self.even) for both in zip(kinds, sizes, strict=True)]
                ways.append((forms, tuple(placed)))
        if not ways:
            raise StaysRaw("has no stored form")
        return min(ways, key=lambda way: sum(each.run_bytes for each in way[1]))

    def sizes(self, chunks: Chunks, form: Blocked) -> Ints:
        """Bytes that each block takes, `[runs, slots of a run]`; none where there is no piece."""
        sizes = aligned(np.diff(form[1], prepend=0), ALIGNMENT_BYTES).reshape(chunks.kept.shape)
        return np.where(chunks.kept, sizes, 0)

    def scaled(self, chunks: Chunks) -> Blocked | None:
        """Pieces as integers with scales; None for weights that are not computed from such."""
        found = noted_at(chunks.flow.external, self.store) if self.codec != "raw" else None
        if found is None or not is_packed(chunks.flow.external):
            return None
        zeros = found.zeros.reshape(-1) if found.has_zeros else None
        both = zip(chunks.pieces(found.integers), chunks.pieces(found.numbers), strict=True)
        width = chunks.element_bytes
        scales = found.scales.reshape(-1)
        made = [pack(ScaledPiece(q, numbers, scales, zeros, found.bits), width) for q, numbers in both]
        return np.concatenate(made), np.cumsum([len(each) for each in made])

    def blocks(self, chunks: Chunks) -> Blocked | None:
        """Pieces compressed without loss, or raw ones; None where that is not asked for."""
        if self.codec == "none":
            return None
        external = chunks.flow.external
        dtype = NUMPY_BY_NAME[external.element.data]
        tensor = np.ascontiguousarray(self.store[external.external_name.data], dtype).view(f"u{dtype.itemsize}")
        pieces = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in chunks.pieces(tensor)]
        ends = np.cumsum([len(each) for each in pieces])
        return compress_all(np.concatenate(pieces), ends, dtype.itemsize, self.codec)

    def declare(self, run: WeightRun, forms: Sequence[Blocked], key: Key) -> ExternalOp:
        """The external of a tensor in blocks: its runs one behind the other."""
        original, data = key[0], np.zeros((run.runs, run.run_bytes), np.uint8)
        for chunks, form, places, start in zip(run.kinds, forms, run.places, run.starts, strict=True):
            _write(data[:, start:], chunks, form, places)
        element: p.Element = original.element.data  # type: ignore[assignment]  # verified
        stored = data.reshape(-1).view(NUMPY_BY_NAME[element])
        is_scaled = forms[0][0][0] == SCALED
        name = self.keep(f"{original.external_name.data}:{STORED if is_scaled else self.codec}", stored)
        external = ExternalOp(name, "weight", data.size, value_of(original.shape), element)
        block = original.parent
        assert block is not None
        block.insert_op_after(external, original)
        if is_scaled:
            self.scaled_ones.add(external)
        self.made[key] = external, run.places
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


def _write(data: Bytes, chunks: Chunks, form: Blocked, places: Places) -> None:
    """The blocks of chunks in their slots, `[runs, bytes of a run]`."""
    (blocks, ends), offsets = form, places.offsets(chunks).tolist()
    full = chunks.kept.ravel().tolist()
    for number, (is_full, end, start) in enumerate(zip(full, ends.tolist(), [0, *ends.tolist()], strict=False)):
        if is_full:
            run, slot = divmod(number, chunks.run_chunks)
            data[run, offsets[slot] : offsets[slot] + end - start] = blocks[start:end]


def rewrite_load(run: WeightRun, external: ExternalOp, gates: Sequence[p.Span]) -> None:
    """The load moves slots, in passes in which it moved anything; the buffer holds a run of them."""
    flow, chunks = run.flow, run.chunks
    element, size = flow.load.src_view.data.element, chunks.element_bytes
    length = run.run_bytes // size
    place = chunks.number(chunks.slow) * length
    one = p.Span(p.Affine(), 1, 1)
    strides = (0, 0, 0, size)
    sides = [*gates, *[one] * (p.DIMENSIONS - 1 - len(gates)), p.Span(place, length, run.runs * length)]
    _set(
        flow.load,
        src_view=p.View(element, place * size, strides),
        dst_view=p.View(element, p.Affine(), strides),
        box=p.Box.of(*sides),
    )
    flow.load.operands[0] = external.buffer
    flow.held.properties["bytes"] = integer(run.run_bytes)


def rewrite_fill(chunks: Chunks, places: Places, start: int) -> None:
    """The fill expands the block of its slot."""
    element = chunks.flow.fill.src_view.data.element
    _set(
        chunks.flow.fill,
        src_view=p.View(element, places.offset(chunks) + start, (0, 0, 0, 0)),
        expand=places.slot_bytes,
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
