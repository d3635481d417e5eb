"""An activation that directly follows a layer goes into it, as does a border of zeros before a convolution."""

from __future__ import annotations

from xdsl.ir import Operation
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects.graph import (
    BinaryOp,
    ConvOp,
    InterleaveOp,
    MatmulOp,
    PadOp,
    Pooling,
    PoolOp,
    UnaryOp,
    bounds,
    is_integer,
    tensor_of,
)

Layer = ConvOp | MatmulOp | PoolOp | BinaryOp
PLANE = 2  # axes before height and width


class FuseActivation(RewritePattern):
    """Into the layer that makes its operand, if nobody else uses that; of interleaved parts, into every part."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, UnaryOp) or op.scales is not None or not op.x.has_one_use():
            return
        layer = op.x.owner
        if isinstance(layer, InterleaveOp):
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


class FusePad(RewritePattern):
    """Into the convolution that follows (zeros), or the max-pool (minus infinity: what its own padding is)."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, ConvOp | PoolOp):
            return
        pad = op.x.owner
        if not isinstance(pad, PadOp) or not op.x.has_one_use():
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


def _own_value(op: ConvOp | PoolOp) -> float | None:
    """What the operation's own padding is; None where it has no value."""
    if isinstance(op, ConvOp):
        return float(op.zeros[0]) if op.zeros is not None else 0.0
    if op.kind != Pooling.MAX:
        return None
    return float(bounds(tensor_of(op.x).element_type)[0]) if is_integer(op.x) else float("-inf")
