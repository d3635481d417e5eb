# Tests: test/passes/lower/tree/test_lower_plan.py
"""One walk over a plan: loops become `repeat`, residencies buffers, computes what the cores do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import cast

from frustum.dialects import isa
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ZERO, Element, Span
from frustum.dialects.plan.check import title
from frustum.dialects.plan.count import Counted
from frustum.dialects.plan.ranges import Held
from frustum.dialects.plan.tree import (
    Compute,
    Halo,
    Loop,
    Node,
    Over,
    Resident,
    Sequence,
    layers_in,
    nodes_in,
)
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.computes import Computes
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.externals import DramTensors
from frustum.passes.lower.tree.loop_spans import Made, PlanLoop, Roll
from frustum.passes.lower.tree.over_clusters import Dealt
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.signatures import Known, known_choices
from frustum.passes.lower.tree.spans import (
    NotLowered,
    common,
    later,
    span_of,
    step_at,
    still,
)
from frustum.passes.lower.tree.sram_buffers import Stored, missing_of


class ClusterLoops(Computes, ABC):
    """Writes loops over clusters, and what of loops in time is another thing inside these."""

    used: int

    @abstractmethod
    def visit(self, node: Node, made: Made, held: Held) -> None:
        """Writes a node."""

    @abstractmethod
    def body(self, node: Sequence, made: Made, held: Held, *, is_ahead: bool = True) -> None:
        """Writes the body of a loop in time."""

    def peeled(self, node: Loop, loop: PlanLoop, found: Made, made: Made, held: Held) -> None:
        """A rolling loop in a cluster's share: its first pass makes what all later ones need of what lies before them,
        which is not where the tensor begins."""
        level, rings, block = loop.level, dict[tuple[Tensor, tuple[str, ...]], Place](), self.code.block
        first = {name: {axis: still(span, level) for axis, span in spans.items()} for name, spans in found.items()}
        self.rolls.append(Roll(level, loop.group, {}, {**made, **found}, block, rings=rings))
        self.visit(node.body, {**made, **first}, held)
        self.rolls.pop()
        later_spans = {
            name: {axis: later(span, level, -1) for axis, span in self.rolled_spans(spans, loop.group, level).items()}
            for name, spans in found.items()
        }  # fmt: skip
        inner = {**made, **later_spans}
        with self.code.repeat(loop.count - 1, is_kept=True):
            self.rolls.append(Roll(level, loop.group, {}, inner, block, rings=rings))
            self.body(node.body, inner, held, is_ahead=False)
            self.rolls.pop()

    def over_clusters(self, node: Loop, made: Made, held: Held) -> None:
        """A loop whose passes clusters make at the same time."""
        found, summed = self.cluster_spans(node, made), self.summed_in(node)
        if summed and node.edges[-1] - node.edges[-2] > node.edges[1]:
            raise NotLowered(f"{title(node)}: sums over ranges of which the last is the longest")
        waiting = [layer for layer in summed if not self.here[layer.result]]
        for layer in waiting:
            self.here[layer.result].append(self.buffer(layer.result, [layer.name], made))
        for layer in summed:
            self.check_sum(node, layer, made)
        lengths = {high - low for low, high in pairwise(node.edges)}
        self.dealt = Dealt(
            self.known_class(node)[1], node.halo is Halo.EXCHANGED, tuple(layers_in(node)), node.passes,
            node.passes == self.code.clusters and len(lengths) == 1,
        )  # fmt: skip
        self.visit(node.body, {**made, **found}, held)
        self.dealt = None
        inside = {*layers_in(node)}
        for layer in (self.layers[name] for name in layers_in(node)):
            if layer in summed or self.is_made_anew(layer.result):
                continue
            box = {axis: span_of(found[layer.name], axis) for axis in layer.result.axes}
            for place in self.here[layer.result]:
                if any(layer.result in self.read_by(name) for name in place.users if name not in inside):
                    self.exchange(layer.result, place, box, place.box)
        for layer in summed:
            self.join_parts(layer, made, found[layer.name])
        for layer in waiting:
            self.store(layer, {axis: span_of(made[layer.name], axis) for axis in layer.result.axes})
            self.used -= self.here[layer.result].pop().taken

    def check_sum(self, node: Loop, layer: Layer, made: Made) -> None:
        """NotLowered where a sum over clusters is not joined in one place, once."""
        shares = [
            r for each in nodes_in(self.plan) if isinstance(each, Sequence) for r in each.residents
            if r.tensor == layer.result.name and (r.sharded or any(each is own for own in nodes_in(node)))
        ]  # fmt: skip
        is_one = not shares and len(self.here[layer.result]) == 1 and not self.here[layer.result][0].has
        if not is_one or node.passes < self.code.clusters or self.sum_levels(layer, made):
            raise NotLowered(f"{title(node)}: sums of {layer.name} over clusters, which are not resident around it")


class PlanWalk(ClusterLoops):
    """Writes a plan; `dram` has the tensors' homes, `counted` what nodes take of SRAM."""

    code: Code
    dram: DramTensors
    numbers: Mapping[str, int]
    counted: Counted
    last_unit: int
    periods: dict[int, int]
    """Of loops, by `id`, how many passes one of the program makes, where these are several."""
    used: int
    later: int
    """Bytes that the tree leaves free in what follows in the innermost loop, outside of what is being written."""

    def __init__(
        self, network: AxisNetwork, plan: Node, code: Code, dram: DramTensors, counted: Counted,
        numbers: Mapping[str, int], sram: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(network, plan)
        self.code, self.dram, self.counted, self.numbers = code, dram, counted, numbers
        self.elements: Mapping[Tensor, Element] = dram.elements
        computes = (node for node in nodes_in(plan) if isinstance(node, Compute))
        self.sums: Mapping[str, Element] = {
            each.tensor: cast(Element, each.element) for node in computes for each in node.sums
        }
        capacity = code.target.cluster.sram.capacity_bytes
        self.capacity: int = min(capacity, max(counted.sram_bytes, int(sram * capacity)))
        self.here: dict[Tensor, list[Place]] = defaultdict(list)
        self.used: int = 0
        self.most: int = 0
        self.later: int = self.capacity
        self.inside: frozenset[str] = frozenset()
        self.rolls: list[Roll] = []
        self.dealt: Dealt | None = None
        self.runs: list[tuple[int, int]] = []
        self.stored: dict[Tensor, list[Stored]] = defaultdict(list)
        self.below: set[Tensor] = set()
        self.periods: dict[int, int] = {}
        self.known: Known = known_choices(code.target, "pieces")
        self.at_once: set[Tensor] = set()
        self.known_steps: dict[Layer, Mapping[Axis, int]] = {}

    # ------------------------------------------------------------ nodes

    def visit(self, node: Node, made: Made, held: Held) -> None:
        match node:
            case Compute():
                self.compute(node, made, held)
            case Loop():
                self.loop(node, made, held)
            case Sequence():
                self.sequence(node, made, held)

    def loop(self, node: Loop, made: Made, held: Held) -> None:
        if node.over is Over.CLUSTERS:
            self.over_clusters(node, made, held)
            return
        if node.over is not Over.TIME or node.order or node.is_pipelined:
            raise NotLowered(f"{title(node)}: loops over cores and chips, orders of passes and pipelined loops")
        (first, *others) = self.runs_of(node, made)
        if not others:
            self.run(node, first, made, held)
            return
        for number, loop in enumerate((first, *others)):
            self.runs.append((id(node), number))
            self.run(node, loop, made, held)
            self.runs.pop()

    def run(self, node: Loop, loop: PlanLoop, made: Made, held: Held) -> None:
        """Passes of one length."""
        group, level, count = loop.group, loop.level, loop.count
        is_rolling = node.halo is Halo.ROLLING
        if count == 1:
            self.visit(node.body, {**made, **self.only_pass(loop, made)}, held)
            return
        period = self.period_of(loop, made, self.dram.order)
        if period > 1:
            self.several(node, replace(loop, period=period), made, held)
            return
        found = self.pass_of(loop, made)
        if not is_rolling:
            with self.code.repeat(count):
                self.body(node.body, {**made, **found}, held)
            return
        if any(span.start.cluster and span.extent > step_at(span, level) for span in self.ends_in(node, found, group)):
            if self.dealt is not None and self.dealt.ranges < self.code.clusters:
                raise NotLowered(f"{title(node)}: rows that roll where some clusters have no range")
            self.peeled(node, loop, found, made, held)
            return
        before = self.passes_before(node, found, group, level)
        found = {name: self.rolled_spans(spans, group, level) for name, spans in found.items()}
        found = {
            name: {a: later(span, level, before) if a in group else span for a, span in spans.items()}
            for name, spans in found.items()
        }
        with self.code.repeat(count + before):
            inner = {**made, **found}
            gates = self.gates_of(found, group, level)
            self.rolls.append(Roll(level, group, gates, inner, self.code.block, before=before))
            self.body(node.body, inner, held)
            self.rolls.pop()

    def several(self, node: Loop, loop: PlanLoop, made: Made, held: Held) -> None:
        """A loop of which a pass of the program makes several: one after the other, each with spans of its own."""
        self.periods[id(node)] = loop.period
        is_rolling = node.halo is Halo.ROLLING
        before = self.several_before(node, loop, made) if is_rolling else 0
        known, rings = dict[int, Made](), dict[tuple[Tensor, tuple[str, ...]], Place]()

        def at(number: int) -> Made:
            if number not in known:
                found = self.several_made(loop, made, number - before, is_rolling=is_rolling)
                known[number] = {**made, **found}
            return known[number]

        with self.code.repeat(ceil_div(loop.count + before, loop.period), is_kept=True):
            for number in range(loop.period):
                inner = at(number)
                if is_rolling:
                    gates = self.gates_of({name: inner[name] for name in layers_in(node)}, loop.group, loop.level)
                    block = self.code.block
                    own = Roll(loop.level, loop.group, gates, inner, block, loop.period, number, at, rings=rings)
                    self.rolls.append(own)
                self.body(node.body, inner, held, is_ahead=False)
                if is_rolling:
                    self.rolls.pop()

    def body(self, node: Sequence, made: Made, held: Held, *, is_ahead: bool = True) -> None:
        """The body of a loop: where something is loaded in it, all else is a pass later."""
        around, self.inside = self.inside, frozenset(layers_in(node))
        used, most, later = self.used, self.most, self.later
        self.most, self.later = used, self.capacity if is_ahead else 0
        with self.code.at_stage(int(is_ahead and self.loads_in(node, held))):
            self.sequence(node, made, held)
        self.inside, self.used, self.most, self.later = around, used, max(most, self.most), later

    def loads_in(self, node: Sequence, held: Held) -> bool:
        """Whether something is loaded in the passes of the innermost loop around."""
        return any(self.network.maker.get(t) not in self.layers_inside for t in self.find_reads(node, held))

    @property
    def layers_inside(self) -> set[Layer]:
        """Layers of the innermost loop."""
        return {self.layers[name] for name in self.inside}

    def find_reads(self, node: Node, held: Held) -> Iterator[Tensor]:
        """What is loaded from DRAM, or may be."""
        match node:
            case Compute():
                here = {*self.own(node, held), *(tensor for tensor, parts in held.items() if not parts)}
                read = (tensor for name in node.layers for tensor in self.read_by(name))
                yield from (tensor for tensor in read if tensor not in here)
            case Loop():
                yield from self.find_reads(node.body, held)
            case Sequence():
                for k, child in enumerate(node.children):
                    made = set(self.made_in(child))
                    begun = (self.tensors[r.tensor] for r in node.residents if r.first == k)
                    yield from (tensor for tensor in begun if tensor not in made)
                    yield from self.find_reads(child, self.held_at(node, k, held))

    def units(self, plan: Sequence, made: Made) -> None:
        """The children of the outermost sequence, with a page of the program for each."""
        self.last_unit = len(plan.children) - 1
        self.sequence(plan, made, {})

    def sequence(self, node: Sequence, made: Made, held: Held) -> None:
        if node.subsets:
            raise NotLowered(f"{title(node)}: children on subsets")
        used, later, ahead = self.used, self.later, 0
        room = self.left_beside(used, lambda counted: counted.held.get(id(node), 0))
        for k, child in enumerate(node.children):
            if node is self.plan:
                self.begin_unit(k)
            results = set(self.made_in(child))
            begun = [r for r in node.residents if r.first == k]
            rest = range(k + 1, len(node.children))
            left = (self.left_beside(used, partial(self.taken_in, node, n)) for n in rest)
            self.later = min([later, *left]) - ahead
            for resident in begun:
                second = self.begin(node, resident, made, held, self.tensors[resident.tensor] in results, room)
                room, ahead = room - second, ahead + 2 * second
            before = self.used
            self.visit(child, made, self.held_at(node, k, held))
            room, ahead = room - self.used + before, ahead + self.used - before
            for resident in begun:
                if self.tensors[resident.tensor] in results:
                    self.finish(node, resident, made, held)
            for resident in [r for r in node.residents if r.last == k]:
                self.used -= self.here[self.tensors[resident.tensor]].pop().taken
            if node is self.plan and k < self.last_unit:
                self.code.add(isa.BarrierOp())
        self.used, self.later = used + ahead, later

    def taken_in(self, node: Sequence, k: int, counted: Counted) -> int:
        """Bytes that a child takes by the tree, with what is resident then."""
        held = counted.held
        return held.get(id(node.children[k]), 0) + sum(held[id(r)] for r in node.residents if r.first <= k <= r.last)

    def begin_unit(self, k: int) -> None:
        self.code.unit = k
        if k < self.last_unit:
            self.code.emit(isa.Fetch(page=k + 2))

    def lies_in(self, box: Mapping[Axis, Span], old: Tensor) -> bool:
        """Whether a tensor may lie where another one is: readers behind its maker want no more of it, such as rows of
        neighbours."""
        held = self.here[old][-1].box
        return [box[axis] for axis in box] == [held[axis] for axis in held]

    def begin(self, node: Sequence, resident: Resident, made: Made, held: Held, is_made: bool, room: int) -> int:
        """A residency begins: its buffer, and what is in it if nothing here makes that.  Where there is room for a
        second copy, whose bytes are returned, it comes a pass ahead, and what is made here leaves a pass behind."""
        tensor = self.tensors[resident.tensor]
        if resident.memory != "sram":
            raise NotLowered(f"resident {resident.tensor}: other memories than SRAM")
        names = [name for child in node.children[resident.first : resident.last + 1] for name in layers_in(child)]
        box = self.held_box(node, resident, names, made)
        if resident.storage_of and self.lies_in(box, self.tensors[resident.storage_of]):
            self.here[tensor].append(self.in_storage(tensor, self.tensors[resident.storage_of], names, box))
            return 0
        size = math.prod(span.extent for span in box.values()) * size_of(self.slot_of(tensor)) * self.planes(tensor)
        maker = self.network.maker.get(tensor)
        is_late = is_made or (maker is not None and maker.name in self.inside)
        goes = is_made and self.leaves(tensor, node, resident) and held.get(tensor) != ()
        overlaps = goes and self.leaves_behind(tensor, names) if is_late else self.code.stage > 0
        most, has_second = self.most, overlaps and size <= room and self.has_second(size)
        place = self.buffer(tensor, names, made, copies=1 + has_second, part=resident.part, held=box)
        gone = self.missing(tensor, part_of(box, place))
        if maker is not None:
            place = self.with_running(place, maker, box, node.children[resident.first : resident.last + 1])
        if gone and resident.part is None and not is_made:
            place = replace(place, has=gone, completes=True)
        elif gone and not is_made:
            place = replace(place, has={axis: common(has, gone.get(axis, has)) for axis, has in place.has.items()})
        with self.code.at_stage(0 if has_second else self.code.stage):
            if not is_made and not self.is_made_anew(tensor):
                axis, share = self.share_of(node, resident) if resident.sharded else (None, None)
                mine = {**box, axis: share} if axis is not None and share is not None else box
                self.move("load", tensor, mine, place, names, self.conditions_of(tensor, names, made))
                if mine is not box:
                    self.exchange(tensor, place, mine, box)
            elif is_made and self.sum_levels(self.network.maker[tensor], made):
                raise NotLowered(f"resident {tensor.name}: sums that wait in DRAM, where each element is written once")
        if has_second:
            self.keep_second(place.taken, most)
            place = replace(place, taken=0, is_behind=is_made)
        is_inner = is_made and bool(place.has) and self.is_inner(tensor, place, self.made_box(node, resident, made))
        self.here[tensor].append(replace(place, is_inner=is_inner))
        return size * has_second

    def finish(self, node: Sequence, resident: Resident, made: Made, held: Held) -> None:
        """What its maker has made goes to DRAM where others want it."""
        tensor = self.tensors[resident.tensor]
        if not self.leaves(tensor, node, resident) or held.get(tensor) == () or self.is_made_anew(tensor):
            return
        *outer, place = self.here[tensor]
        if place.is_inner:
            return
        box = self.made_box(node, resident, made)
        gone = missing_of(tensor, outer, part_of(box, place))
        self.move("store", tensor, box, replace(place, has={**place.has, **gone}), [self.network.maker[tensor].name])

    def is_inner(self, tensor: Tensor, place: Place, box: Mapping[Axis, Span]) -> bool:
        """Whether the resident part lies in the middle of a box."""
        nothing = replace(place, has={axis: Span(ZERO, 0, 0) for axis in place.has})
        here = self.here[tensor]
        return missing_of(tensor, [*here, place], box) == missing_of(tensor, [*here, nothing], box)

    def made_box(self, node: Sequence, resident: Resident, made: Made) -> dict[Axis, Span]:
        """What of a resident tensor its maker makes."""
        near = self.opened([node.children[resident.first]], made) if self.dealt is None else made
        tensor = self.tensors[resident.tensor]
        return {axis: span_of(near[self.network.maker[tensor].name], axis) for axis in tensor.axes}


def part_of(box: Mapping[Axis, Span], place: Place) -> dict[Axis, Span]:
    """What of a box a place has, where no loop moves it."""
    return {
        axis: common(span, place.has[axis]) if axis in place.has and span.start.is_constant else span
        for axis, span in box.items()
    }  # fmt: skip
