"""Normalisations of more elements than a machine holds as the plain layers that they consist of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.module import TARGET
from frustum.dialects.target import Target
from frustum.passes.analysis.module import element_of, node_name, target_of
from frustum.passes.errors import Unsupported
from frustum.passes.graph.expand_attention import plan_of
from frustum.passes.weights import WeightStore, numpy_of, store_of

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

    Before: any normalisation; `element` is the type it is to have on the device.  After: where the module has a target,
    only such as fits it.
    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """

    name = "frustum-graph-expand-normalise"

    element: Literal["f32", "f16", "bf16"] | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = [o for o in op.walk() if isinstance(o, g.NormaliseOp)]
        target = target_of(op) if found and TARGET in op.attributes else None
        for each in found:
            size = ELEMENT_BYTES[self.element or element_of(g.tensor_of(each.x).element_type)]
            if target is not None and not fits(each, target, size):
                _Expansion(each, store_of(op), target.core.nram.capacity_bytes // (WORK_COPIES * size)).run()


def fits(op: g.NormaliseOp, target: Target, size: int) -> bool:
    """Whether the device runs it as one layer, with elements of so many bytes."""
    try:
        return plan_of(op, target, size) is not None
    except Unsupported:  # more than four dimensions
        return False


@dataclass
class _Expansion:
    """The layers of one normalisation as they are made; `most`: elements of a part."""

    op: g.NormaliseOp
    store: WeightStore
    most: int
    made: list[Operation] = field(default_factory=list)

    def run(self) -> None:
        op, shape = self.op, g.shape_of(self.op.x)
        split = (shape[0], op.groups, shape[1] // op.groups, *shape[2:]) if op.groups > 1 else shape
        axes = tuple(axis + (op.groups > 1) for axis in op.axes)
        if axes == tuple(range(axes[0], len(split))):
            total = math.prod(split[axes[0] :])
            part = next(n for n in range(min(self.most, total), 0, -1) if total % n == 0)
            split, axes = (math.prod(split[: axes[0]]), total // part, part), (1, 2)
            x = self.shaped(op.x, split)
            mean, variance = (None, self.mean(self.mean(self.square(x), 2), 1)) if op.rms else self.moments(x)
        else:
            x, mean = self.shaped(op.x, split), None
            if not op.rms:
                mean = self.mean(x, *axes)
                x, mean = self.binary("sub", x, mean), None
            variance = self.mean(self.square(x), *axes)
        deviation = self.binary("add", variance, self.constant("epsilon", op.epsilon))
        deviation = self.add(g.UnaryOp(g.ActAttr.of("sqrt"), deviation))
        x = x if mean is None else self.binary("sub", x, mean)
        x = self.shaped(self.binary("div", x, deviation), shape)
        for operand, kind in ((op.scale, "mul"), (op.shift, "add")):
            x = x if operand is None else self.binary(kind, x, operand)
        Rewriter.replace_op(op, self.made, [x])

    def moments(self, x: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Mean and variance of [B, parts, elements], as [B, 1, 1]."""
        means = self.mean(x, 2)
        inside = self.mean(self.square(self.binary("sub", x, means)), 2)
        mean = self.mean(means, 1)
        between = self.mean(self.square(self.binary("sub", means, mean)), 1)
        return mean, self.binary("add", self.mean(inside, 1), between)

    def add(self, made: Operation) -> SSAValue:
        made.location = self.op.location
        self.made.append(made)
        return made.results[0]

    def shaped(self, x: SSAValue, shape: Extents) -> SSAValue:
        return x if g.shape_of(x) == shape else self.add(g.ReshapeOp(x, shape))

    def mean(self, x: SSAValue, *axes: int) -> SSAValue:
        return self.add(g.ReduceOp("mean", x, axes))

    def binary(self, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.add(g.BinaryOp(kind, a, b))

    def square(self, x: SSAValue) -> SSAValue:
        return self.binary("mul", x, x)

    def constant(self, word: str, number: float) -> SSAValue:
        """A constant in the operand's type, under a key of its own."""
        element = g.tensor_of(self.op.x).element_type
        array = np.full((), number, np.float32).astype(numpy_of(element))
        key = self.store.add(f"{node_name(self.op) or self.op.name}/{word}", array)
        return self.add(g.WeightOp(key, g.tensor_type(element, ())))
