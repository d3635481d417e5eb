# Tests: test/pipeline/test_volumes.py
"""Volumes [1, C, D, H, W] as maps of which the images are slices [D, C, H, W].

Layers with three spatial axes are imported as layers on slices, between transpositions to slices and back.  What
stands between them at volumes goes to the slices too, so that the transpositions meet and are none:

    relu(volume(slices))         ->  volume(relu(slices))        also two operands, concat, pad, slice, sums, softmax
    stack(pad(slices))           ->  pad(stack(slices))          zeros around slices belong to the windows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from xdsl.ir import Block, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects import graph as g
from frustum.dialects.graph.views import SLICES_FIRST
from frustum.passes.graph.patterns.scales import Constants

T = TypeVar("T")
VOLUME_RANK = 5
OF_SLICES = (2, 1, 3, 4)
"""The axis of a volume for each axis of slices."""
AT_VOLUMES: TypeAlias = (
    g.UnaryOp | g.BinaryOp | g.ConcatOp | g.PadOp | g.SliceOp | g.ReduceOp | g.SoftmaxOp
)


class LayersOnSlices(RewritePattern):
    """A layer of volumes that are made of slices works on these, and makes slices."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, AT_VOLUMES) or not any(slices_of(x) is not None for x in op.operands):
            return
        rank = max(len(g.shape_of(x)) for x in op.operands)
        images = [g.shape_of(x)[0] for x in op.operands if len(g.shape_of(x)) == VOLUME_RANK]
        if rank != VOLUME_RANK or set(images) != {1} or (isinstance(op, g.ConcatOp) and op.axis == 0):
            return
        if not is_on_slices(op):
            return
        made: list[Operation] = []
        operands = [self.operand(x, op, made, rewriter) for x in op.operands]
        new = on_slices(op, operands)
        new.location = op.location
        for each in made:
            each.location = op.location
        back = to_volume(new.results[0], g.shape_of(op.results[0]), op)
        volumes = {x.owner for x in op.operands if slices_of(x) is not None}
        rewriter.replace(op, [*made, new, *back], [back[-1].results[0]])
        for volume in volumes:
            erase_unused(volume, rewriter)

    def operand(
        self, x: SSAValue, op: Operation, made: list[Operation], rewriter: PatternRewriter
    ) -> SSAValue:
        """An operand as slices; `made`: what gives it."""
        known = slices_of(x)
        if known is not None:
            return known
        shape = (1,) * (VOLUME_RANK - len(g.shape_of(x))) + g.shape_of(x)
        array = self.constants.array(x)
        if array is not None:
            return self.constants.like(x, array.reshape(shape[1:]).transpose(SLICES_FIRST), rewriter, op)
        flat = g.ReshapeOp(x, shape[1:])
        turned = g.TransposeOp(flat.result, SLICES_FIRST)
        made += [flat, turned]
        return turned.result


def erase_unused(op: Operation | Block, rewriter: PatternRewriter) -> None:
    """A volume that nobody reads any more: what makes its slices has one reader less."""
    while isinstance(op, g.ReshapeOp | g.TransposeOp) and not op.result.uses:
        before = op.x.owner
        rewriter.erase(op)
        op = before


def slices_of(value: SSAValue) -> SSAValue | None:
    """The slices that a volume [1, C, D, H, W] is made of."""
    shape, flat = g.shape_of(value), value.owner
    if len(shape) != VOLUME_RANK or shape[0] != 1 or not isinstance(flat, g.ReshapeOp):
        return None
    if g.shape_of(flat.x) == shape[1:] and isinstance(flat.x.owner, g.TransposeOp):
        turned = flat.x.owner
        return turned.x if turned.perm == SLICES_FIRST else None
    return None


def is_on_slices(op: Operation) -> bool:
    """Nothing happens along the axis of images, of which there is one."""
    match op:
        case g.UnaryOp() | g.BinaryOp() | g.ReduceOp() if op.scales is not None:
            return False
        case g.PadOp():
            return op.low[0] == op.high[0] == 0
        case g.SoftmaxOp():
            return op.axis > 0 and op.scales is None
        case _:
            return True


def of_slices(values: Sequence[T]) -> tuple[T, ...]:
    """What there is of each axis of a volume, for the axes of slices."""
    return tuple(values[axis] for axis in OF_SLICES)


def on_slices(op: AT_VOLUMES, operands: Sequence[SSAValue]) -> Operation:
    """The layer on slices; a sum keeps its axes."""
    first = operands[0]
    match op:
        case g.UnaryOp():
            return g.UnaryOp(op.act, first)
        case g.BinaryOp():
            return g.BinaryOp(op.kind, first, operands[1], act=op.act)
        case g.ConcatOp():
            return g.ConcatOp(list(operands), OF_SLICES.index(op.axis))
        case g.PadOp():
            return g.PadOp(first, of_slices(op.low), of_slices(op.high), op.value)
        case g.SliceOp():
            return g.SliceOp(
                first, of_slices(op.starts), of_slices(g.shape_of(op.result)), of_slices(op.steps)
            )
        case g.SoftmaxOp():
            return g.SoftmaxOp(first, OF_SLICES.index(op.axis))
        case g.ReduceOp():
            axes = tuple(sorted(OF_SLICES.index(axis) for axis in op.axes if axis > 0))
            return g.ReduceOp(op.kind, first, axes, keepdims=True)


def to_volume(slices: SSAValue, shape: Sequence[int], op: Operation) -> list[Operation]:
    """A transposition and a reshape to a volume of that shape, or to what a sum leaves of it."""
    turned = g.TransposeOp(slices, SLICES_FIRST)
    flat = g.ReshapeOp(turned.result, tuple(shape))
    turned.location = flat.location = op.location
    return [turned, flat]


class PadBehindStack(RewritePattern):
    """Zeros around slices: those along depth are the windows' own, others stand behind the stack as well."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.StackOp) or op.volume or not isinstance(op.x.owner, g.PadOp):
            return
        pad = op.x.owner
        ends = (*pad.low, *pad.high)
        if pad.value or min(ends) < 0 or pad.low[1] or pad.high[1] or not op.x.has_one_use():
            return
        pads = (op.pads[0] + pad.low[0], op.pads[1] + pad.high[0])
        stack = g.StackOp(pad.x, op.kernel, op.stride, pads, op.dilation)
        after = g.PadOp(stack.result, (0, 0, *pad.low[2:]), (0, 0, *pad.high[2:]), 0.0)
        stack.location, after.location = op.location, pad.location
        rewriter.replace(op, [stack, after])
        rewriter.erase(pad)
