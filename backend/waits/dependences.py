# Tests: test/backend/waits/test_synchronisation.py
"""Which execution of which producer each instruction of a section has to wait for.

Two accesses of one buffer depend on each other if one of them writes, and so do accesses of two buffers that share
memory.  The order is the program order.  For a consumer y and a producer x whose innermost common body is at level m,
and a buffer that a body at level k <= m allocates:

1. m > k: the loops between k and m meet the same copy again.  The last execution of x before y is `iterations_back`
   iterations of loop m-1 earlier.
2. m = k, x before y in the same iteration: that execution.  All earlier ones are before it.
3. m = k, x after y: another copy of the buffer.  The copy is the same again `depth` iterations of loop k-1 later, so
   the execution `depth` iterations earlier; if x is delayed by more than that, y destroys what x still needs.
4. Two buffers that share memory, however deep: as 1 with k = 0, for every execution meets the same bytes.
5. x = y on several units: taken as disjoint in one copy of a buffer, as the lowering makes it; dependent as in 3.
6. A *rolling* buffer keeps its bytes: y at i may read what x wrote in any earlier iteration.  Where x is after y it
   so needs x as in 1, `iterations_back` earlier, not `depth`.  What y overwrites counts as in 3: the iterations up
   to `depth` earlier, as if each had a copy, and in 5 units are disjoint in the iterations between.
7. Two *sends* through one buffer of the program's body, copies from it to itself in other clusters: independent.  A
   cluster sends only what it made of the map that the buffer holds, and nobody else makes or sends that.

In 1 and 4, x may run *ahead* of y (x has the smaller stage): y at index i then needs x at `min(i + d, count - 1)`.
That is no affine value, so a `Hold` takes the wait: an instruction of y's engine before y's child with the stage that
makes its own index that of x.  It runs in each pass in which x has just run, and y follows it in its engine's order.
Also in 1 and 4, at the start of the loop y needs the last x of the loop's previous run, `max(i - back, -1)` counted on
across runs.  With `back` above 1 that is not affine either, so a `Hold` in front of the loop waits for that run.
8. Stores of one engine into a tensor in DRAM: independent.
9. A core's copy that writes no position of a copy of the buffer twice (`Access.disjoint`), where nothing else writes
   the buffer but sends: what was read or sent of that copy before were other positions.  So it waits as in 3, for
   the uses of what the copy held before.

10. Cases 2 and 3, where it is known which bytes executions touch (`regions.py`): y needs x only up to the last
   execution inside that touches bytes which y's own execution touches, on the units that do, as far as a scope can say.
   A buffer of which that may be asked (`partly`) orders nothing else: z may have waited for some of x, on some units.

Where an index is negative, the value in `counters.py` asks for executions of earlier iterations of an outer loop: at
least those needed, and all of them before y.  Every wait is for something earlier in the program order, and counters
never fall; so running in program order never stops, and no other order can (no deadlock).

Left out are needs that others imply: with z later than x, and y waiting for z, y need not wait for x
- if z and x run on one engine, whose order is that of the program,
- or if z depends on x through the same bytes and so has waited itself (by induction over the program order).  Not
  through a rolling buffer: there z may have waited for an execution of x `depth` iterations older only; not in
  case 9, where z has not waited; and not through a buffer of case 10.
A need of case 10 implies others only if it is for some execution of the iteration at all of y's indices, and only needs
of what is before the first one there: x in another child of their body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import itemgetter
from typing import NamedTuple

from xdsl.utils.exceptions import VerifyException

from frustum.backend.waits.counters import Reach, Units, covers, reach, scope_of
from frustum.backend.waits.loop_tree import (
    Access,
    Buffer,
    Instruction,
    common_level,
    ends_later,
    iterations_back,
)
from frustum.backend.waits.regions import Regions
from frustum.dialects.isa.program import Engine, Scope

MOST_USERS = 64
"""Of a buffer whose parts are waited for: each of them is compared with all others."""


class Need(NamedTuple):
    """A wait: for the producer's executions up to the consumer's own indices in the loops above `level`, `back` fewer
    of loop `level - 1`, and the last of all loops inside.

    Or with `upto` inside only up to the number there, for each execution of the consumer inside (-1: none).
    """

    producer: int
    level: int
    back: int
    scope: Scope
    upto: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Hold:
    """Waits to stand in front of the operation at `position`, in its body, on the engine of the consumer."""

    position: int
    engine: Engine
    stage: int
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class Dependences:
    """`needs` of each instruction, and what has to wait in front of others."""

    needs: tuple[tuple[Need, ...], ...]
    holds: tuple[Hold, ...]

    def all_needs(self) -> Iterator[Need]:
        for needs in (*self.needs, *(hold.needs for hold in self.holds)):
            yield from needs


def find_dependences(
    instructions: Sequence[Instruction],
    buffers: Sequence[Buffer],
    sharing: Mapping[int, Sequence[int]],
    units: Units,
) -> Dependences:
    """The dependences of one section; `sharing` as `aliases_of` finds it."""
    section = _Section(instructions, buffers, sharing, units)
    needs: list[tuple[Need, ...]] = []
    holds: dict[tuple[int, Engine, int], list[Need]] = {}
    for y, consumer in enumerate(instructions):
        found = section.candidates(y)
        needs.append((*(c.need() for c in found if c.back >= 0), *section.turns(y)))
        for level, stage, need in (hold for c in found for hold in c.holds(consumer)):
            waiting = holds.setdefault((consumer.path[level].position, consumer.engine, stage), [])
            if need not in waiting:
                waiting.append(need)
    return Dependences(tuple(needs), tuple(Hold(*key, tuple(value)) for key, value in holds.items()))


class _Candidate(NamedTuple):
    """A dependence on `producer` through `held` by an access of `wanted`; `scope` None: the engine's own order.

    `outer`, in cases 1 and 4, is how many iterations of loop `level - 2` ago y needs x at the start of loop
    `level - 1`; in the others 0.
    """

    producer: int
    level: int
    back: int
    outer: int
    scope: Scope | None
    writes: bool
    held: int
    wanted: int
    upto: tuple[int, ...] | None = None
    """As in `Need`: case 10."""
    shared: Reach = Reach.CHIP
    """What both accesses may touch."""
    met: Reach = Reach.CHIP
    """How far apart the units are that touch the same bytes."""

    @property
    def is_always(self) -> bool:
        """Whether it is for an execution of the same iteration at all of the consumer's indices."""
        return self.upto is None or min(self.upto) >= 0

    def need(self) -> Need:
        assert self.scope is not None
        return Need(self.producer, self.level, self.back, self.scope, self.upto)

    def holds(self, consumer: Instruction) -> Iterator[tuple[int, int, Need]]:
        """Level, stage and need of what has to wait in front of the consumer."""
        assert self.scope is not None
        if self.back < 0:
            stage = consumer.path[self.level].stage + self.back
            yield self.level, stage, Need(self.producer, self.level, 0, self.scope)
        outside = self.level - 1
        if self.back > 1 and self.outer and prod(consumer.counts[:outside]) > self.outer:
            stage = consumer.path[outside].stage
            yield outside, stage, Need(self.producer, outside, self.outer, self.scope)


@dataclass
class _Section:
    instructions: Sequence[Instruction]
    buffers: Sequence[Buffer]
    sharing: Mapping[int, Sequence[int]]
    units: Units
    accesses: dict[int, list[tuple[int, Access]]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    maker: dict[int, int | None] = field(default_factory=dict)
    """Of each buffer the copy of case 9 that writes it; None where others do."""
    mixed: set[int] = field(default_factory=set)
    """Bodies whose children have several stages."""
    partly: set[int] = field(default_factory=set)
    """Buffers of which parts are waited for (case 10)."""
    regions: Regions = field(init=False)

    def __post_init__(self) -> None:
        stages: dict[int, int] = {}
        for number, instruction in enumerate(self.instructions):
            for access in _one_for_each_buffer(instruction.accesses):
                self.accesses.setdefault(access.buffer, []).append((number, access))
                if access.writes:
                    self.written.add(access.buffer)
                    if not self._is_send(access.buffer, instruction):
                        self._note_maker(number, access)
            for step in instruction.path[1:]:
                if stages.setdefault(step.body, step.stage) != step.stage:
                    self.mixed.add(step.body)
        self.regions = Regions(self.instructions, self.buffers, self.units)
        self.partly.update(buffer for buffer in self.accesses if self._is_in_parts(buffer))

    def _is_in_parts(self, buffer: int) -> bool:
        """Whether instructions may touch parts of a buffer only, as units of a core that make some channels each, or
        clusters that send to each other."""
        own, users = self.buffers[buffer], self.accesses[buffer]
        if buffer not in self.written or own.rolling or len(users) > MOST_USERS:
            return False
        writers = [self.instructions[number] for number, access in users if access.writes]
        sends = [each for each in writers if each.engine == "cdma" and not self._is_send(buffer, each)]
        is_shared = {"matrix", "vector"} <= {each.engine for each in writers} or len(sends) > 1
        return is_shared or any(len(self.instructions[n].counts) > own.level for n, _ in users)

    def _note_maker(self, number: int, access: Access) -> None:
        """Count one more instruction among those that write a buffer, sends left out."""
        buffer = self.buffers[access.buffer]
        is_apart = access.disjoint <= buffer.level and not access.reads and not buffer.rolling
        alone = is_apart and access.buffer not in self.maker
        self.maker[access.buffer] = number if alone else None

    def candidates(self, y: int) -> list[_Candidate]:
        """What instruction y has to wait for, without what is implied."""
        found: list[_Candidate] = []
        for access in _one_for_each_buffer(self.instructions[y].accesses):
            own: list[_Candidate] = []
            shared = self.sharing.get(access.buffer, ())
            several = (c for held in (access.buffer, *shared) for c in self._through(y, access, held))
            for candidate in sorted(several, key=self._lateness, reverse=True):  # few remain, found early
                if not self._implied(candidate, own):
                    own.append(candidate)
            found += own
        return [c for c in found if c.scope is not None and not self._implied(c, found)]

    def turns(self, y: int) -> Iterator[Need]:
        """Of an instruction that takes turns: for the last pass before its own, of itself or of the one before it."""
        own = self.instructions[y]
        if not own.takes_turns or self.units.clusters * self.units.cores == 1:
            return
        scope: Scope = "cores" if self.units.clusters == 1 else "all_cores"
        before = [x for x in range(y) if self.instructions[x].takes_turns]
        if before:
            yield Need(before[-1], 0, 0, scope)
        if own.counts[0] > 1:
            yield Need(y, 1, 1, scope)

    def _through(self, y: int, access: Access, held: int) -> Iterator[_Candidate]:
        """Dependences through one buffer, the nearest first; those behind a nearer write are implied by it."""
        if not access.writes and held not in self.written:
            return
        users = self.accesses.get(held, [])
        here = bisect_left(users, y, key=itemgetter(0))
        alone = (held == access.buffer or self.buffers[held].depth == 1) and not self.buffers[held].rolling
        hiding: _Candidate | None = None
        for x in reversed(users[:here]):
            if hiding is not None and self._common(x[0], hiding.producer) <= hiding.level:
                break
            candidate = self._candidate(x, y, access)
            if candidate is not None:
                yield candidate
                if alone and hiding is None and self._hides_earlier(candidate):
                    hiding = candidate
        following = []
        for x in users[here:]:
            if hiding is not None and self._common(x[0], y) <= hiding.level:
                break
            candidate = self._candidate(x, y, access)
            if candidate is not None:
                following.append(candidate)
        yield from reversed(following)

    def _candidate(self, x: tuple[int, Access], y: int, access: Access) -> _Candidate | None:
        number, other = x
        if not (other.writes or access.writes):
            return None
        producer, consumer = self.instructions[number], self.instructions[y]
        if other.buffer == access.buffer and self._are_apart(other.buffer, producer, consumer):
            return None
        shared = met = self._reach(access, other)
        scope = scope_of(producer, consumer, shared, self.units)
        if number == y and scope is None:
            return None
        if other.buffer == access.buffer:
            flows = other.writes and access.reads
            is_new = self._is_new(y, x)
            place = _in_one_buffer(producer, consumer, self.buffers[access.buffer], flows, is_new=is_new)
        else:
            place = _in_shared_memory(producer, consumer)
        if place is None or not _ever(producer, *place):
            return None
        upto = None
        if other.buffer == access.buffer and number != y and self._is_partial(other.buffer, place):
            meeting = self.regions.meeting(number, y, other.buffer)
            if meeting is not None and max(meeting.upto) < 0:
                return None
            if meeting is not None:
                met, scope = meeting.reach, scope_of(producer, consumer, meeting.reach, self.units)
                upto = None if min(meeting.upto) == prod(producer.counts[place[0] :]) - 1 else meeting.upto
        return _Candidate(number, *place, scope, other.writes, other.buffer, access.buffer, upto, shared, met)

    def _is_partial(self, buffer: int, place: tuple[int, int, int]) -> bool:
        """Whether a need through one buffer may be for some of the producer's executions inside (case 10)."""
        level, _, outer = place
        return buffer in self.partly and level == self.buffers[buffer].level and not outer

    def _are_apart(self, buffer: int, *instructions: Instruction) -> bool:
        """Whether these write different parts of a buffer (cases 7 and 8)."""
        return self._are_sends(buffer, *instructions) or self._are_stores(buffer, *instructions)

    def _are_stores(self, buffer: int, *instructions: Instruction) -> bool:
        """Whether these are stores of one engine into a tensor (case 8)."""
        return self.buffers[buffer].memory == "dram" and all(
            i.engine == "gdma" and any(a.buffer == buffer and a.writes for a in i.accesses) for i in instructions
        )

    def _are_sends(self, buffer: int, *instructions: Instruction) -> bool:
        """Whether these are sends through a buffer that is no loop's (case 7)."""
        return all(self._is_send(buffer, i) for i in instructions)

    def _is_send(self, buffer: int, i: Instruction) -> bool:
        """Whether this is a send through a buffer that is no loop's."""
        is_in_no_loop = self.buffers[buffer].level == 0
        return is_in_no_loop and i.engine == "cdma" and {a.buffer for a in i.accesses} == {buffer}

    def _is_new(self, y: int, x: tuple[int, Access]) -> bool:
        """Whether y writes positions of a buffer that x, a reader or a send, has not used in the same copy (case 9)."""
        number, other = x
        return self.maker.get(other.buffer) == y and (
            not other.writes or self._is_send(other.buffer, self.instructions[number])
        )

    def _reach(self, a: Access, b: Access) -> Reach:
        memory = self.buffers[a.buffer].memory
        return max(reach(memory, a.everywhere), reach(memory, b.everywhere))

    def _lateness(self, c: _Candidate) -> tuple[int, int, int]:
        return c.level, -c.back, self.instructions[c.producer].position

    def _hides_earlier(self, c: _Candidate) -> bool:
        """Whether everything before the producer's child of their body is also before the producer."""
        body = self.instructions[c.producer].path[c.level].body
        is_last = c.writes and c.back == 0 and body not in self.mixed and self.maker.get(c.held) != c.producer
        return is_last and c.held not in self.partly

    def _common(self, a: int, b: int) -> int:
        return common_level(self.instructions[a].path, self.instructions[b].path)

    def _implied(self, c: _Candidate, others: Iterable[_Candidate]) -> bool:
        return any(self._implies(other, c) for other in others if other is not c)

    def _implies(self, z: _Candidate, x: _Candidate) -> bool:
        if (z.producer, z.level, z.back, z.outer) == (x.producer, x.level, x.back, x.outer):
            if (z.scope, z.upto) == (x.scope, x.upto):
                return (z.held, z.wanted) < (x.held, x.wanted)  # keep one of equal needs
            if x.scope is None or (z.scope is not None and covers(z.scope, x.scope)):
                return _covers_parts(z.upto, x.upto)
        return self._after(z, x) and (self._same_queue(z, x) or self._chained(z, x))

    def _after(self, z: _Candidate, x: _Candidate) -> bool:
        """Whether the execution needed of z is after that of x, whatever the consumer's indices."""
        if z.upto is not None and not (z.is_always and z.back == 0):
            return False
        if z.level != x.level:
            return z.level > x.level and z.back == 0
        if z.back < 0 or (z.back > 0 and x.back < z.back):
            return False
        first, last = self.instructions[x.producer], self.instructions[z.producer]
        if z.upto is not None and common_level(first.path, last.path) > z.level:
            return False  # they take turns
        if z.back and not _covers_earlier_run(z, x, ends_later(last, first, z.level)):
            return False
        if z.back == x.back:
            return ends_later(last, first, z.level)
        a, b = first.path[x.level], last.path[z.level]
        return (a.stage - x.back, a.position) < (b.stage - z.back, b.position)

    def _same_queue(self, z: _Candidate, x: _Candidate) -> bool:
        if self.instructions[z.producer].queue != self.instructions[x.producer].queue:
            return False
        return x.scope is None or (z.scope is not None and covers(z.scope, x.scope))

    def _chained(self, z: _Candidate, x: _Candidate) -> bool:
        if z.wanted != x.wanted or z.producer == x.producer or not (z.writes or x.writes):
            return False
        if z.held == x.held and (self.buffers[z.held].rolling or z.held in self.partly):
            return False
        if z.met < z.shared and x.shared is Reach.CHIP:
            return False  # z here has waited for x here
        if z.held == x.held and self._are_apart(z.held, *(self.instructions[c.producer] for c in (z, x))):
            return False
        if z.held == x.held and self.maker.get(z.held) == z.producer:
            return False
        if z.held == x.held and z.held != z.wanted:
            return self.buffers[x.held].depth == 1
        return z.held == z.wanted or x.held == x.wanted or x.held in self.sharing.get(z.held, ())


def _covers_parts(wide: tuple[int, ...] | None, narrow: tuple[int, ...] | None) -> bool:
    """Whether the executions that one need is for include those of the other."""
    if wide is None or narrow is None:
        return wide is None
    return all(a >= b for a, b in zip(wide, narrow, strict=True))


def _covers_earlier_run(z: _Candidate, x: _Candidate, z_ends_later: bool) -> bool:
    """Whether z is after x also at the start of their loop, where both are in an earlier run of it."""
    if x.outer and not z_ends_later:
        return False
    if z.back == 1:
        return True
    return z.outer <= (x.outer or 1) if z.outer else not x.outer


def _ever(x: Instruction, level: int, back: int, outer: int) -> bool:
    """Whether any execution has so many iterations before it."""
    if outer:
        return x.counts[level - 1] > back or prod(x.counts[: level - 1]) > outer
    return prod(x.counts[:level]) > back


def _in_one_buffer(
    x: Instruction, y: Instruction, buffer: Buffer, flows: bool, *, is_new: bool
) -> tuple[int, int, int] | None:
    """`level, back, outer` of cases 1, 2, 3, 5, 6 and 9; `flows`: y reads what x writes; `is_new`: y writes positions
    that x has not used in the same copy."""
    level = buffer.level
    stays = buffer.rolling and flows
    if x is not y:
        common = common_level(x.path, y.path)
        if not is_new:
            if common > level:
                outer = buffer.depth if common == level + 1 and not stays else 1
                return common, iterations_back(x.path[common], y.path[common]), outer
            if _is_first(x, y, level):
                return level, 0, 0
            if stays and level:
                return level, iterations_back(x.path[level], y.path[level]), 1
        _check_depth(x, y, buffer)
    return (level, buffer.depth, 0) if level else None


def _in_shared_memory(x: Instruction, y: Instruction) -> tuple[int, int, int] | None:
    """`level, back, outer` of case 4."""
    level = common_level(x.path, y.path)
    if level:
        return level, iterations_back(x.path[level], y.path[level]), 1
    return (0, 0, 0) if x.position < y.position else None


def _is_first(x: Instruction, y: Instruction, level: int) -> bool:
    """Whether x is before y in one iteration of their body."""
    if level == 0:
        return x.path[0].position < y.path[0].position
    return iterations_back(x.path[level], y.path[level]) <= 0


def _check_depth(x: Instruction, y: Instruction, buffer: Buffer) -> None:
    level = buffer.level
    if level and x.counts[level - 1] > buffer.depth:
        least = iterations_back(x.path[level], y.path[level])
        word = "slack" if buffer.rolling else "depth"
        if buffer.depth < least:
            raise VerifyException(
                f"a buffer of {buffer.bytes} bytes in {buffer.memory} has {word} {buffer.depth}, but {x.engine} (stage "
                f"{x.path[level].stage}) still uses a copy when {y.engine} (stage {y.path[level].stage}) takes it "
                f"again: it needs {word} {least}"
            )


def _one_for_each_buffer(accesses: Iterable[Access]) -> list[Access]:
    merged: dict[int, Access] = {}
    for a in accesses:
        if a.buffer not in merged:
            merged[a.buffer] = a
            continue
        b = merged[a.buffer]
        both = (a.reads or b.reads) and (a.writes or b.writes)
        merged[a.buffer] = Access(a.buffer, a.writes or b.writes, a.everywhere or b.everywhere, both)
    return list(merged.values())
