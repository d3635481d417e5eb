# Tests: test/passes/lower/tree/test_lower_plan.py
"""Computes of a plan: their layers in order, with slices of what is streamed, as parts that the cores make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Span
from frustum.dialects.plan.ranges import Held
from frustum.dialects.plan.tree import Compute
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.layouts import steps_of
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.nest import LayerPart, Pieces, Sums
from frustum.passes.lower.tree.pieces import Candidate, Known, PieceChoice
from frustum.passes.lower.tree.slices import SliceChoice
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

    def layer(self, node: Compute, layer: Layer, made: Made, held: Held) -> None:
        """A layer: with slices of what is streamed, where something is."""
        self.code.layer = self.numbers[layer.name]
        spans = made[layer.name]
        if all(kernel.is_nothing for kernel in kernels_of(layer)) or any(not s.extent for s in spans.values()):
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
        own_boxes = lambda tensor, part: self.box_of(tensor, [layer.name], {layer.name: dict(part)})  # noqa: E731
        chosen = SliceChoice(
            self.code.target, layer, spans, tensors, self.dram.form, own_boxes, self.capacity - self.used,
            self.code.depth,
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
        elif self.sum_levels(layer, made):
            raise NotLowered(f"{tensor.name}: sums that wait in DRAM, where each element is written once")
        self.here[tensor].append(place)

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
        """The kernel and the pieces that take the fewest cycles.  NotLowered where none fits, unless `none` says what
        that takes."""
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
        """Of axes of a layer the multiples by which loops may move it."""
        if layer not in self.known_steps:
            self.known_steps[layer] = steps_of(layer, self.dram.order)
        return self.known_steps[layer]
