# Tests: test/pipeline/test_stops_agree.py
"""One unit: its tile loops, with loads and held weights at the loop that moves them, layers inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import Box
from frustum.dialects.module import MACS, OWN_ELEMENTS
from frustum.dialects.target import Target
from frustum.passes.lower.unit import prefetch
from frustum.passes.lower.unit.attention import AttentionLowering
from frustum.passes.lower.unit.kept_weights import staying, wram_need
from frustum.passes.lower.unit.layer import LayerLowering
from frustum.passes.lower.unit.layer_nest import LayerNest, MapSource, Site, WeightSource
from frustum.passes.lower.unit.layer_pieces import LayerPieces
from frustum.passes.lower.unit.memory_map import Placed, Tags, box_at_levels, byte_strides, is_shared
from frustum.passes.lower.unit.piece_stores import Leaving
from frustum.passes.lower.unit.program import ProgramBody, Window
from frustum.passes.lower.unit.run import Inside, pieces_of_run
from frustum.passes.lower.unit.streamed_attention import StreamedAttention
from frustum.passes.lower.unit.tile_loops import TileLoops
from frustum.passes.lower.unit.tiles import Tiles, joined, resident
from frustum.passes.lower.unit.transfers import hold, leave, load, lower_move, sent, stored

CHUNK_SHARE, LEAST_CHUNK_BYTES = 32, 2048
"""Weights that wait in the cores come there in chunks of this share of SRAM, or so many bytes."""
Holds: TypeAlias = dict[t.ComputeOp, tuple[WeightSource | None, dict[str, Placed]]]
"""Of each layer its weights, and by name what else it has per output channel."""


class UnitLowering:
    """One `ftile.unit`.

    `tiles`, `tensors`: where its tiles and its tensors lie; `stage`: of what is computed and stored in the innermost
    body; `gone`: stores and sends that go piece by piece.
    """

    def __init__(self, program: ProgramBody, unit: t.UnitOp):
        self.program = program
        self.unit = unit
        self.target: Target = program.target
        self.loops: TileLoops = TileLoops(unit, self.target.chip.clusters)
        self.number: int = program.names.unit(unit, math.prod(unit.tile_counts))
        self.first_layer: int = len(program.names.layers)
        self.numbers: dict[Operation, int] = {}
        self.written: int = self.first_layer - 1
        self.tensors: dict[SSAValue, Window] = {}
        self.tiles: Tiles = Tiles(self.loops, program.homes, program.body)
        self.stage: int = 0
        self.gone: set[Operation] = set()
        self.staying: set[Operation] = set()
        self.moved: set[Operation] = set()  # layers that only copy what a load then brings where they would put it
        self.in_core: dict[Operation, SSAValue] = {}
        """Where all weights of a layer are in the cores before its first tile."""

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
                self.loops.begin(sweep)
                self.tiles.forget(self.loops.shared)  # buffers of the one before are done
                self.passes(ops, holds)
                self.loops.end(self.loops.shared)
            for op in (o for o in ops if isinstance(o, t.SendOp) and t.is_at_end(o, self.unit)):
                leave(self.loops, self.leaving(op), 0)
        self.loops.end(0)
        for op in list(self.loops.bodies[0].ops):
            op.detach()
            self.program.body.add_op(op)
        self.program.names.kept_bytes[self.number] = self.tiles.kept_bytes
        self.yield_tiles()

    def passes(self, ops: Sequence[Operation], holds: Holds) -> None:
        """The innermost body, and what it needs in those around it."""
        body, homes = self.loops.innermost, self.program.homes
        layers = [op for op in ops if isinstance(op, t.ComputeOp) and not t.is_in_core(op.result)]
        runs = [t.run_of(layer) for layer in layers]
        loads = self.loads(ops, layers)
        for i, layer in enumerate(each for run in runs for each in run):
            if layer not in holds:
                site, always = self.site(self.first_layer + i), self.program.hold or t.is_in_core(layer.result)
                holds[layer] = hold(self.loops, layer, self.tensors, site, always=always)
        self.staying = self.whose_weights_stay(layers, holds)
        self.stage = self.loops.inner_stage()
        placed = prefetch.put_ahead(body, loads, self.stage, in_parts=streams(holds))
        self.stage = max(self.stage, 1) if loads else self.stage
        for layer in layers:
            self.tiles.place(layer.result, layer.region.data)
        ends: list[Operation] = []  # the last operation of each layer
        for op in ops:
            before = body.last_op
            if isinstance(op, t.ComputeOp | t.ConcatOp) and t.is_in_core(op.result):
                continue  # its reader makes it
            if isinstance(op, t.ComputeOp):
                self.layer(op, holds)
                body.add_ops(placed.get(len(ends), ()))
                ends.append(one(body.last_op))
                continue
            self.after_layer(op)
            if isinstance(op, t.StoreOp) and streams(holds):
                gaps = prefetch.gaps_of_store(op, homes[op.tile], layers, self.loops)
                if gaps:
                    prefetch.put_behind(body, gaps, prefetch.behind(body, before), ends, self.stage)

    def whose_weights_stay(self, layers: Sequence[t.ComputeOp], holds: Holds) -> set[Operation]:
        """The layers whose weights stay in WRAM from tile to tile."""
        if not len(self.loops):
            return set()
        cores = self.target.cluster.cores
        needs = [wram_need([(each, *holds[each]) for each in t.run_of(layer)], cores) for layer in layers]
        stays = staying(needs, self.target.core.wram.capacity_bytes)
        return {layer for layer, is_kept in zip(layers, stays, strict=True) if is_kept}

    def loads(
        self, ops: Sequence[Operation], layers: Sequence[t.ComputeOp]
    ) -> list[tuple[prefetch.Gaps, list[Operation]]]:
        """Write all loads; of those that may stand among the layers: where, and what they are."""
        found, body = [], self.loops.innermost
        for op in ops:
            if isinstance(op, t.LoadOp) and op.result not in self.tiles.fixed and not t.is_in_rounds(op.result):
                before = body.last_op
                self.load(op, layers)
                is_moved, home = copy_of(op) in self.moved, self.program.homes[op.result]
                if not is_moved and (gaps := prefetch.gaps_of_load(op, home, layers, self.loops)):
                    found.append((gaps, prefetch.behind(body, before)))
        return found

    def load(self, op: t.LoadOp, layers: Sequence[t.ComputeOp]) -> None:
        """A tile's region from DRAM; it belongs to the layer that first reads it."""
        if (copied := copy_of(op)) is not None and self.program.homes[copied.result].is_resident:
            self.tiles.placed[op.result] = self.tiles.place(copied.result, copied.region.data)
            self.moved.add(copied)
        placed = self.tiles[op.result] if copied in self.moved else self.tiles.place(op.result, op.region.data)
        depth = max(self.loops.depth_of(placed.start), self.program.homes[op.result].depth)
        computes = [each for layer in layers for each in t.run_of(layer)]
        reader = next((i for i, layer in enumerate(computes) if op.result in layer.operands), 0)
        tags = self.tags(self.first_layer + reader)
        load(self.loops, op, self.tensors[op.source], placed, depth, tags)
        for use in op.result.uses:
            if isinstance(use.operation, t.SendOp):
                leave(self.loops, self.leaving(use.operation), 0, depth)
                self.gone.add(use.operation)

    def after_layer(self, op: Operation) -> None:
        """What is done with tiles that are there."""
        if isinstance(op, t.ConcatOp):
            self.tiles.placed[op.result] = joined([self.tiles[operand] for operand in op.tiles])
        elif isinstance(op, t.StoreOp | t.SendOp):
            if op not in self.gone and not t.is_at_end(op, self.unit):
                leave(self.loops, self.leaving(op), self.stage)
        elif isinstance(op, t.MoveOp):
            self.move(op)

    def leaving(self, op: t.StoreOp | t.SendOp) -> Leaving:
        """What an operation takes out of a tile; it belongs to the layer written last, or, where it comes before any
        (inputs joined, sent or stored), to the unit's first."""
        placed, tags = self.tiles[op.tile], self.tags(max(self.written, self.first_layer))
        if isinstance(op, t.StoreOp):
            buffer = self.program.declared.buffers[self.unit.results[op.output.value.data]]
            return stored(self.loops, op, placed, buffer, self.target.memory("dram").minimum_run_bytes, tags)
        if self.target.chip.cluster.cdma is None:
            name = self.unit.unit_name.data
            raise PassFailedException(f"unit {name} sends between clusters; the target has no cdma")
        return sent(self.loops, op, placed, self.target.memory("sram").minimum_run_bytes, tags)

    def read_operands(self) -> None:
        """Where the block arguments lie: tensors in DRAM, tiles that earlier units have left in SRAM."""
        for argument, operand in zip(self.unit.body.block.args, self.unit.operands, strict=True):
            if isinstance(operand.type, t.TileType):
                self.tiles.placed[argument] = left_behind(operand, self.program.tiles)
            else:
                self.tensors[argument] = self.program.declared.buffers[operand]

    def yield_tiles(self) -> None:
        """Remember where the tiles lie that stay in SRAM."""
        results = [r for r in self.unit.results if isinstance(r.type, t.TileType)]
        for value, result in zip(one(self.unit.body.block.last_op).operands, results, strict=True):
            self.program.tiles[result] = resident(self.tiles[value], t.tile_of(result))

    def tags(self, layer: int) -> Tags:
        return {"layer": layer, "unit": self.number}

    def site(self, layer: int) -> Site:
        chunk = max(LEAST_CHUNK_BYTES, self.target.cluster.sram.capacity_bytes // CHUNK_SHARE)
        tags, run = self.tags(layer), self.target.chip.dram.minimum_run_bytes
        return Site(len(self.loops), self.target.cluster.cores, self.stage, tags, chunk_bytes=chunk, run_bytes=run)

    # ------------------------------------------------------------ layers

    def layer(self, op: t.ComputeOp, holds: Holds) -> None:
        """A layer, and what leaves its result piece by piece; stores do not among streamed weights: the engine that
        loads those would wait for computing with each of them."""
        for each in t.run_of(op):
            self.number_of(each, each.kind.data)
        if op in self.moved:
            return
        stays = op in self.staying

        def site(each: t.ComputeOp) -> Site:
            return replace(self.site(self.numbers[each]), keeps_weights=stays, in_core=self.in_core.get(each))

        inside = Inside(self.place, holds.__getitem__, site, self.loops.bodies[0].add_ops)
        operands, out = [self.place(o) for o in op.tiles], self.tiles[op.result]
        layer: LayerLowering | AttentionLowering | StreamedAttention
        if isinstance(op.layer, t.AttentionLayer) and op.layer.is_batched:
            keys, values = (self.tensors[value] for value in op.tensors)
            layer = StreamedAttention(op, operands, out, site(op), (keys, values), self.loops)
        elif isinstance(op.layer, t.AttentionLayer):
            layer = AttentionLowering(LayerNest(op, operands, out, site(op)))
        else:
            made, before = pieces_of_run(op, operands, out, inside)
            pieces = LayerPieces(op, operands, out, *holds[op], site(op), made, sources=self.sources(op))
            layer = LayerLowering(pieces, before)
            self.loops.bodies[0].add_ops(layer.pieces.kept)
            if op.map.data.weights == "core" and layer.pieces.weight_piece is not None:
                self.in_core[op] = layer.pieces.weight_piece.buffer
        leavers = self.leavers(op)
        self.gone -= set(leavers)
        for user in leavers:
            waits = isinstance(user, t.StoreOp) and (
                streams({op: holds[op]}) or (len(self.loops) and streams(holds))
            )
            if not waits and layer.takes(self.leaving(user)):
                self.gone.add(user)
        layer.emit(self.loops.innermost)

    def place(self, value: SSAValue) -> Placed:
        """The place of a tile in SRAM; of one in the core, which has none, what each pass needs of the map."""
        if t.is_in_rounds(value):
            assert isinstance(value.owner, t.LoadOp)
            return self.unplaced(value, value.owner.region.data)
        if not t.is_in_core(value):
            return self.tiles[value]
        if isinstance(value.owner, t.ConcatOp):
            return joined([self.place(part) for part in value.owner.tiles])
        assert isinstance(value.owner, t.ComputeOp)
        return self.unplaced(value, value.owner.region.data)

    def unplaced(self, value: SSAValue, region: Box) -> Placed:
        """What each pass needs of a map, which has no buffer in SRAM."""
        start, tile = box_at_levels(region, self.loops.levels), t.tile_of(value)
        return Placed(tile.element, start, region.extent, region.bound, byte_strides(tile))

    def sources(self, op: t.ComputeOp) -> dict[int, MapSource]:
        """Where a layer in rounds finds its operands, by number, but for those that are in SRAM."""
        return {k: self.source(tile.owner) for k, tile in enumerate(op.tiles) if t.is_in_rounds(tile)}

    def source(self, load: Operation | Block) -> MapSource:
        """Where what a unit loads lies in DRAM."""
        assert isinstance(load, t.LoadOp)
        window, start = self.tensors[load.source], box_at_levels(load.region.data, self.loops.levels)
        return MapSource(window.buffer, window.view(load.view.data), is_shared(start, self.loops.clusters))

    def leavers(self, op: t.ComputeOp) -> list[t.StoreOp | t.SendOp]:
        """What stores or sends a layer's result, in order."""
        users = {use.operation for use in op.result.uses}
        ops = [o for o in self.unit.body.block.ops if isinstance(o, t.StoreOp | t.SendOp) and o in users]
        return [o for o in ops if not t.is_at_end(o, self.unit)]

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
        self.loops.innermost.add_ops(lower_move(op, source, target, self.loops.clusters, self.tags(number)))


def left_behind(value: SSAValue, tiles: Mapping[SSAValue, Placed]) -> Placed:
    """A tile of earlier units, perhaps of several one behind the other."""
    if isinstance(value.owner, t.ConcatOp):
        return resident(joined([left_behind(v, tiles) for v in value.owner.tiles]), t.tile_of(value))
    return tiles[value]


def copy_of(op: t.LoadOp) -> t.ComputeOp | None:
    """The only layer of a unit, if it only copies a loaded tile; among other layers loads stand where the port has time
    for them (`prefetch.py`)."""
    users = [use.operation for use in op.result.uses]
    if len(users) != 1 or not isinstance(user := users[0], t.ComputeOp) or op.fill is not None:
        return None
    is_copy = isinstance(user.layer, t.UnaryLayer) and user.layer.kind == "identity" and user.layer.scales is None
    block = one(user.parent_op()).regions[0].block
    is_alone = [each for each in block.ops if isinstance(each, t.ComputeOp)] == [user]
    is_alike = t.tile_of(op.result).element == t.tile_of(user.result).element
    return user if is_copy and is_alone and is_alike and op.region.data == user.region.data else None


def streams(holds: Holds) -> bool:
    """Whether the weights of some layer are brought piece by piece while it computes."""
    sources = ((op.map.data.weights, source) for op, (source, _) in holds.items())
    return any(source is not None and source.held is None and where != "core" for where, source in sources)


def one(op: Operation | None) -> Operation:
    assert op is not None
    return op
