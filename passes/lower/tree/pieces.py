# Tests: test/passes/lower/tree/test_pieces.py
"""Pieces of a layer's part for the cores: as large as their memories hold twice, in the fewest cycles.

Cycles are the machine's closed forms (`dialects/target/durations.py`): what the matrix or vector unit takes for all
pieces of a core, and what copies take, which go on meanwhile.  All candidates are looked at together, as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import ACCUMULATORS, ELEMENT_BYTES, Span
from frustum.dialects.plan.layer_cycles import ClusterCycles
from frustum.dialects.target import Target
from frustum.dialects.target.durations import Convolution, Mode, cheaper_mode, matrix_work, vector_cycles
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.kernels.shared import SharedKernel
from frustum.passes.lower.tree.nest import Pieces
from frustum.passes.lower.tree.spans import span_of

STEP = 2
"""Candidates for a piece's extent are this apart, from all positions down. 2026-11-28."""
CUT = 3
"""Along so many axes, the longest, all candidates are looked at; along others all positions or one. 2026-11-28."""
NEAR = 4
"""So many of the best candidates are looked at exactly. 2026-11-28."""
MOST_KNOWN = 100_000
"""So many choices of a machine are kept. 2026-11-29."""
Extents: TypeAlias = dict[Axis, NDArray[np.int64]]
"""Of each axis the extent of a piece, for all candidates."""
Known: TypeAlias = dict[tuple[Any, ...], tuple[tuple[int, ...], int, tuple[int, ...], float] | None]
"""Choices that were made before: extents, the dealt axis, the order of loops, by numbers of axes; cycles."""


@lru_cache(maxsize=4)
def known_pieces(target: Target) -> Known:
    """The choices that were made for a machine: parts of several plans are alike."""
    return {}


@dataclass(frozen=True)
class Candidate:
    """Pieces for a kernel, and cycles of the busiest core."""

    kernel: Kernel
    pieces: Pieces
    cycles: float


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

    def __init__(
        self, code: Code, kernel: Kernel, spans: Mapping[Axis, Span], elements: Mapping[Tensor, Any],
        slices: Axis | None = None, made: frozenset[Tensor] = frozenset(), start: int | None = None,
    ) -> None:  # fmt: skip
        self.slices, self.made, self.start = slices, made, start
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
        sums = ELEMENT_BYTES[ACCUMULATORS.get(first, "f32")] * result * self.is_cut(self.summed, extents)
        if self.goes_on and self.layer.result.sums:
            sums = 2 * ELEMENT_BYTES[self.layer.result.sums] * result  # that wait
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
                bus = bus + times * (np.maximum(size / cluster.bus.bytes_per_cycle, port) + 1)
                read = read + times * port
            else:
                own = own + times * (np.maximum(size / core.mvdma.bytes_per_cycle, port) + 1)
                read = read + times * port * cores
        out = math.prod(extents[axis] for axis in self.layer.result.axes)
        times = math.prod(counts[axis] for axis in self.layer.result.axes)
        size, port = self.crossing(
            out * (size_of(self.elements[self.layer.result]) * self.kernel.planes), self.run_out(extents)
        )  # fmt: skip
        written = times * (np.maximum(size / core.mvdma.bytes_per_cycle, port) + 1)
        loads, within = np.maximum(own, bus), math.prod(counts[axis] for axis in self.summed)
        if self.goes_on:  # sums lie in SRAM between passes, but for those that stay in the cores over all slices
            stays = (self.slices in self.summed) & ~self.are_several(self.layer.result.axes, counts)
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
        piece = self.layer.operands[want.operand].pieces[0]
        dims = [() if position is None else position.refined().terms for _, position in piece.by_leaf]
        return self.run_of(dims, self.size_of(want), extents)

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
        kernel = self.kernel
        if isinstance(kernel, SharedKernel):
            return np.maximum(*(self.of_kernel(each, own, is_exact=is_exact) for each, own in kernel.extents(extents)))
        return self.of_kernel(kernel, extents, is_exact=is_exact)

    def of_kernel(self, kernel: Kernel, extents: Extents, *, is_exact: bool) -> Any:
        """The same where a kernel makes it alone."""
        core = self.target.core
        size = size_of(self.elements[self.layer.operands[0].pieces[0].tensor])
        points = math.prod(extents[axis] for axis in self.axes)
        if not isinstance(kernel, ProductKernel):
            cycles: Any = vector_cycles(core.vector, kernel.passes(size), points, size)
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
        return np.array([matrix_work(core.matrix, work, mode).busy_cycles])


class PieceChoice(PieceCosts):
    """The pieces of one part of a layer; `known`: those of parts that were alike."""

    known: Known
    steps: Mapping[Axis, int]
    """Of axes the multiples that pieces are of."""

    def __init__(
        self, code: Code, kernel: Kernel, spans: Mapping[Axis, Span], elements: Mapping[Tensor, Any], known: Known,
        steps: Mapping[Axis, int], slices: Axis | None = None, made: frozenset[Tensor] = frozenset(),
        start: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(code, kernel, spans, elements, slices, made, start)
        self.known, self.steps = known, steps

    def best(self) -> Candidate | None:
        """The candidate with the fewest cycles; None where no piece fits."""
        if self.kernel.is_nothing:
            return Candidate(self.kernel, Pieces({}, None, ()), 0.0)
        key = self.signature()
        if key not in self.known:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            found = min(self.candidates(), key=lambda each: each.cycles, default=None)
            self.known[key] = None if found is None else self.numbered(found)
        known = self.known[key]
        if known is None:
            return None
        extents, dealt, order, cycles = known
        pieces = Pieces(
            dict(zip(self.axes, extents, strict=True)), None if dealt < 0 else self.axes[dealt],
            tuple(self.axes[k] for k in order),
        )  # fmt: skip
        return Candidate(self.kernel, pieces, cycles)

    def signature(self) -> tuple[Any, ...]:
        """All that a choice depends on, with axes as numbers."""
        place = {axis: k for k, axis in enumerate(self.axes)}

        def numbers(axes: Sequence[Axis]) -> tuple[int, ...]:
            return tuple(place[axis] for axis in axes)

        kernel = self.kernel
        wants = tuple(
            (want.memory, self.size_of(want) * want.planes, tuple(
                tuple((place[axis], factor) for axis, factor in each.refined().terms) for each in want.dims))
            for want in kernel.wants
        )  # fmt: skip
        spans = tuple(
            (self.extents[a], self.inside[a], self.spans[a].limit is None, self.spans[a].start.is_constant)
            for a in self.axes
        )  # fmt: skip
        own: tuple[Any, ...] = tuple(numbers(each.axes) for each in kernel.scratch)
        if isinstance(kernel, ProductKernel):
            f, w = kernel.factors, kernel.windows
            shares = kernel.shares if isinstance(kernel, SharedKernel) else None
            own = (
                kernel.on_vector, shares, *map(numbers, (f.groups, f.channels, f.sums)),
                *map(numbers, (kernel.images, kernel.rows, kernel.columns)),
                *((0, 0) if each is None else (each.tap.extent, each.stride) for each in w),
            )  # fmt: skip
        return (
            type(kernel), self.layer.macs, self.layer.passes, spans, wants, tuple(map(numbers, kernel.groups())),
            tuple(sorted(numbers(tuple(kernel.whole)))), tuple(map(numbers, kernel.dense())),
            self.goes_on, self.start, tuple(map(self.comes_early, kernel.wants)),
            None if self.slices is None else self.slices in self.summed,
            tuple(map(self.lies, kernel.wants)), numbers(kernel.out),
            numbers(self.layer.result.axes), numbers(self.summed),
            size_of(self.elements[self.layer.result]), own, tuple(self.steps.get(axis, 1) for axis in self.axes),
        )  # fmt: skip

    def lies(self, want: Want) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The dimensions of an operand's tensor, with axes as numbers."""
        place = {axis: k for k, axis in enumerate(self.axes)}
        return tuple(
            () if position is None else tuple((place[axis], factor) for axis, factor in position.refined().terms)
            for _, position in self.layer.operands[want.operand].pieces[0].by_leaf
        )  # fmt: skip

    def numbered(self, found: Candidate) -> tuple[tuple[int, ...], int, tuple[int, ...], float]:
        """A choice with axes as numbers."""
        pieces, place = found.pieces, {axis: k for k, axis in enumerate(self.axes)}
        extents = tuple(int(pieces.extents.get(axis, self.extents[axis])) for axis in self.axes)
        dealt = -1 if pieces.dealt is None else place[pieces.dealt]
        return extents, dealt, tuple(place[axis] for axis in pieces.order), found.cycles

    def candidates(self) -> Iterator[Candidate]:
        """Of all axes that cores may share, and orders of loops, the best.  One position is one piece."""
        if not self.axes:
            yield Candidate(self.kernel, Pieces({}, None, ()), float(self.target.core.nram.latency_cycles))
            return
        ways = list[tuple[float, Extents, Axis | None, tuple[Axis, ...]]]()
        for dealt in self.dealt_axes():
            extents = self.cuts(dealt)
            may_be = self.fits(extents, dealt) & self.is_writable(extents, dealt)
            if not may_be.any():
                continue
            extents = {axis: own[may_be] for axis, own in extents.items()}
            computing = self.computing(extents)
            for order in self.orders():
                cycles = self.cycles(extents, dealt, order, computing)
                for k in np.argsort(cycles, kind="stable")[:NEAR].tolist():
                    own = {axis: each[k : k + 1] for axis, each in extents.items()}
                    ways.append((float(cycles[k]), own, dealt, order))
        for _, own, dealt, order in sorted(ways, key=lambda way: way[0])[:NEAR]:
            exact = self.cycles(own, dealt, order, self.computing(own, is_exact=True))
            pieces = Pieces({axis: int(each[0]) for axis, each in own.items()}, dealt, order)
            yield Candidate(self.kernel, pieces, float(exact[0]))

    def dealt_axes(self) -> list[Axis | None]:
        if self.code.cores == 1:
            return [None]
        found: list[Axis | None] = [axis for axis in self.free if axis not in self.summed]
        return found or [None]

    def cuts(self, dealt: Axis | None) -> Extents:
        """Extents of pieces: all candidates along the longest axes, all positions or one along others."""
        base = dict(self.extents)
        if dealt is not None:
            base[dealt] = -(-base[dealt] // self.code.cores)
        ranked = sorted(self.free, key=lambda axis: -base[axis])
        ways = [self.even(axis, halves(base[axis]) if k < CUT else [base[axis], 1]) for k, axis in enumerate(ranked)]
        grid = np.meshgrid(*(np.array(way, np.int64) for way in ways), indexing="ij") if ways else []
        size = grid[0].size if grid else 1
        found = {axis: np.full(size, base[axis], np.int64) for axis in self.axes}
        return found | {axis: each.reshape(-1) for axis, each in zip(ranked, grid, strict=True)}

    def even(self, axis: Axis, extents: Iterable[int]) -> list[int]:
        """The next multiples, but for all positions."""
        step, most = self.steps.get(axis, 1), self.extents[axis]
        return [*dict.fromkeys(each if each == most else min(most, -(-each // step) * step) for each in extents)]

    def orders(self) -> Iterator[tuple[Axis, ...]]:
        """Loops: positions outside of channels, or the other way; sums inside."""
        made = [axis for axis in self.axes if axis not in self.summed]
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

    def is_writable(self, extents: Extents, dealt: Axis | None) -> Any:
        """Whether instructions can say it: of axes in one dimension the outermost alone may be clipped; sums are cut
        along one axis."""
        size = len(next(iter(extents.values())))
        found = np.ones(size, bool)
        cut = sum((extents[axis] < self.extents[axis]).astype(int) for axis in self.summed) if self.summed else 0
        found &= np.asarray(cut) <= int(self.kernel.adds)
        clipped = {axis: self.is_clipped(axis, extents, dealt) for axis in self.axes}
        for axis in self.axes:
            if self.spans[axis].limit is not None and not self.inside[axis]:
                found &= ~self.overshoots(axis, extents, dealt)
        groups = [*self.kernel.groups()]
        kernel = self.kernel
        if isinstance(kernel, ProductKernel):
            own = kernel.factors
            groups.append(own.sums)
            if own.channels and own.groups and not kernel.on_vector:
                several = math.prod(extents[axis] for axis in own.groups) > 1
                for axis in (*own.groups, *own.channels):
                    found &= ~(several & clipped[axis])
        live = np.zeros(size, int)
        for group in groups:
            before, several = np.zeros(size, bool), np.zeros(size, bool)
            for axis in group:
                is_live = (extents[axis] > 1) | clipped[axis]
                if kernel.may_split:
                    live += before & clipped[axis]
                else:
                    found &= ~(before & is_live & clipped[axis])
                found &= ~(((before & is_live) | several) & ~self.is_dense(axis, group, extents))
                before, several = before | is_live, several | (extents[axis] > 1)
            live += before
        return found & (live <= 4 + isinstance(kernel, ProductKernel))

    def is_dense(self, axis: Axis, group: Sequence[Axis], extents: Extents) -> Any:
        """Windows go on from one axis to the next only where the inner one is whole."""
        is_dense = tuple(group) in (*map(tuple, self.kernel.dense()),)
        return (extents[axis] == axis.extent) if is_dense else np.ones_like(extents[axis], bool)

    def is_clipped(self, axis: Axis, extents: Extents, dealt: Axis | None) -> Any:
        return self.overshoots(axis, extents, dealt) | (not self.inside[axis])

    def overshoots(self, axis: Axis, extents: Extents, dealt: Axis | None) -> Any:
        step = extents[axis] * (self.code.cores if axis is dealt else 1)
        return self.extents[axis] % step != 0


def halves(extent: int) -> list[int]:
    """An extent, and each half of the one before, down to one position."""
    found = list[int]()
    while extent > 1:
        found.append(extent)
        extent = -(-extent // STEP)
    return [*found, 1]
