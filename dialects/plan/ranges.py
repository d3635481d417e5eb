# Tests: test/dialects/plan/test_count.py
"""What each pass of a plan computes, reads and brings: the boxes that all who walk through a plan share.

A loop's named axis has the ranges that the tree says.  Of the other layers inside, those that no other reads along the
class have ranges in proportion; what the rest makes follows from their readers' windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis, Dim
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import AxisNetwork, Box, Layer, Operand, box_of
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.carried import Carrying
from frustum.dialects.plan.check import Named, PlanError, operands_of
from frustum.dialects.plan.rates import Rates, ranges_of
from frustum.dialects.plan.tree import (
    Compute,
    Halo,
    Loop,
    Node,
    Over,
    Part,
    Resident,
    Sequence,
    layers_in,
    nodes_in,
)

Range = tuple[int, int]
Spans = Mapping[str, Box]
"""Of each layer the ranges that it makes in the passes of the loops outside."""
Fresh = Mapping[tuple[int, Axis], Range]
"""Of buffers, by `id` of the residency, the positions that no earlier pass of a rolling loop outside has had."""
NO_RATES: Rates = {}
"""All axes go on in proportion to their extents."""
Held = Mapping[Tensor, tuple[Part, ...]]
"""Tensors that lie in SRAM; no parts: all that is needed."""


@dataclass(frozen=True)
class Moving:
    """Positions along one axis of a tensor that the passes of a loop touch in one buffer: of a residency, or of a
    compute whose layers hand each other the tensor.

    `has`: what is made, or read where nothing makes it there.  Of a rolling loop `new`: what no earlier pass had; and
    `stays`: what earlier passes had and this or a later one reads.
    """

    place: int
    tensor: Tensor
    axis: Axis
    has: list[Range | None]
    new: list[Range]
    stays: list[Range]


class Ranged(Named):
    """The boxes of every pass of a plan for a network."""

    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        super().__init__(network, plan)
        self._moved_by: dict[tuple[Layer, Tensor], dict[Axis, set[Axis]]] = {}
        self._classes: dict[int, tuple[Axis, Class, list[Layer]]] = {}
        self._places: dict[int, list[tuple[int, Tensor, list[Layer]]]] = {}
        self._boxes = _KnownBoxes()

    @cached_property
    def in_step(self) -> dict[Layer, Carrying]:
        """Layers of recurrences, which make one position in each pass of the loop that carries them."""
        return {layer: each for each in self.carrying for layer in each.recurrence.layers}

    @cached_property
    def carried(self) -> dict[Tensor, Carrying]:
        """Results of theirs that later passes read."""
        return {tensor: each for each in self.carrying for tensor in each.recurrence.carried}

    # ------------------------------------------------------------ passes

    def known_class(self, node: Loop) -> tuple[Axis, Class, list[Layer]]:
        if id(node) not in self._classes:
            self._classes[id(node)] = self.class_of(node)
        return self._classes[id(node)]

    def passes(
        self, node: Loop, spans: Spans, within: Mapping[Axis, Range] | None = None
    ) -> tuple[list[Spans], list[Moving]]:
        """The ranges of all layers in each pass, and what of tensors these touch.

        `within`: ranges of a cluster, which makes only the passes that meet them."""
        if node.over is not Over.TIME or node.halo is Halo.EXCHANGED:
            how = f"over {node.over or 'time'} {node.halo}"
            raise PlanError(f"for {node.axis} {how}: only passes in time are counted, or over clusters", node)
        axis, group, inside = self.known_class(node)
        found, had = list[Spans](), dict[str, Range]()
        for edges in self.edges(node, within or {}):
            here = self.pass_spans(axis, group, inside, edges, spans)
            found.append({**spans, **_rolled(here, group, self.made_once(node, inside), had)})
            self.check_steps(node, group, found[-1])
        return found, list(self.moving(node, group, found))

    def made_once(self, node: Loop, inside: list[Layer]) -> list[Layer]:
        """Layers that make no row in two passes of a loop."""
        return [
            layer for layer in inside
            if node.halo is Halo.ROLLING or (layer in self.in_step and self.in_step[layer].loop is node)
        ]  # fmt: skip

    def check_steps(self, node: Loop, group: Class, spans: Spans) -> None:
        """PlanError where a layer of a recurrence is to make more than the step of the pass."""
        for layer, carrying in reversed(self.in_step.items()):
            own = next(iter(group & set(layer.axes)), None) if carrying.loop is node else None
            low, high = spans[layer.name].get(own, (0, 0)) if own is not None else (0, 0)
            if high - low > 1:
                raise PlanError(
                    f"for {node.axis}: a layer inside reads {layer.result.name} of steps {low} to {high - 1} in one "
                    f"pass, which makes one: put that layer after the loop",
                    node,
                )

    def edges(self, node: Loop, within: Mapping[Axis, Range]) -> list[Range]:
        """The ranges of the passes that meet those of a cluster."""
        axis, _, _ = self.known_class(node)
        first, stop = within.get(axis, (0, axis.extent))
        return [(low, high) for low, high in pairwise(node.edges) if low < stop and high > first]

    def pass_spans(
        self, axis: Axis, group: Class, inside: list[Layer], edges: Range, spans: Spans, is_alone: bool = False,
        rates: Rates = NO_RATES,
    ) -> dict[str, Box]:  # fmt: skip
        """The ranges of all layers in one pass, from the last layer back; `is_alone`: none makes what is beyond;
        `rates`: how ranges of clusters go on."""
        found: dict[str, Box] = {}
        needed: dict[Tensor, list[tuple[int, int]]] = defaultdict(list)
        for layer in reversed(inside):
            box = dict(spans[layer.name])
            own = next(iter(group & set(layer.axes)), None)
            if own is not None:
                low, high = box.get(own, (0, own.extent))
                asked = needed[layer.result] if own in layer.result.axes and not is_alone else []
                is_asked = not is_alone and layer not in self.in_step
                is_asked = is_asked and self.is_read_along(group, inside, layer, own)
                if not is_asked or self.is_read_elsewhere(layer.result, inside):
                    asked = [*asked, *ranges_of(edges, own, axis, rates)]
                first = min((a for a, _ in asked), default=high)
                box[own] = max(low, first), min(high, max((b for _, b in asked), default=first))
            found[layer.name] = box
            for tensor, part in self.reads(layer, box):
                maker = self.network.maker.get(tensor)
                along = None if maker is None else next(iter(group & set(maker.axes)), None)
                if along in part:
                    needed[tensor].append(part[along])
        return found

    def is_read_elsewhere(self, tensor: Tensor, inside: list[Layer]) -> bool:
        return tensor.is_output or any(reader not in inside for reader in self.network.readers.get(tensor, []))

    def is_read_along(self, group: Class, inside: list[Layer], layer: Layer, axis: Axis) -> bool:
        """Whether some layer inside reads the result in ranges of this axis: in a pass those ask for some, or none."""
        return axis in layer.result.axes and any(
            reader in inside and group & self.moved_by(reader, layer.result).get(axis, set())
            for reader in self.network.readers.get(layer.result, [])
        )

    def reads(self, layer: Layer, span: Box) -> Iterator[tuple[Tensor, Box]]:
        """Boxes of operands that a part of a layer needs; none where the part is empty."""
        if is_empty(span):
            return
        for operand in layer.operands:
            for piece in operand.pieces:
                box = self._boxes.of(piece, operand, span)
                if box is not None:
                    yield box

    # ------------------------------------------------------------ what moves

    def moving(self, node: Loop, group: Class, passes: list[Spans]) -> Iterator[Moving]:
        """Every axis of a buffer's tensor along which all that use it there move from pass to pass."""
        if id(node) not in self._places:
            self._places[id(node)] = list(self.places(node.body))
        touched = _Touched(self, passes)
        for place, tensor, users in self._places[id(node)]:
            found = dict[Axis, tuple[list[Range | None], list[Range | None]]]()
            for axis in (axis for axis in tensor.axes if self.changes(group, users, tensor, axis)):
                made, read = zip(*(touched.along(users, tensor, axis, k) for k in range(len(passes))), strict=True)
                found[axis] = [own or other for own, other in zip(made, read, strict=True)], list(read)
            # a row in two axes rolls along the outer one where all passes have the same of the inner one
            changing = [axis for axis, (has, _) in found.items() if len({own for own in has if own}) > 1]
            for axis, (has, seen) in found.items():
                is_rolling = node.halo is Halo.ROLLING and changing in ([], [axis])
                rolls = zip(*_rolls(has, seen), strict=True) if is_rolling else ([], [])
                new, stays = (list(each) for each in rolls)
                yield Moving(place, tensor, axis, has, new, stays)

    def places(self, node: Node) -> Iterator[tuple[int, Tensor, list[Layer]]]:
        """Buffers inside a node, by `id` of residency or compute, with the layers that use them."""
        for each in nodes_in(node):
            match each:
                case Compute():
                    group = [self.layers[name] for name in each.layers]
                    for tensor in (layer.result for layer in group):
                        yield id(each), tensor, _users(group, tensor)
                case Sequence():
                    for r in each.residents:
                        spanned, tensor = each.children[r.first : r.last + 1], self.tensors[r.tensor]
                        inside = [self.layers[name] for child in spanned for name in layers_in(child)]
                        yield id(r), tensor, _users(inside, tensor)

    def changes(self, group: Class, users: list[Layer], tensor: Tensor, axis: Axis) -> bool:
        """Whether every layer that uses the tensor moves along the axis from pass to pass."""
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

    # ------------------------------------------------------------ residents

    def held_at(self, node: Sequence, k: int, held: Held) -> Held:
        """What lies in SRAM while child k runs."""
        here = dict(held)
        for resident in node.residents:
            if resident.memory != "sram":
                raise PlanError(f"resident {resident.tensor} in {resident.memory}: only SRAM is counted", resident)
            if resident.first <= k <= resident.last:
                tensor = self.tensors[resident.tensor]
                parts = here.get(tensor, ())
                if resident.part is None:
                    here[tensor] = ()
                elif tensor not in here or parts:
                    here[tensor] = (*parts, resident.part)
        return here

    def new_box(self, tensor: Tensor, node: Sequence, resident: Resident, spans: Spans, fresh: Fresh) -> Box | None:
        """What of a tensor its maker and readers here touch for the first time; None: nothing."""
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
            first, stop = fresh.get((id(resident), axis), (low, high))
            found[axis] = max(low, first), min(high, stop)
        part = resident.part
        if part is not None and found:
            axis = next(a for a in found if a.name == part.axis)
            found[axis] = max(found[axis][0], part.start), min(found[axis][1], part.stop)
        return found if is_touched and not is_empty(found) else None

    def streams(self, layer: Layer, span: Box) -> list[tuple[Tensor, Box]]:
        """What a part of a layer reads, each box once: an operand that is read twice alike comes once."""
        return list({(tensor, tuple(box.items())): (tensor, box) for tensor, box in self.reads(layer, span)}.values())

    def touched(self, layer: Layer, span: Box) -> Iterator[tuple[Tensor, Box]]:
        if not is_empty(span):
            yield from self.reads(layer, span)
            yield layer.result, {axis: span.get(axis, (0, axis.extent)) for axis in layer.result.axes}

    def made_in(self, child: Node) -> Iterator[Tensor]:
        return (self.layers[name].result for name in layers_in(child))

    def leaves(self, tensor: Tensor, node: Sequence, resident: Resident) -> bool:
        """Whether somebody outside the residency wants the tensor."""
        names = {name for child in node.children[resident.first : resident.last + 1] for name in layers_in(child)}
        return tensor.is_output or any(
            reader.name not in names for reader in self.network.readers.get(tensor, [])
        )

    def is_read(self, resident: Resident, children: Iterable[Node]) -> bool:
        """Whether some of these read a resident tensor."""
        names = {name for child in children for name in layers_in(child)}
        return any(reader.name in names for reader in self.network.readers.get(self.tensors[resident.tensor], []))

    def continues(self, layer: Layer, span: Box) -> bool:
        """Whether a part of a layer adds to sums that earlier passes have begun."""
        return any(span.get(a, (0, 0))[0] > 0 for a in layer.combine if a not in layer.result.axes)

    def is_whole(self, layer: Layer, span: Box) -> bool:
        """Whether no later pass adds to the sums of a part of a layer."""
        summed = (a for a in layer.combine if a not in layer.result.axes)
        return all(span.get(axis, (0, axis.extent))[1] >= axis.extent for axis in summed)

    def is_begun(self, tensor: Tensor, spans: Spans) -> bool:
        """Whether passes outside have begun the sums that the tensor's maker adds to."""
        maker = self.network.maker[tensor]
        return self.continues(maker, spans[maker.name])

    def own(self, node: Compute, held: Iterable[Tensor]) -> list[Tensor]:
        """What layers of a compute hand each other, and nobody else wants: later passes only where they roll."""
        group = [self.layers[name] for name in node.layers]
        return [
            layer.result for layer in group
            if not self.is_read_elsewhere(layer.result, group) and layer.result not in held
            and (layer.result not in self.carried or self.carried[layer.result].rolls)
        ]  # fmt: skip


class _Touched:
    """What layers make and read in each pass of a loop."""

    def __init__(self, ranged: Ranged, passes: list[Spans]) -> None:
        self.ranged, self.passes = ranged, passes
        self._read: dict[tuple[Layer, int], list[tuple[Tensor, Box]]] = {}

    def along(self, users: list[Layer], tensor: Tensor, axis: Axis, k: int) -> tuple[Range | None, Range | None]:
        """Positions of an axis that are made in a pass, and those that are read."""
        made, read = None, None
        for layer in users:
            span = self.passes[k][layer.name]
            if layer.result is tensor and not is_empty(span):
                made = span.get(axis, (0, axis.extent))
            if (layer, k) not in self._read:
                self._read[layer, k] = list(self.ranged.reads(layer, span))
            for other, box in self._read[layer, k]:
                if other is tensor:
                    read = hull(box[axis], read)
        return made, read


def _users(layers: list[Layer], tensor: Tensor) -> list[Layer]:
    return [layer for layer in layers if tensor is layer.result or tensor in operands_of(layer)]


def _rolled(here: dict[str, Box], group: Class, layers: Iterable[Layer], had: dict[str, Range]) -> dict[str, Box]:
    """The ranges, of these layers without what earlier passes have made."""
    found = dict(here)
    for layer in layers:
        name, box = layer.name, here[layer.name]
        own = next(iter(group & set(layer.axes)), None)
        if own is not None and own in box and not is_empty({own: box[own]}):
            made = box[own]
            found[name] = {**box, own: _beyond(made, had.get(name))}
            had[name] = hull(made, had.get(name))
    return found


def _rolls(has: list[Range | None], read: list[Range | None]) -> Iterator[tuple[Range, Range]]:
    """What is new in each pass, and what stays from earlier ones."""
    had: Range | None = None
    low, high = np.array([each or (0, 0) for each in read], np.int64).reshape(-1, 2).T
    for k, own in enumerate(has):
        stays = (0, 0)
        if had is not None:
            is_later = (low[k:] < had[1]) & (had[0] < high[k:])
            if is_later.any():
                stays = max(had[0], int(low[k:][is_later].min())), min(had[1], int(high[k:][is_later].max()))
        yield _beyond(own, had) if own else (0, 0), stays
        had = hull(own, had) if own else had


def _beyond(own: Range, had: Range | None) -> Range:
    """What of a range lies above what earlier passes had, or below; all of it where it lies on both sides."""
    if had is None or (own[0] < had[0] and own[1] > had[1]):
        return own
    return (own[0], min(own[1], had[0])) if own[0] < had[0] else (max(own[0], had[1]), max(own[1], had[1]))


def hull(own: Range, had: Range | None) -> Range:
    return own if had is None else (min(own[0], had[0]), max(own[1], had[1]))


class _KnownBoxes:
    """Of each piece the axes that move it, and its box for every part of these."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Dim, dict[tuple[Range | None, ...], tuple[Tensor, Box] | None]]] = {}

    def of(self, piece: Piece, operand: Operand, span: Box) -> tuple[Tensor, Box] | None:
        """`box_of`, found once."""
        known = self.known.get(id(piece))
        if known is None:
            known = self.known[id(piece)] = axes_read(piece), {}
        axes, boxes = known
        key = tuple([span.get(axis) for axis in axes])
        if key not in boxes:
            boxes[key] = box_of(piece, operand, span)
        return boxes[key]


def axes_read(piece: Piece) -> Dim:
    """Axes of a layer that say where it reads a piece, and whether it does."""
    positions = [position for _, position in piece.by_leaf if position is not None]
    positions += [guard.position for guard in piece.guards]
    return tuple(dict.fromkeys(axis for position in positions for axis, _ in position.refined().terms))


def is_empty(box: Box) -> bool:
    return any(low >= high for low, high in box.values())


def without(box: Box, parts: Iterable[Part]) -> Box:
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
