"""Counts what a plan moves and holds, pass by pass: every box of every tensor, no closed forms of passes.

It shares nothing with the evaluator, of which it is the witness, and is what `frustum.check_plan` runs.
A buffer has one size for all passes: along each axis the most that is new in a pass.  A rolling loop has beside it what
earlier passes have made or loaded and later ones still read.
"""

from __future__ import annotations

import math

from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import PlanError, check_plan, with_copies
from frustum.dialects.plan.occupancy import (
    SLICE,
    SLICE_COPIES,
    Counted,
    Measured,
    Occupancy,
    Place,
    extent_bytes,
)
from frustum.dialects.plan.ranges import Fresh, Held, Moving, Spans, is_empty, without
from frustum.dialects.plan.storage import Overwritten
from frustum.dialects.plan.tree import Compute, Loop, Node, Part, Sequence

__all__ = ["SLICE", "SLICE_COPIES", "Counted", "PlanError", "count"]


def count(network: AxisNetwork, plan: Node) -> Counted:
    """What the plan costs.  PlanError where it is none."""
    check_plan(network, plan)
    walk = _Walk(with_copies(network, plan), plan)
    walk.visit(plan, {name: {} for name in walk.layers}, {}, {})
    walk.counted.sram_bytes = Occupancy(walk).peak(plan, ())
    return walk.counted


class _Walk(Measured):
    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        super().__init__(network, plan)
        self.overwritten = Overwritten(self)

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
            self.overwritten.begin(tensor for _, tensor in begin)
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
            whole = {axis: span.get(axis, (0, axis.extent)) for axis in layer.axes}
            self.overwritten.computes(layer, whole, list(self.reads(layer, span)), node)
            self.counted.points[name] += math.prod(high - low for low, high in whole.values())
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

    def _note(self, place: Place, tensor: Tensor, box: Box) -> None:
        most = self.extents.setdefault((place, tensor), {})
        for axis, (low, high) in box.items():
            most[axis] = max(most.get(axis, 0), high - low)


def bytes_of(tensor: Tensor, box: Box) -> int:
    return extent_bytes(tensor, (max(0, high - low) for low, high in box.values()))
