"""One unit: its tile loops, with loads and held weights at the loop that moves them, layers inside."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import Affine
from frustum.passes.lower.compute import LayerLowering, Site, WeightSource
from frustum.passes.lower.declare import Window
from frustum.passes.lower.holds import hold
from frustum.passes.lower.memory_map import Placed
from frustum.passes.lower.moves import lower_move
from frustum.passes.lower.places import tile_of
from frustum.passes.lower.tiles import Tiles, joined, resident
from frustum.passes.lower.transfers import load, send, store
from frustum.passes.tile.lower_units import PRODUCED

if TYPE_CHECKING:
    from frustum.passes.lower.lower_tiles import Lowering


class UnitLowering:
    """One `ftile.unit`.

    `bodies`: of the loops over tiles, the program's own first; `tiles`: where they lie; `tensors`: where its tensors
    lie; `stage`: of what is computed and stored in the innermost body.
    """

    def __init__(self, program: Lowering, unit: t.UnitOp):
        self.program, self.unit = program, unit
        self.target = program.target
        self.clusters = self.target.chip.clusters
        counts = unit.tile_counts
        self.loops = [(d, counts[d]) for d in unit.loop_order if counts[d] > 1]
        self.levels = {d: level for level, (d, _) in enumerate(self.loops)}
        self.number = program.names.unit(unit, math.prod(counts))
        self.bodies = [Block() for _ in range(len(self.loops) + 1)]
        self.tensors: dict[SSAValue, Window] = {}
        self.tiles = Tiles(self, program.homes)
        self.stage = 0

    def run(self) -> None:
        self.read_operands()
        ops = list(self.unit.body.block.ops)
        for op in ops:
            if isinstance(op, WeightOp):
                self.tensors[op.result] = Window(self.program.declared.weight(op))
            elif isinstance(op, t.LoadOp):
                load(self, op)
        layers = [op for op in ops if isinstance(op, t.ComputeOp)]
        first = len(self.program.names.layers)
        holds = {op: hold(self, op, first + i) for i, op in enumerate(layers)}
        self.stage = self.inner_stage()
        for op in layers:
            self.tiles.place(op.result, op.region.data)
        for op in ops:
            if isinstance(op, t.ComputeOp):
                self.layer(op, *holds[op])
            else:
                self.after_layer(op)
        self.close()

    def after_layer(self, op: Operation) -> None:
        """What is done with tiles that are there."""
        if isinstance(op, t.ConcatOp):
            self.tiles.placed[op.result] = joined([self.tiles[operand] for operand in op.tiles])
        elif isinstance(op, t.StoreOp):
            store(self, op)
        elif isinstance(op, t.SendOp):
            send(self, op)
        elif isinstance(op, t.MoveOp):
            self.move(op)

    def read_operands(self) -> None:
        """Where the block arguments lie: tensors in DRAM, tiles that earlier units have left in SRAM."""
        for argument, operand in zip(self.unit.body.block.args, self.unit.operands, strict=True):
            if isinstance(operand.type, t.TileType):
                self.tiles.placed[argument] = self.left_behind(operand)
            else:
                self.tensors[argument] = self.program.declared.buffers[operand]

    def left_behind(self, value: SSAValue) -> Placed:
        """A tile of earlier units, perhaps of several one behind the other."""
        if isinstance(value.owner, t.ConcatOp):
            return resident(joined([self.left_behind(v) for v in value.owner.tiles]), tile_of(value))
        return self.program.tiles[value]

    def yield_tiles(self) -> None:
        """Remember where the tiles lie that stay in SRAM."""
        end = self.unit.body.block.last_op
        assert end is not None
        results = [r for r in self.unit.results if isinstance(r.type, t.TileType)]
        for value, result in zip(end.operands, results, strict=True):
            self.program.tiles[result] = resident(self.tiles[value], tile_of(result))

    @property
    def innermost(self) -> Block:
        return self.bodies[-1]

    def depth_of(self, *values: Affine) -> int:
        """How many tile loops must be open for something at these positions (already in loop levels)."""
        return max((len(v.loops) for v in values), default=0)

    def copies(self, depth: int) -> int:
        """Copies of what is moved in the body at a depth, so that the next pass may load while this one computes."""
        return self.unit.depth.value.data if depth else 1

    def inner_stage(self) -> int:
        """Stage of the layers: behind the loads of the same body, if the body is a loop and has loads."""
        moves = any(not isinstance(op, isa.AllocOp) for op in self.innermost.ops)
        return 1 if self.loops and moves and self.unit.depth.value.data > 1 else 0

    def close(self) -> None:
        """Nest the bodies and append them to the program."""
        body = self.innermost
        for depth in range(len(self.loops) - 1, -1, -1):
            outer = self.bodies[depth]
            moves = depth and any(not isinstance(op, isa.AllocOp) for op in outer.ops)
            stage = 1 if moves and self.unit.depth.value.data > 1 else 0
            outer.add_op(isa.RepeatOp(self.loops[depth][1], Region(body), stage=stage))
            body = outer
        for op in list(body.ops):
            op.detach()
            self.program.body.add_op(op)
        self.yield_tiles()

    def tags(self, layer: int) -> dict[str, int]:
        return {"layer": layer, "unit": self.number}

    @property
    def last_layer(self) -> int:
        """Number of the layer written last: what follows it belongs to it."""
        return len(self.program.names.layers) - 1

    def passes_outside(self, dimension: int) -> Affine:
        """Which pass of the loops outside of a dimension's own this is; raises if others are inside."""
        level = self.levels.get(dimension, len(self.loops))
        if level < len(self.loops) - 1:
            raise PassFailedException(
                f"unit {self.unit.unit_name.data}: rows roll in the innermost loop, found loops {self.unit.loop_order}"
            )
        number, passes = Affine(), 1
        for outer in range(level - 1, -1, -1):
            number, passes = number + Affine.index(outer, passes), passes * self.loops[outer][1]
        return number

    # ------------------------------------------------------------ layers

    def layer(self, op: t.ComputeOp, weights: WeightSource | None, vectors: dict[str, Placed]) -> None:
        macs = op.attributes.get(PRODUCED)
        number = self.program.names.layer(
            op, op.kind.data, macs.value.data if isinstance(macs, IntegerAttr) else 0
        )
        site = Site(len(self.loops), self.target.cluster.cores, self.stage, self.tags(number))
        operands = [self.tiles[o] for o in op.tiles]
        LayerLowering(op, operands, self.tiles[op.result], weights, vectors, site).emit(self.innermost)

    def move(self, op: t.MoveOp) -> None:
        source, result = self.tensors[op.source], self.unit.results[op.output.value.data]
        number = self.program.names.layer(op, "move", 0)
        target = self.program.declared.buffers[result]
        self.innermost.add_ops(lower_move(op, source, target, self.clusters, self.tags(number)))
