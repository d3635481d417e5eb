# Tests: test/passes/lower/tree/test_lower_plan.py
"""One walk over a plan: loops become `repeat`, residencies buffers, computes what the cores do.

Which boxes lie where is what `dialects/plan/ranges.py` says of every pass; here the same is said for all passes at
once, as spans that are affine in the loops.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from xdsl.ir import Block

from frustum.dialects import isa
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.isa.program import ZERO, Affine, Element, Span
from frustum.dialects.plan.check import title
from frustum.dialects.plan.count import Counted
from frustum.dialects.plan.ranges import Held, Ranged
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Over, Part, Resident, Sequence, layers_in
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.externals import STATISTICS, DramTensors
from frustum.passes.lower.tree.fetch import Gate, passes_before
from frustum.passes.lower.tree.kernels import kernels_of
from frustum.passes.lower.tree.layouts import steps_of
from frustum.passes.lower.tree.nest import LayerPart, Pieces, Sums
from frustum.passes.lower.tree.pieces import Candidate, Known, PieceChoice
from frustum.passes.lower.tree.places import Place, packed, transfer
from frustum.passes.lower.tree.slices import SliceChoice
from frustum.passes.lower.tree.spans import (
    NotLowered,
    Spans,
    common,
    end,
    hull,
    later,
    presence,
    rolled,
    span_of,
    step_at,
    through,
    widest,
)

Made = Mapping[str, dict[Axis, Span]]
"""Of each layer what it makes in the passes of the loops that are open."""


@dataclass(frozen=True)
class Roll:
    """A rolling loop that is open: its level, its class, the passes in which layers have something to do, what they
    make in one, and its body."""

    level: int
    group: frozenset[Axis]
    gates: Mapping[str, Gate]
    made: Made
    block: Block


class PlanWalk(Ranged):
    """Writes a plan; `dram` has the tensors' homes, `counted` what nodes take of SRAM."""

    def __init__(
        self, network: AxisNetwork, plan: Node, code: Code, dram: DramTensors, counted: Counted, numbers: Mapping[str, int]
    ) -> None:
        super().__init__(network, plan)
        self.code, self.dram, self.counted, self.numbers = code, dram, counted, numbers
        self.elements: Mapping[Tensor, Element] = dram.elements
        self.capacity: int = code.target.cluster.sram.capacity_bytes
        self.here: dict[Tensor, list[Place]] = defaultdict(list)
        self._steps: dict[Layer, Mapping[Axis, int]] = {}
        self.used: int = 0
        self.rolls: list[Roll] = []
        self.known: Known = {}

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
        if count == 1:
            self.visit(node.body, made, held)
            return
        found = self.pass_of(axis, group, inside, made, (level, step, count))
        if not is_rolling:
            with self.code.repeat(count):
                self.body(node.body, {**made, **found}, held)
            return
        found = {name: self.rolled_spans(name, spans, group, level) for name, spans in found.items()}
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

    def body(self, node: Sequence, made: Made, held: Held) -> None:
        """The body of a loop: where something is loaded in it, all else is a pass later."""
        with self.code.at_stage(int(self.loads_in(node))):
            self.sequence(node, made, held)

    def loads_in(self, node: Node) -> bool:
        """Whether something is loaded in the passes of the innermost loop around."""
        if not isinstance(node, Sequence):
            return False
        made = {tensor for child in node.children for tensor in self.made_in(child)}
        is_loading = any(self.tensors[r.tensor] not in made for r in node.residents)
        return is_loading or any(map(self.loads_in, node.children))

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

    # ------------------------------------------------------------ passes

    def step_of(self, node: Loop, axis: Axis, inside: list[Layer], made: Made) -> tuple[int, int]:
        """How far a pass goes along the named axis, and how many passes there are in a pass of the loops outside."""
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        step = min(b - a for a, b in zip(node.edges, node.edges[1:], strict=False)) if node.passes > 1 else outer.extent
        step = max(b - a for a, b in zip(node.edges, node.edges[1:], strict=False))
        tiles = range(0, axis.extent, outer.extent)
        wanted = {a + k for a in tiles for k in range(0, outer.extent, step) if a + k < axis.extent}
        if {*node.edges} != {*wanted, axis.extent}:
            raise NotLowered(f"{title(node)}: ranges that are not all of one length")
        return step, ceil_div(outer.extent, step)

    def pass_of(
        self, axis: Axis, group: frozenset[Axis], inside: list[Layer], made: Made, loop: tuple[int, int, int]
    ) -> dict[str, dict[Axis, Span]]:
        """What all layers make in a pass, from the last layer back."""
        counts = [*self.code.counts, loop[2]]
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        found: dict[str, dict[Axis, Span]] = {}
        needed: dict[Tensor, list[Span]] = defaultdict(list)
        for layer in reversed(inside):
            spans = dict(made[layer.name])
            own = next(iter(group & set(layer.axes)), None)
            if own is not None:
                asked = list(needed[layer.result]) if own in layer.result.axes else []
                is_asked = layer not in self.in_step and self.is_read_along(group, inside, layer, own)
                if not is_asked or self.is_read_elsewhere(layer.result, inside):
                    asked.append(self.in_proportion(span_of(spans, own), outer, loop[:2]))
                if not asked:
                    raise NotLowered(f"{layer.name}: nothing asks for what it makes")
                spans[own] = self.within(hull(widest(asked, counts)), span_of(spans, own))
            found[layer.name] = spans
            for tensor, box in self.boxes_read(layer, spans):
                maker = self.network.maker.get(tensor)
                along = None if maker is None else next(iter(group & set(maker.axes)), None)
                if along is not None and along in box:
                    needed[tensor].append(box[along])
        return found

    def in_proportion(self, own: Span, outer: Span, loop: tuple[int, int]) -> Span:
        """The share of a layer's span that a pass along the named axis has."""
        level, step = loop
        share = Fraction(own.extent, outer.extent) * step
        if share.denominator > 1:
            raise NotLowered(f"steps of {step} of {outer.extent} positions, for {own.extent}")
        extent, start = int(share), own.start + Affine.index(level, int(share))
        limit = own.limit
        if ceil_div(own.extent, extent) * extent > own.extent and not (
            own.start.is_constant and own.start.base + own.extent >= own.bound
        ):
            if limit is not None:
                raise NotLowered(f"steps of {step} in ranges of {outer.extent} that are clipped")
            limit = end(own)
        return Span(start, extent, own.bound, limit)

    def within(self, span: Span, outer: Span) -> Span:
        """Not beyond where the pass outside ends."""
        bound = min(span.bound, outer.bound)
        limit = span.limit
        if outer.limit is not None and limit is None:
            limit = outer.limit
        return Span(span.start, span.extent, bound, limit)

    def rolled_spans(self, name: str, spans: Mapping[Axis, Span], group: frozenset[Axis], level: int) -> dict[Axis, Span]:
        return {axis: rolled(span, level) if axis in group else span for axis, span in spans.items()}

    def passes_before(self, node: Loop, found: Made, group: frozenset[Axis], level: int) -> int:
        """Passes in which early layers make, and buffers of the loop get, what the first pass of the plan needs beside its
        own step."""
        spans = [span for each in found.values() for axis, span in each.items() if axis in group]
        for _, tensor, users in self.places(node.body):
            moved = [axis for axis in tensor.axes if self.changes(group, users, tensor, axis)]
            boxes = (box for user in users for other, box in self.boxes_read(user, found[user.name]) if other is tensor)
            spans += [box[axis] for box in boxes for axis in moved]
        most = 0
        for span in spans:
            step = step_at(span, level)
            if step > 0:
                if any(c for k, c in enumerate(span.start.loops) if k != level):
                    raise NotLowered("a rolling loop inside another one over the same axis")
                most = max(most, ceil_div(end(span).base, step) - 1)
        return most

    def gates_of(self, found: Made, group: frozenset[Axis], level: int) -> dict[str, Gate]:
        gates = {}
        for name, spans in found.items():
            for axis, span in spans.items():
                step = step_at(span, level) if axis in group else 0
                first = 0 if step <= 0 else max(0, -end(span).base // step + 1)
                if first:
                    gates[name] = Gate(level, first)
        return gates

    # ------------------------------------------------------------ boxes

    def boxes_read(self, layer: Layer, spans: Spans) -> Iterator[tuple[Tensor, dict[Axis, Span]]]:
        """What a part of a layer reads of each tensor."""
        for operand in layer.operands:
            for piece in operand.pieces:
                box = {}
                for axis, position in piece.by_leaf:
                    is_all = operand.is_all or position is None
                    box[axis] = Span(ZERO, axis.extent, axis.extent) if is_all or position is None else through(
                        position, axis.extent, spans
                    )
                yield piece.tensor, box

    def box_of(self, tensor: Tensor, names: Iterable[str], made: Made) -> dict[Axis, Span]:
        """What layers touch of a tensor, all together."""
        found: dict[Axis, list[Span]] = {axis: [] for axis in tensor.axes}
        for name in names:
            layer = self.layers[name]
            boxes = [box for other, box in self.boxes_read(layer, made[name]) if other is tensor]
            if layer.result is tensor:
                boxes.append({axis: span_of(made[name], axis) for axis in tensor.axes})
            for box in boxes:
                for axis, span in box.items():
                    found[axis].append(span)
        return {axis: hull(spans) for axis, spans in found.items()}

    # ------------------------------------------------------------ buffers

    def buffer(
        self, tensor: Tensor, names: Iterable[str], made: Made, *, copies: int = 1, part: Part | None = None,
        rolls: bool = True,
    ) -> Place:  # fmt: skip
        """A buffer in SRAM for what layers touch of a tensor; with `rolls`, along an axis that rolls a ring, in the body
        of the loop that moves it, which keeps what later passes read."""
        block, slack, ring, box = self.code.block, 1, None, self.box_of(tensor, names, made)
        for roll in self.rolls if rolls else ():
            wide = self.box_of(tensor, names, roll.made)
            ring = self.ring_of(wide, roll)
            if ring is not None:
                block, box = roll.block, wide
                if copies > 1 and self.code.depth == roll.level + 1:
                    ring, slack = (ring[0], ring[1] + step_at(box[ring[0]], roll.level)), 2
                break
        has = dict[Axis, Span]()
        if part is not None:
            axis = next(a for a in tensor.axes if a.name == part.axis)
            if not box[axis].start.is_constant:
                raise NotLowered(f"resident {tensor.name} [{part.axis} {part.start}:{part.stop}]: a loop cuts the axis")
            box[axis] = has[axis] = Span(Affine(part.start), part.stop - part.start, part.stop)
        planes = self.planes(tensor)
        strides, size = packed(self.dram.order(tensor), box, self.elements[tensor], ring)
        own = {"copies": copies} if ring is None else {"rolling": slack}
        size_bytes = aligned(size * planes)
        alloc = isa.AllocOp("sram", size_bytes, copies) if ring is None else isa.AllocOp("sram", size_bytes, rolling=slack)
        block.add_op(alloc)
        taken = size_bytes * own.get("copies", 1)
        self.used += taken
        origin = {axis: span.start for axis, span in box.items() if ring is None or axis is not ring[0]}
        return Place(
            alloc.buffer, "sram", self.elements[tensor], strides, origin, has, ring, planes=planes, plane_bytes=size,
            taken=taken,
        )  # fmt: skip

    def planes(self, tensor: Tensor) -> int:
        maker = self.network.maker.get(tensor)
        return STATISTICS if maker is not None and maker.role == "sums" else 1

    def ring_of(self, box: Mapping[Axis, Span], roll: Roll) -> tuple[Axis, int] | None:
        """The axis along which a box rolls in a loop, and its positions; none where no pass needs what others had."""
        for axis, span in box.items():
            step = step_at(span, roll.level)
            if 0 < step < span.extent:
                return axis, span.extent
        return None

    def begin(self, node: Sequence, resident: Resident, made: Made, is_made: bool, room: int) -> int:
        """A residency begins: its buffer, and what is in it if nothing here makes that; a pass ahead where there is room
        for a second copy, whose bytes are returned."""
        tensor = self.tensors[resident.tensor]
        if resident.sharded or resident.memory != "sram":
            raise NotLowered(f"resident {resident.tensor}: shares of clusters, and other memories than SRAM")
        names = [name for child in node.children[resident.first : resident.last + 1] for name in layers_in(child)]
        if resident.storage_of:
            self.here[tensor].append(self.in_storage(tensor, self.tensors[resident.storage_of]))
            return 0
        box = self.box_of(tensor, names, made)
        size = math.prod(span.extent for span in box.values()) * size_of(self.elements[tensor])
        is_ahead = not is_made and self.code.stage > 0 and size <= room
        gone = self.missing(tensor)
        place = self.buffer(tensor, names, made, copies=1 + is_ahead, part=resident.part)
        if gone and resident.part is None and not is_made:
            place = replace(place, has=gone, completes=True)
        elif gone and not is_made:
            place = replace(place, has={axis: common(has, gone.get(axis, has)) for axis, has in place.has.items()})
        with self.code.at_stage(0 if is_ahead else self.code.stage):
            if not is_made and not self.is_made_anew(tensor):
                self.move("load", tensor, box, place, names, self.conditions_of(tensor, names, made))
            elif levels := self.sum_levels(self.network.maker[tensor], made):
                self.move("load", tensor, box, place, names, [passes_before(levels) - 1])
        self.here[tensor].append(place)
        return size * is_ahead

    def in_storage(self, tensor: Tensor, old: Tensor) -> Place:
        """The place of a tensor that lies where its maker reads another one, position for position."""
        place, maker = self.here[old][-1], self.network.maker[tensor]
        self.here[old][-1] = replace(place, taken=0)
        index = next(p.by_leaf for operand in maker.operands for p in operand.pieces if p.tensor is old)
        return place.through(index)

    def is_made_anew(self, tensor: Tensor) -> bool:
        """Whether its readers make it themselves."""
        maker = self.network.maker.get(tensor)
        return maker is not None and all(kernel.is_nothing for kernel in kernels_of(maker))

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

    def move(
        self, way: str, tensor: Tensor, box: Mapping[Axis, Span], place: Place, names: Iterable[str],
        conditions: Iterable[Affine] = (),
    ) -> None:  # fmt: skip
        """A box between DRAM and SRAM: of what rolls, what no pass had before; in passes in which all conditions are 0 or
        more."""
        self.code.layer = self.numbers[next(iter(names))]
        conditions = list(conditions)
        if way == "store":
            home, parts = self.dram.stored(tensor)
            if home is not None:
                transfer(self.code, "gdma", box, place, home, conditions)
            for part in parts:
                part.store(self.code, box, place, conditions)
            return
        for roll in self.rolls if place.ring is not None else ():
            box = {axis: rolled(span, roll.level) for axis, span in box.items()}
        gates = [self.rolls[-1].gates.get(name) for name in names] if self.rolls else []
        first = min((gate for gate in gates if gate is not None), key=lambda gate: gate.first, default=None)
        if gates and None not in gates and first is not None and not self.does_roll(box):
            conditions.append(Affine.index(first.level) - first.first)
        transfer(self.code, "gdma", box, self.dram.of(tensor), place, conditions)
        if not conditions and not place.has:
            self.dram.loaded(self.code, tensor, box, place)

    def conditions_of(self, tensor: Tensor, names: Iterable[str], made: Made) -> list[Affine]:
        """Numbers that are 0 or more in passes in which layers read something of a tensor."""
        found: set[tuple[Affine, ...]] = set()
        for name in names:
            pieces = (p for operand in self.layers[name].operands for p in operand.pieces if p.tensor is tensor)
            for piece in pieces:
                asked = presence(piece, made[name])
                found.add(tuple(each for each in asked if self.code.extremes(each)[0] < 0))
        return list(found.pop()) if len(found) == 1 else []

    def does_roll(self, box: Mapping[Axis, Span]) -> bool:
        return bool(self.rolls) and any(step_at(span, self.rolls[-1].level) > 0 for span in box.values())

    # ------------------------------------------------------------ computes

    def compute(self, node: Compute, made: Made, held: Held) -> None:
        own = self.own(node, held)
        last = {tensor: name for name in node.layers for tensor in (self.layers[name].result, *self.read_by(name))}
        for name in node.layers:
            layer = self.layers[name]
            early = self.read_by(name) & self.carried.keys()  # states, which layers read before they are made
            for tensor in (t for t in own if t is layer.result or t in early):
                if not self.here[tensor]:
                    maker = self.network.maker[tensor]
                    users = [n for n in node.layers if n == maker.name or tensor in self.read_by(n)]
                    self.here[tensor].append(self.handed(maker, users, made, own, last))
            self.layer(node, layer, made, held)
            for tensor in (t for t in own if last[t] == name):
                self.used -= self.here[tensor].pop().taken

    def handed(
        self, layer: Layer, users: list[str], made: Made, own: Iterable[Tensor], last: Mapping[Tensor, str]
    ) -> Place:  # fmt: skip
        """Where a result lies that layers of a compute hand on: in the storage of what its maker reads last, if it may."""
        if layer.storage_of is not None:
            (piece, *others) = layer.operands[layer.storage_of].pieces
            old = piece.tensor
            is_free = not others and old in own and last[old] == layer.name and old not in self.carried
            is_alike = self.elements[old] == self.elements[layer.result]
            wide = [(self.box_of(layer.result, users, roll.made), roll) for roll in self.rolls]
            does_roll = any(self.ring_of(box, roll) for box, roll in wide)  # a ring is as long as its own readers need
            if is_free and is_alike and not does_roll and self.here[old][-1].ring is None:
                return self.in_storage(layer.result, old)
        return self.buffer(layer.result, users, made)

    def read_by(self, name: str) -> set[Tensor]:
        return {piece.tensor for operand in self.layers[name].operands for piece in operand.pieces}

    def layer(self, node: Compute, layer: Layer, made: Made, held: Held) -> None:
        """A layer: with slices of what is streamed, where something is."""
        self.code.layer = self.numbers[layer.name]
        spans = made[layer.name]
        if all(kernel.is_nothing for kernel in kernels_of(layer)):
            return
        read = dict.fromkeys(self.read_by_in_order(layer))
        streams = [tensor for tensor in read if not self.is_here(tensor) and not self.is_made_anew(tensor)]
        is_stored = not self.is_here(layer.result)
        if streams or is_stored:
            self.streamed(layer, spans, streams, is_stored)
        else:
            self.part(layer, spans)

    def read_by_in_order(self, layer: Layer) -> list[Tensor]:
        return [piece.tensor for operand in layer.operands for piece in operand.pieces]

    def is_here(self, tensor: Tensor) -> bool:
        return any(not place.has or place.completes for place in self.here[tensor])

    def missing(self, tensor: Tensor) -> dict[Axis, Span]:
        """Positions that no place in SRAM has, where some have others: of each axis along which there are parts, those
        behind them."""
        return missing_of(tensor, (place for place in self.here[tensor] if not place.completes))

    def streamed(self, layer: Layer, spans: Mapping[Axis, Span], streams: list[Tensor], is_stored: bool) -> None:
        """Slices along one axis of all that comes from DRAM or goes there; what does not have the axis, whole."""
        tensors = [*streams, *([layer.result] if is_stored else [])]
        own_boxes = lambda tensor, part: self.box_of(tensor, [layer.name], {layer.name: dict(part)})  # noqa: E731
        chosen = SliceChoice(
            self.code.target, layer, spans, tensors, self.dram.form, own_boxes, self.capacity - self.used, self.code.depth,
            lambda part: self.pieces(layer, part, math.inf).cycles, self.steps(layer),
        ).best()  # fmt: skip
        axis, step, moving = chosen.axis, chosen.step, chosen.moving
        count = 1 if axis is None else ceil_div(span_of(spans, axis).extent, step)
        used, names = self.used, [layer.name]
        boxes = {tensor: self.box_of(tensor, names, {layer.name: dict(spans)}) for tensor in tensors}
        for tensor in (t for t in tensors if t not in moving):
            self.stream(layer, tensor, spans, 1)
        before = self.code.stage
        with self.code.repeat(count) as index:
            inner = dict(spans)
            if axis is not None:
                own = span_of(spans, axis)
                limit = own.limit
                if count * step > own.extent and self.code.extremes(end(own))[0] < own.bound:
                    limit = end(own)
                inner[axis] = Span(own.start + index * step, step, own.bound, limit)
            for tensor in (t for t in tensors if t in moving):
                self.stream(layer, tensor, inner, 2 if count > 1 else 1)
            later = 1 if count > 1 and moving & {*streams} else 0
            with self.code.at_stage(self.code.stage + later):
                self.part(layer, inner)
                if layer.result in moving:
                    self.store(layer, self.box_of(layer.result, names, {layer.name: inner}))
        self.code.stage = before
        if is_stored and layer.result not in moving:
            self.store(layer, boxes[layer.result])
        for tensor in tensors:
            self.here[tensor].pop()
        self.used = used

    def stream(self, layer: Layer, tensor: Tensor, spans: Mapping[Axis, Span], copies: int) -> None:
        made = {layer.name: dict(spans)}
        box = self.box_of(tensor, [layer.name], made)
        place = self.buffer(tensor, [layer.name], made, copies=copies, rolls=False)
        gone = self.missing(tensor)
        place = replace(place, has=gone, completes=True)
        if tensor is not layer.result:
            self.move("load", tensor, box, place, [layer.name], self.conditions_of(tensor, [layer.name], made))
        elif levels := self.sum_levels(layer, made):
            self.move("load", tensor, box, place, [layer.name], [passes_before(levels) - 1])
        self.here[tensor].append(place)

    def store(self, layer: Layer, box: Mapping[Axis, Span]) -> None:
        self.move("store", layer.result, box, self.here[layer.result][-1], [layer.name])

    # ------------------------------------------------------------ cores

    def part(self, layer: Layer, spans: Mapping[Axis, Span]) -> None:
        """A part of a layer whose operands and result lie in SRAM."""
        found = self.pieces(layer, spans)
        gates = tuple(roll.gates[layer.name] for roll in self.rolls if layer.name in roll.gates)
        levels = self.sum_levels(layer, {layer.name: dict(spans)})
        part = LayerPart(
            found.kernel, spans, found.pieces, self.sources, self.here[layer.result], self.elements, gates,
            Sums(tuple(levels), tuple(self.code.counts[level] for level in levels), self.begins_there(layer)),
        )  # fmt: skip
        part.write(self.code)

    def pieces(self, layer: Layer, spans: Spans, none: float | None = None) -> Candidate:
        """The kernel and the pieces that take the fewest cycles.  NotLowered where none fits, unless `none` says what that
        takes."""
        found: Candidate | None = None
        for kernel in kernels_of(layer):
            cut = [axis for axis in kernel.whole if span_of(spans, axis).extent < axis.extent]
            if cut:
                raise NotLowered(f"{layer.name}: it needs all of {cut[0].name} at a time")
            best = PieceChoice(self.code, kernel, spans, self.elements, self.known, self.steps(layer)).best()
            if best is not None and (found is None or best.cycles < found.cycles):
                found = best
        if found is None and none is not None:
            return Candidate(kernels_of(layer)[0], Pieces({}, None, ()), none)
        if found is None:
            raise NotLowered(f"{layer.name}: no piece of it fits the cores")
        return found

    def steps(self, layer: Layer) -> Mapping[Axis, int]:
        if layer not in self._steps:
            self._steps[layer] = steps_of(layer, self.dram.order)
        return self._steps[layer]

    def sum_levels(self, layer: Layer, made: Made) -> list[int]:
        """Loops over whose passes its sums go on."""
        spans = [span_of(made[layer.name], a) for a in layer.combine if a not in layer.result.axes]
        return [k for k in range(self.code.depth) if any(step_at(span, k) for span in spans)]

    def sources(self, tensor: Tensor) -> list[Place]:
        """Where an operand lies, each place with what it has: the innermost that has all, or several parts."""
        found = list[Place]()
        for place in reversed(self.here[tensor]):
            found.append(place)
            if not place.has:
                break
        return found

    def begins_there(self, layer: Layer) -> int | None:
        """The operand in whose storage the result lies."""
        if layer.storage_of is None:
            return None
        tensors = {piece.tensor for piece in layer.operands[layer.storage_of].pieces}
        buffers = {place.buffer for tensor in tensors for place in self.here[tensor]}
        return layer.storage_of if any(place.buffer in buffers for place in self.here[layer.result]) else None


def missing_of(tensor: Tensor, places: Iterable[Place]) -> dict[Axis, Span]:
    """What places leave out that have the first or the last positions along some axis each.  NotLowered for others."""
    found = dict[Axis, tuple[int, int]]()
    for place in places:
        for axis, has in place.has.items():
            low, high = found.get(axis, (0, axis.extent))
            start, stop = has.start.base, has.start.base + has.extent
            if start <= low:
                low = max(low, stop)
            elif stop >= high:
                high = min(high, start)
            else:
                raise NotLowered(f"resident {tensor.name}: a part from the middle of {axis.name}")
            found[axis] = low, max(low, high)
    return {axis: Span(Affine(low), high - low, high) for axis, (low, high) in found.items()}
