"""The pass that lets cores take the next layer's weights before they store a layer's last results.

A core's transfers between SRAM and its memories stand in one queue.  A store waits for what is computed; behind it
stand the weights of the next layer, which wait for nothing: they could have been moved while the matrix unit works.
So a layer's weights, where they are dealt to the cores, are moved in front of the stores of a layer before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from frustum.backend.early_weights import Pieces, ProgramModel, Refused, outermost, programs_of, read_at
from frustum.backend.waits.read_code import target_of
from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.isa.instruction import Instruction, attribute_of, integer
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine, Box, Memory, View
from frustum.dialects.isa.sync import AllocOp, RepeatOp
from frustum.dialects.target import Target
from frustum.passes.lower import weight_slots as ws
from frustum.passes.lower.executions import enclosing_counts

REACH = 6
"""Places in front of stores, at most, that are looked at for the weights of a layer, from the nearest on.  Measured on
shufflenet f16, `default`: 51,525 cycles with 6, 12 and 24, 51,563 with 3, 51,636 with 1; squeezenet 43,033 with all."""
MOST_SRAM = 16
"""Weights that are more than this part of SRAM stay in pieces.  Measured on shufflenet f16, `default`: 51,525 cycles
with 4, 8 and 16, 52,379 with 64, with which more stay."""
COMPUTING = ("matrix", "vector")
CHILD = 0
"""The level of a loop that is a child of the program."""


@dataclass(frozen=True)
class FillsAhead(ModulePass):
    """Move weights from SRAM to WRAM in front of the stores of a layer before their own.

    Before: buffers are symbols; weights go piece by piece into SRAM and from there to WRAM, in the loops of their
    layer.  After: of some layers all pieces of a core have places in a buffer of the program's body; the weights are
    loaded into SRAM as a whole, outside all loops (so that `frustum-hoist-loads` can move the load); and the copies to
    WRAM stand in front of a store of a layer before: each pass of that layer's loop moves its share of the pieces.

    1. A layer is one of them only if its cores share out its weights, all clusters the same.
    2. Copies stand where the model of costs has the core's transfers idle for so long, and the weights loaded.
    3. SRAM and WRAM have room for them beside all other buffers; a trial packs all.
    """

    name = "frustum-fills-ahead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in programs_of(op):
            _Program(program, target).run()


class HeldWhole(Pieces):
    """The weights of a flow: in SRAM as a whole, and `count` pieces in each core."""

    def __init__(self, flow: ws.Flow, target: Target) -> None:
        super().__init__(flow, target)
        box, is_for_all = flow.fill.box.data, flow.load.multicast is not None or target.chip.clusters == 1
        if not is_for_all or len(self.counts) > 1 or flow.load.parent is not flow.fill.parent or any(box.limit):
            raise Refused("they are no pieces of what all clusters have")
        self.count: int = prod(self.counts)
        moved = [d for d, start in enumerate(box.start) if start.loops]
        if self.count > 1 and not (len(moved) == 1 and self._ends(box, *moved)):
            raise Refused("pieces behind the last one are not empty")
        self.strides: tuple[int, ...] = flow.load.src_view.data.strides
        pairs = zip(box.bound, self.strides, strict=True)
        self.whole_bytes: int = sum((n - 1) * stride for n, stride in pairs if n > 1) + self.slots.element_bytes
        if min(self.strides) < 0:
            raise Refused("they lie backwards")

    def _ends(self, box: Box, d: int) -> bool:
        """Whether pieces with numbers from `count` on lie behind the map's end."""
        start = box.start[d]
        return start.loops[CHILD] * self.count + start.base >= box.bound[d] and min(start.core, start.cluster) >= 0

    def move(self, site: Site) -> None:
        """Put the load in front of the child of a site, and the copies in front of its store."""
        fill, place = self.flow.fill, AllocOp("wram", self.bytes)
        first = outermost(site.store)
        block = first.parent_block()
        assert block is not None
        if self.count > 1:
            self._load_as_a_whole()
        for op in (self.flow.held, self.flow.load):
            op.detach()
        block.insert_ops_before([self.flow.held, self.flow.load, place], first)
        for user in self.users:
            read_at(user, self.buffer.buffer, Affine.index(CHILD, self.piece_bytes if self.count > 1 else 0))
        self.buffer.buffer.replace_all_uses_with(place.buffer)
        self.buffer.detach()
        self.buffer.erase()
        fill.detach()
        body = site.store.parent_block()
        assert body is not None
        body.insert_op_before(self._copies(site), site.store)

    def _load_as_a_whole(self) -> None:
        """One load of all pieces, which lie in SRAM as they do in DRAM."""
        load, fill = self.flow.load, self.flow.fill
        box, view = load.box.data, load.src_view.data
        whole = Box((Affine(),) * len(box.start), box.bound, box.bound)
        load.properties["box"] = attribute_of(whole)
        load.properties["src_view"] = attribute_of(replace(view, offset=self.slots.tensor_start))
        load.properties["dst_view"] = attribute_of(View(view.element, Affine(), self.strides))
        load.properties["stage"] = integer(0)
        place = Affine()
        for start, stride in zip(fill.box.data.start, self.strides, strict=True):
            place = place + start * stride
        fill.properties["src_view"] = attribute_of(View(view.element, place, self.strides))
        self.flow.held.properties["bytes"] = integer(aligned(self.whole_bytes))
        self.flow.held.properties["depth"] = integer(1)

    def _copies(self, site: Site) -> Operation:
        """The copy to WRAM of all pieces, as it stands at a site."""
        fill, stage = self.flow.fill, site.store.stage.value.data
        each = ceil_div(self.count, site.passes)
        fill.properties["stage"] = integer(stage if each == 1 else 0)
        if self.count == 1:
            if site.passes > 1:
                box = fill.box.data
                once = Affine(box.bound[0]) - Affine.index(CHILD, box.bound[0])
                fill.properties["box"] = attribute_of(replace(box, limit=(once, *box.limit[1:])))
            return fill
        number = Affine.index(CHILD, each) if site.passes > 1 else Affine()
        if each > 1:
            number = number + Affine.index(1 if site.passes > 1 else CHILD)
        box, source, own = fill.box.data, fill.src_view.data, fill.dst_view.data
        starts = tuple(_with(start, number) for start in box.start)
        fill.properties["box"] = attribute_of(replace(box, start=starts))
        fill.properties["src_view"] = attribute_of(replace(source, offset=_with(source.offset, number)))
        place = own.offset + number * self.piece_bytes
        fill.properties["dst_view"] = attribute_of(replace(own, offset=place))
        return fill if each == 1 else RepeatOp(each, Region(Block([fill])), stage=stage)


@dataclass
class Site:
    """A store of a layer, in front of which weights may be moved; in how many passes it is carried out; and for how
    many cycles the queue of a core's transfers is idle there, as far as is known."""

    child: int
    store: CopyOp
    passes: int
    idle: float


class _Program(ProgramModel):
    """What a program's memories, queues and time allow."""

    def run(self) -> None:
        found = list(self.chosen())
        while found and not all(self.has_room(found, memory) for memory in ("sram", "wram")):
            found.remove(max(found, key=lambda each: each[0].whole_bytes))
        for pieces, site in found:
            pieces.move(site)

    def chosen(self) -> Iterator[tuple[HeldWhole, Site]]:
        """Pieces in the order in which they are needed, each at the nearest site that is idle for so long."""
        for pieces in sorted(self.pieces_of(HeldWhole), key=lambda each: self.child_of(each.flow.fill)):
            child, cycles = self.child_of(pieces.flow.fill), pieces.bytes / self.target.core.mvdma.bytes_per_cycle
            if pieces.whole_bytes * MOST_SRAM > self.room["sram"]:
                continue
            near = [each for each in self.sites if each.child < child][: -REACH - 1 : -1]
            site = next((each for each in near if each.idle >= cycles and self.is_possible(child, each)), None)
            if site is not None:
                site.idle -= cycles
                yield pieces, site

    def is_possible(self, child: int, site: Site) -> bool:
        """Whether a child's weights are in SRAM by the time of a site, and no barrier is between them."""
        is_there = self.loads[child] <= max(self.chain[site.child], self.loads[site.child])
        return is_there and self.section[site.child] == self.section[child]

    @cached_property
    def section(self) -> list[int]:
        """Of each child the number of its section."""
        return [bisect_right(self.ends, child) for child in range(len(self.children))]

    @cached_property
    def sites(self) -> list[Site]:
        found, before = list[Site](), 0.0
        for number, child in enumerate(self.model.children):
            op = self.code.operations[child.position]
            if isinstance(op, RepeatOp):
                store = next((each for each in op.body.block.ops if _is_store(each)), None)
                if isinstance(store, CopyOp):
                    found.append(Site(number, store, op.count.value.data, self._idle(op)))
                before = 0.0
            elif isinstance(op, CopyOp) and op.engine.data == "mvdma":
                if _is_store(op):
                    found.append(Site(number, op, 1, before))
                before = 0.0
            elif not isinstance(op, CopyOp):
                before += child.cycles
        return found

    def _idle(self, loop: RepeatOp) -> float:
        """For how many cycles of a loop a core computes more than it moves."""
        busy = dict.fromkeys((*COMPUTING, "mvdma"), 0.0)
        for op in loop.walk():
            if isinstance(op, Instruction) and (engine := op.engine_of()) in busy:
                busy[str(engine)] += self.model.busy_cycles(op) * prod(enclosing_counts(op))
        return max(busy[engine] for engine in COMPUTING) - busy["mvdma"]

    def has_room(self, found: Sequence[tuple[HeldWhole, Site]], memory: Memory) -> bool:
        """Whether a memory has places for these pieces beside all other buffers."""
        gone = {self.code.numbers[(p.buffer if memory == "wram" else p.flow.held).buffer] for p, _ in found}
        starts = [self.children[site.child] for _, site in found]
        if memory == "sram":
            added = [(start, start, aligned(p.whole_bytes)) for start, (p, _) in zip(starts, found, strict=True)]
        else:
            stops = [self.children[self.child_of(pieces.flow.fill)] for pieces, _ in found]
            sizes = [pieces.bytes for pieces, _ in found]
            added = [*zip(starts, stops, sizes, strict=True)]
        return self.has_places(memory, gone, added)


def _is_store(op: Operation) -> bool:
    """Whether this is a core's copy to SRAM."""
    return isinstance(op, CopyOp) and op.engine.data == "mvdma" and getattr(op.dst.type, "memory", "") == "sram"


def _with(function: Affine, number: Affine) -> Affine:
    """A function of one loop with another number in place of its index."""
    factor = function.loops[CHILD] if function.loops else 0
    return replace(function, loops=()) + number * factor
