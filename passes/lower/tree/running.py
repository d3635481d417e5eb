# Tests: test/passes/lower/tree/test_online.py
"""Numbers that reductions hand from pass to pass beside their results, and the loops that cut them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from frustum.dialects import isa
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Combine, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import Span
from frustum.dialects.plan.carried import RUNNING, running_axes
from frustum.dialects.plan.tree import Node
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.places import Place, packed
from frustum.passes.lower.tree.spans import Spans, span_of, step_at
from frustum.passes.lower.tree.streams.second_copies import SecondCopies


class RunningNumbers(SecondCopies):
    """Where such numbers lie."""

    here: dict[Tensor, list[Place]]

    def running(self, layer: Layer) -> Place | None:
        """Where numbers of an online reduction wait: of that layer, and of the sums that it is weighed with."""
        online = any(rule is Combine.ONLINE and a in layer.result.axes for a, rule in layer.combine.items())
        own = [reader.result for reader in self.network.readers.get(layer.result, []) if online]
        places = (place for tensor in (layer.result, *own) for place in self.here[tensor][-1:])
        return next((place.running for place in places if place.running is not None), None)

    def with_running(self, place: Place, maker: Layer, box: Mapping[Axis, Span], children: Sequence[Node]) -> Place:
        """A place of sums, with one for the numbers that an online reduction hands on with them."""
        axes = running_axes(maker, self.network.maker, children, self.known_class)
        if not axes:
            return place
        running = self.running_place(axes, box)
        return replace(place, running=running, taken=place.taken + running.plane_bytes * len(RUNNING))

    def running_place(self, axes: tuple[Axis, ...], box: Mapping[Axis, Span]) -> Place:
        """A buffer for running numbers of these axes."""
        strides, size = packed(axes, box, "f32")
        alloc = isa.AllocOp("sram", aligned(size * len(RUNNING)))
        self.code.block.add_op(alloc)
        self.take(size * len(RUNNING))
        origin = {axis: box[axis].start for axis in axes}
        return Place(alloc.buffer, "sram", "f32", strides, origin, planes=len(RUNNING), plane_bytes=size)

    def read_by(self, name: str) -> set[Tensor]:
        return {piece.tensor for operand in self.layers[name].operands for piece in operand.pieces}

    def read_by_in_order(self, layer: Layer) -> list[Tensor]:
        return [piece.tensor for operand in layer.operands for piece in operand.pieces]

    def sum_levels(self, layer: Layer, made: Made) -> list[int]:
        """Loops over whose passes its sums go on."""
        return self.moving_levels([a for a in layer.combine if a not in layer.result.axes], made[layer.name])

    def moving_levels(self, axes: Iterable[Axis], made: Spans) -> list[int]:
        """Loops that move some of these axes."""
        spans = [span_of(made, axis) for axis in axes]
        return [k for k in range(self.code.depth) if any(step_at(span, k) for span in spans)]
