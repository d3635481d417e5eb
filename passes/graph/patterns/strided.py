# Tests: test/passes/graph/patterns/test_strided.py
"""A value as the elements of another at strides: what a chain of moves between the two amounts to.

Each axis is a list of digits (extent, stride), outermost first, as in a number of mixed radix: an axis of heads that
groups of heads share is (groups, stride of a group), (share, 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.passes.weights import Array, WeightStore

Digits: TypeAlias = tuple[tuple[int, int], ...]
"""Extents and strides (in elements), outermost first; none of extent 1."""


@dataclass(frozen=True)
class Strided:
    """Elements of a tensor from `offset` on, at the strides of each axis."""

    axes: tuple[Digits, ...]
    offset: int = 0

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Strided:
        """All of a tensor, as it is."""
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return cls(tuple(((n, s),) if n > 1 else () for n, s in zip(shape, strides, strict=True)))

    def after(self, op: Operation, store: WeightStore) -> Strided | None:
        """What a move makes of it; None where that has no strides, or the operation is no move."""
        match op:
            case g.ReshapeOp():
                return self.shaped(g.shape_of(op.result))
            case g.TransposeOp():
                return replace(self, axes=tuple(self.axes[axis] for axis in op.perm))
            case g.SliceOp():
                return self.sliced(op)
            case _ if moved(op, store) is not None:
                return self.broadcast(g.shape_of(op.results[0]))
            case _:
                return None

    def shaped(self, shape: Sequence[int]) -> Strided | None:
        axes = regrouped([digit for axis in self.axes for digit in axis], shape)
        return None if axes is None else replace(self, axes=axes)

    def broadcast(self, shape: Sequence[int]) -> Strided:
        """Axes of one element are repeated, and there are such axes before the first."""
        axes = ((),) * (len(shape) - len(self.axes)) + self.axes
        pairs = zip(axes, shape, strict=True)
        return replace(self, axes=tuple(axis if count(axis) == n else ((n, 0),) for axis, n in pairs))

    def sliced(self, op: g.SliceOp) -> Strided | None:
        offset, axes = self.offset, []
        sizes = g.shape_of(op.result)
        for axis, start, size, step in zip(self.axes, op.starts, sizes, op.steps, strict=True):
            part = part_of(axis, start, size, step)
            if part is None:
                return None
            offset += part[0]
            axes.append(part[1])
        return replace(self, axes=tuple(axes), offset=offset)


def moved(op: Operation, store: WeightStore) -> SSAValue | None:
    """What an operation takes elements of without changing them: the operand of a reshape, a transposition, a slice, a
    product with ones; None for others."""
    match op:
        case g.ReshapeOp() | g.TransposeOp() | g.SliceOp():
            return op.x
        case g.UnaryOp() if op.kind == g.Function.IDENTITY and op.scales is None:
            return op.x
        case g.BinaryOp() if op.kind == "mul" and op.act is None and op.scales is None:
            for one, x in ((op.b, op.a), (op.a, op.b)):
                array = constant_of(one, store)
                same = g.tensor_of(x).element_type == op.element
                if same and array is not None and array.size and np.all(array == 1):
                    return x
    return None


def constant_of(value: SSAValue, store: WeightStore) -> Array | None:
    """The numbers of a constant; None where they are known only when the network runs."""
    return store[value.owner.key.data] if isinstance(value.owner, g.WeightOp) else None


def count(digits: Digits) -> int:
    """Elements along an axis."""
    return math.prod(extent for extent, _ in digits)


def joined(digits: Iterable[tuple[int, int]]) -> Digits:
    """The same positions in as few digits as can be."""
    found: list[tuple[int, int]] = []
    for extent, stride in digits:
        if found and found[-1][1] == extent * stride:
            found[-1] = (found[-1][0] * extent, stride)
        elif extent > 1:
            found.append((extent, stride))
    return tuple(found)


def regrouped(digits: Iterable[tuple[int, int]], shape: Sequence[int]) -> tuple[Digits, ...] | None:
    """The same positions in the same order, as axes of these extents; None where a digit would have to be broken."""
    left = list(joined(digits))[::-1]
    if count(tuple(left)) != math.prod(shape):
        return None
    axes = []
    for wanted in shape:
        axis: list[tuple[int, int]] = []
        while wanted > 1:
            extent, stride = left.pop()
            if wanted % extent == 0:
                axis.append((extent, stride))
                wanted //= extent
            elif extent % wanted == 0:
                axis.append((wanted, stride * (extent // wanted)))
                left.append((extent // wanted, stride))
                wanted = 1
            else:
                return None
        axes.append(joined(axis))
    return tuple(axes)


def part_of(digits: Digits, start: int, size: int, step: int) -> tuple[int, Digits] | None:
    """Offset and digits of `size` positions from `start` on; None where they begin or end within a digit."""
    if size == 1 or not digits:
        return place_of(digits, start), ()
    (_, stride), *rest = digits
    inner = count(tuple(rest))
    if not rest:
        return start * stride, ((size, stride * step),)
    if step == 1 and start % inner == 0 and size % inner == 0:
        return start // inner * stride, joined(((size // inner, stride), *rest))
    last = start + (size - 1) * step
    if start // inner != last // inner:
        return None
    found = part_of(tuple(rest), start % inner, size, step)
    return None if found is None else (found[0] + start // inner * stride, found[1])


def place_of(digits: Digits, position: int) -> int:
    """The offset of a position along an axis."""
    offset = 0
    for extent, stride in reversed(digits):
        position, digit = divmod(position, extent)
        offset += digit * stride
    return offset
