"""What fusing costs and saves, unit by unit: what is computed again, and what tiles hand to each other.

All is counted from executed instructions; docs/traversal.md, "In the report", says what each number means.
Source: frustum.md, "The report must show, for a partition".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Copy, External, Instruction
from frustum.runtime.expand import Expanded, Rows
from frustum.runtime.order import Ints
from frustum.runtime.work import Work

SOURCE, DESTINATION = 0, 1


@dataclass(frozen=True)
class UnitExchange:
    """Of one unit: multiplications and bytes of results beyond one of each; bytes that pass from tile to tile inside a
    ring (`core`), through tiles of the cluster's SRAM (`cluster`), and from cluster to cluster (`chip`)."""

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
    expanded: Expanded, tables: Sequence[tuple[Rows, Work]], layer_macs: Ints
) -> tuple[UnitExchange, ...]:
    """The figures of every unit of the program, in its order."""
    count = len(expanded.program.units)
    moved = _Moved(expanded, tables)
    kinds = [_kind(each) for each in expanded.instructions]
    again = _macs_again(expanded, layer_macs, count)
    results = _results_again(expanded, moved.written, count)
    by_unit = {name: np.zeros(count, np.int64) for name in ("core", "cluster", "chip")}
    for number, (each, kind) in enumerate(zip(expanded.instructions, kinds, strict=True)):
        if each.unit < count:
            for name, sign, bytes_ in _parts(kind, moved, number):
                by_unit[name][each.unit] += sign * bytes_
    return tuple(
        UnitExchange(again[u], results[u], *(max(0, int(by_unit[name][u])) for name in by_unit)) for u in range(count)
    )


class _Moved:
    """Bytes that every instruction of a program reads and writes, over all its executions; what it loads of weights is
    left out."""

    def __init__(self, expanded: Expanded, tables: Sequence[tuple[Rows, Work]]) -> None:
        self.read = np.zeros(len(expanded.instructions), np.int64)
        self.written = np.zeros(len(expanded.instructions), np.int64)
        weights = [each for each in expanded.program.externals if each.class_ == "weight"]
        for rows, done in tables:
            kept = ~_from(expanded, rows, weights)
            copies = expanded.copies[rows.static, DESTINATION]
            np.add.at(self.read, rows.static, done.read_bytes[SOURCE] * kept)
            np.add.at(self.written, rows.static, done.written_bytes[DESTINATION] * copies * kept)


def _from(expanded: Expanded, rows: Rows, externals: Sequence[External]) -> Ints:
    """Which rows read one of some buffers in DRAM: by the address of the first unit that takes part."""
    in_dram = np.array([isinstance(e, Copy) and e.src_view.memory == "dram" for e in expanded.instructions], bool)
    unit = rows.active.argmax(axis=1)
    address = rows.address[SOURCE, np.arange(len(rows)), unit]
    inside = np.zeros(len(rows), bool)
    for each in externals:
        inside |= (address >= each.address) & (address < each.address + each.bytes)
    return inside & in_dram[rows.static]


def _kind(each: Instruction) -> str:
    """What a copy of a map is: `load` into SRAM, `send` to another cluster, `take` to a core, `give` back."""
    if not isinstance(each, Copy):
        return ""
    if each.engine == "cdma":
        return "send"
    way = f"{each.src_view.memory} to {each.dst_view.memory}"
    name = {"dram to sram": "load", "sram to nram": "take", "nram to sram": "give"}.get(way, "")
    ring = each.dst_view.wrap if name in ("load", "give") else each.src_view.wrap
    return f"{name} ring" if name and ring is not None else name


def _parts(kind: str, moved: _Moved, number: int) -> list[tuple[str, int, int]]:
    """What an instruction adds to which figure."""
    where = "core" if kind.endswith("ring") else "cluster"
    if kind == "send":
        return [("chip", 1, int(moved.written[number])), ("cluster", -1, int(moved.written[number]))]
    if kind.startswith("take"):
        return [(where, 1, int(moved.read[number]))]
    if kind.startswith(("load", "give")):
        return [(where, -1, int(moved.written[number]))]
    return []


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
    made: dict[tuple[int, int], int] = {}
    whole: dict[tuple[int, int], int] = {}
    own = expanded.program.own_elements
    for each, size in zip(expanded.instructions, written.tolist(), strict=True):
        if isinstance(each, Copy) and each.src_view.memory == "nram" and each.unit < count:
            key = each.unit, each.layer
            made[key] = made.get(key, 0) + size
            elements = (own[each.layer] if each.layer < len(own) else 0) or prod(each.box.bound)
            whole[key] = max(whole.get(key, 0), elements * ELEMENT_BYTES[each.dst_view.element])
    again = [0] * count
    for (unit, layer), size in made.items():
        again[unit] += max(0, size - whole[unit, layer])
    return again


__all__ = ["UnitExchange", "exchanges"]
