"""Channel shuffles: no computation, only copies of every group's channels to where they are to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from xdsl.ir import Block
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.isa.program import Affine, Box, View
from frustum.dialects.tile import Tile
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.analysis.layer import SAME4
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.unit.memory_map import Placed, byte_strides, exactly, four, tile_bytes

if TYPE_CHECKING:
    from frustum.passes.lower.unit.layer import LayerLowering

SHUFFLE = "shuffle"
"""The kind of layer that only moves channels."""


def load_groups(low: LayerLowering, k: int) -> Placed:
    """The piece of a shuffle is loaded as it is to be: channel `i * groups + j` of the result is channel i of group
    j.  So every group is a strided copy."""
    tile, groups = low.tiles[k], low.params["groups"]
    n, channels, h, w = low.map.extent
    result = Tile(low.out.element, low.map.extent, memory_order(low.out.strides, low.out.extent))
    strides = byte_strides(result)
    spread = four([strides[0], strides[1] * groups, *strides[2:]])
    piece = Placed(tile.element, low.piece.start, low.map.extent, tile.bound, strides)
    limits = low.load_limits(k)

    def emit(block: Block, stage: int) -> None:
        piece.allocated = low.alloc(block, "nram", tile_bytes(result), depth)
        for group in range(groups):
            first, end = of_group(low, group, groups)
            start = (low.piece.start[0], first, *low.piece.start[2:])
            box = Box(
                cast(Any, start),
                four([n, channels // groups, h, w]),
                tile.bound,
                (limits[0], end, limits[2], limits[3]),
            )
            view = View(tile.element, Affine(group * strides[1]), spread)
            low.copy(block, "mvdma", tile.buffer, piece.buffer, tile.view(start), view, box, stage)

    depth = low.nest.depth(nests.depends(SAME4))
    low.load_at(depth, emit)
    return piece


def of_group(low: LayerLowering, group: int, groups: int) -> tuple[Affine, Affine]:
    """Of the channels of one group that go into a shuffled piece: the first, and where they end at the latest."""
    per_group = low.out.bound[1] // groups
    limit = low.piece.limit[1]
    end = Affine(per_group) if limit is None else exactly(limit, groups)
    if not end.is_constant:
        raise PassFailedException("the channels of a shuffle are not cut into tiles")
    end = Affine(min(per_group, end.base))
    return exactly(low.piece.start[1], groups) + group * per_group, end + group * per_group
