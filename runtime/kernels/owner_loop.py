# Tests: test/pipeline/test_exchanged_bytes.py
"""Who made the bytes that cores take from SRAM: tags of all bytes, kept in program order, compiled by numba.

Importing this module imports numba.  (All constants are here: see `copy_loop.py`.)
"""

from frustum.dialects.loops import compiled, entry

# Columns of a row of `moves`, a box: its four dimensions by falling stride, of which one may go around a ring.
BASE, TAG, UNIT, RUN, EXTENT, STRIDE, DIM, SPLIT, RING = 0, 1, 2, 3, 4, 8, 12, 13, 14
"""First byte of the box in all SRAMs together; what it writes (`TAG` >= 0), or who takes it (see below); the program's
unit; bytes of an element, or of a run that is one in memory; positions and bytes from one to the next; the dimension
with the ring, its positions before the end (0: in one piece), the bytes of the ring."""
PLACES = (BASE, RUN, *range(STRIDE, STRIDE + 4), RING)
"""The columns that count bytes; all may count larger units, if tags do."""
ALL_TAKE, FIRST_TAKER = -1, -2
"""`TAG` where all cores take it; of what core k takes: FIRST_TAKER - k."""
OTHERS = 0
"""Tag of bytes that no core of the cluster has given: loaded, or sent by another cluster.  Core k has tag k + 1."""
OWN, OF_ANOTHER = range(2)


@entry("void(int16[::1], int64[:, ::1], int64, int64[:, ::1])")
def run(tags, moves, cores, taken):
    """Follow all moves; `taken` `[units, 2]` grows by the bytes that cores take of what they or others gave."""
    for number in range(moves.shape[0]):
        move = moves[number]
        for a in range(move[EXTENT]):
            first = move[BASE] + a * move[STRIDE] - behind(move, 0, a)
            for b in range(move[EXTENT + 1]):
                second = first + b * move[STRIDE + 1] - behind(move, 1, b)
                for c in range(move[EXTENT + 2]):
                    third = second + c * move[STRIDE + 2] - behind(move, 2, c)
                    for d in range(move[EXTENT + 3]):
                        place = third + d * move[STRIDE + 3] - behind(move, 3, d)
                        touch(tags, move, cores, taken, place)


@compiled
def behind(move, dim, index):
    """The bytes of the ring where this position of this dimension lies behind its end."""
    return move[RING] if move[SPLIT] > 0 and move[DIM] == dim and index >= move[SPLIT] else 0


@compiled
def touch(tags, move, cores, taken, place):
    """One run of bytes."""
    part, tag = tags[place : place + move[RUN]], move[TAG]
    if tag >= 0:
        for k in range(part.size):
            part[k] = tag
        return
    mine, own, given = FIRST_TAKER - tag + 1, 0, 0
    for k in range(part.size):
        own += part[k] == mine
        given += part[k] != OTHERS
    if tag == ALL_TAKE:
        own, given = given, cores * given
    taken[move[UNIT], OWN] += own
    taken[move[UNIT], OF_ANOTHER] += given - own
