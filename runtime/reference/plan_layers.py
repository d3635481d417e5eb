# Tests: test/runtime/reference/test_plan.py
"""A part of a layer of axes on values: what its points add to a result, how parts merge, and what the whole becomes.

An element has one number, or several while it is unfinished (`Kind.channels`): sums of x and of its square, a maximum
and the sum of powers below it.
Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.axes.axis import Axis, Dim, leaves, weights
from frustum.dialects.axes.network import Box, Layer
from frustum.dialects.functions import Interpolation, Pooling, Reduction
from frustum.dialects.graph.axes.vectors import MOST_DENOMINATOR
from frustum.dialects.plan.check import PlanError
from frustum.runtime import kernels
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.reference.axes import Fetch, axes_of, gathered, places_of, position
from frustum.runtime.reference.layers import (
    OPERATIONS,
    activated_op,
    evaluated,
    finished_op,
    numpy_type,
    quantized,
)


@dataclass(frozen=True)
class Points:
    """A part of a layer's points, and its operands there.

    `fetch(channel)` gives elements of operands. Arrays have one dimension for each of the layer's axes, of extent 1
    where nothing depends on it.
    """

    layer: Layer
    ranges: Box
    fetch: Callable[[int], Fetch]

    @property
    def op(self) -> Any:
        return self.layer.source

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return tuple(high - low for low, high in map(self.range_of, self.layer.result.axes))

    def range_of(self, axis: Axis) -> tuple[int, int]:
        return self.ranges.get(axis, (0, axis.extent))

    def block(self, k: int, channel: int = 0) -> Array:
        """Operand k, with its paddings."""
        pieces = self.layer.operands[k].pieces
        axes = axes_of(pieces, self.layer.axes)
        found = gathered(pieces, axes, self.fetch(channel), self.ranges)
        return found.reshape([b - a if x in axes else 1 for x in self.layer.axes for a, b in [self.range_of(x)]])

    def real(self, k: int, of: int | None = None) -> Array:
        """The numbers that operand k stands for, which is operand `of` (or k) of the operation."""
        of = k if of is None else of
        scales = getattr(self.op, "scales", None)
        kind = numpy_type(g.tensor_of(self.op.operands[of]).element_type)
        elements = narrow(self.block(k), kind)
        return elements if scales is None else kernels.integer.dequantize(elements, *scales[of].data)

    def whole(self, k: int) -> Array:
        """Operand k of a layer that needs all of it, in its dimensions and type."""
        operand, kind = self.layer.operands[k], numpy_type(g.tensor_of(self.op.operands[k]).element_type)
        axes = leaves(axis for own in operand.dims for axis in own)
        found = gathered(operand.pieces, axes, self.fetch(0))
        return narrow(found.reshape(g.shape_of(self.op.operands[k])), kind)

    def position(self, dim: Dim) -> Array:
        """Where the points are along a dimension of the layer's axes."""
        places = places_of(self.layer.axes, self.ranges)
        return np.asarray(sum(weight * places[leaf] for leaf, weight in weights(dim).items()))

    def along(self, axes: object) -> tuple[int, ...]:
        """The dimensions of these axes."""
        return tuple(k for k, axis in enumerate(self.layer.axes) if axis in axes)  # type: ignore[operator]

    def summed(self, x: Array, combine: np.ufunc = np.add) -> Array:
        """Combined over all reduced axes that the result has not."""
        rank = len(self.layer.result.axes)
        wide = [b - a for a, b in map(self.range_of, self.layer.axes)]
        found = combine.reduce(np.broadcast_to(x, wide), axis=tuple(range(rank, len(wide))))
        return np.asarray(found)

    def product(self, x: Array, y: Array) -> Array:
        """The sums of products of two operands."""
        wide = [b - a for a, b in map(self.range_of, self.layer.axes)]
        used = [[k for k, extent in enumerate(each.shape) if extent > 1] for each in (x, y)]
        made = [k for k in range(len(self.shape)) if k in used[0] or k in used[1]]
        repeated = math.prod(
            extent for k, extent in enumerate(wide) if k >= len(self.shape) and k not in (*used[0], *used[1])
        )
        found = np.einsum(x.reshape([x.shape[k] for k in used[0]]), used[0],
                          y.reshape([y.shape[k] for k in used[1]]), used[1], made, optimize=True)  # fmt: skip
        kept = [extent if k in made else 1 for k, extent in enumerate(self.shape)]
        return np.broadcast_to(np.asarray(found).reshape(kept) * repeated, self.shape)


@dataclass(frozen=True)
class Kind:
    """`part`: numbers of each element of the result, from some points of the reduced axes. `finish`: the element."""

    part: Callable[[Points], Array]
    finish: Callable[[Points, Array], Array] = lambda points, state: state[0]
    merge: Callable[[Points, Array, Array], Array] = lambda points, a, b: a + b
    channels: int = 1
    is_result: bool = True
    """Whether it makes the operation's result, rather than something on the way to it."""


def kind_of(layer: Layer) -> Kind:
    """PlanError where nothing says what such a layer computes."""
    if any(operand.is_all for operand in layer.operands):
        return WHOLE
    found = KINDS.get((type(layer.source), layer.role))  # type: ignore[arg-type]
    if found is None:
        what = getattr(layer.source, "name", "no operation")
        raise PlanError(f"{layer.name}: no reference computes '{layer.role}' of {what} by parts; add it to KINDS")
    return found


def channels_of(layer: Layer | None) -> int:
    return 1 if layer is None else kind_of(layer).channels


def finished(points: Points, state: Array) -> Array:
    """The whole elements, rounded to their type where they are the operation's: every channel."""
    kind = kind_of(points.layer)
    if not kind.is_result:
        return state if kind.channels > 1 else kind.finish(points, state)[None]
    op, made = points.op, np.broadcast_to(kind.finish(points, state), points.shape)
    if kind is not WHOLE:
        made = activated_op(op, made)
        scales = getattr(op, "scales", None)
        if scales is not None and not isinstance(op, g.ConvOp | g.MatmulOp):
            made = quantized(made, scales[-1], op.results[0])
    made = narrow(made, numpy_type(g.tensor_of(op.results[0]).element_type)).astype(np.float64)
    return np.concatenate([made[None], np.zeros((kind.channels - 1, *made.shape))])


def _whole(points: Points) -> Array:
    layer = points.layer
    array = evaluated(points.op, [points.whole(k) for k in range(len(layer.operands))])
    whole = array.reshape([axis.extent for axis in layer.result.axes])
    return whole[tuple(slice(*points.range_of(axis)) for axis in layer.result.axes)].astype(np.float64)[None]


WHOLE = Kind(_whole)

# ------------------------------------------------------------ products


def _optional(op: g.ConvOp | g.MatmulOp) -> dict[str, int]:
    """Operands after the factors that a product has."""
    names = ("bias", "w_zero", "multiplier", "residual")
    return {name: 2 + k for k, name in enumerate(name for name in names if getattr(op, name) is not None)}


def _product(points: Points) -> Array:
    """Of the first part with bias and residual, from which its sums begin; integers get theirs at the end."""
    op, extra = points.op, _optional(points.op)
    if op.zeros is not None:
        x, w = points.block(0) - op.zeros[0], points.block(1)
        return points.product(x, w - points.block(extra["w_zero"]) if "w_zero" in extra else w)[None]
    total = points.product(points.block(0), points.block(1))
    if all(points.range_of(axis)[0] == 0 for axis in points.layer.combine):
        for name in ("bias", "residual"):
            total = total + _of_result(points, extra[name]) if name in extra else total
    return total[None]


def _of_result(points: Points, k: int) -> Array:
    """An operand that depends on no reduced axis."""
    block = points.block(k)
    return block.reshape(block.shape[: len(points.shape)])


def _finish_product(points: Points, state: Array) -> Array:
    op, extra = points.op, _optional(points.op)
    if op.zeros is None:
        return state[0]
    kind = numpy_type(g.tensor_of(op.operands[0]).element_type)
    vectors = [_of_result(points, extra[n]) if n in extra else None for n in ("bias", "multiplier", "residual")]
    vectors[0] = None if vectors[0] is None else vectors[0].astype(np.int64)
    vectors[1] = None if vectors[1] is None else vectors[1].astype(np.float32)
    vectors[2] = None if vectors[2] is None else narrow(vectors[2], kind)
    return finished_op(op, state[0].astype(np.int64), vectors, kind)


# ------------------------------------------------------------ attention, softmax


def _scores(points: Points, state: Array) -> Array:
    scores: Array = state[0] * points.op.scale
    cap = points.op.softcap
    return cap * np.tanh(scores / cap) if cap > 0 else scores


def _powers(points: Points) -> Array:
    """Powers below the maximum of the keys here, and that maximum, which readers rescale by."""
    layer = points.layer
    scores = np.broadcast_to(points.block(0) + (points.block(1) if len(layer.operands) > 1 else 0), points.shape)
    places = places_of(layer.axes, points.ranges)
    for domain in layer.domain:
        scores = np.where(position(domain, places) >= 0, scores, -np.inf)
    most = scores.max(axis=points.along(layer.combine), keepdims=True)
    return np.stack([_below(scores, most), np.broadcast_to(most, scores.shape)])


def _below(x: Array, most: Array) -> Array:
    """e to the power of how far x is below a maximum; 0 where there is none."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x), 0.0, np.exp(x - np.where(np.isneginf(most), 0.0, most)))


def _context(points: Points) -> Array:
    powers, most, values = points.block(0), points.block(0, channel=1), points.block(1)
    keys = points.along(points.layer.combine)
    highest = most.max(axis=keys, keepdims=True)
    powers = powers * _below(most, highest)
    rank = len(points.shape)
    total, highest = (
        np.broadcast_to(each.reshape(each.shape[:rank]), points.shape)
        for each in (powers.sum(axis=keys, keepdims=True), highest)
    )
    return np.stack([points.product(powers, values), total, highest])


def _online(points: Points, a: Array, b: Array) -> Array:
    """Sums of powers below two maxima as such below the larger; the last channel is the maximum."""
    most = np.maximum(a[-1], b[-1])
    return np.concatenate([a[:-1] * _below(a[-1], most) + b[:-1] * _below(b[-1], most), most[None]])


def _row_sums(points: Points) -> Array:
    x = points.real(0)
    most = points.summed(x, np.maximum)
    wide = most.reshape((*most.shape, *(1 for _ in range(x.ndim - most.ndim))))
    return np.stack([points.summed(_below(x, wide)), most])


# ------------------------------------------------------------ windows, reductions, norms


def _pool(points: Points) -> Array:
    is_max = points.op.kind == Pooling.MAX
    x = points.block(0) if is_max else points.real(0)
    return points.summed(x, np.maximum if is_max else np.add)[None].astype(np.float64)


def _pooled(points: Points, state: Array) -> Array:
    return state[0] if points.op.kind == Pooling.MAX else state[0] / _divisor(points)


def _divisor(points: Points) -> Array:
    """How many taps of a window count: those inside, and those on pads (but for what rounding up added) if these do."""
    op, total = points.op, np.asarray(1.0)
    at = (0,) if op.is_of_slices else (2, 3)
    for k, dim in enumerate(at):
        extent, (low, high) = g.shape_of(op.x)[dim], (op.pads[k], op.pads[k + len(at)])
        own = points.layer.result.dims[dim - len(g.shape_of(op.result))]  # behind those of loops
        first = points.position(own) * op.strides[k] - low
        taps = [first + tap * op.dilations[k] for tap in range(op.kernel[k])]
        start, stop = (-low, extent + high) if op.count_include_pad else (0, extent)
        total = total * sum(((each >= start) & (each < stop)).astype(float) for each in taps)
    total = np.maximum(total, 1)
    return total.reshape(total.shape[: len(points.shape)])


EXTREMES: dict[Reduction, np.ufunc] = {Reduction.MAX: np.maximum, Reduction.MIN: np.minimum}


def _reduced(points: Points) -> Array:
    x, kind = points.real(0).astype(np.float64), Reduction(points.op.kind)
    return np.stack([points.summed(x, EXTREMES.get(kind, np.add)), points.summed(x * x)])


def _merge_reduced(points: Points, a: Array, b: Array) -> Array:
    return np.stack([EXTREMES.get(Reduction(points.op.kind), np.add)(a[0], b[0]), a[1] + b[1]])


def _merge_pooled(points: Points, a: Array, b: Array) -> Array:
    return np.maximum(a, b) if points.op.kind == Pooling.MAX else a + b


def _finish_reduced(points: Points, state: Array) -> Array:
    count = math.prod(axis.extent for axis in points.layer.combine)
    match Reduction(points.op.kind):
        case Reduction.MEAN:
            return np.asarray(state[0] / count)
        case Reduction.VARIANCE:
            return np.asarray(state[1] / count - (state[0] / count) ** 2)
        case _:
            return np.asarray(state[0])


def _moments(points: Points) -> Array:
    x = points.real(0).astype(np.float64)
    return np.stack([points.summed(x), points.summed(x * x)])


def _normalised(points: Points) -> Array:
    op, x = points.op, points.real(0).astype(np.float64)
    known = points.layer.operands[1].pieces[0].tensor
    count = math.prod(axis.extent for axis in points.layer.result.axes) / math.prod(a.extent for a in known.axes)
    mean, squares = (points.block(1, channel) / count for channel in (0, 1))
    if op.rms:
        mean = np.zeros_like(mean)
    made = (x - mean) / np.sqrt(np.maximum(squares - mean * mean, 0) + op.epsilon)
    for k, combine in zip(range(2, len(points.layer.operands)), (np.multiply, np.add), strict=False):
        made = combine(made, points.real(k, k - 1))
    return made[None]


def _lrn(points: Points) -> Array:
    op = points.op
    return (points.real(0) / (op.bias + op.alpha / op.size * points.block(1)) ** op.beta)[None]


def _resized(points: Points) -> Array:
    op = points.op
    if op.mode == Interpolation.NEAREST:
        return points.block(0)[None]
    x, taps = points.real(0), iter(points.layer.combine)
    for k, at in enumerate((2, 3)):
        if g.shape_of(op.result)[at] == g.shape_of(op.x)[at] and op.scale[k] == 1 and op.offset[k] == 0:
            continue
        scale, offset = (Fraction(each[k]).limit_denominator(MOST_DENOMINATOR) for each in (op.scale, op.offset))
        places = points.position(points.layer.result.dims[at])
        share = np.reshape([float((scale * int(o) + offset) % 1) for o in places.reshape(-1)], places.shape)
        x = x * np.where(points.position((next(taps),)) == 1, share, 1 - share)
    return points.summed(x)[None]


def _pointwise(points: Points) -> Array:
    count = len(points.layer.operands)
    return np.asarray(OPERATIONS[type(points.op)](points.op, *map(points.real, range(count))))[None]


def _finish_softmax(points: Points) -> Array:
    total, most = points.block(1), points.block(1, channel=1)
    return (_below(points.real(0), most) / total)[None]


KINDS: dict[tuple[type[Operation], str], Kind] = {
    (g.ConvOp, ""): Kind(_product, _finish_product),
    (g.MatmulOp, ""): Kind(_product, _finish_product),
    (g.AttentionOp, "scores"): Kind(
        lambda p: p.product(p.block(0), p.block(1))[None], _scores, is_result=False
    ),
    (g.AttentionOp, "softmax"): Kind(_powers, channels=2, is_result=False),
    (g.AttentionOp, "context"): Kind(
        _context, lambda p, s: s[0] / np.where(s[1] == 0, 1, s[1]), _online, channels=3
    ),
    (g.SoftmaxOp, "sums"): Kind(_row_sums, merge=_online, channels=2, is_result=False),
    (g.SoftmaxOp, ""): Kind(_finish_softmax),
    (g.NormaliseOp, "sums"): Kind(_moments, channels=2, is_result=False),
    (g.NormaliseOp, ""): Kind(_normalised),
    (g.LrnOp, "squares"): Kind(lambda p: p.summed(p.real(0).astype(np.float64) ** 2)[None], is_result=False),
    (g.LrnOp, ""): Kind(_lrn),
    (g.PoolOp, ""): Kind(_pool, _pooled, _merge_pooled),
    (g.ReduceOp, ""): Kind(_reduced, _finish_reduced, _merge_reduced, channels=2),
    (g.ResizeOp, ""): Kind(_resized),
    (g.UnaryOp, ""): Kind(_pointwise),
    (g.BinaryOp, ""): Kind(_pointwise),
    (g.QuantizeOp, ""): Kind(_pointwise),
    (g.DequantizeOp, ""): Kind(_pointwise),
}
"""Operation and role of a layer -> what its parts compute."""
