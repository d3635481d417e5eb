# Tests: test/passes/lower/test_weight_chunks.py
"""What each copy into the cores takes of the weights that one load has brought: its *chunk*.

A load is made in loops, in some passes of which nothing is left of its box; and so is each copy from SRAM into a core.
All of these executions are listed, and told apart by what they move from where to where.  A loop, the cluster or the
core that does not change that is left out: so loops that only say whether there is anything to do, or that do the same
again, make no chunks of their own.  What is left are *runs*, one for each load that differs, by the `slow` indices; and
of each run the chunks of all copies by the `fast` ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.isa import program as p
from frustum.dialects.isa.operations import CopyOp
from frustum.passes.lower.executions import Ints, coefficients
from frustum.passes.lower.weight_slots import MOST_SLOTS, Flow, StaysRaw, by_place, index_of, sizes_of
from frustum.passes.weights import Array

Bools = NDArray[np.bool_]
Key = tuple[object, ...]
SIDES = 2


@dataclass(frozen=True)
class ChunkMoves:
    """What a copy moves in each of its executions, by some of the indices, the last the fastest: the `extents` of the
    clipped box `[4, n]`, and where its first element lies in either buffer, `starts` `[2, n]`, in bytes."""

    copy: CopyOp
    indices: tuple[int, ...]
    counts: tuple[int, ...]
    extents: Ints
    starts: Ints

    @staticmethod
    def of(copy: CopyOp, indices: Sequence[int], sizes: Sequence[int]) -> ChunkMoves:
        """StaysRaw where there are more executions than can be listed."""
        counts = tuple(sizes[index] for index in indices)
        if prod(counts) > MOST_SLOTS:
            raise StaysRaw("more pieces than can be listed")
        values = np.zeros((p.MAX_LOOPS + SIDES, prod(counts)), np.int64)
        values[list(indices)] = np.indices(counts).reshape(len(counts), prod(counts))

        def at(function: p.Affine) -> Ints:
            found: Ints = function.base + np.array(coefficients(function)) @ values
            return found

        views = copy.src_view.data, copy.dst_view.data
        starts, extents = np.stack([at(view.offset) for view in views]), list[Ints]()
        for d, span in enumerate(copy.box.data.spans):
            nominal = at(span.start)
            stop = np.minimum(nominal + span.extent, span.bound)
            stop = stop if span.limit is None else np.minimum(stop, at(span.limit))
            lower = np.maximum(nominal, 0)
            extents.append(np.maximum(stop - lower, 0))
            starts += np.array([[view.strides[d]] for view in views]) * (lower - nominal)
        return ChunkMoves(copy, tuple(indices), counts, np.stack(extents), starts)

    @property
    def is_full(self) -> Bools:
        """Whether anything is moved."""
        found: Bools = np.all(self.extents > 0, axis=0)
        return found

    def told_apart(self, sides: Sequence[int], kept: Sequence[int] = ()) -> list[int]:
        """The indices that change what is moved, as far as these sides tell, and those that are kept in any case."""
        facts = np.concatenate([self.extents, self.starts[list(sides)]])
        facts, full = facts.reshape(-1, *self.counts), self.is_full.reshape(self.counts)
        found, most = list[int](), np.iinfo(np.int64).max
        for axis, index in reversed(list(enumerate(self.indices))):
            high = np.where(full, facts, -1 - most).max(axis=axis + 1)
            low = np.where(full, facts, most).min(axis=axis + 1)
            some = full.any(axis=axis)
            if index in kept or ((high != low) & some).any():
                found.insert(0, index)
            else:  # the same in all passes
                facts, full = np.expand_dims(np.where(some, low, 0), axis + 1), np.expand_dims(some, axis)
        return found

    def only(self, indices: Sequence[int]) -> ChunkMoves:
        """By these indices, in their order: of passes of the others that move the same the first that moves
        anything."""
        order = [self.indices.index(index) for index in indices]
        rest = [axis for axis in range(len(self.counts)) if axis not in order]
        counts = tuple(self.counts[axis] for axis in order)
        shape = prod(counts), -1
        full = self.is_full.reshape(self.counts).transpose(*order, *rest).reshape(shape)
        first = full.argmax(axis=1)[:, None]

        def chosen(facts: Ints) -> Ints:
            own = facts.reshape(-1, *self.counts).transpose(0, *(1 + axis for axis in (*order, *rest)))
            own = own.reshape(len(facts), *shape)
            return np.take_along_axis(own, first[None], axis=2)[:, :, 0]

        return ChunkMoves(self.copy, tuple(indices), counts, chosen(self.extents), chosen(self.starts))


@dataclass(frozen=True)
class Chunks:
    """The chunks of a flow, on clusters of `cores` cores; `StaysRaw` where they cannot be told one by one."""

    flow: Flow
    clusters: int
    cores: int

    def __post_init__(self) -> None:
        runs, full = self.loaded, self.is_full
        if (full & ~runs.is_full[:, None]).any() or not self._is_loaded():
            raise StaysRaw("pieces of something else than what is loaded")

    @cached_property
    def sizes(self) -> list[int]:
        """How many values each index takes: loops, cluster, core."""
        return sizes_of(self.flow.fill, self.clusters, self.cores)

    @cached_property
    def every_load(self) -> ChunkMoves:
        """All executions of the load that its numbers tell apart."""
        copy = self.flow.load
        return ChunkMoves.of(copy, by_place(copy, self.sizes, (copy.src_view.data, copy.dst_view.data)), self.sizes)

    @cached_property
    def loaded(self) -> ChunkMoves:
        """The runs."""
        every = self.every_load
        return every.only(every.told_apart((0, 1)))

    @cached_property
    def slow(self) -> list[int]:
        """Indices that make runs."""
        return list(self.loaded.indices)

    @cached_property
    def taken(self) -> ChunkMoves:
        """The chunks of all runs, run by run."""
        fill = self.flow.fill
        own = [index for index in by_place(fill, self.sizes, (fill.src_view.data,)) if index not in self.slow]
        every = ChunkMoves.of(fill, [*self.slow, *own], self.sizes)
        return every.only(every.told_apart((0,), self.slow))

    @cached_property
    def fast(self) -> list[int]:
        """The other ones, which make chunks of a run; those of the first dimensions, and by larger steps, go first."""
        return list(self.taken.indices[len(self.slow) :])

    @cached_property
    def is_full(self) -> Bools:
        """Whether each chunk has anything in it: `[runs, chunks of a run]`."""
        return self.taken.is_full.reshape(prod(self.loaded.counts), -1)

    @property
    def runs(self) -> int:
        """Runs up to the last with anything in it."""
        return int(np.flatnonzero(self.is_full.any(axis=1))[-1]) + 1 if self.is_full.any() else 0

    @property
    def run_chunks(self) -> int:
        """Chunks of a run up to the last with anything in it."""
        return int(np.flatnonzero(self.is_full.any(axis=0))[-1]) + 1 if self.is_full.any() else 0

    @property
    def kept(self) -> Bools:
        """What of `is_full` is stored."""
        return self.is_full[: self.runs, : self.run_chunks]

    @property
    def loaded_bytes(self) -> int:
        """What all loads together move of the tensor as it is, each once."""
        return int(self.loaded.extents.prod(axis=0).sum()) * self.element_bytes

    @property
    def element_bytes(self) -> int:
        return p.ELEMENT_BYTES[self.flow.load.src_view.data.element]

    @cached_property
    def key(self) -> Key:
        """What tells the chunks of one tensor from others of it."""
        load, fill = self.flow.load, self.flow.fill
        views = load.src_view.data, load.dst_view.data, fill.src_view.data
        facts = b"".join(each.tobytes() for each in (*self._facts, self.kept))
        return self.loaded.counts, self.taken.counts, *(v.strides for v in views), sha256(facts).hexdigest()

    @property
    def _facts(self) -> tuple[Ints, ...]:
        full, runs = self.is_full.ravel(), self.loaded.is_full
        of_runs, of_chunks = (np.concatenate([each.extents, each.starts]) for each in (self.loaded, self.taken))
        return of_runs * runs, of_chunks[:-1] * full  # where the fill puts them is all the same

    # ------------------------------------------------------------ elements

    def pieces(self, tensor: Array) -> Iterator[Array]:
        """The chunks of the runs, `[d0, d1, d2, d3]`; `tensor`: its elements, or what there is of each."""
        flat = np.ascontiguousarray(tensor).reshape(-1)
        for run in range(self.runs):
            held: Array = np.zeros(self._held_elements, flat.dtype)
            self._put(run, held)[...] = self._at(flat, self.loaded, run, 0)
            for chunk in range(self.run_chunks):
                yield self._at(held, self.taken, run * self.is_full.shape[1] + chunk, 0)

    @property
    def _held_elements(self) -> int:
        return self.flow.held.bytes.value.data // self.element_bytes

    def _put(self, run: int, held: Array) -> Array:
        """Where in the buffer the elements of a run lie."""
        return self._at(held, self.loaded, run, 1)

    def _at(self, flat: Array, moves: ChunkMoves, number: int, side: int) -> Array:
        """The elements of an execution at a side."""
        size, copy = self.element_bytes, moves.copy
        view = (copy.src_view if side == 0 else copy.dst_view).data
        start, odd = divmod(int(moves.starts[side, number]), size)
        extents = moves.extents[:, number].tolist()
        steps = [divmod(stride, size) if n > 1 else (0, 0) for n, stride in zip(extents, view.strides, strict=True)]
        if 0 in extents:
            return flat[:0].reshape(extents)
        ends = [(n - 1) * step for n, (step, _) in zip(extents, steps, strict=True)]
        low, high = (start + sum(f(0, end) for end in ends) for f in (min, max))
        if odd or any(rest for _, rest in steps) or low < 0 or high >= flat.size:
            raise StaysRaw("pieces of something else than what is loaded")
        strides = [step * flat.itemsize for step, _ in steps]
        return np.lib.stride_tricks.as_strided(flat[start:], extents, strides)

    def _is_loaded(self) -> bool:
        """Whether each chunk is of elements that its run has brought."""
        seen, (of_runs, of_chunks) = set[bytes](), self._facts
        has: Any = None
        for run in np.flatnonzero(self.is_full.any(axis=1)).tolist():
            has, brings = None, of_runs[[0, 1, 2, 3, 5], run].tobytes()
            for chunk in np.flatnonzero(self.is_full[run]).tolist():
                number = run * self.is_full.shape[1] + chunk
                both = brings + of_chunks[:, number].tobytes()
                if both in seen:
                    continue
                seen.add(both)
                if has is None:
                    has = np.zeros(self._held_elements, np.bool_)
                    self._put(run, has)[...] = True
                if not self._at(has, self.taken, number, 0).all():
                    return False
        return True

    # ------------------------------------------------------------ places

    def number(self, indices: Sequence[int]) -> p.Affine:
        """The number that these indices make, the last the fastest."""
        total, step = p.Affine(), 1
        for index in reversed(indices):
            total = total + index_of(index) * step
            step *= self.sizes[index]
        return total

    def gates(self) -> list[p.Span]:
        """Up to three spans of one position, or of none in passes in which the load brings nothing, where the number of
        its run does not say so; StaysRaw where that takes more."""
        every = self.every_load
        values = np.indices(every.counts).reshape(len(every.counts), prod(every.counts))

        def at(function: p.Affine) -> Ints:
            steps = coefficients(function)
            return function.base + np.array([steps[index] for index in every.indices], np.int64) @ values

        empty = ~every.is_full & (at(self.number(self.slow)) < self.runs)
        found = list[tuple[p.Affine, int]]()
        for span in self.flow.load.box.data.spans:
            last, start = span.start + (span.extent - 1), span.start
            conditions = [last, start * -1 + (span.bound - 1)]
            conditions += [] if span.limit is None else [span.limit - 1, span.limit - start - 1]
            for condition in conditions:
                numbers = at(condition)
                if (empty & (numbers < 0)).any():
                    found.append((condition, int(numbers.max())))
                    empty = empty & (numbers >= 0)
        assert not empty.any(), "a box of nothing has a side of nothing"
        pairs = [found[k : k + 2] for k in range(0, len(found), 2)]
        if len(pairs) > p.DIMENSIONS - 1:
            raise StaysRaw("loads in passes that no box of slots can tell")
        return [_gate(pair) for pair in pairs]


def _gate(conditions: Sequence[tuple[p.Affine, int]]) -> p.Span:
    """One position where one or two numbers, each with its greatest value, are 0 or more."""
    (first, most), *others = conditions
    bound = max(1, most + 1)
    limit = (others[0][0] + 1) * bound if others else None
    return p.Span(first, 1, bound, limit)
