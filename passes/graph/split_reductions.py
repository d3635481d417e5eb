# Tests: test/pipeline/test_stops_agree.py
"""Reduce large maps in two steps, so that every step fits on chip."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.functions import Reduction
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.module import element_bytes, target_of

SHARE = 4  # a reduced row takes at most this part of SRAM: two copies and room for the rest


@dataclass(frozen=True)
class SplitReductions(ModulePass):
    """Split reductions whose reduced elements do not fit SRAM.

    Before: any reductions.  After: a reduction over R elements with R too large is one over B, then one over R / B,
    for the largest divisor B of R that fits (docs/techniques/tfu.md: reductions over space may be computed in pieces);
    variances, which `frustum-graph-expand-normalise` takes of parts that fit, are as they were.
    """

    name = "frustum-graph-split-reductions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        limit = target_of(op).cluster.sram.capacity_bytes // SHARE
        for reduction in [o for o in op.walk() if isinstance(o, g.ReduceOp) and Reduction(o.kind).is_of_parts]:
            split(reduction, limit // element_bytes(reduction.x))


def split(op: g.ReduceOp, limit: int) -> None:
    """Replace a reduction by two if more than `limit` elements make one result."""
    operand = layer_of(op).maps[0]
    reduced = [d for d in range(4) if op_reduces(op, d)]
    if len(reduced) != 1 or operand.dims[reduced[0]] <= limit:
        return
    axis = reduced[0]
    length = operand.dims[axis]
    part = max(b for b in range(1, limit + 1) if length % b == 0)
    if part == 1:
        return
    before, after = math.prod(operand.dims[:axis]), math.prod(operand.dims[axis + 1 :])
    new: list[Operation] = []

    def emit(step: Operation) -> SSAValue:
        new.append(step)
        return step.results[0]

    scales = op.scales  # of integers the parts are summed up in f32
    x = emit(g.DequantizeOp(op.x, scales[0])) if scales else op.x
    x = emit(g.ReshapeOp(x, (before, length // part, part, after)))
    element = f32 if scales else op.element
    x = emit(g.ReduceOp(str(op.kind), x, (2,), True, element=element))
    x = emit(g.ReduceOp(str(op.kind), x, (1,), True, element=element))
    x = emit(g.ReshapeOp(x, g.shape_of(op.result)))
    x = emit(g.QuantizeOp(x, scales[1], g.tensor_of(op.result).element_type)) if scales else x
    block = op.parent
    assert block is not None
    for step in new:
        step.location = op.location
        block.insert_op_before(step, op)
    op.result.replace_all_uses_with(x)
    Rewriter.erase_op(op)


def op_reduces(op: g.ReduceOp, dimension: int) -> bool:
    return dimension in layer_of(op).kind.reduced
