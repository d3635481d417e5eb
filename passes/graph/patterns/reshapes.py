# Tests: test/passes/graph/patterns/reshapes.mlir
"""Reshapes go behind layers that can do their work on the elements as they were before.

    unary(reshape(x))          ->  reshape(unary(x))
    binary(reshape(x), y)      ->  reshape(binary(x, reshape(y)))    where x is a map and y is none, or a constant
    slice(unsqueeze(x))        ->  unsqueeze(slice(x))               also pad, concat, sums

So layers of one dimension (which are imported as those of two, between reshapes) follow each other as maps, and a
reshape to and fro around element by element layers is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents

MAP_RANK = 4


class SinkReshape(RewritePattern):
    """A reshape before a layer becomes one behind it."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        match op:
            case g.UnaryOp() | g.QuantizeOp() | g.DequantizeOp() if isinstance(op.x.owner, g.ReshapeOp):
                self.replace(op, [op.x.owner.x], g.shape_of(op.x.owner.x), rewriter)
            case g.BinaryOp():
                self.of_two(op, rewriter)
            case g.ReduceOp() if isinstance(op.x.owner, g.ReshapeOp):
                self.of_sum(op, op.x.owner, rewriter)
            case g.SliceOp() | g.PadOp() if isinstance(op.x.owner, g.ReshapeOp):
                self.of_axes(op, op.x.owner, rewriter)
            case g.ConcatOp():
                self.of_parts(op, rewriter)

    def of_two(self, op: g.BinaryOp, rewriter: PatternRewriter) -> None:
        for value in (op.a, op.b):
            source = value.owner.x if isinstance(value.owner, g.ReshapeOp) else None
            if source is None or g.shape_of(value) != g.shape_of(op.result):
                continue
            operands = [seen_as(each, g.shape_of(source), g.shape_of(op.result)) for each in (op.a, op.b)]
            if all(each is not None for each in operands):
                self.replace(
                    op, [each for each in operands if each is not None], g.shape_of(source), rewriter
                )
                return

    def of_sum(self, op: g.ReduceOp, before: g.ReshapeOp, rewriter: PatternRewriter) -> None:
        """Along the same axes of a map, and along those of one element that the reshape has taken away."""
        source = g.shape_of(before.x)
        axes = axes_of(g.shape_of(op.x), source)
        if axes is None or len(source) != MAP_RANK or len(g.shape_of(op.x)) == MAP_RANK:
            return
        summed = tuple(i for i, axis in enumerate(axes) if axis is None or axis in op.axes)
        self.put(op, g.ReduceOp(op.kind, before.x, summed, True, scales=op.scales, element=op.element), rewriter)

    def of_axes(self, op: g.SliceOp | g.PadOp, before: g.ReshapeOp, rewriter: PatternRewriter) -> None:
        """Only axes of one element are between the two shapes, and nothing happens along them."""
        shape, source = g.shape_of(op.x), g.shape_of(before.x)
        axes = axes_of(shape, source)
        if axes is None or len(source) != MAP_RANK:
            return
        if isinstance(op, g.PadOp):
            idle = [i for i in range(len(shape)) if i not in axes]
            if any(op.low[i] or op.high[i] for i in idle):
                return
            low, high = ([values[i] if i is not None else 0 for i in axes] for values in (op.low, op.high))
            new: Operation = g.PadOp(before.x, tuple(low), tuple(high), op.value)
        else:
            if any(g.shape_of(op.result)[i] != 1 for i in range(len(shape)) if i not in axes):
                return
            made = g.shape_of(op.result)
            parts = [(op.starts[i], made[i], op.steps[i]) if i is not None else (0, 1, 1) for i in axes]
            new = g.SliceOp(before.x, *(tuple(column) for column in zip(*parts, strict=True)))
        self.put(op, new, rewriter)

    def of_parts(self, op: g.ConcatOp, rewriter: PatternRewriter) -> None:
        owners = [x.owner for x in op.xs]
        sources = [owner.x for owner in owners if isinstance(owner, g.ReshapeOp)]
        if len(sources) < len(owners) or not sources:
            return
        found = {axes_of(g.shape_of(x), g.shape_of(s)) for x, s in zip(op.xs, sources, strict=True)}
        axes = found.pop()
        if found or axes is None or op.axis not in axes or len(axes) != MAP_RANK:
            return
        self.put(op, g.ConcatOp(sources, axes.index(op.axis)), rewriter)

    def replace(
        self, op: Operation, operands: Sequence[SSAValue], shape: Extents, rewriter: PatternRewriter
    ) -> None:
        """The layer on other operands, and a reshape behind it."""
        made = g.tensor_of(op.results[0])
        kinds = [type(made)(made.element_type, shape)]
        new = type(op).create(operands=list(operands), result_types=kinds, properties=dict(op.properties))
        new.attributes.update(op.attributes)
        inserted = [
            each.owner
            for each in operands
            if isinstance(each.owner, g.ReshapeOp) and each.owner.parent is None
        ]
        self.put(op, new, rewriter, inserted)

    def put(
        self, op: Operation, new: Operation, rewriter: PatternRewriter, before: Sequence[Operation] = ()
    ) -> None:
        new.location = op.location
        after = g.ReshapeOp(new.results[0], g.shape_of(op.results[0]))
        after.location = op.location
        owners = dict.fromkeys(value.owner for value in op.operands)
        rewriter.replace(op, [*before, new, after], [after.result])
        for reshape in owners:
            if isinstance(reshape, g.ReshapeOp) and not any(reshape.result.uses) and is_of_a_line(reshape):
                rewriter.erase(reshape)


def is_of_a_line(op: g.ReshapeOp) -> bool:
    """Whether only axes of one element are gone.  Until the end of the pass any other that nobody reads counts as a
    reader of its operand, so that no activation goes into what makes that: between two products (256 x 256 on 128 rows,
    f16, `default`) that would take 5,647 cycles instead of 5,399, for the planner then deals channels to clusters,
    which send each other more than it knows."""
    return axes_of(g.shape_of(op.result), g.shape_of(op.x)) is not None


def share_reshapes(module: ModuleOp) -> None:
    """One reshape of a tensor to a shape in a block is enough: a unit would load what two of them give twice."""
    for op in [each for each in module.walk() if isinstance(each, g.ReshapeOp)]:
        for use in tuple(op.x.uses):
            other = use.operation
            is_same = isinstance(other, g.ReshapeOp) and g.shape_of(other.result) == g.shape_of(op.result)
            if other is not op and is_same and other.parent is op.parent and op.is_before_in_block(other):
                Rewriter.replace_op(other, [], [op.result])


def seen_as(value: SSAValue, shape: Extents, whole: Extents) -> SSAValue | None:
    """An operand of a layer as one of this shape; None where that is no gain, or cannot be said."""
    if math.prod(g.shape_of(value)) == 1 and isinstance(value.owner, g.WeightOp) and not g.shape_of(value):
        return value
    if isinstance(value.owner, g.WeightOp) and len(shape) == MAP_RANK and len(whole) < MAP_RANK:
        return spread_as(value, shape, whole)
    if g.shape_of(value) != whole or isinstance(value.owner, g.WeightOp):
        return None
    if isinstance(value.owner, g.ReshapeOp) and g.shape_of(value.owner.x) == shape:
        return value.owner.x
    if len(shape) != MAP_RANK or len(whole) == MAP_RANK:
        return None
    new = g.ReshapeOp(value, shape)
    new.location = value.owner.location if isinstance(value.owner, Operation) else new.location
    return new.result


def spread_as(weight: SSAValue, shape: Extents, whole: Extents) -> SSAValue | None:
    """A constant that is spread over axes of the whole, as it is spread over those of this shape; None where the shapes
    differ by more than axes of one element."""
    own = g.shape_of(weight)
    own, axes = (1,) * (len(whole) - len(own)) + own, axes_of(whole, shape)
    if axes is None:
        return None
    new = g.ReshapeOp(weight, tuple(1 if i is None else own[i] for i in axes))
    assert isinstance(weight.owner, g.WeightOp)
    new.location = weight.owner.location
    return new.result


def axes_of(shape: Sequence[int], source: Sequence[int]) -> tuple[int | None, ...] | None:
    """Of each axis of `source` the axis of `shape` that it is, None for one of one element that `shape` has not; None
    where they differ by more than such axes."""
    found: list[int | None] = []
    i = 0
    for extent in source:
        if i < len(shape) and shape[i] == extent:
            found.append(i)
            i += 1
        elif extent == 1:
            found.append(None)
        else:
            return None
    return tuple(found) if i == len(shape) else None
