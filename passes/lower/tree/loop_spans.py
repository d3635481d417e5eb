# Tests: test/passes/lower/tree/test_lower_plan.py
"""What layers make in the passes of loops, for all passes at once: spans that are affine in the loops.

Which boxes lie where is what `dialects/plan/ranges.py` says of every pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from xdsl.ir import Block

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ZERO, Affine, Span
from frustum.dialects.plan.check import title
from frustum.dialects.plan.ranges import Ranged
from frustum.dialects.plan.tree import Loop
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Gate
from frustum.passes.lower.tree.spans import (
    NotLowered,
    Spans,
    end,
    hull,
    rolled,
    span_of,
    step_at,
    through,
    widest,
)

Made: TypeAlias = Mapping[str, dict[Axis, Span]]
"""Of each layer what it makes in the passes of the loops that are open."""


@dataclass(frozen=True)
class Roll:
    """A rolling loop that is open: its level, its class, the passes in which layers have something to do, what they
    make in one, and its body."""

    level: int
    group: frozenset[Axis]
    gates: Mapping[str, Gate]
    made: Made
    block: Block


class LoopSpans(Ranged):
    """The passes of a plan's loops, in a program that is being written."""

    code: Code

    # ------------------------------------------------------------ passes

    def step_of(self, node: Loop, axis: Axis, inside: list[Layer], made: Made) -> tuple[int, int]:
        """How far a pass goes along the named axis, and how many passes there are in a pass of the loops outside."""
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        step = min(b - a for a, b in zip(node.edges, node.edges[1:], strict=False)) if node.passes > 1 else outer.extent
        step = max(b - a for a, b in zip(node.edges, node.edges[1:], strict=False))
        tiles = range(0, axis.extent, outer.extent)
        wanted = {a + k for a in tiles for k in range(0, outer.extent, step) if a + k < axis.extent}
        if {*node.edges} != {*wanted, axis.extent}:
            raise NotLowered(f"{title(node)}: ranges that are not all of one length")
        return step, ceil_div(outer.extent, step)

    def pass_of(
        self, axis: Axis, group: frozenset[Axis], inside: list[Layer], made: Made, loop: tuple[int, int, int]
    ) -> dict[str, dict[Axis, Span]]:
        """What all layers make in a pass of a loop (level, step, passes), from the last layer back."""
        counts = [*self.code.counts, loop[2]]
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        found: dict[str, dict[Axis, Span]] = {}
        needed: dict[Tensor, list[Span]] = defaultdict(list)
        for layer in reversed(inside):
            spans = dict(made[layer.name])
            own = next(iter(group & set(layer.axes)), None)
            if own is not None:
                asked = list(needed[layer.result]) if own in layer.result.axes else []
                is_asked = layer not in self.in_step and self.is_read_along(group, inside, layer, own)
                if not is_asked or self.is_read_elsewhere(layer.result, inside):
                    asked.append(self.in_proportion(span_of(spans, own), outer, loop[:2]))
                if not asked:
                    raise NotLowered(f"{layer.name}: nothing asks for what it makes")
                spans[own] = self.within(hull(widest(asked, counts)), span_of(spans, own))
            found[layer.name] = spans
            for tensor, box in self.boxes_read(layer, spans):
                maker = self.network.maker.get(tensor)
                along = None if maker is None else next(iter(group & set(maker.axes)), None)
                if along is not None and along in box:
                    needed[tensor].append(box[along])
        return found

    def in_proportion(self, own: Span, outer: Span, loop: tuple[int, int]) -> Span:
        """The share of a layer's span that a pass along the named axis has."""
        level, step = loop
        share = Fraction(own.extent, outer.extent) * step
        if share.denominator > 1:
            raise NotLowered(f"steps of {step} of {outer.extent} positions, for {own.extent}")
        extent, start = int(share), own.start + Affine.index(level, int(share))
        limit = own.limit
        if ceil_div(own.extent, extent) * extent > own.extent and not (
            own.start.is_constant and own.start.base + own.extent >= own.bound
        ):
            if limit is not None:
                raise NotLowered(f"steps of {step} in ranges of {outer.extent} that are clipped")
            limit = end(own)
        return Span(start, extent, own.bound, limit)

    def within(self, span: Span, outer: Span) -> Span:
        """Not beyond where the pass outside ends."""
        bound = min(span.bound, outer.bound)
        limit = span.limit
        if outer.limit is not None and limit is None:
            limit = outer.limit
        return Span(span.start, span.extent, bound, limit)

    def rolled_spans(self, spans: Spans, group: frozenset[Axis], level: int) -> dict[Axis, Span]:
        """What no earlier pass has made."""
        return {axis: rolled(span, level) if axis in group else span for axis, span in spans.items()}

    def passes_before(self, node: Loop, found: Made, group: frozenset[Axis], level: int) -> int:
        """Passes in which early layers make, and buffers of the loop get, what the first pass of the plan needs beside
        its own step."""
        spans = [span for each in found.values() for axis, span in each.items() if axis in group]
        for _, tensor, users in self.places(node.body):
            moved = [axis for axis in tensor.axes if self.changes(group, users, tensor, axis)]
            boxes = (box for user in users for other, box in self.boxes_read(user, found[user.name]) if other is tensor)
            spans += [box[axis] for box in boxes for axis in moved]
        most = 0
        for span in spans:
            step = step_at(span, level)
            if step > 0:
                if any(c for k, c in enumerate(span.start.loops) if k != level):
                    raise NotLowered("a rolling loop inside another one over the same axis")
                most = max(most, ceil_div(end(span).base, step) - 1)
        return most

    def gates_of(self, found: Made, group: frozenset[Axis], level: int) -> dict[str, Gate]:
        gates = {}
        for name, spans in found.items():
            for axis, span in spans.items():
                step = step_at(span, level) if axis in group else 0
                first = 0 if step <= 0 else max(0, -end(span).base // step + 1)
                if first:
                    gates[name] = Gate(level, first)
        return gates

    # ------------------------------------------------------------ boxes

    def boxes_read(self, layer: Layer, spans: Spans) -> Iterator[tuple[Tensor, dict[Axis, Span]]]:
        """What a part of a layer reads of each tensor."""
        for operand in layer.operands:
            for piece in operand.pieces:
                box = {}
                for axis, position in piece.by_leaf:
                    is_all = operand.is_all or position is None
                    box[axis] = Span(ZERO, axis.extent, axis.extent) if is_all or position is None else through(
                        position, axis.extent, spans
                    )
                yield piece.tensor, box

    def box_of(self, tensor: Tensor, names: Iterable[str], made: Made) -> dict[Axis, Span]:
        """What layers touch of a tensor, all together."""
        found: dict[Axis, list[Span]] = {axis: [] for axis in tensor.axes}
        for name in names:
            layer = self.layers[name]
            boxes = [box for other, box in self.boxes_read(layer, made[name]) if other is tensor]
            if layer.result is tensor:
                boxes.append({axis: span_of(made[name], axis) for axis in tensor.axes})
            for box in boxes:
                for axis, span in box.items():
                    found[axis].append(span)
        return {axis: hull(spans) for axis, spans in found.items()}
