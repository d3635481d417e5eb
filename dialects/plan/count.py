"""Counts what a plan moves and holds, pass by pass: every box of every tensor, no closed forms.

It shares nothing with the evaluator, of which it is the witness, and is what `frustum.check_plan` runs.
A loop's named axis has the ranges that the tree says.  Of the other layers inside, those that no other reads along the
class have ranges in proportion; what the rest makes follows from their readers' windows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import ELEMENTS, Named, PlanError, check_plan, operands_of, with_copies
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Over, Resident, Sequence, layers_in

__all__ = ["Counted", "PlanError", "count"]

SLICE = 16
"""Positions of an axis in a slice of what is streamed: lines, or channels, of a matrix unit."""
SLICE_COPIES = 2

Spans = Mapping[str, Box]
"""Of each layer the ranges that loops outside leave it."""


@dataclass
class Counted:
    """Bytes over the DRAM port, the most bytes of SRAM at a time, and points that layers compute."""

    read_bytes: int = 0
    write_bytes: int = 0
    sram_bytes: int = 0
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def dram_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def count(network: AxisNetwork, plan: Node) -> Counted:
    """What the plan costs.  PlanError where it is none."""
    check_plan(network, plan)
    walk = _Walk(with_copies(network, plan), plan)
    walk.visit(plan, {name: {} for name in walk.layers}, _Held())
    return walk.counted


@dataclass(frozen=True)
class _Held:
    """Tensors that lie in SRAM here: with the box of each, None for all of it; and bytes of buffers."""

    boxes: Mapping[Tensor, Box] = field(default_factory=dict)
    bytes: int = 0


class _Walk(Named):
    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        super().__init__(network, plan)
        self.counted = Counted()
        self.begun: set[tuple[Tensor, tuple[tuple[int, int], ...]]] = set()
        """Parts of sums that earlier passes have begun, and that lie in DRAM."""

    # ------------------------------------------------------------ nodes

    def visit(self, node: Node, spans: Spans, held: _Held) -> None:
        match node:
            case Compute():
                self.compute(node, spans, held)
            case Loop():
                self.loop(node, spans, held)
            case Sequence():
                self.sequence(node, spans, held)

    def loop(self, node: Loop, spans: Spans, held: _Held) -> None:
        if node.over is not Over.TIME or node.halo is Halo.EXCHANGED:
            raise PlanError(
                f"for {node.axis} over {node.over or 'time'} {node.halo}: only passes in time are counted"
            )
        axis, group, inside = self.class_of(node)
        last: dict[str, int] = {}
        for start, stop in pairwise(node.edges):
            here = self.pass_spans(axis, group, inside, (start, stop), spans)
            if node.halo is Halo.ROLLING:
                here = _rolled(here, group, self.layers, last)
            if any(low < high for box in here.values() for low, high in box.values()):
                self.visit(node.body, {**spans, **here}, held)

    def pass_spans(
        self, axis: Axis, group: Class, inside: list[Layer], edges: tuple[int, int], spans: Spans
    ) -> dict[str, Box]:
        """The ranges of all layers in one pass, from the last layer back."""
        found: dict[str, Box] = {}
        needed: dict[Tensor, list[tuple[int, int]]] = defaultdict(list)
        for layer in reversed(inside):
            box = dict(spans[layer.name])
            own = next(iter(group & set(layer.axes)), None)
            if own is not None:
                low, high = box.get(own, (0, own.extent))
                asked = needed[layer.result] if own in layer.result.axes else []
                if not asked or self.is_read_elsewhere(layer.result, inside):
                    asked = [*asked, tuple(-(-edge * own.extent // axis.extent) for edge in edges)]  # type: ignore[list-item]
                box[own] = max(low, min(a for a, _ in asked)), min(high, max(b for _, b in asked))
            found[layer.name] = box
            if all(low < high for low, high in box.values()):
                for boxes in layer.part(box):
                    for tensor, part in boxes:
                        maker = self.network.maker.get(tensor)
                        along = None if maker is None else next(iter(group & set(maker.axes)), None)
                        if along in part:
                            needed[tensor].append(part[along])
        return found

    def is_read_elsewhere(self, tensor: Tensor, inside: list[Layer]) -> bool:
        return tensor.is_output or any(
            reader not in inside for reader in self.network.readers.get(tensor, [])
        )

    def sequence(self, node: Sequence, spans: Spans, held: _Held) -> None:
        if node.subsets:
            raise PlanError("a sequence on subsets: only children in order are counted")
        for k, child in enumerate(node.children):
            boxes, size = dict(held.boxes), held.bytes
            for resident in node.residents:
                if not resident.first <= k <= resident.last:
                    continue
                tensor = self.tensors[resident.tensor]
                box = self.box_of(tensor, node, resident, spans)
                if box is None:
                    continue
                boxes[tensor] = box
                if not resident.storage_of:
                    size += bytes_of(tensor, box)
                if k == resident.first and tensor not in self.made_in(child):
                    self.counted.read_bytes += bytes_of(tensor, box)
            self.visit(child, spans, _Held(boxes, size))
            for resident in node.residents:
                tensor = self.tensors[resident.tensor]
                if (
                    k == resident.first
                    and tensor in boxes
                    and tensor in self.made_in(child)
                    and self.leaves(tensor, node, resident)
                ):
                    self.counted.write_bytes += bytes_of(tensor, boxes[tensor])

    def made_in(self, child: Node) -> set[Tensor]:
        return {self.layers[name].result for name in layers_in(child)}

    def leaves(self, tensor: Tensor, node: Sequence, resident: Resident) -> bool:
        """Whether somebody outside the residency wants the tensor."""
        names = {
            name for child in node.children[resident.first : resident.last + 1] for name in layers_in(child)
        }
        return tensor.is_output or any(
            reader.name not in names for reader in self.network.readers.get(tensor, [])
        )

    def box_of(self, tensor: Tensor, node: Sequence, resident: Resident, spans: Spans) -> Box | None:
        """What of a tensor its maker and readers here touch; None where none does in this pass."""
        found: Box | None = None
        for name in (
            n for child in node.children[resident.first : resident.last + 1] for n in layers_in(child)
        ):
            for other, box in self.touched(self.layers[name], spans[name]):
                if other is tensor:
                    found = found or {}
                    for axis, (low, high) in box.items():
                        a, b = found.get(axis, (low, high))
                        found[axis] = min(a, low), max(b, high)
        if resident.part is not None and found is not None:
            axis = next(a for a in found if a.name == resident.part.axis)
            low, high = found[axis]
            found[axis] = max(low, resident.part.start), min(high, resident.part.stop)
        return found

    def touched(self, layer: Layer, span: Box) -> Iterable[tuple[Tensor, Box]]:
        if any(low >= high for low, high in span.values()):
            return
        for boxes in layer.part(span):
            yield from ((tensor, of_leaves(box)) for tensor, box in boxes)
        yield layer.result, {axis: span.get(axis, (0, axis.extent)) for axis in layer.result.axes}

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, spans: Spans, held: _Held) -> None:
        group = [self.layers[name] for name in node.layers]
        own = {
            layer.result for layer in group
            if not self.is_read_elsewhere(layer.result, group) and layer.result not in held.boxes
        }  # fmt: skip
        for each in node.sums:
            if ELEMENTS[each.element] != self.tensors[each.tensor].element_bits:
                raise PlanError(f"sum {each.tensor} as {each.element}: only its own type is counted", node)
        alive: dict[Tensor, int] = {}
        for k, layer in enumerate(group):
            span = spans[layer.name]
            if any(low >= high for low, high in span.values()):
                continue
            self.counted.points[layer.name] += math.prod(
                high - low for low, high in (span.get(axis, (0, axis.extent)) for axis in layer.axes)
            )
            streamed = 0
            for tensor, box in self.touched(layer, span):
                size = bytes_of(tensor, box)
                if tensor in own:
                    alive[tensor] = max(alive.get(tensor, 0), size)
                elif tensor not in held.boxes or not _holds(held.boxes[tensor], box):
                    left = (
                        size - bytes_of(tensor, _common(held.boxes[tensor], box))
                        if tensor in held.boxes
                        else size
                    )
                    self.move(layer, tensor, box, left)
                    streamed += SLICE_COPIES * slice_bytes(tensor, box)
            total = held.bytes + sum(alive.values()) + streamed
            self.counted.sram_bytes = max(self.counted.sram_bytes, total)
            for tensor in [
                t for t in alive if not any(t in operands_of(later) for later in group[k + 1 :])
            ]:
                del alive[tensor]

    def move(self, layer: Layer, tensor: Tensor, box: Box, size: int) -> None:
        """Loads of operands, stores of results; a sum that another pass has begun is read again."""
        if tensor is not layer.result:
            self.counted.read_bytes += size
            return
        self.counted.write_bytes += size
        part = tensor, tuple(box.values())
        if part in self.begun:
            self.counted.read_bytes += size
        self.begun.add(part)


def _rolled(
    here: dict[str, Box], group: Class, layers: Mapping[str, Layer], last: dict[str, int]
) -> dict[str, Box]:
    """The ranges without what earlier passes have made."""
    found = {}
    for name, box in here.items():
        own = next(iter(group & set(layers[name].result.axes)), None)
        if own is not None and own in box:
            low, high = box[own]
            box = {**box, own: (max(low, last.get(name, low)), high)}
            last[name] = max(high, last.get(name, high))
        found[name] = box
    return found


def of_leaves(box: Box) -> Box:
    """The smallest box of unsplit axes around a box of axes that were split since."""
    found: Box = {}
    for axis, (low, high) in box.items():
        if axis.parts is None:
            found[axis] = low, high
            continue
        outer, inner = axis.parts
        first, last = low // inner.extent, (high - 1) // inner.extent
        rest = (low % inner.extent, (high - 1) % inner.extent + 1) if first == last else (0, inner.extent)
        found |= of_leaves({outer: (first, last + 1), inner: rest})
    return found


def bytes_of(tensor: Tensor, box: Box) -> int:
    return -(-math.prod(high - low for low, high in box.values()) * tensor.element_bits // 8)


def slice_bytes(tensor: Tensor, box: Box) -> int:
    """Bytes of a slice along the longest axis."""
    longest = max((high - low for low, high in box.values()), default=1)
    return -(-bytes_of(tensor, box) * min(SLICE, longest) // longest)


def _holds(outer: Box, inner: Box) -> bool:
    return all(a in outer and outer[a][0] <= low and high <= outer[a][1] for a, (low, high) in inner.items())


def _common(a: Box, b: Box) -> Box:
    return {
        axis: (max(low, a[axis][0]), max(max(low, a[axis][0]), min(high, a[axis][1])))
        for axis, (low, high) in b.items()
    }
