# Tests: test/passes/lower/tree/test_views.py
"""Outputs of a network as views of tensors: where in an output's buffer the positions of a tensor lie.

A tensor that an output has once, position for position, has its home there. What cannot be a home is written when the
tensor is stored, or from where the network finds it, if no layer makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Piece, View
from frustum.dialects.axes.axis import Axis, leaves, weights
from frustum.dialects.axes.network import Operand
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ELEMENT_BYTES, ZERO, Affine, Element, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import CopyDim, Side, copy
from frustum.passes.lower.tree.fetch import FetchDim, Fetched, fetch, linear
from frustum.passes.lower.tree.places import Place, transfer
from frustum.passes.lower.tree.regions import Clip, End, Region, move
from frustum.passes.lower.tree.spans import through, whole


@dataclass(frozen=True)
class OutputPart:
    """What an output has of one tensor.  `window`: the same as a place, if positions lie there as in a buffer."""

    piece: Piece
    into: Fetched
    window: Place | None

    @property
    def tensor(self) -> Tensor:
        return self.piece.tensor

    def read_along(self, axis: Axis) -> Span:
        """What it has of the positions along an axis of the tensor."""
        position = dict(self.piece.by_leaf)[axis]
        return whole(axis) if position is None else through(position, axis.extent, {})

    def store(self, code: Code, box: Mapping[Axis, Span], place: Place, conditions: Sequence[Affine] = ()) -> None:
        """Writes what of a box in SRAM the output has."""
        if self.window is not None:
            transfer(code, "gdma", box, place, self.window, conditions)
            return
        own = replace(place, asked=box)
        fetch(code, "gdma", Operand((self.piece,)), replace(self.into, conditions=tuple(conditions)), lambda _: [own])


@dataclass(frozen=True)
class OutputView:
    """An output: its buffer, with a dimension for each axis of its view."""

    view: View
    into: Fetched

    @staticmethod
    def of(view: View, buffer: SSAValue, element: Element) -> OutputView:
        size = ELEMENT_BYTES[element]
        steps = weights(leaves(axis for own in view.dims for axis in own))
        dims = (FetchDim(Position.of(axis), whole(axis), step * size) for axis, step in steps.items())
        return OutputView(view, Fetched(buffer, element, tuple(dims)))

    def parts(self) -> Iterator[OutputPart]:
        for piece in self.view.pieces:
            bare = replace(piece, guards=tuple(replace(guard, fill=None) for guard in piece.guards))
            yield OutputPart(bare, self.into, window(bare, self.into))

    def write_values(self, code: Code) -> None:
        """Writes the values that are no tensor's."""
        near: dict[float, SSAValue] = {}
        written = list[Region]()  # what is around several pieces is around each
        spans = [dim.span for dim in self.into.dims]
        for piece in self.view.pieces:
            known = list[Clip]()
            for guard in piece.guards if any(guard.fill is not None for guard in piece.guards) else ():
                value = linear(guard.position, self.into.dims)
                for beyond in (-value + (guard.start - 1), value + -guard.stop) if guard.fill is not None else ():
                    region = Region.of(spans).clipped([*known, Clip(beyond, None)])
                    if region not in written and region.cut(code) is not None and guard.fill is not None:
                        written.append(region)
                        if guard.fill not in near:
                            near[guard.fill] = constant(code, guard.fill, self.into)
                        src = End(near[guard.fill], ())
                        move(code, "gdma", self.into.element, region, src, self.into.end())
                known.append(Clip(value + -guard.start, guard.stop - guard.start))


def constant(code: Code, value: float, into: Fetched) -> SSAValue:
    """A buffer in SRAM with one element of this value."""
    buffer = code.allocate("sram", ELEMENT_BYTES[into.element])
    copy(code, "gdma", (into.buffer, buffer), into.element, [CopyDim(Span(ZERO, 1, 0), Side(0), Side(0))], value)
    return buffer


# ------------------------------------------------------------ windows


def window(piece: Piece, into: Fetched) -> Place | None:
    """A tensor's positions as they lie in an output; None where some lie there several times, or not side by side."""
    steps = {dim.coordinate.terms[0][0]: dim.stride for dim in into.dims}
    known, dealt, offset = _known(piece), _dealt(piece), 0
    for axis, each in dealt.items():
        step = steps.pop(axis)
        steps[each.axis], offset = step * each.factor, offset + step * each.first
    there = _ranges(piece, steps, known, dealt)
    strides, has, moved = dict[Axis, int](), dict[Axis, Span](), set[Axis]()
    for axis, whole_position in piece.by_leaf:
        position = None if whole_position is None else _among(_at(whole_position.refined(), known), dealt)
        found = None if position is None else _inverted(position, steps, there)
        if there is None or found is None or position is None:
            return None
        stride, (low, high) = found
        strides[axis], offset = stride, offset - stride * position.offset
        if low > 0 or high < axis.extent:
            first = max(0, low)
            has[axis] = Span(Affine(first), max(0, min(high, axis.extent) - first), axis.extent)
        own = {each for each, _ in position.terms}
        if own & moved:
            return None
        moved |= own
    offset += sum(steps[axis] * at for axis, at in known.items())
    for axis, (low, high) in (there or {}).items():
        if axis not in moved and axis not in known:
            if high - low != 1:
                return None
            offset += steps[axis] * low
    return Place(into.buffer, "dram", into.element, strides, has=has, offset=offset)


def _known(piece: Piece) -> dict[Axis, int]:
    """Axes of the output along which the piece is at one position, as a guard of several axes says."""
    found = dict[Axis, int]()
    for guard in piece.guards:
        own = guard.position.refined()
        if not own.is_linear or len(own.terms) < 2:
            continue
        *inner, (axis, factor) = sorted(own.terms, key=lambda term: term[1])
        low, high = Position(tuple(inner), own.offset).hull({})
        first, rest = divmod(guard.start - low, max(1, factor))
        is_one = factor > 0 and not rest and guard.stop - guard.start == factor and high - low <= factor
        if is_one and 0 <= first < axis.extent:
            found[axis] = first
    return found


def _at(own: Position, known: Mapping[Axis, int]) -> Position:
    """A position where some axes are at one of theirs; without rounding where that is not needed then."""
    if not any(axis in known for axis, _ in own.terms):
        return own
    offset = own.offset + sum(factor * known[axis] for axis, factor in own.terms if axis in known)
    found = replace(own, terms=tuple(term for term in own.terms if term[0] not in known), offset=offset)
    if found.is_linear or found.bend not in ("", "wrap"):
        return found
    bare = replace(found, divisor=1, bend="", extent=0)
    _, high = found.hull({})
    return bare.digit(found.divisor, found.extent or max(1, high), is_first=not found.bend) or found


@dataclass(frozen=True)
class _Dealt:
    """Every so-manieth position along an axis of an output, from the first on, as an axis."""

    axis: Axis
    factor: int
    first: int


def _dealt(piece: Piece) -> dict[Axis, _Dealt]:
    """The axes of the output of which the piece has every so-manieth position, as a guard says."""
    found = dict[Axis, _Dealt]()
    for guard in piece.guards:
        own = guard.position.refined()
        if own.bend == "wrap" and own.divisor == 1 and guard.stop - guard.start == 1 and len(own.terms) == 1:
            ((axis, factor),) = own.terms
            first = (guard.start - own.offset) % own.extent
            if factor == 1 and axis not in found and first < axis.extent:
                count = ceil_div(axis.extent - first, own.extent)
                found[axis] = _Dealt(Axis(axis.name, count), own.extent, first)
    return found


def _among(own: Position, dealt: Mapping[Axis, _Dealt]) -> Position:
    """A position that counts such positions along an axis; as it is where it does not."""
    if len(own.terms) == 1 and own.terms[0][0] in dealt and own.terms[0][1] == 1:
        each = dealt[own.terms[0][0]]
        if own.divisor == each.factor and not own.bend:
            return Position.of(each.axis, 1, (each.first + own.offset) // each.factor)
        if own.bend == "wrap" and own.divisor == 1 and own.extent == each.factor:
            return Position(offset=(each.first + own.offset) % each.factor)
    return own


def _ranges(
    piece: Piece, steps: Mapping[Axis, int], known: Mapping[Axis, int], dealt: Mapping[Axis, _Dealt]
) -> dict[Axis, tuple[int, int]] | None:  # fmt: skip
    """The positions along each axis of the output at which the piece is; None where they are no box."""
    found = {axis: (0, axis.extent) for axis in steps}
    for guard in piece.guards:
        own = _among(_at(guard.position.refined(), known), dealt)
        low, high = own.hull({})
        if guard.start <= low and high <= guard.stop:
            continue
        if not own.is_linear or len(own.terms) != 1 or abs(own.terms[0][1]) != 1 or own.terms[0][0] not in found:
            return None
        ((axis, factor),) = own.terms
        ends = [factor * (each - own.offset) for each in (guard.start, guard.stop - 1)]
        found[axis] = max(found[axis][0], min(ends)), min(found[axis][1], max(ends) + 1)
    return found


def _inverted(
    own: Position, steps: Mapping[Axis, int], there: Mapping[Axis, tuple[int, int]] | None
) -> tuple[int, tuple[int, int]] | None:  # fmt: skip
    """Bytes from one position along a tensor's axis to the next, and the positions that there are."""
    if there is None or not own.is_linear or any(axis not in steps for axis, _ in own.terms):
        return None
    if not own.terms:
        return 0, (own.offset, own.offset + 1)
    (axis, factor), *others = sorted(own.terms, key=lambda term: abs(term[1]))
    if not others:
        return (steps[axis] * factor, own.hull(there)) if abs(factor) == 1 else None
    reach = 1
    for each, weight in ((axis, factor), *others):
        if weight != reach or there[each] != (0, each.extent) or steps[each] != steps[axis] * weight:
            return None
        reach *= each.extent
    return steps[axis], own.hull(there)


__all__ = ["OutputPart", "OutputView", "window"]
