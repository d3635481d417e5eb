"""A mean over windows before a pointwise convolution instead of behind it: fewer products, smaller maps.

    avg_pool(conv1x1(x, w) + b)  ->  conv1x1(avg_pool(x), w) + b

Both are linear, and each window's mean has as many terms everywhere where nothing is padded (transitions of DenseNet).
"""

from __future__ import annotations

import math

from xdsl.ir import Operation
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects.graph import ActAttr, ConvOp, Pooling, PoolOp, is_integer, shape_of


class PoolBeforeConv(RewritePattern):
    """Where the pooled input is no larger than the convolution's result was."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, PoolOp) or not is_plain_mean(op) or not op.x.has_one_use():
            return
        conv = op.x.owner
        if not isinstance(conv, ConvOp) or not is_pointwise(conv):
            return
        channels, made = shape_of(conv.x)[1], shape_of(conv.result)
        if channels * math.prod(shape_of(op.result)[2:]) > made[1] * math.prod(made[2:]):
            return
        pool = PoolOp("avg", conv.x, kernel=op.kernel, strides=op.strides, dilations=op.dilations)
        act: ActAttr | None = op.act
        after = ConvOp(pool.result, conv.w, conv.bias, groups=conv.groups, act=act)
        pool.location, after.location = op.location, conv.location
        rewriter.replace(op, [pool, after])
        rewriter.erase(conv)


def is_plain_mean(op: PoolOp) -> bool:
    """A mean of as many elements everywhere, in floating point."""
    is_float = not is_integer(op.x) and op.scales is None
    return op.kind is Pooling.AVG and is_float and not any((*op.pads, *op.ceil_pads))


def is_pointwise(conv: ConvOp) -> bool:
    """One position of the input for one of the output, and nothing behind the sum."""
    is_one = math.prod(shape_of(conv.w)[2:]) == 1 and math.prod(conv.strides) == 1 and not any(conv.pads)
    return is_one and conv.act is None and conv.residual is None and conv.scales is None
