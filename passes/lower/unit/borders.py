# Tests: test/pipeline/test_borders.py
"""A map with borders of its own elements: the vector unit moves the map, and each part of the border with strides of
its own (backward where it is mirrored, none where it repeats), clipped to what a piece has of it.  Of a border that
wraps around the parts are copied when the piece is loaded (`layer_pieces.wrapped_piece`).

Source: docs/techniques/machine.md, "Vector unit" (strides cost nothing).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import Affine, Box, Scale, Span
from frustum.passes.lower.unit.layer_nest import LayerNest
from frustum.passes.lower.unit.memory_map import Placed

ROWS = 2
FLOATS = ("f32", "f16", "bf16")
Kind: TypeAlias = t.BorderLayer | t.WrapLayer


@dataclass(frozen=True)
class BorderPart:
    """Positions of a piece along one axis, counted from where the part begins; the position of the operand's piece that
    the first reads, and how far on the next one is."""

    span: Span
    first: Affine
    step: int

    @property
    def is_empty(self) -> bool:
        """Whether no execution has any of it."""
        start = self.span.start
        return start.is_constant and (start.base >= self.span.bound or start.base + self.span.extent <= 0)


def corners(kind: Kind, low: LayerNest, held: Sequence[Affine]) -> Iterator[tuple[BorderPart, BorderPart]]:
    """The parts of a piece, those of rows with those of columns: the map, its sides, its corners; `held`: where what is
    at hand of the operand begins."""
    sides = zip(range(2), low.piece.box.spans[ROWS:], held, low.tiles[0].bound[ROWS:], strict=True)
    rows, columns = ([part for part in parts_of(kind, *side) if not part.is_empty] for side in sides)
    return product(rows, columns)


def instructions(kind: t.BorderLayer, low: LayerNest, operand: Placed, result: Placed) -> Iterator[isa.Unary]:
    """An instruction for each part of a piece."""
    n, c, *_ = low.piece.box.spans
    for both in corners(kind, low, operand.start[ROWS:]):
        view = operand.own_view
        strides = list(view.strides)
        for d, part in enumerate(both, start=ROWS):
            view = replace(view, offset=view.offset + part.first * view.strides[d])
            strides[d] *= part.step
        yield isa.Unary(
            kind="identity",
            in_view=replace(view, strides=tuple(strides)),
            out_view=result.own_view,
            box=Box.of(n, c, *(part.span for part in both)),
            scales=None if low.out.element in FLOATS else (Scale(), Scale()),
        )


def parts_of(kind: Kind, axis: int, made: Span, held: Affine, size: int) -> Iterator[BorderPart]:
    """The parts of a span of the result, where the operand's piece begins at `held` of `size` positions."""
    before, after = kind.low[axis], kind.high[axis]

    def behind(first: int, bound: int) -> Span:
        limit = None if made.limit is None else made.limit - first
        return Span(made.start - first, made.extent, bound, limit)

    inside = behind(before, size)
    yield BorderPart(inside, inside.start - held, 1)
    if isinstance(kind, t.WrapLayer):
        for first, count, ahead in ((0, before, size - before), (before + size, after, 0)):
            if count:
                span = behind(first, count)
                yield BorderPart(span, span.start - held + ahead, 1)
        return
    if before:
        span = behind(0, before)
        yield BorderPart(span, -span.start - held + before, -1) if kind.mirrored else BorderPart(span, -held, 0)
    if after:
        span = behind(before + size, after)
        mirror = Affine(size - 2) - span.start - held
        yield BorderPart(span, mirror, -1) if kind.mirrored else BorderPart(span, -held + (size - 1), 0)
