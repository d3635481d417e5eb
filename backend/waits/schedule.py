"""The pass that makes the engines wait for each other: events and the counts that instructions wait for.

Aliases are buffers at bytes that another one had before, or has by turns with it.  A buffer's first write waits for
the last uses of the buffers before it at its bytes.  These waited for those before them in turn: so only the latest
buffer at each byte counts, and a map from addresses to latest buffers finds all in about linear time, however many
buffers share an address one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from frustum.backend.waits.counters import Counts, Slots, Units, agree, covers, separate_slots, shared_slots
from frustum.backend.waits.dependences import Dependences, Hold, Need, find_dependences
from frustum.backend.waits.loop_tree import Buffer, Instruction
from frustum.backend.waits.read_code import Code, Section, read_code, target_of
from frustum.backend.waits.thresholds import Threshold, least_count
from frustum.dialects.isa.program import ZERO, Affine, Memory, Wait
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
    together = list(_better_together(instructions, dependences))
    slots = _slots(instructions, signalling, together, units, event_slots, where)
    counts = Counts(instructions, slots)
    return Events(
        tuple(slots.of.get(number) for number in range(len(instructions))),
        tuple(
            _waits(needs, slots, counts, number, instructions[number].counts)
            for number, needs in enumerate(dependences.needs)
        ),
        tuple((hold, _waits(hold.needs, slots, counts)) for hold in dependences.holds),
    )


def _better_together(instructions: Sequence[Instruction], dependences: Dependences) -> Iterator[tuple[int, int]]:
    """Producers and consumers of one engine whose waits by region are for less if they signal one slot."""
    for number, (consumer, needs) in enumerate(zip(instructions, dependences.needs, strict=True)):
        for need in needs:
            producer = instructions[need.producer]
            if need.upto is not None and producer.queue == consumer.queue and agree(producer, consumer):
                apart, together = (
                    Counts(instructions, Slots({need.producer: 0, number: slot}, 2, 2)) for slot in (1, 0)
                )
                found = (threshold(need, counts, number, consumer.counts).cost for counts in (together, apart))
                if next(found) < next(found):
                    yield need.producer, number


def threshold(need: Need, counts: Counts, number: int, loops: Sequence[int]) -> Threshold:
    """What a consumer in these loops waits for."""
    last = counts.after(need.producer, need.level, need.back)
    if need.upto is None:
        return Threshold(last, 0)
    wanted = [counts.from_last(need.producer, need.level, execution) for execution in need.upto]
    nothing = counts.from_last(need.producer, need.level, -1)
    before = counts.before(number) - last if counts.are_together(need.producer, number) else ZERO
    if any(before.loops[: need.level]) or before.base < 0:
        before = ZERO
    most = Affine(before.base, before.loops[need.level :])
    value, cost = least_count(wanted, nothing, most, loops[need.level :])
    return Threshold(last + Affine(value.base, (0,) * need.level + value.loops), cost)


def _slots(
    instructions: Sequence[Instruction],
    signalling: Sequence[int],
    together: Sequence[tuple[int, int]],
    units: Units,
    available: int,
    where: str,
) -> Slots:
    slots = separate_slots(instructions, signalling, together)
    if slots.used(units.cores) > available:
        slots = shared_slots(instructions, signalling, units.cores, available, together)
    if slots.used(units.cores) > available:
        what = f"events ({slots.core_slots} for each of {units.cores} cores, {slots.cluster_slots} for the cluster)"
        raise DoesNotFit(what, where, f"{slots.used(units.cores)} slots", f"{available} event slots", "events")
    return slots


def _waits(
    needs: Sequence[Need], slots: Slots, counts: Counts, number: int = -1, loops: Sequence[int] = ()
) -> tuple[Wait, ...]:
    """The waits for needs, those by region of an instruction in loops of these counts."""
    waits = [Wait(slots.of[n.producer], n.scope, threshold(n, counts, number, loops).value) for n in needs]
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


Place = tuple[Memory, int, int]
"""Memory, first byte, first byte behind."""


def aliases_of(instructions: Sequence[Instruction], places: Mapping[int, Place]) -> dict[int, list[int]]:
    """For each buffer those that the uses of its bytes have to wait for.

    `places` has every buffer that the instructions of a section use.  A buffer is in use from the first to the last
    child of the program that accesses it.  Of two buffers with bytes in common that are in use one after the other,
    the later one has the earlier one, unless a third had all these bytes between them; two that are in use at the
    same time have each other.  A buffer that nothing in the section writes comes beside the others at its bytes and
    not after them: its reads wait for no reads.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    written: set[int] = set()
    for instruction in instructions:
        child = instruction.path[0].position
        for access in instruction.accesses:
            first.setdefault(access.buffer, child)
            last[access.buffer] = max(child, last.get(access.buffer, child))
            if access.writes:
                written.add(access.buffer)
    found: dict[int, list[int]] = {}
    latest: dict[Memory, _Latest] = {}
    for child, group in groupby(sorted(first, key=first.__getitem__), key=first.__getitem__):
        members = list(group)
        before = [latest.setdefault(places[b][0], _Latest()).under(*places[b][1:]) for b in members]
        for buffer, others in zip(members, before, strict=True):
            if others:
                found[buffer] = sorted(others)
        for buffer in members:
            memory, start, stop = places[buffer]
            for other in latest[memory].under(start, stop):
                if last[other] >= child:
                    _add(found, buffer, other)
                    _add(found, other, buffer)
            latest[memory].put(buffer, start, stop, partial(_stays, last, child if buffer in written else 0))
    return found


def _stays(last: Mapping[int, int], child: int, buffer: int) -> bool:
    """Whether a buffer is still in use at a child of the program."""
    return last[buffer] >= child


def _add(found: dict[int, list[int]], buffer: int, other: int) -> None:
    known = found.setdefault(buffer, [])
    if other not in known:
        known.append(other)


@dataclass
class _Latest:
    """The latest buffers at every byte of one memory: those at `held[n]` from `edges[n]` to the next edge."""

    edges: list[int] = field(default_factory=lambda: [0])
    held: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])

    def under(self, start: int, stop: int) -> set[int]:
        """The latest buffers at any of these bytes."""
        low = bisect_right(self.edges, start) - 1
        high = bisect_left(self.edges, stop)
        return set().union(*self.held[low:high])

    def put(self, buffer: int, start: int, stop: int, stays: Callable[[int], bool]) -> None:
        """Make a buffer the latest at its bytes, beside those that stay."""
        low, high = self._cut(start), self._cut(stop)
        for n in range(low, high):
            kept = (other for other in self.held[n] if stays(other))
            self.held[n] = frozenset((buffer, *kept))
        self._join(low, high)

    def _cut(self, address: int) -> int:
        """The number of the piece that starts here."""
        n = bisect_left(self.edges, address)
        if n == len(self.edges) or self.edges[n] != address:
            self.edges.insert(n, address)
            self.held.insert(n, self.held[n - 1])
        return n

    def _join(self, low: int, high: int) -> None:
        """Forget edges between pieces with the same buffers."""
        for n in range(high - 1, low, -1):
            if self.held[n] == self.held[n - 1]:
                del self.edges[n], self.held[n]
