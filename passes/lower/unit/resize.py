"""The positions that a strided kernel of one tap reads, as if they were neighbours: what lies between stays in SRAM.

Source: docs/techniques/machine.md, "Matrix unit": a strided 1x1 convolution may be compacted by the copy before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.isa.program import Affine, View
from frustum.passes.lower.unit.memory_map import Placed, four


@dataclass
class Sampled(Placed):
    """Every `steps`-th row and column of a place, counted from 0 of the map: its positions are those of the result."""

    source: Placed | None = None
    steps: tuple[int, int] = (1, 1)

    @property
    def buffer(self) -> SSAValue:
        return self.whole.buffer

    @property
    def whole(self) -> Placed:
        assert self.source is not None
        return self.source

    def view(self, start: Sequence[Affine], clusters_on: int = 0) -> View:
        n, c, h, w = start
        seen = self.whole.view((n, c, h * self.steps[0], w * self.steps[1]), clusters_on)
        return replace(seen, strides=self.strides)


def sampled(place: Placed, out: Placed, steps: tuple[int, int]) -> Sampled:
    """The positions of a place that a layer's region `out` reads; raises PassFailedException for a ring, whose end may
    lie between them."""
    if place.wrap is not None or type(place) is not Placed:
        raise PassFailedException("positions of a ring are read with a stride: its pieces cannot be compacted")
    n, c, h, w = place.strides
    strides = four((n, c, h * steps[0], w * steps[1]))
    start = (*place.start[:2], *out.start[2:])
    extent, bound = (
        four((*own[:2], *of_out[2:])) for own, of_out in ((place.extent, out.extent), (place.bound, out.bound))
    )
    return Sampled(place.element, start, extent, bound, strides, source=place, steps=steps)
