# Tests: test/backend/waits/test_regions.py
"""Which bytes of a buffer every execution of an instruction touches, and so which executions of two meet.

A place in a buffer is a mixed number: its digits count the strides of the buffer's users, largest first, down to its
smallest element.  What one execution touches is then an interval of each digit: of the clipped box for every
dimension, with the carry of digits that go beyond their range.  Where strides are no multiples of each other the
intervals are wider than what is touched: executions may then seem to meet that do not, never the other way round.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.backend.waits.counters import Reach, Units
from frustum.backend.waits.loop_tree import Access, Buffer, Instruction, Region
from frustum.dialects.isa.program import Affine, Span

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
MOST_EXECUTIONS = 1 << 13
"""Of an instruction, on all units: those of more are not looked at one by one."""
MOST_PAIRS = 1 << 20
"""Of executions of two instructions: of more, executions of inner loops are taken together."""
ALL = -1
"""In the place of a cluster or core: all of them, or (of what executes) none in particular."""
_FAR = 1 << 60


class Meeting(NamedTuple):
    """Of each execution of a consumer in an iteration of a body the last execution of a producer in an iteration that
    touches the same bytes, one of them writing (-1: none does); and how far apart the units are that meet."""

    upto: tuple[int, ...]
    reach: Reach


@dataclass
class Regions:
    """What the instructions of a section touch."""

    instructions: Sequence[Instruction]
    buffers: Sequence[Buffer]
    units: Units
    _touched: dict[tuple[int, int], list[_Touched] | None] = field(default_factory=dict)
    _operands: dict[tuple[Hashable, ...], _Touched | None] = field(default_factory=dict)
    _met: dict[tuple[int, int], tuple[Ints, Reach]] = field(default_factory=dict)
    """Of two operands, which many layers have alike."""
    _users: dict[int, list[Region]] = field(default_factory=dict)
    _strides: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for instruction in self.instructions:
            for access in instruction.accesses:
                if access.region is not None:
                    self._users.setdefault(access.buffer, []).append(access.region)

    def meeting(self, producer: int, consumer: int, buffer: int) -> Meeting | None:
        """Which executions meet in a buffer, whatever the iterations of its body; None where that cannot be said."""
        first, second = self.touched(producer, buffer), self.touched(consumer, buffer)
        if first is None or second is None:
            return None
        level = self.buffers[buffer].level
        upto: Ints = np.full(prod(self.instructions[consumer].counts[level:]), -1)
        reach = Reach.CORE
        for x in first:
            for y in second:
                if x.writes or y.writes:
                    key = id(x), id(y)
                    if key not in self._met:
                        self._met[key] = _meet(x, y)
                    found, wider = self._met[key]
                    upto, reach = np.maximum(upto, found), max(reach, wider)
        return Meeting(tuple(upto.tolist()), reach)

    def touched(self, number: int, buffer: int) -> list[_Touched] | None:
        """What an instruction touches of a buffer, an operand each; None where that is not known."""
        key = number, buffer
        if key not in self._touched:
            accesses = [a for a in self.instructions[number].accesses if a.buffer == buffer]
            found = [self._operand(self.instructions[number], access) for access in accesses]
            known = [each for each in found if each is not None]
            self._touched[key] = known if len(known) == len(found) else None
        return self._touched[key]

    def strides(self, buffer: int) -> tuple[int, ...]:
        """What the digits of a place in a buffer count, in bytes."""
        if buffer not in self._strides:
            self._strides[buffer] = digits_of(self._users[buffer])
        return self._strides[buffer]

    def _operand(self, instruction: Instruction, access: Access) -> _Touched | None:
        if access.region is None:
            return None
        buffer = self.buffers[access.buffer]
        queue, level = (instruction.on_core, instruction.multicast), buffer.level
        strides, where = self.strides(access.buffer), (buffer.memory, access.everywhere)
        key = access.writes, access.region, instruction.counts, level, queue, where, strides
        if key not in self._operands:
            self._operands[key] = self._evaluated(instruction, access, buffer)
        return self._operands[key]

    def _evaluated(self, instruction: Instruction, access: Access, buffer: Buffer) -> _Touched | None:
        assert access.region is not None
        executions = _Executions.of(instruction, access.region, buffer.level, self.units)
        if executions is None:
            return None
        low, high, active = executions.digits(access.region, self.strides(access.buffer))
        shape = 1, executions.iterations, len(active) // executions.iterations
        at_cluster, at_core = executions.places(access, buffer)
        return _Touched(
            access.writes, instruction.counts[buffer.level :], *_together(low, high, active, shape),
            _common(at_cluster, shape), _common(at_core, shape), executions.cluster, executions.core,
        )  # fmt: skip


def digits_of(regions: Iterable[Region]) -> tuple[int, ...]:
    """Strides of which each is a multiple of the next; the last one is the smallest element's size."""
    known = list(regions)
    smallest = min(region.element_bytes for region in known)
    strides = {
        stride
        for region in known
        for stride, span in zip(region.strides, region.spans, strict=True)
        if span.extent > 1 and stride > smallest and stride % smallest == 0
    }
    found: list[int] = []
    for stride in sorted(strides, reverse=True):
        if not found or found[-1] % stride == 0:
            found.append(stride)
    return (*found, smallest)


@dataclass
class _Executions:
    """Executions of an instruction on all units, arrays [executions, units]: in `iterations` of the buffer's body, 1
    where what is touched is the same in all of them or `spans` are so wide that it is."""

    counts: Sequence[int]
    iterations: int
    spans: tuple[Span, ...]
    cluster: Ints
    core: Ints

    @classmethod
    def of(cls, instruction: Instruction, region: Region, level: int, units: Units) -> _Executions | None:
        """None where there are too many of them."""
        cluster, core = _units_of(instruction, units)
        counts, spans = list(instruction.counts), region.spans
        if prod(counts) * len(cluster) > MOST_EXECUTIONS or not _depends(region, spans, level):
            counts[:level] = [1] * level
            if _depends(region, (), level) or prod(counts) * len(cluster) > MOST_EXECUTIONS:
                return None
            spans = tuple(_unclipped(span) if _depends(None, (span,), level) else span for span in spans)
        return cls(counts, prod(counts[:level]), spans, cluster, core)

    @cached_property
    def index(self) -> list[Ints]:
        """Of each loop, [executions, 1]."""
        rows = prod(self.counts)
        return [i.reshape(rows, 1) for i in np.unravel_index(np.arange(rows), self.counts)] if self.counts else []

    def value(self, function: Affine) -> Ints:
        shape = prod(self.counts), len(self.cluster)
        found: Ints = np.full(shape, function.base) + function.cluster * self.cluster + function.core * self.core
        for index, step in zip(self.index, function.loops, strict=False):
            if step:
                found = found + step * index
        return found

    def digits(self, region: Region, strides: Sequence[int]) -> tuple[list[Ints], list[Ints], Bools]:
        """The digits of the first place and those behind the last, and where anything is touched at all."""
        address, extents = self.value(region.offset), []
        active: Bools = np.ones(address.shape, np.bool_)
        for span, stride in zip(self.spans, region.strides, strict=True):
            start = self.value(span.start)
            low, high = start, start + span.extent
            if region.is_clipped:
                low, high = np.maximum(start, 0), np.minimum(high, span.bound)
            if span.limit is not None:
                high = np.minimum(high, self.value(span.limit))
            address = address + (low - start) * stride
            active &= high > low
            extents.append(np.maximum(high - low, 1).ravel())
        return (*_digits(address.ravel(), extents, region, strides), active.ravel())

    def places(self, access: Access, buffer: Buffer) -> tuple[Ints, Ints]:
        """Cluster and core of the memory that is touched."""
        assert access.region is not None
        at_cluster, at_core = self.cluster, self.core
        if buffer.memory == "dram" or (buffer.memory == "sram" and access.everywhere):
            at_cluster = np.full_like(self.cluster, ALL)
        if access.region.peer is not None:
            at_cluster = self.value(access.region.peer)
        if buffer.memory in ("dram", "sram") or access.everywhere:
            at_core = np.full_like(self.core, ALL)
        shape = prod(self.counts), len(self.cluster)
        return np.broadcast_to(at_cluster, shape).ravel(), np.broadcast_to(at_core, shape).ravel()


def _units_of(instruction: Instruction, units: Units) -> tuple[Ints, Ints]:
    """Cluster and core of the units that execute an instruction."""
    if instruction.multicast:
        return np.zeros(1, np.int64), np.full(1, ALL)
    if not instruction.on_core:
        return np.arange(units.clusters), np.full(units.clusters, ALL)
    cluster, core = np.divmod(np.arange(units.clusters * units.cores), units.cores)
    return cluster, core


def _depends(region: Region | None, spans: Iterable[Span], level: int) -> bool:
    """Whether an offset, or what clips these spans, depends on loops outside of `level`."""
    functions = [] if region is None else [region.offset, *([] if region.peer is None else [region.peer])]
    for span in spans:
        functions += [span.start, *([] if span.limit is None else [span.limit])]
    return any(any(function.loops[:level]) for function in functions)


def _unclipped(span: Span) -> Span:
    return Span(Affine(), span.extent, span.extent)


def _digits(
    address: Ints, extents: Sequence[Ints], region: Region, strides: Sequence[int]
) -> tuple[list[Ints], list[Ints]]:
    """The digits of first places and those behind the last, where no carry is left."""
    low, rest = [], address
    for stride in strides:
        digit, rest = np.divmod(rest, stride)
        low.append(digit)
    sizes = [np.ones_like(address) for _ in strides]
    sizes[-1] = (region.element_bytes + rest + strides[-1] - 1) // strides[-1]
    for extent, stride in zip(extents, region.strides, strict=True):
        at = next((n for n, each in enumerate(strides) if each <= stride and stride % each == 0), len(strides) - 1)
        sizes[at] = sizes[at] + (extent - 1) * -(-stride // strides[at])
    for n in range(len(strides) - 1, 0, -1):
        digits = strides[n - 1] // strides[n]
        over = low[n] + sizes[n] > digits
        if over.any():
            sizes[n - 1] = sizes[n - 1] + np.where(over, (low[n] + sizes[n] - 1) // digits, 0)
            low[n], sizes[n] = np.where(over, 0, low[n]), np.where(over, digits, sizes[n])
    return low, [first + size for first, size in zip(low, sizes, strict=True)]


@dataclass
class _Touched:
    """What an operand touches in each execution on each unit: digits `[low, high)` of its places.

    Arrays are [executions in an iteration of the buffer's body x units], all iterations taken together.  `inner` are
    the counts of the loops inside, `cluster` and `core` the units that execute, `at_cluster` and `at_core` where the
    memory is.
    """

    writes: bool
    inner: tuple[int, ...]
    low: list[Ints]
    high: list[Ints]
    active: Bools
    at_cluster: Ints
    at_core: Ints
    cluster: Ints
    core: Ints

    @property
    def units(self) -> int:
        return len(self.cluster)

    @cached_property
    def hull(self) -> list[tuple[int, int, int, int]] | None:
        """Of each digit the least and greatest start and end; None where nothing is touched."""
        if not self.active.any():
            return None
        return [
            (int(lo.min()), int(lo.max()), int(hi.min()), int(hi.max()))
            for lo, hi in ((lo[self.active], hi[self.active]) for lo, hi in zip(self.low, self.high, strict=True))
        ]

    @cached_property
    def coarser(self) -> _Touched:
        """The executions of the innermost loop taken together."""
        shape = prod(self.inner[:-1]), self.inner[-1], self.units
        return _Touched(
            self.writes, self.inner[:-1], *_together(self.low, self.high, self.active, shape),
            _common(self.at_cluster, shape), _common(self.at_core, shape), self.cluster, self.core,
        )  # fmt: skip


def _together(
    low: Sequence[Ints], high: Sequence[Ints], active: Bools, shape: tuple[int, int, int]
) -> tuple[list[Ints], list[Ints], Bools]:
    """Digits of executions that differ in the second index of `shape`, taken together."""
    if shape[1] == 1:
        return list(low), list(high), active
    split = active.reshape(shape)

    def least(values: Ints) -> Ints:
        found: Ints = np.where(split, values.reshape(shape), _FAR).min(axis=1).ravel()
        return found

    return [least(lo) for lo in low], [-least(-hi) for hi in high], split.any(axis=1).ravel()


def _common(places: Ints, shape: tuple[int, int, int]) -> Ints:
    """The places of such executions; ALL where they differ."""
    split = places.reshape(shape)
    return np.where((split == split[:, :1]).all(axis=1), split[:, 0], ALL).ravel()


def _meet(x: _Touched, y: _Touched) -> tuple[Ints, Reach]:
    """`Meeting` of two operands."""
    none: Ints = np.full(prod(y.inner), -1)
    if x.hull is None or y.hull is None:
        return none, Reach.CORE
    hulls = list(zip(x.hull, y.hull, strict=True))
    if any(a[0] >= b[3] or b[0] >= a[3] for a, b in hulls):
        return none, Reach.CORE
    repeats = last = 1
    while len(x.active) * len(y.active) > MOST_PAIRS and (x.inner or y.inner):
        if x.inner and (not y.inner or len(x.active) >= len(y.active)):
            last *= x.inner[-1]
            x = x.coarser
        else:
            repeats *= y.inner[-1]
            y = y.coarser
    meets = _overlap(x, y, [n for n, (a, b) in enumerate(hulls) if a[1] >= b[2] or b[1] >= a[2]])
    if not meets.any():
        return none, Reach.CORE
    latest = np.where(meets.any(axis=0), (len(meets) - 1 - meets[::-1].argmax(axis=0)) // x.units, -1)
    latest = np.where(latest >= 0, latest * last + last - 1, -1).reshape(prod(y.inner), y.units).max(axis=1)
    return np.repeat(latest, repeats), _reach(x, y, meets)


def _overlap(x: _Touched, y: _Touched, digits: Iterable[int]) -> Bools:
    """[of x, of y]: which touch the same bytes, as far as these digits tell."""
    meets: Bools = x.active[:, None] & y.active
    for n in digits:
        meets &= x.low[n][:, None] < y.high[n]
        meets &= y.low[n] < x.high[n][:, None]
    for one, other in ((x.at_cluster, y.at_cluster), (x.at_core, y.at_core)):
        if not ((one == ALL).all() or (other == ALL).all()):
            meets &= (one[:, None] == other) | (one == ALL)[:, None] | (other == ALL)
    return meets


def _reach(x: _Touched, y: _Touched, meets: Bools) -> Reach:
    """The widest that units are apart which meet."""
    between = meets.reshape(prod(x.inner), x.units, prod(y.inner), y.units).any(axis=(0, 2))
    if (between & (x.cluster[:, None] != y.cluster)).any():
        return Reach.CHIP
    return Reach.CLUSTER if (between & (x.core[:, None] != y.core)).any() else Reach.CORE
