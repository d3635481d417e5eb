"""Moves that the layer beside them can do without: zeros around an average, transpositions around a softmax."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from frustum.dialects.graph import PadOp, PoolOp, SoftmaxOp, TransposeOp, is_integer


def fold_moves(module: ModuleOp) -> None:
    """1. An average over a map with a border of zeros along rows and columns has the border as pads that count.
    2. A softmax between a transposition and the one back is the softmax along the axis that was there."""
    for pool in [o for o in module.walk() if isinstance(o, PoolOp)]:
        if isinstance(pool.x.owner, PadOp):
            pad_inside(pool, pool.x.owner)
    for back in [o for o in module.walk() if isinstance(o, TransposeOp)]:
        if isinstance(back.x.owner, SoftmaxOp):
            softmax_in_place(back, back.x.owner)


def pad_inside(pool: PoolOp, pad: PadOp) -> None:
    low, high = pad.low, pad.high
    is_border = len(low) == 4 and not any((*low[:2], *high[:2])) and min(*low, *high) >= 0 and pad.value == 0
    is_plain = str(pool.kind) == "avg" and not any((*pool.pads, *pool.ceil_pads)) and pool.scales is None
    if not (is_border and is_plain) or is_integer(pad.x):
        return
    pads = (low[2], low[3], high[2], high[3])
    inside = PoolOp(
        "avg", pad.x, kernel=pool.kernel, strides=pool.strides, pads=pads, dilations=pool.dilations,
        count_include_pad=True, act=pool.act,
    )  # fmt: skip
    inside.location = pool.location
    Rewriter.replace_op(pool, inside)
    if not pad.result.uses:
        Rewriter.erase_op(pad)


def softmax_in_place(back: TransposeOp, softmax: SoftmaxOp) -> None:
    before = softmax.x.owner
    if not isinstance(before, TransposeOp) or not softmax.result.has_one_use() or softmax.scales is not None:
        return
    if tuple(before.perm[p] for p in back.perm) != tuple(range(len(back.perm))):
        return
    plain = SoftmaxOp(before.x, before.perm[softmax.axis])
    plain.location = softmax.location
    Rewriter.replace_op(back, plain)
    for unused in (softmax, before):
        if not unused.result.uses:
            Rewriter.erase_op(unused)
