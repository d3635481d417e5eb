"""An activation that directly follows a layer goes into it (a value times its sigmoid is one), as does a border of
zeros before a convolution; a mean over windows goes before a pointwise convolution instead of behind it: fewer
products, smaller maps.

    avg_pool(conv1x1(x, w) + b)  ->  conv1x1(avg_pool(x), w) + b

Both are linear, and each window's mean has as many terms everywhere where nothing is padded (transitions of DenseNet).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects import graph as g
from frustum.passes.graph.patterns.digits import is_offset
from frustum.passes.graph.patterns.scales import Constants

Layer = g.ConvOp | g.MatmulOp | g.PoolOp | g.BinaryOp
CHANNELS = 1  # the axis of channels
PLANE = 2  # axes before height and width


class FuseActivation(RewritePattern):
    """Into the layer that makes its operand, if nobody else uses that; of interleaved parts, into every part."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.UnaryOp) or op.scales is not None or not op.x.has_one_use():
            return
        layer = op.x.owner
        if isinstance(layer, g.InterleaveOp):
            producers = [part.owner for part in layer.parts]
            if not all(part.has_one_use() for part in layer.parts):
                return
        else:
            producers = [layer]
        if not all(isinstance(producer, Layer) and producer.act is None for producer in producers):
            return
        for producer in producers:
            assert isinstance(producer, Layer)
            producer.act = op.act
            rewriter.notify_op_modified(producer)
        rewriter.replace(op, (), [op.x])


class FindSilu(RewritePattern):
    """A value times its sigmoid is one function, which then goes into the layer that makes the value:

        x * sigmoid(x)  ->  silu(x)
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.BinaryOp) or op.kind != g.Arithmetic.MUL or op.scales is not None or op.act is not None:
            return
        for x, gate in ((op.a, op.b), (op.b, op.a)):
            sigmoid = gate.owner
            if (
                isinstance(sigmoid, g.UnaryOp)
                and sigmoid.kind == g.Function.SIGMOID
                and sigmoid.scales is None
                and sigmoid.x is x
                and gate.has_one_use()
            ):
                rewriter.replace(op, g.UnaryOp(g.ActAttr.of("silu"), x))
                rewriter.erase(sigmoid)
                return


class FusePad(RewritePattern):
    """Into the convolution that follows (zeros), or the max-pool (minus infinity: what its own padding is)."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.ConvOp | g.PoolOp) or (isinstance(op, g.PoolOp) and op.is_of_slices):
            return
        pad = op.x.owner
        if not isinstance(pad, g.PadOp) or not op.x.has_one_use():
            return
        if pad.value != _own_value(op) or any(pad.low[:PLANE]) or any(pad.high[:PLANE]):
            return
        added = (*pad.low[PLANE:], *pad.high[PLANE:])
        if min(added) < 0:  # a crop, then a border: not the same as their sum
            return
        op.pads = tuple(a + b for a, b in zip(op.pads, added, strict=True))
        op.operands[0] = pad.x
        rewriter.notify_op_modified(op)
        rewriter.erase(pad)


def _own_value(op: g.ConvOp | g.PoolOp) -> float | None:
    """What the operation's own padding is; None where it has no value."""
    if isinstance(op, g.ConvOp):
        return float(op.zeros[0]) if op.zeros is not None else 0.0
    if op.kind != g.Pooling.MAX:
        return None
    return float(g.bounds(g.tensor_of(op.x).element_type)[0]) if g.is_integer(op.x) else float("-inf")


@dataclass(frozen=True)
class PoolBeforeConv(RewritePattern):
    """Where the pooled input is no larger than the convolution's result was, and its bias rounds nothing."""

    constants: Constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.PoolOp) or not is_plain_mean(op) or not op.x.has_one_use():
            return
        conv = op.x.owner
        if not isinstance(conv, g.ConvOp) or not is_pointwise(conv):
            return
        bias, weights = self.constants.array(conv.bias), self.constants.array(conv.w)
        if bias is not None and weights is not None and is_offset(bias, np.abs(weights).sum(axis=(1, 2, 3))):
            return
        channels, made = g.shape_of(conv.x)[1], g.shape_of(conv.result)
        if channels * math.prod(g.shape_of(op.result)[2:]) > made[1] * math.prod(made[2:]):
            return
        pool = g.PoolOp("avg", conv.x, kernel=op.kernel, strides=op.strides, dilations=op.dilations)
        act: g.ActAttr | None = op.act
        after = g.ConvOp(pool.result, conv.w, conv.bias, groups=conv.groups, act=act)
        pool.location, after.location = op.location, conv.location
        rewriter.replace(op, [pool, after])
        rewriter.erase(conv)


def is_plain_mean(op: g.PoolOp) -> bool:
    """A mean of as many elements everywhere, in floating point."""
    is_float = not g.is_integer(op.x) and op.scales is None
    return op.kind is g.Pooling.AVG and is_float and not op.is_of_slices and not any((*op.pads, *op.ceil_pads))


def is_pointwise(conv: g.ConvOp) -> bool:
    """One position of the input for one of the output, and nothing behind the sum."""
    is_one = math.prod(g.shape_of(conv.w)[2:]) == 1 and math.prod(conv.strides) == 1 and not any(conv.pads)
    return is_one and conv.act is None and conv.residual is None and conv.scales is None
