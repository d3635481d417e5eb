"""Who lies where in the memories on chip, and how long: from the first write of a buffer to its last read.

Everything is derived from what ran: the addresses that the executions of instructions write and read, and when.  What
one layer of a unit writes into neighbouring bytes of a memory is one buffer (the copies of a ring are).  A read belongs
to the buffer that was last written at its address.  Where nobody touches a buffer for long it is not there meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from frustum.dialects.isa.program import MEMORIES
from frustum.runtime.device.expand import DRAM, SIDES, Expanded, Rows
from frustum.runtime.device.form import Ints, Operand
from frustum.runtime.device.memory import reach, reach_around, ring_of
from frustum.runtime.time.timeline import Timeline

LONG = 50
"""A buffer that is written again after more than the run / LONG without any access was not there meanwhile."""


@dataclass(frozen=True)
class Residence:
    """A buffer: bytes [address, end) of memory `place` of kind `memory`, from cycle `start` to `stop`; the layer and
    unit that wrote it, as numbers into those of the program."""

    memory: str
    place: int
    address: int
    end: int
    start: int
    stop: int
    layer: int
    unit: int


class Accesses(NamedTuple):
    """Accesses to memories on chip, a number of each in every column."""

    kind: Ints
    place: Ints
    low: Ints
    end: Ints
    start: Ints
    stop: Ints
    layer: Ints
    unit: Ints
    is_write: Ints


def residences(timeline: Timeline) -> list[Residence]:
    """All buffers on chip, memory by memory, in the order of their first write."""
    found = accesses(timeline)
    key = found.kind * (1 + int(found.place.max(initial=0))) + found.place
    return [
        each
        for number in np.unique(key).tolist()
        for each in _of_memory(_chosen(found, key == number), timeline.total_cycles)
    ]


# --- accesses ----------------------------------------------------------------------------------------------


def accesses(timeline: Timeline) -> Accesses:
    """Every access of every execution to a memory on chip; bytes between its first and last count as touched."""
    core, cluster = timeline.expanded.core, timeline.expanded.cluster
    first_of_cluster = len(core) * core.units
    size = first_of_cluster + len(cluster) * cluster.units + 2
    start, stop = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    start[timeline.queues.cell], stop[timeline.queues.cell] = timeline.times.start, timeline.times.completion
    parts = [
        part
        for rows, first in ((core, 0), (cluster, first_of_cluster))
        for part in _of_table(timeline.expanded, rows, first, start, stop)
    ]
    empty = np.zeros(0, np.int64)
    return Accesses(*(np.concatenate([empty, *column]) for column in zip(*parts, strict=True))) if parts else Accesses(
        *[empty] * len(Accesses._fields)
    )  # fmt: skip


def _of_table(expanded: Expanded, rows: Rows, first: int, start: Ints, stop: Ints) -> Iterator[Accesses]:
    for number in np.unique(rows.static).tolist():
        mine = rows.of(number)
        for slot, operand in enumerate(expanded.forms[number].operands):
            kind = int(expanded.memory[number, slot])
            if operand is None or kind <= DRAM:
                continue
            low, end, touched = _ranges(rows, mine, slot, operand)
            for is_write in (False, True):
                when = (operand.writes if is_write else operand.reads).holds(rows.is_first[mine], rows.is_last[mine])
                row, unit = np.nonzero(touched & np.asarray(when)[:, None])
                cell = first + mine[row] * rows.units + unit
                known = start[cell] >= 0
                row, unit, cell = row[known], unit[known], cell[known]
                for copy in range(int(expanded.copies[number, slot])):
                    place = rows.place[slot, mine[row], unit] + copy
                    facts = kind, expanded.instructions[number].layer, expanded.instructions[number].unit, int(is_write)
                    memory, layer, own, written = (np.full(len(row), fact) for fact in facts)
                    yield Accesses(
                        memory, place, low[row, unit], end[row, unit], start[cell], stop[cell], layer, own, written
                    )


def _ranges(rows: Rows, mine: Ints, slot: int, operand: Operand) -> tuple[Ints, Ints, Ints]:
    """First and last byte plus one of an operand `[rows, units]`, and where it is touched at all."""
    extent, read = rows.extent[:, mine], rows.read[:, mine]
    shape = extent.shape[1:]
    counts = np.stack([np.broadcast_to(axis.count(extent, read), shape) for axis in operand.axes], axis=-1)
    strides = np.array(operand.strides, np.int64)
    count = np.where(strides == 0, 1, np.maximum(counts, 1))
    dim, ring = ring_of(operand.view)
    if ring and slot < SIDES:
        flat = count.reshape(-1, count.shape[-1])
        split = rows.split[slot, dim][mine].ravel()
        low, high = reach_around(flat, strides, np.full(len(flat), dim), split, np.full(len(flat), ring))
        low, high = low.reshape(shape), high.reshape(shape)
    else:
        low, high = reach(count, strides)
    address = rows.address[slot][mine]
    return address + low, address + high + operand.element_bytes, rows.active[mine] & (counts > 0).all(axis=-1)


# --- buffers -----------------------------------------------------------------------------------------------


def _chosen(found: Accesses, which: Ints) -> Accesses:
    return Accesses(*(column[which] for column in found))


def _of_memory(found: Accesses, total: int) -> list[Residence]:
    """The buffers of one memory."""
    writes = _chosen(found, found.is_write == 1)
    buffer, ranges = _buffers(writes)
    if not len(ranges):
        return []
    owner = _last_writer(found, writes, buffer, ranges)
    memory, place = MEMORIES[int(found.kind[0])], int(found.place[0])
    known = owner >= 0
    order = np.lexsort((found.start[known], owner[known]))
    owner, start, stop, is_write = (
        column[known][order] for column in (owner, found.start, found.stop, found.is_write)
    )
    result = []
    bounds = np.searchsorted(owner, np.arange(len(ranges) + 1))
    for number, (low, end, layer, unit) in enumerate(ranges.tolist()):
        chosen = slice(bounds[number], bounds[number + 1])
        for begin, until in _stays(start[chosen], stop[chosen], is_write[chosen], total // LONG):
            result.append(Residence(memory, place, low, end, begin, until, layer, unit))
    return sorted(result, key=lambda each: (each.start, each.address))


def _buffers(writes: Accesses) -> tuple[Ints, Ints]:
    """Of each write its buffer, and the buffers: rows of address, end, layer, unit."""
    order = np.lexsort((writes.low, writes.layer, writes.unit))
    low, end, layer, unit = (column[order] for column in (writes.low, writes.end, writes.layer, writes.unit))
    fresh = np.ones(len(order), bool)
    group = np.zeros(len(order), np.int64)
    if len(order) > 1:
        same = (layer[1:] == layer[:-1]) & (unit[1:] == unit[:-1])
        group[1:] = np.cumsum(~same)
        far = int(end.max()) + 1
        reached = np.maximum.accumulate(end + group * far) - group * far  # within a group: the furthest end so far
        fresh[1:] = ~same | (low[1:] > reached[:-1])
    number = np.cumsum(fresh) - 1
    ranges = np.zeros((int(fresh.sum()), 4), np.int64)
    ranges[:, 0], ranges[:, 2], ranges[:, 3] = low[fresh], layer[fresh], unit[fresh]
    np.maximum.at(ranges[:, 1], number, end)
    buffer = np.zeros(len(order), np.int64)
    buffer[order] = number
    return buffer, ranges


def _last_writer(found: Accesses, writes: Accesses, buffer: Ints, ranges: Ints) -> Ints:
    """Of each access the buffer: of a write its own, of a read the last one written at its first address; -1: none."""
    edges = np.unique(ranges[:, :2])
    first, last = (np.searchsorted(edges, ranges[:, column]) for column in (0, 1))
    spans = (last - first)[buffer]
    which = np.repeat(np.arange(len(buffer)), spans)
    cell = first[buffer][which] + np.arange(len(which)) - np.repeat(np.cumsum(spans) - spans, spans)
    horizon = int(found.stop.max()) + 1
    key = cell * horizon + writes.start[which]
    order = np.argsort(key, kind="stable")
    reads = found.is_write == 0
    asked = (np.searchsorted(edges, found.low[reads], side="right") - 1) * horizon + found.start[reads]
    at = np.searchsorted(key[order], asked, side="right") - 1
    known = (at >= 0) & (key[order][at] // horizon == asked // horizon)
    owner = np.full(len(found.low), -1, np.int64)
    owner[~reads] = buffer
    owner[reads] = np.where(known, buffer[which[order][at]], -1)
    return owner


def _stays(start: Ints, stop: Ints, is_write: Ints, long: int) -> Iterator[tuple[int, int]]:
    """From when to when a buffer is there: accesses in order of time, parted where a write comes long after all."""
    reached = np.maximum.accumulate(stop)
    parted = np.flatnonzero((is_write[1:] == 1) & (start[1:] - reached[:-1] > long)) + 1
    for begin, until in zip([0, *parted.tolist()], [*parted.tolist(), len(start)], strict=True):
        if until > begin:
            yield int(start[begin]), int(reached[until - 1])
