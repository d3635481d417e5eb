"""A normalisation of groups of channels as what is known of each channel, and what that makes of elements.

The mean and the variance of each channel's plane are found by themselves; those of a group are the mean of its means,
and the mean of its variances plus the variance of its means.  So any piece of the map is normalised by itself, also
where it is read again.  All between the map and the result is f32.

Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import AnyFloat, DenseArrayBase, f32, i64
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import FORM

COLUMNS = 3
"""The axis of columns of a map [N, C, H, W]."""
Add = Callable[[Operation], SSAValue]
"""Puts an operation where it is to be; its result."""
Constant = Callable[[str, NDArray[np.float64], AnyFloat], SSAValue]
"""A constant of this name, these numbers and this type."""


def is_of_planes(op: g.NormaliseOp) -> bool:
    """Whether channels of images are normalised, all of each or each by itself, with constants of channels."""
    shape = g.shape_of(op.x)
    operands = [value for value in (op.scale, op.shift) if value is not None]
    is_whole = len(shape) > 2 and op.axes in {tuple(range(first, len(shape))) for first in (1, 2)}
    return is_whole and all(is_of_channels(value, op.x) and isinstance(value.owner, g.WeightOp) for value in operands)


def is_of_channels(value: SSAValue, x: SSAValue) -> bool:
    """One element for each position of axis 1 of x."""
    shape, own = g.shape_of(x), g.shape_of(value)
    return (1,) * (len(shape) - len(own)) + own == (1, shape[1], *(1,) * (len(shape) - 2))


@dataclass
class PlaneNorm:
    """The layers of one such normalisation, as `add` puts them."""

    op: g.NormaliseOp
    add: Add
    constant: Constant
    is_by_rows: bool = False
    """Whether each row of a channel's plane is looked at by itself, wherever it lies."""
    by_channel: list[SSAValue] = field(default_factory=list)
    """The mean, if it counts, the factor and the shift, if there is one, of each channel [images, channels, 1, 1]."""

    @property
    def planes(self) -> Extents:
        """The map as those around it see it."""
        images, channels, *plane = g.shape_of(self.op.x)
        return images, channels, math.prod(plane[:-1]), plane[-1]

    @property
    def groups(self) -> int:
        """Of the channels of an image."""
        return self.op.groups if 1 in self.op.axes else g.shape_of(self.op.x)[1]

    def shaped(self, x: SSAValue, shape: Extents) -> SSAValue:
        return x if g.shape_of(x) == shape else self.add(g.ReshapeOp(x, shape))

    def find(self) -> None:
        """What is known of each channel."""
        op, (images, channels, rows, _) = self.op, self.planes
        axes, of_group = ((COLUMNS,), (1, 2)) if self.is_by_rows else ((2, 3), (1,))
        parts = images * self.groups, channels // self.groups, rows if self.is_by_rows else 1, 1
        each, x = (images, channels, 1, 1), self.shaped(op.x, self.planes)
        ones = self.constant("ones", np.ones((1, parts[1], 1, 1)), f32)
        if op.rms:
            variance = self.mean(self.shaped(self.mean(self.binary("mul", x, x), *axes), parts), *of_group)
        else:
            means = self.shaped(self.mean(x, *axes), parts)
            inside = self.shaped(self.reduced("variance", x, *axes), parts)
            mean = self.mean(means, *of_group)
            apart = self.binary("sub", means, mean)
            between = self.mean(self.binary("mul", apart, apart), *of_group)
            variance = self.binary("add", self.mean(inside, *of_group), between)
            self.by_channel.append(self.shaped(self.binary("mul", mean, ones), each))
        factor = self.shaped(self.binary("mul", self.inverse(variance), ones), each)
        if op.scale is not None:
            factor = self.binary("mul", factor, self.shaped(op.scale, (1, channels, 1, 1)))
        self.by_channel.append(factor)
        if op.shift is not None:
            self.by_channel.append(self.shaped(op.shift, (1, channels, 1, 1)))

    def normalised(self) -> SSAValue:
        """All elements, as planes, in the operand's type."""
        kinds = ["sub"] * (not self.op.rms) + ["mul"] + ["add"] * (self.op.shift is not None)
        x = self.shaped(self.op.x, self.planes)
        for kind, known in zip(kinds, self.by_channel, strict=True):
            x = self.binary(kind, x, known)
        last = x.owner
        assert isinstance(last, g.BinaryOp)
        if self.op.act is not None:
            last.act = self.op.act
        element = g.tensor_of(self.op.x).element_type
        Rewriter.replace_value_with_new_type(last.result, g.tensor_type(element, g.shape_of(last.result)))
        return last.result

    def root(self, variance: SSAValue) -> SSAValue:
        """What elements less their mean are divided by."""
        total = self.binary("add", variance, self.constant("epsilon", np.array(self.op.epsilon), f32))
        return self.add(g.UnaryOp(g.ActAttr.of("sqrt"), total))

    def inverse(self, variance: SSAValue) -> SSAValue:
        """What elements less their mean are multiplied by."""
        one = self.constant("one", np.array(1.0), f32)
        return self.binary("div", one, self.root(variance))

    def binary(self, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.add(g.BinaryOp(kind, a, b, element=f32))

    def mean(self, x: SSAValue, *axes: int) -> SSAValue:
        """Along axes, which stay with an extent of 1."""
        return self.reduced("mean", x, *axes)

    def reduced(self, kind: str, x: SSAValue, *axes: int) -> SSAValue:
        """The same of any kind; rows of planes are seen as those around them see the planes."""
        op = g.ReduceOp(kind, x, axes, element=f32)
        if axes == (COLUMNS,):
            op.attributes[FORM] = DenseArrayBase.from_list(i64, range(len(g.shape_of(x))))
        return self.add(op)


@dataclass(frozen=True)
class LayersAgain:
    """Layers that make a map element by element of another one, each read by the next alone, in order; made again as
    often as it is read, as `add` puts them."""

    ops: tuple[Operation, ...]
    add: Add

    def normalised(self) -> SSAValue:
        """All elements."""
        values: dict[SSAValue, SSAValue] = {}
        for op in self.ops:
            values[op.results[0]] = self.add(op.clone(values))
        return values[self.ops[-1].results[0]]
