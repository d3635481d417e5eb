"""One unit: its tile loops, with loads and held weights at the loop that moves them, layers inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import Affine
from frustum.dialects.module import MACS, OWN_ELEMENTS
from frustum.dialects.tile.sweeps import Sweep
from frustum.passes.analysis.project import ROWS
from frustum.passes.lower.unit import prefetch as ahead
from frustum.passes.lower.unit.homes import tile_of
from frustum.passes.lower.unit.layer import LayerLowering, Site, WeightSource
from frustum.passes.lower.unit.memory_map import Placed
from frustum.passes.lower.unit.piece_stores import Leaving
from frustum.passes.lower.unit.program import Window
from frustum.passes.lower.unit.tiles import Tiles, joined, resident
from frustum.passes.lower.unit.transfers import leave, load, lower_move, sent, stored
from frustum.passes.lower.unit.weight_loads import hold

if TYPE_CHECKING:
    from frustum.passes.lower.lower_tiles import Lowering

COLUMNS = 3
Holds: TypeAlias = "dict[t.ComputeOp, tuple[WeightSource | None, dict[str, Placed]]]"
"""Of each layer its weights, and by name what else it has per output channel."""


class UnitLowering:
    """One `ftile.unit`.

    `loops`: over tiles (the dimension, if it is one's own, and passes), the first `shared` of them around all sweeps;
    `levels`: tile indices as affines of these; `bodies`: of the loops, the program's own first; `tiles`: where they
    lie; `tensors`: where its tensors lie; `stage`: of what is computed and stored in the innermost body; `gone`: stores
    and sends that go piece by piece.
    """

    def __init__(self, program: Lowering, unit: t.UnitOp):
        self.program, self.unit = program, unit
        self.target = program.target
        self.clusters = self.target.chip.clusters
        counts, swept = unit.tile_counts, (ROWS, COLUMNS) if unit.sweeps else ()
        self.loops: list[tuple[int | None, int]] = [
            (d, counts[d]) for d in unit.loop_order if counts[d] > 1 and d not in swept
        ]
        self.shared = len(self.loops)
        self.levels = {d: Affine.index(level) for level, (d, _) in enumerate(self.loops) if d is not None}
        self.number = program.names.unit(unit, math.prod(counts))
        self.first_layer = len(program.names.layers)
        self.numbers: dict[Operation, int] = {}
        self.written = self.first_layer - 1
        self.bodies = [Block() for _ in range(len(self.loops) + 1)]
        self.tensors: dict[SSAValue, Window] = {}
        self.tiles = Tiles(self, program.homes)
        self.stage = 0
        self.gone: set[Operation] = set()

    def run(self) -> None:
        self.read_operands()
        ops = list(self.unit.body.block.ops)
        for op in ops:
            if isinstance(op, WeightOp):
                self.tensors[op.result] = Window(self.program.declared.weight(op))
        holds: Holds = {}
        if self.unit.sweeps is None:
            self.passes(ops, holds)
        else:
            for sweep in self.unit.sweeps.data:
                self.begin(sweep)
                self.passes(ops, holds)
                self.end_loops(self.shared)
        self.end_loops(0)
        for op in list(self.bodies[0].ops):
            op.detach()
            self.program.body.add_op(op)
        self.program.names.kept_bytes[self.number] = self.tiles.kept_bytes
        self.yield_tiles()

    def begin(self, sweep: Sweep) -> None:
        """Open a sweep's loops; buffers of the one before are done.  Of several each has one loop at least, so that
        what it moves is its own."""
        counts = sweep.counts or ((1,) if self.is_in_parts else ())
        self.loops += [(None, count) for count in counts]
        self.bodies += [Block() for _ in counts]
        self.levels |= {ROWS: self.inside(sweep.row), COLUMNS: self.inside(sweep.column)}
        self.tiles.forget(self.shared)

    def inside(self, place: Affine) -> Affine:
        """An affine of a sweep's loops as one of all loops."""
        return Affine(place.base, (0,) * self.shared + place.loops if place.loops else (), place.cluster)

    def least_depth(self, starts: Sequence[Affine]) -> int:
        """Loops that must be open for what begins here, in tile indices: one's own sweep if it moves with it."""
        moves = any(any(start.loops[ROWS:]) for start in starts)
        return self.shared + 1 if self.is_in_parts and moves else 0

    @property
    def is_in_parts(self) -> bool:
        """Whether the unit has several sweeps."""
        return self.unit.sweeps is not None and len(self.unit.sweeps.data) > 1

    def passes(self, ops: Sequence[Operation], holds: Holds) -> None:
        """The innermost body, and what it needs in those around it."""
        layers = [op for op in ops if isinstance(op, t.ComputeOp)]
        loads: list[tuple[ahead.Slots, list[Operation]]] = []
        for op in ops:
            if isinstance(op, t.LoadOp) and op.result not in self.tiles.fixed:
                before = self.innermost.last_op
                load(self, op)
                if slots := self.slots_of_load(op, layers):
                    loads.append((slots, ahead.behind(self.innermost, before)))
        for i, op in enumerate(layers):
            if op not in holds:
                holds[op] = hold(self, op, self.first_layer + i)
        self.stage = self.inner_stage()
        placed = self.let_ahead(loads, holds)
        for op in layers:
            self.tiles.place(op.result, op.region.data)
        ends: list[Operation] = []  # the last operation of each layer
        for op in ops:
            before = self.innermost.last_op
            if isinstance(op, t.ComputeOp):
                self.layer(op, holds)
                self.innermost.add_ops(placed.get(len(ends), ()))
                ends.append(one(self.innermost.last_op))
                continue
            self.after_layer(op)
            if isinstance(op, t.StoreOp) and streams(holds) and (slots := self.slots_of_store(op, layers)):
                self.let_behind(slots, ahead.behind(self.innermost, before), ends)

    def slots_of_store(self, op: t.StoreOp, layers: Sequence[t.ComputeOp]) -> ahead.Slots | None:
        """Behind which layers of the next pass a store may stand; None: it stays behind its own."""
        home, tile = self.program.homes[op.tile], tile_of(op.tile)
        is_inside = self.loops and home.depth == len(self.loops) and home.is_alone and not self.unit.sweeps
        if not is_inside or home.is_resident or tile.ring or tile.raster or op.tile.owner not in layers:
            return None
        return ahead.store_slots(layers.index(op.tile.owner), len(layers), self.unit.depth.value.data) or None

    def let_behind(self, slots: ahead.Slots, ops: Sequence[Operation], ends: Sequence[Operation]) -> None:
        """Put a store, one pass late, behind layers that are written already, or, of several copies, are not."""
        ahead.set_stage(ops, self.stage + 1)
        among = ahead.Slots(slots.first, min(slots.stop, len(ends)))
        for place, parts in ahead.spread(ops, among, in_parts=True).items():
            for op in parts:
                if op.parent is not None:
                    op.detach()
            self.innermost.insert_ops_after(parts, ends[place])

    def slots_of_load(self, op: t.LoadOp, layers: Sequence[t.ComputeOp]) -> ahead.Slots | None:
        """Behind which layers a load of the innermost body may stand; None: it stays in front of them."""
        home, uses = self.program.homes[op.result], list(op.result.uses)
        readers = [i for i, layer in enumerate(layers) if op.result in layer.tiles]
        is_inside = self.loops and home.depth == len(self.loops) and home.is_alone and not self.unit.sweeps
        if not is_inside or not readers or len(readers) != len(uses):
            return None
        return ahead.load_slots(readers, len(layers), self.unit.depth.value.data) or None

    def let_ahead(
        self, loads: Sequence[tuple[ahead.Slots, list[Operation]]], holds: Holds
    ) -> dict[int, list[Operation]]:
        """The loads of the innermost body by the layer behind which they stand, one pass ahead of all else."""
        if not loads:
            return {}
        early = {op for _, ops in loads for op in ops}
        if self.stage == 0:
            self.stage = 1
            ahead.set_stage([op for op in self.innermost.ops if op not in early], 1)
        placed: dict[int, list[Operation]] = {}
        for slots, ops in loads:
            own = ahead.spread(ops, slots, in_parts=streams(holds))
            for place, parts in own.items():
                if place >= 0:
                    for op in parts:
                        if op.parent is not None:
                            op.detach()
                    placed.setdefault(place, []).extend(parts)
                else:
                    self.innermost.add_ops(op for op in parts if op.parent is None)
        return placed

    def after_layer(self, op: Operation) -> None:
        """What is done with tiles that are there."""
        if isinstance(op, t.ConcatOp):
            self.tiles.placed[op.result] = joined([self.tiles[operand] for operand in op.tiles])
        elif isinstance(op, t.StoreOp | t.SendOp):
            if op not in self.gone:
                leave(self, self.leaving(op))
        elif isinstance(op, t.MoveOp):
            self.move(op)

    def leaving(self, op: t.StoreOp | t.SendOp) -> Leaving:
        """What an operation takes out of a tile."""
        return stored(self, op) if isinstance(op, t.StoreOp) else sent(self, op)

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

    def end_loops(self, outer_depth: int) -> None:
        """Nest the bodies into the one at a depth."""
        for depth in range(len(self.loops) - 1, outer_depth - 1, -1):
            outer, body = self.bodies[depth], self.bodies[depth + 1]
            moves = depth and any(not isinstance(op, isa.AllocOp | isa.RepeatOp) for op in outer.ops)
            stage = 1 if moves and self.unit.depth.value.data > 1 else 0
            outer.add_op(isa.RepeatOp(self.loops[depth][1], Region(body), stage=stage))
        del self.loops[outer_depth:], self.bodies[outer_depth + 1 :]

    def tags(self, layer: int) -> dict[str, int]:
        return {"layer": layer, "unit": self.number}

    @property
    def last_layer(self) -> int:
        """Number of the layer written last: what follows it belongs to it; what comes before any (inputs joined, sent
        or stored) to the unit's first."""
        return max(self.written, self.first_layer)

    def passes_outside(self, dimension: int) -> Affine:
        """Which pass of the loops outside of a dimension's own this is; raises if others are inside."""
        own = [level for level, (d, _) in enumerate(self.loops) if d == dimension]
        level = own[0] if own else len(self.loops)
        if level < len(self.loops) - 1 or self.unit.sweeps is not None:
            raise PassFailedException(
                f"unit {self.unit.unit_name.data}: rows roll in the innermost loop, found loops {self.unit.loop_order}"
            )
        number, passes = Affine(), 1
        for outer in range(level - 1, -1, -1):
            number, passes = number + Affine.index(outer, passes), passes * self.loops[outer][1]
        return number

    # ------------------------------------------------------------ layers

    def layer(self, op: t.ComputeOp, holds: Holds) -> None:
        """A layer, and what leaves its result piece by piece; stores do not among streamed weights: the engine that
        loads those would wait for computing with each of them."""
        number = self.number_of(op, op.kind.data)
        site = Site(len(self.loops), self.target.cluster.cores, self.stage, self.tags(number))
        operands = [self.tiles[o] for o in op.tiles]
        layer = LayerLowering(op, operands, self.tiles[op.result], *holds[op], site)
        self.gone -= set(self.leavers(op))
        for user in self.leavers(op):
            waits = isinstance(user, t.StoreOp) and (streams({op: holds[op]}) or (self.loops and streams(holds)))
            if not waits and layer.takes(self.leaving(user)):
                self.gone.add(user)
        layer.emit(self.innermost)

    def leavers(self, op: t.ComputeOp) -> list[t.StoreOp | t.SendOp]:
        """What stores or sends a layer's result, in order."""
        users = {use.operation for use in op.result.uses}
        return [o for o in self.unit.body.block.ops if isinstance(o, t.StoreOp | t.SendOp) and o in users]

    def number_of(self, op: Operation, kind: str) -> int:
        """The number of a layer, which it gets the first time; it is then the one written last."""
        if op not in self.numbers:
            counts = [op.attributes.get(name) for name in (MACS, OWN_ELEMENTS)]
            useful, own = (each.value.data if isinstance(each, IntegerAttr) else 0 for each in counts)
            self.numbers[op] = self.program.names.layer(op, kind, useful, own)
        self.written = self.numbers[op]
        return self.written

    def move(self, op: t.MoveOp) -> None:
        source, result = self.tensors[op.source], self.unit.results[op.output.value.data]
        number = self.number_of(op, "move")
        target = self.program.declared.buffers[result]
        self.innermost.add_ops(lower_move(op, source, target, self.clusters, self.tags(number)))


def streams(holds: Holds) -> bool:
    """Whether the weights of some layer are brought piece by piece while it computes."""
    return any(source is not None and source.placed is None for source, _ in holds.values())


def one(op: Operation | None) -> Operation:
    assert op is not None
    return op
