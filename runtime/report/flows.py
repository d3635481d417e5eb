"""What every engine reads and writes, by memory, and by name what makes the two unequal.

Of copies `read + filled + expanded + repeated = written`, as far as each is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, MEMORIES, Copy
from frustum.runtime.device.expand import OPERANDS, Expanded, Rows
from frustum.runtime.device.order import Ints
from frustum.runtime.time.work import Work

SOURCE, DESTINATION = 0, 1
NOWHERE = ""
"""The other end of what a compute unit or the instruction fetch reads or writes."""

Way: TypeAlias = tuple[str, str, str]
"""Engine, memory read, memory written."""


@dataclass(frozen=True)
class Flow:
    """Bytes over all executions."""

    read_bytes: int = 0
    filled_bytes: int = 0
    """Padding that a copy writes and reads nowhere."""
    expanded_bytes: int = 0
    """By how much elements are more than the slots with their compressed blocks; less than 0 where they are fewer."""
    repeated_bytes: int = 0
    """Written into further memories by a multicast or broadcast."""
    written_bytes: int = 0

    def __add__(self, other: Flow) -> Flow:
        return Flow(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


Flows: TypeAlias = Mapping[Way, Flow]


def flows(expanded: Expanded, tables: Sequence[tuple[Rows, Work]], fetched_bytes: int) -> Flows:
    """All flows of a run of a program that fetches so many bytes of code."""
    found = _Sum()
    found.add(("fetch", "dram", NOWHERE), Flow(read_bytes=fetched_bytes))
    for rows, done in tables:
        _add_copies(found, expanded, rows, done)
        _add_others(found, expanded, rows, done)
    return found.flows


def added(parts: Iterable[Flows]) -> Flows:
    """The flows of several programs."""
    found = _Sum()
    for part in parts:
        for way, flow in part.items():
            found.add(way, flow)
    return found.flows


def listed(found: Flows) -> list[dict[str, Any]]:
    """As the report has them; what nothing goes through is left out."""
    return [
        {"engine": engine, "from": source or None, "to": target or None, **vars(flow)}
        for (engine, source, target), flow in sorted(found.items())
        if any(astuple(flow))
    ]


class _Sum:
    def __init__(self) -> None:
        self.flows: dict[Way, Flow] = {}

    def add(self, way: Way, flow: Flow) -> None:
        self.flows[way] = self.flows.get(way, Flow()) + flow


def _add_copies(found: _Sum, expanded: Expanded, rows: Rows, done: Work) -> None:
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
        found.add(way, Flow(
            read_bytes,
            size * outside if each.fill is not None else 0,
            size * inside - each.expand * times if each.expand is not None else 0,
            written * (copies - 1),
            written * copies,
        ))  # fmt: skip


def _add_others(found: _Sum, expanded: Expanded, rows: Rows, done: Work) -> None:
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
            found.add((each.engine, memory, NOWHERE), Flow(read_bytes=read[number]))
            found.add((each.engine, NOWHERE, memory), Flow(written_bytes=written[number]))


def _by_static(expanded: Expanded, rows: Rows, values: Ints) -> Ints:
    totals = np.zeros(len(expanded.instructions), np.int64)
    np.add.at(totals, rows.static, values)
    return totals
