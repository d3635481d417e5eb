"""Normalisations of more elements than a machine holds as the plain layers that they consist of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.expand_attention import WIDE, without_pieces
from frustum.passes.graph.composites.plain_layers import PlainLayers
from frustum.passes.weights import store_of

WORK_COPIES = 16
"""A part whose mean and variance are found by themselves is at most so small a share of a core's memory: a unit has it
as numbers, less its mean, and squared, twice each."""


@dataclass(frozen=True)
class ExpandNormalise(ModulePass):
    """Write `fgraph.normalise` whose rows or groups have no pieces that fit the machine as sums and element by element
    layers.

    1. Elements that follow each other are cut into equal parts; each part's mean and variance are found by themselves,
       which reads them once.
    2. The mean is the mean of the parts' means; the variance is the mean of their variances, plus that of their means.
    3. Then every element is scaled and shifted, which reads them again.

    All between the operand and the result is f32, as it is inside a core that holds a whole row: squares of f16 are
    infinite from 256 on, and means of large numbers that lie close together need more digits than their deviation.

    Before: any normalisation, in the types of the device.  After: where the module has a target, only such as fits it;
    what is new is simplified with all around it.
    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """

    name = "frustum-graph-expand-normalise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        written = without_pieces(op, g.NormaliseOp)
        for each in written:
            _NormExpansion(each, store_of(op), most=most_of_part(target_of(op))).run()
        if written:
            Canonicalize().apply(ctx, op)


def most_of_part(target: Target) -> int:
    """Elements whose statistics are found at a time."""
    return target.core.nram.capacity_bytes // (WORK_COPIES * WIDE)


def longest_part(total: int, most: int) -> int:
    """Of so many elements in equal parts."""
    return next(n for n in range(min(most, total), 0, -1) if total % n == 0)


@dataclass
class _NormExpansion(PlainLayers):
    """The layers of one normalisation as they are made; `most`: elements of a part."""

    op: g.NormaliseOp
    most: int = field(kw_only=True)

    def run(self) -> None:
        op, shape = self.op, g.shape_of(self.op.x)
        operands = [value for value in (op.scale, op.shift) if value is not None]
        if op.axes == tuple(range(op.axes[0], len(shape))):
            x, seen = self.of_parts(operands)
        else:
            x, seen = self.of_axes(), None
        if seen is None:
            x, seen = self.shaped(x, shape), operands
        for operand, kind in zip(seen, ("mul", "add"), strict=False):
            x = self.binary(kind, x, operand)
        last = x.owner
        assert isinstance(last, g.BinaryOp)
        Rewriter.replace_value_with_new_type(last.result, g.tensor_type(g.tensor_of(op.x).element_type, g.shape_of(x)))
        x = last.result
        Rewriter.replace_op(op, self.made, [self.shaped(x, shape)])

    def of_axes(self) -> SSAValue:
        """Along any axes: x is read for the mean, for the variance, and for the result."""
        op, (images, *rest) = self.op, g.shape_of(self.op.x)
        x, axes = op.x, op.axes
        if op.groups > 1:
            x = self.shaped(x, (images, op.groups, rest[0] // op.groups, *rest[1:]))
            axes = tuple(axis + 1 for axis in axes)
        if not self.op.rms:
            x = self.binary("sub", x, self.mean(x, *axes))
        return self.binary("div", x, self.root(self.mean(self.square(x), *axes)))

    def of_parts(self, operands: Sequence[SSAValue]) -> tuple[SSAValue, Sequence[SSAValue] | None]:
        """What is normalised together follows each other: as [rows or groups, channels of a group, parts, elements];
        and how scale and shift are seen so, None where they are not."""
        op, shape = self.op, g.shape_of(self.op.x)
        first, channels = op.axes[0], shape[1] // op.groups if op.groups > 1 else 1
        rows = shape[0] * op.groups if op.groups > 1 else math.prod(shape[:first])
        total = math.prod(shape) // (rows * channels)
        part = longest_part(total, self.most)
        split = rows, channels, total // part, part
        x, mean = self.shaped(op.x, split), None
        if op.rms:
            variance = self.mean(self.mean(self.square(x), 3), 1, 2)
        else:
            mean, variance = self.moments(x)
        x = x if mean is None else self.binary("sub", x, mean)
        seen = [self.of_channels(value, split) for value in operands]
        found = [value for value in seen if value is not None]
        return self.binary("div", x, self.root(variance)), found if len(found) == len(seen) else None

    def of_channels(self, value: SSAValue, split: Extents) -> SSAValue | None:
        """A scale or shift as the parts are seen: constants of channels, or one for each element of a row."""
        op, shape, own = self.op, g.shape_of(self.op.x), g.shape_of(value)
        if op.groups == 1 and own == shape[op.axes[0] :]:
            return self.shaped(value, (1, *split[1:]))
        is_of_channels = (1,) * (len(shape) - len(own)) + own == (1, shape[1], *(1,) * (len(shape) - 2))
        per_image = split[0] * split[1] == shape[0] * shape[1]
        if not is_of_channels or not per_image or not isinstance(value.owner, g.WeightOp):
            return None
        array = np.tile(self.store[value.owner.key.data].ravel(), shape[0]).reshape(*split[:2], 1, 1)
        key = self.store.add(value.owner.key.data, array)
        return self.add(g.WeightOp(key, g.tensor_type(g.tensor_of(value).element_type, array.shape)))

    def root(self, variance: SSAValue) -> SSAValue:
        total = self.binary("add", variance, self.constant("epsilon", np.array(self.op.epsilon), f32))
        return self.add(g.UnaryOp(g.ActAttr.of("sqrt"), total))

    def moments(self, x: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Mean and variance of [B, channels, parts, elements], as [B, 1, 1, 1]."""
        means = self.mean(x, 3)
        inside = self.mean(self.square(self.binary("sub", x, means)), 3)
        mean = self.mean(means, 1, 2)
        between = self.mean(self.square(self.binary("sub", means, mean)), 1, 2)
        return mean, self.binary("add", self.mean(inside, 1, 2), between)

    def mean(self, x: SSAValue, *axes: int) -> SSAValue:
        return self.reduced("mean", x, *axes)

    def square(self, x: SSAValue) -> SSAValue:
        return self.binary("mul", x, x)
