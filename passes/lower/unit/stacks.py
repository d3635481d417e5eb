# Tests: test/pipeline/test_volumes.py
"""Slices of a volume with their neighbours beside them as channels: a piece is loaded as it is to be, the slices of
each tap of the kernel by a strided copy of their own, which writes zeros for those that there are not.

Source: docs/techniques/machine.md, "Transfers" (padding fill on the way).
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import Operation

from frustum.dialects import isa
from frustum.dialects.extents import ceil_div, replaced
from frustum.dialects.isa.program import Affine, Box, View
from frustum.dialects.tile import StackLayer
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.analysis.layer import SAME4
from frustum.passes.lower.unit.layer_nest import LayerNest, PieceLoad, copies
from frustum.passes.lower.unit.memory_map import CHANNELS, Placed, allocate, exactly, packed

IMAGES = 0


def stacked_piece(low: LayerNest, stack: StackLayer, k: int) -> PieceLoad:
    """Operand k as a piece of the result."""
    own, depth = low.piece, low.nest.depth(nests.depends(SAME4))
    piece = packed(low.out, own.start, low.map.extent)
    ops: list[Operation] = [allocate(piece, "nram", copies(depth))]
    for tap in range(stack.kernel):
        source, box = slices_of_tap(low, stack, low.tiles[k], tap)
        stride = piece.strides[CHANNELS]
        target = View(
            piece.element, Affine(tap * stride), replaced(piece.strides, CHANNELS, stride * stack.kernel)
        )
        copy = isa.Copy(engine="mvdma", src_view=source, dst_view=target, box=box, fill=0.0)
        ops.append(isa.emit(copy, low.tiles[k].buffer, piece.buffer, **low.site.tags))
    return PieceLoad(depth, piece, ops)


def slices_of_tap(low: LayerNest, stack: StackLayer, tile: Placed, tap: int) -> tuple[View, Box]:
    """The slices that one tap reads, one for each slice of the piece: their view in the operand's tile, and their box
    among every stride-th slice of the map."""
    own, by = low.piece, stack.stride
    before, first = divmod(tap * stack.dilation - stack.pad, by)
    channels = exactly(own.start[CHANNELS], stack.kernel)
    seen = tile.view((own.start[IMAGES] * by + (before * by + first), channels, *own.start[2:]))
    seen = replace(seen, strides=replaced(seen.strides, IMAGES, seen.strides[IMAGES] * by))
    start = (own.start[IMAGES] + before, channels, *own.start[2:])
    extent = replaced(low.map.extent, CHANNELS, ceil_div(low.map.extent[CHANNELS], stack.kernel))
    bound = replaced(tile.bound, IMAGES, ceil_div(tile.bound[IMAGES] - first, by))
    limit = low.limits_of(0)
    slices, last = own.limit[IMAGES], own.limit[CHANNELS]
    limit = replaced(limit, IMAGES, None if slices is None else slices + before)
    limit = replaced(limit, CHANNELS, None if last is None else exactly(last, stack.kernel))
    return seen, Box(start, extent, bound, limit)
