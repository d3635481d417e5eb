# Tests: test/dialects/plan/test_count.py
"""Counts what a plan moves and holds, pass by pass: every box of every tensor, no closed forms of passes.

It shares nothing with the evaluator, of which it is the witness, and is what `frustum.check_plan` runs.
A buffer has one size for all passes and clusters: along each axis the most that is new in a pass.  A rolling loop has
beside it what earlier passes have made or loaded and later ones still read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import NamedTuple

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import PlanError, check_plan, with_copies
from frustum.dialects.plan.clusters import (
    Holding,
    Links,
    Side,
    Taken,
    clusters_of,
    distributed_in,
    own_part,
    sides_of,
)
from frustum.dialects.plan.occupancy import (
    SLICE,
    SLICE_COPIES,
    Counted,
    Measured,
    Occupancy,
    Place,
    extent_bytes,
)
from frustum.dialects.plan.ranges import Held, Moving, Range, is_empty, without
from frustum.dialects.plan.storage import Overwritten
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Over, Part, Resident, Sequence

__all__ = ["SLICE", "SLICE_COPIES", "Counted", "CountingWalk", "PlanError", "count"]


class Begun(NamedTuple):
    """A residency, and what sides touch in it."""

    resident: Resident
    tensor: Tensor
    taken: Taken
    holding: Holding | None


def count(network: AxisNetwork, plan: Node) -> Counted:
    """What the plan costs.  PlanError where it is none."""
    check_plan(network, plan)
    walk = CountingWalk(with_copies(network, plan), plan)
    walk.run()
    return walk.counted


class CountingWalk(Measured):
    """Through all passes of a plan."""

    links: Links | None
    overwritten: list[Overwritten]
    """Of each cluster what its storage has lost."""

    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        super().__init__(network, plan)
        self.overwritten = [Overwritten(self) for _ in range(clusters_of(plan))]
        self.links = Links(self) if any(distributed_in(plan)) else None
        self.around: list[Loop] = []

    def run(self) -> None:
        """Counts all passes."""
        self.visit(self.plan, (Side(tuple(range(clusters_of(self.plan))), {name: {} for name in self.layers}, {}),), {})
        self.counted.sram_bytes = Occupancy(self).peak(self.plan, ())

    # ------------------------------------------------------------ nodes

    def visit(self, node: Node, sides: tuple[Side, ...], held: Held) -> None:
        """`sides`: clusters that make a pass at the same time."""
        with self.charged(node):
            match node:
                case Compute():
                    self.compute(node, sides, held)
                case Loop():
                    self.loop(node, sides, held)
                case Sequence():
                    self.sequence(node, sides, held)

    def loop(self, node: Loop, sides: tuple[Side, ...], held: Held) -> None:
        if node.over is Over.CLUSTERS:
            (side,) = sides
            inside = sides_of(self, node, side, self.around)
            if inside and self.links:
                self.visit(node.body, inside, held)
                self.links.end(node, side)
            return
        if self.links and node.halo is Halo.ROLLING:
            self.links.begin(node)
        self.around.append(node)
        for now in zip_longest(*(self.passes_of(node, side) for side in sides)):
            self.visit(node.body, tuple(side for side in now if side is not None), held)
        self.around.pop()

    def passes_of(self, node: Loop, side: Side) -> Iterator[Side]:
        passes, moving = self.passes(node, side.spans, side.own)
        for each in moving:
            self._note_moving(node, each)
        for k, here in enumerate(passes):
            new = {(each.place, each.axis): each.new[k] for each in moving if each.new}
            yield side._replace(spans=here, fresh={**side.fresh, **new} if new else side.fresh)

    def _note_moving(self, node: Loop, moving: Moving) -> None:
        place = id(node), moving.place, moving.tensor
        touched = [each for each in moving.has if each]
        if touched:
            own = self.wholes[place]
            extent = max(high for _, high in touched) - min(low for low, _ in touched)
            own[moving.axis] = max(own.get(moving.axis, 0), extent)
        stays = max((high - low for low, high in moving.stays), default=0)
        if stays:
            _, most = self.stays.get(place, (moving.axis, 0))
            self.stays[place] = moving.axis, max(most, stays)

    # ------------------------------------------------------------ residents

    def sequence(self, node: Sequence, sides: tuple[Side, ...], held: Held) -> None:
        if node.subsets:
            raise PlanError("a sequence on subsets: only children in order are counted", node)
        for k, child in enumerate(node.children):
            made = set(self.made_in(child))
            begin = [r for r in node.residents if r.first == k]
            begun = [self.begin(node, r, sides, held, self.tensors[r.tensor] in made) for r in begin]
            if self.links:
                self.links.enter(each.holding for each in begun)
            self.visit(child, sides, self.held_at(node, k, held))
            for each in begun:
                if each.tensor in made:
                    self.end(node, each, held)
            if self.links:
                self.links.leave(r for r in node.residents if r.last == k)

    def begin(
        self, node: Sequence, resident: Resident, sides: tuple[Side, ...], held: Held, is_made: bool
    ) -> Begun:
        """A residency begins: what is not made there, and sums that go on, are brought."""
        tensor = self.tensors[resident.tensor]
        boxes = ((side, self.new_box(tensor, node, resident, side.spans, side.fresh)) for side in sides)
        taken = [(side, box) for side, box in boxes if box is not None]
        for side, box in taken:
            does_roll = any(place == id(resident) for place, _ in side.fresh)
            for cluster in side.clusters:
                self.overwritten[cluster].begin(tensor, box if does_roll else None)
        holding = self.links.at_resident(resident, node, tensor, sides[0]) if self.links else None
        wanted = holding.spread(taken) if holding else taken
        self.note_all(id(resident), tensor, wanted)
        with self.charged(resident):
            if not is_made:
                self.bring(tensor, wanted, held.get(tensor))
            else:  # sums go on where they are made
                begun = [(side, box) for side, box in taken if self.goes_on(tensor, side)]
                self.counted.waits_in_dram |= bool(left(begun, held.get(tensor)))
                self.load(tensor, left(begun, held.get(tensor)), self.bits(tensor))
        if holding and not is_made:
            holding.fill(wanted)
        return Begun(resident, tensor, taken, holding)

    def end(self, node: Sequence, begun: Begun, held: Held) -> None:
        """Its maker is done: who holds it gets it, and DRAM where others want it."""
        with self.charged(begun.resident):
            if self.links and begun.holding and begun.taken:
                self.links.settle(begun.holding, begun.taken)
            if self.leaves(begun.tensor, node, begun.resident):
                self.store(self.network.maker[begun.tensor], left(begun.taken, held.get(begun.tensor)))

    def goes_on(self, tensor: Tensor, side: Side) -> bool:
        """Whether passes outside have begun the sums that the tensor's maker adds to."""
        maker = self.network.maker[tensor]
        return self.continues(maker, side.since(maker))

    @contextmanager
    def charged(self, node: Node | Resident) -> Iterator[None]:
        """What is counted meanwhile is of this node."""
        moved, received = self.counted.dram_bytes, self.counted.link_bytes
        yield
        self.counted.moved[id(node)] += self.counted.dram_bytes - moved
        self.counted.received[id(node)] += self.counted.link_bytes - received

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, sides: tuple[Side, ...], held: Held) -> None:
        own = set(self.own(node, held))
        if self.links:
            self.links.hand_on(node, own, sides[0])
        for name in node.layers:
            layer, made = self.layers[name], list[tuple[Side, Box]]()
            read: dict[Tensor, Taken] = {}
            for side in sides:
                span = side.spans[name]
                if is_empty(span):
                    continue
                whole = {axis: span.get(axis, (0, axis.extent)) for axis in layer.axes}
                operands = list(self.reads(layer, span))
                for cluster in side.clusters:
                    self.overwritten[cluster].computes(layer, whole, operands, node)
                self.counted.points[name] += len(side.clusters) * math.prod(b - a for a, b in whole.values())
                for tensor, box in self.streams(layer, span):
                    read.setdefault(tensor, []).append((side, box))
                made.append((side, {axis: whole[axis] for axis in layer.result.axes}))
            for tensor, taken in read.items():
                self.bring(tensor, taken, () if tensor in own else held.get(tensor), (id(node), name))
            self.make(node, layer, made, own, held)
        if self.links:
            self.links.leave([node])

    def bring(self, tensor: Tensor, taken: Taken, parts: tuple[Part, ...] | None, place: Place | None = None) -> None:
        """What lies in SRAM nowhere (`parts`: what does) is loaded; what other clusters have comes over links."""
        rest = left(taken, parts)
        if place is not None:
            self.note_all(place, tensor, rest)
        self.load(tensor, rest)
        if self.links:
            self.links.read(tensor, taken, place)

    def make(self, node: Compute, layer: Layer, made: Taken, own: set[Tensor], held: Held) -> None:
        """A result stays in the compute, or goes where it is resident, or to DRAM; a sum that earlier passes have begun
        is read again."""
        result = layer.result
        if self.links:
            self.links.made(layer, made)
        if result in own:
            self.note_all(id(node), result, made)
            return
        rest = left(made, held.get(result))
        self.note_all((id(node), layer.name), result, rest)
        self.store(layer, rest)
        begun = [(side, box) for side, box in rest if self.continues(layer, side.since(layer))]
        self.counted.waits_in_dram |= bool(begun)
        self.load(result, begun, self.bits(result))

    def note_all(self, place: Place, tensor: Tensor, taken: Taken) -> None:
        for _, box in taken:
            self.note(place, tensor, box)

    def load(self, tensor: Tensor, taken: Taken, bits: int | None = None) -> None:
        """Reads of DRAM: what several clusters read alike at one moment is sent to all.  `bits`: of sums that wait."""
        own = [(side, own_part(side, box) if side.is_exchanged else box) for side, box in taken]
        self.counted.read_bytes += bytes_of_all(bits or tensor.element_bits, own)
        if self.links and taken and taken[0][0].is_exchanged:
            self.links.exchange(tensor, taken)

    def store(self, layer: Layer, taken: Taken) -> None:
        """Writes of DRAM: what several clusters have alike is written once; their sums are added before."""
        is_whole = all(self.is_whole(layer, side.spans[layer.name]) for side, _ in taken)
        bits = layer.result.element_bits if is_whole else self.bits(layer.result)
        self.counted.write_bytes += bytes_of_all(bits, taken)
        if self.links and taken and layer.name in taken[0][0].begins:
            self.links.reduce(layer.result, taken[0][1], len(taken))


def left(taken: Taken, parts: tuple[Part, ...] | None) -> Taken:
    """What of boxes does not lie in SRAM already."""
    if parts == ():
        return []
    return [(side, rest) for side, box in taken if not is_empty(rest := without(box, parts or ()))]


def bytes_of_all(bits: int, taken: Taken) -> int:
    """Boxes that several sides have alike count once."""
    if len(taken) == 1:
        return bytes_of(bits, taken[0][1])
    times = Counter((id(side), tuple(box.items())) for side, box in taken)
    most: dict[tuple[tuple[Axis, Range], ...], int] = {}
    for (_, box), count in times.items():
        most[box] = max(most.get(box, 0), count)
    return sum(count * bytes_of(bits, dict(box)) for box, count in most.items())


def bytes_of(bits: int, box: Box) -> int:
    return extent_bytes(bits, (max(0, high - low) for low, high in box.values()))
