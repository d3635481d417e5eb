"""Cut a network into networks that run one after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.module import CHAIN_INPUTS, CHAIN_OUTPUTS, MODEL_DTYPES, texts_of
from frustum.passes.analysis.foreign import others_in
from frustum.passes.analysis.module import element_bytes, free_name, layer_name, value_bytes
from frustum.passes.analysis.series import Range, Series, at_outputs, pieces_of
from frustum.passes.graph.own_outputs import own_outputs


@dataclass(frozen=True)
class SplitOutputs(ModulePass):
    """Cut every network behind each layer whose result is an output and is also read by later layers.

    1. a *target* has a result that leaves as an output and that another layer reads (`analysis/series.py`)
    2. the network is cut behind each target, in the order in which the layers stand
    3. values that cross a cut become outputs of the earlier and inputs of the later network, under one name: that of
       the output that they are, or else of their layer; network inputs go where they are used
    4. constants and reshapes (which are no layers) go where they are used; outputs that are inputs or constants are
       handed out by the first network

    Before: one network.  After: networks `NAME_0`, `NAME_1`, ... in order, each with buffers of its own for its outputs
    (`own_outputs`); the module says the inputs and outputs of the whole.  A network without targets stays as it is, and
    so does one with operations of other dialects, which have a place in one network alone.
    Source: docs/techniques/output-split.md, "Where it is cut".
    """

    name = "frustum-graph-split-outputs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        networks = g.networks_of(op)
        if len(networks) != 1 or others_in(networks[0].body.block):
            return  # nothing of ours, or split already
        layers = Layers(networks[0])
        pieces = pieces_of(layers.whole, at_outputs(layers.series, layers.whole))
        if len(pieces) > 1:
            split(op, layers, pieces)


def split(module: ModuleOp, layers: Layers, pieces: Sequence[Range]) -> None:
    """Put a network's pieces in its place."""
    whole = layers.network
    for number, piece in enumerate(pieces):
        part = layers.extract(piece, f"{whole.sym_name.data}_{number}")
        assert whole.parent is not None
        whole.parent.insert_op_before(part, whole)
    module.attributes[CHAIN_INPUTS] = whole.input_names
    module.attributes[CHAIN_OUTPUTS] = whole.output_names
    Rewriter.erase_op(whole)


@dataclass(frozen=True, eq=False)
class Layers:
    """A network as a series of layers: what is neither a constant nor a reshape nor the end of it."""

    network: g.NetworkOp
    others: frozenset[str] = frozenset()
    """Names of values that something else in the chain has."""
    results: frozenset[str] | None = None
    """The outputs that leave the chain: all, or these; others are for the host between pieces of the device."""

    @cached_property
    def ops(self) -> list[Operation]:
        return [op for op in self.network.body.block.ops if _is_layer(op)]

    @cached_property
    def whole(self) -> Range:
        """All layers; (0, 0) of a network that only hands its inputs on."""
        return (0, len(self.ops))

    @cached_property
    def positions(self) -> dict[Operation, int]:
        return {op: position for position, op in enumerate(self.ops)}

    @cached_property
    def series(self) -> Series:
        pairs = zip(self.network.outputs, self.network.terminator.values, strict=True)
        handed = (value for name, value in pairs if self.results is None or name in self.results)
        outputs = (self.position_of(value) for value in handed)
        return Series(
            names=[layer_name(op) for op in self.ops],
            reads=[self._reads(op) for op in self.ops],
            outputs=frozenset(p for p in outputs if p is not None),
            result_bytes=[sum(map(value_bytes, op.results)) for op in self.ops],
            weight_bytes=[_weight_bytes(op) for op in self.ops],
            cost=[_cost(op) for op in self.ops],
        )

    def position_of(self, value: SSAValue) -> int | None:
        """The layer that computes a value, perhaps reshaped; None for inputs and constants."""
        owner = g.root_of(value).owner
        return self.positions.get(owner) if isinstance(owner, Operation) else None

    def _reads(self, op: Operation) -> tuple[int, ...]:
        found = (self.position_of(operand) for operand in op.operands)
        return tuple(sorted({p for p in found if p is not None}))

    @cached_property
    def value_names(self) -> dict[SSAValue, str]:
        """Of every result that a layer or the network hands on its name in the chain, however that is cut."""
        names: dict[SSAValue, str] = {}
        taken = {*self.network.inputs, *self.network.outputs, *self.others}
        for name, value in zip(self.network.outputs, self.network.terminator.values, strict=True):
            names.setdefault(g.root_of(value), name)
        for op in self.ops:
            for result in op.results:
                if result not in names:
                    names[result] = free_name(layer_name(op), taken)
                    taken.add(names[result])
        return names

    @cached_property
    def handed(self) -> dict[SSAValue, tuple[SSAValue, str]]:
        """Of every result that is an output, perhaps reshaped, the value handed out first, and its host type."""
        found: dict[SSAValue, tuple[SSAValue, str]] = {}
        dtypes = _dtypes(self.network)[len(self.network.inputs) :]
        for value, dtype in zip(self.network.terminator.values, dtypes, strict=True):
            found.setdefault(g.root_of(value), (value, dtype))
        return found

    def is_read_from(self, value: SSAValue, position: int) -> bool:
        """Whether a layer from this position on reads a value, perhaps reshaped."""
        for use in value.uses:
            op = use.operation
            if isinstance(op, g.ReshapeOp):
                if self.is_read_from(op.result, position):
                    return True
            elif self.positions.get(op, -1) >= position:
                return True
        return False

    def least_bytes(self, piece: Range) -> int:
        """Of the piece's inputs and outputs that DRAM moves at least: what it hands out, and what it reads of the
        network's inputs and of earlier pieces' results, each once and as far as its readers must."""
        start, stop = piece
        read: dict[SSAValue, int] = {}
        written = 0
        for op in self.ops[start:stop]:
            for value in op.operands:
                root = g.root_of(value)
                position = self.positions.get(root.owner) if isinstance(root.owner, Operation) else -1
                if position is not None and position < start:
                    read[root] = max(read.get(root, 0), _read_bytes(op, value))
            handed = (r for r in op.results if r in self.handed or self.is_read_from(r, stop))
            written += sum(map(value_bytes, handed))
        return written + sum(read.values())

    def extract(self, piece: Range, name: str) -> g.NetworkOp:
        """The network of a piece; this one stays as it is."""
        return _Extract(self, piece, name).network()


@dataclass
class _Extract:
    """One piece in the making: `values` says what stands in it for a value of the whole."""

    layers: Layers
    piece: Range
    name: str
    block: Block = field(default_factory=Block)
    values: dict[SSAValue, SSAValue] = field(default_factory=dict)
    inputs: list[tuple[str, Attribute, str]] = field(default_factory=list)
    """Name, type, numpy's name of the type that the host passes."""

    def network(self) -> g.NetworkOp:
        whole, (start, stop) = self.layers.network, self.piece
        self._network_inputs()
        for op in self.layers.ops[start:stop]:
            for operand in op.operands:
                self._value(operand)
            self.block.add_op(op.clone(self.values))
        outputs = [*self._outputs(), *self._crossing()]
        terminator = g.OutputOp([self._value(value) for _, value, _ in outputs])
        terminator.location = whole.terminator.location
        self.block.add_op(terminator)
        inputs = [(name, type) for name, type, _ in self.inputs]
        part = g.NetworkOp(self.name, inputs, [name for name, _, _ in outputs], self.block)
        part.attributes.update(whole.attributes)
        if MODEL_DTYPES in whole.attributes:
            dtypes = [*(dtype for _, _, dtype in self.inputs), *(dtype for _, _, dtype in outputs)]
            part.attributes[MODEL_DTYPES] = ArrayAttr(map(StringAttr, dtypes))
        part.location = whole.location
        own_outputs(part)
        return part

    def _network_inputs(self) -> None:
        """Inputs that the piece uses, in the network's order; the first piece also takes those that nobody uses."""
        dtypes = _dtypes(self.layers.network)
        used = self._used_inputs()
        for number, (name, argument) in enumerate(
            zip(self.layers.network.inputs, self.layers.network.body.block.args, strict=True)
        ):
            if argument in used:
                self.values[argument] = self._argument(name, argument.type, dtypes[number])

    def _used_inputs(self) -> set[SSAValue]:
        start, stop = self.piece
        ops = self.layers.ops[start:stop]
        values = itertools.chain.from_iterable(op.operands for op in ops)
        passed = self.layers.network.terminator.values if start == 0 else ()
        roots = map(g.root_of, itertools.chain(values, passed))
        unused = (argument for argument in self.layers.network.body.block.args if start == 0 and not argument.uses)
        return {*(root for root in roots if isinstance(root, BlockArgument)), *unused}

    def _argument(self, name: str, type: Attribute, dtype: str) -> BlockArgument:
        self.inputs.append((name, type, dtype))
        return self.block.insert_arg(type, len(self.block.args))

    def _value(self, value: SSAValue) -> SSAValue:
        """What stands for a value here: constants and reshapes are copied, other results come in."""
        if value in self.values:
            return self.values[value]
        owner = value.owner
        assert isinstance(owner, Operation), "network inputs are there from the beginning"
        if isinstance(owner, g.ReshapeOp):
            self._value(owner.x)
            self.block.add_op(owner.clone(self.values))
        elif isinstance(owner, g.WeightOp):
            self.block.add_op(owner.clone(self.values))
        else:
            self._come_in(value)
        return self.values[value]

    def _come_in(self, value: SSAValue) -> None:
        """A result of an earlier piece, in the form and host's type in which that hands it on."""
        handed, dtype = self.layers.handed.get(value, (value, ""))
        argument = self._argument(self.layers.value_names[value], handed.type, dtype)
        self.values[handed] = argument
        if handed is not value:
            back = g.ReshapeOp(argument, g.shape_of(value))
            assert isinstance(value.owner, Operation)
            back.location = value.owner.location
            self.block.add_op(back)
            self.values[value] = back.result

    def _outputs(self) -> list[tuple[str, SSAValue, str]]:
        """The network's outputs that this piece hands out: name, value, the host's type."""
        whole, (start, stop) = self.layers.network, self.piece
        dtypes = _dtypes(whole)[len(whole.inputs) :]
        found = []
        for name, value, dtype in zip(whole.outputs, whole.terminator.values, dtypes, strict=True):
            position = self.layers.position_of(value)
            if (position is None and start == 0) or (position is not None and start <= position < stop):
                found.append((name, value, dtype))
        return found

    def _crossing(self) -> list[tuple[str, SSAValue, str]]:
        """What later pieces read and is no output of the network."""
        start, stop = self.piece
        users = self.layers.series.users
        found: list[tuple[str, SSAValue, str]] = []
        for position in range(start, stop):
            if users[position] and users[position][-1] >= stop:
                for result in self.layers.ops[position].results:
                    if result not in self.layers.handed and self.layers.is_read_from(result, stop):
                        found.append((self.layers.value_names[result], result, ""))
        return found


def joined(module: ModuleOp) -> tuple[g.NetworkOp, list[Range]]:
    """The one network that several in a row are, and which of its layers each of them was; the module stays.

    KeyError where a network reads what none before it gives.
    """
    parts = g.networks_of(module)
    inputs, outputs = (texts_of(module, name) for name in (CHAIN_INPUTS, CHAIN_OUTPUTS))
    taken = {
        name: (argument.type, dtype)
        for part in reversed(parts)
        for name, argument, dtype in zip(part.inputs, part.body.block.args, _dtypes(part), strict=False)
    }
    order = [name for name in inputs if name in taken]
    block = Block(arg_types=[taken[name][0] for name in order])
    known: dict[str, SSAValue] = dict(zip(order, block.args, strict=True))
    dtypes = {name: taken[name][1] for name in order}
    pieces, position = [], 0
    for part in parts:
        pairs = zip(part.inputs, part.body.block.args, strict=True)
        values: dict[SSAValue, SSAValue] = {argument: known[name] for name, argument in pairs}
        start = position
        for op in part.body.block.ops:
            if not isinstance(op, g.OutputOp):
                block.add_op(op.clone(values))
                position += _is_layer(op)
        pieces.append((start, position))
        own = _dtypes(part)[len(part.inputs) :]
        for name, value, dtype in zip(part.outputs, part.terminator.values, own, strict=True):
            known[name], dtypes[name] = values[value], dtype
    block.add_op(g.OutputOp([known[name] for name in outputs]))
    name = parts[0].sym_name.data.rpartition("_")[0]
    whole = g.NetworkOp(name, [(n, known[n].type) for n in order], outputs, block)
    whole.attributes.update(parts[0].attributes)
    if MODEL_DTYPES in parts[0].attributes:
        whole.attributes[MODEL_DTYPES] = ArrayAttr(StringAttr(dtypes[n]) for n in (*order, *outputs))
    return whole, pieces


def _is_layer(op: Operation) -> bool:
    return not isinstance(op, g.WeightOp | g.ReshapeOp | g.OutputOp)


def _dtypes(network: g.NetworkOp) -> list[str]:
    """Of inputs, then outputs, numpy's names of the types that the host passes and gets; empty: the element's own."""
    noted = network.attributes.get(MODEL_DTYPES)
    if not isinstance(noted, ArrayAttr):
        return [""] * (len(network.inputs) + len(network.outputs))
    return [name.data for name in noted if isinstance(name, StringAttr)]


def _weight_bytes(op: Operation) -> int:
    return sum(value_bytes(v) for v in dict.fromkeys(op.operands) if isinstance(g.root_of(v).owner, g.WeightOp))


def _read_bytes(op: Operation, value: SSAValue) -> int:
    """Of an operand that a layer needs at least: of what it may skip, one element for each of its results."""
    shape, results = g.shape_of(value), [g.shape_of(result) for result in op.results]
    if isinstance(op, g.ConvOp | g.PoolOp):
        if all(stride == 1 for stride in op.strides):
            return value_bytes(value)
        results = [(*shape[:2], *result[2:]) for result in results]
    elif not isinstance(op, g.SliceOp | g.PickOp | g.PadOp | g.ResizeOp):
        return value_bytes(value)
    return min(value_bytes(value), sum(map(math.prod, results)) * element_bytes(value))


def _cost(op: Operation) -> int:
    """Multiply-accumulates of a product; of other layers the elements of the largest operand or result."""
    if isinstance(op, g.ConvOp | g.MatmulOp):
        return op.macs
    values: list[OpResult | SSAValue] = [*op.results, *op.operands]
    return max((math.prod(g.shape_of(value)) for value in values), default=0)
