# Tests: test/runtime/kernels/test_kernels.py
"""The copies of a program one after another, compiled by numba: boxes between strided operands.

Importing this module imports numba.  (Compiled code is kept as long as neither the file of a function nor those of the
compiled functions that it imports change; constants from elsewhere would be missed, so all are here.)

All numbers count elements of one size, of which `memory` is an array.  A box has five dimensions, those of the
instruction by growing stride of the target; the first one is the parts of an element, of which there is more than one
only where elements do not lie at multiples of their size.
"""

from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from frustum.dialects.loops import compiled, entry

RANK = 5
# Columns of a row of `facts`, one for each instruction.
SRC_STRIDES, DST_STRIDES = 0, RANK
COPIES, CAPACITY, FILLS, PATTERN, SRC_DIM, SRC_RING, DST_DIM, DST_RING = range(2 * RANK, 2 * RANK + 8)
"""How many memories are written, which lie `CAPACITY` apart; whether the border gets a value, and its bits; the
dimension that wraps, and the elements of its ring."""
FACTS = 2 * RANK + 8
# Columns of a row of `moves`, one for each execution by a unit.
FACT, SRC, DST, READ, EXTENT, LOW = 0, 1, 2, 3, 3 + RANK, 3 + 2 * RANK
SRC_SPLIT, DST_SPLIT = 3 + 3 * RANK, 4 + 3 * RANK
"""Row of `facts`; places of the first element read and of the first one written; how many elements come from the
source, how many are written, how many of these lie before the former; positions before the end of a ring, 0 if that
is not in the box."""
MOVES = 5 + 3 * RANK


@entry(
    "void(uint8[::1], int64[:, ::1], int64[:, ::1], int64, int64)",
    "void(uint16[::1], int64[:, ::1], int64[:, ::1], int64, int64)",
    "void(uint32[::1], int64[:, ::1], int64[:, ::1], int64, int64)",
    "void(uint64[::1], int64[:, ::1], int64[:, ::1], int64, int64)",
)
def run(memory, facts, moves, first, last):
    """Make the moves `[first, last)` in their order."""
    box = np.empty((3, RANK), np.int64)
    for number in range(first, last):
        move = moves[number]
        fact = facts[move[FACT]]
        if fact[FILLS]:
            fill_border(memory, fact, move)
        # Up to four pieces: before and behind the end of the source's ring, and of the target's.
        for behind_target in range(1 + (move[DST_SPLIT] > 0)):
            for behind_source in range(1 + (move[SRC_SPLIT] > 0)):
                copy_piece(memory, fact, move, behind_source, behind_target, box)


@compiled
def copy_piece(memory, fact, move, behind_source, behind_target, box):
    """Copy the part of a box before or behind the ends of the rings; `box` is a place to work in."""
    source, target = move[SRC] - behind_source * fact[SRC_RING], move[DST] - behind_target * fact[DST_RING]
    rank = 0
    for d in range(RANK):
        start, stop = 0, move[READ + d]
        if move[SRC_SPLIT] and d == fact[SRC_DIM]:
            at = move[SRC_SPLIT]
            start, stop = (max(start, at), stop) if behind_source else (start, min(stop, at))
        if move[DST_SPLIT] and d == fact[DST_DIM]:
            at = move[DST_SPLIT] - move[LOW + d]
            start, stop = (max(start, at), stop) if behind_target else (start, min(stop, at))
        near, far, size = fact[SRC_STRIDES + d], fact[DST_STRIDES + d], stop - start
        if size <= 0:
            return
        source += start * near
        target += (move[LOW + d] + start) * far
        if size == 1:
            continue
        if rank and near == box[0, rank - 1] * box[1, rank - 1] and far == box[0, rank - 1] * box[2, rank - 1]:
            box[0, rank - 1] *= size  # goes on where the dimension before it ends
        else:
            box[0, rank], box[1, rank], box[2, rank] = size, near, far
            rank += 1
    for d in range(rank, RANK):
        box[0, d] = 1
    copy_box(memory, source, target, box, fact[COPIES], fact[CAPACITY])


@compiled
def copy_box(memory, source, target, box, copies, capacity):
    """`box`: extents, strides of the source, strides of the target, the innermost dimension first."""
    extent, near, far = box
    dense = (near[0] == 1 and far[0] == 1) or extent[0] == 1
    for a in range(extent[4]):
        for b in range(extent[3]):
            for c in range(extent[2]):
                start = source + a * near[4] + b * near[3] + c * near[2]
                to = target + a * far[4] + b * far[3] + c * far[2]
                for _ in range(extent[1]):
                    for copy in range(copies):
                        if dense:
                            move_run(memory, to + copy * capacity, memory, start, extent[0])
                        else:
                            for i in range(extent[0]):
                                memory[to + copy * capacity + i * far[0]] = memory[start + i * near[0]]
                    start += near[1]
                    to += far[1]


@compiled
def fill_border(memory, fact, move):
    """Write the pattern to what is written and does not come from the source."""
    shift = 8 * memory.itemsize
    for a in range(move[EXTENT + 4]):
        inside_4 = move[LOW + 4] <= a < move[LOW + 4] + move[READ + 4]
        for b in range(move[EXTENT + 3]):
            inside_3 = inside_4 and move[LOW + 3] <= b < move[LOW + 3] + move[READ + 3]
            for c in range(move[EXTENT + 2]):
                inside_2 = inside_3 and move[LOW + 2] <= c < move[LOW + 2] + move[READ + 2]
                for d in range(move[EXTENT + 1]):
                    inside = inside_2 and move[LOW + 1] <= d < move[LOW + 1] + move[READ + 1]
                    if inside:
                        continue
                    to = move[DST] + place(fact, move, 1, d) + place(fact, move, 2, c)
                    to += place(fact, move, 3, b) + place(fact, move, 4, a)
                    for part in range(move[EXTENT]):
                        bits = fact[PATTERN] >> part * shift
                        for copy in range(fact[COPIES]):
                            memory[to + copy * fact[CAPACITY] + part] = bits


@compiled
def place(fact, move, d, position):
    """How far from the first element written a position of a dimension lies."""
    moved = position * fact[DST_STRIDES + d]
    if move[DST_SPLIT] and d == fact[DST_DIM] and position >= move[DST_SPLIT]:
        moved -= fact[DST_RING]
    return moved


def _move_run(typing, target, to, source, start, count):
    """`target[to : to + count] = source[start : start + count]` of arrays of one type without gaps, unchecked.

    A loop would take twice as long for the ten or so elements of a row.
    """

    def generate(context, builder, signature, args):
        arrays = [cgutils.create_struct_proxy(signature.args[k])(context, builder, args[k]) for k in (0, 2)]
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        there, here = (builder.gep(array.data, [args[k]]) for array, k in zip(arrays, (1, 3), strict=True))
        cgutils.raw_memmove(builder, there, here, args[4], size)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


move_run: Any = intrinsic(_move_run)  # numba says that an intrinsic takes one argument more, and never returns
