"""Lossless compression of weights: zero run-length, canonical Huffman coding, or both, block by block.

A block stands for itself: whoever has its bytes, and knows how many it stands for, has the weights.

| bytes | what |
|---|---|
| 0 | method: 0 raw, 1 zero runs, 2 Huffman codes, 3 Huffman codes of zero runs (4: `scaled.py`) |
| 1 | bytes of an element: 1, 2, 4 or 8 |
| 2, 3 | 0 |
| 4 to 7 | bytes of the stream that follows, before Huffman coding (little endian) |
| from 8 on | raw bytes, or the stream |

- **Zero runs**: tokens of a byte z and an element: z elements of which all bits are 0, then this one.  What the last
  token says beyond the end of the block counts for nothing.  Other bit patterns of zero (-0.0) are elements as any.
- **Huffman codes**: bytes at the same place of an element (of a token) share a code, for the exponents of floating-
  point numbers have other frequencies than their mantissas.  The codes stand first: a byte n, then for n = 0 nothing
  (each byte is its own code), for n < 31 the n symbols, for n = 31 a bit for each of 256 symbols, and then the length
  of each symbol used, 4 bits each.  Codes are canonical, at most 12 bits long, and written from the lowest bit of a
  byte up, highest bit of the code first.  A single symbol has length 0.

Source: docs/techniques/frustum.md, "Weights" (zero run-length and canonical Huffman coding).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import aligned

Codec: TypeAlias = Literal["zero", "huffman", "auto"]
Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]

CODECS: tuple[Codec, ...] = get_args(Codec)
HEADER_BYTES = 8
RAW, ZERO_RUNS, HUFFMAN = 0, 1, 2
METHODS: dict[Codec | Literal["raw"], tuple[int, ...]] = {
    "raw": (),
    "zero": (ZERO_RUNS,),
    "huffman": (HUFFMAN,),
    "auto": (ZERO_RUNS, HUFFMAN, ZERO_RUNS | HUFFMAN),
}
"""What is tried; a block for which none is smaller stays raw."""
NAMES = {RAW: "raw", ZERO_RUNS: "zero-run-length", HUFFMAN: "huffman", ZERO_RUNS | HUFFMAN: "zero-run-length+huffman"}
WIDTHS = (1, 2, 4, 8)
WORD_BYTES = 4


class CodecError(ValueError):
    """A block that says what cannot be."""


def compress(raw: Bytes, width: int, codec: Codec) -> Bytes:
    """The block of these bytes, elements of `width` bytes each."""
    data, ends = compress_all(raw, np.array([len(raw)]), width, codec)
    return data[: int(ends[0])]


def compress_all(raw: Bytes, ends: Ints, width: int, codec: Codec | Literal["raw"]) -> tuple[Bytes, Ints]:
    """The blocks of several runs of bytes, one behind the other; `ends`: where each run of `raw` ends.

    Gives the bytes of all blocks, and where each ends.
    """
    assert width in WIDTHS, f"elements of {width} bytes"
    sizes = np.diff(ends, prepend=0)
    assert (sizes % width == 0).all(), "a block holds whole elements"
    from frustum.dialects.weights import codec_loops as loops

    longest = int(sizes.max(initial=0))
    stream = np.empty(longest + longest // width + width + 1, np.uint8)
    out = np.empty(len(raw) + HEADER_BYTES * len(ends), np.uint8)
    out_ends = np.empty(len(ends), np.int64)
    methods = np.array(METHODS[codec], np.int64)
    words = np.empty(len(stream) // WORD_BYTES + 2, np.uint32)
    loops.compress_all(raw, ends.astype(np.int64), width, methods, stream, words, out, out_ends)
    return out[: int(out_ends[-1]) if len(ends) else 0], out_ends


def expand(block: Bytes, size_bytes: int) -> Bytes:
    """The bytes that a block stands for; what follows the block is ignored.  CodecError where it is damaged."""
    method, width, length = header(block)
    out = np.empty(size_bytes, np.uint8)
    if method == RAW:
        if length != size_bytes or len(block) < HEADER_BYTES + length:
            raise CodecError(f"a block of {length} raw bytes in {len(block)}, expected one of {size_bytes}")
        out[:] = block[HEADER_BYTES : HEADER_BYTES + length]
        return out
    from frustum.dialects.weights import codec_loops as loops

    stream = np.array(block[HEADER_BYTES:])  # not read-only: one kind of machine code is enough
    period = width + 1 if method & ZERO_RUNS else width
    if length % period or size_bytes % width:
        raise CodecError(f"a stream of {length} bytes for {size_bytes} in elements of {width}")
    if method & HUFFMAN:
        decoded = np.empty(length, np.uint8)
        if not loops.decode_bytes(stream, period, decoded):
            raise CodecError(f"codes of {length} bytes that do not end within {len(block)}")
        stream = decoded
    if len(stream) < length or not (method & ZERO_RUNS or length == size_bytes):
        raise CodecError(f"a stream of {length} bytes for {size_bytes} in a block of {len(block)}")
    if not method & ZERO_RUNS:
        return stream
    if not loops.expand_runs(stream[:length], width, out):
        raise CodecError(f"zero runs that do not make {size_bytes} bytes")
    return out


def header(block: Bytes) -> tuple[int, int, int]:
    """Method, bytes of an element, bytes of the stream; CodecError where there is no such thing."""
    if len(block) < HEADER_BYTES:
        raise CodecError(f"a block has a header of {HEADER_BYTES} bytes, found {len(block)} bytes")
    method, width = int(block[0]), int(block[1])
    if method not in NAMES or width not in WIDTHS or block[2] or block[3]:
        found = " ".join(f"{byte:02x}" for byte in block[:4].tolist())
        raise CodecError(f"a header begins with a method (0 to 3), a width (1, 2, 4, 8), 0 and 0, found {found}")
    return method, width, int.from_bytes(block[4:HEADER_BYTES].tobytes(), "little")


def in_slots(data: Bytes, ends: Ints, alignment_bytes: int) -> Bytes:
    """Blocks `[blocks, slot]`, each at the start of a slot as large as the largest needs, filled up with zeros."""
    sizes = np.diff(ends, prepend=0)
    slot = aligned(int(sizes.max(initial=1)), alignment_bytes)
    slots: Any = np.zeros((len(ends), slot), np.uint8)
    from frustum.dialects.weights import codec_loops as loops

    loops.fill_slots(data, ends, slots)
    return slots
