# Tests: test/passes/lower/tree/test_lower_plan.py
"""Computes of a plan: their layers in order, with slices of what is streamed, as parts that the cores make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ZERO, Span
from frustum.dialects.plan.ranges import Held
from frustum.dialects.plan.tree import Compute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernels.joins import join_kernel
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.layouts import steps_of
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.nest import LayerPart, PartWriter, Sums
from frustum.passes.lower.tree.over_clusters import send_parts
from frustum.passes.lower.tree.pieces import Candidate, Known, PieceChoice
from frustum.passes.lower.tree.places import Place, packed
from frustum.passes.lower.tree.slices import SliceChoice, Slices
from frustum.passes.lower.tree.spans import (
    NotLowered,
    Spans,
    end,
    span_of,
)
from frustum.passes.lower.tree.sram_buffers import SramBuffers


class Computes(SramBuffers):
    """Writes the layers of computes."""

    capacity: int
    known: Known
    known_steps: dict[Layer, Mapping[Axis, int]]
    used: int
    inside: frozenset[str]
    """Layers of the innermost loop."""

    def compute(self, node: Compute, made: Made, held: Held) -> None:
        own = self.own(node, held)
        for name in node.layers:
            known = self.statistics_of(self.layers[name])
            if self.layers[name].result is not known and known in own and self.fits_at_once(name, own, made):
                self.at_once.add(known)
        last = {tensor: name for name in node.layers for tensor in (self.layers[name].result, *self.read_by(name))}
        for name in node.layers:
            layer = self.layers[name]
            early = self.read_by(name) & self.carried.keys()  # states, which layers read before they are made
            for tensor in (t for t in own if t is layer.result or t in early):
                if not self.here[tensor]:
                    maker = self.network.maker[tensor]
                    users = [n for n in node.layers if n == maker.name or tensor in self.read_by(n)]
                    self.here[tensor].append(self.handed(maker, users, made, own, last, node.layers))
            self.layer(node, layer, made, held)
            if self.dealt is not None and self.dealt.is_exchanged:
                self.exchange_made(layer, self.dealt.layers, made)
            for tensor in (t for t in own if last[t] == name):
                self.used -= self.here[tensor].pop().taken

    def exchange_made(self, layer: Layer, names: Sequence[str], made: Made) -> None:
        """Each cluster gets what its layers of these read beside its own part of a result."""
        users = [name for name in names if name == layer.name or layer.result in self.read_by(name)]
        box = {axis: span_of(made[layer.name], axis) for axis in layer.result.axes}
        for place in self.here[layer.result] if len(users) > 1 else ():
            self.exchange(layer.result, place, box, self.box_of(layer.result, users, made))

    def layer(self, node: Compute, layer: Layer, made: Made, held: Held) -> None:
        """A layer: with slices of what is streamed, where something is."""
        self.code.layer = self.numbers[layer.name]
        spans = made[layer.name]
        if all(kernel.is_nothing for kernel in self.kernels(layer)) or any(not s.extent for s in spans.values()):
            return
        read = dict.fromkeys(self.read_by_in_order(layer))
        streams = [tensor for tensor in read if not self.is_here(tensor) and not self.is_made_anew(tensor)]
        is_stored = not self.is_here(layer.result)
        if streams or is_stored:
            self.streamed(layer, spans, streams, is_stored)
        else:
            self.part(layer, spans)

    def streamed(self, layer: Layer, spans: Mapping[Axis, Span], streams: list[Tensor], is_stored: bool) -> None:
        """Slices along one axis of all that comes from DRAM or goes there; what does not have the axis, whole."""
        tensors = [*streams, *([layer.result] if is_stored else [])]
        chosen = self.slices(layer, self.kernels(layer), spans, tensors, self.capacity - self.used)
        axis, step, moving = chosen.axis, chosen.step, chosen.moving
        count = 1 if axis is None else ceil_div(span_of(spans, axis).extent, step)
        used, names = self.used, [layer.name]
        boxes = {tensor: self.box_of(tensor, names, {layer.name: dict(spans)}) for tensor in tensors}
        for tensor in (t for t in tensors if t not in moving):
            self.stream(layer, tensor, spans, 1, boxes[tensor])
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
                self.stream(layer, tensor, inner, 2 if count > 1 else 1, boxes[tensor])
            later = 1 if count > 1 and moving & {*streams} else 0
            with self.code.at_stage(self.code.stage + later):
                writer = self.part(layer, inner, axis if count > 1 else None)
                with self.code.at_stage(self.code.stage + writer.lateness):
                    if layer.result in moving:
                        self.store(layer, self.box_of(layer.result, names, {layer.name: inner}))
        self.code.stage = before
        if writer.stays:
            writer.leave()
        if is_stored and layer.result not in moving:
            self.store(layer, boxes[layer.result])
        for tensor in tensors:
            self.here[tensor].pop()
        self.used = used

    def slices(
        self, layer: Layer, kernels: Sequence[Kernel], spans: Mapping[Axis, Span], tensors: Sequence[Tensor], room: int
    ) -> Slices:  # fmt: skip
        """Those that take the fewest cycles.  DoesNotFit where none fits."""
        own_boxes = lambda tensor, part: self.box_of(tensor, [layer.name], {layer.name: dict(part)})  # noqa: E731

        def computing(part: Spans, axis: Axis | None) -> float:
            found = self.best_of(layer, kernels, part, axis)
            return math.inf if found is None else found.cycles

        return SliceChoice(
            self.code.target, layer, kernels, spans, tensors, self.dram.form, own_boxes, room, self.code.depth,
            computing, self.steps(layer), self.may_wait(layer),
        ).best()  # fmt: skip

    def may_wait(self, layer: Layer) -> bool:
        """Whether sums may go on from slice to slice: where these need a wider type, the result has room for it."""
        return not layer.result.sums or any(place.sums for place in self.here[layer.result])

    def fits_at_once(self, name: str, own: Sequence[Tensor], made: Made) -> bool:
        """Whether a norm or a softmax may be one instruction, with all that its statistics are of in a core."""
        layer, spans = self.layers[name], made[name]
        kernels = kernels_of(layer)
        if any(span_of(spans, axis).extent < axis.extent for kernel in kernels for axis in kernel.whole):
            return False
        there = {*own, *(tensor for tensor in self.elements if self.is_here(tensor))}
        known = self.statistics_of(layer)
        streams = [t for t in dict.fromkeys(self.read_by_in_order(layer)) if t not in there and t is not known]
        streams += [] if layer.result in there else [layer.result]
        if not streams:
            return self.best_of(layer, kernels, spans) is not None
        handed = sum(
            math.prod(span.extent for span in self.box_of(tensor, [self.network.maker[tensor].name], made).values())
            * size_of(self.elements[tensor]) * self.planes(tensor)
            for tensor in own if not self.here[tensor]
        )  # fmt: skip
        try:
            return self.slices(layer, kernels, spans, streams, self.capacity - self.used - handed).cycles < math.inf
        except DoesNotFit:
            return False

    def stream(
        self, layer: Layer, tensor: Tensor, spans: Mapping[Axis, Span], copies: int, whole: Mapping[Axis, Span]
    ) -> None:  # fmt: skip
        """A buffer for a slice of a tensor, and what is loaded into it; `whole`: what all slices have."""
        made = {layer.name: dict(spans)}
        box = self.box_of(tensor, [layer.name], made)
        place = self.buffer(tensor, [layer.name], made, copies=copies, rolls=False)
        gone = self.missing(tensor, whole)
        place = replace(place, has=gone, completes=True)
        if tensor is not layer.result:
            self.move("load", tensor, box, place, [layer.name], self.conditions_of(tensor, [layer.name], made))
        elif self.sum_levels(layer, made):
            raise NotLowered(f"{tensor.name}: sums that wait in DRAM, where each element is written once")
        self.here[tensor].append(place)

    def part(self, layer: Layer, spans: Mapping[Axis, Span], slices: Axis | None = None) -> PartWriter:
        """A part of a layer whose operands and result lie in SRAM; `slices`: the axis of a loop that has it alone."""
        found = self.pieces(layer, spans, slices)
        gates = tuple(roll.gates[layer.name] for roll in self.rolls if layer.name in roll.gates)
        running = self.running(layer)
        levels = self.sum_levels(layer, {layer.name: dict(spans)})
        start = self.begins_there(layer)
        if running is not None:
            levels, start = self.moving_levels(layer.combine, spans), None
        added = (p.tensor for k, operand in enumerate(layer.operands) if k != start for p in operand.pieces)
        own = {place.buffer for place in self.here[layer.result]}
        if running is None and levels and any(place.buffer in own for tensor in added for place in self.here[tensor]):
            raise NotLowered(f"{layer.name}: sums in the storage of what the last pass adds")
        part = LayerPart(
            found.kernel, spans, found.pieces, self.sources, self.here[layer.result], self.elements, running,
            gates,
            Sums(tuple(levels), tuple(self.code.counts[level] for level in levels), start),
            None if slices is None else self.code.depth - 1, self.made_here,
        )  # fmt: skip
        return part.write(self.code)

    @property
    def made_here(self) -> frozenset[Tensor]:
        """What the innermost loop of the plan makes in its passes."""
        return frozenset(self.layers[name].result for name in self.inside)

    def join_parts(self, layer: Layer, made: Made, own: Spans) -> None:
        """A reduction of which each cluster has made its part, `own`: all get those of the others, and join them."""
        code, (place,) = self.code, self.here[layer.result]
        box = {axis: span_of(made[layer.name], axis) for axis in layer.result.axes}
        parts = self.pieces(layer, own).kernel
        others = Axis("others", code.clusters - 1)
        kernel, sent = join_kernel(parts, others)
        strides, size = packed((others, *box), {others: Span(ZERO, others.extent, others.extent), **box}, place.element)
        buffer = code.allocate("sram", size * place.planes)
        to = Place(
            buffer, "sram", place.element, strides, {axis: span.start for axis, span in box.items()},
            planes=place.planes, plane_bytes=size,
        )  # fmt: skip
        send_parts(code, place, box, others, to)
        elements = {**self.elements, sent: place.element}
        with code.repeat(others.extent) as index:
            at = replace(to, origin={**to.origin, others: index * -1})
            found = PieceChoice(code, kernel, box, elements, {}, {}).best()
            if found is None:
                raise NotLowered(f"{layer.name}: no piece of the parts of clusters fits the cores")
            places = lambda tensor: [at if tensor is sent else place]  # noqa: E731
            LayerPart(kernel, box, found.pieces, places, [place], elements).write(code)

    def pieces(self, layer: Layer, spans: Spans, slices: Axis | None = None) -> Candidate:
        """The kernel and the pieces that take the fewest cycles.  NotLowered where none fits."""
        found = self.best_of(layer, self.kernels(layer), spans, slices)
        if found is None:
            raise NotLowered(f"{layer.name}: no piece of it fits the cores")
        return found

    def best_of(
        self, layer: Layer, kernels: Sequence[Kernel], spans: Spans, slices: Axis | None = None
    ) -> Candidate | None:  # fmt: skip
        """The same of these kernels; None where no piece fits."""
        found: Candidate | None = None
        for kernel in kernels:
            cut = [axis for axis in kernel.whole if span_of(spans, axis).extent < axis.extent]
            if cut and not kernel.is_online:
                raise NotLowered(f"{layer.name}: it needs all of {cut[0].name} at a time")
            steps = self.steps(layer)
            best = PieceChoice(self.code, kernel, spans, self.elements, self.known, steps, slices, self.made_here).best()
            if best is not None and (found is None or best.cycles < found.cycles):
                found = best
        return found

    def steps(self, layer: Layer) -> Mapping[Axis, int]:
        """Of axes of a layer the multiples by which loops may move it."""
        if layer not in self.known_steps:
            self.known_steps[layer] = steps_of(layer, self.dram.order)
        return self.known_steps[layer]
