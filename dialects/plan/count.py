"""Counts what a plan moves and holds, pass by pass: every box of every tensor, no closed forms of passes.

It shares nothing with the evaluator, of which it is the witness, and is what `frustum.check_plan` runs.
A loop's named axis has the ranges that the tree says.  Of the other layers inside, those that no other reads along the
class have ranges in proportion; what the rest makes follows from their readers' windows.
A buffer has one size for all passes: along each axis the most that is new in a pass.  A rolling loop has beside it what
earlier passes have made or loaded and later ones still read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import PlanError, check_plan, operands_of, with_copies
from frustum.dialects.plan.occupancy import (
    SLICE,
    SLICE_COPIES,
    Counted,
    Measured,
    Occupancy,
    Place,
    extent_bytes,
)
from frustum.dialects.plan.storage import Overwritten
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Over, Part, Resident, Sequence, layers_in

__all__ = ["SLICE", "SLICE_COPIES", "Counted", "PlanError", "count"]

Spans = Mapping[str, Box]
"""Of each layer the ranges that it makes in the passes of the loops outside."""
Fresh = Mapping[tuple[Tensor, Axis], tuple[int, int]]
"""Positions that no earlier pass of a rolling loop outside has had."""
Held = Mapping[Tensor, tuple[Part, ...]]
"""Tensors that lie in SRAM; no parts: all that is needed."""


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
        self.begun: set[tuple[Tensor, tuple[tuple[int, int], ...]]] = set()
        """Parts of sums that earlier passes have begun, and that lie in DRAM."""
        self.overwritten = Overwritten(self)
        self._moved_by: dict[tuple[Layer, Tensor], dict[Axis, set[Axis]]] = {}
        self._classes: dict[int, tuple[Axis, Class, list[Layer]]] = {}

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
        if node.over is not Over.TIME or node.halo is Halo.EXCHANGED:
            raise PlanError(
                f"for {node.axis} over {node.over or 'time'} {node.halo}: only passes in time are counted", node
            )
        if id(node) not in self._classes:
            self._classes[id(node)] = self.class_of(node)
        axis, group, inside = self._classes[id(node)]
        passes, last = [], dict[str, int]()
        for edges in pairwise(node.edges):
            here = self.pass_spans(axis, group, inside, edges, spans)
            passes.append(_rolled(here, group, self.layers, last) if node.halo is Halo.ROLLING else here)
        news = self.news(node, group, inside, [{**spans, **here} for here in passes])
        for here, new in zip(passes, news, strict=True):
            if any(low < high for box in here.values() for low, high in box.values()):
                self.visit(node.body, {**spans, **here}, {**fresh, **new}, held)

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
            for tensor, part in self.reads(layer, box):
                maker = self.network.maker.get(tensor)
                along = None if maker is None else next(iter(group & set(maker.axes)), None)
                if along in part:
                    needed[tensor].append(part[along])
        return found

    def reads(self, layer: Layer, span: Box) -> Iterator[tuple[Tensor, Box]]:
        """Boxes of operands that a part of a layer needs; none where the part is empty."""
        if all(low < high for low, high in span.values()):
            for boxes in layer.part(span):
                yield from boxes

    # ------------------------------------------------------------ rolling

    def news(self, node: Loop, group: Class, inside: list[Layer], passes: list[Spans]) -> list[Fresh]:
        """What is new of each tensor in each pass; notes what stays, and what all passes touch."""
        found: list[dict[tuple[Tensor, Axis], tuple[int, int]]] = [{} for _ in passes]
        for tensor in dict.fromkeys(t for layer in inside for t in (*operands_of(layer), layer.result)):
            for axis in tensor.axes:
                if self.changes(group, inside, tensor, axis):
                    made, read = zip(*(self.along(inside, tensor, axis, spans) for spans in passes), strict=True)
                    has = [own or seen for own, seen in zip(made, read, strict=True)]
                    self._note_whole(node, tensor, axis, has)
                    if node.halo is Halo.ROLLING:
                        for k, new in enumerate(self._note_stays(node, tensor, axis, has, list(read))):
                            found[k][tensor, axis] = new
        return list(found)

    def changes(self, group: Class, inside: list[Layer], tensor: Tensor, axis: Axis) -> bool:
        """Whether every layer inside that uses the tensor moves along the axis from pass to pass."""
        users = [layer for layer in inside if tensor is layer.result or tensor in operands_of(layer)]
        return all(
            axis in group if tensor is layer.result else group & self.moved_by(layer, tensor).get(axis, set())
            for layer in users
        )

    def moved_by(self, layer: Layer, tensor: Tensor) -> dict[Axis, set[Axis]]:
        """Axes of a layer on which positions of each axis of an operand depend."""
        if (layer, tensor) not in self._moved_by:
            found: dict[Axis, set[Axis]] = defaultdict(set)
            for operand in layer.operands:
                for piece in operand.pieces if not operand.is_all else ():
                    for axis, position in piece.by_leaf if piece.tensor is tensor else ():
                        found[axis] |= set() if position is None else {own for own, _ in position.refined().terms}
            self._moved_by[layer, tensor] = found
        return self._moved_by[layer, tensor]

    def along(
        self, inside: list[Layer], tensor: Tensor, axis: Axis, spans: Spans
    ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Positions of an axis that are made in a pass, and those that are read."""
        made, read = None, None
        for layer in inside:
            span = spans[layer.name]
            if layer.result is tensor and all(low < high for low, high in span.values()):
                made = span.get(axis, (0, axis.extent))
            for other, box in self.reads(layer, span):
                if other is tensor:
                    low, high = box[axis]
                    read = (min(low, read[0]), max(high, read[1])) if read else (low, high)
        return made, read

    def _note_whole(self, node: Loop, tensor: Tensor, axis: Axis, has: list[tuple[int, int] | None]) -> None:
        touched = [each for each in has if each]
        if touched:
            own = self.wholes[id(node), tensor]
            extent = max(high for _, high in touched) - min(low for low, _ in touched)
            own[axis] = max(own.get(axis, 0), extent)

    def _note_stays(
        self, node: Loop, tensor: Tensor, axis: Axis, has: list[tuple[int, int] | None],
        read: list[tuple[int, int] | None],
    ) -> Iterator[tuple[int, int]]:  # fmt: skip
        """What is new in each pass."""
        come = min((own[0] for own in has if own), default=0)
        for k, own in enumerate(has):
            oldest = min((later[0] for later in read[k:] if later), default=come)
            if come > oldest:
                _, most = self.stays.get((id(node), tensor), (axis, 0))
                self.stays[id(node), tensor] = axis, max(most, come - oldest)
            yield (max(own[0], come), max(own[1], come)) if own else (come, come)
            come = max(come, own[1]) if own else come

    # ------------------------------------------------------------ residents

    def sequence(self, node: Sequence, spans: Spans, fresh: Fresh, held: Held) -> None:
        if node.subsets:
            raise PlanError("a sequence on subsets: only children in order are counted", node)
        for k, child in enumerate(node.children):
            made = set(self.made_in(child))
            begin = [(r, self.tensors[r.tensor]) for r in node.residents if r.first == k]
            found = [(r, t, self.new_box(t, node, r, spans, fresh)) for r, t in begin]
            boxes = [(r, t, box) for r, t, box in found if box is not None]
            self.overwritten.begin(tensor for _, tensor in begin)
            for resident, tensor, box in boxes:
                self._note(id(resident), tensor, box)
                if tensor not in made or self.is_begun(tensor, box):
                    size = self.left_bytes(tensor, box, held.get(tensor))
                    self.counted.read_bytes += size
                    self.counted.moved[id(resident)] += size
            self.visit(child, spans, fresh, self.held_at(node, k, held))
            for resident, tensor, box in boxes:
                if tensor in made and self.leaves(tensor, node, resident):
                    self.begun.add((tensor, tuple(box.values())))
                    size = self.left_bytes(tensor, box, held.get(tensor))
                    self.counted.write_bytes += size
                    self.counted.moved[id(resident)] += size

    def held_at(self, node: Sequence, k: int, held: Held) -> Held:
        """What lies in SRAM while child k runs."""
        here = dict(held)
        for resident in node.residents:
            if resident.memory != "sram" or resident.sharded:
                where = f"resident {resident.tensor} in {resident.memory} {resident.sharded}"
                raise PlanError(f"{where}: only SRAM of one cluster is counted", resident)
            if resident.first <= k <= resident.last:
                tensor = self.tensors[resident.tensor]
                parts = here.get(tensor, ())
                if resident.part is None:
                    here[tensor] = ()
                elif tensor not in here or parts:
                    here[tensor] = (*parts, resident.part)
        return here

    def new_box(self, tensor: Tensor, node: Sequence, resident: Resident, spans: Spans, fresh: Fresh) -> Box | None:
        """What of a tensor its maker and readers here touch for the first time; None where they touch nothing."""
        found: Box = {}
        is_touched = False
        for child in node.children[resident.first : resident.last + 1]:
            for name in layers_in(child):
                for other, box in self.touched(self.layers[name], spans[name]):
                    is_touched |= other is tensor
                    for axis, (low, high) in box.items() if other is tensor else ():
                        a, b = found.get(axis, (low, high))
                        found[axis] = min(a, low), max(b, high)
        for axis, (low, high) in found.items():
            first, stop = fresh.get((tensor, axis), (low, high))
            found[axis] = max(low, first), min(high, stop)
        part = resident.part
        if part is not None and found:
            axis = next(a for a in found if a.name == part.axis)
            found[axis] = max(found[axis][0], part.start), min(found[axis][1], part.stop)
        return found if is_touched and all(low < high for low, high in found.values()) else None

    def touched(self, layer: Layer, span: Box) -> Iterator[tuple[Tensor, Box]]:
        if all(low < high for low, high in span.values()):
            yield from self.reads(layer, span)
            yield layer.result, {axis: span.get(axis, (0, axis.extent)) for axis in layer.result.axes}

    def left_bytes(self, tensor: Tensor, box: Box, held: tuple[Part, ...] | None) -> int:
        """Bytes of a box that does not lie in SRAM already."""
        return 0 if held == () else bytes_of(tensor, _without(box, held or ()))

    def made_in(self, child: Node) -> Iterator[Tensor]:
        return (self.layers[name].result for name in layers_in(child))

    def leaves(self, tensor: Tensor, node: Sequence, resident: Resident) -> bool:
        """Whether somebody outside the residency wants the tensor."""
        names = {name for child in node.children[resident.first : resident.last + 1] for name in layers_in(child)}
        return tensor.is_output or any(
            reader.name not in names for reader in self.network.readers.get(tensor, [])
        )

    def is_begun(self, tensor: Tensor, box: Box) -> bool:
        return (tensor, tuple(box.values())) in self.begun

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, spans: Spans, held: Held) -> None:
        own = set(self.own(node, held))
        for name in node.layers:
            layer, span = self.layers[name], spans[name]
            if any(low >= high for low, high in span.values()):
                continue
            whole = {axis: span.get(axis, (0, axis.extent)) for axis in layer.axes}
            self.overwritten.computes(layer, whole, list(self.reads(layer, span)), node)
            self.counted.points[name] += math.prod(high - low for low, high in whole.values())
            boxes = {(tensor, tuple(box.items())): box for tensor, box in self.touched(layer, span)}
            for (tensor, _), box in boxes.items():  # an operand that is read twice alike is streamed once
                if tensor in own:
                    if tensor is layer.result:
                        self._note(id(node), tensor, box)
                elif held.get(tensor) != ():
                    rest = _without(box, held.get(tensor, ()))
                    if not all(low < high for low, high in rest.values()):
                        continue  # all of it is resident
                    self._note((id(node), name), tensor, rest)
                    self.move(layer, tensor, rest)

    def move(self, layer: Layer, tensor: Tensor, box: Box) -> None:
        """Loads of operands, stores of results; a sum that another pass has begun is read again."""
        size = bytes_of(tensor, box)
        if tensor is not layer.result:
            self.counted.read_bytes += size
            return
        self.counted.write_bytes += size
        if self.is_begun(tensor, box):
            self.counted.read_bytes += size
        self.begun.add((tensor, tuple(box.values())))

    def _note(self, place: Place, tensor: Tensor, box: Box) -> None:
        most = self.extents.setdefault((place, tensor), {})
        for axis, (low, high) in box.items():
            most[axis] = max(most.get(axis, 0), high - low)


def _rolled(here: dict[str, Box], group: Class, layers: Mapping[str, Layer], last: dict[str, int]) -> dict[str, Box]:
    """The ranges without what earlier passes have made."""
    found = {}
    for name, box in here.items():
        own = next(iter(group & set(layers[name].axes)), None)
        if own is not None and own in box:
            low, high = box[own]
            box = {**box, own: (max(low, last.get(name, low)), high)}
            last[name] = max(high, last.get(name, high))
        found[name] = box
    return found


def _without(box: Box, parts: Iterable[Part]) -> Box:
    """A box without parts that lie at its beginning or end."""
    found = dict(box)
    for part in parts:
        axis = next(a for a in found if a.name == part.axis)
        low, high = found[axis]
        if part.start <= low:
            found[axis] = max(low, min(part.stop, high)), high
        elif part.stop >= high:
            found[axis] = low, min(high, max(part.start, low))
    return found


def bytes_of(tensor: Tensor, box: Box) -> int:
    return extent_bytes(tensor, (max(0, high - low) for low, high in box.values()))
