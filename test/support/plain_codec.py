"""Blocks of `dialects/weights/codec.py` read as its text says, bit by bit and from lists: to test the real reader."""

from __future__ import annotations


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
