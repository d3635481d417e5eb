"""Pool maps that lie side by side each by itself, where the whole is too large to stay on chip."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.passes.analysis.module import element_bytes, target_of

CHANNELS = 1  # the axis of channels
SHARE = 2
"""A concatenation that takes more than this part of the SRAM of all clusters leaves too little beside it.  In f16 on
`edge` all is larger, and Inception v1 takes 4,677,000 cycles and 15.9 MB instead of 4,765,591 and 17.9 (with SHARE 1
4,682,161 and 17.4), SqueezeNet 838,784 cycles instead of 858,395; on `default`, where all is smaller, they would take
191,991 cycles instead of 186,615 and 45,240 instead of 43,944."""


@dataclass(frozen=True)
class PoolParts(ModulePass):
    """Pooling with strides of a concatenation: of each of its parts, so that what lies side by side is smaller, and
    each part can be pooled where it is made.

    Before: networks in the types of the device.  After: no pooling with strides reads a concatenation of channels that
    nobody else reads and that is larger than a half (`SHARE`) of the SRAM of all clusters.  What is smaller stays as it
    was, one layer instead of several.
    """

    name = "frustum-graph-pool-parts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        chip = target_of(op).chip
        room = chip.clusters * chip.cluster.sram.capacity_bytes // SHARE
        left = [pool for pool in op.walk() if isinstance(pool, g.PoolOp)]
        while left:
            pool = left.pop()
            if is_of_parts(pool) and element_bytes(pool.x) * math.prod(g.shape_of(pool.x)) > room:
                left += split(pool)


def is_of_parts(pool: g.PoolOp) -> bool:
    """Whether it makes channels that lie side by side, which nobody else reads, smaller."""
    concat = pool.x.owner
    if not isinstance(concat, g.ConcatOp) or concat.axis != CHANNELS or len(set(concat.xs)) < len(concat.xs):
        return False
    return math.prod(pool.strides) > 1 and pool.x.has_one_use()


def split(pool: g.PoolOp) -> list[g.PoolOp]:
    """The poolings of the parts, which replace that of the whole."""
    concat = pool.x.owner
    assert isinstance(concat, g.ConcatOp)
    pools = [pool_of(pool, part) for part in concat.xs]
    joined = g.ConcatOp([each.result for each in pools], CHANNELS)
    joined.location = concat.location
    Rewriter.replace_op(pool, [*pools, joined])
    Rewriter.erase_op(concat)
    return pools


def pool_of(op: g.PoolOp, x: SSAValue) -> g.PoolOp:
    """The same of another map."""
    made = g.PoolOp(
        op.kind, x, kernel=op.kernel, strides=op.strides, pads=op.pads, dilations=op.dilations,
        ceil_pads=op.ceil_pads, count_include_pad=op.count_include_pad, act=op.act, scales=op.scales,
    )  # fmt: skip
    made.location = op.location
    return made
