# Tests: test/pipeline/test_compressed_weights.py
"""Ways of weights: from DRAM into a buffer in SRAM (the *load*), from there piece by piece into cores (the *fill*).

`Slots` says of a way in which both copies name positions of the tensor which pieces there are: a slot is a combination
of the loop indices, cluster and core that the fill's box depends on.  Slots are numbered with the indices that the load
depends on as the slow ones.  Of other ways `weight_chunks.py` finds out by listing what is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from frustum.dialects.isa import program as p
from frustum.dialects.isa.attributes import BufferType
from frustum.dialects.isa.operations import LOCAL, CopyOp
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.passes.lower.executions import Ints, coefficients, enclosing_counts

CLUSTER, CORE = p.MAX_LOOPS, p.MAX_LOOPS + 1
"""Numbers of these indices, behind those of the loops."""
MOST_SLOTS = 1 << 20


class StaysRaw(Exception):
    """Why weights cannot be held piece by piece."""


@dataclass(frozen=True)
class Flow:
    """The way of weights: from `external` by `load` into `held`, and by `fill` into WRAM or NRAM."""

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
    return copy.fill is None and copy.src_view.data.wrap is None and copy.dst_view.data.wrap is None


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
        return sizes_of(self.flow.fill, self.clusters, self.cores)

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
    def element_bytes(self) -> int:
        return p.ELEMENT_BYTES[self.flow.load.src_view.data.element]


def index_of(number: int) -> p.Affine:
    """The index with a number."""
    if number < p.MAX_LOOPS:
        return p.Affine.index(number)
    return p.Affine(cluster=1) if number == CLUSTER else p.Affine(core=1)


def sizes_of(copy: CopyOp, clusters: int, cores: int) -> list[int]:
    """How many values each index takes around a copy: loops, cluster, core."""
    counts = enclosing_counts(copy)
    cores = cores if copy.engine_of() in p.CORE_ENGINES else 1
    return [*counts, *(1,) * (p.MAX_LOOPS - len(counts)), clusters, cores]


def by_place(copy: CopyOp, sizes: Sequence[int], views: Sequence[p.View]) -> list[int]:
    """The indices that move a copy's box, or one of its views; those that move the first dimensions, and by larger
    steps, go first."""
    box = copy.box.data
    steps = np.array([coefficients(start) for start in box.start])
    others = [*(limit for limit in box.limit if limit is not None), *(view.offset for view in views)]
    offsets = np.array([coefficients(each) for each in (*others, p.Affine())])
    used = np.flatnonzero((steps != 0).any(axis=0) | (offsets != 0).any(axis=0)).tolist()

    def order(index: int) -> tuple[int, int]:
        moved = np.flatnonzero(steps[:, index])
        if len(moved):
            return int(moved[0]), -abs(int(steps[moved[0], index]))
        return len(steps), -max(abs(int(each)) for each in offsets[:, index])

    return sorted((index for index in used if sizes[index] > 1), key=order)
