"""The pass that lets weights and inputs be loaded before the units that need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from frustum.backend.join_sections import code_bytes
from frustum.backend.load_times import LoadTimes
from frustum.backend.waits.read_code import read_code, target_of
from frustum.dialects.extents import ALIGNMENT_BYTES, ceil_div
from frustum.dialects.isa.instruction import Instruction, value_of
from frustum.dialects.isa.operations import CopyOp, TableOp
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, ProgramOp
from frustum.dialects.module import TURNS
from frustum.dialects.target import Target

CROSSING = 8
"""So many loads may always move over a barrier: `frustum-join-sections` leaves room for their code."""
LOAD_BYTES = 128
"""Of a load's code, with its events: 81 to 99 were measured on resnet50, int8, on a machine of one core."""
WORTH = 1 / 1024
"""Of the program's time: only loads that take longer are worth more code than that."""
LONG = 1 / 128
"""Of the program's time: loads that take longer are put where they keep nothing waiting."""
GAIN = 0.002
"""Of the program's time, as the cost model has it: what another place must be better."""
SURE_GAIN = 0.005
"""The same for short loads behind the load before.  Measured on inception_v1 f16, `default`: 181,475 cycles, with GAIN
183,102; resnet50 int8 on a machine of one core with 8 MiB of SRAM 1,639,397, without such places 1,657,231."""


@dataclass(frozen=True)
class HoistLoads(ModulePass):
    """Move loads of what is in DRAM from the start up to units before their own.

    Before: addresses, no events.  After: a load from DRAM to SRAM outside all loops, of something that no instruction
    writes, stands before the first store of the earliest of the `distance` units before its own at which the last use
    of its bytes is over; the order of such loads stays.  The engine that loads and stores runs in order: a store
    waits for its unit's last computation, and what stands behind it waits too.  Where no such place is, the load
    moves to the start of its own unit if it can.  A few loads move over a barrier, and of those that take longer
    as many as the code of two sections has room for.  Buffers keep their
    addresses.

    A load that takes long could keep others waiting that are needed before it, or leave the engine idle before a
    barrier: it stands at that of these places, of the starts of the units between, of the ends of the sections
    before, and in front of its first use, at which the program takes the fewest cycles by the cost model.
    """

    name = "frustum-hoist-loads"

    distance: int = 3

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        granules = target.memory("sram").capacity_bytes // ALIGNMENT_BYTES
        for program in op.walk():
            if isinstance(program, ProgramOp):
                written = {op.dst for op in program.walk() if isinstance(op, CopyOp)}
                _Program(program, granules, self.distance, written, target).run()


class _Program:
    """Children of a program; of each buffer there how many children stand before it."""

    def __init__(
        self, program: ProgramOp, granules: int, distance: int, written: Set[SSAValue], target: Target
    ) -> None:
        self.granules, self.distance, self.written = granules, distance, written
        self.program, self.target = program, target
        self.children: list[Operation] = []
        self.allocs: dict[AllocOp, int] = {}
        self.moved: set[int] = set()
        self.last = 0
        self.crossed: dict[int, int] = {}
        for op in program.body.block.ops:
            if isinstance(op, AllocOp):
                self.allocs[op] = len(self.children)
            elif not isinstance(op, ExternalOp):
                if isinstance(op, BarrierOp):
                    self.crossed[len(self.children)] = 0
                self.children.append(op)

    def run(self) -> None:
        units = [unit_of(child) for child in self.children]
        places = _Places(self.children, units, self.distance)
        # For each granule of SRAM the first child behind its last use.
        free: NDArray[np.int64] = np.zeros(self.granules, np.int64)
        for number, (child, unit) in enumerate(zip(self.children, units, strict=True)):
            if unit is None:
                continue
            if self.is_early_load(child):
                low, high = granules_of(child.dst.owner)
                behind = self.first_place(int(free[low:high].max()), number)
                place = self.place(places.of[unit], behind, number)
                if self.times.cycles(number) > LONG * self.times.total:
                    place = self.best_place(number, place, places.later(unit), behind)
                else:
                    place = self.in_order(number, place)
                self.last = number + 1 if place is None else place
                if place is not None:
                    self.move(number, child, place)
                    continue
            for low, high in {granules_of(buffer) for buffer in buffers_of(child)}:
                free[low:high] = number + 1

    def first_place(self, free: int, number: int) -> int:
        """The first child before which a load may stand: when its bytes are free, behind barriers that enough loads
        have crossed."""
        counts = [0, 0, *self.crossed.values()]
        is_short = self.times.cycles(number) < WORTH * self.times.total
        full = (
            barrier + 1
            for n, (barrier, count) in enumerate(self.crossed.items())
            if barrier < number and count >= (CROSSING if is_short else self.crossings[n] + counts[n])
        )
        return max(free, *full, 0)

    @cached_property
    def crossings(self) -> list[int]:
        """How many loads may move over each barrier, beyond those that move over the barrier before the one before it:
        of two sections that follow each other, which are in instruction memory together, the first gains what crosses
        the barrier at its end and loses what crosses the barrier at its start, which the other one gains."""
        if not self.crossed:
            return []
        sizes = self.page_bytes
        room = self.target.cluster.instruction_memory_bytes
        left = [room - sizes[0], *(room - one - other for one, other in pairwise(sizes))]
        return [max(CROSSING, each // LOAD_BYTES) for each in left]

    @cached_property
    def page_bytes(self) -> list[int]:
        """What the code of each section takes at most."""
        return code_bytes(self.program, len(self.crossed))

    def in_order(self, number: int, place: int | None) -> int | None:
        """The place of a short load, or where it stands behind the load before it if that takes fewer cycles: in front
        of that one it would keep it waiting until its own bytes are free."""
        if place is None or place >= self.last:
            return place
        behind = next((n for n in range(self.last, number) if n not in self.moved), None)
        cycles = self.times.total if behind is None else self.times.with_moved(number, behind)
        return behind if cycles < (1 - SURE_GAIN) * self.times.with_moved(number, place) else place

    @cached_property
    def times(self) -> LoadTimes:
        return LoadTimes(read_code(self.program), self.target, self.children, self.page_bytes)

    def best_place(self, number: int, first: int | None, others: Sequence[int], behind: int) -> int | None:
        """The place with which the program takes the fewest cycles: the `first` one, others and ends of sections that
        are not before `behind`, in front of the first child that uses what is loaded; None: where the load is."""
        own = self.times.total
        found, least = (None, own) if first is None else (first, self.times.with_moved(number, first))
        if own < (1 - GAIN) * least:
            found, least = None, own
        ends = [end for end in self.crossed if behind <= end < number]
        early = [place for place in others if behind <= place < number]
        for place in dict.fromkeys((*early, *ends, self.first_use(number))):
            if place not in (first, number) and place not in self.moved:
                cycles = self.times.with_moved(number, place)
                # An earlier section that has time for the load leaves time for others in the later one.
                is_earlier = place in ends and cycles <= least and (found is None or place < found)
                if is_earlier or cycles < (1 - GAIN) * least:
                    found, least = place, cycles
        return found

    def first_use(self, number: int) -> int:
        """The first child behind a load, in its section, that uses its buffer; the load where there is none."""
        load = self.children[number]
        assert isinstance(load, CopyOp)
        for place in range(number + 1, len(self.children)):
            child = self.children[place]
            if isinstance(child, BarrierOp):
                return number
            if any(buffer is load.dst.owner for buffer in buffers_of(child)):
                return place
        return number

    def place(self, places: Sequence[int], behind: int, number: int) -> int | None:
        """The child before which a load stands if nothing speaks against it: the first one not before `behind`."""
        place = next((each for each in places if each >= behind), number)
        while place in self.moved:
            place += 1
        return place if place < number else None

    def move(self, number: int, load: CopyOp, place: int) -> None:
        anchor = self.children[place]
        block = load.parent_block()
        assert block is not None
        self.moved.add(number)
        self.times.move(number, place)
        for barrier in self.crossed:
            self.crossed[barrier] += place <= barrier < number
        buffer = load.dst.owner
        assert isinstance(buffer, AllocOp)
        late = [buffer] if self.allocs.get(buffer, -1) > place else []
        self.allocs[buffer] = min(place, self.allocs.get(buffer, -1))
        for op in (*late, load):
            op.detach()
            block.insert_op_before(op, anchor)

    def is_early_load(self, child: Operation) -> TypeGuard[CopyOp]:
        """Whether a child is a copy to SRAM of what nothing in the program writes."""
        if not isinstance(child, CopyOp) or child.engine.data != "gdma":
            return False
        return isinstance(child.src.owner, ExternalOp) and child.src not in self.written


class _Places:
    """Of each unit the children before which its loads may stand: the first stores of units before, its start."""

    def __init__(self, children: Sequence[Operation], units: Sequence[int | None], distance: int) -> None:
        starts: dict[int, int] = {}
        computed: dict[int, int] = {}
        stores: dict[int, int] = {}
        for number, (child, unit) in enumerate(zip(children, units, strict=True)):
            if unit is not None:
                starts.setdefault(unit, number)
                if not isinstance(child, TableOp):
                    computed.setdefault(unit, number)
                if is_store(child):
                    stores.setdefault(unit, number)
        order = list(starts)
        self.of: dict[int, list[int]] = {}
        for k, unit in enumerate(order):
            before = range(max(0, k - distance), k)
            self.of[unit] = [*(stores.get(order[n], starts[order[n + 1]]) for n in before), starts[unit]]
        self._computed, self._order, self._distance = computed, order, distance

    def later(self, unit: int) -> list[int]:
        """The first children of the unit and of those before it that are no tables."""
        k = self._order.index(unit)
        near = self._order[max(0, k - self._distance) : k + 1]
        return [self._computed[each] for each in near if each in self._computed]


def unit_of(child: Operation) -> int | None:
    """The unit of the first instruction in a child that has operands; fetches and tables stay where they are, and so
    do loads that are far from their unit already (`weights_ahead.py`)."""
    return next(
        (
            value_of(op.unit)
            for op in child.walk()
            if isinstance(op, Instruction) and op.VIEWS and TURNS not in op.attributes
        ),
        None,
    )


def is_store(child: Operation) -> bool:
    """Whether a child only copies to DRAM."""
    found = [op for op in child.walk() if isinstance(op, Instruction)]
    return all(isinstance(op, CopyOp) and isinstance(op.dst.owner, ExternalOp) for op in found)


def buffers_of(child: Operation) -> Iterator[AllocOp]:
    """The buffers in SRAM that instructions of a child access."""
    for op in child.walk():
        for operand in op.operands:
            if isinstance(operand.owner, AllocOp) and operand.owner.memory == "sram":
                yield operand.owner


def granules_of(buffer: Operation | Block) -> tuple[int, int]:
    """The pieces of SRAM of the smallest aligned size that a buffer has, with those of all its copies."""
    assert isinstance(buffer, AllocOp)
    if buffer.address is None:
        raise VerifyException(f"'{buffer.name}': no address; run frustum-allocate before frustum-hoist-loads")
    start = buffer.address.value.data
    stop = start + buffer.bytes.value.data * buffer.depth.value.data
    return start // ALIGNMENT_BYTES, ceil_div(stop, ALIGNMENT_BYTES)
