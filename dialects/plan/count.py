"""Counts what a plan moves and holds, pass by pass: every box of every tensor, no closed forms of passes.

It shares nothing with the evaluator, of which it is the witness, and is what `frustum.check_plan` runs.
A buffer has one size for all passes: along each axis the most that is new in a pass.  A rolling loop has beside it what
earlier passes have made or loaded and later ones still read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import ELEMENTS, PlanError, check_plan, operands_of, with_copies
from frustum.dialects.plan.ranges import Fresh, Held, Moving, Ranged, Spans, is_empty, without
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Part, Resident, Sequence, nodes_in

__all__ = ["Counted", "PlanError", "count"]

SLICE = 16
"""Positions of an axis in a slice of what is streamed: lines, or channels, of a matrix unit."""
SLICE_COPIES = 2

@dataclass
class Counted:
    """Bytes over the DRAM port, the most bytes of SRAM at a time, and points that layers compute.

    `moved` and `held` say the first two of nodes: DRAM bytes of residents too, by `id`.
    """

    read_bytes: int = 0
    write_bytes: int = 0
    sram_bytes: int = 0
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    moved: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    held: dict[int, int] = field(default_factory=dict)

    @property
    def dram_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def count(network: AxisNetwork, plan: Node) -> Counted:
    """What the plan costs.  PlanError where it is none."""
    check_plan(network, plan)
    walk = _Walk(with_copies(network, plan), plan)
    walk.visit(plan, {name: {} for name in walk.layers}, {}, {})
    walk.counted.sram_bytes = _Occupancy(walk).peak(plan, ())
    return walk.counted


class _Walk(Ranged):
    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        super().__init__(network, plan)
        self.counted = Counted()
        self.extents: dict[tuple[int | tuple[int, str], Tensor], dict[Axis, int]] = {}
        """Of each node or residency, and tensor there, the most that is new in a pass along each axis."""
        self.stays: dict[tuple[int, int, Tensor], tuple[Axis, int]] = {}
        """Of each rolling loop the most positions that stay from pass to pass."""
        self.wholes: dict[tuple[int, int, Tensor], dict[Axis, int]] = defaultdict(dict)
        """Of each loop the positions that all passes of it touch."""

    # ------------------------------------------------------------ nodes

    def visit(self, node: Node, spans: Spans, fresh: Fresh, held: Held) -> None:
        before = self.counted.dram_bytes
        match node:
            case Compute():
                self.compute(node, spans, held)
            case Loop():
                self.loop(node, spans, fresh, held)
            case Sequence():
                self.sequence(node, spans, fresh, held)
        self.counted.moved[id(node)] += self.counted.dram_bytes - before

    def loop(self, node: Loop, spans: Spans, fresh: Fresh, held: Held) -> None:
        passes, moving = self.passes(node, spans)
        for each in moving:
            self._note_moving(node, each)
        for k, here in enumerate(passes):
            new = {(each.place, each.axis): each.new[k] for each in moving if each.new}
            self.visit(node.body, here, {**fresh, **new}, held)

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

    def sequence(self, node: Sequence, spans: Spans, fresh: Fresh, held: Held) -> None:
        if node.subsets:
            raise PlanError("a sequence on subsets: only children in order are counted", node)
        for k, child in enumerate(node.children):
            made = set(self.made_in(child))
            begin = [(r, self.tensors[r.tensor]) for r in node.residents if r.first == k]
            boxes = [(r, t, box) for r, t in begin if (box := self.new_box(t, node, r, spans, fresh)) is not None]
            for resident, tensor, box in boxes:
                self._note(id(resident), tensor, box)
                if tensor not in made or self.is_begun(tensor, spans):
                    size = self.left_bytes(tensor, box, held.get(tensor))
                    self.counted.read_bytes += size
                    self.counted.moved[id(resident)] += size
            self.visit(child, spans, fresh, self.held_at(node, k, held))
            for resident, tensor, box in boxes:
                if tensor in made and self.leaves(tensor, node, resident):
                    size = self.left_bytes(tensor, box, held.get(tensor))
                    self.counted.write_bytes += size
                    self.counted.moved[id(resident)] += size

    def left_bytes(self, tensor: Tensor, box: Box, held: tuple[Part, ...] | None) -> int:
        """Bytes of a box that does not lie in SRAM already."""
        return 0 if held == () else bytes_of(tensor, without(box, held or ()))

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, spans: Spans, held: Held) -> None:
        own = set(self.own(node, held))
        for name in node.layers:
            layer, span = self.layers[name], spans[name]
            if is_empty(span):
                continue
            self.counted.points[name] += math.prod(
                high - low for low, high in (span.get(axis, (0, axis.extent)) for axis in layer.axes)
            )
            for tensor, box in self.streams(layer, span):
                if tensor in own:
                    if tensor is layer.result:
                        self._note(id(node), tensor, box)
                elif held.get(tensor) != () and not is_empty(rest := without(box, held.get(tensor, ()))):
                    self._note((id(node), name), tensor, rest)
                    self.move(layer, span, tensor, rest)

    def move(self, layer: Layer, span: Box, tensor: Tensor, box: Box) -> None:
        """Loads of operands, stores of results; a sum that another pass has begun is read again."""
        size = bytes_of(tensor, box)
        is_made = tensor is layer.result
        self.counted.write_bytes += size if is_made else 0
        self.counted.read_bytes += size if not is_made or self.continues(layer, span) else 0

    def _note(self, place: int | tuple[int, str], tensor: Tensor, box: Box) -> None:
        most = self.extents.setdefault((place, tensor), {})
        for axis, (low, high) in box.items():
            most[axis] = max(most.get(axis, 0), high - low)


class _Occupancy:
    """The most bytes of SRAM at a time, of buffers that a walk has measured."""

    def __init__(self, walk: _Walk) -> None:
        self.walk = walk
        self.held: list[Tensor] = []
        residents = [r for node in nodes_in(walk.plan) if isinstance(node, Sequence) for r in node.residents]
        self.storage = {r.tensor: r.storage_of for r in residents if r.storage_of}
        self.around: list[str] = []
        """Tensors that are resident."""

    def peak(self, node: Node, loops: tuple[Loop, ...]) -> int:
        match node:
            case Compute():
                found = self.compute(node)
            case Loop():
                found = self.peak(node.body, (*loops, node)) + self.staying(node, (*loops, node), node.body, ())
            case Sequence():
                found = max(self.child(node, k, loops) for k in range(len(node.children)))
        self.walk.counted.held[id(node)] = found
        return found

    def child(self, node: Sequence, k: int, loops: tuple[Loop, ...]) -> int:
        here = [r for r in node.residents if r.first <= k <= r.last]
        self.around += [r.tensor for r in here]
        sizes = {id(r): self.tile(id(r), self.walk.tensors[r.tensor]) for r in here if not self.is_in_another(r)}
        self.walk.counted.held |= sizes
        size = sum(sizes.values())
        names = [self.walk.tensors[r.tensor] for r in here if r.part is None]
        self.held += names
        found = size + self.peak(node.children[k], loops)
        del self.held[len(self.held) - len(names) :]
        del self.around[len(self.around) - len(here) :]
        return found

    def is_in_another(self, resident: Resident) -> bool:
        """Whether a tensor in whose storage it lies is resident too, and counts."""
        name = resident.storage_of
        while name and name not in self.around:
            name = self.storage.get(name, "")
        return bool(name)

    def tile(self, place: int, tensor: Tensor) -> int:
        extents = self.walk.extents.get((place, tensor))
        return 0 if extents is None else _bytes(tensor, extents.values())

    def staying(self, loop: Loop, loops: tuple[Loop, ...], node: Node, held: tuple[Tensor, ...]) -> int:
        """Bytes that stay from pass to pass of a rolling loop, of all that lies in SRAM below it."""
        if loop.halo is not Halo.ROLLING:
            return 0
        match node:
            case Compute():
                places = [(id(node), tensor) for tensor in self.walk.own(node, {*self.held, *held})]
                return sum(self.beside(loop, loops, place, tensor) for place, tensor in places)
            case Loop():
                return self.staying(loop, (*loops, node), node.body, held)
            case Sequence():
                total = 0
                for r in node.residents:
                    total += self.beside(loop, loops, id(r), self.walk.tensors[r.tensor])
                for k, child in enumerate(node.children):
                    here = tuple(self.walk.tensors[r.tensor] for r in node.residents if r.first <= k <= r.last)
                    total += self.staying(loop, loops, child, (*held, *here))
                return total

    def beside(self, loop: Loop, loops: tuple[Loop, ...], place: int, tensor: Tensor) -> int:
        """Bytes of what stays of one tensor: loops inside this one leave the whole width of it."""
        axis, stays = self.walk.stays.get((id(loop), place, tensor), (None, 0))
        extents = dict(self.walk.extents.get((place, tensor), {}))
        if axis is None or not extents:
            return 0
        for inner in loops[loops.index(loop) + 1 :]:
            extents |= self.walk.wholes.get((id(inner), place, tensor), {})
        extents[axis] = stays
        return _bytes(tensor, extents.values())

    def compute(self, node: Compute) -> int:
        walk, most = self.walk, 0
        group = [walk.layers[name] for name in node.layers]
        own, wide = walk.own(node, self.held), {each.tensor: ELEMENTS[each.element] for each in node.sums}
        sizes = {t: self.tile(id(node), t) * max(wide.get(t.name, 0), t.element_bits) // t.element_bits for t in own}
        place = {layer.name: k for k, layer in enumerate(group)}
        first = {t: place[walk.network.maker[t].name] for t in own}
        last = {t: max(place[reader.name] for reader in walk.network.readers[t]) for t in own}
        for k, layer in enumerate(group):
            alive = sum(size for t, size in sizes.items() if first[t] <= k <= last[t])
            if layer.storage_of is not None and layer.result in sizes:
                (old, *others) = [piece.tensor for piece in layer.operands[layer.storage_of].pieces]
                if not others and old in sizes and last[old] == k:
                    alive -= min(sizes[old], sizes[layer.result])
            most = max(most, alive + self.streamed(node, layer))
        return most

    def streamed(self, node: Compute, layer: Layer) -> int:
        """Bytes of slices along the one axis that takes the fewest; what has not the axis lies there whole."""
        moved = {
            tensor: extents for tensor in dict.fromkeys((*operands_of(layer), layer.result))
            if (extents := self.walk.extents.get(((id(node), layer.name), tensor)))
        }  # fmt: skip
        links = {tensor: _plain_links(layer, tensor) for tensor in moved}
        ways = []
        for axis in (*layer.axes, None):
            total = 0
            for tensor, extents in moved.items():
                size, own = _bytes(tensor, extents.values()), links[tensor].get(axis)
                extent = 0 if own is None else extents[own]
                total += size if own is None else -(-size * min(extent, SLICE_COPIES * SLICE) // extent)
            ways.append(total)
        return min(ways)


def _plain_links(layer: Layer, tensor: Tensor) -> dict[Axis | None, Axis]:
    """Axes of a layer that run through a tensor step by step, each with the tensor's axis."""
    if tensor is layer.result:
        return {axis: axis for axis in tensor.axes}
    links = (found for operand in layer.operands for other, found in operand.links() if other is tensor)
    return {link.axis: own for found in links for own, link in found.items() if link and link.is_plain}


def bytes_of(tensor: Tensor, box: Box) -> int:
    return _bytes(tensor, (max(0, high - low) for low, high in box.values()))


def _bytes(tensor: Tensor, extents: Iterable[int]) -> int:
    return -(-math.prod(extents) * tensor.element_bits // 8)
