# Tests: test/pipeline/test_compressed_weights.py
"""Where the pieces of a tensor of weights lie when each is a block in a slot of its own.

Weights go from DRAM into a buffer in SRAM (the *load*) and from there, piece by piece, into WRAM (the *fill*).  A slot
is a combination of the loop indices, cluster and core that the fill's box depends on.  Slots are numbered with the
indices that the load depends on as the slow ones: so a load moves one run of slots, its place in DRAM is affine in the
slow indices, and the place of a fill's slot in the buffer is affine in the others.

`Slots` says where they lie; `Blocks` makes them, stores them under keys of their own, and brings them into a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from frustum.dialects.extents import ALIGNMENT_BYTES, aligned
from frustum.dialects.isa import program as p
from frustum.dialects.isa.attributes import BufferType
from frustum.dialects.isa.instruction import attribute_of, integer, integers, value_of
from frustum.dialects.isa.operations import LOCAL, CopyOp
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.dialects.target import Target
from frustum.dialects.weights.codec import Codec, compress_all
from frustum.dialects.weights.scaled import SCALED, STORED, ScaledPiece, pack
from frustum.passes.dequantised import is_packed, noted_at
from frustum.passes.lower.executions import Ints, coefficients, enclosing_counts
from frustum.passes.weights import NUMPY_BY_NAME, Array, WeightStore

Bytes = NDArray[np.uint8]

CLUSTER, CORE = p.MAX_LOOPS, p.MAX_LOOPS + 1
"""Numbers of these indices, behind those of the loops."""
MOST_SLOTS = 1 << 20


class StaysRaw(Exception):
    """Why weights cannot be held piece by piece."""


@dataclass(frozen=True)
class Flow:
    """The way of weights: from `external` by `load` into `held`, and by `fill` into WRAM."""

    external: ExternalOp
    load: CopyOp
    held: AllocOp
    fill: CopyOp


def flows(program: ProgramOp) -> Iterator[Flow | None]:
    """Each load of weights that are not in slots; None where what follows it is not a single fill of WRAM in its own
    shape."""
    return (ways[0] if len(ways) == 1 and to_wram(ways[0].fill) else None for _, ways in loads(program))


def to_wram(fill: CopyOp) -> bool:
    return isinstance(fill.dst.type, BufferType) and fill.dst.type.memory == "wram"


def loads(program: ProgramOp) -> Iterator[tuple[ExternalOp, list[Flow]]]:
    """The same weights, and of each load the ways to its fills, those of NRAM too; none where there are others."""
    for op in program.walk():
        if isinstance(op, CopyOp) and isinstance(op.src.owner, ExternalOp):
            external = op.src.owner
            if external.class_.data == "weight" and not is_compressed(external.buffer):
                yield external, _ways(external, op)


def is_compressed(weights: SSAValue) -> bool:
    """Whether these weights, in DRAM, are expanded behind the buffer that they are loaded into."""
    loads = [use.operation for use in weights.uses if isinstance(use.operation, CopyOp)]
    users = [use.operation for load in loads for use in load.dst.uses]
    return any(isinstance(user, CopyOp) and user.expand is not None for user in users)


def _ways(external: ExternalOp, load: CopyOp) -> list[Flow]:
    held, users = load.dst.owner, [use.operation for use in load.dst.uses]
    if not isinstance(held, AllocOp) or held.parent is not load.parent or not is_plain(load):
        return []
    fills = [user for user in users if isinstance(user, CopyOp) and user.dst is not held.buffer and is_plain(user)]
    in_cores = [f for f in fills if isinstance(f.dst.type, BufferType) and f.dst.type.memory in LOCAL]
    return [Flow(external, load, held, fill) for fill in in_cores] if len(in_cores) == len(users) - 1 else []


def is_plain(copy: CopyOp) -> bool:
    return copy.fill is None and copy.src_view.data.wrap is None


Key = tuple[ExternalOp, bytes]


@dataclass(frozen=True)
class Slots:
    """The slots of a flow, on clusters of `cores` cores; `StaysRaw` where its pieces are no slots."""

    flow: Flow
    clusters: int
    cores: int

    def __post_init__(self) -> None:
        load, fill = self.flow.load, self.flow.fill
        for copy in (load, fill):
            if copy.box.data.bound != fill.box.data.bound:
                raise StaysRaw("pieces are of another map than what is loaded")
        if not set(self._used(load.box.data)) <= set(self._used(fill.box.data)):
            raise StaysRaw("pieces do not move with what is loaded")
        if not self._lies_alike() or not self.tensor_start.is_constant:
            raise StaysRaw("pieces are read from elsewhere than where they are loaded to")
        if prod(self.sizes[index] for index in self.indices) > MOST_SLOTS:
            raise StaysRaw("more pieces than can be listed")

    @cached_property
    def sizes(self) -> list[int]:
        """How many values each index takes: loops, cluster, core."""
        counts = enclosing_counts(self.flow.fill)
        cores = self.cores if self.flow.fill.engine_of() in p.CORE_ENGINES else 1
        return [*counts, *(1,) * (p.MAX_LOOPS - len(counts)), self.clusters, cores]

    @cached_property
    def slow(self) -> list[int]:
        """Indices that the load depends on."""
        return self._used(self.flow.load.box.data)

    @cached_property
    def fast(self) -> list[int]:
        """The other ones that the fill depends on; those of the first dimensions, and by larger steps, go first."""
        return [index for index in self._used(self.flow.fill.box.data) if index not in self.slow]

    @property
    def indices(self) -> list[int]:
        return self.slow + self.fast

    def _used(self, box: p.Box) -> list[int]:
        steps = np.array([coefficients(start) for start in box.start])
        limits = np.array([coefficients(limit or p.Affine()) for limit in box.limit])
        limits[limits <= -np.array(box.bound)[:, None]] = 0  # behind the first pass nothing is left of the box
        used = np.flatnonzero((steps != 0).any(axis=0) | (limits != 0).any(axis=0)).tolist()

        def order(index: int) -> tuple[int, int]:
            moved = np.flatnonzero(steps[:, index])
            return (int(moved[0]), -abs(int(steps[moved[0], index]))) if len(moved) else (len(steps), 0)

        return sorted((index for index in used if self.sizes[index] > 1), key=order)

    def _lies_alike(self) -> bool:
        """Whether the fill reads every position from where the load has put it."""
        load, fill = self.flow.load, self.flow.fill
        put, taken = load.dst_view.data, fill.src_view.data
        offset = put.offset
        for d in range(4):
            moved = fill.box.data.start[d] - load.box.data.start[d]
            if put.strides[d] != taken.strides[d] and (load.box.data.extent[d] > 1 or moved != p.Affine()):
                return False
            offset = offset + moved * put.strides[d]
        return self._at_one(offset) == self._at_one(taken.offset)

    def _at_one(self, function: p.Affine) -> p.Affine:
        """The function without indices that are always 0."""
        loops = tuple(c if self.sizes[level] > 1 else 0 for level, c in enumerate(function.loops))
        cluster, core = (c if self.sizes[k] > 1 else 0 for k, c in ((CLUSTER, function.cluster), (CORE, function.core)))
        return p.Affine(function.base, loops, cluster, core)

    @cached_property
    def tensor_start(self) -> p.Affine:
        """Bytes from the start of the tensor to position 0 of all dimensions."""
        load = self.flow.load
        offset = load.src_view.data.offset
        for start, stride in zip(load.box.data.start, load.src_view.data.strides, strict=True):
            offset = offset - start * stride
        return self._at_one(offset)

    @cached_property
    def ranges(self) -> tuple[Ints, Ints]:
        """First position and the one after the last of each slot's piece: `[4, slots]`; empty where equal."""
        return self._clip(self.flow.fill.box.data, self.indices)

    def _clip(self, box: p.Box, indices: Sequence[int]) -> tuple[Ints, Ints]:
        sizes = [self.sizes[index] for index in indices]
        values = np.zeros((p.MAX_LOOPS + 2, prod(sizes)), np.int64)
        values[list(indices)] = np.indices(sizes).reshape(len(sizes), prod(sizes))

        def at(function: p.Affine) -> Ints:
            found: Ints = function.base + np.array(coefficients(function)) @ values
            return found

        lower, upper = [], []
        for span in box.spans:
            start = at(span.start)
            stop = np.minimum(start + span.extent, span.bound)
            stop = stop if span.limit is None else np.minimum(stop, at(span.limit))
            lower.append(np.maximum(start, 0))
            upper.append(np.maximum(stop, lower[-1]))
        return np.stack(lower), np.stack(upper)

    @cached_property
    def is_full(self) -> NDArray[np.bool_]:
        """Whether each slot has anything in it: `[runs, slots of a run]`."""
        first, stop = self.ranges
        run = prod(self.sizes[index] for index in self.fast)
        return (stop > first).all(axis=0).reshape(-1, run)

    @property
    def runs(self) -> int:
        """Runs up to the last with anything in it."""
        return int(np.flatnonzero(self.is_full.any(axis=1))[-1]) + 1 if self.is_full.any() else 0

    @property
    def run_slots(self) -> int:
        """Slots of a run up to the last with anything in it."""
        return int(np.flatnonzero(self.is_full.any(axis=0))[-1]) + 1 if self.is_full.any() else 0

    @property
    def loaded_bytes(self) -> int:
        """What all loads together move of the tensor as it is, each once."""
        first, stop = self._clip(self.flow.load.box.data, self.slow)
        return int((stop - first).prod(axis=0).sum()) * self.element_bytes

    @property
    def element_bytes(self) -> int:
        return p.ELEMENT_BYTES[self.flow.load.src_view.data.element]

    @property
    def key(self) -> Key:
        """What tells the slots of one tensor from others of it."""
        counts = [self.sizes[index] for index in self.indices]
        places = (len(self.slow), counts, self.tensor_start, self.flow.load.src_view.data.strides)
        return self.flow.external, b"".join(part.tobytes() for part in self.ranges) + repr(places).encode()

    def number(self, indices: Sequence[int]) -> p.Affine:
        """The number that these indices make, the last the fastest."""
        total, step = p.Affine(), 1
        for index in reversed(indices):
            total = total + _index(index) * step
            step *= self.sizes[index]
        return total

    def pieces(self, tensor: Array) -> Iterator[Array]:
        """The pieces of the runs' slots, `[d0, d1, d2, d3]`; `tensor`: its elements, or what there is of each."""
        size, (first, stop) = self.element_bytes, self.ranges
        kept = np.arange(self.is_full.size).reshape(self.is_full.shape)[: self.runs, : self.run_slots].ravel()
        view, bound = self.flow.load.src_view.data, self.flow.fill.box.data.bound
        start = self.tensor_start.base // size
        steps = [stride // size if n > 1 else 1 for n, stride in zip(bound, view.strides, strict=True)]
        last = start + sum((n - 1) * step for n, step in zip(bound, steps, strict=True))
        assert min(steps) >= 0 <= start and last < tensor.size, "beyond the tensor"
        flat = np.ascontiguousarray(tensor).reshape(-1)
        whole = np.lib.stride_tricks.as_strided(flat[start:], bound, [step * flat.itemsize for step in steps])
        for slot in kept.tolist():
            ends = zip(first[:, slot].tolist(), stop[:, slot].tolist(), strict=True)
            yield whole[tuple(slice(*each) for each in ends)]


def _index(number: int) -> p.Affine:
    if number < p.MAX_LOOPS:
        return p.Affine.index(number)
    return p.Affine(cluster=1) if number == CLUSTER else p.Affine(core=1)


@dataclass(frozen=True)
class Places:
    """Where the blocks of a run lie: a slot has `slot_bytes`, `steps` are bytes by fast index, and a run ends where its
    last slot does.  A slot may begin where the block before it ends."""

    slot_bytes: int
    steps: tuple[int, ...]
    run_bytes: int

    @staticmethod
    def of(slots: Slots, sizes: Ints, *, even: bool) -> Places:
        """For blocks of so many bytes, `[runs, slots of a run]`: one behind the other, or `even` in steps of a slot."""
        counts = [slots.sizes[index] for index in slots.fast]
        slot, steps = int(sizes.max()), [0] * len(counts)
        inside = np.zeros(prod(counts), np.int64)
        inside[: sizes.shape[1]] = slot if even else sizes.max(axis=0)
        inside = inside.reshape(counts)
        for nth in reversed(range(len(counts))):
            steps[nth] = int(inside[..., :-1].max(initial=0))
            ends = inside + np.arange(counts[nth]) * steps[nth]
            inside = np.where(inside > 0, ends, 0).max(axis=-1)
        own = Places(slot, tuple(steps), 0)
        last = own.offsets(slots)[: sizes.shape[1]][(sizes > 0).any(axis=0)].max(initial=0)
        return Places(slot, tuple(steps), int(last) + slot)

    def offsets(self, slots: Slots) -> Ints:
        """Bytes from the start of a run to each of its slots."""
        counts = [slots.sizes[index] for index in slots.fast]
        indices = np.indices(counts).reshape(len(counts), prod(counts))
        found: Ints = np.array(self.steps, np.int64) @ indices
        return found

    def offset(self, slots: Slots) -> p.Affine:
        """The same as a function of the indices."""
        return sum((_index(k) * step for k, step in zip(slots.fast, self.steps, strict=True)), p.Affine())


Blocked = tuple[Bytes, Ints]
"""Blocks one behind the other, and where each ends."""


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
    made: dict[Key, tuple[ExternalOp, Places]] = field(default_factory=dict)
    """Tensors of blocks by the original and the places of its pieces; with those of the blocks."""

    def bring(self, flows: Sequence[Flow], is_worth: Callable[[Slots, Places], bool]) -> None:
        """Rewrite a load with its fills; StaysRaw where that is not possible, or not worth it with blocks in these
        places."""
        each = [Slots(flow, self.target.chip.clusters, self.target.cluster.cores) for flow in flows]
        keys = {slots.key for slots in each}
        if len(keys) > 1:
            raise StaysRaw("two readers have other pieces")
        (key,), slots = keys, each[0]
        if not slots.runs:
            raise StaysRaw("nothing is loaded")
        known = self.made.get(key)
        form, places = self.smallest(slots) if known is None else (None, known[1])
        if not is_worth(slots, places):
            raise StaysRaw("is not smaller")
        external = self.declare(slots, form, places, key) if form is not None else self.made[key][0]
        rewrite_load(slots, external, places)
        for own in each:
            rewrite_fill(own, places)

    def smallest(self, slots: Slots) -> tuple[Blocked, Places]:
        """The pieces as blocks, in the form that makes runs smallest, and where they lie."""
        forms = [form for make in (self.scaled, self.blocks) if (form := make(slots)) is not None]
        if not forms:
            raise StaysRaw("has no stored form")
        placed = [(form, Places.of(slots, self.sizes(slots, form), even=self.even)) for form in forms]
        return min(placed, key=lambda each: each[1].run_bytes)

    def sizes(self, slots: Slots, form: Blocked) -> Ints:
        """Bytes that each block takes, `[runs, slots of a run]`; none where there is no piece."""
        sizes = aligned(np.diff(form[1], prepend=0), ALIGNMENT_BYTES).reshape(slots.runs, slots.run_slots)
        return np.where(slots.is_full[: slots.runs, : slots.run_slots], sizes, 0)

    def scaled(self, slots: Slots) -> Blocked | None:
        """Pieces as integers with scales; None for weights that are not computed from such."""
        found = noted_at(slots.flow.external, self.store) if self.codec != "raw" else None
        if found is None or not is_packed(slots.flow.external):
            return None
        zeros = found.zeros.reshape(-1) if found.has_zeros else None
        both = zip(slots.pieces(found.integers), slots.pieces(found.numbers), strict=True)
        width = slots.element_bytes
        scales = found.scales.reshape(-1)
        made = [pack(ScaledPiece(q, numbers, scales, zeros, found.bits), width) for q, numbers in both]
        return np.concatenate(made), np.cumsum([len(each) for each in made])

    def blocks(self, slots: Slots) -> Blocked | None:
        """Pieces compressed without loss, or raw ones; None where that is not asked for."""
        if self.codec == "none":
            return None
        external = slots.flow.external
        dtype = NUMPY_BY_NAME[external.element.data]
        tensor = np.ascontiguousarray(self.store[external.external_name.data], dtype).view(f"u{dtype.itemsize}")
        pieces = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in slots.pieces(tensor)]
        ends = np.cumsum([len(each) for each in pieces])
        return compress_all(np.concatenate(pieces), ends, dtype.itemsize, self.codec)

    def declare(self, slots: Slots, form: Blocked, places: Places, key: Key) -> ExternalOp:
        """The external of a tensor in blocks: its runs one behind the other."""
        (blocks, ends), original, offsets = form, key[0], places.offsets(slots).tolist()
        data = np.zeros((slots.runs, places.run_bytes), np.uint8)
        full = slots.is_full[: slots.runs, : slots.run_slots].ravel().tolist()
        for number, (is_full, end, start) in enumerate(zip(full, ends.tolist(), [0, *ends.tolist()], strict=False)):
            if is_full:
                run, slot = divmod(number, slots.run_slots)
                data[run, offsets[slot] : offsets[slot] + end - start] = blocks[start:end]
        element: p.Element = original.element.data  # type: ignore[assignment]  # verified
        stored = data.reshape(-1).view(NUMPY_BY_NAME[element])
        is_scaled = blocks[0] == SCALED
        name = self.keep(f"{original.external_name.data}:{STORED if is_scaled else self.codec}", stored)
        external = ExternalOp(name, "weight", data.size, value_of(original.shape), element)
        block = original.parent
        assert block is not None
        block.insert_op_after(external, original)
        if is_scaled:
            self.scaled_ones.add(external)
        self.made[key] = external, places
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


def rewrite_load(slots: Slots, external: ExternalOp, places: Places) -> None:
    """The load moves slots, the buffer holds a run of them."""
    flow = slots.flow
    element, size = flow.load.src_view.data.element, slots.element_bytes
    run = places.run_bytes // size
    place = slots.number(slots.slow) * run
    one = p.Span(p.Affine(), 1, 1)
    strides = (0, 0, 0, size)
    _set(
        flow.load,
        src_view=p.View(element, place * size, strides),
        dst_view=p.View(element, p.Affine(), strides),
        box=p.Box.of(one, one, one, p.Span(place, run, slots.runs * run)),
    )
    flow.load.operands[0] = external.buffer
    flow.held.properties["bytes"] = integer(run * size)


def rewrite_fill(slots: Slots, places: Places) -> None:
    """The fill expands the block of its slot."""
    element = slots.flow.fill.src_view.data.element
    _set(
        slots.flow.fill,
        src_view=p.View(element, places.offset(slots), (0, 0, 0, 0)),
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
