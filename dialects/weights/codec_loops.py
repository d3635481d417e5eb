"""The loops under `codec.py`, compiled by numba: its docstring says what they read and write.

Importing this module imports numba, so it is imported only where there is something to compress or to expand.
"""

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.loops import compiled, entry

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Words = NDArray[np.uint32]
Codes = NDArray[np.uint64]

SYMBOLS = 256
LONGEST = 12
"""Bits of a code."""
LISTED = 31
"""From so many symbols on, a bit for each of all takes no more than naming them."""
HEADER_BYTES = 8
RUNS, CODES = 1, 2
MOST_ZEROS = 255
PAIR = 2
"""Bytes of elements that have loops of their own."""
LENGTH_AT = 16
"""Codes of at most 12 bits lie with their lengths in one number."""
LENGTH_SHIFT, CODE_MASK = np.uint64(LENGTH_AT), np.uint64((1 << LENGTH_AT) - 1)
WORD_BITS, WORD_MASK = np.uint64(32), np.uint64((1 << 32) - 1)


@entry("void(uint8[::1], int64[::1], int64, int64[::1], uint8[::1], uint32[::1], uint8[::1], int64[::1])")
def compress_all(
    raw: Bytes, ends: Ints, width: int, methods: Ints, stream: Bytes, words: Words, out: Bytes, out_ends: Ints
) -> None:
    """Every block by the method that makes it smallest; `stream` has room for the zero runs of the largest, `words` for
    its codes."""
    start, position = 0, 0
    for k in range(len(ends)):
        block = raw[start : ends[k]]
        start = ends[k]
        best, method, length = len(block), 0, len(block)
        runs = 0  # bytes
        lengths, count = np.empty((0, 0), np.int64), np.empty((0, 0), np.int64)
        if len(methods) and methods[0] & RUNS and has_zeros(block, width):
            runs = write_runs(block, width, stream)
        for each in methods:
            if each & RUNS and runs == 0:
                continue  # without zeros each element has a token of its own: neither they nor their codes are shorter
            size = runs if each & RUNS else len(block)
            if each & CODES:
                period = width + 1 if each & RUNS else width
                found = frequencies(stream[:runs] if each & RUNS else block, period)
                planned, size_bytes = plan(found)
                if size_bytes < best:
                    best, method, length, lengths, count = size_bytes, each, size, planned, found
            elif size < best:
                best, method, length = size, each, size
        position = write_header(method, width, length, out, position)
        target = out[position : position + best]
        if method == 0:
            target[:] = block
        elif method == RUNS:
            target[:] = stream[:runs]
        else:
            write_codes(stream[:runs] if method & RUNS else block, count, lengths, words, target)
        position += best
        out_ends[k] = position


@compiled
def write_header(method: int, width: int, length: int, out: Bytes, position: int) -> int:
    """What a block begins with; the position behind it."""
    out[position] = method
    out[position + 1] = width
    out[position + 2] = 0
    out[position + 3] = 0
    for byte in range(4):
        out[position + 4 + byte] = length >> 8 * byte & 255
    return position + HEADER_BYTES


@entry("void(uint8[::1], int64[::1], uint8[:, ::1])")
def fill_slots(data: Bytes, ends: Ints, slots: Bytes) -> None:
    """Blocks into slots `[blocks, slot]` of zeros, each at the start of its own."""
    start = 0
    for k in range(len(ends)):
        slots[k, : ends[k] - start] = data[start : ends[k]]
        start = ends[k]


# --- zero runs ---------------------------------------------------------------------------------------------


@compiled
def has_zeros(raw: Bytes, width: int) -> bool:
    """Whether any element has no bit."""
    for element in range(0, len(raw), width):
        bits = 0
        for byte in range(width):
            bits |= raw[element + byte]
        if bits == 0:
            return True
    return False


@compiled
def write_runs(raw: Bytes, width: int, out: Bytes) -> int:
    """Tokens of the elements; how many bytes they take."""
    position, zeros = 0, 0
    for element in range(0, len(raw), width):
        is_zero = True
        for byte in range(width):
            if raw[element + byte] != 0:
                is_zero = False
        if is_zero and zeros < MOST_ZEROS and element + width < len(raw):
            zeros += 1
            continue
        out[position] = zeros
        for byte in range(width):
            out[position + 1 + byte] = raw[element + byte]
        position += width + 1
        zeros = 0
    return position


@entry("(uint8[::1], int64, uint8[::1])")
def expand_runs(stream: Bytes, width: int, out: Bytes) -> bool:
    """The elements that tokens stand for; false where these are not as many as there should be."""
    position = 0
    for token in range(0, len(stream), width + 1):
        if position >= len(out):
            return False
        stop = min(position + stream[token] * width, len(out))
        out[position:stop] = 0
        position = stop
        if position < len(out):
            for byte in range(width):
                out[position + byte] = stream[token + 1 + byte]
            position += width
    return position == len(out)


# --- Huffman codes -----------------------------------------------------------------------------------------


@compiled
def frequencies(data: Bytes, period: int) -> Ints:
    """How often each symbol occurs at each place: `[period, 256]`."""
    if period == PAIR:
        return pair_frequencies(data)
    count = np.zeros((period, SYMBOLS), np.int64)
    for start in range(0, len(data), period):
        for place in range(period):
            count[place, data[start + place]] += 1
    return count


@entry("void(uint8[::1], int64[::1], int64, int64[:, :, ::1])")
def count_parts(raw: Bytes, ends: Ints, period: int, counts: NDArray[np.int64]) -> None:
    """The frequencies of each part of `raw`, which ends where `ends` says: `[parts, period, 256]`."""
    start = 0
    for k in range(len(ends)):
        counts[k] = frequencies(raw[start : ends[k]], period)
        start = ends[k]


@compiled
def pair_frequencies(data: Bytes) -> Ints:
    """The same of elements of two bytes, of which most are; neighbours have counters of their own, for one that was
    just written is slow to read."""
    first, second, third, fourth = (
        np.zeros(SYMBOLS, np.int64),
        np.zeros(SYMBOLS, np.int64),
        np.zeros(SYMBOLS, np.int64),
        np.zeros(SYMBOLS, np.int64),
    )
    even = len(data) // (2 * PAIR) * (2 * PAIR)
    for start in range(0, even, 2 * PAIR):
        first[data[start]] += 1
        second[data[start + 1]] += 1
        third[data[start + 2]] += 1
        fourth[data[start + 3]] += 1
    if even < len(data):
        first[data[even]] += 1
        second[data[even + 1]] += 1
    count = np.empty((PAIR, SYMBOLS), np.int64)
    count[0] = first + third
    count[1] = second + fourth
    return count


@compiled
def code_lengths(frequency: Ints) -> Ints:
    """Bits of each symbol's code, 0 where it does not occur (or is the only one).

    Two sorted queues, leaves and inner nodes; where a code gets too long the frequencies are made flatter.
    """
    lengths = np.zeros(SYMBOLS, np.int64)
    used = np.flatnonzero(frequency)
    n = len(used)
    if n < 2:
        return lengths
    weights = frequency[used]
    while True:
        order = np.argsort(weights, kind="mergesort")
        weight = np.empty(2 * n - 1, np.int64)
        weight[:n] = weights[order]
        parent = np.zeros(2 * n - 1, np.int64)
        leaf, inner = 0, n
        for node in range(n, 2 * n - 1):
            total = 0
            for _ in range(2):
                if leaf < n and (inner >= node or weight[leaf] <= weight[inner]):
                    child, leaf = leaf, leaf + 1
                else:
                    child, inner = inner, inner + 1
                parent[child] = node
                total += weight[child]
            weight[node] = total
        depth = np.zeros(2 * n - 1, np.int64)
        for node in range(2 * n - 3, -1, -1):
            depth[node] = depth[parent[node]] + 1
        if depth[:n].max() <= LONGEST:
            lengths[used[order]] = depth[:n]
            return lengths
        weights = (weights + 1) // 2


@compiled
def reversed_codes(lengths: Ints) -> Ints:
    """Canonical codes, their highest bit lowest: shorter ones first, those of one length by symbol."""
    codes = np.zeros(SYMBOLS, np.int64)
    code = 0
    for length in range(1, LONGEST + 1):
        for symbol in range(SYMBOLS):
            if lengths[symbol] == length:
                turned = 0
                for bit in range(length):
                    turned |= (code >> bit & 1) << length - 1 - bit
                codes[symbol] = turned
                code += 1
        code <<= 1
    return codes


@compiled
def table_bytes(used: int) -> int:
    """What naming the code of so many symbols takes."""
    return 1 + (used if used < LISTED else SYMBOLS // 8) + (used + 1) // 2


@compiled
def plan(count: Ints) -> tuple[Ints, int]:
    """Lengths of the codes of each place, and the bytes of everything; -1 where bytes are their own codes."""
    lengths = np.empty(count.shape, np.int64)
    bits, size = 0, 0
    for place in range(len(count)):
        found = code_lengths(count[place])
        coded = 0
        for symbol in range(SYMBOLS):
            coded += found[symbol] * count[place, symbol]
        plain = 8 * count[place].sum()
        table = table_bytes((count[place] > 0).sum())
        if 8 * table + coded >= 8 + plain:
            lengths[place] = -1
            size += 1
            bits += plain
        else:
            lengths[place] = found
            size += table
            bits += coded
    return lengths, size + (bits + 7) // 8


@compiled
def write_codes(data: Bytes, count: Ints, lengths: Ints, words: Words, out: Bytes) -> None:
    """The codes of all places, as `plan` has found them, then the data in them; through `words`, 32 bits at a time."""
    period = len(lengths)
    codes = np.empty((period, SYMBOLS), np.uint64)
    position = 0
    for place in range(period):
        own = lengths[place].copy()
        if own[0] < 0:
            own[:] = 8
            out[position] = 0
            position += 1
        else:
            position = write_table(count[place], own, out, position)
        turned = reversed_codes(own)
        for symbol in range(SYMBOLS):
            codes[place, symbol] = turned[symbol] | own[symbol] << LENGTH_AT
    held, number = pack_pairs(data, codes, words) if period == PAIR else pack(data, codes, words)
    words[number] = held & WORD_MASK
    left = len(out) - position
    out[position:] = words[: number + 1].view(np.uint8)[:left]


@compiled
def pack(data: Bytes, codes: Codes, words: Words) -> tuple[np.uint64, int]:
    """The data in these codes as words; what is held behind them, and the number of words."""
    held, bits, number = np.uint64(0), np.uint64(0), 0
    for start in range(0, len(data), len(codes)):
        for place in range(len(codes)):
            code = codes[place, data[start + place]]
            held |= (code & CODE_MASK) << bits
            bits += code >> LENGTH_SHIFT
            if bits >= WORD_BITS:
                words[number] = held & WORD_MASK
                number += 1
                held >>= WORD_BITS
                bits -= WORD_BITS
    return held, number


@compiled
def pack_pairs(data: Bytes, codes: Codes, words: Words) -> tuple[np.uint64, int]:
    """The same of elements of two bytes: less than a word is held before each, two codes are no more than 24 bits."""
    low, high = codes[0], codes[1]
    held, bits, number = np.uint64(0), np.uint64(0), 0
    for start in range(0, len(data), PAIR):
        code = low[data[start]]
        held |= (code & CODE_MASK) << bits
        bits += code >> LENGTH_SHIFT
        code = high[data[start + 1]]
        held |= (code & CODE_MASK) << bits
        bits += code >> LENGTH_SHIFT
        if bits >= WORD_BITS:
            words[number] = held & WORD_MASK
            number += 1
            held >>= WORD_BITS
            bits -= WORD_BITS
    return held, number


@compiled
def write_table(count: Ints, lengths: Ints, out: Bytes, position: int) -> int:
    """Which symbols have codes, and how long these are; the position behind it."""
    used = np.flatnonzero(count)
    if len(used) < LISTED:
        out[position] = len(used)
        for k in range(len(used)):
            out[position + 1 + k] = used[k]
        position += 1 + len(used)
    else:
        out[position] = LISTED
        out[position + 1 : position + 1 + SYMBOLS // 8] = 0
        for symbol in used:
            out[position + 1 + symbol // 8] |= 1 << symbol % 8
        position += 1 + SYMBOLS // 8
    for k in range(0, len(used), 2):
        second = lengths[used[k + 1]] if k + 1 < len(used) else 0
        out[position] = lengths[used[k]] | second << 4
        position += 1
    return position


@compiled
def read_lengths(block: Bytes, position: int, lengths: Ints) -> tuple[int, int]:
    """Set the lengths of the codes that stand at `position`: the position behind them, -1 where that is too far, and
    the only symbol, -1 where there are several."""
    lengths[:] = 0
    n = int(block[position])
    position += 1
    if n == 0:
        lengths[:] = 8
        return position, -1
    if n < LISTED:
        used = block[position : position + n].astype(np.int64)
        position += n
    else:
        used = np.zeros(SYMBOLS, np.int64)
        total = 0
        for symbol in range(min(SYMBOLS, 8 * (len(block) - position))):
            used[total] = symbol
            total += int(block[position + symbol // 8]) >> symbol % 8 & 1
        used = used[:total]
        position += SYMBOLS // 8
    end = position + (len(used) + 1) // 2
    if end > len(block) or n > LISTED:
        return -1, -1
    for k in range(len(used)):
        lengths[used[k]] = int(block[position + k // 2]) >> 4 * (k % 2) & 15
    return end, int(used[0]) if len(used) == 1 else -1


@compiled
def read_table(block: Bytes, position: int, entries: NDArray[np.uint16]) -> int:
    """Fill `entries`: for the next 12 bits the symbol, and from bit 8 on its length; the position behind the code's
    text, -1 where that is damaged."""
    if position < 0 or position >= len(block):
        return -1
    lengths = np.empty(SYMBOLS, np.int64)
    position, only = read_lengths(block, position, lengths)
    if position < 0 or only >= 0:
        entries[:] = max(only, 0)
        return position
    room = 0
    for length in lengths:
        room += (1 << LONGEST) >> int(length) if length else 0
    if room != 1 << LONGEST or lengths.max() > LONGEST:  # every 12 bits begin with one code
        return -1
    codes = reversed_codes(lengths)
    for symbol in range(SYMBOLS):
        if lengths[symbol]:
            entries[codes[symbol] :: 1 << lengths[symbol]] = symbol | lengths[symbol] << 8
    return position


@entry("(uint8[::1], int64, uint8[::1])")
def decode_bytes(block: Bytes, period: int, out: Bytes) -> bool:
    """What the codes stand for; false where the block is damaged."""
    entries = np.empty((period, 1 << LONGEST), np.uint16)
    position = 0
    for place in range(period):
        position = read_table(block, position, entries[place])
    if position < 0:
        return False
    held, bits = np.uint64(0), 0
    last = len(block)
    for start in range(0, len(out), period):
        for place in range(period):
            while bits <= 48 and position < last:
                held |= np.uint64(block[position]) << np.uint64(bits)
                position += 1
                bits += 8
            entry = entries[place, held & np.uint64((1 << LONGEST) - 1)]
            length = entry >> 8
            if length > bits:
                return False
            out[start + place] = entry & 255
            held >>= np.uint64(length)
            bits -= length
    return True
