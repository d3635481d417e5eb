"""What a run of a program moves, multiplies and costs: counted from its rows, whether or not anything was simulated.

- DRAM bytes count once at the port, however many memories a multicast fills.  Their class follows from the address:
  reads of weights, inputs and code are `weight`, `input` and `other`; writes of outputs are `output`; all else
  passes between layers, units or pieces and is `intermediate`, reading an output back or overwriting an input included.
- On chip every byte that crosses a port, and every operand byte a compute unit reads and result byte it writes.
- `peak_bytes` is the highest address, plus one, that is written in any memory of the kind: what is read was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, MEMORIES, Conv, Depthwise, External
from frustum.dialects.target import Target
from frustum.dialects.target.durations import byte_energy_pj, mac_energy_pj
from frustum.runtime.device.expand import DRAM, OPERANDS, SIDES, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.device.tables import count_tables
from frustum.runtime.report.core_runs import read_in_core
from frustum.runtime.report.exchange import UnitExchange, exchanges
from frustum.runtime.report.flows import Flows, flows
from frustum.runtime.time.work import Workload, fetched_bytes, start_bytes, work

CLASSES = ("weight", "input", "output", "intermediate", "other")
_WEIGHT, _INPUT, _OUTPUT, _INTERMEDIATE, _OTHER = range(len(CLASSES))
_CLASS_OF = {
    ("weight", False): _WEIGHT, ("input", False): _INPUT, ("output", True): _OUTPUT,
    ("program", False): _OTHER, ("program", True): _OTHER,
}  # fmt: skip
"""By the class of a buffer, and whether it is written."""
_INTEGERS = {"int8": "i8", "int16": "i16", "int32": "i32"}


@dataclass
class ThroughDram:
    """Bytes that move of a tensor between units, and the numbers of the units that write and read it."""

    bytes: int = 0
    written_by: set[int] = field(default_factory=set)
    read_by: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Counters:
    """Totals of one run of one program; the lists go by the program's layers."""

    dram_read_bytes: int
    dram_write_bytes: int
    dram_bytes_by_class: dict[str, int]
    layer_dram_bytes: Ints
    layer_macs: Ints
    useful_macs: int
    recomputed_macs: int
    line_writes: int
    line_writes_split: int
    compute_steps: int
    discarded_windows: int
    peak_bytes: dict[str, int]
    energy_pj: dict[str, float]
    address_cache: dict[str, int]
    address_cycles: int
    """In which the matrix units found addresses, overlapped or not."""
    address_cycles_without_tables: int
    """In which they would have, had no instruction named a table."""
    through_dram: Mapping[str, ThroughDram] = field(default_factory=dict)
    """What is written to DRAM by one unit and read by another, by its name."""
    flows: Flows = field(default_factory=dict)
    """What each engine reads and writes, by memory."""
    read_in_core: frozenset[tuple[int, int]] = frozenset()
    """Unit and layer of those that read a map in NRAM where another layer of the unit made it."""
    units: tuple[UnitExchange, ...] = ()
    """What each unit of the program computes again, and what its tiles hand to each other."""


def count(
    expanded: Expanded, target: Target, page_bytes: Sequence[int] = (), tables: Sequence[tuple[Rows,
    Workload]] | None = None, passed: frozenset[str] = frozenset(),
) -> Counters:  # fmt: skip
    """What one run of the program on the target counts.

    `page_bytes`: sizes of the pages of its code; `tables`: `Timeline.tables`, which saves working them out again;
    `passed`: inputs and outputs that are not the network's, but come from or go to another piece of it.
    """
    if tables is None:
        tables = [(rows, work(expanded, rows, target)) for rows in (expanded.core, expanded.cluster)]
    dram = _Dram(expanded, passed)
    traffic = np.zeros(len(MEMORIES), np.int64)
    for rows, done in tables:
        dram.add(rows, done)
        traffic += _traffic(expanded, rows, done)
    fetched = start_bytes(expanded.instructions, page_bytes) + int(fetched_bytes(expanded, page_bytes).sum())
    dram.add_fetched(fetched)
    traffic[DRAM] += fetched
    core, done = tables[0]
    layer_macs = _by_layer(expanded, core.static, done.macs)
    useful = expanded.program.useful_macs
    columns = "line_writes", "line_writes_split", "address_cycles", "address_cycles_without_tables"
    sums: dict[str, Any] = {name: int(getattr(done, name).sum()) for name in columns}
    return Counters(
        dram_read_bytes=dram.read_bytes,
        dram_write_bytes=dram.write_bytes,
        dram_bytes_by_class=dict(zip(CLASSES, dram.by_class.tolist(), strict=True)),
        layer_dram_bytes=dram.by_layer,
        through_dram=dram.through,
        layer_macs=layer_macs,
        useful_macs=sum(useful),
        recomputed_macs=_recomputed(layer_macs, useful),
        **sums,
        compute_steps=int(done.steps.sum()),
        discarded_windows=int(done.discarded.sum()),
        peak_bytes=peak_bytes(expanded),
        energy_pj=_energy(expanded, target, traffic, core, done),
        address_cache=count_tables(expanded),
        flows=flows(expanded, tables, fetched),
        read_in_core=frozenset(read_in_core(expanded)),
        units=exchanges(expanded, tables, layer_macs, target.cluster.sram.capacity_bytes),
    )


def roofline_cycles(target: Target, macs: Mapping[int, int], dtype: str, compulsory: int) -> float:
    """The least cycles that the whole chip's multipliers and DRAM allow; `macs` by the bytes of their elements, 0 for
    those of `dtype`."""
    _, bytes_per_cycle = peaks(target, dtype)
    rates = {width: target.core.matrix.macs_per_cycle(width or _width(dtype)) for width in macs}
    computing = sum(count / rates[width] for width, count in macs.items()) / target.total_cores
    return max(computing, compulsory / bytes_per_cycle)


def peaks(target: Target, dtype: str) -> tuple[float, int]:
    """The most products, and the most bytes at DRAM ports, of all chips in a cycle."""
    macs_per_cycle = target.total_cores * target.core.matrix.macs_per_cycle(_width(dtype))
    return macs_per_cycle, target.chips * target.chip.dram.port_bytes_per_cycle


def _width(dtype: str) -> int:
    """Bytes of an element."""
    element = _INTEGERS.get(dtype, dtype)
    (width,) = (size for name, size in ELEMENT_BYTES.items() if name == element)
    return width


# --- DRAM --------------------------------------------------------------------------------------------------


class _Dram:
    """Bytes at the DRAM port, by direction, class and layer."""

    def __init__(self, expanded: Expanded, passed: frozenset[str]) -> None:
        self.expanded, self.passed = expanded, passed
        self.read_bytes = self.write_bytes = 0
        self.by_class = np.zeros(len(CLASSES), np.int64)
        self.by_layer = np.zeros(_layers(expanded), np.int64)
        self.externals = sorted(expanded.program.externals, key=lambda each: each.address)
        self.through: dict[str, ThroughDram] = {}

    def add(self, rows: Rows, done: Workload) -> None:
        for slot, bytes_ in ((0, done.read_bytes[0]), (1, done.written_bytes[1])):
            in_dram = self.expanded.memory[rows.static, slot] == DRAM
            chosen = np.flatnonzero(in_dram & (bytes_ > 0))
            moved = bytes_[chosen]
            number = self._external(rows, slot, chosen, writes=slot == 1)
            classes = [self._class_of(each, writes=slot == 1) for each in self.externals]
            class_ = np.array([*classes, _INTERMEDIATE], np.int64)[number]
            np.add.at(self.by_class, class_, moved)
            self._between_units(rows.static[chosen], np.where(class_ == _INTERMEDIATE, number, -1), moved, slot == 1)
            self.by_layer += _by_layer(self.expanded, rows.static[chosen], moved)
            if slot == 0:
                self.read_bytes += int(moved.sum())
            else:
                self.write_bytes += int(moved.sum())

    def add_fetched(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        self.by_class[_OTHER] += size_bytes

    def _external(self, rows: Rows, slot: int, chosen: Ints, *, writes: bool) -> Ints:
        """The number of the buffer in which the first unit that moves something does so (all move in the same); -1
        outside all of them."""
        moves = rows.active[chosen]
        if not writes:  # padding alone is filled in without reading
            moves = moves & (rows.read[:, chosen] > 0).all(axis=0)
        address = rows.address[slot, chosen, moves.argmax(axis=1)]
        starts = np.array([each.address for each in self.externals], np.int64)
        stops = np.array([each.address + each.bytes for each in self.externals] + [0], np.int64)
        number = np.searchsorted(starts, address, side="right") - 1
        return np.where(address < stops[number], number, -1)

    def _between_units(self, static: Ints, number: Ints, moved: Ints, writes: bool) -> None:
        for each in np.unique(number[number >= 0]).tolist():
            found = self.through.setdefault(self.externals[each].name, ThroughDram())
            found.bytes += int(moved[number == each].sum())
            units = {self.expanded.instructions[k].unit for k in np.unique(static[number == each]).tolist()}
            (found.written_by if writes else found.read_by).update(units)

    def _class_of(self, external: External, *, writes: bool) -> int:
        is_passed = external.class_ in ("input", "output") and external.name in self.passed
        return _INTERMEDIATE if is_passed else _CLASS_OF.get((external.class_, writes), _INTERMEDIATE)


# --- layers, memories, energy ------------------------------------------------------------------------------


def _recomputed(layer_macs: Ints, useful: Sequence[int]) -> int:
    """Products beyond the network's, layer by layer; a fused layer makes fewer where nobody reads its edge."""
    known = np.zeros(len(layer_macs), np.int64)
    known[: len(useful)] = useful
    return int(np.maximum(layer_macs - known, 0).sum())


def _layers(expanded: Expanded) -> int:
    used = max((instruction.layer + 1 for instruction in expanded.instructions), default=0)
    return max(used, len(expanded.program.layers))


def _by_layer(expanded: Expanded, static: Ints, values: Ints) -> Ints:
    layer = np.array([instruction.layer for instruction in expanded.instructions], np.int64)
    totals = np.zeros(_layers(expanded), np.int64)
    np.add.at(totals, layer[static], values)
    return totals


def _traffic(expanded: Expanded, rows: Rows, done: Workload) -> Ints:
    """Bytes read and written in each kind of memory."""
    totals = np.zeros(len(MEMORIES), np.int64)
    for slot in range(OPERANDS):
        kind = expanded.memory[rows.static, slot]
        present = kind >= 0
        copies = expanded.copies[rows.static, slot]
        moved = done.read_bytes[slot] + done.written_bytes[slot] * copies
        np.add.at(totals, kind[present], moved[present])
    return totals


def peak_bytes(expanded: Expanded) -> dict[str, int]:
    """Of each memory on chip the highest address, plus one, that is written."""
    peak = np.zeros(len(MEMORIES), np.int64)
    for rows in (expanded.core, expanded.cluster):
        for slot in range(OPERANDS):
            strides, element = _written(expanded, slot)
            chosen = np.flatnonzero(element[rows.static] > 0)
            static = rows.static[chosen]
            extent = rows.extent[:, chosen]
            if slot < SIDES:  # up to the end of a ring that it goes beyond
                split = rows.split[slot][:, chosen]
                extent = np.where(split > 0, split, extent)
            last = ((extent - 1) * strides[static].T[:, :, None]).sum(axis=0)
            end = (rows.address[slot, chosen] + last + element[static, None]) * rows.active[chosen]
            np.maximum.at(peak, expanded.memory[static, slot], end.max(axis=1, initial=0))
    return {name: int(peak[k]) for k, name in enumerate(MEMORIES) if k != DRAM}


def _written(expanded: Expanded, slot: int) -> tuple[Ints, Ints]:
    """Of each instruction: strides and element bytes of this operand if it is written; 0 if it is not."""
    strides = np.zeros((len(expanded.instructions), 4), np.int64)
    element = np.zeros(len(expanded.instructions), np.int64)
    for number, form in enumerate(expanded.forms):
        operand = form.operands[slot] if slot < len(form.operands) else None
        if operand is not None and operand.is_written:
            strides[number], element[number] = operand.view.strides, ELEMENT_BYTES[operand.view.element]
    return strides, element


def _energy(
    expanded: Expanded, target: Target, traffic: Ints, core: Rows, done: Workload
) -> dict[str, float]:
    """pJ of each memory's bytes and of the multiplications of each type; `total` is their sum."""
    energy: dict[str, float] = {
        name: float(byte_energy_pj(target.memory(name), int(size)))
        for name, size in zip(MEMORIES, traffic, strict=True)
    }
    elements = [each.in_view.element if isinstance(each, Conv | Depthwise) else None for each in expanded.instructions]
    for element, width in ELEMENT_BYTES.items():
        macs = int(done.macs[np.array([each == element for each in elements], bool)[core.static]].sum())
        if macs:
            energy[f"mac_{element}"] = float(mac_energy_pj(target.core.matrix, macs, width))
    return {"total": sum(energy.values()), **energy}
