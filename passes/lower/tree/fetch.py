# Tests: test/passes/lower/tree/test_lower_plan.py
"""What a core holds of an operand, brought from where the parts of its view lie.

A view may be of several tensors side by side, with values of its own where none is, and each tensor may lie in several
places. Each part is a copy of its own, clipped to what it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from frustum.passes.lower.tree.spans import NotLowered

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
    """A buffer of a core, and how an operand lies in it."""

    buffer: SSAValue
    element: Element
    dims: tuple[FetchDim, ...]
    gates: tuple[Gate, ...] = ()


def fetch(code: Code, engine: CopyEngine, operand: Operand, into: Fetched, places: PlacesOf) -> None:
    """Adds the copies that fill a core's buffer.  NotLowered where positions are not affine."""
    fills = {guard.fill for piece in operand.pieces for guard in piece.guards if guard.fill is not None}
    if len(fills) > 1:
        raise NotLowered(f"an operand with several values beyond its ends: {sorted(map(str, fills))}")
    parts = [part for piece in operand.pieces for part in _Piece(code, piece, into.dims).parts()]
    is_clipped = any(part.is_clipped for part in parts)
    fill = fills.pop() if fills and is_clipped else None
    if fill is not None and (len(parts) > 1 or any(len(places(part.tensor)) > 1 for part in parts)):
        _fill(code, engine, into, places(parts[0].tensor)[0], fill)
        fill = None
    for part in parts:
        for place in places(part.tensor):
            _copy(code, engine, part, into, place, fill)


def _fill(code: Code, engine: CopyEngine, into: Fetched, place: Place, value: float) -> None:
    """The value everywhere."""
    dims = [CopyDim(Span(ZERO, dim.span.extent, 0), Side(0), Side(dim.stride)) for dim in into.dims]
    copy(code, engine, (place.buffer, into.buffer), into.element, dims, value)


@dataclass(frozen=True)
class _Part:
    """Positions of a tensor that one copy brings.

    `dims`: of each dimension of the buffer the positions that the part has, or what a step of it that is written out
    is; `at`: of each axis of the tensor the dimension that moves it, how fast, and where it is besides.
    """

    tensor: Tensor
    clips: tuple[tuple[Affine, Affine] | None, ...]
    fixed: dict[int, Affine]
    at: dict[Axis, tuple[int | None, int, Affine]]
    is_clipped: bool


class _Piece:
    def __init__(self, code: Code, piece: Piece, dims: Sequence[FetchDim]) -> None:
        self.code, self.piece, self.dims = code, piece, dims
        self.index: list[tuple[Axis, Position | None]] = [found for each in piece.index for found in self.places(*each)]

    def places(self, axis: Axis, position: Position) -> Iterable[tuple[Axis, Position | None]]:
        """An axis of the tensor as a whole where one dimension moves it, else part by part."""
        if axis.parts is None or any(dim.factor_in(dict(position.refined().terms)) == 1 for dim in self.dims if
                                     {a for a, _ in dim.coordinate.refined().terms} == {a for a, _ in position.refined().terms}):
            return [(axis, position)]
        return list(digits((axis,), position))

    def parts(self) -> Iterator[_Part]:
        """One part; several where a position is a sum of two dimensions, of which one is written out, or goes around
        an end."""
        moved = [self.moving(position) for _, position in self.index]
        moved += [self.moving(guard.position) for guard in self.piece.guards]
        written = set[int]()
        for found in moved:
            rest = sorted(found, key=lambda number: self.dims[number].span.extent)
            written |= {*rest[:-1]} - written if len({*rest} - written) > 1 else set()
        turns = [list(self.turns(axis, position)) for axis, position in self.index]
        for offsets in itertools.product(*turns):
            steps = [range(self.dims[number].span.extent) for number in sorted(written)]
            for chosen in itertools.product(*steps):
                fixed = {
                    number: self.dims[number].span.start + step
                    for number, step in zip(sorted(written), chosen, strict=True)
                }
                yield self.part(fixed, offsets)

    def moving(self, position: Position | None) -> dict[int, int]:
        """Dimensions that move a position, each with how fast."""
        if position is None:
            raise NotLowered(f"no position says what is read of {self.piece.tensor.name}")
        own = position.refined()
        for number, dim in enumerate(self.dims):
            if own.divisor > 1 and replace(own, bend="", extent=0) == dim.coordinate:
                return {number: 1}
        if own.divisor > 1:
            raise NotLowered(f"positions of {self.piece.tensor.name} are rounded")
        terms, found = dict(own.terms), dict[int, int]()
        for number, dim in enumerate(self.dims):
            factor = dim.factor_in(terms)
            if factor:
                found[number] = factor
                for axis, each in dim.coordinate.refined().terms:
                    terms[axis] -= factor * each
        if any(terms.values()):
            raise NotLowered(f"positions of {self.piece.tensor.name} are of axes that no dimension has")
        return found

    def turns(self, axis: Axis, position: Position | None) -> Iterator[int]:
        """By how many positions what is read is moved around the end of an axis."""
        assert position is not None
        if not position.bend:
            yield 0
            return
        low, high = replace(position, bend="").hull({})
        if low >= 0 and high <= axis.extent:
            yield 0
        elif position.bend != "wrap":
            raise NotLowered(f"{self.piece.tensor.name} is read beyond its ends ({position.bend})")
        else:
            yield from (-turn * axis.extent for turn in range(low // axis.extent, (high - 1) // axis.extent + 1))

    def part(self, fixed: dict[int, Affine], turned: Sequence[int]) -> _Part:
        clips: list[tuple[Affine, Affine] | None] = [None] * len(self.dims)
        at, is_clipped = dict[Axis, tuple[int | None, int, Affine]](), False
        wanted = [
            (axis, position, turn, (0, axis.extent))
            for (axis, position), turn in zip(self.index, turned, strict=True)
        ]
        wanted += [(None, guard.position, 0, (guard.start, guard.stop)) for guard in self.piece.guards]
        for axis, position, turn, (start, stop) in wanted:
            assert position is not None
            found = self.moving(position)
            rest = Affine(turn if position.divisor > 1 else position.offset + turn)
            for number in [number for number in found if number in fixed]:
                rest += fixed[number] * found.pop(number)
            number, factor = next(iter(found.items()), (None, 0))
            if axis is not None:
                at[axis] = number, factor, rest
            if number is None:
                if self.code.extremes(rest)[0] < start or self.code.extremes(rest)[1] >= stop:
                    raise NotLowered(f"a part of {self.piece.tensor.name} that is there in some passes only")
                continue
            if self.does_clip(number, factor, rest, start, stop):
                clips[number] = self.clip(clips[number], factor, rest, start, stop)
                is_clipped = True
        return _Part(self.piece.tensor, tuple(clips), fixed, at, is_clipped)

    def does_clip(self, number: int, factor: int, rest: Affine, start: int, stop: int) -> bool:
        span = self.dims[number].span
        ends = [span.start * factor + rest, (span.start + (span.extent - 1)) * factor + rest]
        most = span.bound - 1
        low = min(self.code.extremes(each)[0] for each in ends)
        high = max(self.code.extremes(each)[1] for each in ends)
        if factor > 0:  # positions from 0 to the bound alone are there
            low, high = max(low, self.code.extremes(rest)[0]), min(high, most * factor + self.code.extremes(rest)[1])
        return low < start or high >= stop

    def clip(
        self, known: tuple[Affine, Affine] | None, factor: int, rest: Affine, start: int, stop: int
    ) -> tuple[Affine, Affine]:
        """Positions of the dimension with which the tensor's are in [start, stop)."""
        if factor == 1:
            low, high = Affine(start) - rest, Affine(stop) - rest
        elif rest.is_constant and factor > 0:
            low, high = Affine(-((rest.base - start) // factor)), Affine((stop - 1 - rest.base) // factor + 1)
        elif rest.is_constant and factor == -1:
            low, high = Affine(rest.base - stop + 1), Affine(rest.base - start + 1)
        else:
            raise NotLowered(f"every {factor}-th position of {self.piece.tensor.name} in a moving range")
        if known is None:
            return low, high
        between = low - known[0], high - known[1]
        if not all(each.is_constant for each in between):
            raise NotLowered(f"two ranges of {self.piece.tensor.name} that move unlike each other")
        return (low if between[0].base > 0 else known[0]), (high if between[1].base < 0 else known[1])


def _copy(code: Code, engine: CopyEngine, part: _Part, into: Fetched, place: Place, fill: float | None) -> None:
    """One part from one place."""
    clips = list(part.clips)
    for axis, has in place.has.items():
        number, factor, rest = part.at[axis]
        if number is None or factor != 1 or not has.start.is_constant:
            raise NotLowered(f"a part of {part.tensor.name} that only lies in memory in some positions of {axis.name}")
        low, high = has.start - rest, has.start + min(has.extent, has.bound - has.start.base) - rest
        known = clips[number]
        if known is not None:
            low = low if (low - known[0]).base > 0 else known[0]
            high = high if (high - known[1]).base < 0 else known[1]
        clips[number] = low, high
    by_dim: dict[int, list[tuple[Axis, int, Affine]]] = {}
    base = Affine(place.offset)
    for axis, (number, factor, rest) in part.at.items():
        if number is None:
            base += place.side(axis, rest).offset
        else:
            by_dim.setdefault(number, []).append((axis, factor, rest))
    dims, dst = list[CopyDim](), ZERO
    for number, dim in enumerate(into.dims):
        if number in part.fixed:
            dst += (part.fixed[number] - dim.span.start) * dim.stride
            continue
        span, low = clipped(code, dim.span, clips[number])
        sides = [place.side(axis, dim.span.start * factor + rest, factor) for axis, factor, rest in by_dim.get(number, ())]
        rings = [each for each in sides if each.ring]
        if rings:
            ((axis, factor, rest),) = by_dim[number]
            if factor != 1 or not (low + rest).is_constant:
                raise NotLowered(f"every {factor}-th position of {part.tensor.name} from a rolling buffer")
            src = Side(rings[0].stride, low + rest, rings[0].ring)
        else:
            src = Side(sum(side.stride for side in sides), sum((side.offset for side in sides), ZERO))
        dims.append(CopyDim(span, src, Side(dim.stride)))
    dims = gated(dims, into.gates)
    dims.append(CopyDim(Span(ZERO, 1, 1), Side(0, base), Side(0, dst)))
    copy(code, engine, (place.buffer, into.buffer), into.element, dims, fill)


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
