# Tests: test/pipeline/test_phases.py
"""Phases of a map to and from channels: the vector unit moves those of one phase at a time, with strides.

Addresses of the vector unit are free, so elements that lie apart take no longer than others, where a copy engine would
take a run of 16 bytes for each.  Pieces begin at whole periods of the phases (`Layer.align`).
Source: docs/techniques/machine.md, "Vector unit".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import Affine, Box, Scale, Span, View
from frustum.passes.lower.unit.layer_pieces import LayerPieces
from frustum.passes.lower.unit.memory_map import CHANNELS, exactly

ROWS, COLUMNS = 2, 3
FLOATS = ("f32", "f16", "bf16")


def instructions(kind: t.PhasesLayer, low: LayerPieces) -> Iterator[isa.Unary]:
    """An instruction for each phase of a piece."""
    is_merging = isinstance(kind, t.DepthToSpaceLayer)
    split, merged = (low.pieces[0], low.result) if is_merging else (low.result, low.pieces[0])
    step = kind.phases if kind.apart == 1 else 1
    for number, place in enumerate(product(*map(range, kind.factor))):
        seen = strided(split.own_view, number * kind.apart, CHANNELS, step)
        whole = merged.own_view
        for d, (first, by) in enumerate(zip(place, kind.factor, strict=True), start=ROWS):
            whole = strided(whole, first, d, by)
        yield isa.Unary(
            kind="identity",
            in_view=seen if is_merging else whole,
            out_view=whole if is_merging else seen,
            box=of_phase(kind, low.piece.box, place) if is_merging else of_channels(kind, low),
            scales=None if low.out.element in FLOATS else (Scale(), Scale()),
        )


def strided(view: View, first: int, d: int, by: int) -> View:
    """Every `by`-th position of a view along d, from `first` on."""
    stride = view.strides[d]
    strides = tuple(own * by if axis == d else own for axis, own in enumerate(view.strides))
    return replace(view, offset=view.offset + first * stride, strides=strides)


def of_phase(kind: t.PhasesLayer, box: Box, place: tuple[int, ...]) -> Box:
    """The positions of one phase in a box of the whole map, counted in the phase."""
    n, c, *plane = box.spans
    return Box.of(n, c, *map(every, plane, place, kind.factor))


def every(span: Span, first: int, by: int) -> Span:
    """Of a span that begins at a multiple of `by` the positions `first`, `first + by` and so on, as 0, 1 ..."""
    limit = None if span.limit is None else up(span.limit - first, by)
    return Span(exactly(span.start, by), -(-span.extent // by), -(-(span.bound - first) // by), limit)


def up(value: Affine, by: int) -> Affine:
    """The value divided, rounded up; all that moves it must be multiples."""
    moves = value - value.base
    return exactly(moves, by) + -(-value.base // by)


def of_channels(kind: t.PhasesLayer, low: LayerPieces) -> Box:
    """The box of one phase among the channels of a piece, which has all of them."""
    n, c, *plane = low.piece.box.spans
    if c.start != Affine() or c.extent != c.bound:
        raise PassFailedException(f"a piece of the phases of a map has all channels, found {c}")
    own = c.bound // kind.phases
    return Box.of(n, Span(Affine(), own, own), *plane)
