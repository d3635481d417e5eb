# Tests: test/passes/lower/tree/test_views.py
"""What a core holds of an operand, brought from where the parts of its view lie.

A view may be of several tensors side by side, with values of its own where none is, and each tensor may lie in several
places. Each part is a copy of its own, clipped to what it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Guard, Piece
from frustum.dialects.axes.axis import Axis, extent_of
from frustum.dialects.axes.network import Operand
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import ZERO, Affine, CopyEngine, Element, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import CopyDim, Side, copy
from frustum.passes.lower.tree.layouts import digits_of, runs_of
from frustum.passes.lower.tree.places import Place, Run
from frustum.passes.lower.tree.regions import (
    Clip,
    End,
    Linear,
    Region,
    Term,
    can_fill,
    first_from,
    is_divisible,
    move,
)
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
    offset: int = 0
    plane_bytes: int = 0
    """From one number of an element to the next, where it has several."""

    def end(self) -> End:
        """Where positions of its dimensions lie."""
        terms = (Term(Linear({k: 1}, dim.span.start * -1), dim.stride) for k, dim in enumerate(self.dims))
        return End(self.buffer, tuple(terms), self.offset)

    def plane(self, number: int) -> Fetched:
        """The box of one number of each element."""
        return replace(self, offset=self.offset + number * self.plane_bytes)

    def both(self) -> tuple[Fetched, Fetched]:
        """The boxes of two numbers of each element."""
        return self.plane(0), self.plane(1)


def fetch(
    code: Code, engine: CopyEngine, operand: Operand, into: Fetched, places: PlacesOf, *, fills: bool = True
) -> None:  # fmt: skip
    """Adds the copies that fill a core's buffer; `fills`: what lies beyond ends is written, too.  NotLowered where
    positions are not affine."""
    gates = [Affine.index(gate.level) - gate.first for gate in into.gates]
    region = replace(Region.of([dim.span for dim in into.dims]), conditions=(*gates, *into.conditions))
    parts = list[_Part]()
    for piece in operand.pieces:
        for place in places(piece.tensor):
            parts += _Piece(code, piece, into.dims, place).parts(region, into.end())
    fill = _fill(code, engine, operand, into, parts, places) if fills else None
    for part in parts:
        move(code, engine, into.element, part.region, part.src, part.dst, fill)


def _fill(
    code: Code, engine: CopyEngine, operand: Operand, into: Fetched, parts: Sequence[_Part], places: PlacesOf
) -> float | None:  # fmt: skip
    """What the one copy of the operand writes beyond ends; None where there are several, and values lie there already,
    or nothing is beyond."""
    there = {part.piece for part in parts}
    filled = {part.piece for part in parts if part.is_filled} | {p for p in operand.pieces if p not in there}
    known = {guard.fill for piece in filled for guard in piece.guards if guard.fill is not None}
    if not known:
        return None
    if len(known) > 1 and len(operand.pieces) > 1:
        raise NotLowered(f"several tensors with several values beyond their ends: {sorted(map(str, known))}")
    fill, *more = known
    if len(parts) == 1 and not more and can_fill(code, parts[0].region, parts[0].src, parts[0].dst):
        return fill
    guards = [g for piece in operand.pieces if piece in filled for g in piece.guards if g.fill is not None]
    write_values(code, engine, places(operand.pieces[0].tensor)[0].buffer, into, guards)
    return None


def write_values(code: Code, engine: CopyEngine, near: SSAValue, into: Fetched, guards: Sequence[Guard]) -> None:
    """The values that stand beyond ends in a core's buffer: that of the last guard everywhere, then of each before it
    what is beyond, as the first one decides.  `near`: any buffer that the engine reads, of which nothing is read."""
    assert guards[-1].fill is not None
    write_value(code, engine, near, into, guards[-1].fill)
    for guard in reversed(guards[:-1] if len({each.fill for each in guards}) > 1 else ()):
        value = linear(guard.position, into.dims)
        for beyond in (-value + (guard.start - 1), value + -guard.stop):
            _write_beyond(code, engine, near, into, guard.fill or 0.0, beyond)


def _write_beyond(
    code: Code, engine: CopyEngine, near: SSAValue, into: Fetched, value: float, beyond: Linear
) -> None:  # fmt: skip
    """A value where a sum is 0 or more, counted from the side on which that is."""
    if Region.of([dim.span for dim in into.dims]).extremes(code, beyond)[1] < 0:
        return
    if not beyond.factors:  # everything is beyond, or nothing
        write_value(code, engine, near, into, value, beyond.rest)
        return
    ((number, factor),) = beyond.factors.items()
    if not is_divisible(beyond.rest, factor):
        raise NotLowered("values beyond ends that loops move by parts of a position")
    dims = list[CopyDim]()
    for k, dim in enumerate(into.dims):
        extent, side, limit = dim.span.extent, Side(dim.stride), None
        if k == number and factor < 0:  # positions from the first on
            limit = first_from(beyond.rest * -1, factor) - dim.span.start
        elif k == number:  # from the last down
            limit = dim.span.start + extent - first_from(beyond.rest * -1, factor)
            side = Side(-dim.stride, Affine((extent - 1) * dim.stride))
        dims.append(CopyDim(Span(ZERO, extent, extent, limit), side, side))
    copy(code, engine, (near, into.buffer), into.element, [CopyDim(Span(ZERO, 1, 0), Side(0), Side(0)), *dims], value)


def write_value(
    code: Code, engine: CopyEngine, near: SSAValue, into: Fetched, value: float, *conditions: Affine
) -> None:  # fmt: skip
    """A value everywhere in a core's buffer, in passes in which the conditions are 0 or more; `near`: any buffer that
    the engine reads."""
    sides = [(dim.span.extent, Side(dim.stride)) for dim in into.dims]  # of both: the port counts bytes of runs
    dims = [CopyDim(Span(ZERO, extent, extent), side, side) for extent, side in sides]
    beyond = CopyDim(Span(ZERO, 1, 0), Side(0), Side(0))
    copy(code, engine, (near, into.buffer), into.element, [beyond, *dims], value, conditions)


def lying(piece: Piece, place: Place) -> Iterator[tuple[Run, Position]]:
    """Where the axes of a tensor are read: those that lie one behind the other together, where they are read so."""
    for run, position in runs_of(piece):
        if place.step(run) is None or any(map(place.is_in_parts, run[1:])):
            yield from digits_of(run, position)
        else:
            yield run, position


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
    """What one copy brings of a piece."""

    piece: Piece
    region: Region
    src: End
    dst: End

    @property
    def is_filled(self) -> bool:
        """Whether something of its box is beyond an end."""
        return any(clip.is_filled for clip in self.region.clips)


@dataclass(frozen=True)
class _Reach:
    """A stretch of positions: where `value` is in [0, size), or 0 or more, they are `factor * value + offset`."""

    value: Linear
    size: int | None
    factor: int
    offset: int

    @property
    def position(self) -> Linear:
        own = self.value if self.factor > 0 else -self.value
        return own + self.offset if self.factor else Linear({}, Affine(self.offset))


@dataclass(frozen=True)
class _Raw:
    """A position before it is rounded and bent into [0, extent): of axes of the tensor, or of a guard."""

    value: Linear
    divisor: int
    bend: str
    extent: int
    run: Run = ()
    guard: Guard | None = None

    def at(self, number: int, factor: int, rest: Affine) -> _Raw:
        return replace(self, value=self.value.at(number, factor, rest))

    def turns(self, code: Code, region: Region) -> int:
        """How often it goes around the end."""
        low, high = region.extremes(code, self.value)
        return high // (self.divisor * self.extent) - low // (self.divisor * self.extent)

    def period(self, code: Code, region: Region) -> int:
        """Steps after which it is rounded, and bent if it goes around often, as before."""
        is_often = self.bend == "wrap" and self.turns(code, region) > self.divisor * self.extent
        return self.divisor * (self.extent if is_often else 1)

    def clips(self, reach: _Reach) -> Iterator[Clip]:
        yield Clip(reach.value, reach.size)
        if self.guard is not None:
            size, is_filled = self.guard.stop - self.guard.start, self.guard.fill is not None
            yield Clip(reach.position + -self.guard.start, size, is_filled)


class _Piece:
    """The copies of one piece of an operand from one place."""

    def __init__(self, code: Code, piece: Piece, dims: Sequence[FetchDim], place: Place) -> None:
        self.code, self.piece, self.dims, self.place = code, piece, dims, place

    def parts(self, region: Region, dst: End) -> Iterator[_Part]:
        """One part; several where a position is rounded, or bent at the ends of an axis."""
        raws = [replace(self.raw(guard.position.refined()), guard=guard) for guard in self.piece.guards]
        for run, position in lying(self.piece, self.place):
            raws.append(replace(self.raw(position), run=run, extent=extent_of(run)))
        yield from self.stepped(region, dst, raws)

    def raw(self, position: Position) -> _Raw:
        """A position as one of dimensions; rounded, as the dimension whose coordinate it is, if there is one."""
        bare = replace(position, bend="", extent=0)
        if bare.divisor > 1:
            number = next((k for k, dim in enumerate(self.dims) if dim.coordinate == bare), None)
            if number is not None:
                return _Raw(Linear({number: 1}), 1, position.bend, position.extent)
        return _Raw(linear(replace(bare, divisor=1), self.dims), bare.divisor, position.bend, position.extent)

    def stepped(self, region: Region, dst: End, raws: Sequence[_Raw]) -> Iterator[_Part]:
        """Every so-manieth position of a dimension by itself where positions of several are rounded to one."""
        for raw in raws:
            period = raw.period(self.code, region)
            for number, factor in raw.value.factors.items():
                start, extent = region.dims[number]
                step = period // math.gcd(factor, period)
                if step > 1 and extent > 1:
                    for first in range(min(step, extent)):
                        to = (number, step, start + first)
                        count = (extent - first + step - 1) // step
                        yield from self.stepped(region.at(*to, count), dst.at(*to), [each.at(*to) for each in raws])
                    return
        reaches = [list(self.reaches(region, raw)) for raw in raws]
        for chosen in itertools.product(*reaches):
            at = {raw.run: each.position for raw, each in zip(raws, chosen, strict=True) if raw.guard is None}
            clips = [clip for raw, each in zip(raws, chosen, strict=True) for clip in raw.clips(each)]
            cut = region.clipped((*clips, *self.place.clips(at))).cut(self.code)
            if cut is not None:
                yield _Part(self.piece, cut, self.place.end(at), dst)

    def reaches(self, region: Region, raw: _Raw) -> Iterator[_Reach]:
        """The stretches that a position leads to."""
        extent, value = raw.extent, self.divided(region, raw)
        low, high = region.extremes(self.code, value)
        if not raw.bend or (low >= 0 and high < extent):
            yield _Reach(value, None if raw.guard is not None else extent, 1, 0)
        elif raw.bend == "wrap" and value.is_multiple(extent):
            yield _Reach(Linear(), None, 0, low % extent)
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

    def divided(self, region: Region, raw: _Raw) -> Linear:
        """A rounded position where every dimension moves it by whole ones."""
        if raw.divisor == 1:
            return raw.value
        factors, rest = dict(raw.value.factors), raw.value.rest
        for number in [number for number, factor in factors.items() if factor % raw.divisor]:
            rest += region.dims[number][0] * factors.pop(number)  # of one position
        found = divided(rest, raw.divisor)
        if found is None:
            raise NotLowered(f"positions of {self.piece.tensor.name} are rounded, and loops move them by parts of one")
        return Linear({number: factor // raw.divisor for number, factor in factors.items()}, found)


def passes_before(levels: Iterable[int]) -> Affine:
    """How many passes of these loops have gone before, or at least 1 if any has."""
    return sum((Affine.index(level) for level in levels), ZERO)


def passes_left(levels: Sequence[int], counts: Sequence[int]) -> Affine:
    """How many are still to come, or at least 1 if any is."""
    return sum((Affine(count - 1) - Affine.index(level) for level, count in zip(levels, counts, strict=True)), ZERO)
