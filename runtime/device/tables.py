"""The address caches of the cores: which tables they hold, and which of them each convolution finds in its entry.

All cores hold the same, because a table is loaded for all at once.  What convolutions make of it: `addresses.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Conv, TableLoad
from frustum.dialects.isa.tables.stored_table import Bytes, StoredTable, TableError, find_table
from frustum.runtime.device.addresses import Addresses, AddressTables, addresses, buffer_elements
from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.form import Ints, groups_of
from frustum.runtime.device.memory import AccessError, execution_name, instruction_name, memory_name


@dataclass
class Occupancy:
    """Bytes of each entry of a cache that holds at most `capacity_bytes`."""

    capacity_bytes: int
    held: dict[int, int] = field(default_factory=dict)

    def load(self, instruction: TableLoad) -> None:
        for entry in instruction.evicts:
            if self.held.pop(entry, None) is None:
                raise AccessError(f"address cache: entry {entry} is evicted, but holds no table")
        if instruction.entry in self.held:
            raise AccessError(f"address cache: entry {instruction.entry} is loaded, but holds a table")
        self.held[instruction.entry] = instruction.bytes
        if self.used_bytes > self.capacity_bytes:
            raise AccessError(f"address cache: holds {self.used_bytes} bytes, has {self.capacity_bytes}")

    def use(self, instruction: Conv) -> None:
        if instruction.table is not None and instruction.table not in self.held:
            raise AccessError(f"address cache: a convolution uses entry {instruction.table}, which holds no table")

    @property
    def used_bytes(self) -> int:
        return sum(self.held.values())


def check_tables(expanded: Expanded, capacity_bytes: int) -> None:
    """Raise AccessError where a table is used that is not there, or the cache overflows; in program order."""
    cache = Occupancy(capacity_bytes)
    for rows, row in expanded.in_order():
        instruction = expanded.instructions[rows.static[row]]
        if isinstance(instruction, TableLoad):
            cache.load(instruction)
        elif isinstance(instruction, Conv):
            cache.use(instruction)


def count_tables(expanded: Expanded) -> dict[str, int]:
    """Different tables, loads into the caches of a chip, and entries evicted for them, in one run."""
    executed = [expanded.instructions[number] for number in expanded.cluster.static.tolist()]
    loads = [each for each in executed if isinstance(each, TableLoad)]
    return {
        "tables": len({each.src_view.offset for each in loads}),
        "loads": len(loads),
        "evictions": sum(len(each.evicts) for each in loads),
    }


def with_tables(expanded: Expanded, image: Sequence[tuple[int, Bytes]]) -> Expanded:
    """The expanded program with the tables that its convolutions name, read from what the host writes into DRAM.

    AccessError, naming the instruction, where an entry holds no table or one that is not the instruction's.
    """
    rows = expanded.core
    loads = _loads(expanded)
    number = np.full(len(rows), -1, np.int64)
    wanted = np.array([_entry(each) for each in expanded.instructions], np.int64)[rows.static]
    for entry in np.unique(wanted[wanted >= 0]).tolist():
        mine = np.flatnonzero(wanted == entry)
        seqs, places = _events(expanded, loads, entry)
        at = np.searchsorted(seqs, rows.seq[mine]) - 1
        found = np.where(at >= 0, places[at], -1) if len(places) else np.full(len(mine), -1)
        if (found < 0).any():
            conv = instruction_name(expanded, int(rows.static[mine[found.argmin()]]))
            raise AccessError(f"address cache: {conv} uses entry {entry}, which holds no table")
        number[mine] = found
    stored, number = _read(expanded, loads, number, image)
    return replace(expanded, tables=AddressTables(stored, number, _uses(expanded, stored, number)))


def _entry(instruction: object) -> int:
    return instruction.table if isinstance(instruction, Conv) and instruction.table is not None else -1


def _loads(expanded: Expanded) -> Ints:
    """Rows of the cluster table that load address tables, in program order."""
    is_load = np.array([isinstance(each, TableLoad) for each in expanded.instructions], bool)
    found: Ints = np.flatnonzero(is_load[expanded.cluster.static])
    return found


def _events(expanded: Expanded, loads: Ints, entry: int) -> tuple[Ints, Ints]:
    """When an entry changes, as places in the program order, and the load whose table it holds from then on; -1:
    none."""
    seqs, places = [], []
    for place, row in enumerate(loads.tolist()):
        load = expanded.instructions[expanded.cluster.static[row]]
        assert isinstance(load, TableLoad)
        if load.entry == entry or entry in load.evicts:
            seqs.append(int(expanded.cluster.seq[row]))
            places.append(place if load.entry == entry else -1)
    return np.array(seqs, np.int64), np.array(places, np.int64)


def _read(
    expanded: Expanded, loads: Ints, number: Ints, image: Sequence[tuple[int, Bytes]]
) -> tuple[tuple[StoredTable, ...], Ints]:
    """The tables that are used, each once, and for each row its number; -1: none."""
    tables: dict[tuple[int, int], int] = {}
    stored: list[StoredTable] = []
    renamed = np.full(len(loads) + 1, -1, np.int64)
    for place in np.unique(number[number >= 0]).tolist():
        row = int(loads[place])
        static = int(expanded.cluster.static[row])
        load = expanded.instructions[static]
        assert isinstance(load, TableLoad)
        where = int(expanded.cluster.address[0, row, 0]), load.bytes
        if where not in tables:
            try:
                stored.append(find_table(image, *where))
            except TableError as error:
                raise AccessError(f"{instruction_name(expanded, static)}: {error}") from error
            tables[where] = len(stored) - 1
        renamed[place] = tables[where]
    return tuple(stored), renamed[number]


def _uses(expanded: Expanded, stored: Sequence[StoredTable], number: Ints) -> dict[tuple[int, int], Addresses]:
    """What each convolution makes of each table that it names."""
    used = np.flatnonzero(number >= 0)
    pairs = np.unique(np.stack([expanded.core.static[used], number[used]]), axis=1).T.tolist()
    found: dict[tuple[int, int], Addresses] = {}
    for static, its in pairs:
        conv = expanded.instructions[static]
        assert isinstance(conv, Conv)
        rows = used[(expanded.core.static[used] == static) & (number[used] == its)]
        active = expanded.core.active[rows]
        images, _, height, width = (expanded.core.extent[:, rows] * active).max(axis=(1, 2)).tolist()
        channels = int((expanded.core.read[1, rows] * active).max())
        try:
            found[static, its] = addresses(stored[its], conv, (images, height, width, channels))
        except TableError as error:
            raise AccessError(f"{instruction_name(expanded, static)}: its address table: {error}") from error
    return found


# --- convolutions by addresses ---------------------------------------------------------------------------


def check_reach(expanded: Expanded) -> None:
    """AccessError at the first execution whose table leads out of the buffer of its input; padding is inside.

    Addresses that are the buffer's own strides cannot: only others are looked at.
    """
    tables, rows = expanded.tables, expanded.core
    if tables is None:
        return
    strange = [pair for pair, use in tables.uses.items() if use.strides is None]
    for static, number in strange:
        conv = expanded.instructions[static]
        assert isinstance(conv, Conv)
        mine = np.flatnonzero((rows.static == static) & (tables.number == number))
        for row, unit in np.argwhere(rows.active[mine]).tolist():
            _check_execution(expanded, conv, tables.uses[static, number], int(mine[row]), unit)


def _check_execution(expanded: Expanded, conv: Conv, use: Addresses, row: int, unit: int) -> None:
    rows, size = expanded.core, ELEMENT_BYTES[conv.in_view.element]
    box, read, low, high = (part[:, row, unit].tolist() for part in (rows.extent, rows.read, rows.low, rows.high))
    lowest, highest = use.ends((box[0], box[2], box[3], read[1]), groups_of(conv, box[1]))
    elements = buffer_elements(conv, box, read, low, high)
    if lowest >= 0 and highest < elements:
        return
    begin = int(rows.address[0, row, unit]) - low[2] * conv.in_view.strides[2] - low[3] * conv.in_view.strides[3]
    end, address = begin + elements * size, begin + (lowest if lowest < 0 else highest) * size
    kind, place = int(expanded.memory[rows.static[row], 0]), int(rows.place[0, row, unit])
    raise AccessError(
        f"{execution_name(expanded, rows, row, unit)}: its address table leads to address {address} of"
        f" {memory_name(expanded, kind, place)}, outside its buffer [{begin}, {end})"
    )
