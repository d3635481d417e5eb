# Tests: test/passes/lower/tree/test_pieces.py
"""What a piece of a layer takes of a core: bytes of its memories, cycles of its engines, of many candidates at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import ACCUMULATORS, ELEMENT_BYTES, Span
from frustum.dialects.plan.layer_cycles import ClusterCycles
from frustum.dialects.target import Target
from frustum.dialects.target.durations import (
    Convolution,
    Mode,
    cheaper_mode,
    matrix_work,
    table_cycles,
    vector_cycles,
    vector_passes,
)
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.kernels.shared import SharedKernel
from frustum.passes.lower.tree.spans import span_of

Extents: TypeAlias = dict[Axis, NDArray[np.int64]]
"""Of each axis the extent of a piece, for all candidates."""


def units_of(kernel: Kernel) -> tuple[str, ...]:
    """The units of a core that work on a piece."""
    if isinstance(kernel, SharedKernel) or kernel.repeats:
        return "matrix", "vector"
    return ("matrix",) if isinstance(kernel, ProductKernel) and not kernel.on_vector else ("vector",)


class PieceCosts:
    """What pieces of one part of a layer take: bytes of the cores' memories, and cycles."""

    code: Code
    kernel: Kernel
    elements: Mapping[Tensor, Any]
    layer: Layer
    axes: tuple[Axis, ...]
    spans: dict[Axis, Span]
    summed: list[Axis]
    free: list[Axis]
    slices: Axis | None
    """The axis of which the part is a slice, in a loop that has it alone."""
    made: frozenset[Tensor]
    """What the pass around makes itself: it cannot come a pass ahead."""
    start: int | None
    """The operand that lies where sums wait: these begin with it."""
    turn: float
    """Cycles for which a copy waits until the port of SRAM is its own."""

    def __init__(
        self, code: Code, kernel: Kernel, spans: Mapping[Axis, Span], elements: Mapping[Tensor, Any],
        slices: Axis | None = None, made: frozenset[Tensor] = frozenset(), start: int | None = None,
        turn: float = 0.0,
    ) -> None:  # fmt: skip
        self.slices, self.made, self.start, self.turn = slices, made, start, turn
        self.code, self.kernel, self.elements = code, kernel, elements
        self.target: Target = code.target
        self.layer = kernel.layer
        self.axes = self.layer.axes
        self.spans = {axis: span_of(spans, axis) for axis in self.axes}
        self.extents: dict[Axis, int] = {axis: span.extent for axis, span in self.spans.items()}
        self.inside: dict[Axis, bool] = {axis: code.is_inside(span) for axis, span in self.spans.items()}
        self.summed = [axis for axis in self.layer.combine if axis not in self.layer.result.axes]
        self.free = [axis for axis in self.axes if axis not in kernel.whole and self.extents[axis] > 1]

    def size_of(self, want: Want) -> int:
        """Bytes of an element of an operand."""
        return size_of(self.elements[self.layer.operands[want.operand].pieces[0].tensor])

    def bytes_of(self, want: Want, extents: Extents) -> Any:
        """Of an operand in a piece."""
        found: Any = self.size_of(want) * want.planes
        for coordinate in want.dims:
            own = coordinate.refined()
            reach = sum(abs(factor) * (extents[axis] - 1) for axis, factor in own.terms)
            found = found * (1 + reach // own.divisor + (own.divisor > 1))
        return found

    def is_cut(self, axes: Sequence[Axis], extents: Extents) -> Any:
        """Whether a piece has a part of some axis."""
        found: Any = False
        for axis in axes:
            found = found | (extents[axis] < self.extents[axis])
        return found

    def counts(self, extents: Extents, dealt: Axis | None) -> Extents:
        """Of each axis how many pieces a core makes."""
        return {
            axis: -(-self.extents[axis] // (extents[axis] * (self.code.cores if axis is dealt else 1)))
            for axis in self.axes
        }  # fmt: skip

    def fits(self, extents: Extents, dealt: Axis | None) -> Any:
        """Whether two pieces of everything that moves fit a core's memories."""
        counts = self.counts(extents, dealt)
        need: dict[str, Any] = {"nram": 0, "wram": 0}
        for want in self.wants:
            copies = 1 + (self.comes_early(want) | self.are_several(tuple(want.axes), counts))
            need[want.memory] = need[want.memory] + copies * (self.bytes_of(want, extents) + 16)
        made = self.layer.result.axes
        result = math.prod(extents[axis] for axis in made)
        width = size_of(self.elements[self.layer.result]) * self.kernel.planes
        first = self.elements[self.layer.operands[0].pieces[0].tensor]
        wide = ELEMENT_BYTES[ACCUMULATORS.get(first, "f32")] * result
        sums = wide * self.is_cut(self.summed, extents)
        if self.goes_on:
            waiting = 2 * ELEMENT_BYTES[self.layer.result.sums] * result if self.layer.result.sums else sums
            sums = waiting if self.start is not None else np.where(self.stay(counts), wide, waiting)
        if not self.layer.macs and any(not self.spans[axis].start.is_constant for axis in self.summed):
            sums = sums + 2 * (result * width + 16)  # what passes before have made
        for each in self.kernel.scratch:
            copies = 1 if each.plane is None else 2
            size = size_of(each.element or first)
            sums = sums + copies * (math.prod(extents[axis] for axis in each.axes) * size + 16)
        core = self.target.core
        copies = 1 + (self.are_several(made, counts) | (self.slices is not None and self.slices not in self.summed))
        fits_nram = need["nram"] + copies * (result * width + 16) + sums <= core.nram.capacity_bytes
        return fits_nram & (need["wram"] <= core.wram.capacity_bytes)

    def stay(self, counts: Extents) -> Any:
        """Whether sums stay in the cores over all slices."""
        return (self.slices in self.summed) & ~self.are_several(self.layer.result.axes, counts)

    def comes_early(self, want: Want) -> bool:
        """Whether an operand comes while the pass before is computed."""
        made = all(piece.tensor in self.made for piece in self.layer.operands[want.operand].pieces)
        return self.slices is not None or (bool(self.code.depth) and not made)

    def are_several(self, axes: Sequence[Axis], counts: Extents) -> Any:
        """Whether a core has several pieces along these axes."""
        found: Any = np.zeros(1, bool)
        for axis in axes:
            found = found | (counts[axis] > 1)
        return found

    def cycles(self, extents: Extents, dealt: Axis | None, order: Sequence[Axis], computing: Any) -> Any:
        """Of the busiest core: computing, copies in and out over its own engine or the bus, or the ports of SRAM; and
        what of the others comes before or behind.  Copies of the piece after next wait for the buffers of this one."""
        cores, core, cluster = self.code.cores, self.target.core, self.target.cluster
        counts = self.counts(extents, dealt)
        passes: Any = math.prod(counts.values())
        own: Any = 0.0
        bus: Any = 0.0
        read: Any = 0.0
        for want in self.wants:
            times: Any = 1
            for k, axis in enumerate(order):
                is_inside = np.zeros_like(passes, bool)
                for inner in order[k:]:
                    is_inside = is_inside | ((counts[inner] > 1) & (inner in want.axes))
                times = times * np.where(is_inside, counts[axis], 1)
            size, port = self.crossing(self.bytes_of(want, extents), self.run_in(want, extents))
            if cores > 1 and (dealt is None or dealt not in want.axes):
                bus = bus + times * (np.maximum(size / cluster.bus.bytes_per_cycle, port) + 1 + self.turn)
                read = read + times * port
            else:
                own = own + times * (np.maximum(size / core.mvdma.bytes_per_cycle, port) + 1 + self.turn)
                read = read + times * port * cores
        out = math.prod(extents[axis] for axis in self.layer.result.axes)
        times = math.prod(counts[axis] for axis in self.layer.result.axes)
        size, port = self.crossing(
            out * (size_of(self.elements[self.layer.result]) * self.kernel.planes), self.run_out(extents)
        )  # fmt: skip
        written = times * (np.maximum(size / core.mvdma.bytes_per_cycle, port) + 1 + self.turn)
        loads, within = np.maximum(own, bus), math.prod(counts[axis] for axis in self.summed)
        if self.goes_on:  # sums lie in SRAM between passes, but for those that stay in the cores over all slices
            stays = self.stay(counts)
            own, read = own + 2 * written * ~stays, read + times * port * cores * ~stays
            at_once = size / core.mvdma.bytes_per_cycle + (cores - 1) * port + cluster.sram.latency_cycles
            in_step = 2 * times * at_once * ~stays  # each goes there once all have brought the one before
        else:
            own, in_step = own + written, 0.0
        computed = passes * (computing + core.nram.latency_cycles)
        moved = np.maximum(np.maximum(own, bus), np.maximum(read, times * port * cores))
        by_turns = (computed + own + bus + passes * cluster.sram.latency_cycles) / 2
        by_turns = np.maximum(by_turns, in_step)
        # behind operands that come piece by piece no sums come early
        alone = np.where((within > 1) & (in_step > 0), in_step + loads / within, 0.0)
        begins = self.beginnings(order, counts)
        first = np.minimum(computed, moved) / passes + (begins - 1) * (loads / passes + written / times)
        return np.maximum(np.maximum(computed, moved), by_turns) + first + alone

    def beginnings(self, order: Sequence[Axis], counts: Extents) -> Any:
        """How often the innermost loop over pieces of the result begins: what comes first is waited for."""
        found: Any = 1
        inner: Any = 1
        for axis in reversed([axis for axis in order if axis not in self.summed]):
            found = np.where(inner > 1, found * counts[axis], found)
            inner = np.where(inner > 1, inner, counts[axis])
        return found

    @cached_property
    def wants(self) -> list[Want]:
        """The operands that come."""
        return [want for want in self.kernel.wants if not self.goes_on or want.operand != self.start]

    @cached_property
    def goes_on(self) -> bool:
        """Whether passes of loops outside have begun the sums."""
        moved = (axis is self.slices or not self.spans[axis].start.is_constant for axis in self.summed)
        return bool(self.layer.macs) and any(moved)

    def crossing(self, size: Any, run: Any) -> tuple[Any, Any]:
        """Bytes of a copy, and cycles of the port of SRAM, where they lie in such runs; in a core they lie together."""
        sram = self.target.cluster.sram
        return size, size / run * np.maximum(run, sram.minimum_run_bytes) / sram.port_bytes_per_cycle

    def run_in(self, want: Want, extents: Extents) -> Any:
        """Bytes of an operand's piece that lie one behind the other in SRAM."""
        return self.run_of(self.lies(want), self.size_of(want), extents)

    def lies(self, want: Want) -> list[tuple[tuple[Axis, int], ...]]:
        """The positions along the axes of an operand's tensor, outermost first."""
        piece = self.layer.operands[want.operand].pieces[0]
        read = dict(piece.by_leaf)
        positions = (read[axis] for axis in piece.tensor.axes)
        return [() if position is None else position.refined().terms for position in positions]

    def run_out(self, extents: Extents) -> Any:
        """The same of the result."""
        result = self.layer.result
        return self.run_of([((axis, 1),) for axis in result.axes], size_of(self.elements[result]), extents)

    def run_of(self, dims: Sequence[tuple[tuple[Axis, int], ...]], size: int, extents: Extents) -> Any:
        """Of positions along these dimensions, outermost first."""
        run: Any = size
        goes_on: Any = True
        for terms in reversed(dims):
            reach: Any = 1 + sum(abs(factor) * (extents[axis] - 1) for axis, factor in terms)
            whole = 1 + sum(abs(factor) * (self.extents[axis] - 1) for axis, factor in terms)
            is_dense = not terms or min(abs(factor) for _, factor in terms) == 1
            run = np.where(goes_on, run * (reach if is_dense else 1), run)
            goes_on = goes_on & (reach >= whole) & is_dense
        return run

    def computing(self, extents: Extents, *, is_exact: bool = False) -> Any:
        """Of one piece; exactly, or with every fill of the lines as a full one."""
        first, *more = self.of_units(extents, is_exact=is_exact).values()
        return np.maximum(first, *more) if more else first

    def of_units(self, extents: Extents, *, is_exact: bool = False) -> dict[str, Any]:
        """The same of each unit that works on it."""
        kernel = self.kernel
        parts = kernel.extents(extents) if isinstance(kernel, SharedKernel) else [(kernel, extents)]
        return {units_of(each)[-1]: self.of_kernel(each, own, is_exact=is_exact) for each, own in parts}

    def of_kernel(self, kernel: Kernel, extents: Extents, *, is_exact: bool) -> Any:
        """The same where a kernel makes it alone."""
        core = self.target.core
        size = size_of(self.elements[self.layer.operands[0].pieces[0].tensor])
        points = math.prod(extents[axis] for axis in self.axes)
        if not isinstance(kernel, ProductKernel):
            own_passes = sum(vector_passes(core.vector, *step) for step in kernel.steps) or kernel.passes(size)
            cycles: Any = vector_cycles(core.vector, own_passes, points, size)
            if kernel.kept_passes:
                kept = math.prod(extents[axis] for axis in self.layer.result.axes if axis not in kernel.whole)
                cycles = cycles + sum(
                    vector_cycles(core.vector, passes, kept, ELEMENT_BYTES["f32"]) + core.nram.latency_cycles
                    for passes in kernel.kept_passes
                )
            return cycles
        if kernel.on_vector:
            return vector_cycles(core.vector, 1, points, size)
        own = kernel.factors

        def count(axes: Sequence[Axis]) -> Any:
            return math.prod((extents[axis] for axis in axes), start=np.ones_like(points))

        taps = [1 if w is None else w.tap.extent for w in kernel.windows]
        work = Convolution(
            count(kernel.images) * count(kernel.rows), count(kernel.columns), count(own.sums), count(own.channels),
            size, count(own.groups), taps[0], taps[1], 1 if kernel.windows[1] is None else kernel.windows[1].stride,
        )  # fmt: skip
        if not is_exact:
            return ClusterCycles(self.target.cluster).on_matrix(work)
        sums = [coordinate.refined().terms for coordinate in kernel.wants[0].dims[-1:]]
        is_last = sums == [((own.sums[-1], 1),)] if own.sums else False
        plain = {each.name: getattr(work, each.name) for each in fields(work)}
        numbers = {name: int(np.asarray(value).item()) for name, value in plain.items() if value is not None}
        work = replace(work, **numbers)
        mode: Mode = "channels_last" if is_last else cheaper_mode(core.matrix, work)
        return np.array([max(matrix_work(core.matrix, work, mode).busy_cycles, table_cycles(work))])
