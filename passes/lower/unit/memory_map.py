"""Where boxes of maps lie in memories, and how tile indices become loop levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.extents import Extents, aligned
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Element, Four, View, Wrap
from frustum.dialects.tile import TensorView, Tile
from frustum.passes.analysis.project import strides_in

CHANNELS = 1
"""The dimension that may lie in blocks."""


def four(values: Sequence[int]) -> Four:
    a, b, c, d = values
    return (a, b, c, d)


@dataclass
class Placed:
    """A box of a map in some memory: where it starts in the map, its nominal extents, the map's size, strides in
    bytes; its buffer, once the loop body that allocates it is written.

    The buffer begins at position `origin` of the map (None: at `start`); with `wrap` one dimension goes around.
    """

    element: Element
    start: tuple[Affine, ...]
    extent: Extents
    bound: Extents
    strides: Four
    allocated: SSAValue | None = None
    origin: tuple[Affine, ...] | None = None
    wrap: Wrap | None = None

    @property
    def buffer(self) -> SSAValue:
        assert self.allocated is not None
        return self.allocated

    @property
    def own_view(self) -> View:
        """The view whose nominal first element is the first one of the box."""
        return self.view(self.start)

    def view(self, start: Sequence[Affine], clusters_on: int = 0) -> View:
        """The view whose nominal first element is at position `start` of the map, in the same buffer of the cluster
        `clusters_on` further."""
        offset = Affine()
        own = self.start if self.origin is None else self.origin
        for d, (position, first, stride) in enumerate(zip(start, own, self.strides, strict=True)):
            if self.wrap is None or d != self.wrap.dim:
                offset = offset + (position - first - first.cluster * clusters_on) * stride
        return View(self.element, offset, self.strides, wrap=self.wrap)

    @property
    def limits(self) -> tuple[Affine, ...]:
        """Where the box ends along each dimension."""
        return tuple(s + e for s, e in zip(self.start, self.extent, strict=True))


def byte_strides(tile: Tile) -> Four:
    size = ELEMENT_BYTES[tile.element]
    return four([s * size for s in strides_in(tile)])


def tile_bytes(tile: Tile) -> int:
    elements = 1
    for extent in tile.extents:
        elements *= extent
    return aligned(elements * ELEMENT_BYTES[tile.element])


def at_levels(value: Affine, levels: Mapping[int, Affine]) -> Affine:
    """An affine of tile indices i0..i3 as one of loop levels, of which `levels` has each index (0 where it has not)."""
    result = Affine(value.base, (), value.cluster, value.core)
    for d, coefficient in enumerate(value.loops):
        if coefficient and d in levels:
            result = result + levels[d] * coefficient
    return result


def box_at_levels(box: Box, levels: Mapping[int, Affine]) -> tuple[Affine, ...]:
    return tuple(at_levels(s, levels) for s in box.start)


def dram_view(element: Element, view: TensorView, start: Sequence[Affine], size: int) -> View:
    """The view of a DRAM tensor whose nominal first element is at position `start` of the four dimensions."""
    offset = Affine(view.offset * size)
    for d, (position, stride) in enumerate(zip(start, view.strides, strict=True)):
        steps = position if d != CHANNELS or view.block == 1 else exactly(position, view.block)
        offset = offset + steps * (stride * size)
    return View(element, offset, four([s * size for s in view.near]))


def offset_of(start: Sequence[Affine], strides: Sequence[int]) -> Affine:
    """Bytes from position 0 to `start`."""
    offset = Affine()
    for position, stride in zip(start, strides, strict=True):
        offset = offset + position * stride
    return offset


def exactly(value: Affine, divisor: int) -> Affine:
    """The value divided by what all of it is a multiple of."""
    parts = value.base, value.cluster, value.core, *value.loops
    assert all(part % divisor == 0 for part in parts), f"{value} is no multiple of {divisor}"
    loops = tuple(c // divisor for c in value.loops)
    return Affine(value.base // divisor, loops, value.cluster // divisor, value.core // divisor)


def is_shared(start: Sequence[Affine], clusters: int) -> bool:
    """Whether all clusters want the same box."""
    return clusters > 1 and not any(s.cluster for s in start)


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
