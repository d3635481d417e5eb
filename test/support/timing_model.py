"""A second model of time, bytes and energy, in plain Python.

Written apart from `frustum.runtime`, of which it imports nothing: from what docs/targets.md and docs/ir-isa.md say of
the machine, alone.  It reads the dataclasses of a decoded program and the plain numbers of a target.  One execution of
one instruction on one unit is looked at at a time, one window of the line buffer, one chunk of a transfer; nothing is
vectorised, nothing in closed form.  `model(program, target, page_bytes)` gives the figures that the emulator must have.

Source: docs/techniques/machine.md.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

from frustum.dialects.isa import program as p

CLUSTER_ENGINES = ("gdma", "cdma", "bus", "fetch")
CORE_ENGINES = ("iodma", "mvdma", "matrix", "vector")
COMPUTING = ("matrix", "vector")
INTEGERS = ("i8", "i16", "i32")
SIGNAL, TRY, RELEASE, REQUEST = range(4)
START = ("the code is there", 0, 0)
"""A counter like any other, for the fetch at the start."""


@dataclass
class Figures:
    """What a run takes: cycles, bytes, energy."""

    total: int = 0
    busy: dict = field(default_factory=lambda: defaultdict(int))
    stalled: dict = field(default_factory=lambda: defaultdict(int))
    read: dict = field(default_factory=lambda: defaultdict(int))  # bytes out of each memory
    written: dict = field(default_factory=lambda: defaultdict(int))  # bytes into it
    dram: dict = field(default_factory=lambda: defaultdict(int))  # by class
    macs: dict = field(default_factory=lambda: defaultdict(int))  # by element
    steps: int = 0
    writes: int = 0
    discarded: int = 0
    executions: int = 0

    def energy_pj(self, target):
        """Of each memory and of the products of each type."""
        energy = {m: (self.read[m] + self.written[m]) * memory_of(target, m).energy_pj_per_byte for m in p.MEMORIES}
        price = target.chip.cluster.core.matrix.energy_pj_per_mac
        by_bytes = {1: price.int8, 2: price.sixteen_bit, 4: price.f32}
        energy |= {f"mac_{e}": macs * by_bytes[p.ELEMENT_BYTES[e]] for e, macs in self.macs.items() if macs}
        return energy | {"total": sum(energy.values())}


def model(program, target, page_bytes=(), parts=None):
    """Run a program on all clusters of one chip.

    `parts`: images, rows, columns, input channels that the address table at an address of DRAM describes, and whether
    it has the bases of every group.
    """
    machine = _Machine(program, target, page_bytes, parts or {})
    machine.fetch_at_start()
    machine.walk(program.body, (), (), 1, top=True)
    _simulate(machine)
    return machine.figures


def memory_of(target, name):
    cluster = target.chip.cluster
    return {
        "dram": target.chip.dram, "sram": cluster.sram, "nram": cluster.core.nram, "wram": cluster.core.wram
    }[name]  # fmt: skip


# --- executions --------------------------------------------------------------------------------------------


@dataclass
class Execution:
    """One instruction on one unit: what its engine does when its turn comes."""

    waits: list = field(default_factory=list)  # (counters, value)
    signals: list = field(default_factory=list)  # (counter, cycles after the completion)
    cycles: int = 0  # of computing
    chunks: list = field(default_factory=list)  # (cycles of the engine, {port: cycles})
    latency: int = 0
    is_barrier: bool = False


class _Machine:
    """Walks a program in its order and puts what each engine has to do into its queue."""

    def __init__(self, program, target, page_bytes, parts):
        self.program, self.target, self.page_bytes, self.parts = program, target, page_bytes, parts
        self.cached = {}  # of each entry of the address caches, where its table came from
        self.clusters, self.cores = target.chip.clusters, target.chip.cluster.cores
        self.engines = [
            (cluster, core, kind)
            for cluster in range(self.clusters)
            for core in (None, *range(self.cores))
            for kind in (CLUSTER_ENGINES if core is None else CORE_ENGINES)
        ]
        self.queues = {engine: [] for engine in self.engines}
        self.figures = Figures()
        self.far = {
            (wait.slot, wait.scope == "all_cores")
            for each in p.instructions(program.body)
            for wait in each.waits
            if wait.scope in ("all_cores", "all_clusters")
        }

    def walk(self, body, indices, counts, count, top=False):
        """Pass after pass; a child of stage s runs in pass i + s."""
        last = 0 if top else max((child.stage for child in body), default=0)
        for turn in range(count + last):
            for child in body:
                index = turn - (0 if top else child.stage)
                if 0 <= index < count:
                    inner = (indices, counts) if top else ((*indices, index), (*counts, count))
                    if isinstance(child, p.Repeat):
                        self.walk(child.body, *inner, child.count)
                    else:
                        self.execute(child, *inner)

    def execute(self, instruction, indices, counts):
        if isinstance(instruction, p.Barrier):
            for queue in self.queues.values():
                queue.append(Execution(is_barrier=True))
            return
        for cluster in range(self.clusters):
            if for_all(instruction) and cluster:
                continue
            for core in range(self.cores) if instruction.engine in CORE_ENGINES else (None,):
                unit = _Unit(self, instruction, indices, counts, cluster, core)
                done = Execution(waits=unit.waits(), signals=unit.signals())
                if not isinstance(instruction, p.Hold | p.LineBuffer):
                    unit.work(done)
                self.queues[cluster, core, instruction.engine].append(done)
                self.figures.executions += 1

    def fetch_at_start(self):
        """Code that no instruction fetches; nothing else starts before it is there."""
        later = {each.page for each in p.instructions(self.program.body) if isinstance(each, p.Fetch)}
        size = sum(bytes_ for page, bytes_ in enumerate(self.page_bytes) if page not in later)
        if not size:
            return
        for engine, queue in self.queues.items():
            if engine == (0, None, "fetch"):
                queue.append(Execution(signals=[(START, 0)]))
                self.fetch(queue[0], size)
            else:
                queue.append(Execution(waits=[([START], 1)]))

    def fetch(self, done, size):
        """Bytes of the program: over the DRAM port, by an engine as fast as GDMA."""
        dram, rate = self.target.chip.dram, self.target.chip.cluster.gdma.bytes_per_cycle
        for chunk in pieces(size, self.target.transfers.chunk_bytes):
            held = port_cycles(dram, chunk, size)
            done.chunks.append((max(up(chunk, rate), held), {("dram",): held}))
        done.latency = dram.latency_cycles if size else 0
        self.figures.read["dram"] += size
        self.figures.dram["other"] += size


def for_all(instruction):
    """Whether cluster 0 does it for all clusters."""
    return isinstance(instruction, p.Fetch | p.TableLoad) or getattr(instruction, "multicast", False)


class _Unit:
    """One instruction at certain loop indices on one core, or on one cluster."""

    def __init__(self, machine, instruction, indices, counts, cluster, core):
        self.machine, self.target, self.instruction = machine, machine.target, instruction
        self.indices, self.counts, self.cluster, self.core = indices, counts, cluster, core

    def at(self, affine):
        moved = sum(c * i for c, i in zip(affine.loops, self.indices, strict=False))
        return affine.base + moved + affine.cluster * self.cluster + affine.core * (self.core or 0)

    # --- events

    def waits(self):
        found = [(self.watched(w), self.at(w.value)) for w in self.instruction.waits]
        return [(counters, value) for counters, value in found if value > 0]

    def watched(self, wait):
        """Counters are (slot, cluster, core or None); what another cluster sees of one has `far` behind that."""
        machine, slot = self.machine, wait.slot
        clusters, cores = range(machine.clusters), range(machine.cores)

        def seen(counter):
            return counter if counter[1] == self.cluster else (*counter, "far")

        match wait.scope:
            case "own":
                return [(slot, self.cluster, self.core)]
            case "cluster":
                return [(slot, self.cluster, None)]
            case "cores":
                return [(slot, self.cluster, core) for core in cores]
            case "all_cores":
                return [seen((slot, cluster, core)) for cluster in clusters for core in cores]
        return [seen((slot, cluster, None)) for cluster in clusters]

    def signals(self):
        slot, late = self.instruction.signal, self.target.chip.cluster.sram.latency_cycles
        if slot is None:
            return []
        clusters = range(self.machine.clusters) if for_all(self.instruction) else (self.cluster,)
        reached = [((slot, c, self.core), late * (c != self.cluster)) for c in clusters]
        if (slot, self.core is not None) in self.machine.far:
            reached += [((*counter, "far"), delay + late) for counter, delay in reached]
        return reached

    # --- boxes

    def clip(self, span):
        stop = min(self.at(span.start) + span.extent, span.bound)
        if span.limit is not None:
            stop = min(stop, self.at(span.limit))
        return max(0, self.at(span.start)), stop

    def fill(self, span):
        """With fill positions outside the map are written too."""
        start = self.at(span.start)
        stop = start + span.extent
        return start, stop if span.limit is None else min(stop, self.at(span.limit))

    def under(self, span, first, size, stride, box):
        """How many positions of `span` the windows of the outputs `box` (nominally from `first` on) lie on."""
        nominal, (start, stop) = box
        low = first + (start - nominal) * stride
        high = low + (stop - start - 1) * stride + size
        present = self.clip(span)
        return max(0, min(high, present[1]) - max(low, present[0]))

    # --- work

    def work(self, done):
        instruction = self.instruction
        if isinstance(instruction, p.Fetch):
            self.machine.fetch(done, self.machine.page_bytes[instruction.page])
            return
        if isinstance(instruction, p.TableLoad):
            self.machine.fetch(done, instruction.bytes)
            self.machine.cached[instruction.entry] = self.at(instruction.src_view.offset)
            return
        filled = isinstance(instruction, p.Copy) and instruction.fill is not None
        box = [self.fill(span) if filled else self.clip(span) for span in instruction.box.spans]
        extent = [stop - start for start, stop in box]
        if min(extent) <= 0:
            return
        if isinstance(instruction, p.Copy):
            self.copy(done, box, extent)
        elif isinstance(instruction, p.Conv):
            self.conv(done, box, extent)
        elif isinstance(instruction, p.Depthwise):
            self.depthwise(done, box, extent)
        else:
            self.vector(done, box, extent)
        if done.cycles:
            done.latency = self.target.chip.cluster.core.nram.latency_cycles

    def moved(self, view, extent, *, write=False, copies=1, always=False):
        """Count an operand: what is broadcast is read once."""
        size = p.ELEMENT_BYTES[view.element]
        for n, stride in zip(extent, view.strides, strict=True):
            size *= n if stride or always else 1
        figures = self.machine.figures
        (figures.written if write else figures.read)[view.memory] += size * copies

    # --- copies

    def copy(self, done, box, extent):
        copy, figures = self.instruction, self.machine.figures
        element = p.ELEMENT_BYTES[copy.src_view.element]
        inside = [
            (max(0, start), min(stop, span.bound)) for (start, stop), span in zip(box, copy.box.spans, strict=True)
        ]
        read = [max(0, stop - start) for start, stop in inside]
        written_bytes = math.prod(extent) * element
        read_bytes = math.prod(read) * element if copy.expand is None else copy.expand
        source, targets = self.port(copy.src_view.memory), self.targets()
        figures.read[copy.src_view.memory] += read_bytes
        figures.written[copy.dst_view.memory] += written_bytes * len(targets)
        for view, moved, write in ((copy.src_view, read_bytes, False), (copy.dst_view, written_bytes, True)):
            if view.memory == "dram":
                figures.dram[self.class_of(view, inside if not write else box, write)] += moved
        if copy.expand is None:
            at_source = size = written_bytes  # both ports are held for what is filled, too
            source_run = self.run(copy.src_view, inside, read)
        else:
            at_source, size, source_run = copy.expand, max(copy.expand, written_bytes), copy.expand
        from_, to = (memory_of(self.target, view.memory) for view in (copy.src_view, copy.dst_view))
        target_run = self.run(copy.dst_view, box, extent)
        for chunk in pieces(size, self.target.transfers.chunk_bytes):
            reads = port_cycles(from_, up(chunk * at_source, size), source_run)
            writes = port_cycles(to, chunk, target_run)
            engine = max(up(chunk, self.rate()), reads, writes)
            done.chunks.append((engine, dict.fromkeys(targets, writes) | {source: reads}))
        done.latency = max(from_.latency_cycles, to.latency_cycles)

    def rate(self):
        cluster = self.target.chip.cluster
        engines = {"gdma": cluster.gdma, "cdma": cluster.cdma, "bus": cluster.bus,
                   "iodma": cluster.core.iodma, "mvdma": cluster.core.mvdma}  # fmt: skip
        return engines[self.instruction.engine].bytes_per_cycle

    def port(self, memory, cluster=None, core=None, *, write=False):
        """DRAM has one port for both directions; the others one for each."""
        if memory == "dram":
            return ("dram",)
        cluster = self.cluster if cluster is None else cluster
        return memory, cluster, None if memory == "sram" else self.core if core is None else core, write

    def targets(self):
        """Ports of all memories that are written."""
        copy, memory = self.instruction, self.instruction.dst_view.memory
        if copy.engine == "bus":
            return [self.port(memory, core=core, write=True) for core in range(self.machine.cores)]
        if copy.multicast:
            return [self.port(memory, cluster, write=True) for cluster in range(self.machine.clusters)]
        peer = None if copy.peer is None else self.at(copy.peer)
        return [self.port(memory, peer, write=True)]

    def run(self, view, ranges, extent):
        """Bytes of the contiguous runs of a box; where a ring ends inside one it counts as two of equal length."""
        run = p.ELEMENT_BYTES[view.element]
        dims = [d for d in range(4) if extent[d] > 1 and view.strides[d]]
        for d in sorted(dims, key=lambda d: abs(view.strides[d])):
            if abs(view.strides[d]) != run:
                break
            run *= extent[d]
            if view.wrap is not None and view.wrap.dim == d and self.laps(view.wrap, ranges[d]):
                return up(run, 2)
        return run

    def laps(self, wrap, positions):
        first = (positions[0] + self.at(wrap.phase)) % wrap.size
        return first + positions[1] - positions[0] > wrap.size

    def class_of(self, view, ranges, write):
        """The class of the DRAM buffer that the first element lies in."""
        address = self.at(view.offset)
        if view.ring is not None:
            turn = 0
            for index, count in list(zip(self.indices, self.counts, strict=True))[: view.ring.level]:
                turn = turn * count + index
            address += turn % view.ring.depth * view.ring.bytes
        if self.instruction.expand is None or write:
            starts = self.instruction.box.start
            address += sum((r[0] - self.at(s)) * b for r, s, b in zip(ranges, starts, view.strides, strict=True))
        for each in self.machine.program.externals:
            if each.address <= address < each.address + each.bytes:
                known = {("weight", False): "weight", ("input", False): "input", ("output", True): "output"}
                return "other" if each.class_ == "program" else known.get((each.class_, write), "intermediate")
        return "intermediate"

    # --- the matrix unit

    def ends(self):
        """Whether accumulators start at 0 here, and whether the result goes out here."""
        level = self.instruction.accumulate
        if level is None:
            return True, True
        return self.indices[level] == 0, self.indices[level] == self.counts[level] - 1

    def conv(self, done, box, extent):
        conv, figures, unit = self.instruction, self.machine.figures, self.target.chip.cluster.core.matrix
        images, outputs, rows, columns = extent
        low, high = self.clip(conv.channels)
        channels = max(0, high - low)
        per_group = conv.box.extent[1] // conv.groups if conv.groups > 1 else outputs
        groups = up(outputs, per_group)
        seen = _Windows(
            conv.kernel, conv.strides[1], conv.dilations[1], p.ELEMENT_BYTES[conv.in_view.element], conv.line_mode,
            conv.in_view.strides, conv.strides[0], min(conv.cols.extent, conv.cols.bound),
        )  # fmt: skip
        lines, block = unit.line_buffer.lines, unit.line_buffer.block_bytes
        windows, fills, writes = _lines(seen, images, rows, columns, channels, lines, block)
        slices = sum(up(min(per_group, outputs - g * per_group), unit.channels) for g in range(groups))
        taps = channels * conv.kernel[0] * conv.kernel[1]
        steps = fills * slices * taps
        figures.steps += steps
        figures.writes += writes * slices
        figures.discarded += windows - images * rows * columns
        figures.macs[conv.in_view.element] += images * outputs * rows * columns * taps
        step = unit.cycles_per_step
        each = {1: step.int8, 2: step.sixteen_bit, 4: step.f32}[p.ELEMENT_BYTES[conv.in_view.element]]
        found = self.addresses((images, rows, columns, channels), groups)
        done.cycles = max(writes * slices, steps * each, found)
        self.conv_operands(box, extent, channels, groups)

    def addresses(self, box, groups):
        """Cycles in which the unit finds addresses, on machines where that takes any: from the pieces of a table, four
        entries at a time, or one by one."""
        conv, unit = self.instruction, self.target.chip.cluster.core.matrix
        each = getattr(unit, "address_cycles", None)
        if each is None or 0 in box:
            return 0
        taps = conv.kernel[0] * conv.kernel[1]
        if conv.table is None:
            return groups * (box[0] * box[1] * box[2] + box[3] * taps) * each
        *part, has_all_groups = self.machine.parts[self.machine.cached[conv.table]]
        walked = groups * math.prod(up(n, its) for n, its in zip(box, part, strict=True))
        images, rows, columns, channels = map(min, box, part)
        steps = 0 if has_all_groups else walked - 1
        return walked * up(images * rows * columns + channels * taps, 4) + steps * each

    def conv_operands(self, box, extent, channels, groups):
        conv, (first, last) = self.instruction, self.ends()
        starts = [self.at(start) for start in conv.box.start]
        plane = [
            self.under(span, self.at(span.start), (k - 1) * d + 1, s, (starts[axis], box[axis]))
            for axis, span, k, s, d in zip(
                (2, 3), (conv.rows, conv.cols), conv.kernel, conv.strides, conv.dilations, strict=True
            )
        ]
        self.moved(conv.in_view, (extent[0], groups * channels, *plane), always=True)
        self.moved(conv.weight_view, (extent[1], channels, *conv.kernel), always=True)
        vector = (1, extent[1], 1, 1)
        if conv.weight_zero_view is not None:
            self.moved(conv.weight_zero_view, vector, always=True)
        if not first:
            self.moved(conv.acc_view, extent)
        if not last:
            self.moved(conv.acc_view, extent, write=True)
            return
        for view in (conv.bias_view, conv.multiplier_view):
            if view is not None:
                self.moved(view, vector, always=True)
        if conv.residual_view is not None:
            self.moved(conv.residual_view, extent)
        self.moved(conv.out_view, extent, write=True)

    # --- the vector unit

    def depthwise(self, done, box, extent):
        """A pass for every tap, for each operand that is added, for the way to other integers and the activation."""
        op, unit = self.instruction, self.target.chip.cluster.core.vector
        cost, price = unit.cycles_per_element, unit.passes
        wide = max(p.ELEMENT_BYTES[view.element] for view in (op.in_view, op.out_view))
        elements = math.prod(extent) * {1: cost.int8, 2: cost.sixteen_bit, 4: cost.f32}[wide]
        taps = op.kernel[0] * op.kernel[1]
        simple, hard = composite(op.act.kind) if op.act else (0, 0)
        simple += taps + sum(view is not None for view in (op.bias_view, op.residual_view, op.multiplier_view))
        simple += 0 if op.scales is None else 3  # of what is added to, of what is added, of their sum
        passes = simple * price.elementary + hard * price.transcendental
        done.cycles = up(elements, unit.lanes) * passes
        self.machine.figures.macs[op.in_view.element] += math.prod(extent) * taps
        self.moved(op.in_view, self.looked_at(box, extent), always=True)
        self.moved(op.weight_view, (extent[1], 1, *op.kernel), always=True)
        for view in (op.bias_view, op.weight_zero_view, op.multiplier_view):
            if view is not None:
                self.moved(view, (1, extent[1], 1, 1), always=True)
        if op.residual_view is not None:
            self.moved(op.residual_view, extent)
        self.moved(op.out_view, extent, write=True)

    def vector(self, done, box, extent):
        op, unit = self.instruction, self.target.chip.cluster.core.vector
        ins = [view for view in (getattr(op, name, None) for name in ("in_view", "a_view", "b_view")) if view]
        wide = max(p.ELEMENT_BYTES[view.element] for view in (*ins, op.out_view))
        cost = unit.cycles_per_element
        elements = math.prod(extent) * {1: cost.int8, 2: cost.sixteen_bit, 4: cost.f32}[wide]
        done.cycles = up(elements, unit.lanes) * self.passes(unit.passes, [*ins, op.out_view])
        beside = [view for view in (getattr(op, name, None) for name in ("scale_view", "shift_view")) if view]
        for view in ins + beside:
            self.moved(view, self.looked_at(box, extent))
        if isinstance(op, p.Reduce) and op.accumulate is not None and not self.ends()[0]:
            self.moved(op.out_view, extent)
        self.moved(op.out_view, extent, write=True)

    def looked_at(self, box, extent):
        """Positions of the input under the windows of the clipped box."""
        op, starts = self.instruction, [self.at(start) for start in self.instruction.box.start]
        match op:
            case p.Pool() | p.Depthwise():
                return *extent[:2], *(
                    self.under(span, self.at(span.start), (k - 1) * d + 1, s, (starts[axis], box[axis]))
                    for axis, span, k, s, d in zip(
                        (2, 3), (op.rows, op.cols), op.kernel, op.strides, op.dilations, strict=True
                    )
                )
            case p.Lrn():
                first = starts[1] - (op.size - 1) // 2
                return extent[0], self.under(op.channels, first, op.size, 1, (starts[1], box[1])), *extent[2:]
            case p.Resize():
                return *extent[:2], *(self.scaled(k, box[2 + k]) for k in (0, 1))
        return extent

    def scaled(self, k, positions):
        op, span = self.instruction, (self.instruction.rows, self.instruction.cols)[k]
        first, last = (
            min(max(o * op.scale[k] + op.offset[k], 0), span.bound - 1) for o in (positions[0], positions[1] - 1)
        )
        if op.mode == "nearest":
            low, high = (min(max(rounded(op.rounding, place), 0), span.bound - 1) for place in (first, last))
        else:
            low, high = math.floor(first), math.ceil(last)
        present = self.clip(span)
        return max(0, min(high + 1, present[1]) - max(low, present[0]))

    def passes(self, price, views):
        """An activation and each conversion between integers and numbers come on top."""
        op = self.instruction
        conversions = 0 if getattr(op, "scales", None) is None else sum(v.element in INTEGERS for v in views)
        if conversions and isinstance(op, p.Unary) and op.kind == "identity":
            return conversions * price.elementary
        act = getattr(op, "act", None)
        simple, hard = composite(act.kind) if act else (0, 0)
        simple += conversions
        own = 0
        match op:
            case p.Pool():
                own = math.prod(op.kernel) * price.pool_per_kernel_element
            case p.Unary() | p.Binary():
                simple, hard = (a + b for a, b in zip((simple, hard), composite(op.kind), strict=True))
            case p.Softmax():  # maximum, subtract, exponential, sum, divide
                own, simple, hard = 2 * price.reduction, simple + 1, hard + 2
            case p.Normalise():  # mean and variance, root, scale and shift twice
                own, simple, hard = 2 * price.reduction, simple + 2, hard + 1
            case p.Hide():  # compare and select
                simple += 1
            case p.Reduce():  # a variance: the sums of elements and of their squares
                own = (2 if op.kind == "variance" else 1) * price.reduction
            case p.Lrn():  # squares of the window, power, divide
                own, hard = op.size * price.lrn_per_window_element, hard + 2
            case p.Resize():
                own = price.resize_nearest if op.mode == "nearest" else price.resize_linear
        return own + simple * price.elementary + hard * price.transcendental


def rounded(rounding, place):
    whole = {"floor": math.floor(place), "ceil": math.ceil(place)}
    halves = {"round_prefer_floor": math.ceil(place - 0.5), "round_prefer_ceil": math.floor(place + 0.5)}
    return (whole | halves)[rounding]


def composite(kind):
    """Elementary and transcendental parts of an operation on elements."""
    elementary = {
        "identity", "add", "sub", "mul", "max", "min", "relu", "neg", "abs", "floor", "ceil", "round", "mask",
        "affine", "sign", "keep", "drop", "equal", "less", "less_equal", "round_f16", "round_bf16",
    }  # fmt: skip
    hard = {"div", "sigmoid", "tanh", "erf", "exp", "log", "sqrt", "reciprocal", "sin", "cos"}
    sums = {
        "prelu": (2, 0), "leaky_relu": (2, 0), "clip": (2, 0),  # multiply and select; two comparisons
        "hard_sigmoid": (3, 0), "hard_swish": (4, 0),  # scale and shift, clip; and a product
        "pow": (1, 2), "softplus": (1, 2),  # exponential, logarithm, and a product or sum
        "elu": (2, 1), "gelu": (3, 1), "gelu_tanh": (5, 1), "silu": (1, 1),
    }  # fmt: skip
    return (1, 0) if kind in elementary else (0, 1) if kind in hard else sums[kind]


# --- transfers, lines --------------------------------------------------------------------------------------


def up(a, b):
    return -(-a // b)


def pieces(size, most):
    """The chunks of a transfer."""
    while size > 0:
        yield min(size, most)
        size -= most


def port_cycles(memory, chunk, run):
    """A run shorter than the least takes the time of the least."""
    least = memory.minimum_run_bytes
    padded = chunk if run >= least else up(chunk, max(run, 1)) * least
    return up(padded, memory.port_bytes_per_cycle)


@dataclass(frozen=True)
class _Windows:
    kernel: tuple
    stride: int
    dilation: int
    element: int
    mode: str
    steps: tuple
    stride_down: int
    row_elements: int


@cache
def _lines(seen, images, rows, columns, channels, lines, block_bytes):
    """All windows in order, one by one: how many with the discarded ones, fills of the lines, writes of a slice."""
    span = (seen.kernel[1] - 1) * seen.dilation + 1
    windows = list(_stream(seen, images, rows, columns, span))
    fills = [windows[at : at + lines] for at in range(0, len(windows), lines)]
    block = block_bytes // seen.element
    writes = 0
    for fill in fills:
        for _, piece in groupby(fill):
            count = len(list(piece))
            if seen.mode == "channels_last":
                writes += _blocks_of_channels(seen, span, count, channels, block) * seen.kernel[0]
            else:
                writes += channels * seen.kernel[0] * sum(up(count, n) for n in _fill_of(seen, block))
    return len(windows), len(fills), writes


def _stream(seen, images, rows, columns, span):
    """Of each window the run that it is part of; between two rows of a run windows straddle both and are dropped."""
    down = seen.stride_down * seen.steps[2]
    joins = (
        seen.mode == "continuous" and seen.steps[3] == seen.element and down % seen.element == 0
        and down >= seen.row_elements * seen.element
    )  # fmt: skip
    if not joins:
        for row in range(images * rows):
            yield from [row] * columns
        return
    length = (columns - 1) * seen.stride + span
    distance = max(length, down // seen.element)
    dropped = max(0, up(distance - columns * seen.stride, seen.stride))
    images_follow = rows * down == seen.steps[0]
    for row in range(images * rows):
        image, number = divmod(row, rows)
        run = 0 if images_follow else image
        if row if images_follow else number:
            yield from [run] * dropped
        yield from [run] * columns


def _fill_of(seen, block):
    """Lines that one write fills, for each column piece of a kernel row."""
    taps, most = seen.kernel[1], (block - 1) // seen.dilation + 1
    while taps > 0:
        now = min(taps, most)
        yield (block - ((now - 1) * seen.dilation + 1)) // seen.stride + 1
        taps -= now


def _blocks_of_channels(seen, span, count, channels, block):
    """Blocks of a piece of one row where channels are neighbours: as one run, or position by position."""
    positions = (count - 1) * seen.stride + span
    apart = seen.steps[1] == seen.element and seen.steps[3] > seen.element and seen.steps[3] % seen.element == 0
    stored = seen.steps[3] // seen.element if apart else channels
    one_run = up(positions * stored, block)
    return min(one_run, min(positions, count * seen.kernel[1]) * up(channels, block))


# --- time --------------------------------------------------------------------------------------------------


class _Engine:
    def __init__(self, number, name, queue):
        self.number, self.name, self.queue = number, name, queue
        self.at = self.chunk = self.free_at = 0
        self.in_flight = []


def _simulate(machine):
    """Run all queues to their ends; AssertionError where engines wait for ever."""
    clock = _Clock(machine)
    while clock.events:
        clock.happen(*heapq.heappop(clock.events))
    stuck = [engine.name for engine in clock.engines if engine.at < len(engine.queue)]
    assert not stuck, f"deadlock: {stuck}"


class _Clock:
    """Events by time; at one time signals, then engines, then barriers, then requests by engine number."""

    def __init__(self, machine):
        self.figures, self.most_in_flight = machine.figures, machine.target.transfers.in_flight
        self.engines = [_Engine(k, name, machine.queues[name]) for k, name in enumerate(machine.engines)]
        self.counters, self.sleepers, self.port_free = defaultdict(int), defaultdict(list), defaultdict(int)
        self.events = [(0, TRY, engine.number, None) for engine in self.engines]
        self.signals, self.at_barrier = 0, []

    def happen(self, now, kind, who, counter):
        if kind == SIGNAL:
            self.counters[counter] += 1
            for engine in self.sleepers.pop(counter, []):
                self.advance(engine, now)
        elif kind == TRY:
            self.advance(self.engines[who], now)
        elif kind == REQUEST:
            self.serve(self.engines[who], now)
        else:
            self.release(now)

    def push(self, time, kind, who, counter=None):
        heapq.heappush(self.events, (time, kind, who, counter))

    def advance(self, engine, now):
        """All that takes no time; then something that does, or a reason to wait."""
        while engine.at < len(engine.queue):
            done = engine.queue[engine.at]
            if done.is_barrier:
                self.at_barrier.append(engine)
                if len(self.at_barrier) == len(self.engines):
                    self.push(max(now, self.figures.total), RELEASE, 0)
                return
            if self.sleeps(engine, done) or self.is_full(engine, done, now):
                return
            self.figures.stalled[engine.name] += now - engine.free_at
            if done.chunks:
                engine.chunk = 0
                self.push(now, REQUEST, engine.number)
                return
            self.figures.busy[engine.name] += done.cycles
            self.finish(engine, done, now + done.cycles)
            if done.cycles:
                self.push(now + done.cycles, TRY, engine.number)
                return

    def sleeps(self, engine, done):
        """Until some counter that is too low now is higher."""
        for watched, value in done.waits:
            for counter in watched:
                if self.counters[counter] < value:
                    self.sleepers[counter].append(engine)
                    return True
        return False

    def is_full(self, engine, done, now):
        """Whether a transfer has to wait until one of those in flight has arrived."""
        if not done.chunks:
            return False
        engine.in_flight = [at for at in engine.in_flight if at > now]
        if len(engine.in_flight) < self.most_in_flight:
            return False
        self.push(min(engine.in_flight), TRY, engine.number)
        return True

    def serve(self, engine, now):
        """First come, first served: a chunk takes its ports as soon as all are free of what came before."""
        done = engine.queue[engine.at]
        busy, ports = done.chunks[engine.chunk]
        start = max(now, *(self.port_free[port] for port in ports))
        for port, cycles in ports.items():
            self.port_free[port] = start + cycles
        self.figures.stalled[engine.name] += start - now
        self.figures.busy[engine.name] += busy
        engine.chunk += 1
        if engine.chunk < len(done.chunks):
            self.push(start + busy, REQUEST, engine.number)
            return
        engine.in_flight.append(self.finish(engine, done, start + busy))
        self.push(start + busy, TRY, engine.number)

    def finish(self, engine, done, stop):
        """The cycle of the completion; the signals come then, or later."""
        completion = stop + done.latency
        self.figures.total = max(self.figures.total, completion)
        for counter, delay in done.signals:
            self.figures.total = max(self.figures.total, completion + delay)
            self.signals += 1
            self.push(completion + delay, SIGNAL, self.signals, counter)
        engine.free_at, engine.at = stop, engine.at + 1
        return completion

    def release(self, now):
        """All engines are at a barrier and every effect has arrived."""
        self.counters.clear()
        for engine in self.at_barrier:
            engine.free_at, engine.at = now, engine.at + 1
            self.push(now, TRY, engine.number)
        self.at_barrier.clear()
