"""One unit: its tile loops, with loads and held weights at the loop that moves them, layers inside."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine
from frustum.passes.lower.blocks import Part, by_blocks, whole_part
from frustum.passes.lower.compute import LayerLowering, Site, WeightSource
from frustum.passes.lower.holds import hold
from frustum.passes.lower.memory_map import (
    Placed,
    box_at_levels,
    byte_strides,
    dram_view,
    is_shared,
    tile_bytes,
)
from frustum.passes.lower.moves import lower_move
from frustum.passes.tile.lower_units import PRODUCED
from frustum.passes.tile.plan_unit import TILE_ORDER

if TYPE_CHECKING:
    from frustum.passes.lower.lower_tiles import Lowering


class UnitLowering:
    """One `ftile.unit`: its tile loops, with loads and held weights at the loop that moves them, layers inside."""

    def __init__(self, program: Lowering, unit: t.UnitOp):
        self.program, self.unit = program, unit
        self.target = program.target
        self.clusters = self.target.chip.clusters
        counts = unit.tile_counts
        self.loops = [(d, counts[d]) for d in TILE_ORDER if counts[d] > 1]
        self.levels = {d: level for level, (d, _) in enumerate(self.loops)}
        self.number = program.names.unit(unit, math.prod(counts))
        block = unit.body.block
        self.tensors: dict[SSAValue, SSAValue] = {
            argument: program.declared.buffers[operand]
            for argument, operand in zip(block.args, unit.operands, strict=True)
        }
        self.tiles: dict[SSAValue, Placed] = {}
        self.bodies = [Block() for _ in range(len(self.loops) + 1)]

    def run(self) -> None:
        ops = list(self.unit.body.block.ops)
        for op in ops:
            if isinstance(op, WeightOp):
                self.tensors[op.result] = self.program.declared.weight(op)
            elif isinstance(op, t.LoadOp):
                self.load(op)
        layers = [op for op in ops if isinstance(op, t.ComputeOp)]
        first = len(self.program.names.layers)
        holds = [hold(self, op, first + i) for i, op in enumerate(layers)]
        stage = self.inner_stage()
        self.uses = {op.result: self.place_result(op) for op in layers}
        for op, (weights, vectors) in zip(layers, holds, strict=True):
            self.layer(op, weights, vectors, stage)
        for op in ops:
            if isinstance(op, t.StoreOp):
                self.store(op, stage)
            elif isinstance(op, t.MoveOp):
                self.move(op)
        self.close()

    @property
    def innermost(self) -> Block:
        return self.bodies[-1]

    def depth_of(self, *values: Affine) -> int:
        """How many tile loops must be open for something at these positions (already in loop levels)."""
        return max((len(v.loops) for v in values), default=0)

    def copies(self, depth: int) -> int:
        return 2 if depth else 1

    def inner_stage(self) -> int:
        """Stage of the layers: behind the loads of the same body, if the body is a loop and has loads."""
        return 1 if self.loops and any(True for _ in self.innermost.ops) else 0

    def close(self) -> None:
        """Nest the bodies and append them to the program."""
        body = self.innermost
        for depth in range(len(self.loops) - 1, -1, -1):
            outer = self.bodies[depth]
            stage = 1 if depth and any(True for _ in outer.ops) else 0
            outer.add_op(isa.RepeatOp(self.loops[depth][1], Region(body), stage=stage))
            body = outer
        for op in list(body.ops):
            op.detach()
            self.program.body.add_op(op)

    def tags(self, layer: int) -> dict[str, int]:
        return {"layer": layer, "unit": self.number}

    # ------------------------------------------------------------ between DRAM and SRAM

    def next_layer(self) -> int:
        """The number that the next computation's layer will get (its loads carry it too)."""
        return len(self.program.names.layers)

    def layer_of_load(self, op: t.LoadOp) -> int:
        """Number of the layer that first reads a loaded tile."""
        layers = [o for o in self.unit.body.block.ops if isinstance(o, t.ComputeOp)]
        user = next((i for i, o in enumerate(layers) if op.result in o.operands), 0)
        return len(self.program.names.layers) + user

    def load(self, op: t.LoadOp) -> None:
        tile = op.result.type.data
        region, view = op.region.data, op.view.data
        start = box_at_levels(region, self.levels)
        size = ELEMENT_BYTES[tile.element]
        depth = self.depth_of(*start)
        body = self.bodies[depth]
        alloc = isa.AllocOp("sram", tile_bytes(tile), self.copies(depth))
        placed = Placed(tile.element, start, tile.extents, region.bound, byte_strides(tile), alloc.buffer)
        fill = None if op.fill is None else op.fill.value.data
        body.add_op(alloc)
        tags = cast(Any, self.tags(self.layer_of_load(op)))

        def copy(part: Part, stage: int) -> isa.CopyOp:
            source = dram_view(tile.element, view, part.start, size)
            own = placed.own_view if part.start == start else placed.view(part.start)
            return isa.CopyOp(
                "gdma", self.tensors[op.source], alloc.buffer, src_view=source, dst_view=own, box=part.box, fill=fill,
                multicast=is_shared(start, self.clusters), stage=stage, **tags,
            )  # fmt: skip

        by_blocks(body, copy, whole_part(start, region), view.block, depth, 0)
        self.tiles[op.result] = placed

    def store(self, op: t.StoreOp, stage: int) -> None:
        placed, region, view = self.tiles[op.tile], op.region.data, op.view.data
        start = box_at_levels(region, self.levels)
        result = self.unit.results[op.output.value.data]
        tags = cast(Any, self.tags(self.next_layer() - 1))

        def copy(part: Part, stage: int) -> isa.CopyOp:
            target = dram_view(placed.element, view, part.start, ELEMENT_BYTES[placed.element])
            return isa.CopyOp(
                "gdma", placed.buffer, self.program.declared.buffers[result], src_view=placed.view(part.start),
                dst_view=target, box=part.box, stage=stage, **tags,
            )  # fmt: skip

        by_blocks(self.innermost, copy, whole_part(start, region), view.block, len(self.loops), stage)

    # ------------------------------------------------------------ layers

    def place_result(self, op: t.ComputeOp) -> Placed:
        """SRAM for a layer's tile: the unit's output in two copies when tiles overlap in time, others in one."""
        tile = op.result.type.data
        is_stored = any(isinstance(use.operation, t.StoreOp) for use in op.result.uses)
        depth = self.copies(len(self.loops)) if is_stored else 1
        alloc = isa.AllocOp("sram", tile_bytes(tile), depth)
        self.innermost.add_op(alloc)
        start = box_at_levels(op.region.data, self.levels)
        placed = Placed(
            tile.element, start, tile.extents, op.region.data.bound, byte_strides(tile), alloc.buffer
        )
        self.tiles[op.result] = placed
        return placed

    def layer(
        self, op: t.ComputeOp, weights: WeightSource | None, vectors: dict[str, Placed], stage: int
    ) -> None:
        macs = op.attributes.get(PRODUCED)
        number = self.program.names.layer(
            op, op.kind.data, macs.value.data if isinstance(macs, IntegerAttr) else 0
        )
        site = Site(len(self.loops), self.target.cluster.cores, stage, self.tags(number))
        operands = [self.tiles[o] for o in op.tiles]
        LayerLowering(op, operands, self.tiles[op.result], weights, vectors, site).emit(self.innermost)

    # ------------------------------------------------------------ moves

    def move(self, op: t.MoveOp) -> None:
        source, result = self.tensors[op.source], self.unit.results[op.output.value.data]
        number = self.program.names.layer(op, "move", 0)
        target = self.program.declared.buffers[result]
        self.innermost.add_ops(lower_move(op, source, target, self.clusters, self.tags(number)))
