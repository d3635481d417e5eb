"""An address table as bytes: a head, the steps of a walk, the bases, the offsets, filling; entries count elements.  And
which tables an address cache holds, so that the compiler knows what to load and to evict.

| part | bytes |
|---|---|
| groups, images, rows, columns, channels, kernel height, kernel width of the part that the table describes | 2 each |
| order of threads and products | 1 |
| encoding of the bases, of the offsets: width in bytes, + 16 for running differences | 1 each |
| bytes of an element | 1 |
| which steps follow: a bit for each of `STEPS`, the first one lowest | 1 |
| width of the steps in bytes; 0: none | 1 |
| checksum (CRC-16 of CCITT) of the head before it, and of the steps | 2 |
| steps: from a piece to the next | their width each |
| bases, offsets | their widths each |
| zeros up to a multiple of 16 | 0 to 15 |

The head has a checksum of its own because it says what the bytes after it mean; an entry has none, as the machine goes
where entries lead it.  Source: docs/techniques/address-tables.md, "As bytes".
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.errors import Error
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import ELEMENT_BYTES, TABLE_ENTRIES, Conv
from frustum.dialects.isa.tables import address_table as at

HEAD = struct.Struct("<7H6B")
CHECKSUM = struct.Struct("<H")
RUNNING = 16
STEPS = ("image", "row", "column", "channel", "group")
ELEMENT_SIZES = (1, 2, 4)
KEY = "table:"
"""Names of stored tables begin so, in the store of weights and in the program."""

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class TableError(Error, ValueError):
    """These bytes are no address table, or not one of the instruction that names it; says what is wrong."""


@dataclass(frozen=True, eq=False)
class StoredTable:
    """What the bytes of a table say; `base`, `rel` and `walk` are in elements."""

    groups: int
    images: int
    rows: int
    columns: int
    channels: int
    kernel: tuple[int, int]
    order: at.Order
    element_bytes: int
    walk: at.TableWalk
    base: Ints
    rel: Ints

    @property
    def part(self) -> tuple[int, int, int, int]:
        """Images, rows, columns, channels; of one group."""
        return self.images, self.rows, self.columns, self.channels


def stored_bytes(part: at.Geometry, order: at.Order, walk: at.TableWalk = at.STILL) -> int:
    """Length of a stored table."""
    steps = [step for step in walk if step is not None]
    head = HEAD.size + CHECKSUM.size + len(steps) * (_width(steps) if steps else 0)
    return aligned(head + at.entries_bytes(part, order))


def write_table(part: at.Geometry, order: at.Order, element_bytes: int, walk: at.TableWalk = at.STILL) -> Bytes:
    """The table of a part of a piece, and how it is walked, as bytes."""
    pieces, codes = [], []
    for values in (at.bases(part, order), at.rel(part, 0, order)):
        is_running, width = at.encoding(values)
        entries = at.differences(values) if is_running else values
        pieces.append(np.array(entries, f"<u{width}").tobytes())
        codes.append(width + RUNNING * is_running)
    extents = part.groups, part.images, part.rows, part.columns, part.channels, *part.kernel
    steps = [step for step in walk if step is not None]
    walked = sum(1 << place for place, step in enumerate(walk) if step is not None)
    width = _width(steps) if steps else 0
    head = HEAD.pack(*extents, at.ORDERS.index(order), *codes, element_bytes, walked, width)
    moves = np.array(steps, f"<u{width}").tobytes() if steps else b""
    text = head + CHECKSUM.pack(crc_hqx(head + moves, 0)) + moves + b"".join(pieces)
    return np.frombuffer(text.ljust(stored_bytes(part, order, walk), b"\0"), np.uint8)


def _width(steps: list[int]) -> int:
    width = at.width_bytes(steps)
    assert width is not None, "pieces are walked forward"
    return width


def read_table(data: Bytes) -> StoredTable:
    """The inverse of `write_table`; TableError where no `write_table` gives these bytes, whatever its entries."""
    text = data.tobytes()
    if len(text) < HEAD.size + CHECKSUM.size:
        raise TableError(f"{len(text)} bytes long, shorter than a head")
    groups, images, rows, columns, channels, high, wide, order, *codes, size, walked, width = (
        HEAD.unpack_from(text)
    )
    end = HEAD.size + CHECKSUM.size + walked.bit_count() * width
    (checksum,) = CHECKSUM.unpack_from(text, HEAD.size)
    if checksum != crc_hqx(text[: HEAD.size] + text[HEAD.size + CHECKSUM.size : end], 0):
        raise TableError("the checksum of its head does not match")
    of_base, of_rel = codes
    _check("extents", min(groups, images, rows, columns, channels, high, wide), range(1, at.MOST_EXTENT + 1))
    _check("order", order, range(len(at.ORDERS)))
    for code in codes:
        _check("encoding", code, [kind + each for kind in (0, RUNNING) for each in at.WIDTHS])
    _check("element size", size, ELEMENT_SIZES)
    _check("steps", walked, range(1 << len(STEPS)))
    _check("width of steps", width, at.WIDTHS if walked else (0,))
    threads, products = groups * images * rows * columns, channels * high * wide
    used = end + threads * (of_base % RUNNING) + products * (of_rel % RUNNING)
    if len(text) != aligned(used):
        raise TableError(f"{len(text)} bytes long, its head says {used} and filling")
    if any(text[used:]):
        raise TableError("its filling is not 0")
    its_bases, end_of_bases = _entries(text, end, threads, of_base)
    rels, _ = _entries(text, end_of_bases, products, of_rel)
    walk = _walk(text[HEAD.size + CHECKSUM.size : end], walked, width)
    part = groups, images, rows, columns, channels
    return StoredTable(*part, (high, wide), at.ORDERS[order], size, walk, its_bases, rels)


def find_table(image: Sequence[tuple[int, Bytes]], address: int, size: int) -> StoredTable:
    """The table of so many bytes at an address of the DRAM, in what the host writes there; TableError names it."""
    for start, data in image:
        if start <= address and address + size <= start + len(data):
            try:
                return read_table(data[address - start : address - start + size])
            except TableError as error:
                raise TableError(f"address table at {address}: {error}") from error
    raise TableError(f"address table at {address}: its {size} bytes are not in the executable")


def _check(what: str, found: int, allowed: range | list[int] | tuple[int, ...]) -> None:
    if found not in allowed:
        raise TableError(f"{what} {found} in its head")


def _walk(text: bytes, walked: int, width: int) -> at.TableWalk:
    steps = iter(np.frombuffer(text, f"<u{width}").tolist() if walked else ())
    image, row, column, channel, group = (next(steps) if walked >> k & 1 else None for k in range(len(STEPS)))
    return at.TableWalk(image, row, column, channel, group)


def check_use(table: StoredTable, conv: Conv) -> None:
    """TableError where the table is not made for this instruction, as far as the two alone tell."""
    size = ELEMENT_BYTES[conv.in_view.element]
    if table.kernel != conv.kernel:
        raise TableError(
            f"it is for a kernel of {_times(table.kernel)}, the convolution has {_times(conv.kernel)}"
        )
    if table.element_bytes != size:
        raise TableError(f"it is for elements of {table.element_bytes} bytes, the convolution has {size}")
    images, _, rows, columns = conv.box.extent
    for what, has, most in zip(
        STEPS, table.part, (images, rows, columns, conv.channels.extent), strict=False
    ):
        if has > most:
            raise TableError(f"it describes {has} {what}s, the convolution has {most}")
    if table.groups not in (1, conv.groups) or (table.groups > 1 and table.walk != at.STILL):
        raise TableError(f"it describes {table.groups} groups, the convolution has {conv.groups}")
    if conv.groups > table.groups and table.walk.group is None:
        raise TableError(f"it has no step from group to group, the convolution has {conv.groups} groups")


def _times(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))


def key_of(data: Bytes) -> str:
    """The name of a table: equal tables have equal names."""
    return KEY + sha256(data.tobytes()).hexdigest()[:16]


def _entries(text: bytes, start: int, count: int, code: int) -> tuple[Ints, int]:
    is_running, width = code >= RUNNING, code % RUNNING
    end = start + count * width
    values = np.frombuffer(text[start:end], f"<u{width}").astype(np.int64)
    return (np.cumsum(values) if is_running else values), end


# --- the cache ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheLoad:
    """One table to be brought into an entry, after others were given up."""

    key: str
    entry: int
    evicts: tuple[int, ...]


@dataclass
class AddressCache:
    """The tables in a cache of `capacity_bytes`: entry and size by key, the least recently used, which is given up,
    first."""

    capacity_bytes: int
    held: dict[str, tuple[int, int]] = field(default_factory=dict)

    def entry_of(self, key: str) -> int:
        return self.held[key][0]

    def use(self, keys: Collection[str]) -> None:
        """These are now the most recently used."""
        for key in keys:
            self.held[key] = self.held.pop(key)

    def bring(self, sizes: Mapping[str, int], kept: Collection[str]) -> list[CacheLoad]:
        """Loads that make these tables present while those in `kept` stay; together they must fit."""
        loads = []
        for key, size in sizes.items():
            if key not in self.held:
                evicts = self._make_room(size, {*kept, *sizes})
                entry = next(e for e in range(TABLE_ENTRIES) if e not in {e for e, _ in self.held.values()})
                self.held[key] = entry, size
                loads.append(CacheLoad(key, entry, evicts))
        self.use(list(sizes))
        return loads

    def _make_room(self, size: int, kept: Collection[str]) -> tuple[int, ...]:
        evicted = []
        while self._used() + size > self.capacity_bytes or len(self.held) == TABLE_ENTRIES:
            victim = next(key for key in self.held if key not in kept)
            evicted.append(self.held.pop(victim)[0])
        return tuple(sorted(evicted))

    def _used(self) -> int:
        return sum(size for _, size in self.held.values())
