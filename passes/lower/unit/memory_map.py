# Tests: test/runtime/time/test_timing_model.py
"""Where boxes of maps lie in memories, and how tile indices become loop levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects.extents import Extents, aligned
from frustum.dialects.isa import program as p
from frustum.dialects.tile import TensorView, Tile
from frustum.passes.analysis.project import memory_order, strides_in

CHANNELS = 1
"""The dimension that may lie in blocks."""

NOTHING_BEFORE = p.Affine()


class Tags(TypedDict):
    """Numbers of a layer and a unit, for reports."""

    layer: int
    unit: int


class StagedTags(Tags):
    """What every instruction of a layer has."""

    stage: int


@dataclass
class Placed:
    """A box of a map in some memory: where it starts in the map, its nominal extents, the map's size, strides in
    bytes; its buffer, once it has one.

    The buffer begins at position `origin` of the map (None: at `start`); with `wrap` one dimension goes around;
    `before`: bytes before the box where the buffer holds several.
    """

    element: p.Element
    start: p.Starts
    extent: Extents
    bound: Extents
    strides: Extents
    allocated: SSAValue | None = None
    origin: p.Starts | None = None
    wrap: p.Wrap | None = None
    before: p.Affine = NOTHING_BEFORE

    @property
    def buffer(self) -> SSAValue:
        assert self.allocated is not None
        return self.allocated

    @property
    def own_view(self) -> p.View:
        """The view whose nominal first element is the first one of the box."""
        return self.view(self.start)

    def view(self, start: Sequence[p.Affine], clusters_on: int = 0) -> p.View:
        """The view whose nominal first element is at position `start` of the map, in the same buffer of the cluster
        `clusters_on` further."""
        offset = self.before
        own = self.start if self.origin is None else self.origin
        for d, (position, first, stride) in enumerate(zip(start, own, self.strides, strict=True)):
            if self.wrap is None or d != self.wrap.dim:
                offset = offset + (position - first - first.cluster * clusters_on) * stride
        return p.View(self.element, offset, self.strides, wrap=self.wrap)


@dataclass(frozen=True)
class CoreBuffer:
    """A buffer of a core, and where the elements of a box lie in it."""

    alloc: isa.AllocOp
    view: p.View

    def along(self, **steps: int) -> p.View:
        """The view with other strides of some dimensions (d0 to d3)."""
        strides = tuple(steps.get(f"d{d}", own) for d, own in enumerate(self.view.strides))
        return replace(self.view, strides=strides)


def byte_strides(tile: Tile) -> Extents:
    return tuple(s * p.ELEMENT_BYTES[tile.element] for s in strides_in(tile))


def tile_bytes(tile: Tile) -> int:
    return int(aligned(math.prod(tile.extents) * p.ELEMENT_BYTES[tile.element]))


def packed(like: Placed, start: p.Starts, extent: Extents, element: p.Element | None = None) -> Placed:
    """A box of the same map without gaps, its dimensions in the same order."""
    tile = Tile(element or like.element, extent, memory_order(like.strides, like.extent))
    return Placed(tile.element, start, extent, like.bound, byte_strides(tile))


def allocate(placed: Placed, memory: p.Memory, copies: int) -> isa.AllocOp:
    """A buffer that a box begins, of so many copies."""
    size = math.prod(placed.extent) * p.ELEMENT_BYTES[placed.element]
    alloc = isa.AllocOp(memory, aligned(size), copies)
    placed.allocated = alloc.buffer
    return alloc


def copied(
    engine: p.CopyEngine, source: Placed, target: Placed, box: p.Box, tags: Tags, *, multicast: bool = False
) -> Operation:
    """A copy of a box of a map from where it lies to where it is to lie."""
    seen, own = source.view(box.start), target.view(box.start)
    copy = isa.Copy(engine=engine, src_view=seen, dst_view=own, box=box, multicast=multicast)
    return isa.emit(copy, source.buffer, target.buffer, **tags)


def at_levels(value: p.Affine, levels: Mapping[int, p.Affine]) -> p.Affine:
    """An affine of tile indices i0..i3 as one of loop levels, of which `levels` has each index (0 where it has not)."""
    result = p.Affine(value.base, (), value.cluster, value.core)
    for d, coefficient in enumerate(value.loops):
        if coefficient and d in levels:
            result = result + levels[d] * coefficient
    return result


def box_at_levels(box: p.Box, levels: Mapping[int, p.Affine]) -> p.Starts:
    return tuple(at_levels(s, levels) for s in box.start)


def dram_view(element: p.Element, view: TensorView, start: Sequence[p.Affine], size: int) -> p.View:
    """The view of a DRAM tensor whose nominal first element is at position `start` of the four dimensions."""
    offset = p.Affine(view.offset * size)
    for d, (position, stride) in enumerate(zip(start, view.strides, strict=True)):
        steps = position if d != CHANNELS or view.block == 1 else exactly(position, view.block)
        offset = offset + steps * (stride * size)
    return p.View(element, offset, tuple(s * size for s in view.near))


def in_dram(tensor: SSAValue, element: p.Element, dims: Extents, strides: Extents) -> Placed:
    """All of a tensor; strides in elements."""
    size = p.ELEMENT_BYTES[element]
    return Placed(element, (p.Affine(),) * len(dims), dims, dims, tuple(s * size for s in strides), tensor)


def exactly(value: p.Affine, divisor: int) -> p.Affine:
    """The value divided by what all of it is a multiple of."""
    parts = value.base, value.cluster, value.core, *value.loops
    assert all(part % divisor == 0 for part in parts), f"{value} is no multiple of {divisor}"
    loops = tuple(c // divisor for c in value.loops)
    return p.Affine(value.base // divisor, loops, value.cluster // divisor, value.core // divisor)


def is_shared(start: Sequence[p.Affine], clusters: int) -> bool:
    """Whether all clusters want the same box."""
    return clusters > 1 and not any(s.cluster for s in start)


@dataclass
class Sampled(Placed):
    """Every `steps`-th row and column of a place, counted from 0 of the map: its positions are those of the result."""

    source: Placed | None = None
    steps: Extents = (1, 1)

    @property
    def buffer(self) -> SSAValue:
        return self.whole.buffer

    @property
    def whole(self) -> Placed:
        assert self.source is not None
        return self.source

    def view(self, start: Sequence[p.Affine], clusters_on: int = 0) -> p.View:
        n, c, h, w = start
        seen = self.whole.view((n, c, h * self.steps[0], w * self.steps[1]), clusters_on)
        return replace(seen, strides=self.strides)


def sampled(place: Placed, out: Placed, steps: Extents) -> Sampled:
    """The positions of a place that a layer's region `out` reads; raises PassFailedException for a ring, whose end may
    lie between them."""
    if place.wrap is not None or type(place) is not Placed:
        raise PassFailedException("positions of a ring are read with a stride: its pieces cannot be compacted")
    n, c, h, w = place.strides
    strides = (n, c, h * steps[0], w * steps[1])
    start = (*place.start[:2], *out.start[2:])
    extent, bound = (*place.extent[:2], *out.extent[2:]), (*place.bound[:2], *out.bound[2:])
    return Sampled(place.element, start, extent, bound, strides, source=place, steps=steps)
