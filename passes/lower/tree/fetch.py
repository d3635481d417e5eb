# Tests: test/passes/lower/tree/test_lower_plan.py
"""What a core holds of an operand, brought from where the parts of its view lie.

A view may be of several tensors side by side, with values of its own where none is, and each tensor may lie in several
places. Each part is a copy of its own, clipped to what it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Piece, digits
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Operand
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import ZERO, Affine, CopyEngine, Element, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import CopyDim, Side, copy
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.regions import Clip, End, Linear, Region, Term, can_fill, move
from frustum.passes.lower.tree.spans import NotLowered, divided

PlacesOf = Callable[[Tensor], Sequence[Place]]


@dataclass(frozen=True)
class FetchDim:
    """A dimension of what a core holds: positions of a coordinate of the layer's axes, and bytes from one to the next.

    The coordinate has no offset: a window's is `stride * position + dilation * tap`.
    """

    coordinate: Position
    span: Span
    stride: int = 0

    def factor_in(self, terms: dict[Axis, int]) -> int:
        """How often the coordinate is in a sum of axes; 0 where it is not."""
        own = self.coordinate.refined().terms
        factors = {terms.get(axis, 0) // factor if terms.get(axis, 0) % factor == 0 else 0 for axis, factor in own}
        return factors.pop() if len(factors) == 1 else 0


@dataclass(frozen=True)
class Gate:
    """Passes from `first` on of the loop at a level; those before have nothing to do."""

    level: int
    first: int


@dataclass(frozen=True)
class Fetched:
    """A buffer, and how an operand lies in it.  It is filled where all conditions are 0 or more, and the gates open."""

    buffer: SSAValue
    element: Element
    dims: tuple[FetchDim, ...]
    gates: tuple[Gate, ...] = ()
    conditions: tuple[Affine, ...] = ()

    def end(self) -> End:
        """Where positions of its dimensions lie."""
        terms = (Term(Linear({k: 1}, dim.span.start * -1), dim.stride) for k, dim in enumerate(self.dims))
        return End(self.buffer, tuple(terms))


def fetch(code: Code, engine: CopyEngine, operand: Operand, into: Fetched, places: PlacesOf) -> None:
    """Adds the copies that fill a core's buffer.  NotLowered where positions are not affine."""
    region, dst = Region.of([dim.span for dim in into.dims]), into.end()
    gates = [Affine.index(gate.level) - gate.first for gate in into.gates]
    region = replace(region, conditions=(*gates, *into.conditions))
    parts = [part for piece in operand.pieces for part in _Piece(code, piece, into.dims, region, dst).parts()]
    fill = _fill(code, engine, operand, into, parts, places)
    for part in parts:
        for place in places(part.tensor):
            region = part.region.clipped(place.clips(part.at))
            move(code, engine, into.element, region, place.end(part.at), part.dst, fill)


def _fill(
    code: Code, engine: CopyEngine, operand: Operand, into: Fetched, parts: Sequence[_Part], places: PlacesOf
) -> float | None:  # fmt: skip
    """What the one copy of the operand writes beyond ends; None where there are several, and values lie there already,
    or nothing is beyond."""
    fills = [(guard.fill, part) for part in parts for guard in part.piece.guards if guard.fill is not None]
    known = {fill for fill, part in fills if part.is_filled}
    if not known:
        return None
    if len(known) > 1:
        raise NotLowered(f"an operand with several values beyond its ends: {sorted(map(str, known))}")
    (fill,) = known
    (first, *others), (place, *more) = parts, places(parts[0].tensor)
    if not others and not more and not place.has and can_fill(code, first.region, place.end(first.at), first.dst):
        return fill
    write_value(code, engine, place.buffer, into, fill)
    return None


def write_value(code: Code, engine: CopyEngine, near: SSAValue, into: Fetched, value: float, *conditions: Affine) -> None:
    """A value everywhere in a core's buffer, in passes in which the conditions are 0 or more; `near`: any buffer where the
    engine reads."""
    dims = [CopyDim(Span(ZERO, dim.span.extent, dim.span.extent), Side(0), Side(dim.stride)) for dim in into.dims]
    beyond = CopyDim(Span(ZERO, 1, 0), Side(0), Side(0))
    copy(code, engine, (near, into.buffer), into.element, [beyond, *dims], value, conditions)


def linear(position: Position, dims: Sequence[FetchDim]) -> Linear:
    """A position of the layer's axes as one of dimensions."""
    own = position.refined()
    if not own.is_linear:
        raise NotLowered("values beyond ends at positions that are rounded")
    terms, found = dict(own.terms), dict[int, int]()
    for number, dim in enumerate(dims):
        factor = dim.factor_in(terms)
        if factor:
            found[number] = factor
            for axis, each in dim.coordinate.refined().terms:
                terms[axis] -= factor * each
    if any(terms.values()):
        raise NotLowered(f"positions along {', '.join(a.name for a, f in terms.items() if f)}, which no dimension has")
    return Linear(found, Affine(own.offset))


@dataclass(frozen=True)
class _Part:
    """Positions of a tensor that one copy brings: where each of its axes is read in a region of the buffer."""

    piece: Piece
    region: Region
    at: Mapping[Axis, Linear]
    dst: End

    @property
    def tensor(self) -> Tensor:
        return self.piece.tensor

    @property
    def is_filled(self) -> bool:
        """Whether something of its box is beyond an end."""
        return any(clip.is_filled for clip in self.region.clips)


@dataclass(frozen=True)
class _Reach:
    """A stretch of an axis: where `value` is in [0, size), the position read is `factor * value + offset`."""

    value: Linear
    size: int | None
    factor: int
    offset: int

    @property
    def position(self) -> Linear:
        own = self.value if self.factor > 0 else -self.value
        return own + self.offset if self.factor else Linear({}, Affine(self.offset))


class _Piece:
    """The copies of one piece of an operand."""

    def __init__(self, code: Code, piece: Piece, dims: Sequence[FetchDim], region: Region, dst: End) -> None:
        self.code, self.piece, self.dims, self.region, self.dst = code, piece, dims, region, dst
        self.index: list[tuple[Axis, Position | None]] = [found for each in piece.index for found in self.places(*each)]

    def places(self, axis: Axis, position: Position) -> Iterable[tuple[Axis, Position | None]]:
        """An axis of the tensor as a whole where one dimension moves it, else part by part."""
        if axis.parts is None or any(dim.factor_in(dict(position.refined().terms)) == 1 for dim in self.dims if
                                     {a for a, _ in dim.coordinate.refined().terms} == {a for a, _ in position.refined().terms}):
            return [(axis, position)]
        return list(digits((axis,), position))

    def parts(self) -> Iterator[_Part]:
        """One part; several where a position is rounded, or bent at the ends of an axis."""
        guards = [
            Clip(linear(guard.position, self.dims) + -guard.start, guard.stop - guard.start, guard.fill is not None)
            for guard in self.piece.guards
        ]
        yield from self.stepped(self.region.clipped(guards), self.dst, [self.raw(axis, at) for axis, at in self.index])

    def raw(self, axis: Axis, position: Position | None) -> _Raw:
        if position is None:
            raise NotLowered(f"no position says what is read of {self.piece.tensor.name}")
        own = position.refined()
        number = self.rounded_dim(own)
        if number is not None:
            return _Raw(axis, Linear({number: 1}), 1, own.bend)
        return _Raw(axis, linear(replace(own, divisor=1, bend="", extent=0), self.dims), own.divisor, own.bend)

    def rounded_dim(self, own: Position) -> int | None:
        """The dimension whose coordinate is a rounded position itself."""
        bare = replace(own, bend="", extent=0)
        return next((k for k, dim in enumerate(self.dims) if own.divisor > 1 and dim.coordinate == bare), None)

    def stepped(self, region: Region, dst: End, raws: Sequence[_Raw]) -> Iterator[_Part]:
        """Every so-manieth position of a dimension by itself where positions of several are rounded to one."""
        for raw in raws:
            for number, factor in raw.value.factors.items():
                if factor % raw.divisor:
                    start, extent = region.dims[number]
                    step = raw.divisor // math.gcd(factor, raw.divisor)
                    for first in range(min(step, extent)):
                        at = (number, step, start + first)
                        count = (extent - first + step - 1) // step
                        yield from self.stepped(region.at(*at, count), dst.at(*at), [each.at(*at) for each in raws])
                    return
        reaches = [list(self.reaches(region, raw)) for raw in raws]
        for chosen in itertools.product(*reaches):
            clips = [Clip(each.value, each.size) for each in chosen]
            cut = region.clipped(clips).cut(self.code)
            if cut is not None:
                yield _Part(self.piece, cut, {raw.axis: each.position for raw, each in zip(raws, chosen, strict=True)}, dst)

    def reaches(self, region: Region, raw: _Raw) -> Iterator[_Reach]:
        """The stretches of an axis that a position leads to."""
        extent, value = raw.axis.extent, self.divided(raw)
        low, high = region.extremes(self.code, value)
        if not raw.bend or (low >= 0 and high < extent):
            yield _Reach(value, extent, 1, 0)
        elif raw.bend == "wrap":
            for turn in range(low // extent, high // extent + 1):
                yield _Reach(value + -turn * extent, extent, 1, 0)
        else:
            is_mirror, last = raw.bend == "reflect", extent - 1
            yield _Reach(value, extent, 1, 0)
            if low < 0:
                yield _Reach(-value + -1, None, 1 if is_mirror else 0, int(is_mirror))
            if high > last:
                yield _Reach(value + -extent, None, -1 if is_mirror else 0, last - is_mirror)

    def divided(self, raw: _Raw) -> Linear:
        """A rounded position where every dimension moves it by whole ones."""
        if raw.divisor == 1:
            return raw.value
        rest = divided(raw.value.rest, raw.divisor)
        if rest is None:
            raise NotLowered(f"positions of {self.piece.tensor.name} are rounded, and loops move them by parts of one")
        return Linear({number: factor // raw.divisor for number, factor in raw.value.factors.items()}, rest)


@dataclass(frozen=True)
class _Raw:
    """A position along an axis before it is rounded and bent."""

    axis: Axis
    value: Linear
    divisor: int
    bend: str

    def at(self, number: int, factor: int, rest: Affine) -> _Raw:
        return replace(self, value=self.value.at(number, factor, rest))


def clipped(code: Code, span: Span, clip: tuple[Affine, Affine] | None) -> tuple[Span, Affine]:
    """A span with what a part has of it, and the position from which it then counts."""
    if clip is None:
        return span, ZERO
    low, high = clip
    if low.is_constant:
        low = Affine(max(0, low.base))
    extent = high - low
    if not extent.is_constant:
        raise NotLowered("a range of positions whose length changes from pass to pass")
    bound, limit = extent.base, None if span.limit is None else span.limit - low
    own = Affine(span.bound) - low
    if own.is_constant:
        bound = min(bound, own.base)
    elif not code.is_inside(span):
        if limit is not None:
            raise NotLowered("a range of positions with three ends")
        limit = own
    return Span(span.start - low, span.extent, max(0, bound), limit), low


def gated(dims: list[CopyDim], gates: Sequence[Gate]) -> list[CopyDim]:
    """With limits that leave nothing in passes before a gate opens."""
    for gate in gates:
        dims = limited(dims, Affine.index(gate.level) - (gate.first - 1))
    return dims


def limited(dims: Sequence[CopyDim], passes: Affine) -> list[CopyDim]:
    """With a limit that leaves nothing where this number is 0 or less, and all where it is 1 or more."""
    found = list(dims)
    number = next((k for k, dim in enumerate(found) if dim.span.limit is None and not dim.rings), None)
    if number is None:
        found.append(CopyDim(Span(ZERO, 1, 1), Side(0), Side(0)))
        number = len(found) - 1
    span = found[number].span
    bound = max(1, span.bound, span.start.base + span.extent)
    found[number] = replace(found[number], span=replace(span, limit=passes * bound))
    return found


def passes_before(levels: Iterable[int]) -> Affine:
    """How many passes of these loops have gone before, or at least 1 if any has."""
    return sum((Affine.index(level) for level in levels), ZERO)


def passes_left(levels: Sequence[int], counts: Sequence[int]) -> Affine:
    """How many are still to come, or at least 1 if any is."""
    return sum((Affine(count - 1) - Affine.index(level) for level, count in zip(levels, counts, strict=True)), ZERO)
