# Tests: test/passes/lower/tree/test_lower_plan.py
"""One walk over a plan: loops become `repeat`, residencies buffers, computes what the cores do."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from frustum.dialects import isa
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Element
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
from frustum.passes.lower.tree.pieces import Known
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.spans import (
    NotLowered,
    common,
    later,
    span_of,
)
from frustum.passes.lower.tree.sram_buffers import missing_of


class PlanWalk(Computes):
    """Writes a plan; `dram` has the tensors' homes, `counted` what nodes take of SRAM."""

    code: Code
    dram: DramTensors
    numbers: Mapping[str, int]
    counted: Counted
    inside: frozenset[str]
    """Layers of the innermost loop."""
    last_unit: int
    used: int

    def __init__(
        self, network: AxisNetwork, plan: Node, code: Code, dram: DramTensors, counted: Counted,
        numbers: Mapping[str, int],
    ) -> None:  # fmt: skip
        super().__init__(network, plan)
        self.code, self.dram, self.counted, self.numbers = code, dram, counted, numbers
        self.elements: Mapping[Tensor, Element] = dram.elements
        computes = (node for node in nodes_in(plan) if isinstance(node, Compute))
        self.sums: Mapping[str, Element] = {
            each.tensor: cast(Element, each.element) for node in computes for each in node.sums
        }
        self.capacity: int = code.target.cluster.sram.capacity_bytes
        self.here: dict[Tensor, list[Place]] = defaultdict(list)
        self.used = 0
        self.inside: frozenset[str] = frozenset()
        self.rolls: list[Roll] = []
        self.known: Known = {}
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
        if node.over is not Over.TIME or node.order or node.is_pipelined:
            raise NotLowered(f"{title(node)}: loops over clusters, orders of passes and pipelined loops")
        axis, group, inside = self.known_class(node)
        level = self.code.depth
        step, count = self.step_of(node, axis, inside, made)
        is_rolling = node.halo is Halo.ROLLING
        loop = PlanLoop(axis, group, inside, level, step, count)
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
        found = {name: self.rolled_spans(spans, group, level) for name, spans in found.items()}
        before = self.passes_before(node, found, group, level)
        found = {
            name: {a: later(span, level, before) if a in group else span for a, span in spans.items()}
            for name, spans in found.items()
        }
        with self.code.repeat(count + before):
            inner = {**made, **found}
            self.rolls.append(Roll(level, group, self.gates_of(found, group, level), inner, self.code.block))
            self.body(node.body, inner, held)
            self.rolls.pop()

    def several(self, node: Loop, loop: PlanLoop, made: Made, held: Held) -> None:
        """A loop of which a pass of the program makes several: one after the other, each with spans of its own."""
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
                    self.rolls.append(Roll(loop.level, loop.group, gates, inner, block, loop.period, number, at, rings))
                self.body(node.body, inner, held, is_ahead=False)
                if is_rolling:
                    self.rolls.pop()

    def body(self, node: Sequence, made: Made, held: Held, *, is_ahead: bool = True) -> None:
        """The body of a loop: where something is loaded in it, all else is a pass later."""
        around, self.inside = self.inside, frozenset(layers_in(node))
        with self.code.at_stage(int(is_ahead and self.loads_in(node))):
            self.sequence(node, made, held)
        self.inside = around

    def loads_in(self, node: Node) -> bool:
        """Whether something is loaded in the passes of the innermost loop around."""
        if not isinstance(node, Sequence):
            return False
        made = {tensor for child in node.children for tensor in self.made_in(child)}
        is_loading = any(self.tensors[r.tensor] not in made for r in node.residents)
        return is_loading or any(map(self.loads_in, node.children))

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
        used = self.used
        room = self.capacity - used - self.counted.held.get(id(node), 0)
        for k, child in enumerate(node.children):
            if node is self.plan:
                self.begin_unit(k)
            results = set(self.made_in(child))
            begun = [r for r in node.residents if r.first == k]
            for resident in begun:
                room -= self.begin(node, resident, made, self.tensors[resident.tensor] in results, room)
            self.visit(child, made, self.held_at(node, k, held))
            for resident in begun:
                if self.tensors[resident.tensor] in results:
                    self.finish(node, resident, made, held)
            for resident in [r for r in node.residents if r.last == k]:
                self.used -= self.here[self.tensors[resident.tensor]].pop().taken
            if node is self.plan and k < self.last_unit:
                self.code.add(isa.BarrierOp())
        self.used = used

    def begin_unit(self, k: int) -> None:
        self.code.unit = k
        if k < self.last_unit:
            self.code.emit(isa.Fetch(page=k + 1))

    def begin(self, node: Sequence, resident: Resident, made: Made, is_made: bool, room: int) -> int:
        """A residency begins: its buffer, and what is in it if nothing here makes that; a pass ahead where there is
        room for a second copy, whose bytes are returned."""
        tensor = self.tensors[resident.tensor]
        if resident.sharded or resident.memory != "sram":
            raise NotLowered(f"resident {resident.tensor}: shares of clusters, and other memories than SRAM")
        names = [name for child in node.children[resident.first : resident.last + 1] for name in layers_in(child)]
        if resident.storage_of:
            self.here[tensor].append(self.in_storage(tensor, self.tensors[resident.storage_of]))
            return 0
        box = self.box_of(tensor, names, made)
        size = math.prod(span.extent for span in box.values()) * size_of(self.slot_of(tensor)) * self.planes(tensor)
        maker = self.network.maker.get(tensor)
        is_late = is_made or (maker is not None and maker.name in self.inside)
        is_ahead = not is_late and self.code.stage > 0 and size <= room
        gone = self.missing(tensor)
        place = self.buffer(tensor, names, made, copies=1 + is_ahead, part=resident.part)
        if gone and resident.part is None and not is_made:
            place = replace(place, has=gone, completes=True)
        elif gone and not is_made:
            place = replace(place, has={axis: common(has, gone.get(axis, has)) for axis, has in place.has.items()})
        with self.code.at_stage(0 if is_ahead else self.code.stage):
            if not is_made and not self.is_made_anew(tensor):
                self.move("load", tensor, box, place, names, self.conditions_of(tensor, names, made))
            elif is_made and self.sum_levels(self.network.maker[tensor], made):
                raise NotLowered(f"resident {tensor.name}: sums that wait in DRAM, where each element is written once")
        self.here[tensor].append(place)
        return size * is_ahead

    def finish(self, node: Sequence, resident: Resident, made: Made, held: Held) -> None:
        """What its maker has made goes to DRAM where others want it."""
        tensor = self.tensors[resident.tensor]
        if not self.leaves(tensor, node, resident) or held.get(tensor) == () or self.is_made_anew(tensor):
            return
        maker = self.network.maker[tensor]
        box = {axis: span_of(made[maker.name], axis) for axis in tensor.axes}
        (*outer, place) = self.here[tensor]
        gone = missing_of(tensor, outer)
        self.move("store", tensor, box, replace(place, has={**place.has, **gone}), [maker.name])
