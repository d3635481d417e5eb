# Tests: test/passes/graph/test_layer_moves.py
"""Transpositions on both sides of layers that do not care about the order of axes: the layers work on what was there
before, and none is needed.

    transpose(slice(transpose(x)) * w)  ->  slice(x) * w

Rotary embeddings are such layers: halves of heads that are seen as [batch, tokens, heads, channels].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g

Careless = g.UnaryOp | g.BinaryOp | g.SliceOp | g.ConcatOp | g.PadOp
"""Layers that work on tensors with their axes in any order."""


def cancel_transpositions(module: ModuleOp) -> None:
    """Leave out transpositions behind which there are only layers that do not care, up to those that undo them."""
    for op in [each for each in module.walk() if isinstance(each, g.TransposeOp)]:
        if op.parent is not None and op.result.uses:
            between = layers_between(op)
            if between is not None:
                between.written_before()


@dataclass
class Between:
    """Layers that see tensors in the order of axes `perm`, and the transpositions behind them that undo it."""

    perm: tuple[int, ...]
    layers: list[Careless] = field(default_factory=list)
    ends: list[g.TransposeOp] = field(default_factory=list)
    shaped: dict[SSAValue, SSAValue] = field(default_factory=dict)
    """Constants with their axes as they were."""

    def written_before(self) -> None:
        """Write the layers in the order of axes that was there before, and leave out what undoes it."""
        before: dict[SSAValue, SSAValue] = {}
        for op in self.layers:
            new = self.turned(op, [self.operand(x, op, before) for x in op.operands])
            new.location = op.location
            new.attributes.update(op.attributes)
            insert_before(op, new)
            before[op.results[0]] = new.results[0]
        for end in self.ends:
            Rewriter.replace_op(end, [], [before[end.x]])
        read = {x.owner for op in self.layers for x in op.operands}
        for op in reversed(self.layers):
            Rewriter.erase_op(op)
        for maker in read:
            if isinstance(maker, g.TransposeOp) and not maker.result.uses:
                Rewriter.erase_op(maker)

    def operand(self, x: SSAValue, reader: Operation, before: dict[SSAValue, SSAValue]) -> SSAValue:
        """What a layer reads, with its axes as they were."""
        if x in before:
            return before[x]
        if isinstance(x.owner, g.TransposeOp):
            return x.owner.x
        shape = g.shape_of(x)
        wanted = self.back((1,) * (len(self.perm) - len(shape)) + shape)
        if wanted[len(wanted) - len(shape) :] == shape and set(wanted[: len(wanted) - len(shape)]) <= {1}:
            return x
        if x not in self.shaped:
            shaped = g.ReshapeOp(x, wanted)
            shaped.location = reader.location
            insert_before(reader, shaped)
            self.shaped[x] = shaped.result
        return self.shaped[x]

    def back(self, values: Sequence[int]) -> tuple[int, ...]:
        """Numbers of each axis, by the axes as they were."""
        found = [0] * len(self.perm)
        for axis, value in zip(self.perm, values, strict=True):
            found[axis] = value
        return tuple(found)

    def turned(self, op: Careless, operands: Sequence[SSAValue]) -> Operation:
        """The layer on tensors with their axes as they were."""
        first = operands[0]
        match op:
            case g.UnaryOp():
                return g.UnaryOp(op.act, first)
            case g.BinaryOp():
                return g.BinaryOp(op.kind, first, operands[1], act=op.act, element=op.element)
            case g.SliceOp():
                sizes = g.shape_of(op.result)
                return g.SliceOp(first, self.back(op.starts), self.back(sizes), self.back(op.steps))
            case g.PadOp():
                return g.PadOp(first, low=self.back(op.low), high=self.back(op.high), value=op.value)
            case g.ConcatOp():
                return g.ConcatOp(list(operands), self.perm[op.axis])


def layers_between(op: g.TransposeOp) -> Between | None:
    """What stands between a transposition and those that undo it; None where something else reads it in its order."""
    found = Between(tuple(op.perm))
    waiting = [use.operation for use in op.result.uses]
    known: set[Operation] = set()
    while waiting:
        reader = waiting.pop()
        if reader in known:
            continue
        known.add(reader)
        if isinstance(reader, g.TransposeOp) and undoes(reader, op):
            found.ends.append(reader)
        elif isinstance(reader, Careless) and len(g.shape_of(reader.results[0])) == len(op.perm):
            waiting += [use.operation for use in reader.results[0].uses]
        else:
            return None
    block = op.parent
    assert block is not None
    found.layers = [each for each in block.ops if each in known and isinstance(each, Careless)]
    inside: set[SSAValue] = {each.results[0] for each in found.layers}
    if any(end.x not in inside for end in found.ends) or not found.ends:
        return None
    return (
        found if all(is_free(x, inside, found.perm) for each in found.layers for x in each.operands) else None
    )


def undoes(end: g.TransposeOp, op: g.TransposeOp) -> bool:
    """Whether the axes are as before behind both transpositions."""
    return len(end.perm) == len(op.perm) and [op.perm[axis] for axis in end.perm] == list(range(len(op.perm)))


def is_free(x: SSAValue, inside: set[SSAValue], perm: tuple[int, ...]) -> bool:
    """An operand that can be had with its axes as they were: made by one of the layers, transposed alike before them,
    or a constant whose axes of more than one position keep their order."""
    if x in inside or (isinstance(x.owner, g.TransposeOp) and tuple(x.owner.perm) == perm):
        return not g.is_integer(x)
    shape = (1,) * (len(perm) - len(g.shape_of(x))) + g.shape_of(x)
    long = [axis for axis, extent in zip(perm, shape, strict=True) if extent > 1]
    return isinstance(x.owner, g.WeightOp) and long == sorted(long)


def insert_before(op: Operation, new: Operation) -> None:
    block = op.parent
    assert block is not None
    block.insert_op_before(new, op)
