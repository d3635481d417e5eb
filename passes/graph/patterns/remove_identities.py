"""Operations that change nothing, and moves that can be one instead of two."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects.graph import (
    ConcatOp,
    Function,
    PadOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    shape_of,
)


class RemoveIdentity(RewritePattern):
    """What has its operand for a result is replaced by it."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        x = _unchanged(op)
        if x is not None:
            rewriter.replace(op, (), [x])


class MergeMoves(RewritePattern):
    """A reshape of a reshape, a transpose of a transpose, a reduction over axes of extent 1."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        new: Operation | None = None
        match op:
            case ReshapeOp() if isinstance(op.x.owner, ReshapeOp):
                new = ReshapeOp(op.x.owner.x, shape_of(op.result))
            case TransposeOp() if isinstance(op.x.owner, TransposeOp):
                inner = op.x.owner.perm
                new = TransposeOp(op.x.owner.x, tuple(inner[axis] for axis in op.perm))
            case TransposeOp() if _order_of_long_axes(op) == sorted(_order_of_long_axes(op)):
                new = ReshapeOp(op.x, shape_of(op.result))
            case ReduceOp() if op.scales is None and all(shape_of(op.x)[axis] == 1 for axis in op.axes):
                new = ReshapeOp(op.x, shape_of(op.result))
        if new is not None:
            new.location = op.location
            rewriter.replace(op, new)


def _order_of_long_axes(op: TransposeOp) -> list[int]:
    """The axes of more than one element, as the transpose orders them."""
    shape = shape_of(op.x)
    return [axis for axis in op.perm if shape[axis] != 1]


def _unchanged(op: Operation) -> SSAValue | None:
    """The operand that the operation only repeats."""
    match op:
        case UnaryOp() if op.kind == Function.IDENTITY and (op.scales is None or len(set(op.scales)) == 1):
            return op.x
        case ConcatOp() if len(op.xs) == 1:
            return op.xs[0]
        case ReshapeOp() if shape_of(op.x) == shape_of(op.result):
            return op.x
        case TransposeOp() if list(op.perm) == sorted(op.perm):
            return op.x
        case PadOp() if not any(op.low) and not any(op.high):
            return op.x
        case SliceOp() if shape_of(op.x) == shape_of(op.result) and set(op.steps) <= {1}:
            return op.x
        case _:
            return None
