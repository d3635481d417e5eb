# Tests: test/pipeline/test_stops_agree.py
"""Give every network output a buffer of its own."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from frustum.dialects import graph as g


@dataclass(frozen=True)
class OwnOutputs(ModulePass):
    """Copy outputs that are inputs, constants, or the same bytes as another output.

    Before: any network.  After: behind every output (through reshapes) stands a layer, a different one for each.
    """

    name = "frustum-graph-own-outputs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for network in g.networks_of(op):
            own_outputs(network)


def own_outputs(network: g.NetworkOp) -> None:
    terminator = network.terminator
    taken: set[SSAValue] = set()
    for position, value in enumerate(terminator.values):
        root = g.root_of(value)
        is_layer = isinstance(root.owner, Operation) and not isinstance(root.owner, g.WeightOp)
        if is_layer and root not in taken:
            taken.add(root)
            continue
        copy = copied(value)
        copy.location = terminator.location
        network.body.block.insert_op_before(copy, terminator)
        terminator.operands[position] = copy.results[0]


def copied(value: SSAValue) -> Operation:
    """An operation whose result has the same elements; integers, which stand for nothing here, are moved."""
    if not g.is_integer(value):
        return g.UnaryOp("identity", value)
    shape = g.shape_of(value)
    return g.SliceOp(value, (0,) * len(shape), shape)
