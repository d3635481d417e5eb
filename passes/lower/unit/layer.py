"""One layer on one tile: pieces loaded into the cores, computed, stored back to SRAM, as a nest of loops.

Stages of a loop body: streamed weights arrive in SRAM (0), pieces arrive in NRAM and WRAM (1), the rest (2); stages
that a body does not need are left out, so that loads run ahead of computing by one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects.extents import Extents, aligned
from frustum.dialects.isa.program import (
    ACCUMULATORS,
    ELEMENT_BYTES,
    Act,
    Affine,
    Box,
    CopyEngine,
    Element,
    Four,
    Memory,
    Scale,
    Span,
    View,
)
from frustum.dialects.tile import ComputeOp, Tile, to_plain
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.analysis.layer import SAME4
from frustum.passes.analysis.piece_nest import CHANNELS_IN, GROUP, LoopName, Nest
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.unit.instructions import compute
from frustum.passes.lower.unit.memory_map import (
    Placed,
    byte_strides,
    four,
    offset_of,
    sampled,
    tile_bytes,
)
from frustum.passes.lower.unit.piece_stores import Leaving, Part, part_of_pieces
from frustum.passes.lower.unit.raster import parts_of
from frustum.passes.lower.unit.shuffle import SHUFFLE, load_groups

Emit = Callable[[Block, int], None]
"""Adds operations to a loop body, at a stage."""


@dataclass
class Item:
    """Something that belongs into the body at `depth` of the nest."""

    depth: int
    emit: Emit


@dataclass(frozen=True)
class Site:
    """Where a layer is lowered: nesting level of its first loop, cores of a cluster, stage, tags for reports."""

    level: int
    cores: int
    stage: int
    tags: dict[str, int]


@dataclass(frozen=True)
class WeightSource:
    """Weights: held in SRAM (`placed`), or in DRAM (`tensor`) to be streamed; dimensions are (co, ci, kh, kw), or
    (co, ci, 1, d0) where every entry of d0 has its own."""

    placed: Placed | None
    tensor: SSAValue
    element: Element
    dims: Extents
    strides: Four  # bytes, in the tensor
    is_batched: bool


class LayerLowering:
    """Builds the nest of one `ftile.compute`."""

    def __init__(
        self,
        op: ComputeOp,
        tiles: Sequence[Placed],
        out: Placed,
        weights: WeightSource | None,
        vectors: dict[str, Placed],
        site: Site,
    ):
        self.op, self.tiles, self.out = op, list(tiles), out
        self.weights, self.vectors, self.site = weights, vectors, site
        self.kind = op.kind.data
        self.params: dict[str, Any] = to_plain(op.params)
        self.map = op.map.data
        self.access = [a.data for a in op.access.data]
        self.reduced: Sequence[int] = self.params["axes"] if self.kind == "reduce" else ()
        if self.reduced:  # its pieces are pieces of the input
            self.access = [SAME4]
        if self.map.compact:
            self.tiles[0] = sampled(self.tiles[0], out, self.params["strides"])
            self.access[0] = (*self.access[0][:2], *SAME4[2:])
            self.params["strides"] = (1, 1)
        start, extent, bound = self.space()
        self.nest: Nest = nests.build(
            self.map,
            start,
            extent,
            bound,
            self.params,
            site.cores,
            site.level,
            is_matrix=self.kind == "conv",
            reduced=self.reduced,
        )
        self.piece = self.nest.piece
        self.out_depth = self.nest.depth(
            [name for name, _ in self.nest.loops if name != CHANNELS_IN and name not in self.reduced]
        )
        self.streams: list[Item] = []
        self.loads: list[Item] = []
        self.leaving: list[tuple[Leaving, Part]] = []

    def space(self) -> tuple[tuple[Affine, ...], Four, Four]:
        """What is cut into pieces: the region of the result; of a reduction, all that goes into it."""
        out = self.out
        if not self.reduced:
            return out.start, four(out.extent), four(out.bound)
        bound = self.tiles[0].bound
        start = tuple(Affine() if d in self.reduced else x for d, x in enumerate(out.start))
        extent = [bound[d] if d in self.reduced else x for d, x in enumerate(out.extent)]
        return start, four(extent), four(bound)

    def takes(self, leaving: Leaving) -> bool:
        """Whether what is stored or sent of the result can go piece by piece, as part of this layer, and then does."""
        if self.reduced or not self.out_depth:
            return False
        part = part_of_pieces(leaving, self.piece, self.out, self.site.cores)
        if part is not None:
            self.leaving.append((leaving, part))
        return part is not None

    def emit(self, block: Block) -> None:
        """Append the whole layer to a block."""
        load = load_groups if self.kind == SHUFFLE else LayerLowering.load_piece
        self.pieces = [load(self, k) for k in range(len(self.tiles))]
        self.weight_piece = self.load_weights() if self.weights else None
        self.vector_pieces = {name: self.load_vector(placed) for name, placed in self.vectors.items()}
        self.body(block, 0, self.site.stage)

    def body(self, block: Block, depth: int, stage: int) -> None:
        """The body at this depth: streams, loads, then the inner loop or the computation, then the store."""
        is_loop = depth > 0
        step = 1 if is_loop else 0
        streams = [i for i in self.streams if i.depth == depth]
        loads = [i for i in self.loads if i.depth == depth]
        for item in streams:
            item.emit(block, stage)
        stage += step * bool(streams)
        for item in loads:
            item.emit(block, stage)
        stage += step * bool(loads)
        if depth == self.out_depth:
            self.allocate_out(block, depth)
        if depth < len(self.nest.loops):
            inner = Block()
            self.body(inner, depth + 1, 0)
            block.add_op(isa.RepeatOp(self.nest.loops[depth][1], Region(inner), stage=stage))
        elif self.kind != SHUFFLE:
            block.add_op(self.compute(stage))
        if depth == self.out_depth:
            self.store(block, stage)
            block.add_ops([leaving.copy(part, stage) for leaving, part in self.leaving])

    # ---------------------------------------------------------------- operands

    def copies(self, depth: int) -> int:
        return 2 if depth > 0 else 1

    def alloc(self, block: Block, memory: Memory, size: int, depth: int) -> SSAValue:
        op = isa.AllocOp(memory, aligned(size), self.copies(depth))
        block.add_op(op)
        return op.buffer

    def load_piece(self, k: int) -> Placed:
        """Operand k's piece: its place in NRAM is known now, its buffer once the body is written."""
        tile, access = self.tiles[k], self.access[k]
        start, extent = nests.needs(access, self.piece)
        names = nests.depends(access)
        if self.kind == "conv" and k == 0:
            start, extent, names = self.channel_piece(start, extent, names)
        order = memory_order(tile.strides, tile.extent)
        box_tile = Tile(tile.element, extent, order)
        box = Box(cast(Any, start), extent, tile.bound, cast(Any, self.load_limits(k)))
        piece = Placed(tile.element, start, extent, tile.bound, byte_strides(box_tile))

        def emit(block: Block, stage: int) -> None:
            piece.allocated = self.alloc(block, "nram", tile_bytes(box_tile), depth)
            for own, first, part in parts_of(tile, start, box):
                self.copy(
                    block, "mvdma", own.buffer, piece.buffer, own.view(first), piece.view(first), part, stage
                )

        depth = self.nest.depth(names)
        self.loads.append(Item(depth, emit))
        return piece

    def channel_piece(
        self, start: tuple[Affine, ...], extent: Four, names: list[LoopName]
    ) -> tuple[tuple[Affine, ...], Four, list[LoopName]]:
        """The input channels of a convolution's piece: a chunk of all, or those of the piece's groups."""
        per_group, groups = self.params["channels"], self.params["groups"]
        if groups == 1:
            spatial = [n for n in nests.depends(self.access[0], channels=()) if n not in (GROUP, 1)]
            return (
                (start[0], self.nest.chunk, *start[2:]),
                four([extent[0], self.map.channels, *extent[2:]]),
                [*spatial, CHANNELS_IN],
            )
        group_outputs = self.out.bound[1] // groups
        if self.nest.part_of_group:
            first = self.access[0][1].start(self.out.start[1] + self.nest.group)
            held, names = 1, [n for n in names if n != 1]
        else:
            first, held = start[1], self.map.extent[1] // group_outputs
        return (start[0], first, *start[2:]), four([extent[0], held * per_group, *extent[2:]]), names

    def load_at(self, depth: int, emit: Emit) -> None:
        """Something to be loaded in the body at a depth of the nest."""
        self.loads.append(Item(depth, emit))

    def load_limits(self, k: int) -> tuple[Affine | None, ...]:
        """Pieces that overshoot the region must not read beyond operand k's tile, nor, of a map that earlier units have
        left, beyond what this pass needs: its box is a hull, of which a cluster may not have all."""
        tile = self.tiles[k]
        starts, extents = tile.start, tile.extent
        if isinstance(self.op.tiles[k], BlockArgument):
            start, extent, bound = self.space()
            starts, extents = nests.needs(self.access[k], nests.Piece(start, extent, bound, (None,) * 4))
        return tuple(
            start + extent if not (start.is_constant and start.base + extent >= bound) else None
            for start, extent, bound in zip(starts, extents, tile.bound, strict=True)
        )

    def weight_extents(self) -> Extents:
        kh, kw = self.params["kernel"]
        return (self.map.extent[1], self.map.channels, kh, kw)

    def load_weights(self) -> Placed:
        weights = self.weights
        assert weights is not None
        extent = self.weight_extents()
        order = memory_order(weights.strides, weights.dims)
        tile = Tile(weights.element, extent, order)
        start = (
            self.piece.start[1],
            self.nest.chunk,
            Affine(),
            self.piece.start[0] if weights.is_batched else Affine(),
        )
        limit = (self.piece.limit[1], None, None, None)
        box = Box(start, extent, weights.dims, limit)
        names: list[LoopName] = [GROUP, 1, CHANNELS_IN, *([0] if weights.is_batched else [])]
        depth = self.nest.depth(names)
        late = Placed(weights.element, start, extent, weights.dims, byte_strides(tile))
        placed = weights.placed or self.stream(weights, start, extent, order, depth)

        def emit(block: Block, stage: int) -> None:
            late.allocated = self.alloc(block, "wram", tile_bytes(tile), depth)
            self.copy(
                block,
                self.spread(start[0]),
                placed.buffer,
                late.buffer,
                placed.view(start),
                late.own_view,
                box,
                stage,
            )

        self.loads.append(Item(depth, emit))
        return late

    def spread(self, start: Affine) -> CopyEngine:
        """One broadcast where all cores want the same, else every core for itself."""
        return "bus" if not start.core and self.site.cores > 1 else "mvdma"

    def stream(
        self, weights: WeightSource, start: tuple[Affine, ...], extent: Extents, order: Extents, depth: int
    ) -> Placed:
        """The chunk of weights that all cores of the cluster need next, from DRAM to SRAM."""
        share = start[0].core
        first = Affine(start[0].base, start[0].loops, start[0].cluster)
        wide = four([extent[0] * (self.site.cores if share else 1), *extent[1:]])
        tile = Tile(weights.element, wide, order)
        begin = (first, *start[1:])
        box = Box(cast(Any, begin), wide, weights.dims, (self.piece.limit[1], None, None, None))
        late = Placed(weights.element, begin, wide, weights.dims, byte_strides(tile))
        source = View(weights.element, offset_of(begin, weights.strides), weights.strides)
        multicast = not any(s.cluster for s in begin)

        def emit(block: Block, stage: int) -> None:
            late.allocated = self.alloc(block, "sram", tile_bytes(tile), depth)
            block.add_op(
                isa.emit(
                    isa.Copy(
                        engine="gdma", src_view=source, dst_view=late.own_view, box=box, multicast=multicast
                    ),
                    weights.tensor,
                    late.buffer,
                    stage=stage,
                    **self.site.tags,
                )
            )

        self.streams.append(Item(depth, emit))
        return late

    def load_vector(self, held: Placed) -> Placed:
        """The part of one number per output channel that a piece needs."""
        size = ELEMENT_BYTES[held.element]
        start = (Affine(), self.piece.start[1], Affine(), Affine())
        extent = (1, self.map.extent[1], 1, 1)
        box = Box(start, extent, held.bound, (None, self.piece.limit[1], None, None))
        depth = self.nest.depth([GROUP, 1])
        late = Placed(held.element, start, extent, held.bound, (0, size, 0, 0))

        def emit(block: Block, stage: int) -> None:
            late.allocated = self.alloc(block, "wram", extent[1] * size, depth)
            self.copy(
                block,
                self.spread(start[1]),
                held.buffer,
                late.buffer,
                held.view(start),
                late.own_view,
                box,
                stage,
            )

        self.loads.append(Item(depth, emit))
        return late

    # ---------------------------------------------------------------- results

    @property
    def out_extent(self) -> Extents:
        n, c, h, w = (1 if d in self.reduced else e for d, e in enumerate(self.map.extent))
        return (n, c, h, w)

    @property
    def wide(self) -> Element:
        """The type of partial sums."""
        return ACCUMULATORS[self.tiles[0].element] if self.kind == "conv" else "f32"

    @cached_property
    def scales(self) -> tuple[Scale, ...] | None:
        """What integers stand for, of each operand and the result."""
        values = self.params.get("scales")
        pairs = zip(values[::2], values[1::2], strict=True) if values else ()
        return tuple(Scale(scale, int(zero)) for scale, zero in pairs) or None

    @property
    def is_accumulated(self) -> bool:
        summed: list[LoopName] = [CHANNELS_IN, *self.reduced]
        return any(self.nest.position(name) is not None for name in summed)

    def allocate_out(self, block: Block, depth: int) -> None:
        order = memory_order(self.out.strides, self.out.extent)
        tile = Tile(self.out.element, self.out_extent, order)
        wide = Tile(self.wide, self.out_extent, order)
        self.out_strides, self.acc_strides = byte_strides(tile), byte_strides(wide)
        self.acc_buffer = None
        if self.kind == SHUFFLE:
            self.out_buffer = self.pieces[0].buffer
            return
        self.out_buffer = self.alloc(block, "nram", tile_bytes(tile), depth)
        if self.is_accumulated and (self.kind == "conv" or self.out.element != "f32"):
            acc = isa.AllocOp("nram", tile_bytes(wide))
            block.add_op(acc)
            self.acc_buffer = acc.buffer

    def store(self, block: Block, stage: int) -> None:
        if self.reduced and self.acc_buffer is not None:
            self.narrow(block, stage)
        start, box = self.piece.start, self.piece.box
        if self.reduced:
            start, box = self.reduced_box()
        view = View(self.out.element, Affine(), self.of_result(self.out_strides))
        for own, first, part in parts_of(self.out, start, box):
            behind = replace(view, offset=(first[2] - start[2]) * self.out_strides[2])
            self.copy(block, "mvdma", self.out_buffer, own.buffer, behind, own.view(first), part, stage)

    def reduced_box(self) -> tuple[tuple[Affine, ...], Box]:
        """The piece of a reduction's output: along every reduced dimension all of the region, of which the map has one
        element, if any (a reader's window may begin before the map; some clusters have no part of it)."""
        p = self.piece
        start = tuple(self.out.start[d] if d in self.reduced else s for d, s in enumerate(p.start))
        extent = four([self.out.extent[d] if d in self.reduced else e for d, e in enumerate(self.out_extent)])
        limit = tuple(None if d in self.reduced else x for d, x in enumerate(p.limit))
        return start, Box(cast(Any, start), extent, self.out.bound, cast(Any, limit))

    def of_result(self, strides: Four) -> Four:
        """Strides of a piece's result in NRAM, which has one element along a reduced dimension, wherever the region
        begins."""
        return four([0 if d in self.reduced else stride for d, stride in enumerate(strides)])

    def narrow(self, block: Block, stage: int) -> None:
        assert self.acc_buffer is not None
        _, box = self.reduced_box()
        block.add_op(
            isa.emit(
                isa.Unary(
                    kind="identity",
                    in_view=View("f32", Affine(), self.of_result(self.acc_strides)),
                    out_view=View(self.out.element, Affine(), self.of_result(self.out_strides)),
                    box=box,
                    scales=None if self.scales is None else (Scale(), self.scales[-1]),
                ),
                self.acc_buffer,
                self.out_buffer,
                stage=stage,
                **self.site.tags,
            )
        )

    def copy(
        self,
        block: Block,
        engine: CopyEngine,
        source: SSAValue,
        target: SSAValue,
        source_view: View,
        target_view: View,
        box: Box,
        stage: int,
    ) -> None:
        copy = isa.Copy(engine=engine, src_view=source_view, dst_view=target_view, box=box)
        block.add_op(isa.emit(copy, source, target, stage=stage, **self.site.tags))

    # ---------------------------------------------------------------- the instruction

    def compute(self, stage: int) -> Operation:
        return compute(self, {"stage": stage, **self.site.tags})

    @property
    def act(self) -> Act | None:
        if "act" not in self.params:
            return None
        alpha, beta = self.params["act_params"]
        return Act(self.params["act"], alpha, beta)

    @property
    def out_view(self) -> View:
        return View(self.out.element, Affine(), self.out_strides)

    def span(self, d: int) -> Span:
        """What the piece needs of operand 0 along dimension d."""
        start, extent = nests.needs(self.access[0], self.piece)
        return Span(start[d], extent[d], self.tiles[0].bound[d])
