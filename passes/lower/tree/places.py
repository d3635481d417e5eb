# Tests: test/passes/lower/tree/test_lower_plan.py
"""Where tensors lie: buffers in SRAM and DRAM, and which positions of a tensor each holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.ir import SSAValue

from frustum.dialects.axes.axis import Axis
from frustum.dialects.isa.program import ZERO, Affine, CopyEngine, Element, Memory, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import Side, size_of
from frustum.passes.lower.tree.regions import Clip, End, Linear, Region, Term, move
from frustum.passes.lower.tree.spans import NotLowered


@dataclass(frozen=True)
class Place:
    """A buffer with a box of a tensor, of which an element has `planes` numbers, one box behind the other.

    Of each axis: bytes from position to position (`strides`), the position at which the buffer begins (`origin`; 0 if
    it is not named), the positions that alone are there (`has`), if some are not.  `ring`: an axis along which
    positions lie at their number modulo so many.
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
    completes: bool = False
    """With it and the places around it all is there, though it has a part."""
    taken: int = 0
    """Bytes of SRAM, copies too."""

    def side(self, axis: Axis, start: Affine, factor: int = 1) -> Side:
        """How positions of an axis lie here, every `factor`-th from a nominal start on.  NotLowered where parts of the
        axis do not lie one behind the other."""
        stride, origin, ring, weight = self.strides[axis.leaves[-1]], ZERO, 0, 1
        for leaf in reversed(axis.leaves):
            if leaf.extent > 1 and self.strides[leaf] != stride * weight:
                raise NotLowered(f"positions along {axis.name} that do not lie one behind the other")
            origin += self.origin.get(leaf, ZERO) * weight
            if self.ring is not None and self.ring[0] is leaf:
                ring = self.ring[1] * weight
            weight *= leaf.extent
        if ring:
            return Side(stride, ZERO, ring)
        return Side(stride * factor, (start - origin) * stride)

    def end(self, at: Mapping[Axis, Linear]) -> End:
        """The buffer, with axes (leaves, or all of the leaves of one) at these positions of a region."""
        terms = list[Term]()
        for axis, position in at.items():
            side = self.side(axis, ZERO)
            terms.append(Term(position, side.stride, side.ring))
            if not side.ring:
                terms.append(Term(Linear({}, side.offset), 1))
        return End(self.buffer, tuple(terms), self.offset)

    def clips(self, at: Mapping[Axis, Linear]) -> Iterator[Clip]:
        """Of these positions those that are here.  NotLowered where some of an axis are that is inside another one."""
        for leaf, has in self.has.items():
            axis = next(own for own in at if leaf in own.leaves)
            if axis.leaves[0] is not leaf:
                raise NotLowered(f"a part along {leaf.name} of a tensor that is read along {axis.name}")
            inner = axis.extent // leaf.extent
            yield Clip(at[axis] + has.start * -inner, has.extent * inner)
            yield Clip(-at[axis] + (has.bound * inner - 1), None)
            if has.limit is not None:
                yield Clip(-at[axis] + (has.limit * inner - 1), None)

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
    at = {axis: Linear({number: 1}) for number, axis in enumerate(box)}
    region = Region.of(list(box.values())).clipped((*src.clips(at), *dst.clips(at)))
    move(code, engine, src.element, replace(region, conditions=tuple(conditions)), src.end(at), dst.end(at))
