# Tests: test/pipeline/test_exchanged_bytes.py
"""What fusing costs and saves, unit by unit: what is computed again, and what tiles hand to each other.

All is counted from executed instructions; docs/traversal.md, "In the report", says what each number means.
Source: docs/techniques/frustum.md, "Borders".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from frustum.dialects.isa.program import CORE_ENGINES, ELEMENT_BYTES, Copy, Instruction, View
from frustum.runtime.device.expand import Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.device.memory import reach_around, ring_of
from frustum.runtime.time.work import Workload

SOURCE, DESTINATION = 0, 1


@dataclass(frozen=True)
class UnitExchange:
    """Of one unit: multiplications and bytes of results beyond one of each; bytes that cores take back of what they put
    into SRAM themselves (`core`), that they take of what other cores of their cluster put there (`cluster`), and that
    CDMA writes into other clusters (`chip`)."""

    recomputed_macs: int
    recomputed_bytes: int
    core: int
    cluster: int
    chip: int

    @property
    def figures(self) -> dict[str, Any]:
        """As the report has them."""
        return {
            "recomputed_macs": self.recomputed_macs,
            "recomputed_bytes": self.recomputed_bytes,
            "exchanged_bytes": {"core": self.core, "cluster": self.cluster, "chip": self.chip},
        }


def exchanges(
    expanded: Expanded, tables: Sequence[tuple[Rows, Workload]], layer_macs: Ints, sram_bytes: int
) -> tuple[UnitExchange, ...]:
    """The figures of every unit of the program, in its order; `sram_bytes`: of one cluster."""
    count = len(expanded.program.units)
    written = np.zeros(len(expanded.instructions), np.int64)
    for rows, done in tables:
        np.add.at(
            written, rows.static, done.written_bytes[DESTINATION] * expanded.copies[rows.static, DESTINATION]
        )
    again = _macs_again(expanded, layer_macs, count)
    results = _results_again(expanded, written, count)
    own, of_others = _taken(expanded, count, sram_bytes).T.tolist()
    sent: Counter[int] = Counter()
    for each, size in zip(expanded.instructions, written.tolist(), strict=True):
        sent[each.unit] += size * (each.engine == "cdma")
    return tuple(UnitExchange(again[u], results[u], own[u], of_others[u], sent[u]) for u in range(count))


# --- who made what cores take ------------------------------------------------------------------------------


def _taken(expanded: Expanded, count: int, sram_bytes: int) -> Ints:
    """Bytes that cores take from SRAM of what they put there themselves, and of what others did: `[units, 2]`."""
    taken = np.zeros((count, 2), np.int64)
    instructions = expanded.instructions
    writes = [isinstance(each, Copy) and each.dst_view.memory == "sram" for each in instructions]
    takes = [
        isinstance(each, Copy) and each.src_view.memory == "sram" and each.dst_view.memory in ("nram", "wram")
        and each.expand is None and each.unit < count
        for each in instructions
    ]  # fmt: skip
    gives = [
        each.engine in CORE_ENGINES and is_write for each, is_write in zip(instructions, writes, strict=True)
    ]
    if not any(gives) or not any(takes):
        return taken
    from frustum.runtime.kernels import owner_loop  # which imports numba

    parts = [
        _boxes(expanded, rows, slot, np.array(wanted, bool), sram_bytes)
        for rows in (expanded.core, expanded.cluster)
        for slot, wanted in ((SOURCE, takes), (DESTINATION, writes))
    ]
    seq, boxes = (np.concatenate(part) for part in zip(*parts, strict=True))
    boxes = np.ascontiguousarray(boxes[np.argsort(seq, kind="stable")])
    # as many bytes have a tag together as all boxes move together
    places = boxes[:, owner_loop.PLACES]
    together = int(np.gcd.reduce(places, axis=None, initial=sram_bytes))
    boxes[:, owner_loop.PLACES] = places // together
    owner_loop.run(
        np.zeros(sram_bytes * expanded.clusters // together, np.int16), boxes, expanded.cores, taken
    )
    return taken * together


def _boxes(expanded: Expanded, rows: Rows, slot: int, wanted: Ints, sram_bytes: int) -> tuple[Ints, Ints]:
    """Of every execution that is wanted its place in the program order, and its box in SRAM as `owner_loop` has it."""
    from frustum.runtime.kernels.owner_loop import ALL_TAKE, FIRST_TAKER, OTHERS

    extents = rows.extent if slot == DESTINATION else rows.read
    row, unit = np.nonzero(wanted[rows.static, None] & rows.active & (extents > 0).all(axis=0))
    static = rows.static[row]
    facts = np.array([_facts(each, slot) for each in expanded.instructions], np.int64)[static]
    core, by_core = unit % expanded.cores, facts[:, 0] == 1
    writer = np.where(by_core, core + 1, OTHERS)
    taker = np.where(by_core, FIRST_TAKER - core, ALL_TAKE)
    extent, strides = extents[:, row, unit].T, facts[:, 3:7]
    split = rows.split[slot][:, row, unit].max(axis=0)
    address, place = rows.address[slot, row, unit], rows.place[slot, row, unit]
    low, high = reach_around(extent, strides, facts[:, 7], split, facts[:, 8])
    inside = (address + low >= 0) & (address + high + facts[:, 2] <= sram_bytes)
    tag = writer if slot == DESTINATION else taker
    runs = _runs(facts[:, 2], extent, strides, facts[:, 7], split)
    boxes = np.column_stack([address + place * sram_bytes, tag, facts[:, 1], *runs, split, facts[:, 8]])
    copies = expanded.copies[static, slot] if slot == DESTINATION else np.ones(len(static), np.int64)
    box = np.repeat(
        np.arange(len(boxes)), copies * inside
    )  # a multicast writes the SRAMs of several clusters
    boxes, first = boxes[box], np.flatnonzero(np.diff(box, prepend=-1))
    number = np.arange(len(box)) - np.repeat(first, np.diff(np.append(first, len(box))))
    boxes[:, 0] += number * sram_bytes
    return rows.seq[row][box], boxes


def _facts(each: Instruction, slot: int) -> tuple[int, ...]:
    """Whether a core does it, unit, bytes of an element, strides, dimension and bytes of a ring."""
    if not isinstance(each, Copy):
        return (0,) * 9
    view = each.dst_view if slot == DESTINATION else each.src_view
    return each.engine in CORE_ENGINES, each.unit, ELEMENT_BYTES[view.element], *view.strides, *ring_of(view)


def _runs(run: Ints, extent: Ints, strides: Ints, dim: Ints, split: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Bytes of runs that are one in memory, extents and strides by falling stride, the dimension with the ring."""
    order = np.argsort(-np.abs(strides), axis=1, kind="stable")
    extent, strides = np.take_along_axis(extent, order, axis=1), np.take_along_axis(strides, order, axis=1)
    dim = (order == dim[:, None]).argmax(axis=1)
    for d in (3, 2, 1, 0):
        joins = (strides[:, d] == run) & ~((split > 0) & (dim == d)) | (extent[:, d] == 1)
        joins &= (extent[:, d + 1 :] == 1).all(axis=1)
        run = np.where(joins, run * extent[:, d], run)
        extent[:, d] = np.where(joins, 1, extent[:, d])
    return run, extent, strides, dim


# --- what is made again ------------------------------------------------------------------------------------


def _macs_again(expanded: Expanded, layer_macs: Ints, count: int) -> list[int]:
    """Multiplications of each unit's layers beyond the network's."""
    units = {each.layer: each.unit for each in expanded.instructions if each.unit < count}
    useful = expanded.program.useful_macs
    again = [0] * count
    for layer, macs in enumerate(layer_macs.tolist()):
        if layer in units and layer < len(useful):
            again[units[layer]] += max(0, macs - useful[layer])
    return again


def _results_again(expanded: Expanded, written: Ints, count: int) -> list[int]:
    """Bytes of each unit's results, on their way from the cores, beyond one of each element of the maps."""
    made: Counter[tuple[int, int]] = Counter()
    whole: dict[tuple[int, int], int] = {}
    own = expanded.program.own_elements
    sums = _sums_to_add(expanded.instructions)
    for number, (each, size) in enumerate(zip(expanded.instructions, written.tolist(), strict=True)):
        if isinstance(each, Copy) and each.src_view.memory == "nram" and each.unit < count and number not in sums:
            key = each.unit, each.layer
            made[key] += size
            elements = (own[each.layer] if each.layer < len(own) else 0) or prod(each.box.bound)
            whole[key] = max(whole.get(key, 0), elements * ELEMENT_BYTES[each.dst_view.element])
    again = [0] * count
    for (unit, layer), size in made.items():
        again[unit] += max(0, size - whole[unit, layer])
    return again


def _sums_to_add(instructions: Sequence[Instruction]) -> set[int]:
    """Copies out of cores of what the cores take back for the same layer, to add it up: no results."""
    found: set[int] = set()
    given: dict[tuple[Any, ...], int] = {}
    for number, each in enumerate(instructions):
        if isinstance(each, Copy) and each.src_view.memory == "nram" and each.dst_view.memory == "sram":
            given[_place(each, each.dst_view)] = number
        elif isinstance(each, Copy) and each.src_view.memory == "sram" and each.dst_view.memory == "nram":
            back = given.get(_place(each, each.src_view))
            found |= set() if back is None else {back}
    return found


def _place(copy: Copy, view: View) -> tuple[Any, ...]:
    """Which box in SRAM a copy of a layer goes to or comes from, whichever part of it each core has."""
    offset = view.offset
    return copy.unit, copy.layer, view.element, offset.base, offset.loops, view.strides, view.ring, copy.box.bound
