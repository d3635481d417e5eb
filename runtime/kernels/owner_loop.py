"""Who made the bytes that cores take from SRAM: tags of all bytes, kept in program order, compiled by numba.

Importing this module imports numba.  (All constants are here: see `copy_loop.py`.)
"""

import numpy as np
from numba import njit

# Columns of a row of `moves`; a box has four dimensions, of which one may go around a ring.
BASE, TAG, UNIT, ELEMENT, EXTENT, STRIDE, DIM, SPLIT, RING = 0, 1, 2, 3, 4, 8, 12, 13, 14
"""First byte of the box in all SRAMs together; what it writes (`TAG` >= 0), or who takes it (see below); the program's
unit; bytes of an element; positions and bytes from one to the next; the dimension with the ring, its positions before
the end (0: in one piece), the bytes of the ring."""
MOVES = 15
FIRST_TAKER = -2
"""`TAG` of what core k takes: FIRST_TAKER - k; ALL_TAKE: all cores take it."""
ALL_TAKE = -1
OTHERS = 0
"""Tag of bytes that no core of the cluster has given: loaded, or sent by another cluster.  Core k has tag k + 1."""
OWN, OF_ANOTHER = range(2)


@njit(cache=True, nogil=True)
def run(tags, moves, cores, taken):
    """Follow all moves; `taken` `[units, 2]` grows by the bytes that cores take of what they or others gave."""
    index = np.zeros(4, np.int64)
    for number in range(moves.shape[0]):
        move = moves[number]
        for a in range(move[EXTENT]):
            index[0] = a
            for b in range(move[EXTENT + 1]):
                index[1] = b
                for c in range(move[EXTENT + 2]):
                    index[2] = c
                    for d in range(move[EXTENT + 3]):
                        index[3] = d
                        place = move[BASE]
                        for k in range(4):
                            place += index[k] * move[STRIDE + k]
                        if move[SPLIT] > 0 and index[move[DIM]] >= move[SPLIT]:
                            place -= move[RING]
                        if move[TAG] >= 0:
                            for byte in range(move[ELEMENT]):
                                tags[place + byte] = move[TAG]
                            continue
                        tag = tags[place]
                        if tag == OTHERS:
                            continue
                        if move[TAG] == ALL_TAKE:
                            taken[move[UNIT], OWN] += move[ELEMENT]
                            taken[move[UNIT], OF_ANOTHER] += move[ELEMENT] * (cores - 1)
                        elif tag == FIRST_TAKER - move[TAG] + 1:
                            taken[move[UNIT], OWN] += move[ELEMENT]
                        else:
                            taken[move[UNIT], OF_ANOTHER] += move[ELEMENT]
