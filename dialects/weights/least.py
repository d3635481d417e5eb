"""The fewest bytes in which a tensor of weights can lie in DRAM: what a bound on bytes counts of it.

Each stored form that the compiler knows gives a number that no choice of blocks is below, and the least of them counts.
A new form is one more line of `least_stored_bytes`.

- *As it is*: all bytes.
- *Compressed* (`codec.py`): blocks are runs of output channels or of input channels, which may have other statistics.
  A block costs its header, and at least the entropy of its bytes with the names of its symbols, or its elements that
  are not 0.  Of all ways to halve the channels again and again the cheapest counts.  What the padding of slots and the
  lengths of zero runs take is left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.weights.codec import HEADER_BYTES

Counts: TypeAlias = NDArray[np.int64]
"""`[parts, places, 256]`: how often each byte stands at each place of an element."""
Costs: TypeAlias = NDArray[np.float64]
PARTS = 64
"""The finest parts of a dimension."""
LISTED, SYMBOLS = 31, 256
LOOKED_UP = 1 << 16


def least_stored_bytes(weights: NDArray[Any]) -> int:
    """Of weights of a product, [M, C, ...] or [K, N]."""
    return min(weights.nbytes, _compressed(np.atleast_1d(weights)))


def _compressed(weights: NDArray[Any]) -> int:
    """Of blocks along either of the first two dimensions."""
    if not weights.size:
        return 0
    return int(min(_halved(*_counts(np.moveaxis(weights, axis, 0))) for axis in range(min(2, weights.ndim))))


def _counts(weights: NDArray[Any]) -> tuple[Counts, NDArray[np.int64]]:
    """Of parts of the first dimension, as many as a power of two; and their elements of which all bits are 0."""
    from frustum.dialects.weights import codec_loops as loops

    rows, parts = weights.shape[0], 1
    while 2 * parts <= min(PARTS, rows):
        parts *= 2
    data = np.array(weights, order="C")  # not read-only: one kind of machine code is enough
    ends = (np.arange(parts) + 1) * rows // parts * (data.nbytes // rows)
    counts = np.zeros((parts, data.itemsize, SYMBOLS), np.int64)
    loops.count_parts(data.reshape(-1).view(np.uint8), ends, data.itemsize, counts)
    bits = data.reshape(-1).view(f"u{data.itemsize}")
    stops = (ends // data.itemsize).tolist()
    zeros = [stop - start - np.count_nonzero(bits[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)]
    return counts, np.array(zeros)


def _halved(counts: Counts, zeros: NDArray[np.int64]) -> float:
    """The cheapest of all ways to make blocks of neighbouring parts."""
    best = _block(counts, zeros)
    while len(best) > 1:
        counts, zeros = counts[::2] + counts[1::2], zeros[::2] + zeros[1::2]
        best = np.minimum(_block(counts, zeros), best[::2] + best[1::2])
    return float(best[0])


def _block(counts: Counts, zeros: NDArray[np.int64]) -> Costs:
    """Bytes of each part as one block, at least."""
    size = counts.sum(axis=(1, 2)).astype(np.float64)
    others = counts.copy()
    others[:, :, 0] -= zeros[:, None]
    literal = size - counts.shape[1] * zeros
    return HEADER_BYTES + np.minimum.reduce([size, _coded(counts), literal, _coded(others)])


@cache
def _log_table() -> Costs:
    """n log2 n of all n up to `LOOKED_UP`."""
    numbers = np.arange(1.0, LOOKED_UP + 1)
    return np.concatenate([[0.0], numbers * np.log2(numbers)])


def _times_log(numbers: Counts) -> Costs:
    """n log2 n of each, 0 of 0."""
    if numbers.max(initial=0) <= LOOKED_UP:
        return _log_table()[numbers]
    found: Costs = numbers.astype(np.float64) * np.log2(np.maximum(numbers, 1))
    return found


def _coded(counts: Counts) -> Costs:
    """With codes of their own for the bytes at each place, or without."""
    total = counts.sum(axis=2)
    bits = _times_log(total) - _times_log(counts).sum(axis=2)
    used = (counts > 0).sum(axis=2)
    table = 1 + np.where(used < LISTED, used, SYMBOLS // 8) + (used + 1) // 2
    return np.minimum(table + bits / 8, 1.0 + total).sum(axis=1)
