# Tests: test/passes/lower/tree/test_lower_plan.py
"""Windows: positions of an operand that are sums of positions of the result and of taps.

A window's coordinate is what all reads of it are multiples of: a map whose rows are taken apart by phases is read at
twice the coordinate, a mirrored end at its negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Guard, Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.isa.program import Span
from frustum.passes.lower.tree.fetch import FetchDim
from frustum.passes.lower.tree.spans import NotLowered

Padding: TypeAlias = Callable[[int, Guard], bool]
"""Whether what lies beyond a guard is the padding of a window, by its number."""


@dataclass(frozen=True)
class Window:
    """A dimension of windows: axes of the result, the tap, and the sum of both that operands are read along."""

    made: tuple[Axis, ...]
    tap: Axis
    coordinate: Position

    @property
    def stride(self) -> int:
        terms = dict(self.coordinate.terms)
        return abs(terms[self.made[-1]]) if self.made else 1

    @property
    def dilation(self) -> int:
        return abs(dict(self.coordinate.terms)[self.tap])


def windows_of(layer: Layer, operand: int) -> Iterator[Window]:
    """The windows of an operand, in the order of the result's axes.  Rows and columns that are read as one position
    are those that guards tell apart."""
    found, several = dict[Axis, Window](), set[Axis]()
    for piece in layer.operands[operand].pieces:
        for position in _positions(piece):
            own = position.refined()
            taps = [axis for axis, _ in own.terms if axis.is_tap]
            if not taps:
                continue
            if len(taps) > 1:
                several.update(taps)
                continue
            moved = {axis for axis, _ in own.terms} - {taps[0]}
            made = tuple(axis for axis in layer.result.axes if axis in moved)
            if len(made) < len(moved):
                raise NotLowered(f"{layer.name}: windows along what is summed")
            window = Window(made, taps[0], _coordinate(own))
            if found.setdefault(taps[0], window) != window:
                raise NotLowered(f"{layer.name}: several tensors are read by windows of several kinds")
    if several - found.keys():
        raise NotLowered(f"{layer.name}: windows that are no plain ones")
    order = {axis: k for k, axis in enumerate(layer.result.axes)}
    yield from sorted(found.values(), key=lambda each: min((order[axis] for axis in each.made), default=-1))


def _positions(piece: Piece) -> Iterator[Position]:
    yield from (guard.position for guard in piece.guards)
    yield from (position for _, position in piece.index)


def _coordinate(own: Position) -> Position:
    """The sum that a position is a multiple of, but for where it begins."""
    factor = math.gcd(*(each for _, each in own.terms))
    first = min(own.terms, key=lambda term: term[0].is_tap)
    sign = -1 if first[1] < 0 else 1
    terms = sorted(((axis, sign * each // factor) for axis, each in own.terms), key=lambda term: term[0].is_tap)
    return Position(tuple(terms))


def factor_of(position: Position, coordinate: Position) -> int:
    """How often a coordinate is in a position; 0 where the position is none of its multiples."""
    own, terms = dict(position.refined().terms), dict(coordinate.terms)
    factors = {own.get(axis, 0) // each if own.get(axis, 0) % each == 0 else 0 for axis, each in terms.items()}
    return factors.pop() if len(factors) == 1 and own.keys() == terms.keys() else 0


def window_of(
    layer: Layer, operand: int, coordinate: Position, dims: Sequence[FetchDim], is_padding: Callable[[Guard], bool]
) -> tuple[Span, int]:  # fmt: skip
    """Positions that windows read of an operand, 0 being the first that is there, and bytes between them.  What lies
    beyond guards that are padding is not there; other values lie in the buffer."""
    dim = next(dim for dim in dims if dim.coordinate == coordinate)
    ranges = [own for piece in layer.operands[operand].pieces if (own := inside(piece, coordinate, is_padding))]
    low, high = coordinate.hull({})
    if ranges:
        low, high = min(first for first, _ in ranges), max(stop for _, stop in ranges)
    return Span(dim.span.start - low, dim.span.extent, max(1, high - low)), dim.stride


def inside(piece: Piece, coordinate: Position, is_padding: Callable[[Guard], bool]) -> tuple[int, int] | None:
    """The positions along a coordinate beyond which is padding; None where the piece is not read along it."""
    low, high = coordinate.hull({})
    is_read = False
    for position in (*(guard.position for guard in piece.guards), *(each for _, each in piece.index)):
        is_read |= bool(factor_of(position, coordinate))
    for guard in piece.guards:
        factor = factor_of(guard.position, coordinate)
        if factor > 0 and guard.position.is_linear and is_padding(guard):
            offset = guard.position.refined().offset
            low = max(low, -((offset - guard.start) // factor))
            high = min(high, (guard.stop - 1 - offset) // factor + 1)
    return (low, high) if is_read else None


def is_padded(
    layer: Layer, operand: int, coordinates: Sequence[Position], value: float, is_padding: Padding
) -> bool:  # fmt: skip
    """Whether all that lies beyond an operand's ends is the padding of windows, where the instruction itself takes it
    as this value."""
    (piece, *others) = layer.operands[operand].pieces
    filled = [guard for guard in piece.guards if guard.fill is not None]
    found = [
        [k for k, each in enumerate(coordinates) if factor_of(guard.position, each) == 1 and is_padding(k, guard)]
        for guard in filled
    ]  # fmt: skip
    is_plain = all(guard.fill == value and guard.position.is_linear for guard in filled)
    return not others and is_plain and all(found) and len({k for (k, *_) in found}) == len(found)


__all__ = ["Window", "inside", "is_padded", "window_of", "windows_of"]
