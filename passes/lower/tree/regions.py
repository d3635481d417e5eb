"""Copies between two buffers of the positions that satisfy inequalities.

A region is a box of some dimensions and linear inequalities of the positions along these. Along each dimension an
instruction has one lower end and two upper ones that move unlike each other, counted from either side. What these
cannot say is written out: a dimension becomes a loop, or one copy for each of its positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.ir import SSAValue

from frustum.dialects.isa.program import DIMENSIONS, MAX_LOOPS, ZERO, Affine, CopyEngine, Element, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import CopyDim, Side, copy
from frustum.passes.lower.tree.spans import NotLowered

FEW = 8
"""Positions of a dimension that become a copy each rather than a loop. 2026-11-28."""


@dataclass(frozen=True)
class Linear:
    """The sum of `factors` times positions along dimensions, by number, and of `rest`."""

    factors: Mapping[int, int] = field(default_factory=dict)
    rest: Affine = ZERO

    def __add__(self, other: Affine | int) -> Linear:
        return replace(self, rest=self.rest + other)

    def __neg__(self) -> Linear:
        return Linear({number: -factor for number, factor in self.factors.items()}, self.rest * -1)

    def is_multiple(self, size: int) -> bool:
        """Whether everything moves it by multiples."""
        return not any(factor % size for factor in self.factors.values()) and is_divisible(self.rest, size)

    def at(self, number: int, factor: int, rest: Affine) -> Linear:
        """The same where a dimension's positions are `factor` times those of another one in its place, and `rest`."""
        own = self.factors.get(number, 0)
        if not own:
            return self
        factors = {**self.factors, number: own * factor}
        return Linear({k: each for k, each in factors.items() if each}, self.rest + rest * own)


@dataclass(frozen=True)
class Clip:
    """`value` is in [0, size), or 0 or more where there is no size.  `is_filled`: positions outside have the fill's
    value."""

    value: Linear
    size: int | None
    is_filled: bool = False

    def is_beyond(self, value: int) -> bool:
        return self.size is not None and value >= self.size


@dataclass(frozen=True)
class Term:
    """How an axis lies in a buffer: `stride` bytes from position to position, modulo `ring` positions if it is one."""

    position: Linear
    stride: int
    ring: int = 0


@dataclass(frozen=True)
class End:
    """A buffer, and where in it the positions of a region lie."""

    buffer: SSAValue
    terms: tuple[Term, ...]
    offset: int = 0
    peer: Affine | None = None
    """Of which cluster, if not of the one that copies."""

    def at(self, number: int, factor: int, rest: Affine) -> End:
        """The same where a dimension's positions are others (`Linear.at`)."""
        return replace(self, terms=tuple(replace(t, position=t.position.at(number, factor, rest)) for t in self.terms))


@dataclass(frozen=True)
class Region:
    """Dimensions, each `start` and `extent`, and what of their box is copied.  All of `conditions` are 0 or more in
    passes in which anything is."""

    dims: Mapping[int, tuple[Affine, int]]
    clips: tuple[Clip, ...] = ()
    conditions: tuple[Affine, ...] = ()

    @staticmethod
    def of(spans: Sequence[Span]) -> Region:
        """All positions of spans that there are."""
        clips = list[Clip]()
        for number, span in enumerate(spans):
            clips.append(Clip(Linear({number: 1}), span.bound))
            if span.limit is not None:
                clips.append(Clip(Linear({number: -1}, span.limit - 1), None))
        return Region({k: (span.start, span.extent) for k, span in enumerate(spans)}, tuple(clips))

    def clipped(self, clips: Iterable[Clip]) -> Region:
        return replace(self, clips=(*self.clips, *clips))

    def at(self, number: int, factor: int, rest: Affine, extent: int) -> Region:
        """The same where a dimension has `extent` positions from 0 on, which stand for others (`Linear.at`); none where
        the factor is 0."""
        dims = {**self.dims, number: (ZERO, extent)}
        if not factor:
            del dims[number]
        clips = tuple(replace(each, value=each.value.at(number, factor, rest)) for each in self.clips)
        return Region(dims, clips, self.conditions)

    def extremes(self, code: Code, value: Linear) -> tuple[int, int]:
        """The least and the greatest value in the box, in all passes."""
        total, low, high = value.rest, 0, 0
        for number, factor in value.factors.items():
            start, extent = self.dims[number]
            total += start * factor
            low += min(0, factor * (extent - 1))
            high += max(0, factor * (extent - 1))
        first, last = code.extremes(total)
        return first + low, last + high

    def cut(self, code: Code) -> Region | None:
        """With the clips that cut something, only; None where nothing is left in any pass."""
        ranges = [self.extremes(code, each.value) for each in self.clips]
        if any(high < 0 or each.is_beyond(low) for each, (low, high) in zip(self.clips, ranges, strict=True)):
            return None
        kept = (
            each for each, (low, high) in zip(self.clips, ranges, strict=True) if low < 0 or each.is_beyond(high)
        )  # fmt: skip
        return replace(self, clips=tuple(kept))


def move(
    code: Code, engine: CopyEngine, element: Element, region: Region, src: End, dst: End, fill: float | None = None
) -> None:  # fmt: skip
    """Adds the copies of a region.  With `fill` what clips that are filled cut away has this value; NotLowered where no
    one copy says it (`can_fill`)."""
    known = region.cut(code)
    if known is None or not all(extent > 0 for _, extent in region.dims.values()):
        return
    number = _unwritable(code, known, (src, dst))
    if number is None:
        _write(code, engine, element, known, (src, dst), fill)
        return
    if fill is not None:
        raise NotLowered("values beyond ends that move unlike each other")
    start, extent = known.dims[number]
    if extent > FEW and code.depth < MAX_LOOPS:
        with code.repeat(extent) as index:
            at = (number, 0, start + index)
            move(code, engine, element, known.at(*at, 1), src.at(*at), dst.at(*at))
        return
    for step in range(extent):
        at = (number, 0, start + step)
        move(code, engine, element, known.at(*at, 1), src.at(*at), dst.at(*at))


def can_fill(code: Code, region: Region, src: End, dst: End) -> bool:
    """Whether one copy brings a region and fills what is cut away."""
    known = region.cut(code)
    if known is None or known.conditions or _unwritable(code, known, (src, dst)) is not None:
        return False
    if not all(each.value.factors for each in known.clips):
        return False
    ends = _ends(code, known)
    spans = [own.span(*known.dims[number]) for number, own in ends.items() if own is not None and own.keeps_filled]
    return len(spans) == len(ends) and sum(not code.is_inside(span) for span in spans) <= DIMENSIONS


# ------------------------------------------------------------ what one copy says


@dataclass(frozen=True)
class _Ends:
    """One dimension of a copy: the positions from `low` on, as many as `bound` or up to `limit`; counted from the other
    side where `is_turned`, all numbers negative then.  `keeps_filled`: no clip that is filled became the limit."""

    low: Affine
    bound: int
    limit: Affine | None
    is_turned: bool = False
    keeps_filled: bool = True

    def span(self, start: Affine, extent: int) -> Span:
        first = start * -1 - (extent - 1) if self.is_turned else start
        limit = None if self.limit is None else self.limit - self.low
        return Span(first - self.low, extent, max(0, self.bound), limit)


@dataclass(frozen=True)
class _Bound:
    value: Affine
    is_filled: bool


def _unwritable(code: Code, region: Region, ends: Sequence[End]) -> int | None:
    """A dimension that one copy cannot say: of several in one clip or of one ring all but the longest."""
    extents = {number: extent for number, (_, extent) in region.dims.items()}
    for each in region.clips:
        if len(each.value.factors) > 1:
            return min(each.value.factors, key=extents.__getitem__)
        for number, factor in each.value.factors.items():
            if not is_divisible(each.value.rest, factor):
                return number
    for term in (term for end in ends for term in end.terms if term.ring):
        moved = [number for number, factor in term.position.factors.items() if extents[number] > 1 or factor != 1]
        if len(moved) > 1 or any(term.position.factors[number] != 1 for number in moved):
            return min(moved, key=extents.__getitem__)
    rings = {number for end in ends for term in end.terms if term.ring for number in term.position.factors}
    for number, own in _ends(code, region).items():
        if own is None or (own.is_turned and number in rings):
            return number
    return None


def is_divisible(value: Affine, factor: int) -> bool:
    """Whether every loop moves a value by multiples."""
    return not any(each % factor for each in (*value.loops, value.core, value.cluster))


def _ends(code: Code, region: Region) -> dict[int, _Ends | None]:
    """Of each dimension what a copy says of it; None: it cannot."""
    lows: dict[int, list[_Bound]] = {number: [] for number in region.dims}
    highs: dict[int, list[_Bound]] = {number: [] for number in region.dims}
    for each in region.clips:
        for number, factor in each.value.factors.items():
            low, high = region.extremes(code, each.value)
            for end, is_cutting in ((0, low < 0), (each.size or 0, each.is_beyond(high))):
                if is_cutting:
                    (lows if (not end) == (factor > 0) else highs)[number].append(
                        _Bound(first_from(each.value.rest * -1 + end, factor), each.is_filled)
                    )
    return {
        number: _ends_of(code, start, extent, lows[number], highs[number])
        for number, (start, extent) in region.dims.items()
    }


def first_from(value: Affine, factor: int) -> Affine:
    """The first position whose multiple is `value` or more; for a negative factor the first whose is less."""
    size = abs(factor)
    loops = tuple(each // factor for each in value.loops)
    base = -(-value.base // size) if factor > 0 else -value.base // size + 1
    return Affine(base, loops, value.cluster // factor, value.core // factor)


def _ends_of(
    code: Code, start: Affine, extent: int, lows: Sequence[_Bound], highs: Sequence[_Bound]
) -> _Ends | None:  # fmt: skip
    stop = start + extent
    lows = list(_outermost(code, lows, 1))
    highs = list(_outermost(code, highs, -1))
    found = list(_chosen(code, start, stop, lows, highs))
    turned_lows = [_Bound(each.value * -1 + 1, each.is_filled) for each in highs]
    turned_highs = [_Bound(each.value * -1 + 1, each.is_filled) for each in lows]
    turned = _chosen(code, stop * -1 + 1, start * -1 + 1, turned_lows, turned_highs)
    found += [replace(each, is_turned=True) for each in turned]
    return min(found, key=lambda each: not each.keeps_filled, default=None)


def _outermost(code: Code, bounds: Sequence[_Bound], sign: int) -> Iterator[_Bound]:
    """Those of which no other one always cuts as much."""
    for k, own in enumerate(bounds):
        least = [code.extremes((other.value - own.value) * sign)[0] for other in bounds]
        if not any(each >= 0 for each in least[:k]) and not any(each > 0 for each in least[k + 1 :]):
            yield own


def _chosen(
    code: Code, start: Affine, stop: Affine, lows: Sequence[_Bound], highs: Sequence[_Bound]
) -> Iterator[_Ends]:  # fmt: skip
    """The ways to say one lower end and two upper ones."""
    if len(lows) > 1 or len(highs) > 2:
        return
    if lows:
        firsts = [lows[0].value]
    else:
        firsts = [ZERO] if code.extremes(start)[0] >= 0 else [start]
        firsts += [high.value - max(0, code.extremes(high.value - start)[1]) for high in highs]
    for low in firsts:
        fixed = [high for high in highs if (high.value - low).is_constant]
        moving = [high for high in highs if not (high.value - low).is_constant]
        if len(moving) > 1 or len(fixed) > 1:
            continue
        bound = fixed[0].value.base - low.base if fixed else code.extremes(stop - low)[1]
        keeps = not any(high.is_filled for high in moving)
        yield _Ends(low, bound, moving[0].value if moving else None, keeps_filled=keeps)


def _write(
    code: Code, engine: CopyEngine, element: Element, region: Region, ends: tuple[End, End], fill: float | None
) -> None:  # fmt: skip
    dims, found = list[CopyDim](), _ends(code, region)
    for number, (start, extent) in region.dims.items():
        own = found[number]
        assert own is not None
        sides = [_side(end, number, start, extent, own) for end in ends]
        dims.append(CopyDim(own.span(start, extent), sides[0], sides[1]))
    conditions = list(region.conditions)
    for each in region.clips:
        if not each.value.factors:
            low, high = code.extremes(each.value.rest)
            conditions += [each.value.rest] if low < 0 else []
            conditions += [each.value.rest * -1 + (each.size - 1)] if each.size and high >= each.size else []
    for k, end in enumerate(ends):
        at, is_ring = Affine(end.offset), list[CopyDim]()
        for term in end.terms:
            if term.position.factors:
                at += term.position.rest * (0 if term.ring else term.stride)
            elif term.ring:
                side = Side(term.stride, ZERO, term.ring)
                span = Span(term.position.rest, 1, code.extremes(term.position.rest)[1] + 1)
                is_ring.append(CopyDim(span, side, Side(0)) if k == 0 else CopyDim(span, Side(0), side))
            else:
                at += term.position.rest * term.stride
        dims += [*is_ring, CopyDim(Span(ZERO, 1, 1), *((Side(0, at), Side(0)) if k == 0 else (Side(0), Side(0, at))))]
    copy(code, engine, (ends[0].buffer, ends[1].buffer), element, dims, fill, conditions, ends[1].peer)


def _side(end: End, number: int, start: Affine, extent: int, own: _Ends) -> Side:
    stride, offset = 0, ZERO
    for term in end.terms:
        factor = term.position.factors.get(number, 0)
        if factor and term.ring:
            return Side(term.stride, own.low + term.position.rest, term.ring)
        stride += factor * term.stride
    first = start + (extent - 1) if own.is_turned else start
    offset = first * stride
    return Side(-stride if own.is_turned else stride, offset)
