"""An address table as bytes: 16 bytes of head, the bases, the offsets; entries count elements, not bytes.

| head | bytes |
|---|---|
| images, rows, columns, channels, kernel height, kernel width of the part that the table describes | 2 each |
| order of threads and products | 1 |
| encoding of the bases, of the offsets: width in bytes, + 16 for running differences | 1 each |
| bytes of an element | 1 |
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.address_table import (
    ORDERS,
    Geometry,
    Order,
    base,
    differences,
    encoding,
    entries_bytes,
    rel,
)

HEAD = struct.Struct("<6H4B")
RUNNING = 16
ALIGNMENT_BYTES = 16
KEY = "table:"
"""Names of stored tables begin so, in the store of weights and in the program."""

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StoredTable:
    """What the bytes of a table say; `base` and `rel` are in elements."""

    images: int
    rows: int
    columns: int
    channels: int
    kernel: tuple[int, int]
    order: Order
    element_bytes: int
    base: Ints
    rel: Ints


def stored_bytes(part: Geometry, order: Order) -> int:
    """Length of a stored table."""
    return -(-(HEAD.size + entries_bytes(part, order)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def write_table(part: Geometry, order: Order, element_bytes: int) -> Bytes:
    """The table of a part of a piece as bytes."""
    pieces, codes = [], []
    for values in (base(part, 0, order), rel(part, 0, order)):
        is_running, width = encoding(values)
        entries = differences(values) if is_running else values
        pieces.append(np.array(entries, f"<u{width}").tobytes())
        codes.append(width + RUNNING * is_running)
    extents = part.images, part.rows, part.columns, part.channels, *part.kernel
    text = HEAD.pack(*extents, ORDERS.index(order), *codes, element_bytes) + b"".join(pieces)
    return np.frombuffer(text.ljust(stored_bytes(part, order), b"\0"), np.uint8)


def read_table(data: Bytes) -> StoredTable:
    """The inverse of `write_table`."""
    head = HEAD.unpack(data[: HEAD.size].tobytes())
    images, rows, columns, channels, height, wide, order, of_base, of_rel, size = head
    bases, end = _entries(data, HEAD.size, images * rows * columns, of_base)
    rels, _ = _entries(data, end, channels * height * wide, of_rel)
    return StoredTable(images, rows, columns, channels, (height, wide), ORDERS[order], size, bases, rels)


def key_of(data: Bytes) -> str:
    """The name of a table: equal tables have equal names."""
    return KEY + sha256(data.tobytes()).hexdigest()[:16]


def _entries(data: Bytes, start: int, count: int, code: int) -> tuple[Ints, int]:
    is_running, width = code >= RUNNING, code % RUNNING
    end = start + count * width
    values = np.frombuffer(data[start:end].tobytes(), f"<u{width}").astype(np.int64)
    return (np.cumsum(values) if is_running else values), end
