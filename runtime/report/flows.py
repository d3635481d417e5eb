# Tests: test/runtime/report/test_report.py
"""What every engine reads and writes, by memory.

Of copies `read + filled + expanded + repeated = written`, as far as each is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, MEMORIES, Copy
from frustum.runtime.device.expand import OPERANDS, Expanded, Rows
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
