"""A program, expanded once into numpy arrays: every execution of every instruction on every core with real numbers.

The rows of all core instructions are one table, those of all cluster instructions (and barriers) another; both are
in program order.  A component of a row is an array `[rows, units]`, those of four dimensions are `[4, rows, units]`.
Nothing here depends on which operation an instruction is, except where resizing looks: see `form.py`.

Which instances run, in which order: a loop body of weight W (how many instructions it holds, inner loops counted pass
by pass) takes W numbers of the program order for each of its passes; a child with stage s and index i runs in pass
i + s.  So the key of an instance is a sum over its loops, and sorting the keys gives the program order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from frustum.dialects.isa import program as p
from frustum.runtime.device.form import (
    FAR,
    AccessForm,
    Ints,
    Operand,
    ReadWindow,
    form,
    is_on_core,
    reaches_all_clusters,
)
from frustum.runtime.kernels.maps import ROUNDING

if TYPE_CHECKING:
    from frustum.runtime.device.addresses import AddressTables


OPERANDS = 8
"""Most operands of an instruction; `Rows.address` has that many planes, in the order of the instruction's views."""
SIDES = 2
"""Source and destination of a copy: the operands that may wrap."""
WAITS = 2
DRAM, SRAM, NRAM, WRAM = range(len(p.MEMORIES))
NO_MEMORY = -1

# planes of the affine functions of an instruction
BY_DIMENSION = START, LIMIT, FIRST, NOMINAL, WINDOW_LIMIT = tuple(slice(4 * k, 4 * k + 4) for k in range(5))
OFFSET = slice(20, 20 + OPERANDS)
WAIT = slice(20 + OPERANDS, 20 + OPERANDS + WAITS)
PEER = 20 + OPERANDS + WAITS
AFFINES = PEER + 1


@dataclass(frozen=True, eq=False)
class Rows:
    """Executions of core instructions (units: cluster * cores + core) or of cluster instructions (units: clusters).

    A row and unit of which the clipped box is empty is not `active`: it moves nothing, but waits and signals.
    The read operand has `read` positions in each dimension that exist, with `low` before and `high` after them that
    are padding; `origin` is the map position of the first that exists.  Of a copy with fill `lower` and `extent` are
    what is written; the `read` part of it, `low` from its start, comes from the source.  `address` counts from the
    start of memory number `place` of the operand's kind (`Expanded.memory`): of the first element used; of the
    destination of a copy, of the first element written.  Where the source or destination of a copy wraps inside the
    box, `split` is how many positions of that dimension lie before the end of the ring.
    """

    units: int
    static: Ints  # rows: index into Expanded.instructions
    seq: Ints  # rows: place in the program order over both tables
    index: Ints  # rows, MAX_LOOPS: loop indices
    takes_part: Ints  # rows, units: bool; false on clusters that leave a multicast or fetch to cluster 0
    active: Ints  # rows, units: bool
    lower: Ints  # 4, rows, units: position of the first element of the clipped box
    extent: Ints  # 4, rows, units
    origin: Ints  # 4, rows, units
    read: Ints  # 4, rows, units
    low: Ints  # 4, rows, units
    high: Ints  # 4, rows, units
    address: Ints  # OPERANDS, rows, units
    place: Ints  # OPERANDS, rows, units
    split: Ints  # SIDES, 4, rows, units; 0: in one piece
    wait: Ints  # WAITS, rows, units: value; 0 where there is none
    is_first: Ints  # rows: bool: accumulators start at 0
    is_last: Ints  # rows: bool: the result goes out

    def __len__(self) -> int:
        return len(self.static)

    def of(self, static: int) -> Ints:
        """The rows of one instruction, in order."""
        return np.flatnonzero(self.static == static)


@dataclass(frozen=True, eq=False)
class Expanded:
    """All executions of a program on `clusters` x `cores` cores.

    `memory` `[instructions, OPERANDS]` is the kind of memory of each operand (NO_MEMORY: none), `copies`
    `[instructions, OPERANDS]` the number of consecutive memories from `place` on that it stands for: more than one
    for the destination of a multicast or broadcast; `depths` is how many loops each instruction is in; `tables` are
    those that convolutions name, once they are read (`table.with_tables`).
    """

    program: p.Program
    clusters: int
    cores: int
    instructions: tuple[p.Instruction, ...]
    depths: tuple[int, ...]
    forms: tuple[AccessForm, ...]
    memory: Ints
    copies: Ints
    core: Rows
    cluster: Rows
    tables: AddressTables | None = None

    @property
    def memory_counts(self) -> tuple[int, ...]:
        """How many memories of each kind there are."""
        units = self.clusters * self.cores
        return 1, self.clusters, units, units

    @cached_property
    def order(self) -> tuple[Ints, Ints]:
        """In program order: whether each is a core instruction, and its row in `core` or `cluster`."""
        seq = np.concatenate([self.core.seq, self.cluster.seq])
        is_core = np.arange(len(seq)) < len(self.core)
        row = np.concatenate([np.arange(len(self.core)), np.arange(len(self.cluster))])
        order = np.argsort(seq)
        return is_core[order], row[order]

    def in_order(self) -> Iterator[tuple[Rows, int]]:
        for is_core, row in zip(*(part.tolist() for part in self.order), strict=True):
            yield (self.core if is_core else self.cluster), row


def expand(program: p.Program, clusters: int, cores: int) -> Expanded:
    """Every execution of every instruction of `program` on `clusters` clusters of `cores` cores."""
    parts = instances(program.body)
    instructions = tuple(part.instruction for part in parts)
    forms = tuple(form(instruction) for instruction in instructions)
    statics, seq = _Statics(parts, forms), _sequence(parts)
    on_core = np.array([is_on_core(instruction) for instruction in instructions], bool)
    core = statics.rows(seq, on_core, np.divmod(np.arange(clusters * cores), cores), cores)
    cluster = statics.rows(seq, ~on_core, (np.arange(clusters), np.zeros(clusters, np.int64)), cores)
    depths, copies = tuple(len(part.counts) for part in parts), _copies(instructions, clusters, cores)
    return Expanded(program, clusters, cores, instructions, depths, forms, statics.memory, copies, core, cluster)


def _sequence(parts: Sequence[Instances]) -> Ints:
    """Place in the program order of every execution, in the order of `parts`."""
    keys = np.concatenate([part.keys for part in parts]) if parts else np.zeros(0, np.int64)
    seq = np.empty(len(keys), np.int64)
    seq[np.argsort(keys)] = np.arange(len(keys))
    return seq


def _copies(statics: Sequence[p.Instruction], clusters: int, cores: int) -> Ints:
    copies = np.ones((len(statics), OPERANDS), np.int64)
    for row, instruction in zip(copies, statics, strict=True):
        if isinstance(instruction, p.Copy):
            row[1] = cores if instruction.engine == "bus" else clusters if instruction.multicast else 1
    return copies


class _Statics:
    """What the instructions say, as arrays: one row per instruction."""

    def __init__(self, parts: Sequence[Instances], forms: Sequence[AccessForm]) -> None:
        self.parts, self.forms = parts, forms
        self.statics = [part.instruction for part in parts]
        size = len(parts)
        self.affine = np.zeros((size, AFFINES, 1 + p.MAX_LOOPS + 2), np.int64)
        self.affine[:, LIMIT, 0] = self.affine[:, WINDOW_LIMIT, 0] = FAR
        self.span = np.zeros((2, 4, size), np.int64)  # extent, bound of the box
        self.window = np.zeros((4, 4, size), np.int64)  # stride, size, extent, bound
        self.floor = np.zeros(size, np.int64)  # lowest position of the box
        self.by_box = np.zeros((OPERANDS, 4, size), np.int64)
        self.by_read = np.zeros((OPERANDS, 4, size), np.int64)
        self.ring = np.zeros((3, OPERANDS, size), np.int64)  # depth, bytes, level
        self.ring[0] = 1
        self.wrap = np.zeros((3, SIDES, size), np.int64)  # dimension, size (0: none), stride
        self.phase = np.zeros((SIDES, size, 1 + p.MAX_LOOPS + 2), np.int64)
        self.memory = np.full((size, OPERANDS), NO_MEMORY, np.int64)
        for number, (instruction, its_form) in enumerate(zip(self.statics, forms, strict=True)):
            self._set_box(number, its_form)
            for slot, operand in enumerate(its_form.operands):
                if operand is not None:
                    self._set_operand(number, slot, operand)
            assert len(instruction.waits) <= WAITS, "more waits than an instruction has"
            for slot, wait in enumerate(instruction.waits):
                _set(self.affine[number, WAIT.start + slot], wait.value)
            if isinstance(instruction, p.Copy):
                _set(self.affine[number, PEER], instruction.peer)

    def _set_box(self, number: int, its_form: AccessForm) -> None:
        for d, (span, window) in enumerate(zip(its_form.spans, its_form.windows, strict=True)):
            seen = window or ReadWindow(span.start, span.start, 1, 1, span.extent, span.bound, span.limit)
            functions = span.start, span.limit, seen.start, seen.nominal, seen.limit
            for plane, function in zip(BY_DIMENSION, functions, strict=True):
                _set(self.affine[number, plane.start + d], function)
            self.span[:, d, number] = span.extent, FAR if its_form.fills else span.bound
            self.window[:, d, number] = seen.stride, seen.size, seen.extent, seen.bound
        self.floor[number] = -FAR if its_form.fills else 0

    def _set_operand(self, number: int, slot: int, operand: Operand) -> None:
        view = operand.view
        assert view.memory is not None, "a view without memory cannot run"
        self.memory[number, slot] = p.MEMORIES.index(view.memory)
        _set(self.affine[number, OFFSET.start + slot], view.offset)
        self.by_box[slot, :, number] = operand.by_box
        self.by_read[slot, :, number] = operand.by_read
        if view.ring is not None:
            self.ring[:, slot, number] = view.ring.depth, view.ring.bytes, view.ring.level
        if view.wrap is not None:
            around = view.wrap
            assert self.span[0, around.dim, number] <= around.size, "a box laps itself"
            self.wrap[:, slot, number] = around.dim, around.size, view.strides[around.dim]
            _set(self.phase[slot, number], around.phase)

    def rows(self, seq: Ints, chosen: Ints, units: tuple[Ints, Ints], cores: int) -> Rows:
        """The table of the instructions that are `chosen`, on `units` (cluster, core)."""
        static = np.repeat(np.arange(len(self.parts)), [len(part.keys) for part in self.parts])
        mine = np.flatnonzero(chosen[static])
        mine = mine[np.argsort(seq[mine])]
        static, seq = static[mine], seq[mine]
        index = np.concatenate([np.zeros((0, p.MAX_LOOPS), np.int64), *(part.index for part in self.parts)])[mine]
        value = self._values(static, index, units)
        box = self._box(static, value)
        seen = self._seen(static, value, box)
        address, place = self._operands(static, index, value, box, seen, units, cores)
        split = self._go_around(static, index, units, box, seen, address)
        is_first, is_last = self._accumulates(static, index)
        takes_part = np.ones((len(static), len(units[0])), bool)
        takes_part[np.array([reaches_all_clusters(each) for each in self.statics], bool)[static], 1:] = False
        return Rows(
            units=len(units[0]), static=static, seq=seq, index=index, takes_part=takes_part,
            active=takes_part & (box.extent > 0).all(axis=0),
            lower=box.lower, extent=box.extent, origin=seen.origin, read=seen.read, low=seen.low, high=seen.high,
            address=address, place=place, split=split, wait=np.maximum(value[WAIT], 0),
            is_first=is_first, is_last=is_last,
        )  # fmt: skip

    def _values(self, static: Ints, index: Ints, units: tuple[Ints, Ints]) -> Ints:
        """All affine functions: `[AFFINES, rows, units]`."""
        shared = self.affine[static, :, 0]
        for level in range(p.MAX_LOOPS):
            if self.affine[:, :, 1 + level].any():
                shared = shared + self.affine[static, :, 1 + level] * index[:, level, None]
        own = self.affine[:, :, -2, None] * units[0] + self.affine[:, :, -1, None] * units[1]
        return shared.T[:, :, None] + own.transpose(1, 0, 2)[:, static]

    def _box(self, static: Ints, value: Ints) -> _Box:
        start = value[START]
        extent, bound = self.span[:, :, static, None]
        lower = np.maximum(start, self.floor[static, None])
        stop = np.minimum(np.minimum(start + extent, bound), value[LIMIT])
        return _Box(lower, np.maximum(stop - lower, 0), lower - start)

    def _seen(self, static: Ints, value: Ints, box: _Box) -> _Seen:
        stride, size, extent, bound = self.window[:, :, static, None]
        nominal = value[NOMINAL]
        first = value[FIRST] + box.cut * stride
        needed = np.where(box.extent > 0, (box.extent - 1) * stride + size, 0)
        self._look_back(static, box, first, needed)
        stop = np.minimum(np.minimum(nominal + extent, bound), np.minimum(value[WINDOW_LIMIT], first + needed))
        low = np.clip(np.maximum(nominal, 0) - first, 0, needed)
        read = np.maximum(stop - first - low, 0)
        return _Seen(first + low, read, low, needed - low - read, first + low - nominal)

    def _look_back(self, static: Ints, box: _Box, first: Ints, needed: Ints) -> None:
        """Where resizing looks: set `first` and `needed` of rows and columns, in place."""
        for number, instruction in enumerate(self.statics):
            if isinstance(instruction, p.Resize):
                rows = np.flatnonzero(static == number)
                for d, axis in ((2, 0), (3, 1)):
                    low, high = _resized(instruction, axis, box.lower[d, rows], box.extent[d, rows])
                    first[d, rows], needed[d, rows] = low, high - low

    def _operands(
        self, static: Ints, index: Ints, value: Ints, box: _Box, seen: _Seen, units: tuple[Ints, Ints], cores: int
    ) -> tuple[Ints, Ints]:
        address = value[OFFSET].copy()
        for slot in range(OPERANDS):
            for moves, by in ((box.cut, self.by_box), (seen.moved, self.by_read)):
                for d in np.flatnonzero(by[slot].any(axis=1)):
                    address[slot] += by[slot, d, static, None] * moves[d]
        address += self._ring_bytes(static, index)[:, :, None]
        place = np.zeros_like(address)
        kind = self.memory[static].T
        place[kind == SRAM] = units[0]
        on_core = np.isin(kind, (NRAM, WRAM))
        place[on_core] = units[0] * cores + units[1]
        peers = np.array([isinstance(s, p.Copy) and s.peer is not None for s in self.statics], bool)[static]
        place[1, peers] = value[PEER, peers]
        return address, place

    def _go_around(
        self, static: Ints, index: Ints, units: tuple[Ints, Ints], box: _Box, seen: _Seen, address: Ints
    ) -> Ints:
        """Add to `address` where in their rings operands that wrap begin; gives `Rows.split`."""
        shape = SIDES, 4, len(static), len(units[0])
        if not self.wrap[1].any():
            return np.broadcast_to(np.int64(0), shape)
        split = np.zeros(shape, np.int64)
        for slot, (first, count) in enumerate(((seen.origin, seen.read), (box.lower, box.extent))):
            rows = np.flatnonzero(self.wrap[1, slot, static])
            mine = static[rows]
            dim, (size, stride) = self.wrap[0, slot, mine], self.wrap[1:, slot, mine, None]
            phase = self.phase[slot, mine]
            shared = phase[:, 0] + (phase[:, 1 : 1 + p.MAX_LOOPS] * index[rows]).sum(axis=1)
            own = phase[:, -2, None] * units[0] + phase[:, -1, None] * units[1]
            at = (first[dim, rows] + shared[:, None] + own) % size
            address[slot, rows] += at * stride
            before_end = size - at
            split[slot, dim, rows] = np.where(before_end < count[dim, rows], before_end, 0)
        return split

    def _ring_bytes(self, static: Ints, index: Ints) -> Ints:
        """Where in a multiple buffer the copy of this iteration starts: `[OPERANDS, rows]`."""
        if (self.ring[0] == 1).all():
            return np.zeros((OPERANDS, len(static)), np.int64)
        iteration = np.zeros((p.MAX_LOOPS + 1, len(static)), np.int64)
        counts = np.array([(*part.counts, *(1,) * (p.MAX_LOOPS - len(part.counts))) for part in self.parts])
        for level in range(p.MAX_LOOPS):
            iteration[level + 1] = iteration[level] * counts[static, level] + index[:, level]
        depth, size, level = self.ring[:, :, static]
        return np.take_along_axis(iteration, level, axis=0) % depth * size

    def _accumulates(self, static: Ints, index: Ints) -> tuple[Ints, Ints]:
        """Whether accumulators start in each row, and whether they end in it."""
        levels = [getattr(instruction, "accumulate", None) for instruction in self.statics]
        starts = np.array([not getattr(each, "continues", False) for each in self.statics], bool)[static]
        level = np.array([0 if level is None else level for level in levels], np.int64)
        last = np.array([0 if k is None else p.counts[k] - 1 for k, p in zip(levels, self.parts, strict=True)])
        whole = np.array([level is None for level in levels], bool)[static]
        at = np.take_along_axis(index, level[static, None], axis=1)[:, 0] if len(static) else static
        return starts & (whole | (at == 0)), whole | (at == last.astype(np.int64)[static])


@dataclass(frozen=True, eq=False)
class _Box:
    lower: Ints
    extent: Ints
    cut: Ints  # positions cut from the lower end


@dataclass(frozen=True, eq=False)
class _Seen:
    origin: Ints
    read: Ints
    low: Ints
    high: Ints
    moved: Ints  # from the nominal position to the first that exists


def _set(row: Ints, value: p.Affine | None) -> None:
    """Write a function into a row of zeros (of a limit: of FAR and zeros)."""
    if value is None:
        return
    row[0] = value.base
    if value.loops:
        row[1 : 1 + len(value.loops)] = value.loops
    if value.cluster or value.core:
        row[1 + p.MAX_LOOPS :] = value.cluster, value.core


def _resized(instruction: p.Resize, axis: int, lower: Ints, extent: Ints) -> tuple[Ints, Ints]:
    """Half-open range of input positions that the outputs `[lower, lower + extent)` look at."""
    bound = (instruction.rows, instruction.cols)[axis].bound
    scale, offset = instruction.scale[axis], instruction.offset[axis]
    ends = np.clip(np.stack([lower, lower + extent - 1]) * scale + offset, 0, bound - 1)
    if instruction.mode == "nearest":
        low, high = np.clip(ROUNDING[instruction.rounding](ends), 0, bound - 1)
    else:
        low, high = np.floor(ends[0]), np.ceil(ends[1])
    return low.astype(np.int64), np.where(extent > 0, high + 1, low).astype(np.int64)


# --- order -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instances:
    """All executions of one instruction: `keys` [n] sorts them among all others; `index` [n, MAX_LOOPS]."""

    instruction: p.Instruction
    counts: tuple[int, ...]
    keys: Ints
    index: Ints


def instances(body: Sequence[p.Node]) -> list[Instances]:
    """The executions of every instruction, in textual order; at the top level stages mean nothing."""
    found: list[Instances] = []
    start = np.zeros(1, np.int64)
    _visit(body, (), start, np.zeros((1, p.MAX_LOOPS), np.int64), 0, found)
    return found


def _weight(node: p.Node) -> int:
    """How many numbers of the program order one execution of this node takes."""
    if not isinstance(node, p.Repeat):
        return 1
    return (node.count + _last_stage(node)) * _body_weight(node)


def _body_weight(node: p.Repeat) -> int:
    return sum(_weight(child) for child in node.body)


def _last_stage(node: p.Repeat) -> int:
    return max((child.stage for child in node.body), default=0)


def _visit(
    body: Sequence[p.Node], counts: tuple[int, ...], keys: Ints, index: Ints, pass_weight: int, found: list[Instances]
) -> None:
    """`keys` [n] and `index` [n, MAX_LOOPS] are those of the start of this body in each of its n iterations."""
    for child in body:
        own = keys + child.stage * pass_weight
        if isinstance(child, p.Repeat):
            weight = _body_weight(child)
            inner = (own[:, None] + np.arange(child.count) * weight).ravel()
            deeper = np.repeat(index, child.count, axis=0)
            deeper[:, len(counts)] = np.tile(np.arange(child.count), len(own))
            _visit(child.body, (*counts, child.count), inner, deeper, weight, found)
        else:
            found.append(Instances(child, counts, own, index))
        keys = keys + _weight(child)
