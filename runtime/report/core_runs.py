# Tests: test/runtime/report/test_bound.py
"""Which layers read a map where another layer of their unit has made it: in NRAM, without a way through SRAM.

Found in the executed program: of each instruction that computes, its first execution, and what wrote the operand last.
"""

from __future__ import annotations

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Copy
from frustum.runtime.check.check import accesses
from frustum.runtime.device.expand import NRAM, OPERANDS, SIDES, Expanded, Rows
from frustum.runtime.device.form import Ints

WINDOW = 2048
"""Writes into the core's NRAM before an instruction among which the one that made its operand is looked for."""
SEQ, LOW, HIGH, STATIC, PLACE = range(5)


def read_in_core(expanded: Expanded) -> set[tuple[int, int]]:
    """(Unit, layer) of all that read such a map."""
    computes = np.array([not isinstance(each, Copy) for each in expanded.instructions], bool)
    writes = np.concatenate([_writes(expanded, rows) for rows in (expanded.core, expanded.cluster)])
    writes = writes[np.lexsort((writes[:, SEQ], writes[:, PLACE]))]
    reads = _first_reads(expanded, computes)
    key = writes[:, PLACE] << 40 | writes[:, SEQ]
    stops = np.searchsorted(key, reads[:, PLACE] << 40 | reads[:, SEQ])
    found = set[tuple[int, int]]()
    for read, stop in zip(reads, stops.tolist(), strict=True):
        before = writes[max(0, stop - WINDOW) : stop]
        overlaps = (
            (before[:, LOW] < read[HIGH]) & (before[:, HIGH] > read[LOW]) & (before[:, PLACE] == read[PLACE])
        )
        if not overlaps.any():
            continue
        maker = expanded.instructions[int(before[np.flatnonzero(overlaps)[-1], STATIC])]
        reader = expanded.instructions[int(read[STATIC])]
        if not isinstance(maker, Copy) and maker.unit == reader.unit and maker.layer != reader.layer:
            found.add((reader.unit, reader.layer))
    return found


def _first_reads(expanded: Expanded, computes: Ints) -> Ints:
    """The same of what instructions that compute read in their first execution (not what only a later one reads)."""
    rows = expanded.core
    active = np.flatnonzero(rows.active.any(axis=1) & computes[rows.static])
    first = active[np.unique(rows.static[active], return_index=True)[1]]
    parts = [np.zeros((0, 5), np.int64)]
    for row in first.tolist():
        for access in accesses(expanded, rows, row, int(rows.active[row].argmax())):
            if not access.is_write and access.kind == NRAM:
                found = (rows.seq[row], access.lowest, access.end, rows.static[row], access.place)
                parts.append(np.array([found], np.int64))
    return np.concatenate(parts)


def _writes(expanded: Expanded, rows: Rows) -> Ints:
    """Of what every execution writes in NRAM: place in the program order, first address and the one after the last,
    instruction, and core, the first that takes part."""
    parts = [np.zeros((0, 5), np.int64)]
    for slot in range(OPERANDS):
        strides, element = _written(expanded, slot)
        chosen = np.flatnonzero((element[rows.static] > 0) & rows.active.any(axis=1))
        if not len(chosen):
            continue
        unit = rows.active[chosen].argmax(axis=1)
        static = rows.static[chosen]
        extent = rows.extent[:, chosen, unit]
        if slot < SIDES:
            split = rows.split[slot][:, chosen, unit]
            extent = np.where(split > 0, split, extent)
        low = rows.address[slot, chosen, unit]
        high = low + (np.maximum(extent - 1, 0) * strides[static].T).sum(axis=0) + element[static]
        place = rows.place[slot, chosen, unit]
        parts.append(np.stack([rows.seq[chosen], low, high, static, place], axis=1))
    return np.concatenate(parts)


def _written(expanded: Expanded, slot: int) -> tuple[Ints, Ints]:
    """Of each instruction strides and element bytes of this operand, if it is in NRAM and written; else 0."""
    strides = np.zeros((len(expanded.instructions), 4), np.int64)
    element = np.zeros(len(expanded.instructions), np.int64)
    for number, form in enumerate(expanded.forms):
        operand = form.operands[slot] if slot < len(form.operands) else None
        if operand is None or expanded.memory[number, slot] != NRAM:
            continue
        if operand.is_written:
            strides[number], element[number] = operand.view.strides, ELEMENT_BYTES[operand.view.element]
    return strides, element
