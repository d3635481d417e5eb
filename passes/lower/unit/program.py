# Tests: test/pipeline/test_stops_agree.py
"""What a program has beside its units: DRAM buffers (inputs, weights in use, results of units, outputs), and names."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, NameLoc, StringAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import module as m
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents
from frustum.dialects.foreign import is_foreign, name_of
from frustum.dialects.graph import shape_of
from frustum.dialects.isa.program import ELEMENT_BYTES, ExternalClass
from frustum.dialects.target import Target
from frustum.passes.analysis.module import element_in, layer_name, nodes_of
from frustum.passes.lower.unit.homes import Home
from frustum.passes.lower.unit.memory_map import Placed


@dataclass(frozen=True)
class Window:
    """Where a tensor lies in a DRAM buffer: behind `offset` elements.  Of each of the `spread`, from the inside: where
    its dimensions outside count `own` elements from one position to the next, they lie `whole` elements apart (it is
    part of a concatenation along a dimension behind them)."""

    buffer: SSAValue
    offset: int = 0
    spread: tuple[tuple[int, int], ...] = ()

    def view(self, view: t.TensorView) -> t.TensorView:
        """A view of the tensor as one of the buffer."""
        found = view
        for own, whole in self.spread:
            wider = found.spread(own, whole)
            if wider is None:
                raise PassFailedException(
                    f"part of a concatenation in DRAM is seen with strides {view.strides}, found {found.strides}; "
                    f"allowed are {own} elements and multiples of them for the dimensions outside of that concatenated"
                )
            found = wider
        return replace(found, offset=view.offset + self.offset)

    def part(self, offset: int, own: int, whole: int) -> Window:
        """Of a concatenation that lies here: the operand behind `offset` elements."""
        return Window(self.buffer, self.offset + offset, ((own, whole), *self.spread) if own else self.spread)


class Declarations:
    """The externals of a network, added to `body`; `buffers` of its values, `weights` by key; `roots` of its outputs;
    types that the host passes and expects (`dtypes`), inputs then outputs."""

    def __init__(self, network: g.NetworkOp, body: Block):
        self.network = network
        self.body = body
        self.buffers: dict[SSAValue, Window] = {}
        self.weights: dict[str, SSAValue] = {}
        self.roots: dict[SSAValue, tuple[int, SSAValue]] = self.output_roots()
        unknown = (None,) * (len(network.inputs) + len(network.outputs))
        self.dtypes: tuple[str | None, ...] = m.texts_of(network, m.MODEL_DTYPES) or unknown

    def declare(self) -> None:
        """Externals: inputs, weights in use, results of units; a reshape shares its operand's buffer, and so
        does a part of an input."""
        block = self.network.body.block
        for name, argument, dtype in zip(self.network.inputs, block.args, self.dtypes, strict=False):
            self.buffers[argument] = Window(self.external(name, "input", argument, dtype))
        for op in block.ops:
            if isinstance(op, g.ReshapeOp):
                self.buffers[op.result] = self.buffers[op.x]
            elif isinstance(op, g.PartOp):
                before = op.start * math.prod(shape_of(op.x)[1:])
                self.buffers[op.result] = replace(self.buffers[op.x], offset=self.buffers[op.x].offset + before)
            elif isinstance(op, g.WeightOp):
                self.buffers[op.result] = Window(self.weight(op))
            elif isinstance(op, t.UnitOp):
                self.declare_unit(op)
            elif isinstance(op, g.ConcatOp):
                check_written(op)
            elif is_foreign(op):
                check_unread(op)
            elif not isinstance(op, (g.OutputOp, t.ConcatOp)):
                raise PassFailedException(f"{op.name} is in no unit: run frustum-tile-lower-units first")

    def declare_unit(self, unit: t.UnitOp) -> None:
        """A unit's weights, and its results as outputs of the network or as intermediate maps."""
        for inner in unit.body.block.ops:
            if isinstance(inner, g.WeightOp):
                self.weight(inner)
        for k, result in enumerate(unit.results):
            if isinstance(result.type, TensorType):
                self.place(result, f"{unit.unit_name.data}.{k}")

    def place(self, value: SSAValue, name: str) -> Window:
        """The place of a unit's result or a concatenation: part of another, an output, or an intermediate map."""
        if value in self.buffers:
            return self.buffers[value]
        found = part_of(value)
        if found is not None:
            concat, number = found
            window = self.place(concat.result, name).part(*inside(concat, number))
        elif value in self.roots:
            position, seen = self.roots[value]
            dtype = self.dtypes[len(self.network.inputs) + position]
            window = Window(self.external(self.network.outputs[position], "output", seen, dtype))
        else:
            window = Window(self.external(name, "intermediate", value, None))
        noted = window.buffer.owner
        if found is None and isinstance(noted, Operation) and any(True for _ in readers_of(value)):
            noted.attributes[m.WHY_IN_DRAM] = StringAttr(why_no_view(value))
        self.buffers[value] = window
        return window

    def output_roots(self) -> dict[SSAValue, tuple[int, SSAValue]]:
        """The unit result behind each network output (through reshapes): output number and the output's own value."""
        roots: dict[SSAValue, tuple[int, SSAValue]] = {}
        for position, value in enumerate(self.network.terminator.values):
            root = g.root_of(value)
            if not isinstance(root.owner, (t.UnitOp, g.ConcatOp)) or root in roots:
                raise PassFailedException(
                    f"output '{self.network.outputs[position]}' has no buffer of its own: run frustum-graph-own-outputs"
                )
            roots[root] = (position, value)
        return roots

    def weight(self, op: g.WeightOp) -> SSAValue:
        key = op.key.data
        if key not in self.weights:
            buffer = self.weights[key] = self.external(key, "weight", op.result, None)
            assert isinstance(buffer.owner, isa.ExternalOp)
            known = {name: op.attributes[name] for name in (m.INTEGERS, m.EXPANDED) if name in op.attributes}
            buffer.owner.attributes.update(known)
        return self.weights[key]

    def external(self, name: str, kind: ExternalClass, value: SSAValue, model_dtype: str | None) -> SSAValue:
        shape, element = shape_of(value), element_in(value)
        size = max(1, math.prod(shape)) * ELEMENT_BYTES[element]
        op = isa.ExternalOp(name, kind, size, shape, element, model_dtype=model_dtype)
        self.body.add_op(op)
        return op.buffer


def part_of(value: SSAValue) -> tuple[g.ConcatOp, int] | None:
    """The concatenation that a value is part of, perhaps reshaped, and as which operand."""
    for use in value.uses:
        if isinstance(use.operation, g.ConcatOp):
            return use.operation, use.index
        if isinstance(use.operation, g.ReshapeOp) and (found := part_of(use.operation.result)) is not None:
            return found
    return None


def why_no_view(value: SSAValue) -> str:
    """Why units that read a unit's result, or a concatenation, have no view of the tiles that are made of it; or that
    there is one."""
    makers = list(makers_of(value))
    for maker in makers:
        if isinstance(maker, t.MoveOp):
            return f"no view: '{layer_name(maker)}' moves elements from tensor to tensor"
    made = [seen_by(each) for each in makers if isinstance(each, t.StoreOp)]
    for reader in readers_of(value):
        if isinstance(reader, t.MoveOp):
            return f"no view: '{layer_name(reader)}' moves its elements to another tensor"
        if not isinstance(reader, t.LoadOp):
            return f"no view: '{layer_name(reader)}' takes it as weights, piece by piece"
        if made and seen_by(reader) not in made:
            forms = seen_by(reader), made[0]
            read, other = (f"{'x'.join(map(str, shape))} (strides {list(strides)})" for shape, strides in forms)
            return f"no view: '{layer_name(reader)}' reads as {read} what is made as {other}"
    if isinstance(value.owner, g.ConcatOp):
        return "no view: tiles of several units lie side by side"
    return "a view exists: it is read as it is made"


def seen_by(op: t.LoadOp | t.StoreOp) -> tuple[Extents, Extents]:
    """The extents of a tensor as tiles have it, and their strides in elements; 0 where there is one position."""
    bound, strides = op.region.data.bound, op.view.data.strides
    return bound, tuple(stride if size > 1 else 0 for size, stride in zip(bound, strides, strict=True))


def makers_of(value: SSAValue) -> Iterator[Operation]:
    """What stores a tensor, or moves elements into it, in the unit that gives it; of a concatenation in all."""
    root = g.root_of(value)
    owner = root.owner
    if isinstance(owner, g.ConcatOp):
        for x in owner.xs:
            yield from makers_of(x)
    elif isinstance(owner, t.UnitOp):
        number = [result is root for result in owner.results].index(True)
        for op in owner.body.walk():
            if isinstance(op, (t.StoreOp, t.MoveOp)) and op.output.value.data == number:
                yield op


def readers_of(value: SSAValue) -> Iterator[Operation]:
    """What reads a tensor in the units behind it, under any shape; a concatenation's readers are those of all parts."""
    for use in value.uses:
        if isinstance(use.operation, (g.ReshapeOp, g.ConcatOp)):
            yield from readers_of(use.operation.results[0])
        elif isinstance(use.operation, t.UnitOp):
            yield from (inner.operation for inner in use.operation.body.block.args[use.index].uses)


def inside(concat: g.ConcatOp, number: int) -> tuple[int, int, int]:
    """Of an operand of a concatenation: elements before it, and elements of itself and of all operands for each
    position of the dimensions outside (0, 0 where there is one such position)."""
    shapes = [shape_of(x) for x in concat.xs]
    axis = concat.axis
    sizes = [math.prod(shape[axis:]) for shape in shapes]
    before = sum(sizes[:number])
    if math.prod(shapes[number][:axis]) == 1:
        return before, 0, 0
    return before, sizes[number], sum(sizes)


def check_unread(op: Operation) -> None:
    """A program starts with all that it reads: nothing of ours reads what an operation of another dialect gives."""
    readers = [use.operation for result in op.results for use in result.uses if not is_foreign(use.operation)]
    if readers:
        raise PassFailedException(
            f"'{name_of(op)}': {named(readers[0])} reads its result, but a program reads only what is there when it "
            "starts: let the network end before it, and another one begin behind it (frustum-graph-outline)"
        )


def named(reader: Operation) -> str:
    """What a reader is called in messages."""
    unit_name = reader.properties.get("unit_name")
    return f"unit {unit_name.data}" if isinstance(unit_name, StringAttr) else reader.name


def check_written(concat: g.ConcatOp) -> None:
    """Units write all parts of a concatenation in DRAM."""
    for number, operand in enumerate(concat.xs):
        if not isinstance(g.root_of(operand).owner, (t.UnitOp, g.ConcatOp)):
            raise PassFailedException(
                f"fgraph.concat: operand {number} is not written by a unit, so it cannot lie in the result's buffer"
            )


def carried_in(unit: t.UnitOp) -> str:
    """The type in which sums or results of a unit's layers wait in SRAM between rounds of channels, chunks of a hidden
    map or blocks of keys;
    empty where none do."""
    found = set[str]()
    for op in unit.body.walk():
        if isinstance(op, t.ComputeOp):
            element = op.result.type.data.element
            if isinstance(op.layer, t.AttentionLayer) and op.layer.is_batched:
                found.add("f32" if op.layer.is_wide else element)
            elif op.map.data.in_rounds or m.PART_OF_SUM in op.attributes:
                found.add(element)
    return " ".join(sorted(found))


@dataclass
class Names:
    """Names for reports, by number: layers with their multiply-accumulates, units with what is said of them."""

    layers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """The operator of the model's node, or else what the operation is called."""
    nodes: list[str] = field(default_factory=list)
    """The model's nodes that a layer stands for, as JSON."""
    macs: list[int] = field(default_factory=list)
    own_elements: list[int] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    tiles: list[int] = field(default_factory=list)
    kept_bytes: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    own_cycles: list[int] = field(default_factory=list)
    unit_of: list[int] = field(default_factory=list)

    def layer(self, op: Operation, kind: str, macs: int, own_elements: int = 0) -> int:
        name = op.location.desc.data if isinstance(op.location, NameLoc) else f"{kind}_{len(self.layers)}"
        self.layers.append(name)
        nodes = nodes_of(op)
        self.kinds.append(nodes[0][1] if nodes else kind)
        self.nodes.append(json.dumps([name for name, _ in nodes]))
        self.macs.append(macs)
        self.own_elements.append(own_elements)
        self.unit_of.append(len(self.units) - 1)
        return len(self.layers) - 1

    def unit(self, unit: t.UnitOp, tiles: int) -> int:
        self.units.append(unit.unit_name.data)
        self.modes.append(unit.mode.data if unit.mode else "")
        self.stopped.append(unit.stopped_by.data if unit.stopped_by else "")
        self.tiles.append(tiles)
        self.kept_bytes.append(0)
        self.owners.append(unit.owners.data if unit.owners else "clusters")
        self.carried.append(carried_in(unit))
        self.predicted.append(m.number_of(unit, m.PREDICTED_CYCLES, -1))
        self.own_cycles.append(m.number_of(unit, m.OWN_CYCLES, -1))
        return len(self.units) - 1

    def attributes(self) -> dict[str, ArrayAttr[Any]]:
        return {
            m.LAYERS: m.texts(self.layers),
            m.LAYER_KINDS: m.texts(self.kinds),
            m.LAYER_NODES: m.texts(self.nodes),
            m.USEFUL_MACS: m.numbers(self.macs),
            m.LAYER_UNITS: m.numbers(self.unit_of),
            m.UNITS: m.texts(self.units),
            m.UNIT_MODES: m.texts(self.modes),
            m.UNIT_STOPPED_BY: m.texts(self.stopped),
            m.UNIT_TILES: m.numbers(self.tiles),
            m.UNIT_KEPT_BYTES: m.numbers(self.kept_bytes),
            m.UNIT_OWNERS: m.texts(self.owners),
            **({m.UNIT_CARRY: m.texts(self.carried)} if any(self.carried) else {}),
            **({m.UNIT_PREDICTED_CYCLES: m.numbers(self.predicted)} if max(self.predicted, default=-1) >= 0 else {}),
            **({m.UNIT_OWN_CYCLES: m.numbers(self.own_cycles)} if max(self.own_cycles, default=-1) >= 0 else {}),
            **({m.OWN_ELEMENTS: m.numbers(self.own_elements)} if any(self.own_elements) else {}),
        }


@dataclass
class ProgramBody:
    """A program as it grows unit by unit.

    `homes` of all tiles of the network; `tiles`: where those lie that units have left in SRAM; `hold`: whether weights
    are held in SRAM even where each piece is used once.
    """

    target: Target
    names: Names
    body: Block
    declared: Declarations
    homes: Mapping[SSAValue, Home]
    hold: bool
    tiles: dict[SSAValue, Placed] = field(default_factory=dict)
