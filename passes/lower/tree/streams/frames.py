# Tests: test/passes/lower/tree/test_frames.py
"""Outputs of which several layers make parts that lie between each other: their results share a buffer.

In SRAM the buffer lies as the output does, so that it leaves as long runs, when all parts of a box have been made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis, dim, extent_of
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ELEMENT_BYTES, ZERO, Affine, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.outputs import OutputView
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.spans import Spans, hull, span_of, through

Parts = Mapping[Tensor, Spans]
"""Of tensors in a frame the parts that a pass makes."""


@dataclass(frozen=True, eq=False)
class Frame:
    """An output as a tensor with an axis for each of its dimensions, its home, and where along these axes the positions
    of the tensors lie that it has."""

    tensor: Tensor
    home: Place
    positions: Mapping[Tensor, Mapping[Axis, Position]]

    @staticmethod
    def of(view: OutputView, name: str) -> Frame:
        size = ELEMENT_BYTES[view.into.element]
        dims = tuple(dim(f"{name}.{k}", extent_of(own)) for k, own in enumerate(view.view.dims))
        tensor = Tensor(name, dims, size * 8, Kind.INTERMEDIATE, is_output=True)
        steps = dict[Axis, int]()
        for axis in reversed(tensor.axes):
            steps[axis] = size
            size *= axis.extent
        tensor.settle()
        found = dict[Tensor, Mapping[Axis, Position] | None]()
        for part in view.parts():
            known = None if part.window is None or part.window.has else _positions(part.window, tensor.axes, steps)
            found[part.tensor] = None if part.tensor in found else known
        home = Place(view.into.buffer, "dram", view.into.element, steps)
        return Frame(tensor, home, {tensor: own for tensor, own in found.items() if own is not None})

    def box(self, made: Parts) -> dict[Axis, Span]:
        """The smallest box around parts."""
        return {
            axis: hull(through(self.positions[tensor][axis], axis.extent, spans) for tensor, spans in made.items())
            for axis in self.tensor.axes
        }

    def is_filled(self, code: Code, made: Parts) -> bool:
        """Whether parts have every position of the box around them, in all passes."""
        box = self.box(made)
        sizes = (math.prod(span_of(spans, axis).extent for axis in tensor.axes) for tensor, spans in made.items())
        return sum(sizes) == math.prod(span.extent for span in box.values()) and all(
            self._offset(tensor, spans, axis, box[axis]).is_constant
            and _is_cut_alike(code, self.positions[tensor][axis], spans, box[axis])
            for tensor, spans in made.items() for axis in self.tensor.axes
        )  # fmt: skip

    def place(self, whole: Place, box: Mapping[Axis, Span], tensor: Tensor, spans: Spans) -> Place:
        """Where the part of a tensor lies in a buffer with a box."""
        strides, offset = dict[Axis, int](), 0
        for axis, position in self.positions[tensor].items():
            offset += self._offset(tensor, spans, axis, box[axis]).base * whole.strides[axis]
            strides |= {own: factor * whole.strides[axis] for own, factor in position.terms}
        own = {axis: span_of(spans, axis) for axis in tensor.axes}
        origin = {axis: span.start for axis, span in own.items()}
        return Place(whole.buffer, "sram", whole.element, strides, origin, offset=offset, box=own)

    def _offset(self, tensor: Tensor, spans: Spans, axis: Axis, span: Span) -> Affine:
        """Where the first position of a part is in a box, along an axis."""
        position = self.positions[tensor][axis]
        starts = (span_of(spans, own).start * factor for own, factor in position.terms)
        return sum(starts, ZERO) + position.offset - span.start


def _positions(
    window: Place, axes: Sequence[Axis], steps: Mapping[Axis, int]
) -> dict[Axis, Position] | None:  # fmt: skip
    """A window's positions along the axes of an output; None where it goes through several of these, or backward."""
    terms: dict[Axis, list[tuple[Axis, int]]] = {axis: [] for axis in axes}
    for own, stride in window.strides.items():
        axis = next((axis for axis in axes if steps[axis] <= stride < steps[axis] * axis.extent), None)
        if axis is None or stride % steps[axis]:
            return None
        terms[axis].append((own, stride // steps[axis]))
    found, rest = dict[Axis, Position](), window.offset
    for axis in axes:
        first, rest = divmod(rest, steps[axis])
        found[axis] = Position(tuple(terms[axis]), first)
        low, high = found[axis].hull({})
        if low < 0 or high > axis.extent:
            return None
    return found


def _is_cut_alike(code: Code, position: Position, spans: Spans, whole: Span) -> bool:
    """Whether what is cut off a part is what is cut off the box around it."""
    terms = sorted(position.terms, key=lambda term: term[1])
    cut = [k for k, (axis, _) in enumerate(terms) if not code.is_inside(span_of(spans, axis))]
    if not cut and code.is_inside(whole):
        return True
    if not terms or any(k < len(terms) - 1 for k in cut):
        return False
    (*inner, (_, factor)), span = terms, span_of(spans, terms[-1][0])
    low, high = Position(tuple(inner), position.offset).hull(
        {own: (span_of(spans, own).start.base, span_of(spans, own).start.base + span_of(spans, own).extent)
         for own, _ in inner}
    )  # fmt: skip
    is_apart = low >= 0 and high <= factor and all(span_of(spans, own).start.is_constant for own, _ in inner)
    firsts = low, high - 1
    if not is_apart or any(ceil_div(whole.bound - first, factor) != span.bound for first in firsts):
        return False
    if span.limit is None or whole.limit is None:
        return span.limit is None and whole.limit is None
    beyond = whole.limit - span.limit * factor
    return beyond.is_constant and all(ceil_div(beyond.base - first, factor) == 0 for first in firsts)


