"""Blocks of `dialects/weights/` read as its text says, bit by bit and from lists: to test the real reader."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np


def expand(block, size):
    """The `size` bytes that a block stands for."""
    method, width, length = block[0], block[1], int.from_bytes(bytes(block[4:8]), "little")
    stream = list(block[8:])
    if method & 2:
        stream = _decoded(stream, width + 1 if method & 1 else width, length)
    if method & 1:
        stream = _without_runs(stream[:length], width)
    return stream[:size]


def _without_runs(tokens, width):
    found = []
    for start in range(0, len(tokens), width + 1):
        zeros, *element = tokens[start : start + width + 1]
        found += [0] * (zeros * width) + element
    return found


def _decoded(stream, period, length):
    bits, codes = list(stream), []
    for _ in range(period):
        codes.append(_code(bits))
    position = 0
    found = []
    for k in range(length):
        code, word = codes[k % period], ""
        while word not in code:
            word += str(bits[position // 8] >> position % 8 & 1)
            position += 1
        found.append(code[word])
    return found


def _code(bits):
    """Symbol by the text of its code; takes the bytes that say so from `bits`."""
    n = bits.pop(0)
    if n == 0:
        return {f"{symbol:08b}": symbol for symbol in range(256)}
    if n < 31:
        symbols = [bits.pop(0) for _ in range(n)]
    else:
        mask = [bits.pop(0) for _ in range(32)]
        symbols = [symbol for symbol in range(256) if mask[symbol // 8] >> symbol % 8 & 1]
    packed = [bits.pop(0) for _ in range((len(symbols) + 1) // 2)]
    lengths = [packed[k // 2] >> 4 * (k % 2) & 15 for k in range(len(symbols))]
    if len(symbols) == 1:
        return {"": symbols[0]}
    code, names, before = 0, {}, 0
    for length, symbol in sorted(zip(lengths, symbols, strict=True)):
        code <<= length - before
        before = length
        names[f"{code:0{length}b}"] = symbol
        code += 1
    return names


FLOATS = {1: "<f4", 2: "<f2"}


def scaled(block, extents):
    """The weights of a block of integers with scales, one by one, before they are rounded to their own type."""
    bits, zero_kind, scale_kind = 2 << (block[2] & 3), block[2] >> 2 & 3, block[2] >> 4 & 3
    ways, run, phase = [block[3] >> 2 * d & 3 for d in range(4)], block[4] + 256 * block[5], block[6] + 256 * block[7]

    def place(d, position):
        return 0 if ways[d] == 0 else position if ways[d] == 1 else (position + phase) // run

    counts = [place(d, n - 1) + 1 for d, n in enumerate(extents)]
    scales = counts[0] * counts[1] * counts[2] * counts[3]
    at = 8 * (8 + (0, 4, 2, 2)[scale_kind] * scales)
    zeros = at
    at += -(-(0, 1, scales)[zero_kind] * bits // 8) * 8

    def integer(first, number):
        found = 0
        for k in range(bits):
            place_of_bit = first + number * bits + k
            found |= (block[place_of_bit // 8] >> place_of_bit % 8 & 1) << k
        return found - (1 << bits) * (found >> bits - 1)

    values = []
    for number, position in enumerate(product(*map(range, extents))):
        own = 0
        for d in range(4):
            own = own * counts[d] + place(d, position[d])
        value = integer(at, number)
        if zero_kind:
            value -= integer(zeros, own if zero_kind == 2 else 0)
        values.append(value if scale_kind == 0 else _times(value, block, own, scale_kind))
    return values


def _times(value, block, own, scale_kind):
    size = 4 if scale_kind == 1 else 2
    dtype = np.dtype(ml_dtypes.bfloat16 if scale_kind == 3 else FLOATS[scale_kind])
    scale = np.frombuffer(bytes(block[8 + own * size :][:size]), dtype)[0]
    return (np.float32(value) * np.float32(scale)).astype(dtype)
