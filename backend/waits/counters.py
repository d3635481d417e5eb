# Tests: test/backend/waits/test_synchronisation.py
"""Which counter each instruction signals, and how far a counter has come after any of its executions.

The signals of a slot are counted from the last barrier.  Where all instructions that signal a slot run on one engine
and stand, in every body that holds several of them, in children of one stage, the loops just repeat their sequence:
the count after an execution at indices i is `first + sum(i_l * each_l)`, with `each_l` the signals of one iteration
of loop l and `first` the count after the first execution.  With different stages it would not be affine.

A wait has a scope, whose counters it asks for: those of the units of a producer that touch the same bytes as one unit
of the consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod

from frustum.backend.waits.loop_tree import Instruction
from frustum.dialects.isa.program import Affine, Engine, Memory, Scope

TURNS = 3
"""A loop takes at most this part of an engine's slots where fewer are enough, so that loops take turns."""


@dataclass(frozen=True)
class Slots:
    """The slot of every instruction that signals; cores and clusters have slots of their own."""

    of: Mapping[int, int]
    core_slots: int
    cluster_slots: int

    def used(self, cores: int) -> int:
        """Physical slots of a cluster."""
        return self.core_slots * cores + self.cluster_slots


def separate_slots(
    instructions: Sequence[Instruction], signalling: Iterable[int], together: Iterable[tuple[int, int]] = ()
) -> Slots:
    """A slot for each: no wait is ever for more than it needs; but one for two of an engine that are better
    `together`, which then both signal, where the slot's count stays affine."""
    groups: dict[int, _Slot] = {}
    for pair in together:
        for number in pair:
            if number not in groups:
                groups[number] = _Slot()
                groups[number].take(number, instructions[number])
        first, second = (groups[number] for number in pair)
        if first is not second and all(first.agrees(instructions[number]) for number in second.members):
            for number in second.members:
                first.take(number, instructions[number])
                groups[number] = first
    numbers: dict[int, int] = {}
    of: dict[int, int] = {}
    used = [0, 0]
    for number in sorted({*signalling, *groups}):
        kind = instructions[number].on_core
        leader = groups[number].members[0] if number in groups else number
        if leader not in numbers:
            numbers[leader] = used[kind]
            used[kind] += 1
        of[number] = numbers[leader]
    return Slots(of, used[True], used[False])


def agree(a: Instruction, b: Instruction) -> bool:
    """Whether the count of a slot that both signal is affine."""
    slot = _Slot()
    slot.take(0, a)
    return slot.agrees(b)


def least_slots(instructions: Sequence[Instruction]) -> dict[tuple[Engine, bool], tuple[int, int]]:
    """For each queue the fewest slots with which `shared_slots` could do if all these instructions signal: outside
    loops and for the loops.  Of instructions that follow each other outside loops it is the largest of each."""
    found: dict[tuple[Engine, bool], tuple[int, int]] = {}
    for queue, kind in _queues(instructions, range(len(instructions))).items():
        found[queue] = (int(bool(kind.straight)), kind.least - bool(kind.straight))
    return found


def shared_slots(
    instructions: Sequence[Instruction],
    signalling: Iterable[int],
    cores: int,
    available: int,
    together: Iterable[tuple[int, int]] = (),
) -> Slots:
    """Slots that instructions of one engine share; no more than available, if that is enough.

    A wait that reaches back beyond the start of its loop asks for what the slot counted before that loop: so the
    loops of a section take turns with the slots of an engine, and those that come soon after each other have slots
    of their own.  Outside loops nothing reaches back: all these instructions of an engine have one slot.  Two that
    are better `together` have one slot where another of their loop does not need it.
    """
    partners = {consumer: producer for producer, consumer in together}
    queues = _queues(instructions, sorted({*signalling, *partners}))
    _share_out(list(queues.values()), cores, available)
    of: dict[int, int] = {}
    used = [0, 0]
    for queue in queues.values():
        of.update((number, used[queue.on_core] + slot) for number, slot in queue.slots(partners).items())
        used[queue.on_core] += queue.allowed
    return Slots(dict(sorted(of.items())), used[True], used[False])


def _queues(
    instructions: Sequence[Instruction], signalling: Iterable[int]
) -> dict[tuple[Engine, bool], _Queue]:
    queues: dict[tuple[Engine, bool], _Queue] = {}
    for number in signalling:
        instruction = instructions[number]
        queues.setdefault(instruction.queue, _Queue(instruction.on_core)).add(number, instruction)
    return queues


def _share_out(queues: Sequence[_Queue], cores: int, available: int) -> None:
    """Give each queue the slots it needs, and what is left to those with the least beyond that."""
    for queue in queues:
        queue.allowed = queue.least
    left = available - sum(queue.allowed * (cores if queue.on_core else 1) for queue in queues)
    growing = [queue for queue in queues if queue.allowed < queue.most]
    while growing:
        queue = min(growing, key=lambda q: q.allowed / q.least)
        left -= cores if queue.on_core else 1
        if left < 0:
            return
        queue.allowed += 1
        if queue.allowed == queue.most:
            growing.remove(queue)


@dataclass
class _Queue:
    """The signals of one engine: those outside loops, and for each outermost loop the slots with their members."""

    on_core: bool
    straight: list[int] = field(default_factory=list)
    loops: dict[int, list[_Slot]] = field(default_factory=dict)
    allowed: int = 0

    def add(self, number: int, instruction: Instruction) -> None:
        if len(instruction.path) == 1:
            self.straight.append(number)
            return
        slots = self.loops.setdefault(instruction.path[0].position, [])
        slot = next((s for s in slots if s.agrees(instruction)), None)
        if slot is None:
            slot = _Slot()
            slots.append(slot)
        slot.take(number, instruction)

    @property
    def least(self) -> int:
        return int(bool(self.straight)) + max(map(len, self.loops.values()), default=0)

    @property
    def most(self) -> int:
        return int(bool(self.straight)) + sum(
            len(slot.members) for slots in self.loops.values() for slot in slots
        )

    def slots(self, partners: Mapping[int, int]) -> dict[int, int]:
        """Each signal's slot, among those of the queue; that of its partner if it has one before it."""
        first = int(bool(self.straight))
        of = dict.fromkeys(self.straight, 0)
        turn, available = 0, self.allowed - first
        for slots in self.loops.values():
            parts = _split([slot.members for slot in slots], available // TURNS)
            taken: set[int] = set()
            for part in sorted(parts, key=lambda part: not any(partners.get(n) in of for n in part)):
                wanted = (of[partners[n]] for n in part if partners.get(n) in of)
                slot = next((each for each in wanted if each >= first and each not in taken), None)
                while slot is None or slot in taken:
                    slot, turn = first + turn % available, turn + 1
                taken.add(slot)
                of.update(dict.fromkeys(part, slot))
        return of


def _split(parts: list[list[int]], most: int) -> list[list[int]]:
    """Parts split in halves, every second member in each, the largest first, as long as they are not too many."""
    while len(parts) < most:
        largest = max(parts, key=len)
        if len(largest) == 1:
            break
        at = parts.index(largest)
        parts = [*parts[:at], largest[::2], largest[1::2], *parts[at + 1 :]]
    return parts


@dataclass
class _Slot:
    members: list[int] = field(default_factory=list)
    stages: dict[int, int] = field(default_factory=dict)
    """Of each body that holds a signal: the stage of the children that hold one."""

    def agrees(self, instruction: Instruction) -> bool:
        return all(self.stages.get(step.body, step.stage) == step.stage for step in instruction.path[1:])

    def take(self, number: int, instruction: Instruction) -> None:
        self.members.append(number)
        self.stages.update((step.body, step.stage) for step in instruction.path[1:])


@dataclass
class _Signals:
    """Signals of one slot in one iteration of one body."""

    total: int = 0
    before_child: int = 0
    child: int = -1


class Counts:
    """The count of an instruction's slot after its executions in a section."""

    def __init__(self, instructions: Sequence[Instruction], slots: Slots) -> None:
        self._instructions = instructions
        self._first: dict[int, int] = {}
        self._signals: dict[tuple[bool, int, int], _Signals] = {}
        self._slots = slots
        for number in sorted(slots.of):
            self._first[number] = self._add(number)

    def after(self, number: int, level: int, back: int) -> Affine:
        """After the execution with the waiting instruction's indices in the loops above `level`, `back` fewer of loop
        `level - 1`, and the last of all loops inside."""
        instruction = self._instructions[number]
        each = self._each(number)
        inside = sum(
            (count - 1) * e for count, e in zip(instruction.counts[level:], each[level:], strict=True)
        )
        earlier = back * each[level - 1] if level else 0
        return Affine(self._first[number] + inside - earlier, each[:level])

    def from_last(self, number: int, level: int, execution: int) -> int:
        """How many signals the slot has more after an execution inside, a number of those in an iteration of the body
        at `level`, than after the last one there, so not above 0; -1: before the first."""
        counts, each = self._instructions[number].counts[level:], self._each(number)[level:]
        found = -sum((count - 1) * e for count, e in zip(counts, each, strict=True))
        if execution < 0:
            return found - 1
        for count, e in zip(reversed(counts), reversed(each), strict=True):
            execution, index = divmod(execution, count)
            found += index * e
        return found

    def before(self, number: int) -> Affine:
        """Before an execution, at its own indices."""
        return Affine(self._first[number] - 1, self._each(number))

    def are_together(self, a: int, b: int) -> bool:
        """Whether two instructions signal the same slot."""
        return self.on_core(a) == self.on_core(b) and self._slots.of.get(a, -1) == self._slots.of.get(b, -2)

    def on_core(self, number: int) -> bool:
        """Whether the instruction's slot is one of the cores."""
        return self._instructions[number].on_core

    def _key(self, number: int, body: int) -> tuple[bool, int, int]:
        return (self.on_core(number), self._slots.of[number], body)

    def _each(self, number: int) -> tuple[int, ...]:
        path = self._instructions[number].path
        return tuple(self._signals[self._key(number, step.body)].total for step in path[1:])

    def _add(self, number: int) -> int:
        """Count one more signalling instruction, in textual order; the count after its first execution."""
        instruction = self._instructions[number]
        first = 1
        for level, step in enumerate(instruction.path):
            signals = self._signals.setdefault(self._key(number, step.body), _Signals())
            if signals.child != step.position:
                signals.child, signals.before_child = step.position, signals.total
            signals.total += prod(instruction.counts[level:])
            first += signals.before_child
        return first


class Reach(IntEnum):
    """Where the bytes lie that one unit touches."""

    CORE = 0
    CLUSTER = 1
    CHIP = 2


@dataclass(frozen=True, slots=True)
class Units:
    """How many clusters a chip has, and cores a cluster."""

    clusters: int
    cores: int


def reach(memory: Memory, everywhere: bool) -> Reach:
    """What an access touches; `everywhere` as in `Access`."""
    if memory == "dram":
        return Reach.CHIP
    if memory == "sram":
        return Reach.CHIP if everywhere else Reach.CLUSTER
    return Reach.CLUSTER if everywhere else Reach.CORE


def scope_of(producer: Instruction, consumer: Instruction, shared: Reach, units: Units) -> Scope | None:
    """The scope of the consumer's wait; None where the order of one engine is enough.

    `shared` is the wider reach of the two accesses.  The signals of a multicast arrive at every cluster.
    """
    if producer.queue == consumer.queue and _one_unit(producer, shared, units):
        return None
    if producer.on_core:
        return _scope_of_cores(consumer, shared, units)
    if shared is Reach.CHIP and units.clusters > 1 and not producer.multicast:
        return "all_clusters"
    return "cluster" if consumer.on_core else "own"


def covers(wide: Scope, narrow: Scope) -> bool:
    """Whether waiting with scope `wide` includes waiting with scope `narrow`, on the same counter."""
    return wide == narrow or wide in ("all_cores", "all_clusters") or (wide, narrow) == ("cores", "own")


def _one_unit(instruction: Instruction, shared: Reach, units: Units) -> bool:
    if instruction.multicast:
        return True
    one_cluster = shared < Reach.CHIP or units.clusters == 1
    one_core = not instruction.on_core or shared is Reach.CORE or units.cores == 1
    return one_cluster and one_core


def _scope_of_cores(consumer: Instruction, shared: Reach, units: Units) -> Scope:
    if shared is Reach.CHIP and units.clusters > 1:
        return "all_cores"
    if not consumer.on_core:
        return "cores"
    if shared is Reach.CORE or units.cores == 1:
        return "own"
    return "cores"
