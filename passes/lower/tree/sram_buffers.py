# Tests: test/passes/lower/tree/test_lower_plan.py
"""Buffers of tensors in SRAM: what they hold, and what comes into them from DRAM or goes there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import Affine, Element, Span
from frustum.dialects.plan.carried import running_bytes
from frustum.dialects.plan.tree import Part
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.externals import DramTensors, planes_of
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.loop_spans import Made, Roll
from frustum.passes.lower.tree.over_clusters import OverClusters
from frustum.passes.lower.tree.places import Place, packed, transfer
from frustum.passes.lower.tree.running import RunningNumbers
from frustum.passes.lower.tree.spans import (
    NotLowered,
    end,
    fresh,
    is_repeated,
    latest,
    presence,
    rolled,
    settled,
    span_of,
    step_at,
)


@dataclass(frozen=True)
class Stored:
    """What all passes of the loops that are open store of a tensor, inside these runs."""

    runs: tuple[tuple[int, int], ...]
    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def of(code: Code, runs: tuple[tuple[int, int], ...], box: Mapping[Axis, Span]) -> Stored:
        found = list[tuple[int, int]]()
        for span in box.values():
            low, high = code.extremes(span.start)[0], code.extremes(end(span))[1]
            last = span.bound if span.limit is None else min(span.bound, code.extremes(span.limit)[1])
            found.append((max(0, low), min(high, last)))
        return Stored(runs, tuple(found))

    def meets(self, other: Stored) -> bool:
        """Whether passes of another run of a loop store the same."""
        both = zip(self.runs, other.runs, strict=False)
        is_other = any(mine[0] == theirs[0] and mine != theirs for mine, theirs in both)
        return is_other and all(a < d and c < b for (a, b), (c, d) in zip(self.ranges, other.ranges, strict=True))


class SramBuffers(OverClusters, RunningNumbers):
    """Where tensors lie while a plan is written; `dram` has their homes."""

    dram: DramTensors
    elements: Mapping[Tensor, Element]
    numbers: Mapping[str, int]
    here: dict[Tensor, list[Place]]
    used: int
    sums: Mapping[str, Element]
    """Types in which sums wait between passes, by their tensor's name."""
    at_once: set[Tensor]
    """Statistics that one instruction makes together with what they are for."""
    rolls: list[Roll]
    runs: list[tuple[int, int]]
    """Of the plan's loops that are open, those whose passes are written in several runs, and which it is."""
    stored: dict[Tensor, list[Stored]]
    below: set[Tensor]
    """What lies in the ring of the result that takes its place."""

    # ------------------------------------------------------------ buffers

    def buffer(
        self, tensor: Tensor, names: Sequence[str], made: Made, *, copies: int = 1, part: Part | None = None,
        rolls: bool = True, held: dict[Axis, Span] | None = None,
    ) -> Place:  # fmt: skip
        """A buffer in SRAM for what layers touch of a tensor; with `rolls`, along an axis that rolls a ring, in the
        body of the loop that moves it, which keeps what later passes read.  `held`: the box, if it is another one."""
        block, slack, ring, box = self.code.block, 1, None, held or self.box_of(tensor, names, made)
        key, rings = (tensor, tuple(names)), dict[tuple[Tensor, tuple[str, ...]], Place]()
        for roll in self.rolls if rolls else ():
            found = self.ring_of(tensor, names, roll)
            if found is not None:
                block, (ring, box), rings = roll.block, found, roll.rings
                if copies > 1 and self.code.depth == roll.level + 1:
                    ring, slack = (ring[0], ring[1] + step_at(box[ring[0]], roll.level)), 2
                break
        if key in rings:
            self.used += rings[key].taken
            return rings[key]
        has, maker = dict[Axis, Span](), self.network.maker.get(tensor)
        if part is not None:
            axis = next(a for a in tensor.axes if a.name == part.axis)
            has[axis] = Span(Affine(part.start), part.stop - part.start, part.stop)
            box[axis] = has[axis] if box[axis].start.is_constant else box[axis]
        planes, slot = self.planes(tensor), self.slot_of(tensor)
        strides, size = packed(self.dram.order(tensor), box, slot, ring)
        size_bytes = aligned(max(1, size * planes))
        if ring is None:
            alloc, taken = isa.AllocOp("sram", size_bytes, copies), size_bytes * copies
        else:
            alloc, taken = isa.AllocOp("sram", size_bytes, rolling=slack), size_bytes
        block.add_op(alloc)
        self.take(taken)
        running = None
        if maker is not None and maker.role == "sums" and isinstance(maker.source, g.NormaliseOp):
            running = self.running_place(tensor.axes, box)
            taken += running_bytes(math.prod(span.extent for span in box.values()))
        origin = {axis: span.start for axis, span in box.items() if ring is None or axis is not ring[0]}
        place = rings[key] = Place(
            alloc.buffer, "sram", self.elements[tensor], strides, origin, has, ring, planes=planes, plane_bytes=size,
            taken=taken, sums=None if slot == self.elements[tensor] else slot, box=box, users=tuple(names),
            running=running,
        )  # fmt: skip
        return place

    def size_of(self, tensor: Tensor, box: Mapping[Axis, Span]) -> int:
        """Bytes of a box of a tensor."""
        return math.prod(span.extent for span in box.values()) * size_of(self.elements[tensor]) * self.planes(tensor)

    def slot_of(self, tensor: Tensor) -> Element:
        """The type that a tensor has room for: that of sums that wait where it is wider."""
        own = self.elements[tensor]
        return max((own, self.sums.get(tensor.name, own)), key=size_of)

    def planes(self, tensor: Tensor) -> int:
        return planes_of(self.network.maker.get(tensor))

    def ring_of(
        self, tensor: Tensor, names: Sequence[str], roll: Roll
    ) -> tuple[tuple[Axis, int], dict[Axis, Span]] | None:
        """The axis along which what layers touch of a tensor rolls in a loop, how many positions stay, and the box;
        none where no pass needs what others had."""
        if roll.at is None:
            box = self.box_of(tensor, names, roll.made)
            for axis, span in box.items():
                if 0 < step_at(span, roll.level) < span.extent:
                    return (axis, span.extent), box
            return None
        boxes = {n: self.box_of(tensor, names, roll.at(n)) for n in range(-roll.period, roll.period)}
        for axis in tensor.axes:
            if not any(step_at(boxes[n][axis], roll.level) > 0 for n in range(roll.period)):
                continue
            most, stays = 0, False
            for n in range(roll.period):
                own = boxes[n][axis]
                had = latest([boxes[m][axis] for m in range(-roll.period, n)])
                if own.extent:
                    reach = own.extent if had is None else max(own.extent, (end(had) - own.start).base)
                    most, stays = max(most, reach), stays or fresh(own, had).extent < own.extent
            if stays:
                return (axis, most), max(boxes.values(), key=lambda box: box[axis].extent)
        return None

    def in_storage(self, tensor: Tensor, old: Tensor, users: Sequence[str], box: Mapping[Axis, Span]) -> Place:
        """The place of a tensor that lies where its maker reads another one, position for position."""
        place, maker = self.here[old][-1], self.network.maker[tensor]
        self.here[old][-1] = replace(place, taken=0)
        index = next(p.by_leaf for operand in maker.operands for p in operand.pieces if p.tensor is old)
        element = self.elements[tensor]
        return replace(place.through(index), element=element, sums=None, users=tuple(users), box=box)

    def handed(
        self, layer: Layer, users: list[str], made: Made, own: Sequence[Tensor], last: Mapping[Tensor, str],
        names: Sequence[str],
    ) -> Place:  # fmt: skip
        """Where a result lies that these layers of a compute hand on: in the storage of what its maker reads last, if
        it may."""
        if layer.storage_of is not None:
            (piece, *others) = layer.operands[layer.storage_of].pieces
            old = piece.tensor
            is_free = not others and bool(self.here[old]) and old in own and last[old] == layer.name
            is_free &= old not in self.carried
            is_alike = self.elements[old] == self.elements[layer.result]
            does_roll = self.does_stay(layer.result, users)
            box = self.box_of(layer.result, users, made)
            is_larger = any(box[axis].extent > span_of(made[layer.name], axis).extent for axis in box)
            # a ring is as long as its own readers need, and what a cluster gets beside its share lies behind it
            is_there = old in self.below if does_roll else not is_larger
            if is_free and is_alike and is_there and (does_roll or self.here[old][-1].ring is None):
                return self.in_storage(layer.result, old, users, box)
        return self.ring_below(layer, users, made, own, last, names) or self.buffer(layer.result, users, made)

    def does_stay(self, tensor: Tensor, users: Sequence[str]) -> bool:
        """Whether rows of a tensor stay for later passes of a rolling loop."""
        return any(self.ring_of(tensor, users, roll) for roll in self.rolls)

    def ring_below(
        self, layer: Layer, users: Sequence[str], made: Made, own: Sequence[Tensor], last: Mapping[Tensor, str],
        names: Sequence[str],
    ) -> Place | None:  # fmt: skip
        """Of a result that its last reader replaces by one that rolls, the place in the ring of that."""
        taker = self.layers[last[layer.result]]
        if taker.storage_of is None or taker.result not in own or layer.result in self.carried:
            return None
        (piece, *others) = taker.operands[taker.storage_of].pieces
        theirs = [name for name in names if name == taker.name or taker.result in self.read_by(name)]
        is_alike = self.elements[layer.result] == self.elements[taker.result]
        if others or piece.tensor is not layer.result or not is_alike or self.does_stay(layer.result, users):
            return None
        index = turned_back(piece)
        if index is None or not self.does_stay(taker.result, theirs):
            return None
        self.below.add(layer.result)
        box = self.box_of(layer.result, users, made)
        return replace(self.buffer(taker.result, theirs, made).through(index), users=tuple(users), box=box)

    def begins_there(self, layer: Layer) -> int | None:
        """The operand in whose storage the result lies."""
        if layer.storage_of is None:
            return None
        tensors = {piece.tensor for piece in layer.operands[layer.storage_of].pieces}
        buffers = {place.buffer for tensor in tensors for place in self.here[tensor]}
        return layer.storage_of if any(place.buffer in buffers for place in self.here[layer.result]) else None

    # ------------------------------------------------------------ what is there

    def is_here(self, tensor: Tensor) -> bool:
        return any(not place.has or place.completes for place in self.here[tensor])

    def missing(self, tensor: Tensor, box: Mapping[Axis, Span]) -> dict[Axis, Span]:
        """Positions of a box that no place in SRAM has, where some have others: of each axis along which there are
        parts, those beside them."""
        places = (place for place in self.here[tensor] if not place.completes and not place.is_inner)
        return missing_of(tensor, places, box)

    def sources(self, tensor: Tensor) -> list[Place]:
        """Where an operand lies, each place with what it has: the innermost that has all, or several parts."""
        places = self.here[tensor][::-1]
        whole = next((n for n, place in enumerate(places) if not place.has), len(places))
        return places[: whole + 1]

    def move(
        self, way: str, tensor: Tensor, box: Mapping[Axis, Span], place: Place, names: Sequence[str],
        conditions: Sequence[Affine] = (),
    ) -> None:  # fmt: skip
        """A box between DRAM and SRAM: of what rolls, what no pass had before; in passes in which all conditions are 0
        or more."""
        self.code.layer = self.numbers[next(iter(names))]
        conditions, is_always = list(conditions), not conditions
        if way == "store":
            with self.code.at_stage(self.code.stage + place.is_behind):
                self.leave_shares(tensor, box, place, conditions)
            return
        for roll in self.rolls if place.ring is not None else ():
            place = from_first(place, box, names, roll)
            box = self.new_in(tensor, names, box, roll)
        gates = [self.rolls[-1].gates.get(name) for name in names] if self.rolls else []
        first = min((gate for gate in gates if gate is not None), key=lambda gate: gate.first, default=None)
        if gates and None not in gates and first is not None and (place.ring is None or not self.does_roll(box)):
            conditions.append(Affine.index(first.level) - first.first)
        mine = [box]
        if self.dealt is not None and self.dealt.is_exchanged:
            self.check_around(tensor, box)
            mine = [self.own_part(box), *self.beyond_shares(box)]
        for part in mine:
            for k in range(self.planes(tensor)):
                transfer(self.code, "gdma", part, self.dram.of(tensor).plane(k), place.plane(k), conditions)
        if mine[0] is not box:
            self.exchange(tensor, place, mine[0], box, conditions)
        if is_always and not place.has and not self.runs:
            self.dram.loaded(self.code, tensor, box, place, conditions)

    def leave_shares(
        self, tensor: Tensor, box: Mapping[Axis, Span], place: Place, conditions: Sequence[Affine],
        but: Place | None = None,
    ) -> None:  # fmt: skip
        """Each cluster's own share of a box goes to DRAM, and from the last one what is left over."""
        self.leave(tensor, self.own_part(box), place, conditions, but)
        is_last = Affine(1 - self.code.clusters, cluster=1)
        for rest in self.beyond_shares(box):
            self.leave(tensor, rest, place, [*conditions, is_last], but)

    def leave(
        self, tensor: Tensor, box: Mapping[Axis, Span], place: Place, conditions: Sequence[Affine],
        but: Place | None = None,
    ) -> None:  # fmt: skip
        """A box goes to DRAM: to its home, and to outputs that have it; `but`: an output that has it already."""
        home, parts = self.dram.stored(tensor, but)
        conditions = [*conditions, *self.once(tensor, box)] if home is not None or parts else []
        for k in range(self.planes(tensor)):
            if home is not None:
                transfer(self.code, "gdma", box, place.plane(k), home.plane(k), conditions)
        for part in parts:
            part.store(self.code, box, place, conditions)

    def new_in(
        self, tensor: Tensor, names: Sequence[str], box: Mapping[Axis, Span], roll: Roll
    ) -> dict[Axis, Span]:  # fmt: skip
        """What of a box no earlier pass of a loop had."""
        if roll.at is None:
            return {axis: rolled(span, roll.level) for axis, span in box.items()}
        earlier = [self.box_of(tensor, names, roll.at(n)) for n in range(roll.number - 2 * roll.period, roll.number)]
        found = dict(box)
        for axis, span in box.items():
            if step_at(span, roll.level) > 0:
                found[axis] = fresh(span, latest([each[axis] for each in earlier]))
        return found

    def once(self, tensor: Tensor, box: Mapping[Axis, Span]) -> list[Affine]:
        """Numbers that are 0 or more in the passes in which a part of a result is stored, each element in one alone.
        NotLowered where passes make parts of each other's."""
        counts, stored = self.code.counts, Stored.of(self.code, tuple(self.runs), box)
        if is_repeated(box, counts, self.code.clusters) or any(map(stored.meets, self.stored[tensor])):
            raise NotLowered(f"{tensor.name}: several passes store the same of it")
        self.stored[tensor].append(stored)
        still = [level for level in range(len(counts)) if not any(step_at(span, level) for span in box.values())]
        return [Affine.index(level, -1) for level in still]

    def store(self, layer: Layer, box: Mapping[Axis, Span]) -> None:
        self.move("store", layer.result, box, self.here[layer.result][-1], [layer.name])

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

    def is_made_anew(self, tensor: Tensor) -> bool:
        """Whether its readers make it themselves."""
        maker = self.network.maker.get(tensor)
        return maker is not None and all(kernel.is_nothing for kernel in self.kernels(maker))

    def kernels(self, layer: Layer) -> list[Kernel]:
        """The ways in which cores make a layer here."""
        running = self.running(layer)
        axes = () if running is None or layer.role == "sums" else tuple(running.strides)
        found = kernels_of(layer, is_parted=self.statistics_of(layer) not in self.at_once, running=axes)
        summed = {axis for axis in layer.axes if axis not in layer.result.axes}
        if self.dealt is None or self.dealt.group.isdisjoint(summed):
            return found
        return [kernel.of_parts(self.code.clusters, are_equal=self.dealt.are_equal) for kernel in found]

    def statistics_of(self, layer: Layer) -> Tensor | None:
        """What a norm or a softmax knows of its operand: the result of its first layer, which its second one reads."""
        if layer.role == "sums":
            return layer.result
        makers = (self.network.maker.get(tensor) for tensor in self.read_by_in_order(layer))
        return next((m.result for m in makers if m and m.role == "sums" and m.source is layer.source), None)


def turned_back(piece: Piece) -> list[tuple[Axis, Position]] | None:
    """The axes of a reader's result by those of the tensor that it reads position for position; None where it does
    not."""
    found = list[tuple[Axis, Position]]()
    for axis, position in piece.by_leaf:
        own = None if position is None else position.refined()
        if own is None or not own.is_linear or own.offset or [factor for _, factor in own.terms] != [1]:
            return None
        found.append((own.terms[0][0], Position.of(axis)))
    return found


def from_first(place: Place, box: Mapping[Axis, Span], names: Sequence[str], roll: Roll) -> Place:
    """A ring without what lies before all that the plan's first pass reads, if no layer makes anything before that."""
    assert place.ring is not None
    axis = place.ring[0]
    step, start = step_at(box[axis], roll.level), box[axis].start
    first = start.base + step * roll.before
    is_early = any(name not in roll.gates or roll.gates[name].first < roll.before for name in names)
    if not roll.before or is_early or first <= 0 or start != Affine(start.base) + Affine.index(roll.level, step):
        return place
    return replace(place, has={axis: Span(Affine(first), axis.extent - first, axis.extent), **place.has})


def missing_of(tensor: Tensor, places: Iterable[Place], box: Mapping[Axis, Span]) -> dict[Axis, Span]:
    """What of a box is beside what places have of its first or last positions along some axis each; what they have
    from its middle is missing too.  NotLowered where that depends on the pass."""
    found = dict[Axis, tuple[int, int]]()
    for place in places:
        for axis, has in place.has.items():
            own = settled(box[axis])
            is_still = own.start.is_constant and own.limit is None
            ends = (own.start.base, own.start.base + own.extent) if is_still else (0, axis.extent)
            low, high = found.get(axis, ends)
            start, stop = has.start.base, has.start.base + has.extent
            if start <= low:
                low = max(low, min(stop, high))
            elif stop >= high:
                high = min(high, max(start, low))
            elif not is_still:
                raise NotLowered(f"resident {tensor.name}: a part from the middle of {axis.name}")
            found[axis] = low, high
    return {axis: Span(Affine(low), high - low, high) for axis, (low, high) in found.items()}
