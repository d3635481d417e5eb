# Tests: test/passes/lower/tree/test_lower_plan.py
"""Slices of what a compute streams: along which axis, and of how many positions.

What comes from DRAM or goes there does so in slices of one axis, two copies each, while cores compute on the slice
before; what does not have the axis lies there whole.  The choice is the way that takes the fewest cycles: of the DRAM
port, for which short runs are as long as its shortest, or of the cores, to which sums may go and back with every slice;
and of what comes before the first slice can be computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Affine, Span
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.spans import Spans, span_of, step_at

Boxes = Callable[[Tensor, Spans], Mapping[Axis, Span]]
"""What the layer touches of a tensor in a part of its axes."""
PARTS = 4
"""A part is cut into so many slices at least, so that loads go on while cores compute. 2026-11-28."""
LINES = 16
"""Steps are multiples of this where there is room: lines and channels of matrix units. 2026-11-28."""


@dataclass(frozen=True)
class Slices:
    """The axis, if there is one, positions of a slice, and the tensors that come in slices."""

    axis: Axis | None
    step: int
    moving: frozenset[Tensor]
    cycles: float


@dataclass(frozen=True)
class SliceChoice:
    """What a layer streams in a pass; `room`: bytes of SRAM; `homes`: where the tensors lie in DRAM."""

    target: Target
    layer: Layer
    kernels: Sequence[Kernel]
    spans: Spans
    tensors: Sequence[Tensor]
    homes: Callable[[Tensor], Place]
    boxes: Boxes
    room: int
    depth: int
    """Loops that are open."""
    computing: Callable[[Spans, Axis | None], float]
    """Cycles of the cores for a part, a slice along this axis."""
    even: Mapping[Axis, int]
    """Of axes the multiples that slices are of."""
    may_wait: bool = True
    """Whether there is room for sums that are not whole, in their type."""

    def best(self) -> Slices:
        """DoesNotFit where no slice fits."""
        found = min(self.ways(), key=lambda each: each.cycles, default=None)
        if found is None:
            where, room = f"layer '{self.layer.name}'", f"{max(0, self.room)} B of SRAM beside what stays there"
            raise DoesNotFit("the smallest slice of what is streamed", where, "more", room, "sram")
        return found

    def ways(self) -> Iterator[Slices]:
        whole = frozenset[Axis]().union(*(kernel.whole for kernel in self.kernels))
        adds = self.may_wait and all(kernel.goes_on for kernel in self.kernels)
        for axis in self.layer.axes:
            extent = span_of(self.spans, axis).extent
            may_be_cut = axis in self.layer.result.axes or adds
            if extent == 1 or axis.is_tap or axis in whole or not may_be_cut:
                continue
            moving = frozenset(tensor for tensor in self.tensors if self.moves(tensor, axis))
            yield from (self.way(axis, step, moving) for step in self.steps(axis, extent, moving))
        if self.bytes_of(None, 0, frozenset()) <= self.room:
            yield self.way(None, 0, frozenset())

    def steps(self, axis: Axis, extent: int, moving: frozenset[Tensor]) -> Iterator[int]:
        """From a quarter of the positions down, as far as they fit."""
        step = min(extent, ceil_div(ceil_div(extent, PARTS), LINES) * LINES)
        while step >= 1 and self.bytes_of(axis, step, moving) > self.room:
            step = step // 2 if step <= LINES else max(LINES, step // 2 // LINES * LINES)
        while step >= 1:
            if step == extent or step % self.even.get(axis, 1) == 0:
                yield step
            step = 0 if step <= LINES else max(LINES, step // 2 // LINES * LINES)

    def moves(self, tensor: Tensor, axis: Axis) -> bool:
        """Whether a slice of the axis needs a slice of the tensor alone."""
        if tensor is self.layer.result:
            return axis in tensor.axes
        box = self.boxes(tensor, {axis: Span(Affine.index(self.depth), 1, axis.extent)})
        return any(step_at(span, self.depth) == 1 and span.extent == 1 for span in box.values())

    def box(self, tensor: Tensor, axis: Axis | None, step: int, moving: frozenset[Tensor]) -> Mapping[Axis, Span]:
        own = dict(self.spans)
        if axis is not None and tensor in moving:
            own[axis] = replace(span_of(self.spans, axis), extent=step, limit=None)
        return self.boxes(tensor, own)

    def bytes_of(self, axis: Axis | None, step: int, moving: frozenset[Tensor]) -> int:
        """Of SRAM."""
        return sum(
            _size(self.box(tensor, axis, step, moving)) * self.width(tensor) * (1 + (tensor in moving))
            for tensor in self.tensors
        )

    def width(self, tensor: Tensor) -> int:
        """Bytes of an element."""
        home = self.homes(tensor)
        return size_of(home.element) * home.planes

    def way(self, axis: Axis | None, step: int, moving: frozenset[Tensor]) -> Slices:
        count = 1 if axis is None else ceil_div(span_of(self.spans, axis).extent, step)
        dram = self.target.chip.dram
        total = first = float(dram.latency_cycles)
        for tensor in self.tensors:
            cycles = self.port_bytes(tensor, axis, step, moving) / dram.port_bytes_per_cycle
            times = count if tensor in moving else 1
            total += cycles * times
            first += cycles
        part, cores = dict(self.spans), 0.0
        if axis is not None:
            part[axis] = replace(span_of(self.spans, axis), extent=step, limit=None)
        cores += count * (self.computing(part, axis if count > 1 else None) + self.target.cluster.sram.latency_cycles)
        return Slices(axis, step, moving, max(total, cores) + first)

    def port_bytes(self, tensor: Tensor, axis: Axis | None, step: int, moving: frozenset[Tensor]) -> int:
        """Bytes of a box at the DRAM port."""
        home, box = self.homes(tensor), self.box(tensor, axis, step, moving)
        run = size = size_of(home.element)
        for own in sorted(box, key=lambda each: home.strides.get(each, 0)):
            if home.strides.get(own, run) != run:
                break
            run *= box[own].extent
            if box[own].extent < own.extent:
                break
        runs = ceil_div(_size(box) * size, run)
        return home.planes * runs * max(run, self.target.chip.dram.minimum_run_bytes)


def _size(box: Mapping[Axis, Span]) -> int:
    return math.prod(span.extent for span in box.values())
