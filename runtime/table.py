"""The address caches of the cores: which tables they hold, and convolutions computed through them.

All cores hold the same, because a table is loaded for all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from frustum.dialects.address_table import AXES
from frustum.dialects.isa.program import ELEMENT_BYTES, Conv, TableLoad
from frustum.dialects.stored_table import StoredTable, read_table
from frustum.runtime.check import AccessError
from frustum.runtime.effects import Work
from frustum.runtime.expand import Expanded
from frustum.runtime.form import groups_of
from frustum.runtime.gather import Steps, Table, gather
from frustum.runtime.kernels import Array, widen
from frustum.runtime.matrix import IN, OUT, WEIGHT, WEIGHT_ZERO, way_out


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


class AddressCaches:
    """The caches while a program runs in detail: `load` and `convolve` are effects for `Plan.with_effect`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.occupancy = Occupancy(capacity_bytes)
        self.tables: dict[int, StoredTable] = {}

    def load(self, instruction: TableLoad, work: Work) -> None:
        self.occupancy.load(instruction)
        data = work.raw(0, instruction.src_view, (1, 1, 1, instruction.bytes)).reshape(-1).view(np.uint8)
        self.tables[instruction.entry] = read_table(data)

    def convolve(self, instruction: Conv, work: Work) -> None:
        """A convolution whose operands are found through its table alone."""
        if instruction.table is None:
            raise AccessError("a convolution without an address table cannot run in detail")
        self.occupancy.use(instruction)
        way_out(instruction, work, products(instruction, work, self.tables[instruction.table]))


def products(conv: Conv, work: Work, stored: StoredTable) -> Array:
    """`[units..., n, co, h, w]` in f32, of integers in i64."""
    images, outputs, rows, columns = work.extent
    lead = work.view(OUT, conv.out_view, work.extent).shape[:-4]
    groups, table, job = groups_of(conv, outputs), table_of(stored), _Job(conv, work, stored)
    memory, weights = job.memory(lead, groups), job.weights(lead, groups)
    whole = [_multiple(extent, part) for extent, part in zip((images, rows, columns), table.part, strict=False)]
    sums = np.zeros((len(memory), groups, *whole, outputs // groups), memory.dtype)
    for group in range(groups):
        start = group * conv.channels.extent * job.strides[1]
        gather(memory, start, weights[:, group], table, job.steps, sums[:, group])
    sums = np.moveaxis(sums[:, :, :images, :rows, :columns], -1, 2)  # units, group, co, n, h, w
    sums = sums.reshape(*lead, outputs, images, rows, columns)
    return np.ascontiguousarray(np.moveaxis(sums, -4, -3))


def table_of(stored: StoredTable) -> Table:
    """A stored table with the thread and product that every entry is for."""
    threads, terms = AXES[stored.order]
    of_thread = {"n": stored.images, "y": stored.rows, "x": stored.columns}
    of_product = {"c": stored.channels, "v": stored.kernel[0], "u": stored.kernel[1]}
    thread = np.indices([of_thread[axis] for axis in threads]).reshape(3, -1)
    product = np.indices([of_product[axis] for axis in terms]).reshape(3, -1)
    n, y, x = (thread[threads.index(axis)] for axis in "nyx")
    c, v, u = (product[terms.index(axis)] for axis in "cvu")
    part = stored.images, stored.rows, stored.columns, stored.channels
    return Table(stored.base, stored.rel, (n, y, x), (c, v, u), part)


@dataclass(frozen=True)
class _Job:
    """The operands of one convolution on a group of units."""

    conv: Conv
    work: Work
    stored: StoredTable

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the input, in elements."""
        view = self.conv.in_view
        return tuple(stride // ELEMENT_BYTES[view.element] for stride in view.strides)

    @property
    def steps(self) -> Steps:
        n, c, h, w = self.strides
        return Steps(n, self.conv.strides[0] * h, self.conv.strides[1] * w, c)

    @property
    def channels(self) -> int:
        """Input channels of a group as far as the walk goes."""
        return _multiple(self.conv.channels.extent, self.stored.channels)

    def memory(self, lead: Sequence[int], groups: int) -> Array:
        """`[units, elements]`: memory from the first window's first element on, of a border that holds the padding.

        What the piece does not hold is the padding too: the walk reaches over its ends.
        """
        conv, work = self.conv, self.work
        n, c, h, w = self.strides
        shape = (work.extent[0], groups, *work.read[1:])
        step = conv.channels.extent * c
        size = ELEMENT_BYTES[conv.in_view.element]
        held = work.view(IN, conv.in_view, shape, tuple(size * s for s in (n, step, c, h, w)))
        held = _wide(held.reshape(-1, *shape), conv.in_zero)
        elements = self._reach(groups)
        memory = np.zeros((len(held), elements), held.dtype)
        start = work.low[2] * h + work.low[3] * w
        strides = [memory.itemsize * s for s in (elements, n, step, c, h, w)]
        np.ndarray(held.shape, memory.dtype, memory.data, start * memory.itemsize, strides)[...] = held
        return memory

    def _reach(self, groups: int) -> int:
        """One more than the highest address of the walk."""
        n, c, h, w = self.strides
        part = self.stored
        images, rows, columns = (
            _multiple(extent, size) for extent, size in
            zip((self.work.extent[0], *self.work.extent[2:]), (part.images, part.rows, part.columns), strict=True)
        )  # fmt: skip
        extents = images, (groups - 1) * self.conv.channels.extent + self.channels
        window = [
            (size - 1) * s + (k - 1) * d
            for size, s, k, d in zip(
                (rows, columns), self.conv.strides, self.conv.kernel, self.conv.dilations, strict=True
            )
        ]
        return (extents[0] - 1) * n + (extents[1] - 1) * c + window[0] * h + window[1] * w + 1

    def weights(self, lead: Sequence[int], groups: int) -> Array:
        """`[units, groups, co, c, kh, kw]`; 0 for channels that are not there."""
        conv, work = self.conv, self.work
        outputs, channels = work.extent[1], work.read[1]
        shape = (outputs, channels, *conv.kernel)
        given = work.view(WEIGHT, conv.weight_view, shape)
        zeros = None
        if conv.weight_zero_view is not None:
            stride = conv.weight_zero_view.strides[1]
            zeros = work.view(WEIGHT_ZERO, conv.weight_zero_view, (outputs, 1, 1, 1), (stride, 0, 0, 0))
        given = np.broadcast_to(_wide(given, 0 if zeros is None else zeros), (*lead, *shape))
        missing = self.channels - channels
        padded = np.pad(given.reshape(-1, *shape), ((0, 0), (0, 0), (0, missing), (0, 0), (0, 0)))
        return padded.reshape(-1, groups, outputs // groups, self.channels, *conv.kernel)


def _wide(values: Array, zero: Array | int) -> Array:
    """In f32; integers in i64, as distances from their zero point."""
    if values.dtype.kind == "i":
        return values.astype(np.int64) - np.asarray(zero, np.int64)
    return np.asarray(widen(values))


def _multiple(extent: int, part: int) -> int:
    return -(-extent // part) * part


__all__ = ["AddressCaches", "Occupancy", "check_tables", "count_tables", "products", "table_of"]
