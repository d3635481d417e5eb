"""What the instructions of a program do, in numbers: bytes moved, run lengths, cycles of computing, multiplications.

Timing and counting both ask here.  Instructions that differ in addresses only are alike; the formulas of
`frustum.dialects.target.durations` see all executions of alike instructions as one array.

A transfer is as large as what it writes, and both its ports are held for that (fill included); byte counts are the
bytes really read and written.  One that expands holds the port of its source for the bytes of the slot.  A compute
instruction reads each byte of its operands once and writes each byte of its result once; what is broadcast is read
once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from frustum.dialects.extents import ceil_div
from frustum.dialects.isa import program as p
from frustum.dialects.isa.line_buffer_plan import Windows
from frustum.dialects.isa.tables.stored_table import StoredTable
from frustum.dialects.target import Target, VectorUnit
from frustum.dialects.target.durations import (
    Steps,
    address_cycles,
    depthwise_steps,
    larger,
    matrix_work,
    vector_cycles,
    vector_passes,
    vector_steps,
)
from frustum.runtime.device.expand import OPERANDS, Expanded, Rows
from frustum.runtime.device.form import Along, Ints, Operand, When, form, groups_of, outputs_per_group

INTEGERS: tuple[p.Element, ...] = ("i8", "i16", "i32")


@dataclass(frozen=True)
class Workload:
    """What each row of one table does; nothing where it is not active."""

    cycles: Ints  # rows, units: the compute unit is busy
    size_bytes: Ints  # rows, units: of a transfer: what it writes, or a larger slot that it expands
    source_bytes: Ints  # rows, units: of a transfer, as its source sees it: less where it is expanded
    source_run_bytes: Ints  # rows, units: its contiguous runs
    destination_run_bytes: Ints  # rows, units
    moved_bytes: Ints  # rows, units: size of a transfer, or operands and results of computing
    read_bytes: Ints  # OPERANDS, rows: over all units
    written_bytes: Ints  # OPERANDS, rows: into one of the memories, if there are several
    macs: Ints  # rows: over all units; so are the six below
    line_writes: Ints
    line_writes_split: Ints  # what `split` mode would have written, where it exists
    steps: Ints
    discarded: Ints
    address_cycles: Ints  # in which the matrix unit finds addresses, overlapped or not
    address_cycles_without_tables: Ints


def work(expanded: Expanded, rows: Rows, target: Target) -> Workload:
    """What the rows of one of the tables of `expanded` do."""
    result = _nothing(len(rows), rows.units)
    for alike, chosen in _alike(expanded, rows):
        _set_bytes(result, rows, chosen, alike)
        if isinstance(alike.instruction, p.Conv):
            _set_matrix(result, rows, chosen, alike.instruction, target)
        elif isinstance(alike.instruction, p.Vector):
            _set_vector(result, rows, chosen, alike, target.core.vector)
    _set_addresses(result, expanded, rows, target)
    _set_transfers(result, expanded, rows)
    return result


def _nothing(rows: int, units: int) -> Workload:
    shapes = [(rows, units)] * 6 + [(OPERANDS, rows)] * 2 + [(rows,)] * 7
    return Workload(*(np.zeros(shape, np.int64) for shape in shapes))


# --- alike instructions ------------------------------------------------------------------------------------


Moved = tuple[int, When, When, tuple[Along, ...]]
"""Bytes of an element of an operand, when it is read and written, and the axes along which that is done."""


@dataclass(frozen=True)
class _Alike:
    """One of several instructions that do equally much for equal extents."""

    instruction: p.Instruction
    moved: tuple[Moved | None, ...]

    @property
    def element_bytes(self) -> int:
        """Of the widest operand."""
        return max(each[0] for each in self.moved if each)


def _alike(expanded: Expanded, rows: Rows) -> list[tuple[_Alike, Ints]]:
    """Every kind of work in the table with the rows that do it, in order."""
    group_of: dict[Hashable, int] = {}
    members: list[_Alike] = []
    groups = np.full(len(expanded.instructions), -1, np.int64)
    for number in np.flatnonzero(np.bincount(rows.static, minlength=len(expanded.instructions))).tolist():
        instruction, operands = expanded.instructions[number], expanded.forms[number].operands
        if not operands:
            continue
        alike = _Alike(instruction, tuple(map(_moved, operands)))
        groups[number] = group_of.setdefault((*_parameters(instruction), alike.moved), len(members))
        if groups[number] == len(members):
            members.append(alike)
    group = groups[rows.static]
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(members) + 1))
    return [(alike, order[starts[k] : starts[k + 1]]) for k, alike in enumerate(members)]


def _moved(operand: Operand | None) -> Moved | None:
    if operand is None:
        return None
    steps = zip(operand.axes, operand.strides, strict=True)
    axes = tuple(axis for axis, stride in steps if stride or operand.is_whole)
    return operand.element_bytes, operand.reads, operand.writes, axes


def _parameters(instruction: p.Instruction) -> tuple[Hashable, ...]:
    """What an instruction's work depends on, beside the extents and sizes of its operands."""
    if isinstance(instruction, p.Vector):
        return steps(instruction)
    if not isinstance(instruction, p.Conv):
        return (type(instruction).__name__,)
    mode, groups = instruction.line_mode, instruction.groups
    width = instruction.kernel, instruction.strides[1], instruction.dilations[1]
    per_group = 0 if groups == 1 else outputs_per_group(instruction)
    return "Conv", *width, groups, per_group, mode, None if mode == "split" else windows_of(instruction)


# --- bytes -------------------------------------------------------------------------------------------------


def _set_bytes(result: Workload, rows: Rows, chosen: Ints, alike: _Alike) -> None:
    active = rows.active[chosen]
    extent, read = rows.extent[:, chosen], rows.read[:, chosen]
    first, last = rows.is_first[chosen], rows.is_last[chosen]
    for slot, moved in enumerate(alike.moved):
        if moved is None:
            continue
        element_bytes, reads, writes, axes = moved
        each = element_bytes * active
        for axis in axes:
            each = each * axis.count(extent, read)
        is_read, is_written = reads.holds(first, last), writes.holds(first, last)
        result.read_bytes[slot, chosen] = each.sum(axis=1) * is_read
        result.written_bytes[slot, chosen] = each.sum(axis=1) * is_written
        if isinstance(alike.instruction, p.Copy):
            _set_size(result, chosen, alike.instruction, each, writes is not When.NEVER)
        else:
            result.moved_bytes[chosen] += each * (is_read.astype(np.int64) + is_written)[:, None]


def _set_size(result: Workload, chosen: Ints, copy: p.Copy, each: Ints, written: bool) -> None:
    """The size of a transfer, by the bytes of its source (first) or destination."""
    if written:
        result.moved_bytes[chosen] = each
        result.size_bytes[chosen] = np.maximum(each, result.source_bytes[chosen] * (copy.expand is not None))
    if not written or copy.expand is None:
        result.source_bytes[chosen] = each


# --- transfers ---------------------------------------------------------------------------------------------


def _set_transfers(result: Workload, expanded: Expanded, rows: Rows) -> None:
    is_copy = np.array([isinstance(instruction, p.Copy) for instruction in expanded.instructions], bool)
    chosen = np.flatnonzero(is_copy[rows.static])
    statics = rows.static[chosen]
    for slot, extents, runs in (
        (0, rows.read, result.source_run_bytes),
        (1, rows.extent, result.destination_run_bytes),
    ):
        strides, dims, element = _by_stride(expanded.instructions, slot)
        by_stride = dims[statics].T[:, :, None]
        runs[chosen] = contiguous_bytes(
            np.take_along_axis(extents[:, chosen], by_stride, axis=0),
            strides[statics].T[:, :, None],
            element[statics, None],
            np.take_along_axis(rows.split[slot][:, chosen], by_stride, axis=0),
        )


def _by_stride(instructions: Sequence[p.Instruction], slot: int) -> tuple[Ints, Ints, Ints]:
    """Of each copy: strides without sign in growing order, the dimensions they belong to, bytes of an element.

    A run that is walked backwards is as contiguous as another.
    """
    strides = np.zeros((len(instructions), 4), np.int64)
    element = np.ones(len(instructions), np.int64)
    for number, instruction in enumerate(instructions):
        if isinstance(instruction, p.Copy):
            view = (instruction.src_view, instruction.dst_view)[slot]
            strides[number], element[number] = np.abs(view.strides), p.ELEMENT_BYTES[view.element]
            if slot == 0 and instruction.expand is not None:
                element[number] = instruction.expand
    dims = np.argsort(strides, axis=1, kind="stable")
    return np.take_along_axis(strides, dims, axis=1), dims, element


def contiguous_bytes(extent: Ints, stride: Ints, element_bytes: Ints, split: Ints | None = None) -> Ints:
    """Length of the contiguous runs of a box whose dimensions (axis 0) come by growing stride.

    Dimensions of one element, and of stride 0, do not interrupt a run.  One of which the end of a ring lies inside the
    box (`split` is not 0) breaks each run that goes along it in two, which count as equally long, rounded up.
    """
    run = element_bytes + 0 * extent[0]
    unbroken = np.ones(run.shape, bool)
    in_two = np.zeros(run.shape, bool)
    for d in range(len(extent)):
        counts = (extent[d] > 1) & (stride[d] != 0)
        unbroken &= ~counts | (stride[d] == run)
        run = np.where(unbroken & counts, run * extent[d], run)
        if split is not None:
            in_two |= unbroken & counts & (split[d] > 0)
            unbroken &= ~in_two
    return np.where(in_two, ceil_div(run, 2), run)


# --- computing ---------------------------------------------------------------------------------------------


def windows_of(conv: p.Conv) -> Windows:
    """The windows of a convolution, as the line buffer's arithmetic wants them."""
    return Windows(
        conv.kernel, conv.strides, conv.dilations, conv.groups, p.ELEMENT_BYTES[conv.in_view.element],
        conv.in_view.strides, min(conv.cols.extent, conv.cols.bound),
    )  # fmt: skip


def _set_matrix(result: Workload, rows: Rows, chosen: Ints, conv: p.Conv, target: Target) -> None:
    """Equal extents are worked out once."""
    images, outputs, height, width = rows.extent[:, chosen]
    groups = groups_of(conv, outputs)
    counts = np.stack([images, height, width, rows.read[1, chosen], outputs // larger(groups, 1), groups])
    which, distinct = _distinct(counts * rows.active[chosen])
    action = windows_of(conv).convolution(*distinct)
    done = matrix_work(target.core.matrix, action, conv.line_mode)
    split = matrix_work(target.core.matrix, action, "split") if conv.line_mode == "continuous" else done
    result.cycles[chosen] = done.busy_cycles[which]
    totals = (
        (result.macs, done.useful_macs), (result.line_writes, done.writes), (result.steps, done.steps),
        (result.line_writes_split, split.writes), (result.discarded, done.discarded),
    )  # fmt: skip
    for total, each in totals:
        total[chosen] = each[which].sum(axis=1)


def _set_addresses(result: Workload, expanded: Expanded, rows: Rows, target: Target) -> None:
    """What finding the operands of convolutions takes, by the tables that they really name; the matrix unit is busy
    for at least that long."""
    is_conv = np.array([isinstance(each, p.Conv) for each in expanded.instructions], bool)
    for number in np.unique(rows.static[is_conv[rows.static]]).tolist():
        conv, mine = expanded.instructions[number], rows.of(number)
        assert isinstance(conv, p.Conv)
        images, outputs, height, width = rows.extent[:, mine] * rows.active[mine]
        box = images, height, width, rows.read[1, mine] * rows.active[mine]
        groups = groups_of(conv, outputs)
        unit, taps = target.core.matrix, prod(conv.kernel)
        computed = address_cycles(unit, box, taps, groups)
        found = np.array(computed)
        for its, stored in _tables(expanded, conv, mine):
            n, h, w, channels = (each[its] for each in box)
            found[its] = address_cycles(
                unit, (n, h, w, channels), taps, groups[its], stored.part, has_groups=stored.groups > 1
            )
        result.cycles[mine] = np.maximum(result.cycles[mine], found)
        result.address_cycles[mine] = found.sum(axis=1)
        result.address_cycles_without_tables[mine] = computed.sum(axis=1)


def _tables(expanded: Expanded, conv: p.Conv, mine: Ints) -> Iterator[tuple[Ints, StoredTable]]:
    """The tables that some rows of a convolution name, each with the numbers of its rows in `mine`."""
    if conv.table is None:
        return
    assert expanded.tables is not None, "tables are read before they are counted"
    number = expanded.tables.number[mine]
    for table in np.unique(number).tolist():
        yield np.flatnonzero(number == table), expanded.tables.stored[table]


def _distinct(counts: Ints) -> tuple[Ints, Ints]:
    """Number of each column's distinct value, and the distinct columns: counts are `[facts, ...]`, at least 0."""
    key = np.zeros(counts.shape[1:], np.int64)
    for count in counts:
        key = key * (int(count.max(initial=0)) + 1) + count
    _, first, which = np.unique(key.ravel(), return_index=True, return_inverse=True)
    return which.reshape(key.shape), counts.reshape(len(counts), -1)[:, first]


def _set_vector(result: Workload, rows: Rows, chosen: Ints, alike: _Alike, unit: VectorUnit) -> None:
    elements = rows.extent[:, chosen].prod(axis=0) * rows.active[chosen]
    assert isinstance(alike.instruction, p.Vector)
    passes = sum(vector_passes(unit, *step) for step in steps(alike.instruction))
    element_bytes = alike.element_bytes
    if isinstance(alike.instruction, p.Depthwise):
        maps = alike.instruction.in_view, alike.instruction.out_view  # sums have no lanes of their own
        element_bytes = max(p.ELEMENT_BYTES[view.element] for view in maps)
        result.macs[chosen] = elements.sum(axis=1) * prod(alike.instruction.kernel)
    result.cycles[chosen] = vector_cycles(unit, passes, elements, element_bytes)


def steps(instruction: p.Vector) -> Steps:
    """What the vector unit does one after the other."""
    if isinstance(instruction, p.Depthwise):
        terms = (instruction.bias_view is not None) + (instruction.residual_view is not None)
        conversions = (instruction.multiplier_view is not None) + len(instruction.scales or ())
        act = None if instruction.act is None else instruction.act.kind
        return depthwise_steps(instruction.kernel, terms=terms, conversions=conversions, act=act)
    operands = form(instruction).operands
    integers = sum(operand.view.element in INTEGERS for operand in operands if operand)
    conversions = integers if getattr(instruction, "scales", None) else 0
    return vector_steps(type(instruction).__name__.lower(), instruction, conversions)


# --- the program's own bytes -------------------------------------------------------------------------------
# Code that no instruction fetches is fetched at the start, before anything else; the rest page by page, when its
# `fetch` is executed, which cluster 0 does for all.


def start_bytes(instructions: Sequence[p.Instruction], page_bytes: Sequence[int]) -> int:
    """Bytes of the pages that are fetched at the start."""
    later = {instruction.page for instruction in instructions if isinstance(instruction, p.Fetch)}
    return sum(size for page, size in enumerate(page_bytes) if page not in later)


def fetched_bytes(expanded: Expanded, page_bytes: Sequence[int]) -> Ints:
    """Of each row of the cluster table: bytes of the page that it fetches, 0 if it is no fetch."""
    sizes = [page_bytes[each.page] if isinstance(each, p.Fetch) else 0 for each in expanded.instructions]
    return np.array(sizes, np.int64)[expanded.cluster.static]
