"""Layers that work on each position by itself, over its channels, see positions by the same axes as those around them.

    norm(reshape(turn(x)))  ->  reshape(norm(turn(x)))                         from rows and columns to tokens
    reshape(transpose(product(x)))  ->  turn(product(reshape(x)))              from tokens to rows and columns

A network goes from maps [N, H, W, C] to tokens [N, H * W, C] by a reshape, which is nothing.  But a unit sees rows and
columns as two loops or as one, so layers on both sides of a reshape share no unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.graph.views import CHANNELS_FIRST

Pointwise: TypeAlias = g.UnaryOp | g.BinaryOp | g.NormaliseOp | g.MatmulOp
MAP_RANK = 4  # n, h, w, c
TOKENS_LAST = (0, 2, 1)
"""The order of axes that makes [N, C, T] of [N, T, C]."""


@dataclass
class PositionGroup:
    """Layers that pass positions to each other, directly or through reshapes that leave the channels alone."""

    layers: list[Pointwise] = field(default_factory=list)
    reshapes: list[g.ReshapeOp] = field(default_factory=list)

    def values(self) -> Iterator[SSAValue]:
        yield from dict.fromkeys(value for op in self.layers for value in positions_of(op))

    def wanted(self) -> Extents | None:
        """The axes of positions that most of what stands around the layers reads or makes.  None where it is nothing,
        or axes that are one loop in any shape, or rows of attention: these are `choose_forms`' to see, and a product
        of [rows, channels] beside attention is as good.  What the network is given or gives is so in any shape.
        Positions that are one loop in all shapes are rows of attention where some are: it reads them in that one."""
        inside: set[Operation] = {*self.layers, *self.reshapes}
        votes: Counter[Extents] = Counter()
        attended: set[Extents] = set()
        for value in dict.fromkeys([*self.values(), *(each for op in self.reshapes for each in (op.x, op.result))]):
            around = [value.owner, *(use.operation for use in value.uses)]
            for op in around:
                if isinstance(op, Operation) and op not in inside and not isinstance(op, g.OutputOp):
                    axes = shape_for(value, op)[:-1]
                    votes[axes] += math.prod(g.shape_of(value))
                    attended |= {axes} if isinstance(op, g.AttentionOp) else set()
        most = max(votes.values(), default=0)
        best = max((axes for axes, count in votes.items() if count == most), key=len, default=())
        if len(attended) == 1 and all(sum(extent > 1 for extent in axes) == 1 for axes in votes):
            return attended.pop()
        return best if best not in attended and sum(extent > 1 for extent in best) > 1 else None

    def see_as(self, axes: Extents) -> None:
        """Write all layers on tensors whose positions have these axes."""
        reshapes = list(self.reshapes)
        for op in sorted(self.layers, key=place_of):
            new = on(op, axes)
            if g.shape_of(new.results[0]) == g.shape_of(op.results[0]):
                Rewriter.replace_op(op, new)
                continue
            after = g.ReshapeOp(new.results[0], g.shape_of(op.results[0]))
            after.location = op.location
            Rewriter.replace_op(op, [new, after], [after.result])
            for use in tuple(after.result.uses):
                read_directly(use.operation, new.results[0])
            reshapes.append(after)
        for each in reversed(reshapes):
            erase_unused(each)


def see_positions_alike(module: ModuleOp) -> None:
    """Choose the axes of positions for each group of layers that has one along the channels."""
    for network in [each for each in module.walk() if isinstance(each, g.NetworkOp)]:
        for group in groups_of(network):
            axes = group.wanted() if any(isinstance(op, g.NormaliseOp | g.MatmulOp) for op in group.layers) else None
            if axes is not None and any(g.shape_of(value)[:-1] != axes for value in group.values()):
                group.see_as(axes)


def groups_of(network: g.NetworkOp) -> list[PositionGroup]:
    """Layers with what they share tensors with, and reshapes between them."""
    group_of: dict[SSAValue, PositionGroup] = {}
    for op in network.walk():
        if isinstance(op, g.ReshapeOp) and keeps_channels(op):
            joined, values = PositionGroup(reshapes=[op]), positions_of(op)
        elif isinstance(op, Pointwise) and is_pointwise(op):
            joined, values = PositionGroup(layers=[op]), positions_of(op)
        else:
            continue
        group_of.update((value, joined) for value in values if value not in group_of)
        own = {id(group): group for group in (joined, *map(group_of.__getitem__, values))}
        largest, *others = sorted(own.values(), key=lambda group: -len(group.layers) - len(group.reshapes))
        for other in others:  # the smaller ones move: each is moved a few times at most
            largest.layers += other.layers
            largest.reshapes += other.reshapes
            for each in (*other.layers, *other.reshapes):
                group_of.update(dict.fromkeys(positions_of(each), largest))
    return [group for group in {id(group): group for group in group_of.values()}.values() if group.layers]


def positions_of(op: Pointwise | g.ReshapeOp) -> Sequence[SSAValue]:
    """The maps that a layer reads and makes, constants apart."""
    match op:
        case g.BinaryOp():
            return tuple(x for x in (op.a, op.b, op.result) if not isinstance(x.owner, g.WeightOp))
        case g.MatmulOp():
            return tuple(x for x in (op.a, op.residual, op.result) if x is not None)
        case _:
            return (op.x, op.result)


def keeps_channels(op: g.ReshapeOp) -> bool:
    return not isinstance(op.x.owner, g.WeightOp) and g.shape_of(op.x)[-1:] == g.shape_of(op.result)[-1:]


def is_pointwise(op: Pointwise) -> bool:
    """Whether each position of the result is made of the same of the operands, and of constants without positions."""
    shape = g.shape_of(op.results[0])
    if len(shape) < 2 or any(g.shape_of(value)[:-1] != shape[:-1] for value in positions_of(op)):
        return False
    match op:
        case g.MatmulOp():
            return not op.trans_a and len(g.shape_of(op.b)) == 2 and isinstance(op.b.owner, g.WeightOp)
        case g.NormaliseOp():
            scales = (op.scale, op.shift)
            return op.axes == (len(shape) - 1,) and all(x is None or is_spread(x) for x in scales)
        case g.BinaryOp():
            both = (op.a, op.b)
            if any(isinstance(x.owner, g.WeightOp) and not is_spread(x) for x in both):
                return False
            return all(g.shape_of(x) == shape for x in both if not isinstance(x.owner, g.WeightOp))
        case _:
            return True


def is_spread(constant: SSAValue) -> bool:
    """A constant that is the same at every position."""
    return math.prod(g.shape_of(constant)[:-1]) == 1


def shape_for(value: SSAValue, op: Operation) -> Extents:
    """The shape in which what makes or reads a value would have it: as it is, or as the map [N, H, W, C] whose
    channels a transposition puts first."""
    for reader in maps_behind(op):
        n, c, h, w = g.shape_of(reader.result)
        return n, h, w, c
    return g.shape_of(value)


def maps_behind(op: Operation) -> list[g.ReshapeOp]:
    """What sees as maps [N, C, H, W] what a transposition makes of tokens [N, T, C], if nobody sees it otherwise."""
    if not isinstance(op, g.TransposeOp) or tuple(op.perm) != TOKENS_LAST:
        return []
    n, c, _ = g.shape_of(op.result)
    readers = [use.operation for use in op.result.uses]
    found = [each for each in readers if isinstance(each, g.ReshapeOp) and is_map(each, n, c)]
    return found if len(found) == len(readers) else []


def is_map(op: g.ReshapeOp, images: int, channels: int) -> bool:
    shape = g.shape_of(op.result)
    return len(shape) == MAP_RANK and shape[:2] == (images, channels)


def on(op: Pointwise, axes: Extents) -> Operation:
    """The layer on operands whose positions have other axes."""
    maps = positions_of(op)
    operands = [seen_as(x, axes, op) if x in maps else constant(x, op) for x in op.operands]
    made = g.tensor_of(op.results[0])
    kinds = [type(made)(made.element_type, (*axes, g.shape_of(op.results[0])[-1]))]
    new = type(op).create(operands=operands, result_types=kinds, properties=dict(op.properties))
    if isinstance(new, g.NormaliseOp):
        new.axes = (len(axes),)
    new.attributes.update(op.attributes)
    new.location = op.location
    return new


def constant(x: SSAValue, reader: Operation) -> SSAValue:
    """A constant that is the same at every position, without their axes; the weights of a product as they are."""
    is_plain = isinstance(reader, g.MatmulOp) or len(g.shape_of(x)) < 2
    return x if is_plain else shaped_before(x, g.shape_of(x)[-1:], reader)


def seen_as(x: SSAValue, axes: Extents, reader: Operation) -> SSAValue:
    """A map whose positions have these axes; what was reshaped before is as it was."""
    wanted = (*axes, g.shape_of(x)[-1])
    while g.shape_of(x) != wanted and isinstance(x.owner, g.ReshapeOp):
        x = x.owner.x
    return x if g.shape_of(x) == wanted else shaped_before(x, wanted, reader)


def shaped_before(x: SSAValue, shape: Extents, reader: Operation) -> SSAValue:
    shaped = g.ReshapeOp(x, shape)
    shaped.location = reader.location
    block = reader.parent
    assert block is not None
    block.insert_op_before(shaped, reader)
    return shaped.result


def read_directly(op: Operation, source: SSAValue) -> None:
    """Reshape what a layer makes rather than what it was seen as; turn a map [N, H, W, C] where it was transposed as
    tokens, and then seen as a map again."""
    if isinstance(op, g.ReshapeOp):
        if g.shape_of(op.result) == g.shape_of(source):
            Rewriter.replace_op(op, [], [source])
        else:
            op.operands[0] = source
    shape = g.shape_of(source)
    for reader in maps_behind(op):
        if len(shape) == MAP_RANK and g.shape_of(reader.result) == tuple(shape[axis] for axis in CHANNELS_FIRST):
            turn = g.TurnOp(source, CHANNELS_FIRST)
            turn.location = op.location
            Rewriter.replace_op(reader, turn)
    if isinstance(op, g.TransposeOp):
        erase_unused(op)


def place_of(op: Operation) -> int:
    block = op.parent
    assert block is not None
    return block.get_operation_index(op)


def erase_unused(op: Operation) -> None:
    """A move that nobody reads any more."""
    if isinstance(op, (g.ReshapeOp, g.TransposeOp)) and op.parent is not None and not op.result.uses:
        before = op.x.owner
        Rewriter.erase_op(op)
        if isinstance(before, Operation):
            erase_unused(before)
