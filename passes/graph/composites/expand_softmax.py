"""Softmax over more elements than a machine holds as the plain layers that it consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.expand_attention import WIDE, without_pieces
from frustum.passes.graph.composites.expand_normalise import longest_part, most_of_part, parts_of
from frustum.passes.graph.composites.plain_layers import PlainLayers
from frustum.passes.weights import store_of

WORK_COPIES = 16
"""A part whose maximum and sum are found by themselves is at most so small a share of a core's memory: a unit has it as
numbers, less its maximum, and their powers, twice each."""


@dataclass(frozen=True)
class ExpandSoftmax(ModulePass):
    """Write `fgraph.softmax` of floats over rows that have no pieces that fit the machine as maxima, sums and element
    by element layers, so that these are read twice.

    1. A row is cut into equal parts; each part's maximum, and the sum of its powers less that, are found by themselves.
    2. The row's maximum is the largest of these; its sum that of the parts' sums, each as much smaller as its maximum
       is below the row's.
    3. Then every element becomes its power, divided by the row's sum.
    4. Rows that fit the SRAM of all clusters, and not of one, are made so one after another, if not all of them do:
       they stay there, each cluster holding its share, and are read from DRAM once.

    All between the operand and the result is f32.

    Before: any softmax, in the types of the device.  After: where the module has a target, only such as fits it.
    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, section 3.
    """

    name = "frustum-graph-expand-softmax"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        written = [each for each in without_pieces(op, g.SoftmaxOp) if each.scales is None]
        for each in written:
            target = target_of(op)
            most = most_of_part(target, WIDE, WORK_COPIES, parts=1)
            _SoftmaxExpansion(each, store_of(op), target=target, most=most).run()
        if written:
            Canonicalize().apply(ctx, op)


@dataclass
class _SoftmaxExpansion(PlainLayers):
    """The layers of one softmax as they are made; `most`: elements of a part."""

    op: g.SoftmaxOp
    target: Target = field(kw_only=True)
    most: int = field(kw_only=True)

    def run(self) -> None:
        shape, axis = g.shape_of(self.op.x), self.op.axis
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if inner > 1:
            part = longest_part(shape[axis], self.most)
            split, parts = (outer, shape[axis] // part, part, inner), [1]
        else:
            split, parts = (outer, *parts_of(shape[axis], self.most, self.target.chip.clusters)), [1, 2]
        rows = self.shaped(self.op.x, split)
        result = self.in_turn(rows, self.target, lambda x, start, stop: self.of_rows(x, parts))
        Rewriter.replace_op(self.op, self.made, [self.shaped(result, shape)])

    def of_rows(self, x: SSAValue, parts: Sequence[int]) -> SSAValue:
        """Rows whose parts are along these axes, a part's elements along the axis behind them."""
        along = parts[-1] + 1
        highest = self.reduced("max", x, along)
        sums = self.reduced("sum", self.binary("sub", x, highest, "exp"), along)
        row = self.reduced("max", highest, *parts)
        sums = self.binary("mul", sums, self.binary("sub", highest, row, "exp"))
        powers, total = self.binary("sub", x, row, "exp"), self.reduced("sum", sums, *parts)
        return self.add(g.BinaryOp("div", powers, total, element=g.tensor_of(self.op.x).element_type))
