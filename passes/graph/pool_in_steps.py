"""Pool whole planes of large maps in two steps, the first of them where the map is made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.graph.declaration import LayerOp
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of, value_bytes
from frustum.passes.analysis.windows import window_of

PLANE = (2, 3)
KINDS = {"mean": "avg", "max": "max"}
"""Reductions of which those of equal windows, reduced again, are that of the whole."""
SHARE = 2
"""A map that takes more than this part of a cluster's SRAM is pooled where it is made: smaller ones stay for the
reduction in any case."""
WINDOW_SHARE = 12
"""A window takes at most this part of a cluster's SRAM: a unit has several maps of that size and more rows of some
(`mbconv_se_112_b4` in f16 on `edge`: with windows of 1 / 7 the pooling is in no unit with its map)."""


@dataclass(frozen=True)
class PoolInSteps(ModulePass):
    """Global pooling of a large map: windows beside each other first, then what they give.

    Before: networks in the types of the device.  After: a mean or maximum of the planes of a map that a layer of
    floats makes, and that takes more than 1 / `SHARE` of a cluster's SRAM, is a pooling with windows side by side, as
    large as may be while each cluster has its share of columns, the flattest of these, and a mean or maximum of its
    result.  A pooling can be a layer of the unit that makes the map, tile by tile; a reduction needs the whole map at
    once.

    Source: docs/techniques/tfu.md: reductions over space may be computed in pieces.
    """

    name = "frustum-graph-pool-in-steps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reductions = [each for each in op.walk() if isinstance(each, g.ReduceOp)]
        if reductions:
            target = target_of(op)
            for each in reductions:
                pooled_first(each, target)


def pooled_first(op: g.ReduceOp, target: Target) -> None:
    """Put a pooling before a reduction of planes, where its map is large and a window divides it."""
    shape = g.shape_of(op.x)
    if op.kind not in KINDS or tuple(op.axes) != PLANE or len(shape) != 4 or op.scales:
        return
    if op.element != g.tensor_of(op.x).element_type:
        return  # a step would round sums that are to stay wide
    if not is_made(op.x) or value_bytes(op.x) * SHARE <= target.cluster.sram.capacity_bytes:
        return
    position_bytes = value_bytes(op.x) // (shape[0] * shape[2] * shape[3])
    most = target.cluster.sram.capacity_bytes // WINDOW_SHARE // position_bytes
    window = window_of(shape[2], shape[3], target.chip.clusters, most)
    if math.prod(window) == 1:
        return
    pool = g.PoolOp(KINDS[op.kind], op.x, kernel=window, strides=window)
    rest = g.ReduceOp(op.kind, pool.result, PLANE, op.keepdims)
    pool.location = rest.location = op.location
    Rewriter.replace_op(op, [pool, rest], [rest.results[0]])


def is_made(x: SSAValue) -> bool:
    """A layer makes it: of an input of the network nothing is there before it is loaded."""
    return isinstance(x.owner, LayerOp)
