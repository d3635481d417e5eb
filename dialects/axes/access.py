"""How positions of a layer lead to positions of a tensor: affine expressions of axes, and views made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis, Dim, extent_of, leaves, weights
from frustum.dialects.axes.tensor import Tensor

Ints = NDArray[np.int64]
Bend = Literal["", "wrap", "edge", "reflect"]
"""Where a position beyond [0, extent) lies: nowhere; at the other end; at the nearest end; mirrored at it."""


@dataclass(frozen=True)
class Affine:
    """The position `floor((sum of coefficient * axis + offset) / divisor)`, bent into [0, extent) where `bend` says."""

    terms: tuple[tuple[Axis, int], ...] = ()
    offset: int = 0
    divisor: int = 1
    bend: Bend = ""
    extent: int = 0

    @staticmethod
    def of(axis: Axis, coefficient: int = 1, offset: int = 0) -> Affine:
        return Affine(((axis, coefficient),), offset)

    @staticmethod
    def along(axes: Iterable[Axis], coefficient: int = 1, offset: int = 0) -> Affine:
        """`coefficient` times the position in the dimension that the axes make up, plus the offset."""
        return Affine(tuple((a, coefficient * w) for a, w in weights(axes).items()), offset)

    @property
    def is_linear(self) -> bool:
        return self.divisor == 1 and not self.bend

    def __add__(self, other: Affine) -> Affine:
        assert self.is_linear and other.is_linear
        total: dict[Axis, int] = {}
        for axis, coefficient in (*self.terms, *other.terms):
            total[axis] = total.get(axis, 0) + coefficient
        return Affine(tuple((a, c) for a, c in total.items() if c), self.offset + other.offset)

    def scaled(self, factor: int) -> Affine:
        assert self.is_linear
        return Affine(tuple((a, c * factor) for a, c in self.terms), self.offset * factor)

    def refined(self) -> Affine:
        """The same of leaves, where axes were split since."""
        if all(axis.parts is None for axis, _ in self.terms):
            return self
        terms = ((leaf, c * w) for axis, c in self.terms for leaf, w in weights((axis,)).items())
        return replace(self, terms=tuple(terms))

    def substituted(self, known: Sequence[tuple[Dim, Affine]]) -> Affine | None:
        """The same where dimensions are at these positions, and other axes where they are; None where a rounded or bent
        position would be computed with."""
        own = dict(self.refined().terms)
        parts = [part for axes, position in known for part in _parts(axes, position, own)]
        moved = {leaf for axes, _ in known for leaf in leaves(axes)} if own else set()
        parts += [(Affine.of(leaf), coefficient) for leaf, coefficient in own.items() if leaf not in moved]
        parts = [(part, coefficient) for part, coefficient in parts if coefficient]
        if len(parts) == 1 and parts[0][0] is not None and parts[0][1] == 1:
            return self._of_one(parts[0][0])
        total = Affine(offset=self.offset)
        for part, coefficient in parts:
            if part is None or not part.is_linear:
                return None
            total += part.scaled(coefficient)
        return replace(total, divisor=self.divisor, bend=self.bend, extent=self.extent)

    def _of_one(self, part: Affine) -> Affine | None:
        """The same where the only term, with the coefficient 1, is another position."""
        if part.bend:
            return part if self.is_linear and not self.offset else None
        offset = part.offset + self.offset * part.divisor
        return Affine(part.terms, offset, part.divisor * self.divisor, self.bend, self.extent)

    def digit(self, weight: int, extent: int, *, is_first: bool) -> Affine | None:
        """The position along an axis of `extent` that steps by `weight` in the dimension; `is_first`: no axis is
        outside it. Where terms carry into each other it is rounded. None where this position is bent, but for one that
        goes around whole axes."""
        if self.bend:
            is_whole = self.bend == "wrap" and self.extent % (weight * extent) == 0
            return replace(self, divisor=self.divisor * weight, extent=extent) if is_whole else None
        if self.divisor == 1 and any(c < 0 for _, c in self.terms):
            falling = self._falling_digit(weight, extent, is_first=is_first)
            if falling is not None:
                return falling
        if self.divisor == 1 and self.offset >= 0 and all(c >= 0 for _, c in self.terms):
            below = [(a, c) for a, c in self.terms if c < weight]
            own = [(a, c) for a, c in self.terms if weight <= c < weight * extent]
            above = [(a, c) for a, c in self.terms if c >= weight * extent]
            offset = self.offset % (weight * extent) // weight
            is_whole = not any(c % weight for _, c in own) and not any(
                c % (weight * extent) for _, c in above
            )
            rest = self.offset % weight + sum(c * (a.extent - 1) for a, c in below)
            most = offset + sum(c // weight * (a.extent - 1) for a, c in own)
            if is_whole and rest < weight and most < extent:
                return Affine(tuple((a, c // weight) for a, c in own), offset)
        rounded = replace(self, divisor=self.divisor * weight)
        return rounded if is_first else replace(rounded, bend="wrap", extent=extent)

    def _falling_digit(self, weight: int, extent: int, *, is_first: bool) -> Affine | None:
        """`digit` where some terms are negative; None where terms carry into each other."""
        below = Affine(tuple((a, c) for a, c in self.terms if abs(c) < weight), self.offset % weight)
        above = [(a, c) for a, c in self.terms if abs(c) >= weight]
        low, high = below.hull({})
        if any(c % weight for _, c in above) or low // weight != (high - 1) // weight:
            return None
        own = tuple((a, c // weight) for a, c in above if is_first or c % (weight * extent))
        found = Affine(own, self.offset // weight + low // weight)
        if is_first:
            return found
        low, high = found.hull({})
        return found + Affine(offset=-(low // extent) * extent) if low // extent == (high - 1) // extent else None

    def hull(self, ranges: Mapping[Axis, tuple[int, int]]) -> tuple[int, int]:
        """The half-open range of positions for ranges of the axes, numbers or arrays; axes without one run over their
        whole extent.
        Positions beyond the tensor are left out where `bend` takes them into it."""
        low = high = self.offset
        for axis, coefficient in self.refined().terms:
            start, stop = ranges.get(axis, (0, axis.extent))
            first, last = (start, stop - 1) if coefficient >= 0 else (stop - 1, start)
            low, high = low + coefficient * first, high + coefficient * last
        low, high = low // self.divisor, high // self.divisor
        if not self.bend:
            return low, high + 1
        if isinstance(low, int):
            return _bent(self.bend, self.extent, low, high)
        return _all_bent(self.bend, self.extent, low, high)

    def seen(self, extent: int, of: Mapping[Axis, NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Which positions of [0, extent) there are, of some positions of axes, and all of those that are not named."""
        found = np.array([self.offset])
        for axis, coefficient in self.refined().terms:
            own = np.flatnonzero(of[axis]) if axis in of else np.arange(axis.extent)
            found = found + coefficient * own if len(found) == 1 else np.unique(np.add.outer(found, coefficient * own))
        found = found // self.divisor
        if self.bend:
            found = np.array([_bent(self.bend, self.extent, p, p)[0] for p in found.tolist()])
        seen = np.zeros(extent, np.bool_)
        seen[found[(found >= 0) & (found < extent)]] = True
        return seen

    def moves(self, axis: Axis) -> bool:
        """Whether it depends on the axis."""
        return any(own is axis for own, _ in self.terms)


def _bent(bend: Bend, extent: int, low: int, high: int) -> tuple[int, int]:
    last = extent - 1
    if low >= 0 and high <= last:
        return low, high + 1
    if bend == "edge":
        return min(max(low, 0), last), min(max(high, 0), last) + 1
    if bend == "wrap":
        turn = low // extent
        return (low - turn * extent, high - turn * extent + 1) if high // extent == turn else (0, extent)
    mirrored = [abs(p) if p < 0 else 2 * last - p for p in (low, high) if not 0 <= p <= last]
    inside = [min(max(p, 0), last) for p in (low, high)]
    return min(*mirrored, *inside), max(*mirrored, *inside) + 1


def _all_bent(bend: Bend, extent: int, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """`_bent` of arrays."""
    last = extent - 1
    if bend == "edge":
        return np.clip(low, 0, last), np.clip(high, 0, last) + 1
    if bend == "wrap":
        turn = low // extent
        is_in_one = high // extent == turn
        return np.where(is_in_one, low - turn * extent, 0), np.where(is_in_one, high - turn * extent + 1, extent)
    inside = [np.clip(p, 0, last) for p in (low, high)]
    mirrored = [
        np.where(p < 0, -p, np.where(p > last, 2 * last - p, q)) for p, q in zip((low, high), inside, strict=True)
    ]
    return np.minimum.reduce([*mirrored, *inside]), np.maximum.reduce([*mirrored, *inside]) + 1


def _parts(axes: Dim, position: Affine, own: Mapping[Axis, int]) -> list[tuple[Affine | None, int]]:
    """What positions of a dimension's axes are, each with its coefficient; the dimension is not taken apart where it
    runs through as a whole."""
    factors = {Fraction(own.get(leaf, 0), weight) for leaf, weight in weights(axes).items()}
    factor = factors.pop() if len(factors) == 1 else None
    if factor is not None and factor.denominator == 1:
        return [(position.refined(), factor.numerator)]
    return [(digit, own.get(leaf, 0)) for leaf, digit in digits(axes, position)]


def digits(own: Dim, position: Affine) -> Iterator[tuple[Axis, Affine | None]]:
    """Each leaf of a dimension, and where a position of the dimension is along it."""
    steps, refined = weights(own), position.refined()
    outermost = max(steps.values(), default=1)
    for leaf, weight in steps.items():
        yield (
            leaf,
            refined if len(steps) == 1 else refined.digit(weight, leaf.extent, is_first=weight == outermost),
        )


@dataclass(frozen=True)
class Link:
    """Position p of a layer's axis reads [stride * p - pad, stride * p - pad + reach) of a tensor's axis."""

    axis: Axis
    stride: Fraction
    reach: int
    pad: int

    @property
    def is_plain(self) -> bool:
        return self.stride == 1 and self.reach == 1 and self.pad == 0


def link_of(position: Affine) -> Link | None:
    """The link of a position to the axis that moves it most, with the reach of the others; None: it moves with none,
    and is read whole or at one place."""
    own = position.refined()
    moving = [(a, c) for a, c in own.terms if not a.is_tap]
    if not moving or own.bend == "wrap":
        return None
    axis, coefficient = max(moving, key=lambda term: abs(term[1]))
    rest = [(a, c) for a, c in own.terms if a is not axis]
    low = own.offset + sum(min(0, c * (a.extent - 1)) for a, c in rest)
    high = own.offset + sum(max(0, c * (a.extent - 1)) for a, c in rest)
    first = low // own.divisor
    return Link(axis, Fraction(coefficient, own.divisor), -((-high - 1) // own.divisor) - first, -first)


@dataclass(frozen=True)
class Guard:
    """Positions outside [start, stop) have the value `fill`; `fill` None: another piece of the operand has them."""

    position: Affine
    start: int
    stop: int
    fill: float | None = 0.0


@dataclass(frozen=True)
class Piece:
    """One tensor's part of a view: where each of its axes is read, and what holds outside. Guards are asked in order:
    the first that a position breaks decides."""

    tensor: Tensor
    index: tuple[tuple[Axis, Affine], ...]
    guards: tuple[Guard, ...] = ()

    def substituted(
        self, known: Sequence[tuple[Dim, Affine]], guards: tuple[Guard, ...] = ()
    ) -> Piece | None:
        """The piece where dimensions are at these positions; `guards` come before its own."""
        inside = [_of_outer_parts(guard) for guard in self.guards]
        parts = {axis: guard.start for guard in inside for axis, _ in guard.position.terms if _is_of_one(guard)}
        index = [
            found for axis, position in self.index for found in _moved(axis, _at_known(position, parts), known)
        ]
        asked = [guard.position.substituted(known) for guard in inside]
        if None in asked or any(position is None for _, position in index):
            return None
        own = tuple(replace(g, position=p) for g, p in zip(inside, asked, strict=True) if p is not None)
        return Piece(self.tensor, tuple((axis, p) for axis, p in index if p is not None), (*guards, *own))

    @property
    def by_leaf(self) -> tuple[tuple[Axis, Affine | None], ...]:
        """Where each leaf of the tensor is read; None: nothing tells for this leaf alone."""
        known: tuple[tuple[Axis, Affine | None], ...] | None = self.__dict__.get("_settled")
        if known is not None:
            return known
        return tuple(found for axis, position in self.index for found in digits((axis,), position))

    @property
    def is_settled(self) -> bool:
        return "_settled" in self.__dict__

    def settle(self) -> None:
        """No axis is split from now on."""
        self.__dict__.pop("_settled", None)
        self.__dict__["_settled"] = self.by_leaf


def _of_outer_parts(guard: Guard) -> Guard:
    """The same of the outermost parts of an axis that was split, where no inner part decides."""
    own = guard.position.refined()
    terms = sorted(own.terms, key=lambda term: -term[1])
    while own.is_linear and len(terms) > 1 and not own.offset:
        *outer, (inner, weight) = terms
        reach = inner.extent
        if weight != 1 or any(factor % reach for _, factor in outer) or guard.start % reach or guard.stop % reach:
            break
        terms = [(axis, factor // reach) for axis, factor in outer]
        own = Affine(tuple(terms))
        guard = Guard(own, guard.start // reach, guard.stop // reach, guard.fill)
    return guard


def _is_of_one(guard: Guard) -> bool:
    """Whether an axis has one position inside, and no value stands for others."""
    own = guard.position
    is_plain = own.is_linear and not own.offset and len(own.terms) == 1 and own.terms[0][1] == 1
    return is_plain and guard.fill is None and guard.stop - guard.start == 1


def _at_known(position: Affine, known: Mapping[Axis, int]) -> Affine:
    """A sum of axes where some are at one position."""
    own = position.refined()
    if len(own.terms) < 2 or not any(axis in known for axis, _ in own.terms):
        return position
    offset = own.offset + sum(factor * known[axis] for axis, factor in own.terms if axis in known)
    return replace(own, terms=tuple(term for term in own.terms if term[0] not in known), offset=offset)


def _moved(
    axis: Axis, position: Affine, known: Sequence[tuple[Dim, Affine]]
) -> list[tuple[Axis, Affine | None]]:
    """A tensor's axis at positions of others; leaf by leaf where no position of the whole says it, or leaves are read
    as they lie and the whole does not tell."""
    whole = position.substituted(known)
    if axis.parts is None:
        return [(axis, whole)]
    leaf_by_leaf = [
        (leaf, None if own is None else own.substituted(known)) for leaf, own in digits((axis,), position)
    ]
    if whole is None:
        return leaf_by_leaf
    tells = all(own is not None and own.is_linear for _, own in digits((axis,), whole))
    are_plain = all(own is not None and own.is_linear for _, own in leaf_by_leaf)
    return leaf_by_leaf if are_plain and not tells else [(axis, whole)]


@dataclass(frozen=True)
class View:
    """Dimensions, and the tensors that they are of: one, or several side by side. A view moves nothing.

    At every position one piece has the element, or its guards say the value.
    """

    dims: tuple[Dim, ...]
    pieces: tuple[Piece, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent_of(dim) for dim in self.dims)

    def at(
        self, positions: Iterable[Affine], guards: tuple[Guard, ...] = (), dims: tuple[Dim, ...] = ()
    ) -> View | None:
        """The view read at these positions, one for each dimension, as a view with other dimensions; None where no
        access relation says so."""
        known = list(zip(self.dims, positions, strict=True))
        pieces = [piece.substituted(known, guards) for piece in self.pieces]
        return None if None in pieces else View(dims, tuple(piece for piece in pieces if piece is not None))

    def with_dims(self, dims: Iterable[Dim]) -> View:
        """The same elements under other groupings or orders of the same axes."""
        return View(tuple(dims), self.pieces)


def beside(views: Iterable[tuple[View, Guard]]) -> tuple[Piece, ...]:
    """Pieces of several views, each with the guard that says where it is."""
    return tuple(replace(p, guards=(guard, *p.guards)) for view, guard in views for p in view.pieces)
