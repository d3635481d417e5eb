"""The pass that lets weights wait in the cores for layers that are far behind.

Weights of which every core needs its own, each byte once, need not pass SRAM: the core's IODMA brings them into its
WRAM.  So they wait for no buffer in SRAM and stand behind nothing in the queue of the GDMA, and a layer whose share of
weights has a place of its own in WRAM can have them as soon as the place is free: while early layers compute and the
DRAM's port has little to do.

Many engines at once would take the port from loads that are waited for (ports serve first come first served): so the
cores take turns, as few at a time as together fill the port.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from frustum.backend.early_weights import Pieces, ProgramModel, Refused, number_of_piece, programs_of, read_at
from frustum.backend.waits.read_code import target_of
from frustum.dialects.extents import Int, aligned, ceil_div
from frustum.dialects.isa.instruction import attribute_of, emit
from frustum.dialects.isa.operations import ConvOp, CopyOp, LineBufferOp
from frustum.dialects.isa.program import MAX_LOOPS, Affine, Box, Copy, View
from frustum.dialects.isa.sync import AllocOp, ProgramOp, RepeatOp
from frustum.dialects.module import TURNS
from frustum.dialects.target import Target
from frustum.passes.lower import weight_slots as ws

LEAST_BYTES = 4096
"""Of a core's share of weights: less is not worth the code."""
SURE = 0.25
"""Of the time before a layer, as the cost model has it: weights that take longer to load, with the port full, stay.
Measured on alexnet f16, `default`: 1,254,952 cycles, with 0.5 1,263,393, for the third convolution's weights came
before those of the second; without this pass 1,260,328."""
PATIENCE = 0.125
"""Of the time left before a layer: what its weights, and those of all layers behind it one after the other, may take to
load with few cores at a time, so that other loads have the port.  Measured on `default`, f16: the rule for each layer
alone, with 0.25, makes inception_v1 take 219,170 cycles instead of 190,529 and inception_v2 301,799 instead of 296,843,
for the weights of late layers came when the maps of others were loaded; with 0.25 for all inception_v2 takes 311,331,
with 0.5 inception_v1 219,170; with the port full always densenet121 368,386 instead of 364,628."""
FIRST = 0.5
"""Of the time left before a layer: what the first pieces of its weights may take to load with few cores at a time.
Measured on alexnet f16, `default`, weights as they are: 1,254,841 cycles, with 0 (no first pieces) 1,260,926."""
PARTS = (1.0, 0.9, 0.8, 0.7)
"""Of WRAM that is given away, in the order tried: buffers leave holes."""


@dataclass(frozen=True)
class WeightsAhead(ModulePass):
    """Bring weights into WRAM as early as it has room.

    Before: buffers are symbols; loads from DRAM fill buffers in SRAM, from which each core takes its own weights piece
    by piece.  After: of some layers all pieces of a core have places in a buffer of the program's body, and the core's
    IODMA fills them in front of the first child of the program from which on WRAM has room for them.

    1. A layer is one of them only if no byte of its weights is needed twice, by two cores or at two times.
    2. Layers get room in the order in which they are needed, each in front of an earlier unit; loads keep that order.
    3. Beside them WRAM has room for what it held before, so that a unit's buffers can be filled during the unit before;
       a trial packs all buffers.
    4. What would keep a barrier waiting, by the cost model, is loaded behind it.
    5. Of a share that is too large, the first pieces of its one loop wait so, and the others go through SRAM.
    6. The loops of such loads are marked `TURNS`: the outermost is over turns of cores, which `frustum-schedule` lets
       begin one after the other.
    """

    name = "frustum-weights-ahead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in programs_of(op):
            _Program(program, target).run()


class Share(Pieces):
    """The weights of a flow of which each core needs its own, each byte once."""

    def __init__(self, flow: ws.Flow, target: Target) -> None:
        super().__init__(flow, target)
        self.cores: int = target.cluster.cores
        slots = self.slots
        if {index for index, size in enumerate(slots.sizes) if size > 1} != set(slots.indices):
            raise Refused("pieces are needed more than once")
        box = flow.fill.box.data
        if len(self.counts) == MAX_LOOPS or box.limit[2] is not None or box.limit[3] is not None:
            raise Refused("there is no loop left for turns, or no limit")
        if not slots.runs or self._run_bytes < target.memory("dram").minimum_run_bytes:
            raise Refused("runs in DRAM are too short")
        if self.bytes < LEAST_BYTES:
            raise Refused("they are few")

    @property
    def replaced(self) -> tuple[Operation, ...]:
        """What goes where the pieces are loaded ahead."""
        return self.flow.fill, self.flow.load, self.buffer, self.flow.held

    @property
    def _run_bytes(self) -> int:
        """Bytes of a piece that lie in one run in DRAM."""
        view, extent = self.flow.load.src_view.data, self.flow.fill.box.data.extent
        run = self.slots.element_bytes
        for stride, size in sorted(zip(view.strides, extent, strict=True)):
            if size > 1 and stride == run:
                run *= size
        return run

    @cached_property
    def number(self) -> Affine:
        """The number of a piece, in the loops around the fill."""
        return number_of_piece(range(len(self.counts)), self.counts)

    def loop(self, turns: int, at_a_time: int) -> list[Operation]:
        """A buffer for all pieces, and the loop that fills it: in each turn `at_a_time` cores of the chip, in their
        order.  What uses the pieces finds them there; the way through SRAM is gone."""
        fill, load = self.flow.fill, self.flow.load
        view, box = load.src_view.data, fill.box.data
        offset = self.slots.tensor_start
        for start, stride in zip(box.start, view.strides, strict=True):
            offset = offset + start * stride
        place = self.number * self.piece_bytes
        alloc = AllocOp("wram", self.bytes)
        copy = Copy(
            engine="iodma", src_view=View(view.element, _inner(offset), view.strides),
            dst_view=View(view.element, _inner(place), fill.dst_view.data.strides),
            box=self._in_turns(box, at_a_time), layer=fill.layer.value.data, unit=fill.unit.value.data,
        )  # fmt: skip
        inner: Operation = emit(copy, self.flow.external.buffer, alloc.buffer)
        inner.attributes[TURNS] = UnitAttr()
        for count in (*reversed(self.counts), turns):
            inner = RepeatOp(count, Region(Block([inner])))
        self._read_from(alloc)
        return [alloc, inner]

    def _read_from(self, alloc: AllocOp) -> None:
        """Let what uses the pieces find them in a buffer."""
        for user in self.users:
            read_at(user, self.buffer.buffer, self.number * self.piece_bytes)
        self.buffer.buffer.replace_all_uses_with(alloc.buffer)
        for op in self.replaced:
            op.detach()
            op.erase()

    def _in_turns(self, box: Box, at_a_time: int) -> Box:
        """The box inside the loop of turns: empty for cores whose turn it is not."""
        starts, limits = [_inner(start) for start in box.start], [x and _inner(x) for x in box.limit]
        core = Affine(cluster=self.cores, core=1) - Affine.index(0, at_a_time)
        limits[2] = (core + 1) * box.bound[2]
        limits[3] = (-core + at_a_time) * box.bound[3]
        return Box(tuple(starts), box.extent, box.bound, tuple(limits))


class FirstPieces(Share):
    """The first `count` pieces of a share that is too large: its layer's first passes read them where they wait, the
    others go their way through SRAM.

    In each pass one of two instructions does nothing, for its box is empty: the one that reads the pieces that wait,
    or the old one.  Sums are started in the first pass of their loop and written in the last, whoever that is.
    """

    def __init__(self, share: Share, count: int) -> None:
        (user,) = share.users if len(share.counts) == 1 and len(share.users) == 1 else (None,)
        if not isinstance(user, ConvOp) or user.parent is not share.buffer.parent:
            raise Refused("there is no one loop of pieces")
        views = user.box.data, share.flow.load.box.data, share.flow.fill.box.data
        if user.box.data.limit[0] is not None or any(box.limit[2] for box in views[1:]):
            raise Refused("there is no limit left")
        self.__dict__.update(vars(share))
        self.counts: list[int] = [count]
        self.bytes: Int = self.piece_bytes * count

    @property
    def replaced(self) -> tuple[Operation, ...]:
        return ()

    def _read_from(self, alloc: AllocOp) -> None:
        (user,) = self.users
        early, (count,) = user.clone(), self.counts
        early.operands = [alloc.buffer if each is self.buffer.buffer else each for each in user.operands]
        read_at(early, alloc.buffer, self.number * self.piece_bytes)
        block = user.parent_block()
        assert block is not None
        lines = user.prev_op  # are for one convolution
        block.insert_ops_before([early, *([lines.clone()] if isinstance(lines, LineBufferOp) else [])], user)
        index = Affine.index(0)
        _limit(early, 0, -index + count)
        for op, d in ((user, 0), (self.flow.load, 2), (self.flow.fill, 2)):
            _limit(op, d, index - (count - 1))


def _limit(op: Operation, d: int, passes: Affine) -> None:
    """Leave nothing of an instruction's box along a dimension where `passes` is below 1."""
    assert isinstance(op, ConvOp | CopyOp)
    box = op.box.data
    limit = (*box.limit[:d], passes * box.bound[d], *box.limit[d + 1 :])
    op.properties["box"] = attribute_of(replace(box, limit=limit))


class _Program(ProgramModel):
    """What a program's weights, its WRAM and its time allow."""

    def __init__(self, program: ProgramOp, target: Target) -> None:
        super().__init__(program, target)
        self.cores = target.chip.clusters * target.cluster.cores
        self.rate = target.core.iodma.bytes_per_cycle
        self.turns = max(1, int(self.cores * self.rate / target.memory("dram").port_bytes_per_cycle))
        """With so many turns the cores of each fill the port."""

    def run(self) -> None:
        shares = sorted(self.pieces_of(Share), key=self.child)
        if not shares:
            return
        placed: list[_Place] = []
        for part in PARTS:
            placed = self.placed(shares, int(part * self.room["wram"]))
            if self.has_room(placed):
                break
        while placed and not self.has_room(placed):
            placed.pop()
        block, gone = self.program.body.block, {op for place in placed for op in place.share.replaced}
        anchors = [self.anchor(place.position, gone) for place in placed]
        for place, anchor in zip(placed, anchors, strict=True):
            loop = place.share.loop(place.turns, ceil_div(self.cores, place.turns))
            block.insert_ops_before(loop, anchor)

    def anchor(self, position: int, gone: Set[Operation]) -> Operation:
        """The first child from a position on that no share takes the place of."""
        behind = (self.code.operations[each] for each in self.children if each >= position)
        return next(op for op in behind if op not in gone)

    def placed(self, shares: Sequence[Share], capacity: int) -> list[_Place]:
        """Shares in the order in which they are needed, or their first pieces, where and in how many turns they are
        loaded: before the first child from which on there is room for them."""
        found: list[_Place] = []
        taken, first, now = self.taken.copy(), 0, 0.0
        sure = [share for share in shares if self.full(share) <= SURE * self.begins[self.child(share)]]
        for share in shares:
            child, own = self.child(share), self.code.numbers[share.buffer.buffer]
            without = taken.copy()
            self.take(without, own, -1)
            behind = [each for each in sure if self.child(each) > child]
            place = self.whole(share, without, first, now, capacity, behind) if share in sure else None
            if place is None:
                place, without = self.first_pieces(share, taken - self.taken + self.used, first, now, capacity), taken
            if place is not None:
                first, now, taken = self.children.index(place.position), place.end, without
                taken[first : child + 1] += place.share.bytes
                found.append(place)
        return found

    def whole(
        self, share: Share, taken: NDArray[np.int64], first: int, now: float, capacity: int, behind: Sequence[Share]
    ) -> _Place | None:
        """All pieces of a share, from the first child on with room for them; None where that is in its own unit."""
        child = self.child(share)
        full = np.flatnonzero(taken[: child + 1] + share.bytes > capacity)
        start = max(first, int(full[-1]) + 1 if full.size else 0)
        turns, end = self.loaded(share, start, now, behind)
        while start <= child:
            barrier = next(stop for stop in self.ends if stop > start)
            if barrier > child or end <= self.begins[barrier]:
                break
            start = barrier
            turns, end = self.loaded(share, start, now, behind)
        if start > child or self.units[start] >= self.units[child]:
            return None
        return _Place(share, self.children[start], turns, end)

    def first_pieces(
        self, share: Share, taken: NDArray[np.int64], first: int, now: float, capacity: int
    ) -> _Place | None:
        """As many pieces of a share that is too large as there is room and time for, in the section of its layer; none
        where one core fills the port, for what the first layers wait for would have half of it.  (One core with as many
        bytes a cycle as DRAM, 8 MiB of SRAM, int8: a layer of BERT of 512 tokens takes 629,734 cycles, and 647,027 with
        such pieces.)"""
        if self.rate >= self.target.memory("dram").port_bytes_per_cycle:
            return None
        child = self.child(share)
        first = max(first, *(stop for stop in (0, *self.ends) if stop <= child))
        for count in range(min(capacity // share.piece_bytes, prod(share.counts) - 1), 0, -1):
            try:
                pieces = FirstPieces(share, count)
            except Refused:
                return None
            full = np.flatnonzero(taken[: child + 1] + pieces.bytes > capacity)
            start = max(first, int(full[-1]) + 1 if full.size else 0)
            if start > child or self.units[start] >= self.units[child]:
                continue
            left = FIRST * (self.begins[child] - max(now, self.begins[start]))
            if self.full(pieces) <= left:
                end = now + self.full(pieces)
                return _Place(pieces, self.children[start], self.most_turns(pieces, left), end)
        return None

    def loaded(self, share: Share, start: int, now: float, behind: Sequence[Share]) -> tuple[int, float]:
        """In how many turns a share is loaded from a child on, if those before are done by now, and when that ends: the
        most with which it and, at full speed, all those behind it take at most `PATIENCE` of the time left for each, so
        that other loads have the port."""
        begin = max(now, self.begins[start])
        last = [*accumulate(self.full(each) for each in behind)]
        left = min(
            PATIENCE * (self.begins[self.child(each)] - begin) - before
            for each, before in zip((share, *behind), (0.0, *last), strict=True)
        )
        turns = self.most_turns(share, left)
        return turns, begin + share.bytes * turns / self.rate

    def most_turns(self, share: Share, cycles: float) -> int:
        """The most turns in which a share is loaded in so many cycles; those that fill the port where none are."""
        turns = self.cores
        while turns > self.turns and share.bytes * turns / self.rate > cycles:
            turns = max(self.turns, turns // 2)
        return turns

    def full(self, share: Share) -> float:
        """Cycles that a share takes with the port full."""
        return share.bytes * self.turns / self.rate

    def child(self, share: Share) -> int:
        """The number of the child that needs a share."""
        return self.child_of(share.flow.fill)

    # ------------------------------------------------------------ children of the program

    @cached_property
    def begins(self) -> list[float]:
        """When each child begins at the earliest, as a chain or as DRAM brings loads; and when the last one ends."""
        return [0.0, *map(max, self.chain, self.loads)]

    # ------------------------------------------------------------ room

    @cached_property
    def taken(self) -> NDArray[np.int64]:
        """The bytes of WRAM that are taken at each child, by buffers that are filled during the unit before theirs."""
        found = np.zeros(len(self.children), np.int64)
        for number in self.uses("wram"):
            self.take(found, number, 1)
        return found

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """The bytes of WRAM that are taken at each child, by buffers that are filled no earlier than they must."""
        found = np.zeros(len(self.children), np.int64)
        for number in self.uses("wram"):
            self.take(found, number, 1, early=0)
        return found

    def take(self, taken: NDArray[np.int64], number: int, times: int, *, early: int = 1) -> None:
        """Count a buffer, `early` units before its own."""
        used = [self.index[path[0].position] for path in self.uses("wram")[number]]
        start = bisect_left(self.units, self.units[min(used)] - early) if early else min(used)
        taken[start : max(used) + 1] += times * aligned(self.code.buffers[number].total_bytes)

    def has_room(self, placed: Sequence[_Place]) -> bool:
        """Whether WRAM has places for these shares beside all other buffers."""
        gone = {self.code.numbers[place.share.buffer.buffer] for place in placed if place.share.replaced}
        added = [(each.position, self.children[self.child(each.share)], each.share.bytes) for each in placed]
        return self.has_places("wram", gone, added)


@dataclass(frozen=True)
class _Place:
    """Where a share is loaded: before the child at a position, in so many turns; and when the next may begin."""

    share: Share
    position: int
    turns: int
    end: float


def _inner(function: Affine) -> Affine:
    """The same function one loop further in."""
    return replace(function, loops=(0, *function.loops) if function.loops else ())
