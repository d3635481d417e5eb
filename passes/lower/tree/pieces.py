# Tests: test/passes/lower/tree/test_pieces.py
"""Pieces of a layer's part for the cores: as large as their memories hold twice, in the fewest cycles.

Cycles are the machine's closed forms (`dialects/target/durations.py`): what the matrix or vector unit takes for all
pieces of a core, and what copies take, which go on meanwhile.  All candidates are looked at together, as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.cores.piece_costs import Extents, PieceCosts
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.kernels.shared import SharedKernel
from frustum.passes.lower.tree.nest import Pieces
from frustum.passes.lower.tree.signatures import Known, keep

STEP = 2
"""Candidates for a piece's extent are this apart, from all positions down. 2026-11-28."""
CUT = 3
"""Along so many axes, the longest, all candidates are looked at; along others all positions or one. 2026-11-28."""
NEAR = 4
"""So many of the best candidates are looked at exactly. 2026-11-28."""

Way: TypeAlias = tuple[float, Extents, Axis | None, tuple[Axis, ...]]
"""Cycles, positions of a piece along each axis, the axis that cores share, and loops over pieces."""


@dataclass(frozen=True)
class Candidate:
    """Pieces for a kernel, and cycles of the busiest core."""

    kernel: Kernel
    pieces: Pieces
    cycles: float


class PieceChoice(PieceCosts):
    """The pieces of one part of a layer; `known`: those of parts that were alike."""

    known: Known
    steps: Mapping[Axis, int]
    """Of axes the multiples that pieces are of."""
    cut_sums: int
    """Along so many axes sums may be cut: along two, where pieces that are cut along one do not fit."""

    def __init__(
        self, code: Code, kernel: Kernel, spans: Mapping[Axis, Span], elements: Mapping[Tensor, Any], known: Known,
        steps: Mapping[Axis, int], slices: Axis | None = None, made: frozenset[Tensor] = frozenset(),
        start: int | None = None, turn: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(code, kernel, spans, elements, slices, made, start, turn)
        self.known, self.steps, self.cut_sums = known, steps, 1

    def best(self) -> Candidate | None:
        """The candidate with the fewest cycles; None where no piece fits."""
        if self.kernel.is_nothing:
            return Candidate(self.kernel, Pieces({}, None, ()), 0.0)
        key = self.signature()
        if key not in self.known:
            ways = (way for self.cut_sums in (1, 2) for way in [[*self.candidates()]] if way)
            found = min(next(ways, []), key=lambda each: each.cycles, default=None)
            keep(self.known, key, None if found is None else self.numbered(found))
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

        def factors(terms: Sequence[tuple[Axis, int]]) -> tuple[tuple[int, int], ...]:
            return tuple((place[axis], factor) for axis, factor in terms)

        kernel = self.kernel
        wants = tuple(
            (want.memory, self.size_of(want) * want.planes, tuple(
                factors(each.refined().terms) for each in want.dims))
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
            self.goes_on, self.start, self.turn, tuple(map(self.comes_early, kernel.wants)),
            None if self.slices is None else self.slices in self.summed,
            tuple(tuple(map(factors, self.lies(want))) for want in kernel.wants), numbers(kernel.out),
            numbers(self.layer.result.axes), numbers(self.summed),
            size_of(self.elements[self.layer.result]), own, tuple(self.steps.get(axis, 1) for axis in self.axes),
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
        # all cores make the same where they can share no axis
        ways = self.ways(self.dealt_axes()) or self.ways([None])
        for _, own, dealt, order in sorted(ways, key=lambda way: way[0])[:NEAR]:
            exact = self.cycles(own, dealt, order, self.computing(own, is_exact=True))
            pieces = Pieces({axis: int(each[0]) for axis, each in own.items()}, dealt, order)
            yield Candidate(self.kernel, pieces, float(exact[0]))

    def ways(self, shared: Sequence[Axis | None]) -> list[Way]:
        """Good ones, with estimated cycles, where cores share one of these axes."""
        found = list[Way]()
        for dealt in shared:
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
                    found.append((float(cycles[k]), own, dealt, order))
        return found

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
        along `cut_sums` axes at most."""
        size = len(next(iter(extents.values())))
        found = np.ones(size, bool)
        cut = sum((extents[axis] < self.extents[axis]).astype(int) for axis in self.summed) if self.summed else 0
        found &= np.asarray(cut) <= (self.cut_sums if self.layer.macs else 1) * int(self.kernel.adds)
        clipped = {axis: self.is_clipped(axis, extents, dealt) for axis in self.axes}
        for axis in self.axes:
            if self.spans[axis].limit is not None and not self.inside[axis]:
                found &= ~self.overshoots(axis, extents, dealt)
        for axis in self.inner:
            found &= ~clipped[axis]
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

    @property
    def inner(self) -> set[Axis]:
        """Axes inside of others in a position that is read: beyond their ends a piece would read what is the next
        position of an outer one."""
        read = (each.refined().terms for want in self.kernel.wants for each in want.dims)
        moved = ([term for term in terms if not term[0].is_tap] for terms in read)
        inner = (sorted(terms, key=lambda term: abs(term[1]))[:-1] for terms in moved)
        return {axis for terms in inner for axis, _ in terms}

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
