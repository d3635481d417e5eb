# Tests: test/passes/lower/tree/test_copies.py
"""Copies of boxes of any rank: dimensions that lie alike on both sides are joined, four stay, the rest become loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from frustum.dialects import isa
from frustum.dialects.isa.program import (
    DIMENSIONS,
    ELEMENT_BYTES,
    MAX_LOOPS,
    ZERO,
    Affine,
    Box,
    CopyEngine,
    Element,
    Span,
    View,
    Wrap,
)
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.spans import NotLowered


@dataclass(frozen=True)
class Side:
    """One end of a copy along one dimension: bytes from position to position, and where the nominal start lies, or, in
    a ring of `ring` positions, position 0."""

    stride: int
    offset: Affine = ZERO
    ring: int = 0


@dataclass(frozen=True)
class CopyDim:
    """A dimension of a box: its positions, and how they lie where they come from and where they go."""

    span: Span
    src: Side
    dst: Side

    @property
    def rings(self) -> bool:
        return bool(self.src.ring or self.dst.ring)


def copy(
    code: Code,
    engine: CopyEngine,
    ends: tuple[SSAValue, SSAValue],
    element: Element,
    dims: Sequence[CopyDim],
    fill: float | None = None,
    conditions: Sequence[Affine] = (),
    peer: Affine | None = None,
) -> None:
    """Adds a copy from the first buffer to the second, that of cluster `peer` if it is given, in passes in which all
    conditions are 0 or more.  What all clusters have is stored by the first one.

    NotLowered where it is of too many dimensions."""
    base = [ZERO, ZERO]
    kept = list[CopyDim]()
    for each in dims:
        own = replace(each, span=code.plain(each.span))
        if own.span.extent == 1 and not own.rings and code.is_inside(own.span):
            base = [base[0] + own.src.offset, base[1] + own.dst.offset]
        else:
            kept.append(own)
    kept.sort(key=lambda dim: (-dim.dst.stride, -dim.src.stride))
    asked = list(conditions)
    is_of_one = any(each.cluster for each in conditions)
    if code.clusters > 1 and memory_of(ends[1]) == "dram" and not is_of_one and not any(map(_varies, dims)):
        asked.append(Affine(cluster=-1))
    _Writer(code, engine, ends, element, fill, peer).write(_joined(code, kept), base, asked)


def memory_of(buffer: SSAValue) -> str:
    assert isinstance(buffer.type, isa.BufferType)
    return buffer.type.memory


def _varies(dim: CopyDim) -> bool:
    """Whether it is of other positions in each cluster."""
    return bool(dim.span.start.cluster or dim.src.offset.cluster or dim.dst.offset.cluster)


def _joined(code: Code, dims: list[CopyDim]) -> list[CopyDim]:
    """With neighbours as one dimension where the inner is whole in both buffers."""
    found = list[CopyDim]()
    for dim in dims:
        outer = found[-1] if found else None
        extent = dim.span.extent
        is_one = (
            outer is not None and not outer.rings and not dim.rings and code.is_inside(dim.span)
            and outer.src.stride == dim.src.stride * extent and outer.dst.stride == dim.dst.stride * extent
        )  # fmt: skip
        if not is_one:
            found.append(dim)
            continue
        assert outer is not None
        span, limit = outer.span, outer.span.limit
        limit = None if limit is None else limit * extent
        wide = Span(span.start * extent, span.extent * extent, span.bound * extent, limit)
        found[-1] = CopyDim(
            wide, Side(dim.src.stride, outer.src.offset + dim.src.offset),
            Side(dim.dst.stride, outer.dst.offset + dim.dst.offset),
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class _Writer:
    code: Code
    engine: CopyEngine
    ends: tuple[SSAValue, SSAValue]
    element: Element
    fill: float | None
    peer: Affine | None

    def write(self, dims: list[CopyDim], base: Sequence[Affine], conditions: list[Affine]) -> None:
        """As one instruction; a dimension too many becomes a loop, or a copy for each position inside all loops that
        there may be."""
        if len(dims) > DIMENSIONS:
            out = self.least(dims)
            rest, span = [dim for dim in dims if dim is not out], out.span
            if self.code.depth < MAX_LOOPS:
                with self.code.repeat(span.extent) as index:
                    self.step(rest, out, base, conditions, index)
            else:
                for step in range(span.extent):
                    self.step(rest, out, base, conditions, Affine(step))
            return
        four, code = self.four(dims, conditions), self.code
        src = _view(self.element, [dim.src for dim in four], base[0])
        dst = _view(self.element, [dim.dst for dim in four], base[1])
        box = Box.of(*(dim.span for dim in four))
        is_load = self.engine == "gdma" and memory_of(self.ends[1]) == "sram"
        made = isa.Copy(
            engine=self.engine, src_view=src, dst_view=dst, box=box, fill=self.fill, peer=self.peer,
            multicast=code.clusters > 1 and is_load and not _is_of_cluster(src, dst, box),
        )  # fmt: skip
        code.emit(made, *self.ends)

    def least(self, dims: Sequence[CopyDim]) -> CopyDim:
        """The dimension that is written out: the shortest, one that is whole if there is any."""
        free = [dim for dim in dims if not dim.rings]
        whole = [dim for dim in free if self.code.is_inside(dim.span)]
        if not whole and (self.fill is not None or not free):
            raise NotLowered(f"a copy of {len(dims)} dimensions of which each is clipped")
        return min(whole or free, key=lambda dim: (dim.span.extent, -dim.dst.stride))

    def step(
        self, rest: list[CopyDim], out: CopyDim, base: Sequence[Affine], conditions: list[Affine], index: Affine
    ) -> None:  # fmt: skip
        """One position of a dimension."""
        moved = [at + side.offset + index * side.stride for at, side in zip(base, (out.src, out.dst), strict=True)]
        at, span, asked = out.span.start + index, out.span, list(conditions)
        asked += [at, at * -1 + (span.bound - 1)]
        asked += [] if span.limit is None else [span.limit - at - 1]
        self.write(rest, moved, [each for each in asked if self.code.extremes(each)[0] < 0])

    def four(self, dims: list[CopyDim], conditions: list[Affine]) -> list[CopyDim]:
        """Four dimensions, with limits that leave nothing where a condition is negative."""
        one = CopyDim(Span(ZERO, 1, 1), Side(0), Side(0))
        found, left = [*([one] * (DIMENSIONS - len(dims))), *dims], strictest(self.code, conditions)
        for number, dim in reversed(list(enumerate(found))):
            if left and dim.span.limit is None:
                last = self.code.extremes(dim.span.start)[1] + dim.span.extent
                limit = (left.pop() + 1) * max(1, min(dim.span.bound, last))
                found[number] = replace(dim, span=replace(dim.span, limit=limit))
        for number, dim in enumerate(found[: DIMENSIONS - len(dims)]):
            if left:  # its one position is inside where the condition holds; the limit is as far, or none
                start, further = left.pop(), dim.span.limit
                bound = self.code.extremes(start)[1] + 1
                found[number] = replace(dim, span=Span(start, 1, bound, None if further is None else further * bound))
        if left:
            raise NotLowered("a copy that is made in some passes only, by more conditions than it has ends")
        return found


def strictest(code: Code, conditions: Iterable[Affine]) -> list[Affine]:
    """Conditions without those that hold where another one does."""
    found = list[Affine]()
    for condition in map(_reduced, conditions):
        if code.extremes(condition)[0] >= 0 or any(code.extremes(condition - other)[0] >= 0 for other in found):
            continue
        found = [other for other in found if code.extremes(other - condition)[0] < 0] + [condition]
    return found


def _reduced(value: Affine) -> Affine:
    """The least numbers that are negative where these are."""
    factor = math.gcd(*value.loops, value.core, value.cluster) or 1
    loops = tuple(each // factor for each in value.loops)
    return Affine(value.base // factor, loops, value.cluster // factor, value.core // factor)


def _view(element: Element, sides: Sequence[Side], base: Affine) -> View:
    offset, wrap = base, None
    for number, side in enumerate(sides):
        if side.ring:
            if wrap is not None:
                raise NotLowered("a buffer that is a ring along two dimensions")
            wrap = Wrap(number, side.ring, side.offset)
        else:
            offset += side.offset
    return View(element, offset, tuple(side.stride for side in sides), wrap=wrap)


def _is_of_cluster(src: View, dst: View, box: Box) -> bool:
    """Whether a copy is another one in each cluster."""
    phases = (view.wrap.phase for view in (src, dst) if view.wrap is not None)
    limits = (each for each in box.limit if each is not None)
    return any(each.cluster for each in (src.offset, dst.offset, *phases, *box.start, *limits))


def size_of(element: Element) -> int:
    return ELEMENT_BYTES[element]
