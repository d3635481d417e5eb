# Tests: test/passes/lower/tree/test_lower_plan.py
"""Where tensors lie: buffers in SRAM and DRAM, and which positions of a tensor each holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from frustum.dialects.axes.axis import Axis
from frustum.dialects.isa.program import ZERO, Affine, Element, Memory, Span
from frustum.passes.lower.tree.copies import Side, size_of
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

    def plane(self, number: int) -> Place:
        """The box of one number of each element."""
        from dataclasses import replace

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
