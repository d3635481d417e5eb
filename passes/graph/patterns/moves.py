# Tests: test/passes/graph/canonicalize.mlir
"""Operations that change nothing, moves that can be one instead of two, and moves that the layer beside them can do
without: zeros around an average, transpositions around a softmax."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.functions import Reduction


class RemoveIdentity(RewritePattern):
    """What has its operand for a result is replaced by it."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        x = unchanged(op)
        if x is not None:
            rewriter.replace(op, (), [x])


class MergeMoves(RewritePattern):
    """A reshape of a reshape, a transpose of a transpose, a reduction over axes of extent 1."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        new: Operation | None = None
        match op:
            case g.ReshapeOp() if isinstance(op.x.owner, g.ReshapeOp):
                new = g.ReshapeOp(op.x.owner.x, g.shape_of(op.result))
            case g.TransposeOp() if isinstance(op.x.owner, g.TransposeOp):
                inner = op.x.owner.perm
                new = g.TransposeOp(op.x.owner.x, tuple(inner[axis] for axis in op.perm))
            case g.TransposeOp() if _order_of_long_axes(op) == sorted(_order_of_long_axes(op)):
                new = g.ReshapeOp(op.x, g.shape_of(op.result))
            case g.ReduceOp() if op.scales is None and _is_of_single(op):
                new = g.ReshapeOp(op.x, g.shape_of(op.result))
        if new is not None:
            new.location = op.location
            rewriter.replace(op, new)


def _is_of_single(op: g.ReduceOp) -> bool:
    """One element makes each result, and is it: the variance of one element is 0."""
    return Reduction(op.kind).is_of_parts and all(g.shape_of(op.x)[axis] == 1 for axis in op.axes)


def _order_of_long_axes(op: g.TransposeOp) -> list[int]:
    """The axes of more than one element, as the transpose orders them."""
    shape = g.shape_of(op.x)
    return [axis for axis in op.perm if shape[axis] != 1]


def unchanged(op: Operation) -> SSAValue | None:
    """The operand that the operation only repeats."""
    match op:
        case g.UnaryOp() if op.kind == g.Function.IDENTITY and (op.scales is None or len(set(op.scales)) == 1):
            return op.x
        case g.ConcatOp() if len(op.xs) == 1:
            return op.xs[0]
        case g.ReshapeOp() if g.shape_of(op.x) == g.shape_of(op.result):
            return op.x
        case g.TransposeOp() if list(op.perm) == sorted(op.perm):
            return op.x
        case g.PadOp() if not any(op.low) and not any(op.high):
            return op.x
        case g.SliceOp() if g.shape_of(op.x) == g.shape_of(op.result) and set(op.steps) <= {1}:
            return op.x
        case _:
            return None


def fold_moves(module: ModuleOp) -> None:
    """1. An average over a map with a border of zeros along rows and columns has the border as pads that count.
    2. A softmax between a transposition and the one back is the softmax along the axis that was there.
    3. A product reads its second factor by strides: rows and columns in either order are no move."""
    for pool in [o for o in module.walk() if isinstance(o, g.PoolOp)]:
        if isinstance(pool.x.owner, g.PadOp):
            pad_inside(pool, pool.x.owner)
    for back in [o for o in module.walk() if isinstance(o, g.TransposeOp)]:
        if isinstance(back.x.owner, g.SoftmaxOp):
            softmax_in_place(back, back.x.owner)
    for product in [o for o in module.walk() if isinstance(o, g.MatmulOp)]:
        if isinstance(product.b.owner, g.TransposeOp):
            read_by_strides(product, product.b.owner)


def read_by_strides(product: g.MatmulOp, turned: g.TransposeOp) -> None:
    """The second factor as it is before its last two axes are exchanged."""
    rank = len(turned.perm)
    if tuple(turned.perm) != (*range(rank - 2), rank - 1, rank - 2):
        return
    product.operands[1], product.trans_b = turned.x, not product.trans_b
    if not turned.result.uses:
        Rewriter.erase_op(turned)


def pad_inside(pool: g.PoolOp, pad: g.PadOp) -> None:
    low, high = pad.low, pad.high
    is_border = len(low) == 4 and not any((*low[:2], *high[:2])) and min(*low, *high) >= 0 and pad.value == 0
    is_plain = str(pool.kind) == "avg" and not any((*pool.pads, *pool.ceil_pads)) and pool.scales is None
    is_plain = is_plain and not pool.is_of_slices
    if not (is_border and is_plain) or g.is_integer(pad.x):
        return
    pads = (low[2], low[3], high[2], high[3])
    inside = g.PoolOp(
        "avg", pad.x, kernel=pool.kernel, strides=pool.strides, pads=pads, dilations=pool.dilations,
        count_include_pad=True, act=pool.act,
    )  # fmt: skip
    inside.location = pool.location
    Rewriter.replace_op(pool, inside)
    if not pad.result.uses:
        Rewriter.erase_op(pad)


def softmax_in_place(back: g.TransposeOp, softmax: g.SoftmaxOp) -> None:
    before = softmax.x.owner
    if not isinstance(before, g.TransposeOp) or not softmax.result.has_one_use() or softmax.scales is not None:
        return
    if tuple(before.perm[p] for p in back.perm) != tuple(range(len(back.perm))):
        return
    plain = g.SoftmaxOp(before.x, before.perm[softmax.axis])
    plain.location = softmax.location
    Rewriter.replace_op(back, plain)
    for unused in (softmax, before):
        if not unused.result.uses:
            Rewriter.erase_op(unused)
