"""Layers that stand directly in a host program, as networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.foreign import is_foreign
from frustum.passes.analysis import layer
from frustum.passes.analysis.foreign import gather, is_movable
from frustum.passes.analysis.module import free_name, kind_name, node_name
from frustum.passes.graph.composites.unroll_recurrences import UnrollRecurrences


@dataclass(frozen=True)
class OutlineNetworks(ModulePass):
    """Make networks of the layers in functions, and in other blocks of a host program.

    1. the layers of a block are gathered in sections between the operations of other dialects, which do not move
       (`analysis/foreign.py`): a layer moves up behind the last of those that it depends on
    2. every section with a layer becomes a network `FUNCTION_0`, `FUNCTION_1`, ..., in front of the function: inputs
       are what it reads (constants go with it), outputs what is read behind it
    3. a `fgraph.call` of the network stands where the section stood

    Recurrences are unrolled first.

    Inputs are called as the values are in the text, outputs as their layers; names are unique in a network.

    Before: `fgraph` layers anywhere.  After: in networks alone, but for those whose results nobody reads.
    """

    name = "frustum-graph-outline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        UnrollRecurrences().apply(ctx, op)
        for block in list(blocks_outside(op)):
            for ops in gather(block).values():
                outline([op for op in ops if not isinstance(op, g.WeightOp)])
            for weight in [op for op in block.ops if isinstance(op, g.WeightOp) and not op.result.uses]:
                Rewriter.erase_op(weight)


def layers_outside(module: ModuleOp) -> Iterator[Operation]:
    """The layers that are in no network, in order."""
    return (op for block in blocks_outside(module) for op in block.ops if is_layer(op))


def blocks_outside(op: Operation) -> Iterator[Block]:
    """The blocks below operations of other dialects that have layers."""
    for block in (block for region in op.regions for block in region.blocks):
        if any(is_layer(inner) for inner in block.ops):
            yield block
        for inner in block.ops:
            if inner.regions and is_foreign(inner):
                yield from blocks_outside(inner)


def is_layer(op: Operation) -> bool:
    """Whether the operation computes or moves data: constants and reshapes alone make no network."""
    return is_movable(op) and layer.is_work(op)


def outline(ops: Sequence[Operation]) -> None:
    """Put operations that follow each other into a network, and a call of it in their place."""
    inside = set(ops)
    made = [result for op in ops for result in op.results]
    outputs = [value for value in made if any(use.operation not in inside for use in value.uses)]
    if not any(map(is_layer, ops)) or not outputs:
        return
    first = ops[0]
    inputs = inputs_of(ops, inside)
    names = unique_names([*map(input_name, inputs), *map(output_name, outputs)])
    types = [value.type for value in inputs]
    symbol, place = symbol_for(first)
    network = g.NetworkOp(symbol, list(zip(names, types, strict=False)), names[len(inputs) :], Block(arg_types=types))
    call = g.CallOp(symbol, inputs, [value.type for value in outputs])
    network.location = call.location = first.location
    assert first.parent is not None
    first.parent.insert_op_before(call, first)
    for argument, value in zip(network.body.block.args, inputs, strict=True):
        argument.name_hint = value.name_hint
        value.replace_uses_with_if(argument, lambda use: use.operation in inside)
    for value, result in zip(outputs, call.results, strict=True):
        result.name_hint = value.name_hint
        value.replace_uses_with_if(result, lambda use: use.operation not in inside)
    fill(network.body.block, ops, outputs)
    if place.parent is None:  # the layers stand in the module itself
        place.regions[0].block.insert_op_before(network, call)
    else:
        place.parent.insert_op_before(network, place)


def fill(block: Block, ops: Sequence[Operation], outputs: Sequence[SSAValue]) -> None:
    """Move operations into the block of a network, each constant that they read with them."""
    weights: dict[SSAValue, SSAValue] = {}
    for op in ops:
        for number, operand in enumerate(op.operands):
            if isinstance(operand.owner, g.WeightOp):
                if operand not in weights:
                    copy = operand.owner.clone()
                    copy.result.name_hint = operand.name_hint
                    block.add_op(copy)
                    weights[operand] = copy.result
                op.operands[number] = weights[operand]
        op.detach()
        block.add_op(op)
    end = g.OutputOp(outputs)
    end.location = ops[-1].location
    block.add_op(end)


def inputs_of(ops: Sequence[Operation], inside: set[Operation]) -> list[SSAValue]:
    """What the operations read and do not make, without constants, each once."""
    read = dict.fromkeys(operand for op in ops for operand in op.operands)
    return [v for v in read if v.owner not in inside and not isinstance(v.owner, g.WeightOp)]


def symbol_for(op: Operation) -> tuple[str, Operation]:
    """A name for the network of an operation that no other symbol of its module has, and what it stands in front of:
    the operation of the module that holds the layers; the module itself where they are not inside any."""
    place = op
    while not isinstance(parent := place.parent_op(), ModuleOp):
        assert parent is not None
        place = parent
    stem = symbol_of(place) or "network"
    taken = {symbol_of(each) for each in parent.body.block.ops}
    symbol = next(name for name in (f"{stem}_{k}" for k in itertools.count()) if name not in taken)
    return symbol, parent if place is op else place


def symbol_of(op: Operation) -> str | None:
    own = op.properties.get("sym_name")
    return own.data if isinstance(own, StringAttr) else None


def input_name(value: SSAValue) -> str:
    return value.name_hint or "x"


def output_name(value: OpResult) -> str:
    return node_name(value.owner) or value.name_hint or kind_name(value.owner)


def unique_names(stems: Sequence[str]) -> list[str]:
    """The names, with a number behind those that stand there already."""
    found: dict[str, None] = {}
    for stem in stems:
        found[free_name(stem, found)] = None
    return list(found)
