# Tests: test/passes/lower/tree/test_lower_plan.py
"""Parts of layers on the cores: kernels and pieces that take the fewest cycles, slices of what is streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.isa.program import ZERO, Span
from frustum.passes.lower.tree.kernels.joins import join_kernel
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.layouts import steps_of
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.nest import LayerPart, PartWriter, Pieces, Sums
from frustum.passes.lower.tree.over_clusters import send_parts
from frustum.passes.lower.tree.pieces import Candidate, PieceChoice
from frustum.passes.lower.tree.places import Place, packed
from frustum.passes.lower.tree.signatures import Known
from frustum.passes.lower.tree.spans import NotLowered, Spans, span_of
from frustum.passes.lower.tree.sram_buffers import SramBuffers


class CoreParts(SramBuffers):
    """Writes parts of layers."""

    known: Known
    known_steps: dict[Layer, Mapping[Axis, int]]
    used: int

    def part(
        self, layer: Layer, spans: Mapping[Axis, Span], slices: Axis | None = None, turn: float = 0.0
    ) -> PartWriter:  # fmt: skip
        """A part of a layer whose operands and result lie in SRAM; `slices`: the axis of a loop that has it alone;
        `turn`: cycles for which copies wait until the port of SRAM is theirs."""
        found = self.pieces(layer, spans, slices, turn)
        level = None if slices is None else self.code.depth - 1
        return self.layer_part(found.kernel, spans, found.pieces, level).write(self.code)

    def layer_part(
        self, kernel: Kernel, spans: Mapping[Axis, Span], pieces: Pieces, slices: int | None = None
    ) -> LayerPart:  # fmt: skip
        """What the cores are to write of a layer."""
        layer = kernel.layer
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
        sums = Sums(tuple(levels), tuple(self.code.counts[level] for level in levels), start)
        return LayerPart(
            kernel, spans, pieces, self.sources, self.here[layer.result], self.elements, running, gates, sums, slices,
            self.made_here,
        )  # fmt: skip

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
        found = PieceChoice(code, kernel, box, elements, {}, {}).best()
        if found is None:
            raise NotLowered(f"{layer.name}: no piece of the parts of clusters fits the cores")
        places = lambda tensor: [to if tensor is sent else place]  # noqa: E731
        LayerPart(kernel, box, found.pieces, places, [place], elements).write(code)

    def pieces(self, layer: Layer, spans: Spans, slices: Axis | None = None, turn: float = 0.0) -> Candidate:
        """The kernel and the pieces that take the fewest cycles.  NotLowered where none fits."""
        found = self.best_of(layer, self.kernels(layer), spans, slices, turn)
        if found is None:
            raise NotLowered(f"{layer.name}: no piece of it fits the cores")
        return found

    def best_of(
        self, layer: Layer, kernels: Sequence[Kernel], spans: Spans, slices: Axis | None = None, turn: float = 0.0
    ) -> Candidate | None:  # fmt: skip
        """The same of these kernels; None where no piece fits."""
        found: Candidate | None = None
        start = None if self.running(layer) is not None else self.begins_there(layer)
        for kernel in kernels:
            cut = [axis for axis in kernel.whole if span_of(spans, axis).extent < axis.extent]
            if cut and not kernel.is_online:
                raise NotLowered(f"{layer.name}: it needs all of {cut[0].name} at a time")
            steps = self.steps(layer)
            best = PieceChoice(
                self.code, kernel, spans, self.elements, self.known, steps, slices, self.made_here, start, turn
            ).best()
            if best is not None and (found is None or best.cycles < found.cycles):
                found = best
        return found

    def steps(self, layer: Layer) -> Mapping[Axis, int]:
        """Of axes of a layer the multiples by which loops may move it."""
        if layer not in self.known_steps:
            self.known_steps[layer] = steps_of(layer, self.dram.order)
        return self.known_steps[layer]
