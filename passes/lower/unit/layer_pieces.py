# Tests: test/pipeline/test_stops_agree.py
"""One layer on one tile, in the pieces that cores hold: what they are of, their buffers, the copies that fill them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, Region
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects.extents import Extents, aligned, ceil_div, replaced
from frustum.dialects.isa.program import (
    ELEMENT_BYTES,
    Affine,
    Box,
    Element,
    Limits,
    Memory,
    Starts,
    View,
)
from frustum.dialects.tile import (
    SAME,
    Access,
    ComputeOp,
    ConvLayer,
    PickLayer,
    ShuffleLayer,
    StackLayer,
    SubMap,
    Whole,
    WrapLayer,
)
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.analysis.layer import SAME4
from frustum.passes.analysis.piece_nest import CHANNELS_IN, GROUP, LoopName, Nest
from frustum.passes.lower.unit import borders
from frustum.passes.lower.unit.layer_nest import (
    LayerNest,
    MapSource,
    PieceLoad,
    Site,
    WeightSource,
    copies,
    filled,
    replaced_all,
    spread,
)
from frustum.passes.lower.unit.memory_map import (
    CHANNELS,
    Placed,
    allocate,
    at_levels,
    copied,
    dram_view,
    exactly,
    packed,
)
from frustum.passes.lower.unit.partial_sums import PartialSums
from frustum.passes.lower.unit.raster import RasterPlaced, parts_of

IMAGES = 0
MAP, RESIDUAL = 0, 1
"""The operands of a product."""
OUTPUTS, INPUT = 0, 1
"""The dimensions of output and of input channels of weights."""
EMPTY = 4
"""Times the outputs that there are by which the limit of a box falls in each pass, so that it is empty."""


class LayerPieces(LayerNest):
    """The same with buffers in the cores: of operands, by name of what there is per output channel, of what is made and
    of wider partial sums, of the result; they differ where the cores add their sums.  `in_core`: the operands,
    by number, that the run has made there, in their places."""

    def __init__(
        self,
        op: ComputeOp,
        tiles: Sequence[Placed],
        out: Placed,
        weights: WeightSource | None,
        vectors: dict[str, Placed],
        site: Site,
        in_core: Mapping[int, Placed] = MappingProxyType({}),
        cut: tuple[SubMap, Nest] | None = None,
        sources: Mapping[int, MapSource] = MappingProxyType({}),
    ):
        super().__init__(op, tiles, out, site, cut)
        self.streams: list[PieceLoad] = [channels_of_map(self, sources[MAP])] if MAP in sources else []
        added = residual_of_last_round(self, sources[RESIDUAL]) if RESIDUAL in sources else []
        read = range(MAP + 1 if self.continues else len(self.tiles))
        own = [k for k in read if k not in in_core]
        loaded = {k: added[1] if k in sources and k == RESIDUAL else self.load(k) for k in own}
        self.loads: list[PieceLoad] = list(loaded.values())
        self.pieces: list[Placed] = [in_core[k] if k in in_core else loaded[k].placed for k in read]
        if self.streams and self.loads[0].depth > self.streams[0].depth:  # read in a body further inside
            self.loads.insert(0, self.streams.pop())
        is_kept = self.map.weights == "core"
        of_weights = [stream(self, weights)] if weights and not weights.held and not is_kept else []
        self.streams += [*added[:1], *of_weights]
        self.kept: list[Operation] = []
        """Buffers that stay, and what fills them: they are made outside of the loops over tiles."""
        self.weight_piece: Placed | None = None
        if weights is not None and is_kept:
            self.weight_piece, self.kept = kept_pieces(self, weights)
        elif weights is not None:
            self.loads.append(weight_piece(self, weights, weights.held or of_weights[0].placed))
            self.weight_piece = self.loads[-1].placed
            if site.keeps_weights and not self.loads[-1].depth:
                alloc, *filling = self.loads[-1].ops
                self.kept, self.loads[-1] = [alloc], replace(self.loads[-1], ops=filling)
        is_apart = self.is_summed or (bool(of_weights) and [*vectors] == ["bias"])
        named = {name: vector_piece(self, held, "nram" if is_apart else "wram") for name, held in vectors.items()}
        self.loads += named.values()
        self.vector_pieces: dict[str, Placed] = {name: each.placed for name, each in named.items()}
        self.result: Placed = self.result_in(out.element)
        self.acc: Placed | None = None
        self.made: Placed = self.result
        self.sums: PartialSums | None = None
        self.results: list[Operation] = []
        if self.kind.is_copied:
            self.result.allocated = self.pieces[0].buffer
            return
        if self.waits_in_tile:
            self.acc = self.result
            self.loads.append(earlier_sums(self, self.result))
            return
        self.results.append(allocate(self.result, "nram", copies(self.out_depth)))
        if self.is_summed:
            self.made = packed(out, self.piece.start, self.map.extent, self.wide)
            self.results.append(allocate(self.made, "nram", copies(self.out_depth)))
            shares = self.piece, self.share, self.made, site.cores
            self.sums = PartialSums.of(*shares, copies(self.out_depth), site.tags)
            self.acc = self.made if self.is_accumulated else None
        elif self.is_accumulated and (self.conv or out.element != "f32"):
            self.acc = self.result_in(self.wide)
            self.results.append(allocate(self.acc, "nram", 1))

    @property
    def waits_in_tile(self) -> bool:
        """Sums of a piece wait in the result's tile until the next round comes to it."""
        return self.map.in_rounds and self.is_accumulated and self.out_depth > 0

    @property
    def continues(self) -> bool:
        """What is added lies where sums wait, and is the first of them."""
        return self.map.in_place and self.waits_in_tile

    def load(self, k: int) -> PieceLoad:
        match self.kind:
            case StackLayer():
                return stacked_piece(self, self.kind, k)
            case ShuffleLayer():
                return shuffled_piece(self, self.kind, k)
            case WrapLayer():
                return wrapped_piece(self, self.kind, k)
        return map_piece(self, k)

    def result_in(self, element: Element) -> Placed:
        """The piece of the result, which has one element along a reduced dimension, wherever the region begins."""
        extent = replaced_all(self.share.extent, self.reduced, 1)
        whole = packed(self.out, self.result_box.start, extent, element)
        return replace(whole, strides=replaced_all(whole.strides, self.reduced, 0))


# -------------------------------------------------------------------- maps


def map_piece(low: LayerNest, k: int) -> PieceLoad:
    """Operand k's piece."""
    tile, access, limits = low.tiles[k], low.access[k], low.limits_of(k)
    names = nests.depends(access)
    if isinstance(low.kind, PickLayer):
        tile, access, limits = as_picked(low.out, tile, access, limits)
    start, extent = nests.needs(access, low.share if k else low.piece)
    if low.conv and k == 0:
        start, extent, names = channel_piece(low, low.conv, start, extent, names)
    box = Box(start, extent, tile.bound, limits)
    piece = packed(tile, start, extent)
    is_bus_free = low.conv is not None and low.piece.start[CHANNELS].core != 0  # weights go to each core apart
    engine = spread(low, *start) if is_bus_free else "mvdma"
    return filled(low, low.nest.depth(names), "nram", piece, engine, parts_of(tile, box))


def as_picked(out: Placed, tile: Placed, access: Access, limits: Limits) -> tuple[Placed, Access, Limits]:
    """The operand of a pick in the positions of its result, where these are all from some one on: what a reader's
    windows ask for beyond the result is clipped there, though the operand goes on (and is not in the tile)."""
    for d, axis in enumerate(access):
        is_ring = tile.wrap is not None and tile.wrap.dim == d
        if isinstance(axis, Whole) or axis.num != 1 or not axis.low or is_ring or isinstance(tile, RasterPlaced):
            continue
        origin = tile.start if tile.origin is None else tile.origin
        tile = replace(
            tile, start=replaced(tile.start, d, tile.start[d] - axis.low),
            origin=replaced(origin, d, origin[d] - axis.low), bound=replaced(tile.bound, d, out.bound[d]),
        )  # fmt: skip
        limit = limits[d]
        limits = replaced(limits, d, None if limit is None else limit - axis.low)
        access = replaced(access, d, SAME)
    return tile, access, limits


def channel_piece(
    low: LayerNest, conv: ConvLayer, start: Starts, extent: Extents, names: list[LoopName]
) -> tuple[Starts, Extents, list[LoopName]]:
    """The input channels of a convolution's piece: a chunk of all, or those of the piece's groups."""
    per_group, groups = conv.channels, conv.groups
    if groups == 1:
        names = [*nests.depends(low.access[0], channels=()), CHANNELS_IN]
        return replaced(start, CHANNELS, low.nest.chunk), replaced(extent, CHANNELS, low.map.channels), names
    first, held = start[CHANNELS], low.map.extent[CHANNELS] // (low.out.bound[CHANNELS] // groups)
    if low.nest.part_of_group:
        first = low.access[0][CHANNELS].start(low.out.start[CHANNELS] + low.nest.group)
        held, names = 1, [n for n in names if n != CHANNELS]
    return replaced(start, CHANNELS, first), replaced(extent, CHANNELS, held * per_group), names


def channels_of_map(low: LayerNest, source: MapSource) -> PieceLoad:
    """The input channels of one round of operand 0's tile, from DRAM to SRAM, which then take the tile's place."""
    whole, depth = low.tiles[0], low.nest.depth([CHANNELS_IN])
    start, extent = replaced(whole.start, CHANNELS, low.nest.chunk), replaced(whole.extent, CHANNELS, low.map.channels)
    part = packed(whole, start, extent)
    alloc = allocate(part, "sram", copies(depth))
    seen = dram_view(part.element, source.view, start, ELEMENT_BYTES[part.element])
    box = Box(start, extent, whole.bound)
    copy = isa.Copy(engine="gdma", src_view=seen, dst_view=part.view(start), box=box, multicast=source.is_shared)
    low.tiles[0] = part
    return PieceLoad(depth, part, [alloc, isa.emit(copy, source.buffer, part.buffer, **low.site.tags)])


def residual_of_last_round(low: LayerNest, source: MapSource) -> list[PieceLoad]:
    """What a product in rounds adds on its way out: the pieces of all cores from DRAM to SRAM, and of each core from
    there, in the last round; in all others the boxes are empty."""
    (start, extent), whole = nests.needs(low.access[RESIDUAL], low.share), low.tiles[RESIDUAL]
    own = Box(start, extent, whole.bound, in_last_round(low, low.limits_of(RESIDUAL), whole.bound, extent))
    dealt = tuple(e * (low.site.cores if s.core else 1) for s, e in zip(start, extent, strict=True))
    every = replace(own, start=tuple(replace(s, core=0) for s in start), extent=dealt)
    part = packed(whole, every.start, every.extent)
    alloc = allocate(part, "sram", copies(low.out_depth))
    seen = dram_view(part.element, source.view, every.start, ELEMENT_BYTES[part.element])
    view = part.view(every.start)
    copy = isa.Copy(engine="gdma", src_view=seen, dst_view=view, box=every, multicast=source.is_shared)
    stream = PieceLoad(low.out_depth, part, [alloc, isa.emit(copy, source.buffer, part.buffer, **low.site.tags)])
    return [stream, filled(low, low.out_depth, "nram", packed(whole, start, extent), "mvdma", [(part, own)])]


def in_last_round(low: LayerNest, limits: Limits, bound: Extents, extent: Extents) -> Limits:
    """The limits of a box that is empty in all rounds but the last."""
    level, free = low.nest.level(CHANNELS_IN), free_dimension(low, limits)
    if level is None:
        return limits
    rounds = dict(low.nest.loops)[CHANNELS_IN]
    far = EMPTY * max(bound[free], extent[free])
    return replaced(limits, free, Affine.index(level, far) + (bound[free] - far * (rounds - 1)))


def free_dimension(low: LayerNest, limits: Limits) -> int:
    """The first dimension without a limit; raises `PassFailedException` where there is none."""
    if None not in limits:
        raise PassFailedException(f"{low.op.kind.data} in rounds: its pieces have limits in all dimensions")
    return limits.index(None)


def earlier_sums(low: LayerPieces, piece: Placed) -> PieceLoad:
    """A buffer for a piece of the result, and what earlier rounds have added up of it, from the tile; the first round
    finds nothing, unless sums continue what was there: there the box is empty."""
    box, level = low.result_box, low.nest.level(CHANNELS_IN)
    if not low.continues:
        free = free_dimension(low, box.limit)
        assert level is not None
        limit = Affine.index(level, box.bound[free] + box.extent[free])
        box = replace(box, limit=replaced(box.limit, free, limit))
    return filled(low, low.out_depth, "nram", piece, "mvdma", parts_of(low.out, box))


def shuffled_piece(low: LayerNest, shuffle: ShuffleLayer, k: int) -> PieceLoad:
    """The piece of a shuffle is loaded as it is to be: channel `i * groups + j` of the result is channel i of group
    j.  So every group is a strided copy."""
    tile, groups, own = low.tiles[k], shuffle.groups, low.piece
    piece, depth = packed(low.out, own.start, low.map.extent), low.nest.depth(nests.depends(SAME4))
    extent = replaced(low.map.extent, CHANNELS, low.map.extent[CHANNELS] // groups)
    stride, limits = piece.strides[CHANNELS], low.limits_of(k)
    ops: list[Operation] = [allocate(piece, "nram", copies(depth))]
    for group in range(groups):
        first, end = of_group(low, group, groups)
        box = Box(replaced(own.start, CHANNELS, first), extent, tile.bound, replaced(limits, CHANNELS, end))
        spread = View(tile.element, Affine(group * stride), replaced(piece.strides, CHANNELS, stride * groups))
        copy = isa.Copy(engine="mvdma", src_view=tile.view(box.start), dst_view=spread, box=box)
        ops.append(isa.emit(copy, tile.buffer, piece.buffer, **low.site.tags))
    return PieceLoad(depth, piece, ops)


def of_group(low: LayerNest, group: int, groups: int) -> tuple[Affine, Affine]:
    """Of the channels of one group that go into a shuffled piece: the first, and where they end at the latest."""
    per_group = low.out.bound[CHANNELS] // groups
    limit = low.piece.limit[CHANNELS]
    end = Affine(per_group) if limit is None else exactly(limit, groups)
    if not end.is_constant:
        raise PassFailedException("the channels of a shuffle are not cut into tiles")
    end = Affine(min(per_group, end.base))
    return exactly(low.piece.start[CHANNELS], groups) + group * per_group, end + group * per_group


def stacked_piece(low: LayerNest, stack: StackLayer, k: int) -> PieceLoad:
    """Slices of a volume with their neighbours beside them as channels: the piece is loaded as it is to be, the slices
    of each tap of the kernel by a strided copy of their own, which writes zeros for those that there are not."""
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


def wrapped_piece(low: LayerNest, wrap: WrapLayer, k: int) -> PieceLoad:
    """A piece of a map with rows and columns of its other ends: a copy of each part, from where it lies in the tile."""
    own, tile, depth = low.piece, low.tiles[k], low.nest.depth(nests.depends(SAME4))
    piece, (n, c, *_) = packed(low.out, own.start, low.map.extent), own.box.spans
    ops: list[Operation] = [allocate(piece, "nram", copies(depth))]
    for rows, columns in borders.corners(wrap, low, (Affine(), Affine())):
        seen = tile.view((n.start, c.start, rows.first, columns.first))
        box = Box.of(n, c, rows.span, columns.span)
        copy = isa.Copy(engine="mvdma", src_view=seen, dst_view=piece.own_view, box=box)
        ops.append(isa.emit(copy, tile.buffer, piece.buffer, **low.site.tags))
    return PieceLoad(depth, piece, ops)


# -------------------------------------------------------------------- weights


def weight_box(low: LayerNest, weights: WeightSource) -> tuple[Box, int]:
    """What a core needs of the weights at a time, and inside how many loops."""
    assert low.conv is not None
    own, (kh, kw) = low.piece, low.conv.kernel
    start = (own.start[1], low.nest.chunk, Affine(), own.start[0] if weights.is_batched else Affine())
    extent, limit = (low.map.extent[1], low.map.channels, kh, kw), (own.limit[1], None, None, None)
    names: list[LoopName] = [GROUP, 1, CHANNELS_IN, *([0] if weights.is_batched else [])]
    return Box(start, extent, weights.tensor.bound, limit), low.nest.depth(names)


def in_first_pass(box: Box, level: int) -> Box:
    """The box of weights, empty in all passes of the loops above `level` but the first: there its copy does nothing."""
    far = EMPTY * max(box.bound[OUTPUTS], box.extent[OUTPUTS])
    limit = box.limit[OUTPUTS] or Affine(box.bound[OUTPUTS])
    for loop in range(level):
        limit = limit - Affine.index(loop, far)
    return replace(box, limit=replaced(box.limit, OUTPUTS, limit))


def weight_piece(low: LayerNest, weights: WeightSource, held: Placed) -> PieceLoad:
    """The weights of a piece, from SRAM; those that stay, for the first tile."""
    box, depth = weight_box(low, weights)
    piece = packed(weights.tensor, box.start, box.extent)
    if low.site.keeps_weights and not depth:
        box = in_first_pass(box, low.site.level)
    return filled(low, depth, "wram", piece, spread(low, *box.start), [(held, box)])


def stream(low: LayerNest, weights: WeightSource) -> PieceLoad:
    """The chunk of weights that all cores of the cluster need next, from DRAM to SRAM."""
    box, depth = weight_box(low, weights)
    all_cores = (e * (low.site.cores if s.core else 1) for s, e in zip(box.start, box.extent, strict=True))
    box = replace(box, start=tuple(replace(s, core=0) for s in box.start), extent=tuple(all_cores))
    chunk = packed(weights.tensor, box.start, box.extent)
    alloc = allocate(chunk, "sram", copies(depth))
    multicast = not any(s.cluster for s in box.start)
    copy = copied("gdma", weights.tensor, chunk, box, low.site.tags, multicast=multicast)
    return PieceLoad(depth, chunk, [alloc, copy])


def kept_pieces(low: LayerNest, weights: WeightSource) -> tuple[Placed, list[Operation]]:
    """The piece that the layer's loops read, among all that a core needs, which lie one behind the other in a buffer of
    the program; the buffer, unless the site has it already, and the loops that fill it piece by piece, each in parts
    of its input channels, through SRAM."""
    box, _ = weight_box(low, weights)
    loops = [(name, count) for name, count in low.nest.loops if name in (GROUP, 1, CHANNELS_IN)]
    piece, number = packed(weights.tensor, box.start, box.extent), Affine()
    for name, count in loops:
        level = low.nest.level(name)
        assert level is not None
        number = number * count + Affine.index(level)
    size = aligned(math.prod(box.extent) * ELEMENT_BYTES[piece.element])
    piece.before = number * size
    if low.site.in_core is not None:
        piece.allocated = low.site.in_core
        return piece, []
    alloc = isa.AllocOp("wram", size * math.prod(count for _, count in loops))
    piece.allocated = alloc.buffer
    return piece, [alloc, *filling(low, weights, box, piece, loops)]


def filling(
    low: LayerNest, weights: WeightSource, box: Box, piece: Placed, loops: Sequence[tuple[LoopName, int]]
) -> list[Operation]:
    """Loops over pieces of weights, and parts of their input channels: from DRAM to SRAM, from there to the cores."""
    named = ((k, low.nest.level(name)) for k, (name, _) in enumerate(loops))
    levels = {level: Affine.index(k) for k, level in named if level is not None}
    inputs = part_of_inputs(low, weights, box)
    parts = ceil_div(box.extent[INPUT], inputs)
    start = [at_levels(x, levels) for x in box.start]
    own, into = tuple(start), replace(piece, start=tuple(start), before=at_levels(piece.before, levels))
    limits = [x and at_levels(x, levels) for x in box.limit]
    if parts > 1:
        limits[INPUT] = own[INPUT] + box.extent[INPUT]
        start[INPUT] = own[INPUT] + Affine.index(len(loops), inputs)
    part = Box(tuple(start), replaced(box.extent, INPUT, inputs), box.bound, tuple(limits))
    all_cores = (e * (low.site.cores if s.core else 1) for s, e in zip(part.start, part.extent, strict=True))
    chunk_box = replace(part, start=tuple(replace(s, core=0) for s in part.start), extent=tuple(all_cores))
    chunk_box = replace(chunk_box, limit=tuple(x and replace(x, core=0) for x in part.limit))
    chunk, counts = packed(weights.tensor, chunk_box.start, chunk_box.extent), [*(count for _, count in loops), parts]
    looped = [count for count in counts if count > 1]
    alloc = allocate(chunk, "sram", copies(len(looped)))
    multicast = not any(s.cluster for s in chunk_box.start)
    load = copied("gdma", weights.tensor, chunk, chunk_box, low.site.tags, multicast=multicast)
    fill = copied(spread(low, *part.start), chunk, into, part, low.site.tags)
    load.properties["stage"], fill.properties["stage"] = (IntegerAttr(n * bool(looped), i64) for n in (0, 1))
    inner: list[Operation] = [alloc, load, fill]
    for count in reversed(looped):
        inner = [isa.RepeatOp(count, Region(Block(inner)))]
    return inner


def part_of_inputs(low: LayerNest, weights: WeightSource, box: Box) -> int:
    """Input channels of a piece that all cores get at a time: as many as a chunk holds, in long enough runs."""
    size, cores = ELEMENT_BYTES[weights.tensor.element], low.site.cores if any(s.core for s in box.start) else 1
    inputs = box.extent[INPUT]
    if box.start[INPUT].core:
        return inputs
    while inputs % 2 == 0 and inputs * math.prod(box.extent[2:]) * size >= 2 * low.site.run_bytes:
        if cores * math.prod(replaced(box.extent, INPUT, inputs)) * size <= low.site.chunk_bytes:
            break
        inputs //= 2
    return inputs


def vector_piece(low: LayerNest, held: Placed, memory: Memory) -> PieceLoad:
    """The part of one number per output channel that a piece needs.  A bias is in NRAM where the vector unit adds it,
    and where weights are streamed, which have WRAM for themselves."""
    share = low.share
    start = (Affine(), share.start[1], Affine(), Affine())
    box = Box(start, (1, share.extent[1], 1, 1), held.bound, (None, share.limit[1], None, None))
    piece = Placed(held.element, start, box.extent, held.bound, (0, ELEMENT_BYTES[held.element], 0, 0))
    return filled(low, low.nest.depth([GROUP, 1]), memory, piece, spread(low, start[1]), [(held, box)])
