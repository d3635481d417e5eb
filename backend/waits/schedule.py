"""The pass that makes the engines wait for each other: events and the counts that instructions wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from frustum.backend.waits.aliasing import Place, aliases_of
from frustum.backend.waits.counters import Counts, Slots, Units, covers, separate_slots, shared_slots
from frustum.backend.waits.dependences import Hold, Need, find_dependences
from frustum.backend.waits.loop_tree import Buffer, Instruction
from frustum.backend.waits.read_code import Code, Section, read_code, target_of
from frustum.dialects.isa.program import Wait
from frustum.dialects.isa.sync import ProgramOp, WaitOp
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit


@dataclass(frozen=True)
class Schedule(ModulePass):
    """Derive all synchronisation from the buffers.

    Before: instructions in program order, buffers with addresses.  After: whatever must not be reordered is ordered by
    the instructions' engines or by `signal` and `waits`; instructions that follow a producer running ahead of them
    have an `fisa.wait` in front.  Raises DoesNotFit where a section needs more event slots than a cluster has.

    Every section (from barrier to barrier) starts with all counters at 0 and uses the slots anew.  Each instruction
    that others wait for has a slot of its own, if there are enough; else instructions of one engine share.
    Source: `dependences.py` says what waits for what and why that never deadlocks; `counters.py` how it is counted.
    """

    name = "frustum-schedule"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in op.walk():
            if isinstance(program, ProgramOp):
                _schedule(read_code(program, target.cluster.cores), target)


@dataclass(frozen=True)
class Events:
    """The signal and the waits of each instruction of a section, and the waits to put in front of others."""

    signals: tuple[int | None, ...]
    waits: tuple[tuple[Wait, ...], ...]
    holds: tuple[tuple[Hold, tuple[Wait, ...]], ...]


def events_of(
    instructions: Sequence[Instruction],
    buffers: Sequence[Buffer],
    sharing: Mapping[int, Sequence[int]],
    units: Units,
    event_slots: int,
    where: str,
) -> Events:
    """The events of one section; `sharing` as `aliases_of` finds it."""
    dependences = find_dependences(instructions, buffers, sharing, units)
    signalling = sorted({need.producer for need in dependences.all_needs()})
    slots = _slots(instructions, signalling, units, event_slots, where)
    counts = Counts(instructions, slots)
    return Events(
        tuple(slots.of.get(number) for number in range(len(instructions))),
        tuple(_waits(needs, slots, counts) for needs in dependences.needs),
        tuple((hold, _waits(hold.needs, slots, counts)) for hold in dependences.holds),
    )


def _slots(
    instructions: Sequence[Instruction], signalling: Sequence[int], units: Units, available: int, where: str
) -> Slots:
    slots = separate_slots(instructions, signalling)
    if slots.used(units.cores) > available:
        slots = shared_slots(instructions, signalling, units.cores, available)
    if slots.used(units.cores) > available:
        what = f"events ({slots.core_slots} for each of {units.cores} cores, {slots.cluster_slots} for the cluster)"
        raise DoesNotFit(what, where, f"{slots.used(units.cores)} slots", f"{available} event slots", "events")
    return slots


def _waits(needs: Sequence[Need], slots: Slots, counts: Counts) -> tuple[Wait, ...]:
    waits = [Wait(slots.of[n.producer], n.scope, counts.after(n.producer, n.level, n.back)) for n in needs]
    kinds = [counts.on_core(n.producer) for n in needs]
    numbered = range(len(waits))
    return tuple(
        waits[n]
        for n in numbered
        if not any(m != n and kinds[m] == kinds[n] and _includes(waits[m], waits[n], m < n) for m in numbered)
    )


def _includes(a: Wait, b: Wait, first: bool) -> bool:
    """Whether waiting for a is waiting for b; of two equal waits, whether a is the first."""
    if a.slot != b.slot or not covers(a.scope, b.scope):
        return False
    more = (a.value - b.value).base, *(a.value - b.value).loops
    return min(more) >= 0 and (any(more) or a.scope != b.scope or first)


def _schedule(code: Code, target: Target) -> None:
    units = Units(target.chip.clusters, target.cluster.cores)
    places = [_place(code, number) for number in range(len(code.buffers))]
    for number, section in enumerate(code.sections):
        used = {access.buffer for instruction in section.instructions for access in instruction.accesses}
        sharing = aliases_of(section.instructions, {buffer: places[buffer] for buffer in used})
        slots = target.cluster.event_slots
        events = events_of(section.instructions, code.buffers, sharing, units, slots, f"section {number}")
        _write(code, section, events)


def _place(code: Code, number: int) -> Place:
    storage, buffer = code.storage[number], code.buffers[number]
    if storage.address is None:
        raise VerifyException(f"'{storage.name}': no address; run frustum-allocate before frustum-schedule")
    start = storage.address.value.data
    return buffer.memory, start, start + buffer.total_bytes


def _write(code: Code, section: Section, events: Events) -> None:
    for operation, signal, waits in zip(section.operations, events.signals, events.waits, strict=True):
        operation.set_signal(signal)
        operation.set_waits(waits)
    for hold, waits in events.holds:
        anchor = code.operations[hold.position]
        block = anchor.parent_block()
        assert block is not None
        block.insert_op_before(WaitOp(engine=hold.engine, stage=hold.stage, waits=waits), anchor)
