"""Images of a network one after the other, each by itself, where inputs move several times.

Of all images together an input, or what is made of it, may be far larger than SRAM, so that little of it stays there
between the units that load it.  Of one image at a time as much stays for each of them
(`trials/parts_beside.py`).  Each image's layers are copies: they read its part of the inputs (`fgraph.part`, no copy)
and write its part of the outputs; weights that SRAM has room for are loaded once (`lower/share_loads.py`).

Source: depth first by images, as `passes/plan/network/tile_shapes.py` has it inside a unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.passes.analysis.foreign import others_in
from frustum.passes.plan.network.layer_order import LayerNode, LayerOrder


@dataclass(frozen=True)
class Apart:
    """The layers of each image in the place of those of all: what was put into a network, what was taken out, and the
    outputs that it had."""

    network: g.NetworkOp
    added: tuple[Operation, ...]
    removed: tuple[Operation, ...]
    outputs: tuple[SSAValue, ...]

    def undo(self) -> None:
        """The network as it was."""
        end = self.network.terminator
        for op in self.removed:
            self.network.body.block.insert_op_before(op, end)
        end.operands = self.outputs
        for op in reversed(self.added):
            op.detach()
            op.erase()


def images_of(order: LayerOrder, network: g.NetworkOp) -> int:
    """How many images all layers of a network make one by one; 1 where some need several, or no copies can be made."""
    block = network.body.block
    inputs = [argument for argument in block.args if any(True for _ in argument.uses)]
    values = [*inputs, *network.terminator.values]
    sizes = {g.shape_of(value)[0] if g.shape_of(value) else 1 for value in values}
    count = sizes.pop()
    if sizes or others_in(block) or any(isinstance(op, g.PartOp) for op in block.ops):
        return 1
    if any(isinstance(value, BlockArgument) for value in network.terminator.values):
        return 1
    views = [op for op in block.ops if isinstance(op, g.ReshapeOp)]
    of_images = all(is_of_images(value, count) for op in views for value in (op.x, op.result))
    return count if of_images and all(is_by_image(node, order, count) for node in order.nodes) else 1


def is_of_images(value: SSAValue, count: int) -> bool:
    return bool(g.shape_of(value)) and g.shape_of(value)[0] == count


def is_by_image(node: LayerNode, order: LayerOrder, count: int) -> bool:
    """Whether a layer makes each image of the same one of what it reads, and of constants."""
    layer = node.layer
    if layer is None or node.batched_weights or node.has_factors or layer.out_dims[0] != count:
        return False
    if len(node.op.results) != 1 or not is_of_images(node.op.results[0], count):
        return False
    return all(
        read.dims[0] == 1 if order.maps[read.map].is_constant else read.by_image and read.dims[0] == count
        for read in node.reads
    )


def images_apart(order: LayerOrder, network: g.NetworkOp) -> list[Apart]:
    """Let a network make its images one after the other; what was done."""
    block, end = network.body.block, network.terminator
    count = images_of(order, network)
    if count == 1:
        return []
    ops = [op for op in block.ops if op is not end and not isinstance(op, g.WeightOp)]
    parts: list[list[SSAValue]] = [[] for _ in end.values]
    added: list[Operation] = []
    for image in range(count):
        values: dict[SSAValue, SSAValue] = {}
        for op in copies(block.args, ops, image, values):
            block.insert_op_before(op, end)
            added.append(op)
        for each, value in zip(parts, end.values, strict=True):
            each.append(values[value])
    outputs = tuple(end.values)
    for each, value in zip(parts, outputs, strict=True):
        whole = g.ConcatOp(each, 0)
        whole.location = value.owner.location if isinstance(value.owner, Operation) else end.location
        block.insert_op_before(whole, end)
        added.append(whole)
    end.operands = [op.results[0] for op in added[-len(outputs) :]]
    for op in ops:
        op.detach()
    return [Apart(network, tuple(added), tuple(ops), outputs)]


def copies(
    inputs: tuple[BlockArgument, ...], ops: list[Operation], image: int, values: dict[SSAValue, SSAValue]
) -> Iterator[Operation]:
    """The layers of one image, in their order, behind its parts of the inputs; `values`: what each value is there."""
    for argument in inputs:
        users = [use.operation for use in argument.uses if use.operation in ops]
        if users:
            part = g.PartOp(argument, image, 1)
            part.location = users[0].location
            values[argument] = part.result
            yield part
    for op in ops:
        copy = op.clone(values)
        copy.location = op.location
        for result in copy.results:
            kind = g.tensor_of(result)
            Rewriter.replace_value_with_new_type(
                result, TensorType(kind.element_type, [1, *kind.get_shape()[1:]], kind.encoding)
            )
        values |= dict(zip(op.results, copy.results, strict=True))
        yield copy
