# Tests: test/passes/lower/tree/test_views.py
"""Where tensors lie: buffers in SRAM and DRAM, and which positions of a tensor each holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from xdsl.ir import SSAValue

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis
from frustum.dialects.isa.program import ZERO, Affine, CopyEngine, Element, Memory, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.regions import Clip, End, Linear, Region, Term, move
from frustum.passes.lower.tree.spans import NotLowered

Run: TypeAlias = tuple[Axis, ...]
"""Axes, outermost first, with one position for all of them."""


@dataclass(frozen=True)
class Place:
    """A buffer with a box of a tensor, of which an element has `planes` numbers, one box behind the other.

    Of each axis: bytes from position to position (`strides`), the position at which the buffer begins (`origin`; 0 if
    it is not named), the positions that alone are there (`has`), if some are not, and those that alone are asked for
    (`asked`).  `ring`: an axis along which positions lie at their number modulo so many.
    """

    buffer: SSAValue
    memory: Memory
    element: Element
    strides: Mapping[Axis, int]
    origin: Mapping[Axis, Affine] = field(default_factory=dict)
    has: Mapping[Axis, Span] = field(default_factory=dict)
    ring: tuple[Axis, int] | None = None
    offset: int = 0
    planes: int = 1
    plane_bytes: int = 0
    sums: Element | None = None
    """The wider type in which sums wait here, each where its element will be; strides have room for it."""
    completes: bool = False
    """With it and the places around it all is there, though it has a part."""
    taken: int = 0
    """Bytes of SRAM, copies too."""
    is_inner: bool = False
    """The resident part lies in the middle of the result; stores of the rest store this part too."""
    is_behind: bool = False
    """What is made here goes to DRAM a pass behind."""
    box: Mapping[Axis, Span] = field(default_factory=dict)
    """What it was made for."""
    asked: Mapping[Axis, Span] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    """The layers that make and read it there."""
    running: Place | None = None
    """Of sums over what an online reduction has made so far: its numbers (`dialects/plan/carried.py`)."""

    def step(self, run: Run) -> int | None:
        """Bytes from one position to the next of axes that lie one behind the other as one; None where they do not."""
        stride, weight = self.strides[run[-1]], 1
        for axis in reversed(run):
            if axis.extent > 1 and self.strides[axis] != stride * weight:
                return None
            if self.ring is not None and self.ring[0] is axis and axis is not run[0]:
                return None
            weight *= axis.extent
        return stride

    def is_in_parts(self, axis: Axis) -> bool:
        """Whether some positions along an axis are not here, or not asked for."""
        return axis in self.has or axis in self.asked

    def end(self, at: Mapping[Run, Linear]) -> End:
        """The buffer, with axes at these positions of a region."""
        terms = list[Term]()
        for run, position in at.items():
            stride, origin, inner = self.step(run), ZERO, 1
            if stride is None:
                raise NotLowered(f"positions along {run[0].name} that do not lie one behind the other")
            for axis in reversed(run):
                origin += self.origin.get(axis, ZERO) * inner
                if axis is not run[0]:
                    inner *= axis.extent
            if self.ring is not None and self.ring[0] is run[0]:
                terms.append(Term(position, stride, self.ring[1] * inner))
            else:
                terms.append(Term(position + origin * -1, stride))
        return End(self.buffer, tuple(terms), self.offset)

    def clips(self, at: Mapping[Run, Linear]) -> Iterator[Clip]:
        """Of these positions those that are here and asked for.  NotLowered where some of an axis are that is inside
        another one."""
        for axis, has in (*self.has.items(), *self.asked.items()):
            run = next(own for own in at if axis in own)
            if run[0] is not axis:
                raise NotLowered(f"a part along {axis.name} of a tensor that is read along {run[0].name}")
            inner = math.prod(each.extent for each in run[1:])
            yield Clip(at[run] + has.start * -inner, has.extent * inner)
            yield Clip(-at[run] + (has.bound * inner - 1), None)
            if has.limit is not None:
                yield Clip(-at[run] + (has.limit * inner - 1), None)

    def through(self, index: Iterable[tuple[Axis, Position | None]]) -> Place:
        """The place of a tensor that lies where its maker reads the one that is here, position for position.
        NotLowered where it does not."""
        strides, origin, has = dict[Axis, int](), dict[Axis, Affine](), dict[Axis, Span]()
        ring, offset = None, self.offset
        for old, position in index:
            own = None if position is None else position.refined()
            first = self.origin.get(old, ZERO)
            if own is None or not own.is_linear or len(own.terms) > 1 or (not own.terms and not first.is_constant):
                raise NotLowered(f"a result in the storage of what is read along {old.name}, not position for position")
            if not own.terms:
                offset += self.strides[old] * (own.offset - first.base)
                continue
            ((new, factor),) = own.terms
            is_same = factor == 1 and not own.offset
            is_fixed = old in self.has or (self.ring is not None and self.ring[0] is old)
            if abs(factor) > 1 or (is_fixed and not is_same):
                raise NotLowered(f"a result in the storage of what is read along {old.name}, turned or moved in a ring")
            strides[new], origin[new] = self.strides[old] * factor, (first - own.offset) * factor
            if old in self.has:
                has[new] = self.has[old]
            if self.ring is not None and self.ring[0] is old:
                ring = (new, self.ring[1])
        return replace(self, strides=strides, origin=origin, has=has, ring=ring, offset=offset)

    def wide(self) -> Place:
        """The same of sums that wait."""
        return self if self.sums is None else replace(self, element=self.sums)

    def plane(self, number: int) -> Place:
        """The box of one number of each element."""
        return replace(self, offset=self.offset + number * self.plane_bytes)


def packed(
    axes: tuple[Axis, ...], spans: Mapping[Axis, Span], element: Element, ring: tuple[Axis, int] | None = None
) -> tuple[dict[Axis, int], int]:
    """Strides of a box without gaps, in bytes, and its size."""
    strides, size = dict[Axis, int](), size_of(element)
    for axis in reversed(axes):
        strides[axis] = size
        size *= ring[1] if ring is not None and ring[0] is axis else spans[axis].extent
    return strides, size


def transfer(
    code: Code, engine: CopyEngine, box: Mapping[Axis, Span], src: Place, dst: Place, conditions: Sequence[Affine] = ()
) -> None:  # fmt: skip
    """Adds the copies of a box of a tensor that both places have, in passes in which all conditions are 0 or more."""
    at: dict[Run, Linear] = {(axis,): Linear({number: 1}) for number, axis in enumerate(box)}
    region = Region.of(list(box.values())).clipped((*src.clips(at), *dst.clips(at)))
    move(code, engine, src.element, replace(region, conditions=tuple(conditions)), src.end(at), dst.end(at))
