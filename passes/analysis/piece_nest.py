"""The loop nest in which the cores of a cluster compute one layer on one tile: loops, pieces, what depends on what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.isa.program import Affine, Box, Limits, Starts
from frustum.dialects.tile import INPUTS, SAME, Access, Axis, ConvLayer, LayerKind, SubMap, Whole

GROUP, CHANNELS_IN = "g", "ci"
"""Loops that are not one of the four dimensions: groups of a convolution, chunks of input channels."""
LoopName = int | str


@dataclass(frozen=True)
class Piece:
    """What one core computes at a time, in the layer's map: nominal start, extents, where it must end."""

    start: Starts
    extent: Extents
    bound: Extents
    limit: Limits

    @property
    def box(self) -> Box:
        return Box(self.start, self.extent, self.bound, self.limit)


@dataclass(frozen=True)
class Nest:
    """Loops from the outermost (name, count), the level of the first one, and the piece."""

    loops: tuple[tuple[LoopName, int], ...]
    first_level: int
    piece: Piece
    chunk: Affine
    """First input channel of the chunk (within its group), of each core where these are dealt."""
    group: Affine
    """First output channel of the group that the piece is part of; 0 where pieces hold whole groups."""
    part_of_group: bool

    def position(self, name: LoopName) -> int | None:
        """Place of a loop in the nest; None where it has one pass only."""
        return next((i for i, (n, _) in enumerate(self.loops) if n == name), None)

    def depth(self, names: Sequence[LoopName]) -> int:
        """How many loops must be open for something that depends on these."""
        return max((i + 1 for n in names if (i := self.position(n)) is not None), default=0)

    def level(self, name: LoopName) -> int | None:
        position = self.position(name)
        return None if position is None else self.first_level + position


def of_whole_groups(access: Access) -> Access:
    """What pieces of whole groups read, where a group has as many input channels as outputs: their own channels."""
    channels = access[1]
    if not isinstance(channels, Axis) or channels.den == 1 or channels.low != 0:
        return access
    return replaced(access, 1, SAME) if channels.num == channels.den == channels.reach + 1 else access


def build(
    submap: SubMap,
    start: Sequence[Affine],
    extent: Extents,
    bound: Extents,
    layer: LayerKind,
    cores: int,
    first_level: int,
) -> Nest:
    """The nest over a region (`start`, `extent`, in a map of size `bound`)."""
    conv = layer if isinstance(layer, ConvLayer) else None
    per_group_out = bound[1] // conv.groups if conv else 0
    splits_group = conv is not None and conv.groups > 1 and submap.extent[1] < per_group_out
    space = extent if not splits_group else replaced(extent, 1, per_group_out)
    dealt = [cores if d == submap.cores else 1 for d in range(4)]
    counts: dict[LoopName, int] = {
        d: math.ceil(math.ceil(space[d] / submap.extent[d]) / dealt[d]) for d in range(4)
    }
    if conv:
        chunks = ceil_div(conv.channels, submap.channels)
        counts[CHANNELS_IN] = ceil_div(chunks, cores) if submap.cores == INPUTS else chunks
        counts[GROUP] = ceil_div(extent[1], per_group_out) if splits_group else 1
    order = _order(submap, layer)
    loops = tuple((name, counts[name]) for name in order if counts[name] > 1)
    levels = {name: first_level + i for i, (name, _) in enumerate(loops)}
    group = Affine.index(levels[GROUP], per_group_out) if GROUP in levels else Affine()

    starts, limits = [], []
    for d in range(4):
        step = submap.extent[d] * dealt[d]
        own = Affine.index(levels[d], step) if d in levels else Affine()
        if dealt[d] > 1:
            own = own + Affine(core=submap.extent[d])
        origin = start[d] + group if d == 1 else start[d]
        starts.append(origin + own)
        overshoots = counts[d] * step > space[d]
        limits.append(
            origin + space[d]
            if overshoots and _limit_matters(start[d], space[d], bound[d], splits_group)
            else None
        )
    together = submap.channels * (cores if submap.cores == INPUTS else 1)
    chunk = Affine.index(levels[CHANNELS_IN], together) if CHANNELS_IN in levels else Affine()
    if submap.cores == INPUTS and cores > 1:
        chunk = chunk + Affine(core=submap.channels)
    piece = Piece(tuple(starts), submap.extent, bound, tuple(limits))
    return Nest(loops, first_level, piece, chunk, group, splits_group)


def _order(submap: SubMap, layer: LayerKind) -> list[LoopName]:
    if not isinstance(layer, ConvLayer):
        return [*(d for d in range(4) if d not in layer.reduced), *layer.reduced]
    channels: list[LoopName] = [GROUP, 1]
    space: list[LoopName] = [0, 2, 3]
    if submap.in_rounds:
        return [CHANNELS_IN, *channels, *space]
    outer = [*space, *channels] if submap.outer == "space" else [*channels, *space]
    return [*outer, CHANNELS_IN]


def _limit_matters(start: Affine, extent: int, bound: int, splits_group: bool) -> bool:
    """A region that ends where the map ends needs no limit of its own."""
    return splits_group or not start.is_constant or start.base + extent < bound


def needs(access: Access, piece: Piece) -> tuple[Starts, Extents]:
    """Where the part of an operand starts that a piece needs, and its nominal extents."""
    starts = tuple(axis.start(s) for axis, s in zip(access, piece.start, strict=True))
    return starts, tuple(axis.extent(e) for axis, e in zip(access, piece.extent, strict=True))


def depends(access: Access, *, channels: Sequence[LoopName] = (GROUP, 1)) -> list[LoopName]:
    """The loops that move an operand's piece."""
    names: list[LoopName] = []
    for d, axis in enumerate(access):
        if not isinstance(axis, Whole):
            names.extend(channels if d == 1 else [d])
    return names


def passes(nest: Nest) -> int:
    return math.prod(count for _, count in nest.loops)
