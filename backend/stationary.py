"""The pass that keeps in the cores what a loop does not move.

A loop over rows, passes or steps in time takes the same weights in each pass.  Where a core's memory has room for all
pieces of them, they come once, in front of the loop, and stay: the copies of all passes but one are gone, and with
them the waiting of each pass for its first piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from frustum.backend.early_weights import ProgramModel, number_of_piece, programs_of, read_at
from frustum.backend.waits.read_code import WRITTEN, target_of
from frustum.dialects.extents import aligned
from frustum.dialects.isa.instruction import Instruction, attribute_of, integer
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine, Box, Memory, View
from frustum.dialects.isa.sync import AllocOp, RepeatOp, enclosing_loops

ENGINES = ("mvdma", "bus")
"""Of copies from SRAM to the cores."""
MEMORIES: tuple[Memory, ...] = ("nram", "wram")
FEW = 2
"""Of so many passes the second saves what the first one waits: all pieces come before what else it copies."""


@dataclass(frozen=True)
class HoldStationary(ModulePass):
    """Move copies to the cores out of loops that do not move what they copy.

    Before: buffers are symbols.  After: of a buffer in NRAM or WRAM that copies from SRAM alone fill, and that does not
    depend on a loop around them, all pieces lie in a buffer in front of that loop, and are copied there; readers find
    each piece at its place.  The loop is the outermost one of which this holds and for which the memory has room, with
    all buffers of the unit side by side; what saves most bytes is the first.
    """

    name = "frustum-hold-stationary"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in programs_of(op):
            _Program(program, target).run()


@dataclass(frozen=True)
class StationaryPieces:
    """All pieces of a buffer, in front of a loop.

    `loops`: those around the buffer, outermost first; `level`: of these the one that is left; `moved`: inside of it,
    the levels of those that lead from piece to piece.
    """

    buffer: AllocOp
    copies: tuple[CopyOp, ...]
    loops: Sequence[RepeatOp]
    level: int
    moved: tuple[int, ...]

    @property
    def copies_ahead(self) -> int:
        """So many buffers of all pieces there are: with a loop around, the next pass's come during this one."""
        return 2 if self.level else 1

    @property
    def counts(self) -> list[int]:
        """Pieces along each of the loops that lead from one to the next."""
        return [self.loops[level].count.value.data for level in self.moved]

    @property
    def piece_bytes(self) -> int:
        return aligned(self.buffer.bytes.value.data)

    @property
    def bytes(self) -> int:
        """Of one buffer of all pieces."""
        return self.piece_bytes * prod(self.counts)

    @property
    def saved(self) -> int:
        """Bytes that need not be copied any more."""
        counts = [loop.count.value.data for loop in self.loops]
        around = prod(counts[: self.level])
        return self.piece_bytes * len(self.copies) * (prod(counts) - around * prod(self.counts))

    def place(self, levels: Sequence[int]) -> Affine:
        """Where a piece lies, by the indices of loops at these levels."""
        return number_of_piece(levels, self.counts) * self.piece_bytes

    def move(self) -> None:
        """Puts the copies in front of the loop."""
        loop, buffer = self.loops[self.level], self.buffer.buffer
        alloc = AllocOp(self.buffer.memory, self.bytes, self.copies_ahead)
        for use in tuple(buffer.uses):
            if use.operation not in self.copies:
                assert isinstance(use.operation, Instruction)
                read_at(use.operation, buffer, self.place(self.moved))
        inner = tuple(range(self.level, self.level + len(self.moved)))
        for copy in self.copies:
            copy.detach()
            self.carry(copy, inner)
        stage, body = loop.stage.value.data, list[Operation](self.copies)
        for copy in self.copies:
            copy.properties["stage"] = integer(0 if inner else stage)
        for number, count in reversed([*enumerate(self.counts)]):
            body = [RepeatOp(count, Region(Block(body)), stage=0 if number else stage)]
        block = loop.parent_block()
        assert block is not None
        block.insert_ops_before([alloc, *body], loop)
        buffer.replace_all_uses_with(alloc.buffer)
        self.buffer.detach()
        self.buffer.erase()

    def carry(self, copy: CopyOp, inner: Sequence[int]) -> None:
        """Lets a copy bring a piece to its place, in loops at these levels."""
        new = dict(zip(self.moved, inner, strict=True))

        def turned(value: Affine) -> Affine:
            loops = enumerate(value.loops)
            found = Affine(value.base, (), value.cluster, value.core)
            return sum((Affine.index(new.get(level, level), factor) for level, factor in loops if factor), found)

        box, source, own = copy.box.data, copy.src_view.data, copy.dst_view.data
        starts, limits = tuple(map(turned, box.start)), tuple(each and turned(each) for each in box.limit)
        copy.properties["box"] = attribute_of(Box(starts, box.extent, box.bound, limits))
        copy.properties["src_view"] = attribute_of(turned_view(source, turned))
        copy.properties["dst_view"] = attribute_of(replace(own, offset=own.offset + self.place(inner)))


def turned_view(view: View, turned: Callable[[Affine], Affine]) -> View:
    wrap = view.wrap and replace(view.wrap, phase=turned(view.wrap.phase))
    return replace(view, offset=turned(view.offset), wrap=wrap)


def ways_of(buffer: AllocOp) -> Iterator[StationaryPieces]:
    """In front of which loops all pieces of a buffer may lie, the outermost first."""
    copies, loops = copies_into(buffer), enclosing_loops(buffer)
    if not copies or not loops or buffer.rolling is not None:
        return
    counts = [loop.count.value.data for loop in loops]
    moving = {level for copy in copies for each in places_of(copy) for level, step in enumerate(each.loops) if step}
    for level, loop in enumerate(loops):
        if level in moving or counts[level] <= FEW or any(changes(loop, copy.src) for copy in copies):
            continue
        moved = tuple(each for each in range(level + 1, len(loops)) if each in moving)
        yield StationaryPieces(buffer, copies, loops, level, moved)


def copies_into(buffer: AllocOp) -> tuple[CopyOp, ...]:
    """The copies from SRAM that fill a buffer.  Empty if another instruction writes it, or if a copy is in another
    block than the allocation."""
    found = list[CopyOp]()
    for user in (use.operation for use in buffer.buffer.uses if is_written_by(buffer.buffer, use.operation)):
        if not isinstance(user, CopyOp) or user.engine.data not in ENGINES or user.parent is not buffer.parent:
            return ()
        if user.dst_view.data.offset.loops or user.dst_view.data.wrap is not None:
            return ()
        found.append(user)
    block = buffer.parent_block()
    assert block is not None
    return (*sorted(found, key=block.get_operation_index),)


def places_of(copy: CopyOp) -> Iterator[Affine]:
    """What says which positions it copies, and from where."""
    box, view = copy.box.data, copy.src_view.data
    yield view.offset
    yield from box.start
    yield from (limit for limit in box.limit if limit is not None)
    if view.wrap is not None:
        yield view.wrap.phase


def changes(loop: RepeatOp, source: SSAValue) -> bool:
    """Whether what is read is made in a loop."""
    writers = (use.operation for use in source.uses if is_written_by(source, use.operation))
    return any(loop.is_ancestor(each) for each in (source.owner, *writers) if isinstance(each, Operation))


def is_written_by(buffer: SSAValue, user: Operation) -> bool:
    if not isinstance(user, Instruction):
        return True
    return any(getattr(user, name) is buffer for name, _ in user.VIEWS if name in WRITTEN)


class _Program(ProgramModel):
    """What a program's memories have room for."""

    def run(self) -> None:
        buffers = (each for each in self.code.storage if isinstance(each, AllocOp) and each.memory in MEMORIES)
        found = [ways for buffer in buffers if (ways := [*ways_of(buffer)])]
        taken = list[StationaryPieces]()
        for ways in sorted(found, key=lambda each: -each[0].saved):
            way = next((each for each in ways if self.more_bytes(each) <= self.free_beside(each)), None)
            if way is not None:
                self.free[way.buffer.memory][self.unit_of(way)] -= self.more_bytes(way)
                taken.append(way)
        if all(self.has_room(taken, memory) for memory in MEMORIES):
            for way in taken:
                way.move()

    @cached_property
    def free(self) -> dict[Memory, NDArray[np.int64]]:
        """Bytes of a core's memories beside all buffers of each unit: none of them has to wait for another one's."""
        found = dict[Memory, NDArray[np.int64]]()
        for memory in MEMORIES:
            found[memory] = np.full(self.units[-1] + 1, self.room[memory])
            for number, paths in self.uses(memory).items():
                units = [self.units[self.index[path[0].position]] for path in paths]
                found[memory][min(units) : max(units) + 1] -= self.bytes_of(number)
        return found

    def unit_of(self, way: StationaryPieces) -> int:
        return self.units[self.child_of(way.buffer)]

    def free_beside(self, way: StationaryPieces) -> int:
        """Bytes that are free in the unit of a loop."""
        return int(self.free[way.buffer.memory][self.unit_of(way)])

    def more_bytes(self, way: StationaryPieces) -> int:
        """What all pieces take more than the buffer that they replace."""
        return way.bytes * way.copies_ahead - self.bytes_of(self.code.numbers[way.buffer.buffer])

    def bytes_of(self, number: int) -> int:
        return aligned(self.code.buffers[number].total_bytes)

    def has_room(self, found: Sequence[StationaryPieces], memory: Memory) -> bool:
        """Whether a memory has places for these beside all other buffers."""
        own = [each for each in found if each.buffer.memory == memory]
        gone = {self.code.numbers[each.buffer.buffer] for each in own}
        children = [self.children[self.child_of(each.buffer)] for each in own]
        added = [(n, n, each.bytes * each.copies_ahead) for n, each in zip(children, own, strict=True)]
        return not own or self.has_places(memory, gone, added)
