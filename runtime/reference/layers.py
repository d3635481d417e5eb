# Tests: test/pipeline/test_foreign.py
"""Every kind of layer in numpy, on one tile (what `ftile.compute` means), and every operation of the graph: two
witnesses, which say the same without each other's help.

A layer reads exactly the elements that its formula names, from tiles that know which elements they hold: an element
that was neither loaded nor computed stops the run with an assertion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, IntegerType, Signedness
from xdsl.ir import Attribute, Operation, SSAValue

from frustum.dialects import graph
from frustum.dialects import tile as t
from frustum.dialects.isa.program import Affine, Four
from frustum.runtime import kernels
from frustum.runtime.kernels import Array, narrow, widen
from frustum.runtime.reference.attention import attention_on_tile
from frustum.runtime.reference.windows import IMAGES_AS_ROWS, divisor, images_as_rows, pooled_slices, stacked

Range: TypeAlias = tuple[int, int]
"""Positions `[start, stop)` along one dimension."""
Ranges: TypeAlias = tuple[Range, ...]


@dataclass(frozen=True)
class Held:
    """What a tile holds: the elements at `ranges` of a map of size `bound`, and no others."""

    values: Array
    ranges: Ranges
    bound: Four

    def read(self, ranges: Ranges) -> Array:
        """Elements of the map, each of which the tile must hold."""
        for (low, high), (start, stop) in zip(ranges, self.ranges, strict=True):
            assert low >= high or (start <= low and high <= stop), f"{ranges} is read, the tile has {self.ranges}"
        places = (slice(low - start, max(low, high) - start)
                  for (low, high), (start, _) in zip(ranges, self.ranges, strict=True))
        return self.values[tuple(places)]

    def window(self, ranges: Ranges, fill: float = 0.0) -> Array:
        """The same where positions may lie outside the map: those are `fill`."""
        inside = tuple((min(max(low, 0), size), max(min(high, size), 0))
                       for (low, high), size in zip(ranges, self.bound, strict=True))
        if inside == ranges:
            return self.read(ranges)
        result = np.full([high - low for low, high in ranges], fill, self.values.dtype)
        if all(low < high for low, high in inside):
            places = (slice(low - first, high - first)
                      for (low, high), (first, _) in zip(inside, ranges, strict=True))
            result[tuple(places)] = self.read(inside)
        return result


@dataclass(frozen=True)
class TileWork:
    """One computation: the ranges to make of a map of size `bound`, from what."""

    ranges: Ranges
    bound: Four
    tiles: Sequence[Held]
    access: Sequence[t.Access]
    tensors: Sequence[Array]
    layer: t.LayerKind
    element: np.dtype[Any]
    """Of the result."""

    def needed(self, k: int = 0) -> Ranges:
        """What operand k's `access` promises for these ranges (positions outside the map included)."""
        return tuple(_needed(axis, *piece) for axis, piece in zip(self.access[k], self.ranges, strict=True))


def _needed(axis: t.Axis | t.Whole, start: int, stop: int) -> Range:
    low = axis.start(Affine(start)).base
    return low, low + axis.extent(stop - start)


def compute(work: TileWork) -> Array:
    """The layer's result on the ranges, before it is rounded to the tile's type."""
    layer = work.layer
    is_product = isinstance(layer, t.ConvLayer)
    if not is_product:
        work = replace(work, tiles=[_real(work, k) for k in range(len(work.tiles))])
    result = made(layer, work)
    if layer.act is not None and not (isinstance(layer, t.ConvLayer) and layer.is_integer):
        result = _activated(layer, result)
    if not is_product:
        result = _stored(work, result)
    sizes = tuple(high - low for low, high in work.ranges)
    assert result.shape == sizes, f"{layer} made {result.shape} for {work.ranges}"
    return result


@singledispatch
def made(layer: t.LayerKind, work: TileWork) -> Array:
    """What a kind of layer makes of real numbers, on the ranges of a `TileWork`."""
    raise AssertionError(f"no reference computes a layer {layer}")


def _activated(layer: t.LayerKind, result: Array) -> Array:
    return result if layer.act is None else kernels.unary(layer.act.kind, result, layer.act.alpha, layer.act.beta)


def _real(work: TileWork, k: int) -> Held:
    """Operand k as numbers; integers without scales are only chosen among."""
    tile, scales = work.tiles[k], work.layer.scales
    if tile.values.dtype.kind != "i":
        return tile
    if scales is None:
        return replace(tile, values=tile.values.astype(np.float32))
    return replace(tile, values=kernels.integer.dequantize(tile.values, scales[k].scale, scales[k].zero))


def _stored(work: TileWork, result: Array) -> Array:
    """Numbers as the integers that stand for them, where the result has integers."""
    scales = work.layer.scales
    if scales is None or work.element.kind != "i":
        return result
    return kernels.integer.quantize(result, scales[-1].scale, scales[-1].zero, work.element)


@made.register(t.ConvLayer)
def _conv(p: t.ConvLayer, work: TileWork) -> Array:
    """Whole groups, or output channels of one group; `groups` 1 is the one group of all channels."""
    n, (start, stop), rows, columns = work.ranges
    group_outputs = work.bound[1] // p.groups
    first, last = start // group_outputs, -(-stop // group_outputs)
    outputs = (start, stop) if last - first == 1 else (first * group_outputs, last * group_outputs)
    batch, _, rows, columns = work.needed()
    fill = p.in_zero or 0
    x = work.tiles[0].window((batch, (first * p.channels, last * p.channels), rows, columns), fill)
    weights, inside = _weights(p, work, n, outputs), slice(start - outputs[0], stop - outputs[0])
    settings: dict[str, Any] = {"strides": p.strides, "dilations": p.dilations, "groups": last - first}
    vectors = dict(zip(p.vector_names, work.tensors[1:], strict=False))
    if p.in_zero is not None:
        zeros = vectors.get("weight_zero")
        zeros = None if zeros is None else zeros[slice(*outputs)]
        acc = kernels.integer.conv(x, weights, x_zero=p.in_zero, w_zero=zeros, **settings)
        return _finished(p, work, acc[:, inside], {name: v[start:stop, None, None] for name, v in vectors.items()})
    result = kernels.conv(x, weights, **settings)[:, inside]
    if "bias" in vectors:
        result = result + vectors["bias"][start:stop].astype(np.float32)[:, None, None]
    return result + _residual(work).astype(np.float32) if len(work.tiles) > 1 else result


def _residual(work: TileWork) -> Array:
    """What is added on the way out."""
    return work.tiles[1].read(work.needed(1))


def _finished(p: t.ConvLayer, work: TileWork, acc: Array, vectors: dict[str, Array]) -> Array:
    """Sums of products of integers as the layer's result; a residual is added in real numbers."""
    has_residual = len(work.tiles) > 1
    clip = (p.act.alpha, p.act.beta) if p.act and not has_residual else None
    bias, multiplier = vectors.get("bias"), vectors.get("multiplier")
    own = kernels.integer.finished(acc, bias, multiplier, p.out_zero or 0, work.element, clip)
    if not has_residual:
        return own
    assert p.scales is not None
    parts = zip((own, _residual(work)), p.scales, strict=False)
    first, second = (kernels.integer.dequantize(each, scale.scale, scale.zero) for each, scale in parts)
    return _stored(work, _activated(p, first + second))


def _weights(p: t.ConvLayer, work: TileWork, batch: Range, outputs: Range) -> Array:
    """Weights `[M, C, KH, KW]` of some output channels; one set per entry of d0 where these have their own."""
    flat, strides = work.tensors[0].reshape(-1), p.weight_strides
    sizes, starts = [outputs[1] - outputs[0], p.channels, *p.kernel], [outputs[0]]
    if p.is_batched:
        strides, sizes = (p.weight_batch, *strides), [batch[1] - batch[0], *sizes]
        starts = [batch[0], outputs[0]]
    offset = sum(start * stride for start, stride in zip(starts, strides, strict=False))
    assert offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) < flat.size
    return as_strided(flat[offset:], sizes, [s * flat.itemsize for s in strides], writeable=False)


@made.register(t.PoolLayer)
def _pool(p: t.PoolLayer, work: TileWork) -> Array:
    if p.slices:
        return _pool(replace(p, slices=None), images_as_rows(work)).transpose(IMAGES_AS_ROWS)
    ranges = work.needed()
    if p.kind == "max":
        return kernels.max_pool(work.tiles[0].window(ranges, -np.inf), p.kernel, strides=p.strides,
                                dilations=p.dilations)
    mean = kernels.average_pool(work.tiles[0].window(ranges), p.kernel, strides=p.strides,
                                dilations=p.dilations)
    return mean * np.float32(p.kernel[0] * p.kernel[1]) / divisor(p, work, ranges)


@made.register(t.ReduceLayer)
def _reduce(p: t.ReduceLayer, work: TileWork) -> Array:
    return kernels.reduce(p.kind, work.tiles[0].read(work.needed()), p.axes)


@made.register(t.LrnLayer)
def _lrn(p: t.LrnLayer, work: TileWork) -> Array:
    """Neighbouring channels count only inside the map, where the window's fill of 0 adds nothing."""
    start, stop = work.ranges[1]
    wide = work.tiles[0].window(work.needed())
    before = start - work.needed()[1][0]
    return kernels.lrn(wide, p.size, p.alpha, p.beta, p.bias)[:, before:before + stop - start]


@made.register(t.ResizeLayer)
def _resize(p: t.ResizeLayer, work: TileWork) -> Array:
    tile = work.tiles[0]
    sizes, axes, ranges = [], [], list(work.ranges[:2])
    for d in (0, 1):
        start, stop = work.ranges[2 + d]
        whole = kernels.ResizedAxis(p.scale[d], p.offset[d], tile.bound[2 + d], start)
        low, high = _taps(whole, stop - start, p.mode, p.rounding)
        promised = work.needed()[2 + d]
        assert promised[0] <= low and high <= promised[1], f"{(low, high)} is read, the access says {promised}"
        ranges.append((low, high))
        sizes.append(stop - start)
        axes.append(kernels.ResizedAxis(p.scale[d], p.offset[d], tile.bound[2 + d], start, low))
    return kernels.resize(tile.read(tuple(ranges)), tuple(sizes), (axes[0], axes[1]), mode=p.mode,
                          rounding=p.rounding)


def _taps(axis: kernels.ResizedAxis, count: int, mode: str, rounding: str) -> Range:
    taps = axis.nearest(count, rounding) if mode == "nearest" else np.concatenate(axis.between(count)[:2])
    return int(taps.min()), int(taps.max()) + 1


@made.register(t.SoftmaxLayer)
def _softmax(p: t.SoftmaxLayer, work: TileWork) -> Array:
    axis = p.axis
    assert work.ranges[axis] == (0, work.bound[axis]), "a soft-max holds its whole axis"
    return kernels.softmax(work.tiles[0].read(work.needed()), axis)


@made.register(t.NormaliseLayer)
def _normalise(p: t.NormaliseLayer, work: TileWork) -> Array:
    """By whole groups; scale and shift are of the ranges."""
    whole = all(work.ranges[axis] == (0, work.bound[axis]) for axis in p.axes)
    assert whole and not (p.group and any(end % p.group for end in work.ranges[1])), "what is normalised is held whole"
    x, *others = (widen(work.tiles[k].read(work.needed(k))) for k in range(len(work.tiles)))
    result = kernels.normalise(x, p.axes, p.epsilon, group=p.group, rms=p.rms)
    return _scaled(result, others)


def _scaled(x: Array, others: Sequence[Array]) -> Array:
    """Times a scale, plus a shift, where there are any."""
    for other, combine in zip(others, (np.multiply, np.add), strict=False):
        x = combine(x, other)
    return x


@made.register(t.AttentionLayer)
def _attention(p: t.AttentionLayer, work: TileWork) -> Array:
    tiles = [tile.read(work.needed(k)) for k, tile in enumerate(work.tiles)]
    return attention_on_tile(p, work.ranges, tiles, work.tensors)


@made.register(t.UnaryLayer)
def _unary(p: t.UnaryLayer, work: TileWork) -> Array:
    return kernels.unary(p.kind, work.tiles[0].read(work.needed()), p.alpha, p.beta)


@made.register(t.BinaryLayer)
def _binary(p: t.BinaryLayer, work: TileWork) -> Array:
    a, b = map(Held.read, work.tiles, map(work.needed, (0, 1)))
    return kernels.binary(p.kind, a, b)


# --- an operation of the graph -------------------------------------------------------------------------------


def evaluated(op: Operation, operands: Sequence[Array]) -> Array:
    """The result of an operation in the type the IR gives it."""
    type_ = graph.tensor_of(op.results[0])
    scales = getattr(op, "scales", None)
    if scales is not None and not _is_product(op):
        reals = (kernels.integer.dequantize(q, *s.data) for q, s in zip(operands, scales, strict=False))
        computed = activated_op(op, OPERATIONS[type(op)](op, *reals))
        computed = quantized(computed, scales[-1], op.results[0])
    else:
        computed = activated_op(op, OPERATIONS[type(op)](op, *operands))
    assert computed.shape == type_.get_shape(), f"{op}: computed {computed.shape}"
    return narrow(computed, numpy_type(type_.element_type))


def numpy_type(element_type: Attribute) -> np.dtype[Any]:
    """The numpy type of a tensor's elements."""
    if isinstance(element_type, IntegerType):
        width, unsigned = element_type.width.data, element_type.signedness.data is Signedness.UNSIGNED
        return np.dtype(bool) if width == 1 else np.dtype(f"{'u' if unsigned else ''}int{width}")
    return FLOATS[type(element_type)]


FLOATS: dict[type[Attribute], np.dtype[Any]] = {
    Float16Type: np.dtype(np.float16),
    BFloat16Type: kernels.BFLOAT16,
    Float32Type: np.dtype(np.float32),
    Float64Type: np.dtype(np.float64),
}


def activated_op(op: Operation, x: Array) -> Array:
    """`x` after the operation's activation; products of integers have applied theirs."""
    act = getattr(op, "act", None)
    if act is None or isinstance(op, graph.UnaryOp) or getattr(op, "zeros", None) is not None:
        return x
    return kernels.unary(act.kind, x, act.alpha, act.beta)


def _is_product(op: Operation) -> bool:
    """Products of integers do their own requantising."""
    return isinstance(op, graph.ConvOp | graph.MatmulOp)


def quantized(x: Array, to: graph.ScaleAttr, result: SSAValue) -> Array:
    return kernels.integer.quantize(x, to.scale, to.zero, numpy_type(graph.tensor_of(result).element_type))


def _result_shape(op: Operation) -> tuple[int, ...]:
    return graph.shape_of(op.results[0])


def conv(op: graph.ConvOp, x: Array, w: Array, *rest: Array) -> Array:
    settings: dict[str, Any] = {
        "strides": op.strides, "pads": op.pads, "dilations": op.dilations, "groups": op.groups
    }  # fmt: skip

    def sums(x_zero: int, w_zero: Array | None) -> Array:
        return kernels.integer.conv(x, w, x_zero=x_zero, w_zero=w_zero, **settings)

    return _product(op, x, rest, partial(kernels.conv, x, w, **settings), sums, (slice(None), None, None))


def attention(op: graph.AttentionOp, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    return kernels.attention(
        q, k, v, mask, heads=op.heads, sizes=op.sizes, firsts=op.firsts, scale=op.scale, softcap=op.softcap,
        causal_from=op.causal_from, is_merged=op.is_merged, is_channels_first=op.is_channels_first,
    )  # fmt: skip


def matmul(op: graph.MatmulOp, a: Array, b: Array, *rest: Array) -> Array:
    settings: dict[str, Any] = {"trans_a": op.trans_a, "trans_b": op.trans_b}

    def sums(a_zero: int, b_zero: Array | None) -> Array:
        return kernels.integer.matmul(a, b, a_zero=a_zero, b_zero=b_zero, **settings)

    return _product(op, a, rest, partial(kernels.matmul, a, b, **settings), sums, (slice(None),))


def _product(
    op: graph.ConvOp | graph.MatmulOp,
    x: Array,
    rest: Sequence[Array],
    reals: Callable[[], Array],
    sums: Callable[[int, Array | None], Array],
    column: tuple[slice | None, ...],
) -> Array:
    """A product of reals, or the sums of one of integers, with bias, zero points of the weights, multiplier and
    residual as far as there are any.  `column` makes one number per channel broadcast."""
    given = iter(rest)
    bias, w_zero, multiplier, residual = (
        None if value is None else next(given) for value in (op.bias, op.w_zero, op.multiplier, op.residual)
    )
    bias, multiplier = (None if each is None else each[column] for each in (bias, multiplier))
    if op.zeros is not None:
        return finished_op(op, sums(op.zeros[0], w_zero), (bias, multiplier, residual), x.dtype)
    result = reals()
    for added in (bias, residual):
        if added is not None:
            result = result + added.astype(result.dtype)
    return result


def finished_op(
    op: graph.ConvOp | graph.MatmulOp, acc: Array, extras: Sequence[Array | None], dtype: np.dtype[Any]
) -> Array:
    """The accumulators of products of integers as the operation's result."""
    bias, multiplier, residual = extras
    assert op.zeros is not None
    clip = (op.act.alpha, op.act.beta) if op.act is not None and residual is None else None
    own = kernels.integer.finished(acc, bias, multiplier, op.zeros[1], dtype, clip)
    if residual is None:
        return own
    assert op.scales is not None
    parts = zip((own, residual), op.scales, strict=False)
    first, second = (kernels.integer.dequantize(each, *scale.data) for each, scale in parts)
    total = first + second
    if op.act is not None:
        total = kernels.unary(op.act.kind, total, op.act.alpha, op.act.beta)
    return quantized(total, op.scales[-1], op.result)


def pool(op: graph.PoolOp, x: Array) -> Array:
    pool = kernels.max_pool
    if op.kind == graph.Pooling.AVG:
        pool = partial(kernels.average_pool, count_include_pad=op.count_include_pad)
    if op.is_of_slices:
        return pooled_slices(pool, op, x)
    return pool(
        x, op.kernel, strides=op.strides, pads=op.pads, dilations=op.dilations, ceil_pads=op.ceil_pads
    )


def lrn(op: graph.LrnOp, x: Array) -> Array:
    maps = x.reshape(*x.shape[:2], -1, 1)
    return kernels.lrn(maps, op.size, op.alpha, op.beta, op.bias).reshape(x.shape)


def resize(op: graph.ResizeOp, x: Array) -> Array:
    rows, columns = (
        kernels.ResizedAxis(scale, offset, extent)
        for scale, offset, extent in zip(op.scale, op.offset, x.shape[-2:], strict=True)
    )
    size = _result_shape(op)[-2:]
    return kernels.resize(x, size, (rows, columns), mode=op.mode, rounding=op.rounding)


def normalise(op: graph.NormaliseOp, x: Array, *others: Array) -> Array:
    """Of any rank: what is normalised as the last of four axes, the rest as the first."""
    shape = x.shape
    split = (shape[0], op.groups, shape[1] // op.groups, *shape[2:]) if op.groups > 1 else shape
    summed = [axis + (op.groups > 1) for axis in op.axes]
    kept = [axis for axis in range(len(split)) if axis not in summed]
    order = [*kept, *summed]
    rows = x.reshape(split).transpose(order)
    flat = rows.reshape(math.prod(split[axis] for axis in kept), 1, 1, -1)
    flat = kernels.normalise(flat, (3,), op.epsilon, rms=op.rms)
    result = flat.reshape(rows.shape).transpose(np.argsort(order)).reshape(shape)
    return _scaled(result, [widen(other) for other in others])


OPERATIONS: dict[type[Operation], Callable[..., Array]] = {
    graph.QuantizeOp: lambda op, x: quantized(x, op.to, op.result),
    graph.DequantizeOp: lambda op, q: kernels.narrow(
        kernels.integer.dequantize(q, *op.from_.data), numpy_type(graph.tensor_of(op.result).element_type)
    ),
    graph.ConvOp: conv,
    graph.MatmulOp: matmul,
    graph.PoolOp: pool,
    graph.ReduceOp: lambda op, x: kernels.reduce(op.kind, x, op.axes, keepdims=op.keepdims),
    graph.SoftmaxOp: lambda op, x: kernels.softmax(x, op.axis),
    graph.AttentionOp: attention,
    graph.NormaliseOp: normalise,
    graph.LrnOp: lrn,
    graph.ResizeOp: resize,
    graph.UnaryOp: lambda op, x: kernels.unary(op.kind, x, op.act.alpha, op.act.beta),
    graph.BinaryOp: lambda op, a, b: kernels.binary(op.kind, a, b),
    graph.ConcatOp: lambda op, *xs: np.concatenate(xs, op.axis),
    graph.SliceOp: lambda op, x: kernels.slice_elements(x, op.starts, op.steps, _result_shape(op)),
    graph.PadOp: lambda op, x: kernels.pad(x, op.low, op.high, op.value),
    graph.PartOp: lambda op, x: x[op.start : op.start + op.count],
    graph.ReshapeOp: lambda op, x: x.reshape(_result_shape(op)),
    graph.TransposeOp: lambda op, x: x.transpose(op.perm),
    graph.RearrangeOp: lambda op, x: kernels.rearrange(x, op.parts, _result_shape(op)),
    graph.ShuffleOp: lambda op, x: kernels.shuffle(x, op.groups),
    graph.StackOp: stacked,
    graph.BorderOp: lambda op, x: kernels.border(x, op.low, op.high, op.mode),
    graph.DepthToSpaceOp: lambda op, x: kernels.depth_to_space(x, op.factor, near=op.apart == 1)[
        ..., : op.shape[2], : op.shape[3]
    ],
    graph.SpaceToDepthOp: lambda op, x: kernels.space_to_depth(x, op.factor, near=op.apart == 1),
    graph.PickOp: lambda op, x: kernels.slice_elements(x, op.starts, op.steps, _result_shape(op)),
    graph.VolumeOp: lambda op, x: x.swapaxes(0, 1),
    graph.TurnOp: lambda op, x: x.transpose(op.perm),
    graph.InterleaveOp: lambda op, *parts: kernels.interleave(parts, op.factor),
}
"""Operation -> function of it and its operands, as wide as it computes; `evaluated` rounds."""
