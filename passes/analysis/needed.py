"""Which elements of each value the outputs of a network need: nobody has to read or to make the others.

From the last operation back.  A convolution of stride 2 with a kernel of 1 needs a quarter of its map, a slice what it
keeps.  Where an operation has no rule, all of its operands count as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.graph.declaration import LayerOp

Mask: TypeAlias = NDArray[np.bool_]
Needed: TypeAlias = Mask | None
"""The elements of a value that are needed; None: all."""
Taps: TypeAlias = Iterable[NDArray[np.int64]]
"""For each tap of a window the position that each result reads there; positions outside are padding."""


class NeededElements:
    """Of each value of a network how many of its elements are needed."""

    def __init__(self, network: g.NetworkOp) -> None:
        self._found: dict[SSAValue, Needed] = {}
        for op in reversed(list(network.body.block.ops)):
            self._add(op)

    def _add(self, op: Operation) -> None:
        result = op.results[0] if op.results else None
        if result is not None and result not in self._found and isinstance(op, LayerOp):
            return  # nobody reads it
        for value in (value for inner in op.walk() if inner is not op for value in (*inner.results, *inner.operands)):
            self._found[value] = None  # its body runs several times
        rule = RULES.get(type(op))
        for number, operand in enumerate(op.operands):
            asked = None if rule is None or result is None else rule(op, number, self._found[result])
            known = self._found.get(operand, asked)
            joined = None if asked is None or known is None else asked | known
            self._found[operand] = None if joined is not None and joined.all() else joined

    def mask(self, value: SSAValue) -> Needed:
        """Which elements of the value are needed; None: all."""
        return self._found[value] if value in self._found else np.zeros(g.shape_of(value), np.bool_)

    def count(self, value: SSAValue) -> int:
        """How many they are."""
        mask = self.mask(value)
        return prod(g.shape_of(value)) if mask is None else int(mask.sum())


def whole(op: Operation, need: Needed) -> Mask:
    """The mask of an operation's result."""
    return np.ones(g.shape_of(op.results[0]), np.bool_) if need is None else need


def broadcast(need: Needed, shape: g.Ints) -> Needed:
    """Of an operand of this shape, which broadcasts to the result."""
    if need is None:
        return None
    shared = tuple(range(need.ndim - len(shape)))
    found = np.any(need, axis=shared, keepdims=True).reshape(need.shape[len(shared) :])
    return np.asarray(np.any(found, axis=tuple(k for k, size in enumerate(shape) if size == 1), keepdims=True))


def elementwise(op: Operation, number: int, need: Needed) -> Needed:
    return broadcast(need, g.shape_of(op.operands[number]))


def along(axes: Callable[[Any], g.Ints]) -> Rule:
    """A rule for operations that need all of some axes of the first operand for any element there."""

    def rule(op: Any, number: int, need: Needed) -> Needed:
        if need is None:
            return None
        if number > 0:
            return broadcast(need, g.shape_of(op.operands[number]))
        shape = g.shape_of(op.operands[0])
        if need.ndim < len(shape):
            need = np.expand_dims(need, axes(op))
        return np.broadcast_to(need.any(axis=axes(op), keepdims=True), shape)

    return rule


def reshaped(op: Operation, number: int, need: Needed) -> Needed:
    return None if need is None else need.reshape(g.shape_of(op.operands[0]))


def permuted(op: g.TransposeOp | g.TurnOp, number: int, need: Needed) -> Needed:
    return None if need is None else np.transpose(need, np.argsort(op.perm))


def sliced(op: g.SliceOp | g.PickOp, number: int, need: Needed) -> Needed:
    found = np.zeros(g.shape_of(op.x), np.bool_)
    places = (s + k * np.arange(n) for s, k, n in zip(op.starts, op.steps, op.sizes, strict=True))
    found[np.ix_(*places)] = whole(op, need)
    return found


def part(op: g.PartOp, number: int, need: Needed) -> Needed:
    found = np.zeros(g.shape_of(op.x), np.bool_)
    found[op.start : op.start + op.count] = whole(op, need)
    return found


def padded(op: g.PadOp, number: int, need: Needed) -> Needed:
    found, own = np.zeros(g.shape_of(op.x), np.bool_), whole(op, need)
    ends = list(zip(op.low, op.high, strict=True))
    here = [slice(max(0, -low), n - max(0, -high)) for (low, high), n in zip(ends, found.shape, strict=True)]
    there = [slice(max(0, low), n - max(0, high)) for (low, high), n in zip(ends, own.shape, strict=True)]
    found[tuple(here)] = own[tuple(there)]
    return found


def concatenated(op: g.ConcatOp, number: int, need: Needed) -> Needed:
    if need is None:
        return None
    axis, sizes = op.axis, [g.shape_of(x)[op.axis] for x in op.xs]
    return need.take(range(sum(sizes[:number]), sum(sizes[: number + 1])), axis)


def unphased(op: g.DepthToSpaceOp, number: int, need: Needed) -> Needed:
    """Phases may have more rows and columns than the map takes."""
    found, own, (down, across) = np.zeros(g.shape_of(op.x), np.bool_), whole(op, need), op.factor
    channels = np.arange(own.shape[1])
    for phase in range(op.phases):
        mine = channels * op.phases + phase if op.apart == 1 else channels + phase * op.apart
        taken = own[:, :, phase // across :: down, phase % across :: across]
        found[:, mine, : taken.shape[2], : taken.shape[3]] = taken
    return found


def windows(size: int, out: int, kernel: int, stride: int, dilation: int, pad: int) -> Taps:
    """The taps of windows along an axis of `size` positions."""
    starts = np.arange(out) * stride - pad
    return [starts + tap * dilation for tap in range(kernel)]


def projected(need: Needed, axis: int, size: int, out: int, taps: Taps) -> Needed:
    """Of the operand's axis what the taps read of results that are needed."""
    read = list(taps)
    if need is None:
        seen = np.zeros(size, np.bool_)
        for places in read:
            seen[places[(places >= 0) & (places < size)]] = True
        return None if seen.all() else seen.reshape([size if k == 0 else 1 for k in range(-axis, 4 - axis)])
    moved = np.moveaxis(np.broadcast_to(need, [out if k == axis else n for k, n in enumerate(need.shape)]), axis, 0)
    found = np.zeros((size, *moved.shape[1:]), np.bool_)
    for places in read:
        inside = (places >= 0) & (places < size)
        np.logical_or.at(found, places[inside], moved[inside])
    return np.moveaxis(found, 0, axis)


def plane(op: Any, need: Needed, x: g.Ints, taps: tuple[Taps, Taps]) -> Needed:
    """Of a map [N, C, H, W] what windows over rows and columns need; channels as they are in `need`."""
    out = g.shape_of(op.results[0])
    for axis, each in zip((2, 3), taps, strict=True):
        need = projected(need, axis, x[axis], out[axis], each)
    return need


def convolved(op: g.ConvOp, number: int, need: Needed) -> Needed:
    if number == 1:
        return channels_of_weights(op, need, (0, 2, 3))
    if op.operands[number] is op.residual and number > 0:
        return need
    if number > 0:
        return None
    x, out = g.shape_of(op.x), g.shape_of(op.result)
    sizes = zip(x[2:], out[2:], op.kernel, op.strides, op.dilations, op.pads, strict=False)
    if need is not None:  # any channel of a group needs all of its group
        grouped = need.reshape(out[0], op.groups, -1, *out[2:]).any(axis=2)
        need = np.repeat(grouped, x[1] // op.groups, axis=1)
    found = plane(op, need, x, tuple(windows(*each) for each in sizes))  # type: ignore[arg-type]  # two axes
    return None if found is None else np.broadcast_to(found, x)


def channels_of_weights(op: Any, need: Needed, others: g.Ints) -> Needed:
    """Of weights [M, ...] those of channels of the result that are needed."""
    if need is None:
        return None
    shape = g.shape_of(op.operands[1])
    return np.broadcast_to(need.any(axis=others).reshape(-1, *(1,) * (len(shape) - 1)), shape)


def multiplied(op: g.MatmulOp, number: int, need: Needed) -> Needed:
    if need is None or number > 1:
        return need if number > 1 and op.operands[number] is op.residual else None
    shape, is_turned = g.shape_of(op.operands[number]), op.trans_b if number else op.trans_a
    # whole rows of a, whole columns of b
    needed: Mask = np.asarray(np.any(need, axis=-2 if number else -1, keepdims=True))
    if is_turned:
        needed = np.swapaxes(needed, -1, -2)
    inner = tuple(1 if k == len(shape) - (1 if bool(number) == is_turned else 2) else n for k, n in enumerate(shape))
    found = broadcast(needed, inner)
    return None if found is None else np.broadcast_to(found, shape)


def pooled(op: g.PoolOp, number: int, need: Needed) -> Needed:
    x, out = g.shape_of(op.x), g.shape_of(op.result)
    if op.is_of_slices:
        (kernel,), (stride,), (dilation,) = op.kernel, op.strides, op.dilations
        found = projected(need, 0, x[0], out[0], windows(x[0], out[0], kernel, stride, dilation, op.pads[0]))
    else:
        sizes = zip(x[2:], out[2:], op.kernel, op.strides, op.dilations, op.pads, strict=False)
        found = plane(op, need, x, tuple(windows(*each) for each in sizes))  # type: ignore[arg-type]  # two axes
    return None if found is None else np.broadcast_to(found, x)


def resized(op: g.ResizeOp, number: int, need: Needed) -> Needed:
    """The positions whose weight is not 0."""
    x, out = g.shape_of(op.x), g.shape_of(op.result)
    taps = [read_by_resize(op, k, x[2 + k], out[2 + k]) for k in (0, 1)]
    found = plane(op, need, x, (taps[0], taps[1]))
    return None if found is None else np.broadcast_to(found, x)


def read_by_resize(op: g.ResizeOp, axis: int, size: int, out: int) -> Taps:
    places = np.clip(np.arange(out) * op.scale[axis] + op.offset[axis], 0, size - 1)
    low, high = np.floor(places), np.ceil(places)
    if op.mode == "nearest" and op.rounding in ("floor", "ceil"):
        low = high = low if op.rounding == "floor" else high
    elif op.mode == "nearest":
        near = np.abs(places - low) - 0.5
        low, high = np.where(near > 0, high, low), np.where(near < 0, low, high)
    return [each.astype(np.int64) for each in (low, high)]


Rule: TypeAlias = Callable[[Any, int, Needed], Needed]
RULES: Mapping[type[Operation], Rule] = {
    **dict.fromkeys((g.UnaryOp, g.BinaryOp, g.QuantizeOp, g.DequantizeOp), elementwise),
    g.ReshapeOp: reshaped, g.TransposeOp: permuted, g.TurnOp: permuted, g.SliceOp: sliced, g.PickOp: sliced,
    g.PartOp: part, g.PadOp: padded, g.ConcatOp: concatenated, g.DepthToSpaceOp: unphased,
    g.ConvOp: convolved, g.MatmulOp: multiplied, g.PoolOp: pooled, g.ResizeOp: resized,
    g.ReduceOp: along(lambda op: op.axes), g.SoftmaxOp: along(lambda op: (op.axis,)),
    g.NormaliseOp: along(lambda op: op.axes), g.LrnOp: along(lambda op: (1,)),
}  # fmt: skip
