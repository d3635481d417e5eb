# Tests: test/runtime/device/test_functional.py
"""The copies of an expanded program: one table of moves in program order, which `copy_loop.run` makes, and the effect
of those that expand compressed blocks.

A copy in a loop brings the same blocks again and again: what they stand for is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from frustum.backend.file.executable import ExecutableError
from frustum.dialects.isa.program import ELEMENT_BYTES, Copy, Instruction
from frustum.dialects.weights.codec import CodecError
from frustum.dialects.weights.scaled import weights_in
from frustum.runtime.device.effects import Call, effect
from frustum.runtime.device.expand import NO_MEMORY, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.device.memory import DTYPES, Memories, leave, left, reach_around, ring_of
from frustum.runtime.kernels import copy_loop as c

SRC, DST = 0, 1
BYTE = 1
MOST_BYTES = 256 << 20
"""Kept at most, blocks and what they stand for together: all weights of ResNet-50 in 16 bits are 51 MB."""


def is_plain(instruction: Instruction) -> TypeGuard[Copy]:
    """Whether it is a copy that only moves elements."""
    return isinstance(instruction, Copy) and instruction.expand is None


@dataclass(frozen=True, eq=False)
class CopyTable:
    """`seq`, `first`, `last`, `unit_bytes` of each row that moves something: its place in the program order, its
    moves, and the size of what these count."""

    seq: Ints
    first: Ints
    last: Ints
    unit_bytes: Ints
    facts: Ints
    moves: Ints

    def run(self, memories: Memories, first: int, last: int) -> None:
        """Make the moves of the rows `[first, last)`, which count elements of one size."""

        memory = memories.flat.view(f"u{self.unit_bytes[first]}")
        c.run(memory, self.facts, self.moves, self.first[first], self.last[last - 1])


def copies(expanded: Expanded, capacities: Sequence[int], starts: Sequence[int]) -> CopyTable:
    """All moves of a program; `starts`: where each kind of memory begins in the flat array."""
    plain = {number: each for number, each in enumerate(expanded.instructions) if is_plain(each)}
    statics, facts = list(plain), _facts(list(plain.values()))
    fact_of = np.full(len(expanded.instructions), -1, np.int64)
    fact_of[statics] = np.arange(len(statics))
    kinds, copied = expanded.memory[statics, :2], expanded.copies[statics, 1]
    room = np.where(kinds == NO_MEMORY, 0, np.array(capacities, np.int64)[kinds])
    begin = np.array(starts, np.int64)[kinds]
    parts = [_moves(rows, fact_of, room, begin) for rows in (expanded.core, expanded.cluster)]
    moves = _Moves(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    moves = _Moves(*(part[np.argsort(moves.seq, kind="stable")] for part in moves))
    counts = np.array(expanded.memory_counts, np.int64)[kinds]
    odd = moves.fact[_leave(facts, moves, begin, begin + counts * room, (copied - 1) * room[:, DST])]
    if len(odd):
        raise left(expanded, statics[odd[0]])
    return _table(facts, moves, copied, room[:, DST])


class _Facts(NamedTuple):
    """Of each copy, in bytes; dimensions in the order of the instruction."""

    element: Ints
    strides: Ints  # copies, side, 4
    fills: Ints
    pattern: Ints
    wrap: Ints  # copies, side, 2: dimension, bytes of the ring


class _Moves(NamedTuple):
    """Of each copy by a unit, in program order; addresses are those of the flat array, in bytes."""

    seq: Ints
    fact: Ints
    place: Ints  # moves, side
    read: Ints  # moves, 4
    extent: Ints  # moves, 4
    low: Ints  # moves, 4
    split: Ints  # moves, side


def _facts(plain: Sequence[Copy]) -> _Facts:
    rings = [[ring_of(view) for view in (each.src_view, each.dst_view)] for each in plain]
    return _Facts(
        element=np.array([ELEMENT_BYTES[each.src_view.element] for each in plain], np.int64),
        strides=np.array([(each.src_view.strides, each.dst_view.strides) for each in plain]).reshape(-1, 2, 4),
        fills=np.array([each.fill is not None for each in plain], bool),
        pattern=np.array([_pattern(each) for each in plain], np.int64),
        wrap=np.array(rings, np.int64).reshape(-1, 2, 2),
    )


def _pattern(copy: Copy) -> int:
    """The bits of the value around the box."""
    if copy.fill is None:
        return 0
    value = np.array(copy.fill, DTYPES[copy.dst_view.element])
    return int(value.view(f"i{value.itemsize}"))


def _moves(rows: Rows, fact_of: Ints, room: Ints, begin: Ints) -> _Moves:
    chosen = np.flatnonzero(fact_of[rows.static] >= 0)
    at, unit = np.nonzero(rows.active[chosen])
    row = chosen[at]
    fact = fact_of[rows.static[row]]
    place = rows.address[:2, row, unit].T + rows.place[:2, row, unit].T * room[fact] + begin[fact]
    read, extent, low = (part[:, row, unit].T for part in (rows.read, rows.extent, rows.low))
    return _Moves(rows.seq[row], fact, place, read, extent, low, rows.split[:, :, row, unit].max(axis=1).T)


def _leave(facts: _Facts, moves: _Moves, begin: Ints, end: Ints, last_copy: Ints) -> Ints:
    """Which moves go outside all memories of the kind of their source or target."""
    fact = moves.fact
    found = np.zeros(len(fact), bool)
    for side, extent in ((SRC, moves.read), (DST, np.where(facts.fills[fact, None], moves.extent, moves.read))):
        dim, ring = facts.wrap[fact, side].T
        low, high = reach_around(extent, facts.strides[fact, side], dim, moves.split[:, side], ring)
        high = high + facts.element[fact] - 1 + (last_copy[fact] if side == DST else 0)
        outside = leave(moves.place[:, side], low, high, begin[fact, side], end[fact, side])
        found |= outside & (extent > 0).all(axis=1)
    return found


def _table(facts: _Facts, moves: _Moves, copied: Ints, room: Ints) -> CopyTable:
    """The numbers of `copy_loop`: counted in units, dimensions by growing stride of the target."""
    unit = _unit_bytes(facts, moves, room)
    parts = facts.element // unit
    order = np.argsort(np.abs(facts.strides[:, DST]), axis=1, kind="stable")
    table = np.zeros((len(unit), c.FACTS), np.int64)
    table[:, c.SRC_STRIDES] = table[:, c.DST_STRIDES] = 1
    for side, column in ((SRC, c.SRC_STRIDES), (DST, c.DST_STRIDES)):
        sorted_ = np.take_along_axis(facts.strides[:, side], order, axis=1)
        table[:, column + 1 : column + c.RANK] = sorted_ // unit[:, None]
    table[:, c.COPIES], table[:, c.CAPACITY] = copied, room // unit
    table[:, c.FILLS], table[:, c.PATTERN] = facts.fills, facts.pattern
    for side, dim, ring in ((SRC, c.SRC_DIM, c.SRC_RING), (DST, c.DST_DIM, c.DST_RING)):
        table[:, dim] = 1 + (order == facts.wrap[:, side, :1]).argmax(axis=1)
        table[:, ring] = facts.wrap[:, side, 1] // unit
    fact = moves.fact
    whole = np.empty((len(fact), c.MOVES), np.int64)
    whole[:, c.FACT] = fact
    whole[:, c.SRC : c.DST + 1] = moves.place // unit[fact, None]
    by_stride = order[fact]
    for column, values, inside in (
        (c.READ, moves.read, parts[fact]), (c.EXTENT, moves.extent, parts[fact]),
        (c.LOW, moves.low * facts.fills[fact, None], 0),
    ):  # fmt: skip
        whole[:, column] = inside
        whole[:, column + 1 : column + c.RANK] = np.take_along_axis(values, by_stride, axis=1)
    whole[:, c.SRC_SPLIT :] = moves.split
    first = np.flatnonzero(np.diff(moves.seq, prepend=-1))
    last = np.append(first[1:], len(fact))
    return CopyTable(moves.seq[first], first, last, unit[fact[first]], table, whole)


def _unit_bytes(facts: _Facts, moves: _Moves, room: Ints) -> Ints:
    """What addresses and strides of each copy count: its elements, or bytes where one is no multiple of those."""
    odd = np.zeros(len(facts.element), bool)
    odd[moves.fact[(moves.place % facts.element[moves.fact, None]).any(axis=1)]] = True
    odd |= (facts.strides % facts.element[:, None, None]).any(axis=(1, 2)) | (room % facts.element != 0)
    return np.where(odd, BYTE, facts.element)




_Key: TypeAlias = tuple[bytes, tuple[int, ...], "np.dtype[Any]"]


class _Blocks:
    """By their own bytes, the least recently used given up first."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept_bytes = 0
        self._kept: OrderedDict[_Key, NDArray[Any]] = OrderedDict()
        self._lock = Lock()

    def expanded(self, block: bytes, extents: tuple[int, ...], element: np.dtype[Any]) -> NDArray[Any]:
        """What the block stands for, not to be written to; ExecutableError where it is damaged."""
        key = block, extents, element
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        try:
            found = weights_in(np.frombuffer(block, np.uint8), extents, element)
        except CodecError as error:
            raise ExecutableError(f"damaged weights: {error}") from error
        found.setflags(write=False)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self.kept_bytes += len(block) + found.nbytes
            while self.kept_bytes > self.most_bytes:
                (old, _, _), weights = self._kept.popitem(last=False)
                self.kept_bytes -= len(old) + weights.nbytes
        return found


expanded_block: Callable[[bytes, tuple[int, ...], np.dtype[Any]], NDArray[Any]] = _Blocks(MOST_BYTES).expanded




@effect.register
def expand(instruction: Copy, work: Call) -> None:
    """The block of each unit's slot into its box; units that have the same block expand it once."""
    src, dst = instruction.src_view, instruction.dst_view
    assert instruction.expand is not None, "copies that only move are in the table of moves"
    copies = work.copies if work.copies > 1 else 0
    element = ELEMENT_BYTES[src.element]
    slots = work.raw(SRC, replace(src, strides=(0, 0, 0, element)), (1, 1, 1, instruction.expand // element))
    target = work.raw(DST, dst, work.read, copies)
    for unit in np.ndindex(target.shape[: target.ndim - 4 - bool(copies)]):
        expanded = expanded_block(slots[unit].tobytes(), tuple(work.read), DTYPES[dst.element])
        target[unit] = expanded.view(target.dtype)
