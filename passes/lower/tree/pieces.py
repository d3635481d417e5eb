# Tests: test/passes/lower/tree/test_lower_plan.py
"""Pieces of a layer's part for the cores: as large as their memories hold twice, in the fewest cycles.

Cycles are the machine's closed forms (`dialects/target/durations.py`): what the matrix or vector unit takes for all
pieces of a core, and what copies take, which go on meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ACCUMULATORS, Element, Span
from frustum.dialects.target import Target
from frustum.dialects.target.durations import Convolution, matrix_work, vector_cycles
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernel import Kernel, Want
from frustum.passes.lower.tree.nest import Pieces
from frustum.passes.lower.tree.products import ProductKernel
from frustum.passes.lower.tree.spans import span_of

STEP = 2
"""Candidates for a piece's extent are this apart, from all positions down. 2026-11-28."""


@dataclass(frozen=True)
class Candidate:
    kernel: Kernel
    pieces: Pieces
    cycles: float


class PieceChoice:
    """The pieces of one part of a layer."""

    def __init__(self, code: Code, kernel: Kernel, spans: Mapping[Axis, Span], elements: Mapping[Tensor, Element]) -> None:
        self.code, self.kernel, self.elements = code, kernel, elements
        self.target: Target = code.target
        self.layer = kernel.layer
        self.spans = {axis: span_of(spans, axis) for axis in self.layer.axes}
        self.extents = {axis: span.extent for axis, span in self.spans.items()}
        self.summed = [axis for axis in self.layer.combine if axis not in self.layer.result.axes]
        self.free = [axis for axis in self.layer.axes if axis not in kernel.whole and self.extents[axis] > 1]
        self.element: Element = elements[self.layer.operands[0].pieces[0].tensor]

    def best(self) -> Candidate | None:
        """The candidate with the fewest cycles; None where no piece fits."""
        return min(self.candidates(), key=lambda each: each.cycles, default=None)

    def candidates(self) -> Iterator[Candidate]:
        if self.kernel.is_nothing:
            yield Candidate(self.kernel, Pieces({}, None, ()), 0.0)
            return
        for dealt in self.dealt_axes():
            for extents in self.cuts(dealt):
                if not self.fits(extents) or not self.is_writable(extents, dealt):
                    continue
                for order in self.orders(extents, dealt):
                    pieces = Pieces(extents, dealt, order)
                    yield Candidate(self.kernel, pieces, self.cycles(pieces))

    # ------------------------------------------------------------ ways

    def dealt_axes(self) -> list[Axis | None]:
        if self.code.cores == 1:
            return [None]
        found: list[Axis | None] = [axis for axis in self.free if axis not in self.summed]
        return found or [None]

    def cuts(self, dealt: Axis | None) -> Iterator[dict[Axis, int]]:
        """Extents of pieces: along at most two axes and the sums they are cut further, others from the outside in until
        they fit."""
        cores = self.code.cores
        base = dict(self.extents)
        if dealt is not None:
            base[dealt] = ceil_div(base[dealt], cores)
        ways = [self.steps_of(axis, base[axis]) for axis in self.free]
        shrunk = self.shrunk(base, ways)
        yield from shrunk

    def steps_of(self, axis: Axis, extent: int) -> list[int]:
        """Extents for a piece, from all positions down; of channels multiples of what the matrix unit takes."""
        found, step = list[int](), extent
        while step > 1:
            found.append(step)
            step = ceil_div(step, STEP)
        return [*found, 1]

    def shrunk(self, base: dict[Axis, int], ways: Sequence[Sequence[int]]) -> Iterator[dict[Axis, int]]:
        """Every way to cut the two or three axes that are longest."""
        ranked = sorted(range(len(self.free)), key=lambda k: -base[self.free[k]])
        cut, rest = ranked[:3], ranked[3:]
        for chosen in itertools.product(*(ways[k] for k in cut)):
            extents = dict(base)
            for k, extent in zip(cut, chosen, strict=True):
                extents[self.free[k]] = extent
            for k in rest:  # what still does not fit is cut along others, too
                for extent in ways[k]:
                    extents[self.free[k]] = extent
                    if self.fits(extents):
                        break
            yield extents

    def orders(self, extents: Mapping[Axis, int], dealt: Axis | None) -> Iterator[tuple[Axis, ...]]:
        """Loops: positions outside of channels, or the other way; sums inside."""
        made = [axis for axis in self.layer.axes if axis not in self.summed]
        if not isinstance(self.kernel, ProductKernel):
            yield (*made, *self.summed)
            return
        own = self.kernel.factors
        channels = [axis for axis in made if axis in own.channels]
        rest = [axis for axis in made if axis not in own.channels and axis not in own.groups]
        groups = [axis for axis in made if axis in own.groups]
        yield (*groups, *rest, *channels, *self.summed)
        if channels and rest:
            yield (*groups, *channels, *rest, *self.summed)

    # ------------------------------------------------------------ what fits

    def elements_of(self, want: Want, extents: Mapping[Axis, int]) -> int:
        """Elements of an operand in a piece."""
        found = 1
        for coordinate in want.dims:
            found *= 1 + sum(abs(factor) * (extents[axis] - 1) for axis, factor in coordinate.refined().terms)
        return found

    def bytes_of(self, want: Want, extents: Mapping[Axis, int]) -> int:
        tensor = self.layer.operands[want.operand].pieces[0].tensor
        return self.elements_of(want, extents) * size_of(self.elements[tensor])

    def fits(self, extents: Mapping[Axis, int]) -> bool:
        """Whether two pieces of everything fit a core's memories."""
        need = {"nram": 0, "wram": 0}
        for want in self.kernel.wants:
            copies = 2 if any(extents[a] < self.extents[a] for a in want.axes) else 1
            need[want.memory] += copies * (self.bytes_of(want, extents) + 16)
        result = math.prod(extents[axis] for axis in self.layer.result.axes)
        is_summed = any(extents[a] < self.extents[a] for a in self.summed)
        need["nram"] += 2 * result * size_of(self.elements[self.layer.result]) + is_summed * 4 * result + 32
        core = self.target.core
        return need["nram"] <= core.nram.capacity_bytes and need["wram"] <= core.wram.capacity_bytes

    def is_writable(self, extents: Mapping[Axis, int], dealt: Axis | None) -> bool:
        """Whether instructions can say it: of axes in one dimension the outermost alone may be clipped; sums are cut
        along one axis."""
        if sum(extents[axis] < self.extents[axis] for axis in self.summed) > 1:
            return False
        if any(extents[a] < self.extents[a] for a in self.summed) and not self.layer.macs:
            return False
        for axis in self.layer.axes:
            if self.is_clipped(axis, extents, dealt) and self.spans[axis].limit is not None and self.overshoots(axis, extents, dealt):
                return False
        groups = [*self.kernel.groups()]
        if isinstance(self.kernel, ProductKernel):
            groups.append(self.kernel.factors.sums)
            own = self.kernel
            if own.factors.channels and not own.on_vector and math.prod(extents[a] for a in own.factors.groups) > 1:
                if any(self.is_clipped(a, extents, dealt) for a in (*own.factors.groups, *own.factors.channels)):
                    return False
        live = 0
        for group in groups:
            own_axes = [a for a in group if extents[a] > 1 or self.is_clipped(a, extents, dealt)]
            live += bool(own_axes)
            if any(self.is_clipped(axis, extents, dealt) for axis in own_axes[1:]):
                return False
            if own_axes and len(own_axes) > 1 and own_axes[0] is not None and not self.is_dense(group, extents):
                return False
        return live <= 4 + isinstance(self.kernel, ProductKernel)

    def is_dense(self, group: Sequence[Axis], extents: Mapping[Axis, int]) -> bool:
        """Windows go on from one axis to the next only where the inner one is whole."""
        if not isinstance(self.kernel, ProductKernel):
            return True
        windows = [w for w in self.kernel.windows if w is not None and w.made == tuple(group)]
        return not windows or all(extents[axis] == axis.extent for axis in group[1:])

    def is_clipped(self, axis: Axis, extents: Mapping[Axis, int], dealt: Axis | None) -> bool:
        return not self.code.is_inside(self.spans[axis]) or self.overshoots(axis, extents, dealt)

    def overshoots(self, axis: Axis, extents: Mapping[Axis, int], dealt: Axis | None) -> bool:
        step = extents[axis] * (self.code.cores if axis is dealt else 1)
        return self.extents[axis] % step != 0

    # ------------------------------------------------------------ cycles

    def cycles(self, pieces: Pieces) -> float:
        """Of the busiest core: computing, or copies in and out."""
        extents, dealt, cores = pieces.extents, pieces.dealt, self.code.cores
        counts = {
            axis: ceil_div(self.extents[axis], extents[axis] * (cores if axis is dealt else 1))
            for axis in self.layer.axes
        }  # fmt: skip
        passes = math.prod(counts.values())
        moved = 0.0
        for want in self.kernel.wants:
            depth = max((k + 1 for k, axis in enumerate(pieces.order) if axis in want.axes and counts[axis] > 1), default=0)
            times = math.prod(counts[axis] for axis in pieces.order[:depth])
            is_shared = cores > 1 and (dealt is None or dealt not in want.axes)
            rate = self.target.cluster.bus.bytes_per_cycle if is_shared else self.rate
            moved += times * (self.bytes_of(want, extents) / rate + 1)
        made = [axis for axis in self.layer.result.axes]
        out = math.prod(extents[a] * counts[a] for a in made) * size_of(self.elements[self.layer.result])
        moved += out / self.rate
        computing = passes * (self.computing(extents) + self.target.core.nram.latency_cycles)
        return max(computing, moved) + min(computing, moved) / max(1, passes)

    @property
    def rate(self) -> float:
        """Bytes per cycle between SRAM and one core, where all move at once."""
        port = self.target.cluster.sram.port_bytes_per_cycle / self.code.cores
        return min(float(self.target.core.mvdma.bytes_per_cycle), port)

    def computing(self, extents: Mapping[Axis, int]) -> float:
        """Of one piece."""
        core, size = self.target.core, size_of(self.element)
        kernel = self.kernel
        points = math.prod(extents[axis] for axis in self.layer.axes)
        if not isinstance(kernel, ProductKernel):
            return float(vector_cycles(core.vector, max(1, self.layer.passes), points, size))
        if kernel.on_vector:
            return float(vector_cycles(core.vector, 1, points, size))
        own = kernel.factors

        def count(axes: Sequence[Axis]) -> int:
            return math.prod(extents[axis] for axis in axes)

        taps = [1 if w is None else w.tap.extent for w in kernel.windows]
        work = Convolution(
            count(kernel.images) * count(kernel.rows), count(kernel.columns), count(own.sums), count(own.channels), size,
            count(own.groups), taps[0], taps[1], 1 if kernel.windows[1] is None else kernel.windows[1].stride,
        )  # fmt: skip
        is_last = kernel.wants[0].dims[-1:] == tuple(map(type(kernel.wants[0].dims[0]).of, own.sums[-1:]))
        mode = "channels_last" if is_last else "split"
        return float(matrix_work(core.matrix, work, mode).busy_cycles)


def acc_of(element: Element) -> Element:
    return ACCUMULATORS[element]
