"""Every kind of layer on one tile, in numpy: what `ftile.compute` means.

A layer reads exactly the elements that its formula names, from tiles that know which elements they hold: an element
that was neither loaded nor computed stops the run with an assertion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from frustum.dialects.isa.program import Affine, Four
from frustum.dialects.tile import Access, Axis, Whole
from frustum.runtime import kernels
from frustum.runtime.kernels import Array

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
class Work:
    """One computation: the ranges to make of a map of size `bound`, from what."""

    ranges: Ranges
    bound: Four
    tiles: Sequence[Held]
    access: Sequence[Access]
    tensors: Sequence[Array]
    params: dict[str, Any]
    element: np.dtype[Any]
    """Of the result."""

    def needed(self, k: int = 0) -> Ranges:
        """What operand k's `access` promises for these ranges (positions outside the map included)."""
        return tuple(_needed(axis, *piece) for axis, piece in zip(self.access[k], self.ranges, strict=True))


def _needed(axis: Axis | Whole, start: int, stop: int) -> Range:
    low = axis.start(Affine(start)).base
    return low, low + axis.extent(stop - start)


def compute(kind: str, work: Work) -> Array:
    """The layer's result on the ranges, before it is rounded to the tile's type."""
    if kind != "conv":
        work = replace(work, tiles=[_real(work, k) for k in range(len(work.tiles))])
    result = LAYERS[kind](work)
    if "act" in work.params and not _is_product_of_integers(kind, work):
        result = kernels.unary(work.params["act"], result, *work.params["act_params"])
    if kind != "conv":
        result = _stored(work, result)
    sizes = tuple(high - low for low, high in work.ranges)
    assert result.shape == sizes, f"{kind} made {result.shape} for {work.ranges}"
    return result


def _is_product_of_integers(kind: str, work: Work) -> bool:
    return kind == "conv" and "in_zero" in work.params


def _scale(work: Work, k: int) -> tuple[float, int]:
    """What the integers of operand k stand for (-1: of the result)."""
    scale, zero = np.reshape(work.params["scales"], (-1, 2))[k]
    return float(scale), int(zero)


def _real(work: Work, k: int) -> Held:
    """Operand k as numbers; integers without scales are only chosen among."""
    tile = work.tiles[k]
    if tile.values.dtype.kind != "i":
        return tile
    if "scales" not in work.params:
        return replace(tile, values=tile.values.astype(np.float32))
    return replace(tile, values=kernels.integer.dequantize(tile.values, *_scale(work, k)))


def _stored(work: Work, result: Array) -> Array:
    """Numbers as the integers that stand for them, where the result has integers."""
    if "scales" not in work.params or work.element.kind != "i":
        return result
    return kernels.integer.quantize(result, *_scale(work, -1), work.element)


def _conv(work: Work) -> Array:
    """Whole groups, or output channels of one group; `groups` 1 is the one group of all channels."""
    p = work.params
    n, (start, stop), rows, columns = work.ranges
    group_outputs = work.bound[1] // p["groups"]
    first, last = start // group_outputs, -(-stop // group_outputs)
    outputs = (start, stop) if last - first == 1 else (first * group_outputs, last * group_outputs)
    batch, _, rows, columns = work.needed()
    fill = p.get("in_zero", 0)
    x = work.tiles[0].window((batch, (first * p["channels"], last * p["channels"]), rows, columns), fill)
    weights, inside = _weights(work, n, outputs), slice(start - outputs[0], stop - outputs[0])
    settings = {"strides": p["strides"], "dilations": p["dilations"], "groups": last - first}
    vectors = dict(zip(p.get("vectors", "bias").split(), work.tensors[1:], strict=False))
    if "in_zero" in p:
        zeros = vectors.get("weight_zero")
        zeros = None if zeros is None else zeros[slice(*outputs)]
        acc = kernels.integer.conv(x, weights, x_zero=p["in_zero"], w_zero=zeros, **settings)
        return _finished(work, acc[:, inside], {name: v[start:stop, None, None] for name, v in vectors.items()})
    result = kernels.conv(x, weights, **settings)[:, inside]
    if "bias" in vectors:
        result = result + vectors["bias"][start:stop].astype(np.float32)[:, None, None]
    return result + _residual(work).astype(np.float32) if len(work.tiles) > 1 else result


def _residual(work: Work) -> Array:
    """What is added on the way out."""
    return work.tiles[1].read(work.needed(1))


def _finished(work: Work, acc: Array, vectors: dict[str, Array]) -> Array:
    """Sums of products of integers as the layer's result; a residual is added in real numbers."""
    p, act = work.params, work.params.get("act")
    has_residual = len(work.tiles) > 1
    clip = p["act_params"] if act and not has_residual else None
    bias, multiplier = vectors.get("bias"), vectors.get("multiplier")
    made = kernels.integer.finished(acc, bias, multiplier, p["out_zero"], work.element, clip)
    if not has_residual:
        return made
    total = kernels.integer.dequantize(made, *_scale(work, 0))
    total += kernels.integer.dequantize(_residual(work), *_scale(work, 1))
    return _stored(work, kernels.unary(act, total, *p["act_params"]) if act else total)


def _weights(work: Work, batch: Range, outputs: Range) -> Array:
    """Weights `[M, C, KH, KW]` of some output channels; one set per entry of d0 where these have their own."""
    p, flat = work.params, work.tensors[0].reshape(-1)
    strides, sizes, starts = p["weight_strides"], (outputs[1] - outputs[0], p["channels"], *p["kernel"]), [outputs[0]]
    if p["weight_batch"]:
        strides, sizes = (p["weight_batch"], *strides), (batch[1] - batch[0], *sizes)
        starts = [batch[0], outputs[0]]
    offset = sum(start * stride for start, stride in zip(starts, strides, strict=False))
    assert offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) < flat.size
    return as_strided(flat[offset:], sizes, [s * flat.itemsize for s in strides], writeable=False)


def _pool(work: Work) -> Array:
    p = work.params
    ranges = work.needed()
    if p["kind"] == "max":
        return kernels.max_pool(work.tiles[0].window(ranges, -np.inf), p["kernel"], strides=p["strides"],
                                dilations=p["dilations"])
    mean = kernels.average_pool(work.tiles[0].window(ranges), p["kernel"], strides=p["strides"],
                                dilations=p["dilations"])
    return mean * np.float32(p["kernel"][0] * p["kernel"][1]) / _divisor(work, ranges)


def _divisor(work: Work, ranges: Ranges) -> Array:
    """How many positions of each window count, at least 1."""
    p, counts = work.params, []
    for d in (0, 1):
        outputs = np.arange(work.ranges[2 + d][1] - work.ranges[2 + d][0])[:, None]
        taps = ranges[2 + d][0] + outputs * p["strides"][d] + np.arange(p["kernel"][d]) * p["dilations"][d]
        low, high = 0, work.tiles[0].bound[2 + d]
        if p["include_pad"]:
            low, high = -p["pad_low"][d], high + p["pad_high"][d]
        counts.append(((taps >= low) & (taps < high)).sum(axis=1))
    return np.maximum(counts[0][:, None] * counts[1], 1).astype(np.float32)


def _reduce(work: Work) -> Array:
    return kernels.reduce(work.params["kind"], work.tiles[0].read(work.needed()), work.params["axes"])


def _lrn(work: Work) -> Array:
    """Neighbouring channels count only inside the map, where the window's fill of 0 adds nothing."""
    p = work.params
    start, stop = work.ranges[1]
    wide = work.tiles[0].window(work.needed())
    before = start - work.needed()[1][0]
    return kernels.lrn(wide, p["size"], p["alpha"], p["beta"], p["bias"])[:, before:before + stop - start]


def _resize(work: Work) -> Array:
    p, tile = work.params, work.tiles[0]
    sizes, axes, ranges = [], [], list(work.ranges[:2])
    for d in (0, 1):
        start, stop = work.ranges[2 + d]
        whole = kernels.ResizedAxis(p["scale"][d], p["offset"][d], tile.bound[2 + d], start)
        low, high = _taps(whole, stop - start, p["mode"], p["rounding"])
        promised = work.needed()[2 + d]
        assert promised[0] <= low and high <= promised[1], f"{(low, high)} is read, the access says {promised}"
        ranges.append((low, high))
        sizes.append(stop - start)
        axes.append(kernels.ResizedAxis(p["scale"][d], p["offset"][d], tile.bound[2 + d], start, low))
    return kernels.resize(tile.read(tuple(ranges)), tuple(sizes), (axes[0], axes[1]), mode=p["mode"],
                          rounding=p["rounding"])


def _taps(axis: kernels.ResizedAxis, count: int, mode: str, rounding: str) -> Range:
    taps = axis.nearest(count, rounding) if mode == "nearest" else np.concatenate(axis.between(count)[:2])
    return int(taps.min()), int(taps.max()) + 1


def _softmax(work: Work) -> Array:
    axis = work.params["axis"]
    assert work.ranges[axis] == (0, work.bound[axis]), "a soft-max holds its whole axis"
    return kernels.softmax(work.tiles[0].read(work.needed()), axis)


def _unary(work: Work) -> Array:
    p = work.params
    return kernels.unary(p["kind"], work.tiles[0].read(work.needed()), p["alpha"], p["beta"])


def _binary(work: Work) -> Array:
    a, b = map(Held.read, work.tiles, map(work.needed, (0, 1)))
    return kernels.binary(work.params["kind"], a, b)


def _shuffle(work: Work) -> Array:
    start, stop = work.ranges[1]
    return kernels.shuffle(work.tiles[0].read(work.needed()), work.params["groups"])[:, start:stop]


def _pick(work: Work) -> Array:
    steps = tuple(slice(None, None, step) for step in work.params["steps"])
    return work.tiles[0].read(work.needed())[steps]


LAYERS: dict[str, Callable[[Work], Array]] = {
    "conv": _conv, "pool": _pool, "reduce": _reduce, "lrn": _lrn, "resize": _resize, "softmax": _softmax,
    "unary": _unary, "binary": _binary, "shuffle": _shuffle, "pick": _pick,
}
"""Kind of an `ftile.compute` -> its result on the ranges of a `Work`."""
