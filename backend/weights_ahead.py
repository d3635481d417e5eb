"""The pass that lets weights of late layers wait in the cores from early on.

Weights of which every core needs its own, each byte once, need not pass SRAM: the core's IODMA brings them into its
WRAM.  So they wait for no buffer in SRAM and stand behind nothing in the queue of the GDMA, and a layer whose share of
weights has a place of its own in WRAM can have them as early as one likes: while early layers compute and the DRAM's
port has little to do.

Many engines at once would take the port from loads that are waited for (ports serve first come first served): so the
cores take turns, as few at a time as together take `SHARE` of the port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from frustum.backend.memory.cost_model import CostModel
from frustum.backend.memory.interference import Life, interference, life_of
from frustum.backend.memory.packing import pack, usable
from frustum.backend.waits.loop_tree import Path, Step
from frustum.backend.waits.read_code import Code, read_code, target_of, unit_of
from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.isa.instruction import attribute_of, emit
from frustum.dialects.isa.operations import ConvOp
from frustum.dialects.isa.program import MAX_LOOPS, Affine, Box, Copy, View
from frustum.dialects.isa.sync import AllocOp, BarrierOp, FetchOp, ProgramOp, RepeatOp
from frustum.dialects.module import TURNS
from frustum.dialects.target import Target
from frustum.passes.lower import weight_slots as ws
from frustum.passes.lower.executions import enclosing_counts

SHARE = 1.0
"""Of the DRAM's port: what all IODMA engines that load at a time may take."""
LEAST_BYTES = 4096
"""Of a core's share of weights: less is not worth the code."""
SURE = 0.9
"""Weights must be there within this part of the time that goes by before they are needed, as the cost model has it."""


@dataclass(frozen=True)
class WeightsAhead(ModulePass):
    """Bring weights of late layers into WRAM early.

    Before: buffers are symbols; loads from DRAM fill buffers in SRAM, from which each core takes its own weights piece
    by piece.  After: of some layers, from the last one back, as many as WRAM has room for, all pieces of a core have
    places in a buffer of the program's body, and the core's IODMA fills them near the start of an earlier section.

    1. A layer is one of them only if no byte of its weights is needed twice, by two cores or at two times.
    2. What remains of WRAM holds the buffers of any two units that follow each other, as before; and a trial finds
       places for all buffers.
    3. The cost model says when a layer begins and when a section ends: what would not be there in time, or would keep
       a barrier waiting, stays as it is.
    4. The loops of such loads are marked `TURNS`: their outermost loop is over turns of cores, which
       `frustum-schedule` lets begin one after the other.
    """

    name = "frustum-weights-ahead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in [each for each in op.walk() if isinstance(each, ProgramOp)]:
            _Program(program, target).run()


class _Refused(Exception):
    """Why weights stay on their way through SRAM."""


class Share:
    """The weights of a flow as each core needs them: `pieces` of `piece_bytes`, one for each pass of `counts`."""

    def __init__(self, flow: ws.Flow, target: Target) -> None:
        self.flow, self.target = flow, target
        slots = self.slots = ws.Slots(flow, target.chip.clusters, target.cluster.cores)
        buffer = flow.fill.dst.owner
        if not isinstance(buffer, AllocOp) or buffer.parent is not flow.fill.parent:
            raise _Refused("the pieces have a buffer of another loop")
        if {index for index, size in enumerate(slots.sizes) if size > 1} != set(slots.indices):
            raise _Refused("pieces are needed more than once")
        box = flow.fill.box.data
        if len(enclosing_counts(flow.fill)) == MAX_LOOPS or box.limit[2] is not None or box.limit[3] is not None:
            raise _Refused("there is no loop left for turns, or no limit")
        if not slots.runs or self._run_bytes < target.memory("dram").minimum_run_bytes:
            raise _Refused("runs in DRAM are too short")
        self.buffer = buffer
        self.users = [use.operation for use in buffer.buffer.uses if use.operation is not flow.fill]
        if any(not isinstance(op, ConvOp) or op.weight is not buffer.buffer for op in self.users):
            raise _Refused("something else than a convolution reads the pieces")
        self.counts = enclosing_counts(flow.fill)
        self.piece_bytes: int = aligned(buffer.bytes.value.data)
        self.bytes = self.piece_bytes * prod(self.counts)
        self.child = _outermost(flow.fill)
        if self.bytes < LEAST_BYTES:
            raise _Refused("they are few")

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
        total, step = Affine(), 1
        for level in reversed(range(len(self.counts))):
            total, step = total + Affine.index(level, step), step * self.counts[level]
        return total

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
        for user in self.users:
            assert isinstance(user, ConvOp)
            own = user.weight_view.data
            user.properties["weight_view"] = attribute_of(replace(own, offset=own.offset + place))
        self.buffer.buffer.replace_all_uses_with(alloc.buffer)
        for op in (fill, load, self.buffer, self.flow.held):
            op.detach()
            op.erase()
        return [alloc, inner]

    def _in_turns(self, box: Box, at_a_time: int) -> Box:
        """The box inside the loop of turns: empty for cores whose turn it is not."""
        starts, limits = [_inner(start) for start in box.start], [x and _inner(x) for x in box.limit]
        core = Affine(cluster=self.target.cluster.cores, core=1) - Affine.index(0, at_a_time)
        limits[2] = (core + 1) * box.bound[2]
        limits[3] = (-core + at_a_time) * box.bound[3]
        return Box(tuple(starts), box.extent, box.bound, tuple(limits))


class _Program:
    """What a program's late weights, its WRAM and its time allow."""

    def __init__(self, program: ProgramOp, target: Target) -> None:
        self.program, self.target = program, target
        cores = target.chip.clusters * target.cluster.cores
        rate = target.core.iodma.bytes_per_cycle
        most = int(SHARE * target.memory("dram").port_bytes_per_cycle / rate)
        self.at_a_time = min(cores, max(1, most))
        self.turns = ceil_div(cores, self.at_a_time)
        self.cycles_per_byte = self.turns / rate
        """Of what each core needs, with all turns."""

    def run(self) -> None:
        shares = sorted(self.shares(), key=lambda share: self.place_of(share.child))
        if not shares:
            return
        chosen: list[Share] = []
        for share in reversed(shares):
            if self.is_in_time([share, *chosen]) and self.has_room([share, *chosen]):
                chosen.insert(0, share)
        for section, members in self.dealt(chosen) or ():
            anchor = self.sections[section].anchor
            block = self.program.body.block
            for share in members:
                block.insert_ops_before(share.loop(self.turns, self.at_a_time), anchor)

    def shares(self) -> Iterator[Share]:
        for flow in ws.flows(self.program):
            if flow is None or flow.fill.engine.data != "mvdma":
                continue
            try:
                yield Share(flow, self.target)
            except (_Refused, ws.StaysRaw):
                continue

    # ------------------------------------------------------------ time

    @cached_property
    def code(self) -> Code:
        return read_code(self.program)

    @cached_property
    def positions(self) -> dict[Operation, int]:
        return {op: n for n, op in enumerate(self.code.operations)}

    def place_of(self, child: Operation) -> int:
        """The textual position of a child of the program."""
        return self.positions[child]

    @cached_property
    def begins(self) -> dict[int, float]:
        """When each child of the program begins at the earliest, by position: as a chain, or as DRAM brings loads."""
        found: dict[int, float] = {}
        chain = loads = 0.0
        for child in CostModel(self.code, self.target).children:
            found[child.position] = max(chain, loads)
            chain += child.cycles
            loads += sum(transfer.cycles for transfer in child.transfers)
        found[len(self.code.operations)] = max(chain, loads)
        return found

    @cached_property
    def sections(self) -> list[_Window]:
        """Of each section the time it takes, and the operation before which its loads are put."""
        found: list[_Window] = []
        ops = list(self.program.body.block.ops)
        begin, anchor = 0.0, None
        for op in ops:
            if isinstance(op, BarrierOp):
                end = self._begin(self.place_of(op))
                if anchor is not None:
                    found.append(_Window(begin, end, anchor))
                begin, anchor = end, None
            elif anchor is None and not isinstance(op, FetchOp) and self.place_of(op) >= self._first:
                anchor = op
        if anchor is not None:
            found.append(_Window(begin, self._begin(len(self.code.operations)), anchor))
        return found

    @cached_property
    def _first(self) -> int:
        """The position of the first instruction that moves anything."""
        return min(self.begins)

    def _begin(self, position: int) -> float:
        """When the next child from a position on begins."""
        return min(time for at, time in self.begins.items() if at >= position)

    def dealt(self, shares: Sequence[Share]) -> list[tuple[int, list[Share]]] | None:
        """The sections in which shares are loaded, in order; None where one of them would be late."""
        found: list[tuple[int, list[Share]]] = []
        section, now = 0, 0.0
        for share in shares:
            took = share.bytes * self.cycles_per_byte
            while section < len(self.sections):
                window = self.sections[section]
                end = max(now, window.begin) + took
                if end <= window.end:
                    break
                section += 1
            else:
                return None
            if end > SURE * self.begins[self.place_of(share.child)]:
                return None
            now = end
            if not found or found[-1][0] != section:
                found.append((section, []))
            found[-1][1].append(share)
        return found

    def is_in_time(self, shares: Sequence[Share]) -> bool:
        return self.dealt(shares) is not None

    # ------------------------------------------------------------ room

    @cached_property
    def uses(self) -> dict[int, list[tuple[Path, int]]]:
        """Of each buffer in WRAM where it is used, with the unit."""
        found: dict[int, list[tuple[Path, int]]] = {}
        for section in self.code.sections:
            for instruction, operation in zip(section.instructions, section.operations, strict=True):
                for access in instruction.accesses:
                    if self.code.buffers[access.buffer].memory == "wram":
                        found.setdefault(access.buffer, []).append((instruction.path, unit_of(operation)))
        return found

    def has_room(self, shares: Sequence[Share]) -> bool:
        """Whether WRAM has room for these shares beside all other buffers."""
        gone = {self.code.numbers[share.buffer.buffer] for share in shares}
        left = {n: uses for n, uses in self.uses.items() if n not in gone}
        sizes = {n: aligned(self.code.buffers[n].total_bytes) for n in left}
        capacity, taken = usable(self.target.memory("wram").capacity_bytes), sum(share.bytes for share in shares)
        units: dict[int, int] = {}
        for number, uses in left.items():
            for unit in {unit for _, unit in uses}:
                units[unit] = units.get(unit, 0) + sizes[number]
        both = (units[a] + units[b] for a, b in pairwise(sorted(units)))
        if taken + max(both, default=sum(units.values())) > capacity:
            return False
        lives = [life_of(self.code.buffers[n], [path for path, _ in uses]) for n, uses in left.items()]
        for (section, members) in self.dealt(shares) or ():
            start = self.place_of(self.sections[section].anchor)
            for share in members:
                lives.append(Life((Step(0, start, 0),), start, self.place_of(share.child), 0))
        every = [*sizes.values(), *(share.bytes for share in shares)]
        return pack(every, interference(lives), [life.start for life in lives], capacity).peak <= capacity


@dataclass(frozen=True)
class _Window:
    """A section: when it begins and ends, and its first operation that moves something."""

    begin: float
    end: float
    anchor: Operation


def _outermost(op: Operation) -> Operation:
    """The child of the program that holds an operation."""
    while not isinstance(parent := op.parent_op(), ProgramOp):
        assert parent is not None
        op = parent
    return op


def _inner(function: Affine) -> Affine:
    """The same function one loop further in."""
    return replace(function, loops=(0, *function.loops) if function.loops else ())
