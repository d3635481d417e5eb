"""Checked mode: a program that reads what nobody wrote, leaves its memory or races is stopped, and told where.

It watches from outside: everything follows from the expanded program, whose addresses do not depend on data.
Executions are visited in program order.  Two accesses to the same bytes by different engines, one of them a write,
race unless signals and waits, or a barrier, make certain that one is complete before the other starts.

Buffers that the host knows have a rule more, whoever planned the program: a plan may recompute in SRAM, but stores each
element once.  So no byte of an output or an intermediate map is written twice, and none of an input, of weights or of
code at all.  The host reads each output after the run, for the user or the next piece: each of its bytes is written.
A buffer of several copies is new in each pass of the loop that it is in: what an earlier pass left there is not read.

What is remembered of every byte in checked mode (who wrote it last, and when each engine read it last), and which
bytes an execution of an instruction reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import ELEMENT_BYTES, External, Program, Ring, Wrap
from frustum.runtime.check.clocks import Clock, OrderError, clocks
from frustum.runtime.device.expand import DRAM, Expanded, Rows
from frustum.runtime.device.form import Ints
from frustum.runtime.device.memory import AccessError, execution_name, memory_name
from frustum.runtime.progress import REPORTS, Progress


class RaceError(Exception):
    """Two accesses to the same bytes that nothing orders, or a wait that its signals come after."""


def check(expanded: Expanded, capacities: Sequence[int], progress: Progress | None = None) -> None:
    """Raise `AccessError` or `RaceError` at the first fault of the program; `capacities` in the order of MEMORIES."""
    try:
        core, cluster = clocks(expanded)
    except OrderError as error:
        raise RaceError(_never(expanded, error)) from None
    stamps = Stamps((expanded.core, core), (expanded.cluster, cluster))
    shadow = Shadow(expanded, capacities, stamps)
    total = len(expanded.core) + len(expanded.cluster)
    for number, (rows, row) in enumerate(expanded.in_order()):
        clock = core if rows is expanded.core else cluster
        _visit(expanded, capacities, shadow, clock, rows, row)
        if progress is not None and number % max(1, total // REPORTS) == 0:
            progress("check", number / total)
    for output in expanded.program.externals_of("output"):
        if 0 not in output.shape and (gap := shadow.gap_of(output)) is not None:
            raise AccessError(_unwritten(expanded, output, gap))


def _visit(
    expanded: Expanded, capacities: Sequence[int], shadow: Shadow, clock: Clock, rows: Rows, row: int
) -> None:
    """All units of one row."""
    for unit in range(rows.units):
        for access in accesses(expanded, rows, row, unit):
            capacity = capacities[access.kind]
            if access.lowest < 0 or access.end > capacity:
                raise AccessError(
                    f"{execution_name(expanded, rows, row, unit)}: {_does(access)} bytes"
                    f" [{access.lowest}, {access.end}) of {memory_name(expanded, access.kind, access.place)},"
                    f" which has {capacity}"
                )
            note = shadow.write if access.is_write else shadow.read
            conflict = note(access, shadow.stamps.of(rows, row, unit), clock.start[row, unit])
            if conflict is not None:
                raise _fault(expanded, (rows, row, unit), access, conflict)


def _fault(
    expanded: Expanded, execution: tuple[Rows, int, int], access: MemoryAccess, conflict: Conflict
) -> AccessError | RaceError:
    memory = memory_name(expanded, access.kind, conflict.place)
    here = f"{execution_name(expanded, *execution)}: {_does(access)} address {conflict.address} of {memory}"
    other = "no instruction" if conflict.other is None else execution_name(expanded, *conflict.other)
    if conflict.kind == "stale":
        return AccessError(f"{here}, which {other} wrote, in another pass of the loop in which the buffer is new")
    if conflict.kind == "again":
        external = external_at(expanded.program, conflict.address)
        assert external is not None
        other = "the host" if conflict.other is None else other
        return AccessError(f"{here}, {place_in(external, conflict.address)}, which {other} wrote already")
    if conflict.other is None:
        return AccessError(f"{here}, which {other} wrote")
    does = "writes" if conflict.other_writes else "reads"
    return RaceError(f"{here}, which {other} {does}; nothing orders the two")


def _unwritten(expanded: Expanded, output: External, gap: Gap) -> str:
    """What is said of an output that is not written as a whole, with whose writes end nearest to the gap."""
    where = f"{place_in(output, gap.address)} at address {gap.address} of dram"
    found = f"the host reads {where}, which no instruction wrote ({gap.missing} of {output.bytes} bytes)"
    if gap.nearest is None:
        return f"{found}; none writes any of it"
    return f"{found}; the nearest element was written by {execution_name(expanded, *gap.nearest)}"


def external_at(program: Program, address: int) -> External | None:
    """The buffer that the host knows at an address of DRAM."""
    return next((e for e in program.externals if e.address <= address < e.address + e.bytes), None)


def place_in(external: External, address: int) -> str:
    """`element (0, 2, 5, 1) of output 'y'`"""
    number = (address - external.address) // ELEMENT_BYTES[external.element]
    place = ", ".join(str(int(i)) for i in np.unravel_index(number, external.shape or (1,)))
    return f"element ({place}) of {external.class_} '{external.name}'"


def _never(expanded: Expanded, error: OrderError) -> str:
    here = execution_name(expanded, error.rows, error.row, error.unit)
    return f"{here}: waits for {error.value} signals, of which {error.found} come before it in program order"


def _does(access: MemoryAccess) -> str:
    return "writes" if access.is_write else "reads"


WRITTEN_BY_HOST = "input", "weight", "program"
"""Classes of buffers in DRAM that hold something before the run."""
UNWRITTEN, WRITTEN_BEFORE = 0, 1
"""Stamps of bytes that nobody, and that the host wrote; executions have the stamps from 2 on."""


BufferCopy: TypeAlias = tuple[Ring, tuple[int, ...]]
"""Which of the copies of a multiple buffer an execution uses: that of these passes of the loops around it."""


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """Elements of `size` bytes at `address` of memory `place` of kind `kind`, and of the `copies - 1` after it."""

    slot: int
    is_write: bool
    kind: int
    place: int
    copies: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    copy: BufferCopy | None = None

    @property
    def lowest(self) -> int:
        """The first byte."""
        return self.address + sum((n - 1) * min(0, s) for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def end(self) -> int:
        """One past the last byte."""
        reach = sum((n - 1) * max(0, s) for n, s in zip(self.shape, self.strides, strict=True))
        return self.address + reach + self.size


@dataclass(frozen=True)
class Conflict:
    """At `address` an access meets one of another engine that nothing orders before it (None: nobody wrote)."""

    address: int
    place: int
    other: tuple[Rows, int, int] | None
    other_writes: bool
    kind: Literal["order", "again", "stale"] = "order"
    """Nothing orders the two; a byte that is written once was written already (by the host, where `other` is None); it
    was written as part of another copy of the buffer, in an earlier pass."""


@dataclass(frozen=True)
class Gap:
    """The first byte of an output that nobody wrote, how many there are, and the execution that wrote the byte nearest
    to it (None: no byte is written)."""

    address: int
    missing: int
    nearest: tuple[Rows, int, int] | None


class Stamps:
    """A number for each execution, and what it says."""

    def __init__(self, core: tuple[Rows, Clock], cluster: tuple[Rows, Clock]) -> None:
        self.rows: tuple[Rows, Rows] = (core[0], cluster[0])
        self.first: tuple[int, int] = (2, 2 + core[1].number.size)
        never = np.iinfo(np.int32).max
        parts = [(np.zeros(2, np.int64), np.array([never, 0]))]
        parts += [(clock.engine.ravel(), clock.number.ravel()) for _, clock in (core, cluster)]
        self.engine: NDArray[np.int32]
        self.number: NDArray[np.int32]
        self.engine, self.number = (np.concatenate(part).astype(np.int32) for part in zip(*parts, strict=True))
        order = np.lexsort((self.number, self.engine))
        self._order = order[(self.number[order] > 0) & (self.number[order] < never)]
        self._start = np.searchsorted(self.engine[self._order], np.arange(int(self.engine.max()) + 2))

    def of(self, rows: Rows, row: int, unit: int) -> int:
        return self.first[rows is self.rows[1]] + row * rows.units + unit

    def execution(self, stamp: int) -> tuple[Rows, int, int]:
        """(table, row, unit) of a stamp."""
        table = int(stamp >= self.first[1])
        rows = self.rows[table]
        row, unit = divmod(stamp - self.first[table], rows.units)
        return rows, row, unit

    def on(self, engine: int, number: int) -> int:
        """The stamp of an engine's execution of this number."""
        return int(self._order[self._start[engine] + number - 1])


class Shadow:
    """The planes of all memories, with what the host writes before the run."""

    def __init__(self, expanded: Expanded, capacities: Sequence[int], stamps: Stamps) -> None:
        self.stamps = stamps
        self.grain: int = _grain(expanded)
        self._sizes = [size // self.grain + 1 for size in capacities]  # grains of one memory
        self._writer: dict[tuple[int, int], Ints] = {}  # kind, place: stamp of each grain
        self._readers: dict[tuple[int, int], dict[int, Ints]] = {}  # ... engine: number of each grain
        self._copies: dict[tuple[int, int], Ints] = {}  # ... number of the copy as part of which each grain was written
        self._numbers: dict[BufferCopy, int] = {}
        self._once: Ints = np.zeros(self._sizes[DRAM], np.int32)  # of each grain of DRAM, whether it is written once
        for each in expanded.program.externals:
            self._once[self._grains(each)] = True
            if each.class_ in WRITTEN_BY_HOST:
                self._plane(DRAM, 0)[self._grains(each)] = WRITTEN_BEFORE

    def read(self, access: MemoryAccess, stamp: int, clock: Ints) -> Conflict | None:
        """Note a read that starts at `clock`; gives what is wrong with it."""
        writers = self._view(self._plane(access.kind, access.place), access)
        bad = self.stamps.number[writers] > clock[self.stamps.engine[writers]]
        if bad.any():
            where = np.unravel_index(int(bad.argmax()), bad.shape)
            return self._conflict(access, access.place, where, int(writers[where]), True)
        if access.copy is not None:
            stale = self._copies_of(access, access.place) != self._number(access.copy)
            if stale.any():
                where = np.unravel_index(int(stale.argmax()), stale.shape)
                return replace(self._conflict(access, access.place, where, int(writers[where]), True), kind="stale")
        readers = self._readers.setdefault((access.kind, access.place), {})
        engine = int(self.stamps.engine[stamp])
        if engine not in readers:
            readers[engine] = np.zeros(self._sizes[access.kind], np.int32)
        self._view(readers[engine], access)[...] = self.stamps.number[stamp]
        return None

    def write(self, access: MemoryAccess, stamp: int, clock: Ints) -> Conflict | None:
        """Note a write that starts at `clock`; gives what is wrong with it."""
        own = int(self.stamps.engine[stamp])
        for place in range(access.place, access.place + access.copies):
            for engine, plane in self._readers.get((access.kind, place), {}).items():
                numbers = self._view(plane, access)
                if engine != own and int(numbers.max()) > clock[engine]:
                    where = np.unravel_index(int(numbers.argmax()), numbers.shape)
                    other = self.stamps.on(engine, int(numbers[where]))
                    return self._conflict(access, place, where, other, False)
            writers = self._view(self._plane(access.kind, place), access)
            bad = (self.stamps.number[writers] > clock[self.stamps.engine[writers]]) & (writers != UNWRITTEN)
            if bad.any():
                where = np.unravel_index(int(bad.argmax()), bad.shape)
                return self._conflict(access, place, where, int(writers[where]), True)
            if access.kind == DRAM:
                again = (writers != UNWRITTEN) & (self._view(self._once, access) != 0)
                if again.any():
                    where = np.unravel_index(int(again.argmax()), again.shape)
                    return replace(self._conflict(access, place, where, int(writers[where]), True), kind="again")
            writers[...] = stamp
            self._copies_of(access, place)[...] = 0 if access.copy is None else self._number(access.copy)
        return None

    def gap_of(self, external: External) -> Gap | None:
        """What is missing of a buffer in DRAM when all instructions have run; None where it is whole."""
        writers = self._plane(DRAM, 0)[self._grains(external)]
        missing, written = np.flatnonzero(writers == UNWRITTEN), np.flatnonzero(writers)
        if not missing.size:
            return None
        first = int(missing[0])
        nearest = int(writers[written[np.abs(written - first).argmin()]]) if written.size else UNWRITTEN
        address = max(external.address, (external.address // self.grain + first) * self.grain)
        return Gap(address, int(missing.size) * self.grain, self._execution(nearest))

    def _plane(self, kind: int, place: int) -> Ints:
        if (kind, place) not in self._writer:
            self._writer[kind, place] = np.zeros(self._sizes[kind], np.int32)
        return self._writer[kind, place]

    def _number(self, copy: BufferCopy) -> int:
        return self._numbers.setdefault(copy, len(self._numbers) + 1)

    def _copies_of(self, access: MemoryAccess, place: int) -> Ints:
        """As part of which copy the grains of an access were written; 0: of no multiple buffer."""
        key = access.kind, place
        if key not in self._copies:
            self._copies[key] = np.zeros(self._sizes[access.kind], np.int32)
        return self._view(self._copies[key], access)

    def _view(self, plane: Ints, access: MemoryAccess) -> Ints:
        """The grains of an access."""
        grain, width = self.grain, plane.itemsize
        shape = (*access.shape, access.size // grain)
        strides = (*(stride // grain * width for stride in access.strides), width)
        return np.ndarray(shape, plane.dtype, plane.data, access.address // grain * width, strides)

    def _conflict(
        self, access: MemoryAccess, place: int, where: tuple[np.intp, ...], other: int, other_writes: bool
    ) -> Conflict:
        moved = sum(int(i) * stride for i, stride in zip(where, access.strides, strict=False))
        address = access.address + moved + int(where[-1]) * self.grain
        return Conflict(address, place, self._execution(other), other_writes)

    def _execution(self, stamp: int) -> tuple[Rows, int, int] | None:
        """What a stamp says; None where no instruction wrote."""
        return None if stamp in (UNWRITTEN, WRITTEN_BEFORE) else self.stamps.execution(stamp)

    def _grains(self, external: External) -> slice:
        """Those of a buffer in DRAM."""
        return slice(external.address // self.grain, -(-(external.address + external.bytes) // self.grain))


def _grain(expanded: Expanded) -> int:
    """The largest size of which all addresses, strides and elements of the program are multiples."""
    sizes = [0]
    for rows in (expanded.core, expanded.cluster):
        if rows.address.size:
            sizes.append(int(np.gcd.reduce(rows.address, axis=None)))
    for operand in (operand for form in expanded.forms for operand in form.operands if operand is not None):
        sizes += [*operand.view.strides, ELEMENT_BYTES[operand.view.element]]
    return gcd(*sizes) or 1


# --- accesses --------------------------------------------------------------------------------------------


def accesses(expanded: Expanded, rows: Rows, row: int, unit: int) -> Iterator[MemoryAccess]:
    """Reads first, then writes; nothing for an inactive unit."""
    if not rows.active[row, unit]:
        return
    static = int(rows.static[row])
    extent, read = (part[:, row, unit].tolist() for part in (rows.extent, rows.read))
    flags = bool(rows.is_first[row]), bool(rows.is_last[row])
    operands = [(slot, operand) for slot, operand in enumerate(expanded.forms[static].operands) if operand is not None]
    for is_write in (False, True):
        for slot, operand in operands:
            counts = [axis.count(extent, read) for axis in operand.axes]
            if 0 in counts or not (operand.writes if is_write else operand.reads).holds(*flags):
                continue
            ring = operand.view.ring
            copy = None if ring is None else (ring, tuple(rows.index[row, : ring.level].tolist()))
            # an axis of stride 0 is touched once
            shape = tuple(n if stride else 1 for n, stride in zip(counts, operand.strides, strict=True))
            access = MemoryAccess(
                slot, is_write, int(expanded.memory[static, slot]), int(rows.place[slot, row, unit]),
                int(expanded.copies[static, slot]), int(rows.address[slot, row, unit]), shape, operand.strides,
                operand.element_bytes, copy,
            )  # fmt: skip
            around = operand.view.wrap
            if around is not None and rows.split[slot, around.dim, row, unit] and operand.strides[around.dim]:
                yield from _in_two(access, around, int(rows.split[slot, around.dim, row, unit]))
            else:
                yield access


def _in_two(access: MemoryAccess, around: Wrap, split: int) -> tuple[MemoryAccess, MemoryAccess]:
    """An access that goes beyond the end of a ring: what lies before the end, and what begins the ring."""
    before = min(split, access.shape[around.dim])
    after = access.shape[around.dim] - before
    begin = access.address + (split - around.size) * access.strides[around.dim]
    return (
        replace(access, shape=replaced(access.shape, around.dim, before)),
        replace(access, shape=replaced(access.shape, around.dim, after), address=begin),
    )
