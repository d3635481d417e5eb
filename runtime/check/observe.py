# Tests: test/runtime/tools/test_check_layers.py
"""Watching a functional run: what every instruction writes of its layer's map, while it is still there.

    machine.run(inputs, mode="functional", watch=watching(machine.expanded, capacities, see))

`see` may change what was written: whoever reads it later reads that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from frustum.backend.file.executable import ExecutableError
from frustum.dialects.isa.program import Conv, Copy, Element, Instruction, Reduce, Vector
from frustum.runtime.check.check import MemoryAccess, accesses
from frustum.runtime.device.copies import expanded_block
from frustum.runtime.device.expand import DRAM, Expanded, Rows
from frustum.runtime.device.memory import DTYPES, Memories, execution_name
from frustum.runtime.kernels import Array

Four: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class WrittenPart:
    """What one execution of an instruction wrote of a map: `values` are the memory itself."""

    layer: int
    lower: Four
    """Position of the first element in the layer's map."""
    values: Array
    row: int
    unit: int

    @property
    def place(self) -> tuple[slice, ...]:
        """Where it is in the map."""
        return tuple(slice(low, low + size) for low, size in zip(self.lower, self.values.shape, strict=True))


See: TypeAlias = Callable[[WrittenPart], None]


def watching(expanded: Expanded, see: See) -> Callable[[Memories, int], None]:
    """What `Machine.run` is given as `watch`: `see` is shown all that matrix and vector units write of finished
    results, in program order."""
    rows = expanded.core
    final = finishing(expanded)
    computes = np.array([each in final for each in range(len(expanded.instructions))], bool)[rows.static] & rows.is_last

    def watch(memories: Memories, place: int) -> None:
        row = int(np.searchsorted(rows.seq, place))
        if row < len(rows) and rows.seq[row] == place and computes[row]:
            for each in _writes(expanded, memories, row):
                see(each)

    return watch


def is_compute(instruction: Instruction) -> TypeGuard[Any]:
    return isinstance(instruction, Conv | Vector)


def finishing(expanded: Expanded) -> set[int]:
    """The instructions that finish their layer: the last that compute before another layer does, in textual order.

    (Sums of parts, biases and activations may be instructions of their own, on maps that are no layer's.)
    """
    found, layer = set[int](), -1
    for number in reversed(range(len(expanded.instructions))):
        instruction = expanded.instructions[number]
        if is_compute(instruction):
            if instruction.layer != layer:
                found.add(number)
            layer = instruction.layer
    return found


def bound_of(instruction: Instruction) -> Four:
    """Extents of the map that an instruction writes a part of."""
    assert is_compute(instruction)
    a, b, c, d = (
        1 if isinstance(instruction, Reduce) and dim in instruction.axes else size
        for dim, size in enumerate(instruction.box.bound)
    )
    return a, b, c, d


def _writes(expanded: Expanded, memories: Memories, row: int) -> Iterator[WrittenPart]:
    rows, static = expanded.core, int(expanded.core.static[row])
    instruction = expanded.instructions[static]
    for unit in np.flatnonzero(rows.active[row]).tolist():
        lower = rows.lower[:, row, unit].tolist()
        if isinstance(instruction, Reduce):
            lower = [0 if d in instruction.axes else low for d, low in enumerate(lower)]
        before = None
        for access in accesses(expanded, rows, row, unit):
            if not access.is_write:
                continue
            form = expanded.forms[static].operands[access.slot]
            assert form is not None
            around = form.view.wrap
            start = list(lower)
            if before is not None and around is not None:  # the rest, at the begin of a ring
                start[around.dim] += before.shape[around.dim]
            n, c, h, w = start
            yield WrittenPart(instruction.layer, (n, c, h, w), _view(memories, access, form.view.element), row, unit)
            before = access


def _view(memories: Memories, access: MemoryAccess, element: Element) -> Array:
    flat = access.address + access.place * memories.capacities[access.kind]
    return memories.view(access.kind, DTYPES[element], flat, access.shape, access.strides)


def writer_of(expanded: Expanded, address: int) -> str | None:
    """The execution that was the last to write a byte of DRAM; None where none did."""
    found: tuple[int, Rows, int, int] | None = None
    for rows in (expanded.core, expanded.cluster):
        for row in range(len(rows)):
            if not _may_write(expanded, int(rows.static[row])):
                continue
            for unit in np.flatnonzero(rows.active[row]).tolist():
                touches = any(_touches(a, address) for a in accesses(expanded, rows, row, unit) if a.is_write)
                if touches and (found is None or rows.seq[row] >= found[0]):
                    found = int(rows.seq[row]), rows, row, unit
    return None if found is None else execution_name(expanded, *found[1:])


def damaged_at(expanded: Expanded, memories: Memories, after: int) -> str | None:
    """The first execution behind a place of the program order whose block of weights cannot be expanded, when a run
    has stopped there; None where all can."""
    for rows, row in expanded.in_order():
        instruction = expanded.instructions[int(rows.static[row])]
        if rows.seq[row] <= after or not isinstance(instruction, Copy) or instruction.expand is None:
            continue
        element = DTYPES[instruction.src_view.element]
        for unit in np.flatnonzero(rows.active[row]).tolist():
            slot = next(each for each in accesses(expanded, rows, row, unit) if not each.is_write)
            at = slot.address + slot.place * memories.capacities[slot.kind]
            block = memories.bytes[slot.kind][at : at + instruction.expand].tobytes()
            try:
                expanded_block(block, tuple(rows.read[:, row, unit].tolist()), element)
            except ExecutableError:
                return execution_name(expanded, rows, row, unit)
    return None


def _may_write(expanded: Expanded, static: int) -> bool:
    return DRAM in expanded.memory[static, 1:].tolist()


def _touches(access: MemoryAccess, address: int) -> bool:
    """Whether a byte of DRAM is one of an access."""
    if access.kind != DRAM or not access.lowest <= address < access.end:
        return False
    starts: Array = np.full((1,) * len(access.shape), access.address)
    for d, (n, stride) in enumerate(zip(access.shape, access.strides, strict=True)):
        starts = starts + (np.arange(n) * stride).reshape([-1 if k == d else 1 for k in range(len(access.shape))])
    return bool(((starts <= address) & (address < starts + access.size)).any())
