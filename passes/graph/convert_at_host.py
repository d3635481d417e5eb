"""The conversions at the borders of a quantised network are the host's: the device's memory holds integers alone."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.host_type import HostType
from frustum.dialects.module import INPUT_RANGES, MODEL_DTYPES


@dataclass(frozen=True)
class ConvertAtHost(ModulePass):
    """Networks that `frustum-graph-quantise` has quantised take and give integers.

    Before: inputs that are only quantized (always to the same integers), outputs that are dequantized.
    After: these inputs and outputs are integers; `frustum.model_dtypes` says what they stand for, and the host
    converts. Models that bring conversions of their own keep them.
    Source: docs/techniques/machine.md, "Host" (everything in DRAM has the device's type).
    """

    name = "frustum-graph-convert-at-host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for network in g.networks_of(op):
            if INPUT_RANGES in network.attributes and MODEL_DTYPES in network.attributes:
                convert(network)


def convert(network: g.NetworkOp) -> None:
    noted = network.attributes[MODEL_DTYPES]
    assert isinstance(noted, ArrayAttr)
    types = [HostType.parse(name.data) for name in noted if isinstance(name, StringAttr)]
    for number, argument in enumerate(network.body.block.args):
        scale = only_quantized(argument)
        if scale is not None:
            types[number] = HostType(types[number].dtype, scale.scale, scale.zero)
            take_integers(argument)
    inputs = len(network.inputs)
    for position, value in enumerate(network.terminator.values):
        made = dequantized(value)
        if made is not None:
            network.terminator.operands[position] = made.operands[0]
            number = inputs + position
            types[number] = HostType(types[number].dtype, made.from_.scale, made.from_.zero)
            if not made.result.uses:
                Rewriter.erase_op(made)
    network.attributes[MODEL_DTYPES] = ArrayAttr([StringAttr(str(each)) for each in types])


def only_quantized(argument: SSAValue) -> g.ScaleAttr | None:
    """The integers that all users make of an input, if they make the same."""
    users = {use.operation for use in argument.uses}
    made = {(user.to, user.result.type) for user in users if isinstance(user, g.QuantizeOp)}
    if len(made) != 1 or not all(isinstance(user, g.QuantizeOp) for user in users):
        return None
    ((scale, _),) = made
    return scale


def take_integers(argument: SSAValue) -> None:
    """Give an input the type that its users convert it to, and leave them out."""
    users = [use.operation for use in argument.uses]
    kind = users[0].results[0].type
    for user in users:
        user.results[0].replace_all_uses_with(argument)
        Rewriter.erase_op(user)
    Rewriter.replace_value_with_new_type(argument, kind)


def dequantized(value: SSAValue) -> g.DequantizeOp | None:
    """The operation that makes numbers of an output's integers."""
    return value.owner if isinstance(value.owner, g.DequantizeOp) else None
