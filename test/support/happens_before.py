"""An oracle for synchronisation: what a program with addresses and events orders, by enumeration.

It shares no code with the compiler.  A program is expanded to the executions of every unit of the chip; an execution
happens before another if the order of its engine or a wait says so, or through others.  `check` finds every pair of
executions that touch the same bytes, one of them writing, and are not ordered as in the program.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

from frustum.dialects.isa.operations import BinaryOp, CopyOp, PoolOp, UnaryOp
from frustum.dialects.isa.sync import BarrierOp, ExternalOp, ProgramOp, RepeatOp

CORE_ENGINES = ("iodma", "mvdma", "matrix", "vector")
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


@dataclass
class Instance:
    """One execution of an instruction, on all its units."""

    op: object
    index: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass
class Touch:
    """Bytes [start, stop) of one memory; `copy` names the buffer and the iteration whose copy it is.

    Of a rolling buffer: `slack`, and the `run` of its loop; no copies, `copy` tells iterations apart.
    `sent`: by a copy of a buffer of the program's body to itself in another cluster; a cluster sends what it made.
    `stored`: by the cluster's DMA, into a buffer of DRAM; clusters store different elements of it.
    `made`: by a core's copy that alone writes the buffer, but for sends, and writes no element of a copy twice.
    `elements`: offsets in a copy of the buffer of the bytes that are touched; None where they are not known.
     `is_early`: nothing has written this copy before.
    """

    place: tuple
    start: int
    stop: int
    writes: bool
    copy: tuple
    slack: int | None = None
    run: int = 0
    sent: bool = False
    stored: bool = False
    made: bool = False
    elements: frozenset[int] | None = None
    is_early: bool = False


def conflict(a: Touch, b: Touch, *, same_instruction: bool, same_unit: bool) -> bool:
    """Whether a, the first in program order, has to be complete before b starts."""
    if not (a.writes or b.writes) or a.stop <= b.start or b.stop <= a.start:
        return False
    if a.copy[0] is b.copy[0] and None not in (a.elements, b.elements) and not a.elements & b.elements:
        return False
    if a.sent and b.sent and a.copy[0] is b.copy[0]:
        return False  # the clusters' own parts of the map are disjoint
    if a.stored and b.stored and a.copy[0] is b.copy[0] and not same_unit:
        return False  # each element of a tensor is stored once
    if b.made and a.copy == b.copy and a.sent and a.writes:
        return False  # what one cluster sends another does not make
    if b.made and a.copy == b.copy and not a.writes:  # what nothing has written nobody has read
        return not a.is_early and (a.elements is None or b.elements is None or bool(a.elements & b.elements))
    if a.slack is None or a.copy[0] is not b.copy[0]:
        # the units of one instruction have disjoint parts of a copy
        return same_unit or not same_instruction or a.copy != b.copy
    passes = b.copy[1] - a.copy[1]
    if same_instruction and not same_unit:
        return passes >= a.slack
    return passes >= 0 if a.writes and not b.writes else passes >= a.slack



def elements_of(op, name: str, index: tuple[int, ...], unit) -> frozenset[int] | None:
    """Offsets in its buffer of the bytes that an operand touches; None where it is a ring, or no box says so."""
    view, cluster, core = getattr(op, f"{name.rstrip('_')}_view").data, unit[0], unit[1] or 0
    spans = spans_of(op, name)
    if spans is None or view.wrap is not None:
        return None
    found = set(range(view.offset.at(index, cluster, core), view.offset.at(index, cluster, core) + SIZES[view.element]))
    for span, stride in zip(spans, view.strides, strict=True):
        nominal = span.start.at(index, cluster, core)
        start, stop = nominal, nominal + span.extent
        if getattr(op, "fill", None) is None or name != "dst":
            start, stop = max(start, 0), min(stop, span.bound)
        if span.limit is not None:
            stop = min(stop, span.limit.at(index, cluster, core))
        found = {offset + (p - nominal) * stride for offset in found for p in range(start, stop)}
    return frozenset(found)


def spans_of(op, name: str):
    """The positions of an operand's four dimensions; None where they are not said here."""
    if isinstance(op, CopyOp):
        return None if op.expand is not None and name == "src" else op.box.data.spans
    if isinstance(op, UnaryOp | BinaryOp) or name in ("out", "acc", "residual"):
        return op.box.data.spans
    if isinstance(op, PoolOp):
        return (*op.box.data.spans[:2], op.rows.data, op.cols.data)
    return None


def sections(program: ProgramOp) -> list[list[Instance]]:
    """The executions of each section in program order."""
    found: list[list[Instance]] = [[]]
    for op in program.body.block.ops:
        if isinstance(op, BarrierOp):
            found.append([])
        else:
            _run(op, (), (), found[-1])
    return found


def _run(op, index, counts, out):
    if isinstance(op, RepeatOp):
        children = [child for child in op.body.block.ops if hasattr(child, "stage")]
        stages = [child.stage.value.data for child in children]
        count = op.count.value.data
        for now in range(count + max(stages, default=0)):
            for child, stage in zip(children, stages, strict=True):
                if 0 <= now - stage < count:
                    _run(child, (*index, now - stage), (*counts, count), out)
    elif hasattr(op, "waits"):
        out.append(Instance(op, index, counts))


class Chip:
    def __init__(self, clusters: int, cores: int) -> None:
        self.clusters, self.cores = range(clusters), range(cores)
        self._made: dict = {}
        self.section: set = set()

    def units(self, op) -> list[tuple[int, int | None]]:
        if op.engine_of() in CORE_ENGINES:
            return [(cluster, core) for cluster in self.clusters for core in self.cores]
        if isinstance(op, CopyOp) and op.multicast is not None:
            return [(0, None)]
        return [(cluster, None) for cluster in self.clusters]

    def touches(self, instance: Instance, unit) -> list[Touch]:
        op, found = instance.op, []
        is_send = isinstance(op, CopyOp) and op.engine.data == "cdma" and op.src is op.dst
        for name, _ in op.VIEWS:
            value = getattr(op, name)
            if value is None:
                continue
            written = name in ("dst", "out", "acc")
            storage = value.owner
            level, block = 0, storage.parent_block()
            while not isinstance(block.parent_op(), ProgramOp):
                level, block = level + 1, block.parent_op().parent_block()
            iteration = 0
            for index, count in zip(instance.index[:level], instance.counts[:level], strict=True):
                iteration = iteration * count + index
            depth = 1 if isinstance(storage, ExternalOp) else storage.depth.value.data
            rolling = None if isinstance(storage, ExternalOp) else storage.rolling
            slack = None if rolling is None else rolling.value.data
            run = iteration // instance.counts[level - 1] if level else 0
            size = storage.bytes.value.data
            start = storage.address.value.data + iteration % depth * size
            elements = elements_of(op, name, instance.index, unit)
            for place in self._places(instance, unit, value.type.memory, name == "dst"):
                copy, sent = (storage, iteration), is_send and level == 0
                stored = written and isinstance(op, CopyOp) and op.engine.data == "gdma" and place == "dram"
                touch = Touch(place, start, start + size, written, copy, slack, run, sent, stored)
                touch.elements = elements
                if isinstance(op, CopyOp):
                    touch.made = written and self.is_made(op, storage)
                found.append(touch)
        return found

    def is_made(self, op, storage) -> bool:
        """Whether in its section a copy from a core alone makes what is in a buffer, each element of a copy once."""
        if op not in self._made:
            uses = [use.operation for use in storage.buffer.uses]
            makers = {
                user for user in uses for name, _ in user.VIEWS
                if name in ("dst", "out", "acc") and getattr(user, name) is storage.buffer and user in self.section
                and not (isinstance(user, CopyOp) and user.src is user.dst and user.engine.data == "cdma")
            }  # fmt: skip
            to_sram = op.engine.data == "mvdma" and storage.buffer.type.memory == "sram"
            self._made[op] = to_sram and storage.rolling is None and makers == {op} and self.is_once(op, storage)
        return self._made[op]

    def is_once(self, op, storage) -> bool:
        """Whether all executions for one copy of the buffer, on all cores of a cluster, write different elements."""
        counts, block, level = [], op.parent_block(), 0
        while not isinstance(block.parent_op(), ProgramOp):
            counts.insert(0, block.parent_op().count.value.data)
            level += bool(level) or block is storage.parent_block()
            block = block.parent_op().parent_block()
        fixed = [range(1)] * level + [range(count) for count in counts[level:]]
        for cluster in self.clusters:
            known: set[int] = set()
            for index in product(*fixed):
                for core in self.cores:
                    mine = elements_of(op, "dst", index, (cluster, core))
                    if mine is None or known & mine:
                        return False
                    known |= mine
        return True

    def _places(self, instance, unit, memory, is_destination):
        op, (cluster, core) = instance.op, unit
        if memory == "dram":
            return ["dram"]
        engine = op.engine_of()
        if memory == "sram":
            multicast = isinstance(op, CopyOp) and op.multicast is not None
            if is_destination and engine == "cdma" and op.peer is not None:
                peer = op.peer.data.at(instance.index, cluster)
                return [("sram", peer)] if peer in self.clusters else []
            everywhere = is_destination and (engine == "cdma" or multicast)
            return [("sram", k) for k in self.clusters] if everywhere else [("sram", cluster)]
        if core is None:
            return [(memory, cluster, k) for k in self.cores]
        return [(memory, cluster, core)]

    def signalled(self, op, unit) -> list[tuple]:
        """The counters a signal of this unit adds to."""
        slot = op.signal.value.data
        if isinstance(op, CopyOp) and op.multicast is not None:
            return [("cluster", slot, k, None) for k in self.clusters]
        kind = "cluster" if unit[1] is None else "core"
        return [(kind, slot, *unit)]

    def awaited(self, wait, unit) -> list[tuple]:
        """The counters a wait of this unit looks at."""
        cluster, core = unit
        if wait.scope == "own":
            return [("cluster" if core is None else "core", wait.slot, cluster, core)]
        if wait.scope == "cluster":
            assert core is not None
            return [("cluster", wait.slot, cluster, None)]
        if wait.scope == "cores":
            return [("core", wait.slot, cluster, k) for k in self.cores]
        if wait.scope == "all_cores":
            return [("core", wait.slot, c, k) for c in self.clusters for k in self.cores]
        return [("cluster", wait.slot, c, None) for c in self.clusters]


def happens_before(chip: Chip, instances: list[Instance]):
    """Executions (instance, unit) in program order, and for each the set of those before it, as bits.

    Fails if a wait can never hold, or asks for something that is not earlier in the program (a deadlock).
    """
    executions = [(n, unit) for n, instance in enumerate(instances) for unit in chip.units(instance.op)]
    signals = defaultdict(list)
    for e, (n, unit) in enumerate(executions):
        if instances[n].op.signal is not None:
            for counter in chip.signalled(instances[n].op, unit):
                signals[counter].append((e, instances[n].op.engine_of(), unit))
    for counter, all_signals in signals.items():
        assert len({(engine, unit) for _, engine, unit in all_signals}) == 1, (
            f"{counter}: signals of several engines"
        )
    before: list[int] = []
    last: dict = {}
    for e, (n, unit) in enumerate(executions):
        op, engine = instances[n].op, (instances[n].op.engine_of(), unit)
        bits = 0
        if engine in last:
            bits |= before[last[engine]] | 1 << last[engine]
        last[engine] = e
        for wait in op.waits.data if op.waits is not None else ():
            value = wait.value.at(instances[n].index, unit[0], unit[1] or 0)
            for counter in chip.awaited(wait, unit) if value > 0 else ():
                assert value <= len(signals[counter]), f"{op}: waits for ever"
                source = signals[counter][value - 1][0]
                assert executions[source][0] < n, f"{op}: waits for what comes later"
                bits |= before[source] | 1 << source
        before.append(bits)
    return executions, before


def check(program: ProgramOp, clusters: int, cores: int) -> int:
    """Fails on two conflicting executions in no order; how many conflicting pairs there are."""
    chip, pairs = Chip(clusters, cores), 0
    for instances in sections(program):
        executions, before = happens_before(chip, instances)
        chip.section, chip._made = {instance.op for instance in instances}, {}
        places = defaultdict(list)
        for e, (n, unit) in enumerate(executions):
            for touch in chip.touches(instances[n], unit):
                places[touch.place].append((e, n, unit, touch))
        for touches in places.values():
            known: set = set()
            for *_, touch in touches:
                touch.is_early = touch.copy not in known
                if touch.writes:
                    known.add(touch.copy)
            for i, (e, n, unit, a) in enumerate(touches):
                for f, m, other, b in touches[i + 1 :]:
                    same = {"same_instruction": instances[n].op is instances[m].op, "same_unit": unit == other}
                    if n == m or not conflict(a, b, **same):
                        continue
                    pairs += 1
                    assert before[f] >> e & 1, (
                        f"race of {instances[n].op} {instances[n].index} on {unit} "
                        f"and {instances[m].op} {instances[m].index} on {other}"
                    )
    return pairs


def check_sharing(program: ProgramOp, clusters: int, cores: int) -> None:
    """In program order, between the first write and the last use of a copy of a buffer no other has its bytes."""
    chip = Chip(clusters, cores)
    time, uses = 0, {}
    for instances in sections(program):
        for instance in instances:
            time += 1
            for unit in chip.units(instance.op):
                for touch in chip.touches(instance, unit):
                    kept = touch.copy if touch.slack is None else (touch.copy[0], "run", touch.run)
                    if not touch.writes and kept not in uses:
                        continue
                    first, _, _ = uses.get(kept, (time, 0, None))
                    uses[kept] = (first, time, (touch.place[0], touch.start, touch.stop))
    known = sorted(uses.values(), key=lambda use: use[:2])
    for i, (_, last, (memory, start, stop)) in enumerate(known):
        for first, _, (other, begin, end) in known[i + 1 :]:
            overlap = memory == other and begin < stop and start < end
            assert not (overlap and first <= last), "two buffers in the same bytes at the same time"
