# Tests: test/passes/lower/tree/test_copies.py
"""Copies of boxes of any rank: dimensions that lie alike on both sides are joined, four stay, the rest become loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from frustum.dialects import isa
from frustum.dialects.isa.program import (
    DIMENSIONS,
    ELEMENT_BYTES,
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
) -> None:
    """Adds a copy from the first buffer to the second.  NotLowered where it is of too many dimensions."""
    base = [ZERO, ZERO]
    kept = list[CopyDim]()
    for each in dims:
        own = replace(each, span=code.plain(each.span))
        if own.span.extent == 1 and not own.rings and code.is_inside(own.span):
            base = [base[0] + own.src.offset, base[1] + own.dst.offset]
        else:
            kept.append(own)
    kept.sort(key=lambda dim: (-dim.dst.stride, -dim.src.stride))
    _write(code, engine, ends, element, _joined(code, kept), base, fill)


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
        wide = Span(span.start * extent, span.extent * extent, span.bound * extent, None if limit is None else limit * extent)
        found[-1] = CopyDim(
            wide, Side(dim.src.stride, outer.src.offset + dim.src.offset),
            Side(dim.dst.stride, outer.dst.offset + dim.dst.offset),
        )  # fmt: skip
    return found


def _write(
    code: Code,
    engine: CopyEngine,
    ends: tuple[SSAValue, SSAValue],
    element: Element,
    dims: list[CopyDim],
    base: list[Affine],
    fill: float | None,
) -> None:
    if len(dims) > DIMENSIONS:
        free = [dim for dim in dims if not dim.rings and code.is_inside(dim.span)]
        if not free:
            raise NotLowered(f"a copy of {len(dims)} dimensions of which each is clipped")
        out = min(free, key=lambda dim: (dim.span.extent, -dim.dst.stride))
        rest = [dim for dim in dims if dim is not out]
        with code.repeat(out.span.extent) as index:
            moved = [base[0] + out.src.offset + index * out.src.stride, base[1] + out.dst.offset + index * out.dst.stride]
            _write(code, engine, ends, element, rest, moved, fill)
        return
    one = CopyDim(Span(ZERO, 1, 1), Side(0), Side(0))
    four = [one] * (DIMENSIONS - len(dims)) + dims
    sides = [_view(element, [dim.src for dim in four], base[0]), _view(element, [dim.dst for dim in four], base[1])]
    box = Box.of(*(dim.span for dim in four))
    made = isa.Copy(engine=engine, src_view=sides[0], dst_view=sides[1], box=box, fill=fill)
    code.emit(made, *ends)


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


def size_of(element: Element) -> int:
    return ELEMENT_BYTES[element]
