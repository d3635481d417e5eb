"""Tile level to instructions with symbolic buffers: loops, copies, computations; no addresses, no events yet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, NameLoc, StringAttr, TensorType, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Element, ExternalClass, View
from frustum.dialects.target import Target
from frustum.dialects.unit import Extents
from frustum.passes.analysis.module import element_of, target_of
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.blocks import CHANNELS, Part, by_blocks, exactly, whole_part
from frustum.passes.lower.compute import LayerLowering, Site, WeightSource
from frustum.passes.lower.memory_map import (
    Placed,
    at_levels,
    box_at_levels,
    byte_strides,
    four,
    tile_bytes,
)
from frustum.passes.tile.lower_units import PRODUCED
from frustum.passes.tile.plan_unit import TILE_ORDER

MODEL_DTYPES = "frustum.model_dtypes"
"""Attribute of the network: numpy names of the types that the host passes and expects, inputs then outputs."""


@dataclass(frozen=True)
class LowerTiles(ModulePass):
    """Write units as instructions.

    Before: one network of `ftile.unit`, weights and reshapes.  After: one `fisa.program`; a barrier stands between
    units, and the page of the program after next is fetched in each.
    """

    name = "frustum-lower-tiles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for network in [o for o in op.walk() if isinstance(o, g.NetworkOp)]:
            program = Lowering(network, target).run()
            op.attributes.update(program.names.attributes())
            block = network.parent
            assert block is not None
            block.insert_op_before(program.op, network)
            network.detach()
            network.erase()


@dataclass
class Names:
    """Names for reports, by number: layers with their multiply-accumulates, units with what is said of them."""

    layers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    macs: list[int] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    tiles: list[int] = field(default_factory=list)
    unit_of: list[int] = field(default_factory=list)

    def layer(self, op: Operation, kind: str, macs: int) -> int:
        name = op.location.desc.data if isinstance(op.location, NameLoc) else f"{kind}_{len(self.layers)}"
        self.layers.append(name)
        self.kinds.append(kind)
        self.macs.append(macs)
        self.unit_of.append(len(self.units) - 1)
        return len(self.layers) - 1

    def unit(self, unit: t.UnitOp, tiles: int) -> int:
        self.units.append(unit.unit_name.data)
        self.modes.append(unit.mode.data if unit.mode else "")
        self.stopped.append(unit.stopped_by.data if unit.stopped_by else "")
        self.tiles.append(tiles)
        return len(self.units) - 1

    def attributes(self) -> dict[str, ArrayAttr[Any]]:
        def texts(values: Iterable[str]) -> ArrayAttr[Any]:
            return ArrayAttr([StringAttr(v) for v in values])

        def numbers(values: Iterable[int]) -> ArrayAttr[Any]:
            return ArrayAttr([IntegerAttr(v, i64) for v in values])

        return {
            "frustum.layers": texts(self.layers),
            "frustum.layer_kinds": texts(self.kinds),
            "frustum.useful_macs": numbers(self.macs),
            "frustum.layer_units": numbers(self.unit_of),
            "frustum.units": texts(self.units),
            "frustum.unit_modes": texts(self.modes),
            "frustum.unit_stopped_by": texts(self.stopped),
            "frustum.unit_tiles": numbers(self.tiles),
        }


@dataclass
class Lowered:
    op: isa.ProgramOp
    names: Names


class Lowering:
    """One network to one program."""

    def __init__(self, network: g.NetworkOp, target: Target):
        self.network, self.target = network, target
        self.names = Names()
        self.body = Block()
        self.buffers: dict[SSAValue, SSAValue] = {}
        self.weights: dict[str, SSAValue] = {}

    def run(self) -> Lowered:
        self.declare()
        units = [op for op in self.network.body.block.ops if isinstance(op, t.UnitOp)]
        self.body.add_op(isa.FetchOp(0))
        for page in range(len(units) + 1):
            if page < len(units):
                self.body.add_op(isa.FetchOp(page + 1))
            if page:
                UnitLowering(self, units[page - 1]).run()
            if page < len(units):
                self.body.add_op(isa.BarrierOp())
        return Lowered(isa.ProgramOp(self.network.sym_name.data, Region(self.body)), self.names)

    # ------------------------------------------------------------ DRAM buffers

    def declare(self) -> None:
        """Externals: inputs, weights in use, results of units; a reshape shares its operand's buffer."""
        block = self.network.body.block
        roots = self.output_roots()
        dtypes = self.model_dtypes()
        for i, (name, argument) in enumerate(zip(self.network.inputs, block.args, strict=True)):
            self.buffers[argument] = self.external(name, "input", argument, dtypes[i])
        for op in block.ops:
            if isinstance(op, g.ReshapeOp):
                self.buffers[op.result] = self.buffers[op.x]
            elif isinstance(op, g.WeightOp):
                self.buffers[op.result] = self.weight(op)
            elif isinstance(op, t.UnitOp):
                self.declare_unit(op, roots, dtypes[len(block.args) :])
            elif not isinstance(op, g.OutputOp):
                raise PassFailedException(f"{op.name} is in no unit: run frustum-tile-lower-units first")

    def declare_unit(
        self, unit: t.UnitOp, roots: dict[SSAValue, tuple[int, SSAValue]], output_dtypes: Sequence[str | None]
    ) -> None:
        """A unit's weights, and its results as outputs of the network or as intermediate maps."""
        for inner in unit.body.block.ops:
            if isinstance(inner, g.WeightOp):
                self.weight(inner)
        for k, result in enumerate(unit.results):
            if result in roots:
                position, value = roots[result]
                name = self.network.outputs[position]
                self.buffers[result] = self.external(name, "output", value, output_dtypes[position])
            else:
                self.buffers[result] = self.external(
                    f"{unit.unit_name.data}.{k}", "intermediate", result, None
                )

    def model_dtypes(self) -> list[str | None]:
        attribute = self.network.attributes.get(MODEL_DTYPES)
        count = len(self.network.inputs) + len(self.network.outputs)
        if not isinstance(attribute, ArrayAttr):
            return [None] * count
        return [cast(StringAttr, a).data for a in attribute.data]

    def output_roots(self) -> dict[SSAValue, tuple[int, SSAValue]]:
        """The unit result behind each network output (through reshapes): output number and the output's own value."""
        roots: dict[SSAValue, tuple[int, SSAValue]] = {}
        for position, value in enumerate(self.network.terminator.values):
            root = value
            while isinstance(root.owner, g.ReshapeOp):
                root = root.owner.x
            if not isinstance(root.owner, t.UnitOp) or root in roots:
                raise PassFailedException(
                    f"output '{self.network.outputs[position]}' has no buffer of its own: run frustum-graph-own-outputs"
                )
            roots[root] = (position, value)
        return roots

    def weight(self, op: g.WeightOp) -> SSAValue:
        key = op.key.data
        if key not in self.weights:
            self.weights[key] = self.external(key, "weight", op.result, None)
        return self.weights[key]

    def external(self, name: str, kind: ExternalClass, value: SSAValue, model_dtype: str | None) -> SSAValue:
        assert isinstance(value.type, TensorType)
        shape = tuple(value.type.get_shape())
        element = element_of(value.type.element_type)
        size = max(1, math.prod(shape)) * ELEMENT_BYTES[element]
        op = isa.ExternalOp(name, kind, size, shape, element, model_dtype=model_dtype)
        self.body.add_op(op)
        return op.buffer


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
            argument: program.buffers[operand]
            for argument, operand in zip(block.args, unit.operands, strict=True)
        }
        self.tiles: dict[SSAValue, Placed] = {}
        self.bodies = [Block() for _ in range(len(self.loops) + 1)]
        self.computed: list[t.ComputeOp] = []
        self.held: dict[tuple[str, Affine, int], Placed] = {}

    def run(self) -> None:
        ops = list(self.unit.body.block.ops)
        for op in ops:
            if isinstance(op, g.WeightOp):
                self.tensors[op.result] = self.program.weight(op)
            elif isinstance(op, t.LoadOp):
                self.load(op)
        layers = [op for op in ops if isinstance(op, t.ComputeOp)]
        holds = [self.hold(op) for op in layers]
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
            shared = self.is_shared(start)
            return isa.CopyOp(
                "gdma", self.tensors[op.source], alloc.buffer, src_view=source, dst_view=own, box=part.box, fill=fill,
                multicast=shared, stage=stage, **tags,
            )  # fmt: skip

        by_blocks(body, copy, whole_part(start, region), view.block, depth, 0)
        self.tiles[op.result] = placed

    def is_shared(self, start: Sequence[Affine]) -> bool:
        return self.clusters > 1 and not any(s.cluster for s in start)

    def store(self, op: t.StoreOp, stage: int) -> None:
        placed, region, view = self.tiles[op.tile], op.region.data, op.view.data
        start = box_at_levels(region, self.levels)
        result = self.unit.results[op.output.value.data]
        tags = cast(Any, self.tags(self.next_layer() - 1))

        def copy(part: Part, stage: int) -> isa.CopyOp:
            target = dram_view(placed.element, view, part.start, ELEMENT_BYTES[placed.element])
            return isa.CopyOp(
                "gdma", placed.buffer, self.program.buffers[result], src_view=placed.view(part.start),
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

    def hold(self, op: t.ComputeOp) -> tuple[WeightSource | None, dict[str, Placed]]:
        """The weights of a layer, and by name what else it has per output channel.

        In SRAM at the loop that moves them; weights may be streamed later.
        """
        tensors = op.tensors
        if op.kind.data != "conv":
            return None, {}
        params = t.to_plain(op.params)
        region = op.region.data
        channels = at_levels(region.start[1], self.levels)
        element = element_of(cast(TensorType[Any], tensors[0].type).element_type)
        size = ELEMENT_BYTES[element]
        batch = params["weight_batch"]
        dims = (region.bound[1], params["channels"], *params["kernel"])
        strides = params["weight_strides"]
        if batch:
            dims, strides = (*dims[:3], region.bound[0]), (*strides[:3], batch)
        source = WeightSource(
            None,
            self.tensors[tensors[0]],
            element,
            four(dims),
            four([s * size for s in strides]),
            bool(batch),
        )
        layer = self.program.names.layers
        number = len(layer) + [o for o in self.unit.body.block.ops if isinstance(o, t.ComputeOp)].index(op)
        if op.map.data.weights == "unit":
            extent = four([region.extent[1], *dims[1:]])
            start = (channels, Affine(), Affine(), Affine())
            placed = self.keep(source.tensor, element, start, extent, four(dims), source.strides, number)
            source = WeightSource(
                placed, source.tensor, element, source.dims, source.strides, source.is_batched
            )
        names = params.get("vectors", "bias").split()
        extent, bound = (1, region.extent[1], 1, 1), (1, region.bound[1], 1, 1)
        vectors = {}
        for name, tensor in zip(names, tensors[1:], strict=len(tensors) > 1):
            kind = element_of(cast(TensorType[Any], tensor.type).element_type)
            start, strides = (Affine(), channels, Affine(), Affine()), (0, ELEMENT_BYTES[kind], 0, 0)
            vectors[name] = self.keep(self.tensors[tensor], kind, start, extent, bound, strides, number)
        return source, vectors

    def keep(
        self,
        tensor: SSAValue,
        element: Element,
        start: tuple[Affine, ...],
        extent: Extents,
        bound: Extents,
        strides: tuple[int, int, int, int],
        layer: int,
    ) -> Placed:
        """Part of a weight tensor in SRAM, in the order in which it lies in DRAM."""
        tile = t.Tile(element, extent, memory_order(strides, bound))
        depth = self.depth_of(*start)
        alloc = isa.AllocOp("sram", tile_bytes(tile), self.copies(depth))
        placed = Placed(element, start, extent, bound, byte_strides(tile), alloc.buffer)
        offset = Affine()
        for position, stride in zip(start, strides, strict=True):
            offset = offset + position * stride
        copy = isa.CopyOp(
            "gdma",
            tensor,
            alloc.buffer,
            src_view=View(element, offset, strides),
            dst_view=placed.own_view,
            box=Box(cast(Any, start), extent, bound),
            multicast=self.is_shared(start),
            **cast(Any, self.tags(layer)),
        )
        self.bodies[depth].add_ops([alloc, copy])
        return placed

    # ------------------------------------------------------------ moves

    def move(self, op: t.MoveOp) -> None:
        """DRAM to SRAM to DRAM, in a nest of loops of its own."""
        partition = op.partition.data
        dims = four([int(v) for v in op.dims.get_values()])
        low = [int(v) for v in op.low.get_values()]
        bound = four([int(v) for v in op.bound.get_values()])
        element = element_of(cast(TensorType[Any], op.source.type).element_type)
        size = ELEMENT_BYTES[element]
        dealt = [self.clusters if d == partition.clusters else 1 for d in range(4)]
        counts = [math.ceil(math.ceil(dims[d] / partition.tile[d]) / dealt[d]) for d in range(4)]
        loops = [d for d in range(4) if counts[d] > 1]
        start = []
        for d in range(4):
            step = partition.tile[d] * dealt[d]
            own = Affine.index(loops.index(d), step) if d in loops else Affine()
            start.append(own + Affine(cluster=partition.tile[d]) if dealt[d] > 1 else own)
        source, target = op.source_view.data, op.target_view.data
        tile = t.Tile(element, partition.tile, memory_order(source.strides, bound))
        alloc = isa.AllocOp("sram", tile_bytes(tile), 2 if loops else 1)
        local = View(element, Affine(), byte_strides(tile))
        number = self.program.names.layer(op, "move", 0)
        tags = cast(Any, self.tags(number))
        shifted = tuple(s + x for s, x in zip(start, low, strict=True))
        read = isa.CopyOp(
            "gdma",
            self.tensors[op.source],
            alloc.buffer,
            src_view=dram_view(element, source, shifted, size),
            dst_view=local,
            box=Box(cast(Any, shifted), partition.tile, bound),
            fill=None if op.fill is None else op.fill.value.data,
            multicast=self.is_shared(shifted),
            **tags,
        )
        result = self.unit.results[op.output.value.data]
        write = isa.CopyOp(
            "gdma",
            alloc.buffer,
            self.program.buffers[result],
            src_view=local,
            dst_view=dram_view(element, target, start, size),
            box=Box(cast(Any, tuple(start)), partition.tile, dims),
            stage=1 if loops else 0,
            **tags,
        )
        block = Block()
        block.add_ops([alloc, read, write])
        for d in reversed(loops):
            outer = Block()
            outer.add_op(isa.RepeatOp(counts[d], Region(block)))
            block = outer
        for inner in list(block.ops):
            inner.detach()
            self.innermost.add_op(inner)


def dram_view(element: Element, view: t.TensorView, start: Sequence[Affine], size: int) -> View:
    """The view of a DRAM tensor whose nominal first element is at position `start` of the four dimensions."""
    offset = Affine(view.offset * size)
    for d, (position, stride) in enumerate(zip(start, view.strides, strict=True)):
        steps = position if d != CHANNELS or view.block == 1 else exactly(position, view.block)
        offset = offset + steps * (stride * size)
    return View(element, offset, four([s * size for s in view.near]))
