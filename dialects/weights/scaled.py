# Tests: test/dialects/weights/test_scaled.py
"""Blocks of integers of a few bits with scales: what `DequantizeLinear` makes weights from.

A weight is T(f32(q - z) * f32(s)), rounded to the type T of the scales, then to the element of the weights; without
scales it is q - z.  The block holds what one piece of a tensor needs, so a piece may begin inside a run of weights
that share a scale.

| bytes | what |
|---|---|
| 0 | method: 4 |
| 1 | bytes of a weight |
| 2 | bits 0-1: bits of an integer (2, 4, 8, 16); 2-3: zero points (no, one, as many as scales); 4-5: type of scales |
| 3 | two bits for each dimension, d0 lowest: its positions share a scale (0), have one each (1), or in runs (2) |
| 4, 5 | positions of a run |
| 6, 7 | positions of the first run that lie before the piece |
| from 8 on | the scales, d0 outermost; zero points; integers, d0 outermost |

Types of scales are none, f32, f16 and bf16.  Integers and zero points are in two's complement, packed from the lowest
bit of a byte up, each list to whole bytes.
The extents of the piece are those of the clipped box that it is copied into.

Source: ONNX `DequantizeLinear` (opset 21), whose numbers these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import ceil_div
from frustum.dialects.weights.codec import HEADER_BYTES, CodecError, expand

Array: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]

SCALED = 4
STORED = "stored"
"""What ends the names of tensors of such blocks."""
RANK = 4
BITS = (2, 4, 8, 16)
SCALE_TYPES: tuple[np.dtype[Any] | None, ...] = (
    None, np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16),
)  # fmt: skip
NO_ZERO, ONE_ZERO, ZEROS = 0, 1, 2
SHARED, EACH, RUNS = 0, 1, 2
LONGEST_RUN = (1 << 16) - 1
BYTE_BITS = 8


@dataclass(frozen=True)
class ScaledPiece:
    """Integers `[d0, d1, d2, d3]`, and of each the number of its scale and zero point in the lists of them; where there
    is one zero point it is that of all."""

    integers: Array
    number: Array
    scales: Array | None
    zeros: Array | None
    bits: int


@dataclass(frozen=True)
class _Layout:
    """Which positions share a scale: by dimension, positions of a run (0: all), and those of the first before it."""

    runs: tuple[int, ...]
    phase: int

    def starts(self, extents: Sequence[int]) -> list[Ints]:
        """The first position of each run of each dimension."""
        places = [self.places(extents, d) for d in range(RANK)]
        return [np.flatnonzero(np.diff(each, prepend=-1)) for each in places]

    def places(self, extents: Sequence[int], d: int) -> Ints:
        """The number of the run that each position of a dimension is in."""
        run, position = self.runs[d], np.arange(extents[d], dtype=np.int64)
        return position * 0 if run == 0 else position if run == 1 else (position + self.phase) // run


def layout_of(number: Array) -> _Layout:
    """The coarsest layout in which positions of one run have one number; at worst each position has its own."""
    runs = [_run(number, d) for d in range(RANK)]
    longest = max(range(RANK), key=lambda d: runs[d][0])
    phase = runs[longest][1] if runs[longest][0] > 1 else 0
    return _Layout(tuple(run if d == longest else min(run, 1) for d, (run, _) in enumerate(runs)), phase)


def _run(number: Array, d: int) -> tuple[int, int]:
    """Positions of a run along a dimension (0: one run), and how many of the first lie before the piece."""
    extent, rest = number.shape[d], tuple(k for k in range(RANK) if k != d)
    ahead, behind = (np.take(number, range(*each), axis=d) for each in ((1, extent), (0, extent - 1)))
    cuts = (np.flatnonzero((ahead != behind).any(axis=rest)) + 1).tolist()
    if not cuts:
        return 0, 0
    run = gcd(*(cut - cuts[0] for cut in cuts)) or max(cuts[0], extent - cuts[0])
    return (run, -cuts[0] % run) if 1 < run <= LONGEST_RUN else (1, 0)


def pack(piece: ScaledPiece, width: int) -> Bytes:
    """The block of a piece, as weights of `width` bytes."""
    layout = layout_of(piece.number)
    chosen = piece.number[np.ix_(*layout.starts(piece.number.shape))].reshape(-1)
    zeros = piece.zeros
    kind = NO_ZERO if zeros is None else ONE_ZERO if zeros.size == 1 else ZEROS
    parts = [_header(piece, width, kind, layout)]
    if piece.scales is not None:
        parts.append(np.ascontiguousarray(piece.scales[chosen]).view(np.uint8))
    if zeros is not None:
        parts.append(pack_bits(zeros if kind == ONE_ZERO else zeros[chosen], piece.bits))
    return np.concatenate([*parts, pack_bits(piece.integers.reshape(-1), piece.bits)])


def _header(piece: ScaledPiece, width: int, zeros: int, layout: _Layout) -> Bytes:
    scale_type = None if piece.scales is None else piece.scales.dtype
    kind = BITS.index(piece.bits) | zeros << 2 | SCALE_TYPES.index(scale_type) << 4
    ways = sum((RUNS if run > 1 else run) << 2 * d for d, run in enumerate(layout.runs))
    run = max(layout.runs)
    run, phase = (run, layout.phase) if run > 1 else (0, 0)
    return np.array([SCALED, width, kind, ways, run & 255, run >> 8, phase & 255, phase >> 8], np.uint8)


def weights_in(block: Bytes, extents: Sequence[int], element: np.dtype[Any]) -> Array:
    """What a block of any method stands for, as a piece of these extents; CodecError where it is damaged."""
    if len(block) and block[0] == SCALED:
        return unpack(block, extents, element)
    found: Array = expand(block, prod(extents) * element.itemsize).view(element).reshape(tuple(extents))
    return found


def unpack(block: Bytes, extents: Sequence[int], element: np.dtype[Any]) -> Array:
    """The weights of a piece, `extents` of `element`; what follows the block is ignored.

    CodecError where it is damaged.
    """
    bits, zero_kind, scale_type, layout = _read_header(block, element)
    places = [layout.places(extents, d) for d in range(RANK)]
    counts = [int(each[-1]) + 1 for each in places]
    many, rest = prod(counts), block[HEADER_BYTES:]
    scale_bytes = 0 if scale_type is None else many * scale_type.itemsize
    zero_count = {NO_ZERO: 0, ONE_ZERO: 1, ZEROS: many}[zero_kind]
    zero_bytes, whole = ceil_div(zero_count * bits, BYTE_BITS), ceil_div(prod(extents) * bits, BYTE_BITS)
    if len(rest) < scale_bytes + zero_bytes + whole:
        raise CodecError(f"{prod(extents)} integers and {many} scales that do not end within {len(block)} bytes")
    at = np.ix_(*places)
    values = unpack_bits(rest[scale_bytes + zero_bytes :], prod(extents), bits).reshape(tuple(extents))
    if zero_kind != NO_ZERO:
        zeros = unpack_bits(rest[scale_bytes:], zero_count, bits)
        values = values - (zeros.reshape(counts)[at] if zero_kind == ZEROS else zeros[0])
    if scale_type is not None:
        values = dequantised(values, np.ascontiguousarray(rest[:scale_bytes]).view(scale_type).reshape(counts)[at])
    with np.errstate(over="ignore"):
        return values.astype(element)


def dequantised(shifted: Array, scales: Array) -> Array:
    """Integers less their zero points, times scales: in f32, and then in the type of the scales."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = (shifted.astype(np.float32) * scales.astype(np.float32)).astype(scales.dtype)
    return found


def _read_header(block: Bytes, element: np.dtype[Any]) -> tuple[int, int, np.dtype[Any] | None, _Layout]:
    """Bits of an integer, kind of zero points, type of scales, layout."""
    if len(block) < HEADER_BYTES:
        raise CodecError(f"a block has a header of {HEADER_BYTES} bytes, found {len(block)} bytes")
    width, kind, ways = (int(byte) for byte in block[1:4])
    run, phase = int(block[4]) | int(block[5]) << 8, int(block[6]) | int(block[7]) << 8
    modes = [ways >> 2 * d & 3 for d in range(RANK)]
    zeros, is_known = kind >> 2 & 3, kind >> 6 == 0 and width == element.itemsize
    in_runs = modes.count(RUNS)
    if not is_known or zeros > ZEROS or max(modes) > RUNS or in_runs > 1 or (phase >= run > 0) or (run > 1) != in_runs:
        found = " ".join(f"{byte:02x}" for byte in block[:HEADER_BYTES].tolist())
        raise CodecError(f"a header of integers with scales for weights of {element.itemsize} bytes, found {found}")
    runs = tuple(run if mode == RUNS else mode for mode in modes)
    return BITS[kind & 3], zeros, SCALE_TYPES[kind >> 4 & 3], _Layout(runs, phase)


def pack_bits(integers: Array, bits: int) -> Bytes:
    """Integers in two's complement, from the lowest bit of a byte up, to whole bytes."""
    if bits >= BYTE_BITS:
        return np.ascontiguousarray(integers.astype(f"<i{bits // BYTE_BITS}")).view(np.uint8)
    each = BYTE_BITS // bits
    low = integers.astype(np.uint8) & ((1 << bits) - 1)
    low = np.concatenate([low, np.zeros(-len(low) % each, np.uint8)]).reshape(-1, each)
    found: Bytes = np.bitwise_or.reduce(low << (np.arange(each, dtype=np.uint8) * bits), axis=1)
    return found.astype(np.uint8)


def unpack_bits(data: Bytes, count: int, bits: int) -> Array:
    """So many integers, as i32."""
    if bits >= BYTE_BITS:
        size = bits // BYTE_BITS
        return np.ascontiguousarray(data[: count * size]).view(f"<i{size}").astype(np.int32)
    each = BYTE_BITS // bits
    packed = data[: ceil_div(count, each), None] >> (np.arange(each, dtype=np.uint8) * bits)
    low = packed.reshape(-1)[:count].astype(np.int32) & ((1 << bits) - 1)
    found: Array = low - ((low >> bits - 1) << bits)
    return found


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of so many integers side by side."""
    return ceil_div(count * bits, BYTE_BITS)
