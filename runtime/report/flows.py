# Tests: test/runtime/report/test_report.py
"""What every engine reads and writes, by memory, and which bytes of inputs and weights are read at all (what of them is
compulsory).

Of copies `read + filled + expanded + repeated = written`, as far as each is there.  Boxes that are read become
contiguous ranges, dimension by dimension for all of them together, and ranges that touch become one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, MEMORIES, Copy, External
from frustum.runtime.device.expand import DRAM, OPERANDS, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.time.work import Workload

SOURCE, DESTINATION = 0, 1
NOWHERE = ""
"""The other end of what a compute unit or the instruction fetch reads or writes."""

Way: TypeAlias = tuple[str, str, str]
"""Engine, memory read, memory written."""


@dataclass(frozen=True)
class ByteFlow:
    """Bytes over all executions."""

    read_bytes: int = 0
    filled_bytes: int = 0
    """Padding that a copy writes and reads nowhere."""
    expanded_bytes: int = 0
    """By how much elements are more than the slots with their compressed blocks; less than 0 where they are fewer."""
    repeated_bytes: int = 0
    """Written into further memories by a multicast or broadcast."""
    written_bytes: int = 0

    def __add__(self, other: ByteFlow) -> ByteFlow:
        return ByteFlow(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


Flows: TypeAlias = Mapping[Way, ByteFlow]
Sums: TypeAlias = defaultdict[Way, ByteFlow]
Ranges: TypeAlias = Ints
"""`[n, 2]`: disjoint ranges [start, stop) of bytes, in growing order."""
Reads: TypeAlias = Mapping[tuple[str, str], Ranges]
"""Of each input and weight, by class and name, the bytes that are read, from its first one on."""


def flows(expanded: Expanded, tables: Sequence[tuple[Rows, Workload]], fetched_bytes: int) -> Flows:
    """All flows of a run of a program that fetches so many bytes of code."""
    found: Sums = defaultdict(ByteFlow)
    found["fetch", "dram", NOWHERE] += ByteFlow(read_bytes=fetched_bytes)
    for rows, done in tables:
        _add_copies(found, expanded, rows, done)
        _add_others(found, expanded, rows, done)
    return found


def added(parts: Iterable[Flows]) -> Flows:
    """The flows of several programs."""
    found: Sums = defaultdict(ByteFlow)
    for part in parts:
        for way, flow in part.items():
            found[way] += flow
    return found


def listed(found: Flows) -> list[dict[str, Any]]:
    """As the report has them; what nothing goes through is left out."""
    return [
        {"engine": engine, "from": source or None, "to": target or None, **vars(flow)}
        for (engine, source, target), flow in sorted(found.items())
        if any(vars(flow).values())
    ]


def _add_copies(found: Sums, expanded: Expanded, rows: Rows, done: Workload) -> None:
    """Each kind of bytes from the boxes on its own: nothing here is the difference of two others."""
    extent, read = rows.extent.prod(axis=0), rows.read.prod(axis=0)
    around = ((extent - read) * rows.active).sum(axis=1)
    elements, executed = (extent * rows.active).sum(axis=1), rows.active.sum(axis=1)
    sums = [_by_static(expanded, rows, each) for each in (
        done.read_bytes[SOURCE], around, elements, executed, done.written_bytes[DESTINATION]
    )]  # fmt: skip
    for number, each in enumerate(expanded.instructions):
        if not isinstance(each, Copy):
            continue
        read_bytes, outside, inside, times, written = (int(column[number]) for column in sums)
        size, copies = ELEMENT_BYTES[each.dst_view.element], int(expanded.copies[number, DESTINATION])
        way = each.engine, str(each.src_view.memory), str(each.dst_view.memory)
        filled = size * outside if each.fill is not None else 0
        grown = size * inside - each.expand * times if each.expand is not None else 0
        found[way] += ByteFlow(read_bytes, filled, grown, written * (copies - 1), written * copies)


def _add_others(found: Sums, expanded: Expanded, rows: Rows, done: Workload) -> None:
    """What compute units read and write, and what tables are loaded."""
    for slot in range(OPERANDS):
        read, written = (
            _by_static(expanded, rows, each[slot]).tolist() for each in (done.read_bytes, done.written_bytes)
        )
        for number, each in enumerate(expanded.instructions):
            kind = int(expanded.memory[number, slot])
            if kind < 0 or isinstance(each, Copy) or each.engine is None:
                continue
            memory = MEMORIES[kind]
            found[each.engine, memory, NOWHERE] += ByteFlow(read_bytes=read[number])
            found[each.engine, NOWHERE, memory] += ByteFlow(written_bytes=written[number])


def _by_static(expanded: Expanded, rows: Rows, values: Ints) -> Ints:
    totals = np.zeros(len(expanded.instructions), np.int64)
    np.add.at(totals, rows.static, values)
    return totals


# --- what is read at all -----------------------------------------------------------------------------------


def reads(expanded: Expanded) -> Reads:
    """What all executions of a program read of its inputs and weights.

    Where weights are held compressed they count whole, as they are uncompressed.
    """
    known = sorted(
        (each for each in expanded.program.externals if each.class_ in ("input", "weight")),
        key=lambda each: each.address,
    )
    if not known:
        return {}
    runs = [_runs(_boxes(expanded, rows)) for rows in (expanded.core, expanded.cluster)]
    start, run = (np.concatenate(part) for part in zip(*runs, strict=True))
    number = np.searchsorted([each.address for each in known], start, side="right") - 1
    is_compressed = any(isinstance(each, Copy) and each.expand is not None for each in expanded.instructions)
    found: dict[tuple[str, str], Ranges] = {}
    for k, each in enumerate(known):
        mine = np.flatnonzero(number == k)
        first = start[mine] - each.address
        inside = first < each.bytes
        ranges = merged(np.stack([first[inside], (first + run[mine])[inside]], axis=1))
        if is_compressed and each.class_ == "weight":
            ranges = np.array([[0, raw_bytes(each)]], np.int64)
        found[each.class_, each.name] = ranges
    return found


def raw_bytes(external: External) -> int:
    """Of its elements, without padding or compression."""
    return prod(external.shape) * ELEMENT_BYTES[external.element]


def together(parts: Iterable[Reads]) -> Reads:
    """What several programs read, each on its own."""
    found: dict[tuple[str, str], list[Ranges]] = {}
    for part in parts:
        for key, ranges in part.items():
            found.setdefault(key, []).append(ranges)
    return {key: merged(np.concatenate(ranges)) for key, ranges in found.items()}


def size_bytes(ranges: Ranges) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def merged(ranges: Ints) -> Ranges:
    """Ranges in any order, which may overlap, as disjoint ones in growing order."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if not len(ranges):
        return ranges
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.append(True, ranges[1:, 0] > reach[:-1])
    last = np.append(first[1:], True)
    return np.stack([ranges[first, 0], reach[last]], axis=1)


def _boxes(expanded: Expanded, rows: Rows) -> Ints:
    """Every different box that is read in DRAM: address, element bytes, 4 extents, 4 strides."""
    views = [each.src_view if isinstance(each, Copy) else None for each in expanded.instructions]
    strides = np.array([view.strides if view else (0,) * 4 for view in views], np.int64).reshape(-1, 4)
    element = np.array([ELEMENT_BYTES[view.element] if view else 0 for view in views], np.int64)
    moves = rows.active & (rows.read > 0).all(axis=0)
    moves &= ((expanded.memory[:, SOURCE] == DRAM) & (element > 0))[rows.static, None]
    row, unit = np.nonzero(moves)
    static = rows.static[row]
    facts = (rows.address[SOURCE, row, unit], element[static], *rows.read[:, row, unit], *strides[static].T)
    return np.unique(np.stack(facts, axis=1), axis=0) if len(row) else np.zeros((0, 10), np.int64)


def _runs(boxes: Ints) -> tuple[Ints, Ints]:
    """First bytes and lengths of the contiguous runs of all boxes."""
    start, run = boxes[:, 0], boxes[:, 1]
    extent, stride = boxes[:, 2:6], boxes[:, 6:10]
    start = start + ((extent - 1) * np.minimum(stride, 0)).sum(axis=1)  # from the lowest address on
    stride = np.abs(stride)
    order = np.argsort(stride, axis=1, kind="stable")
    extent, stride = np.take_along_axis(extent, order, axis=1), np.take_along_axis(stride, order, axis=1)
    for d in range(4):
        count = np.where(stride[:, d] == 0, 1, extent[:, d])
        goes_on = stride[:, d] <= run  # the next position begins where this one ends, or before
        run = np.where(goes_on & (count > 1), run + (count - 1) * stride[:, d], run)
        count = np.where(goes_on, 1, count)
        box = np.repeat(np.arange(len(start)), count)
        number = np.arange(len(box)) - np.repeat(np.cumsum(count) - count, count)
        start, run, extent, stride = start[box] + number * stride[box, d], run[box], extent[box], stride[box]
    return start, run
