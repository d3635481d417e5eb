"""Which counter each instruction signals, and how far a counter has come after any of its executions.

The signals of a slot are counted from the last barrier.  Where all instructions that signal a slot run on one engine
and stand, in every body that holds several of them, in children of one stage, the loops just repeat their sequence:
the count after an execution at indices i is `first + sum(i_l * each_l)`, with `each_l` the signals of one iteration
of loop l and `first` the count after the first execution.  With different stages it would not be affine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from frustum.backend.loop_tree import Instruction
from frustum.dialects.isa.program import Affine


@dataclass(frozen=True)
class Slots:
    """The slot of every instruction that signals; cores and clusters have slots of their own."""

    of: Mapping[int, int]
    core_slots: int
    cluster_slots: int

    def used(self, cores: int) -> int:
        """Physical slots of a cluster."""
        return self.core_slots * cores + self.cluster_slots


def separate_slots(instructions: Sequence[Instruction], signalling: Iterable[int]) -> Slots:
    """A slot for each: no wait is ever for more than it needs."""
    of: dict[int, int] = {}
    used = [0, 0]
    for number in signalling:
        kind = instructions[number].on_core
        of[number] = used[kind]
        used[kind] += 1
    return Slots(of, used[True], used[False])


def shared_slots(instructions: Sequence[Instruction], signalling: Iterable[int]) -> Slots:
    """The fewest slots that textual order and the first that agrees give."""
    slots: tuple[list[_Slot], list[_Slot]] = ([], [])
    of: dict[int, int] = {}
    for number in signalling:
        instruction = instructions[number]
        mine = slots[instruction.on_core]
        slot = next((s for s in mine if s.agrees(instruction)), None)
        if slot is None:
            slot = _Slot(len(mine), instruction.queue)
            mine.append(slot)
        slot.take(instruction)
        of[number] = slot.number
    return Slots(of, len(slots[True]), len(slots[False]))


@dataclass
class _Slot:
    number: int
    queue: object
    stages: dict[int, int] = field(default_factory=dict)
    """Of each body that holds a signal: the stage of the children that hold one."""

    def agrees(self, instruction: Instruction) -> bool:
        if instruction.queue != self.queue:
            return False
        return all(self.stages.get(step.body, step.stage) == step.stage for step in instruction.path[1:])

    def take(self, instruction: Instruction) -> None:
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
