# Tests: test/runtime/kernels/test_kernels.py
"""Maps and their numbers: the types of computing, borders, and the sliding windows of convolution and pooling.

16-bit floats are widened to f32 before an operation, and rounded back after it.  Shapes are `[..., C, H, W]` with any
leading axes; pads are (top, left, bottom, right), a negative pad crops.

In three parts: those; layers that only move elements, in their own type, and resizing by nearest neighbour or linear
interpolation; many elements to one, which is pooling (rows first, then columns), reductions over axes, and the layers
that normalise, soft-max and local response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from frustum.dialects.extents import Extents

Array: TypeAlias = NDArray[Any]
"""An array of any element type and shape; kernels state theirs in their docstring."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NARROW = (np.dtype(np.float16), BFLOAT16)
FEW = 1 << 12
"""Elements below which numpy's own conversion, one element after another, is as good."""


def widened_type(x: Array) -> np.dtype[Any]:
    """The element type in which `x` is computed with: f32 for 16-bit floats, else its own."""
    return np.dtype(np.float32) if x.dtype in _NARROW else x.dtype


def widen(x: Array) -> Array:
    """`x` in its computing type; the same array where that is its own."""
    if x.dtype not in _NARROW or x.size < FEW:
        return x.astype(widened_type(x), copy=False)
    from frustum.runtime.kernels import product_loop  # which imports numba

    dense = np.ascontiguousarray(x)
    result = np.empty(x.shape, np.float32)
    product_loop.widen(dense.reshape(-1).view(np.uint16), x.dtype == BFLOAT16, result.reshape(-1))
    return result


def narrow(x: Array, dtype: DTypeLike) -> Array:
    """`x` rounded to nearest even in `dtype`, beyond its range to infinity; itself where it has that type."""
    dtype = np.dtype(dtype)
    if x.dtype != np.float32 or dtype not in _NARROW or x.size < FEW:
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(dtype, copy=False)
    from frustum.runtime.kernels import product_loop  # which imports numba

    result = np.empty(x.shape, dtype)
    dense = np.ascontiguousarray(x).reshape(-1)
    product_loop.narrow(dense, dtype == BFLOAT16, result.reshape(-1).view(np.uint16))
    return result


Pair: TypeAlias = tuple[int, ...]
"""Two numbers: of rows, of columns."""
Pads: TypeAlias = tuple[int, ...]
"""Four numbers: top, left, bottom, right."""
NO_PADS: Pads = (0, 0, 0, 0)


def output_size(size: Pair, kernel: Pair, strides: Pair, dilations: Pair) -> Pair:
    """Number of whole windows over rows and columns of an already padded map."""
    high, wide = (
        (extent - dilation * (taps - 1) - 1) // stride + 1
        for extent, taps, stride, dilation in zip(size, kernel, strides, dilations, strict=True)
    )
    assert high > 0 and wide > 0, f"no window of {kernel} dilated by {dilations} lies within {size}"
    return high, wide


def padded(x: Array, pads: Pads, value: float = 0.0) -> Array:
    """`x` in computing type with its border added or cut off; copied only for a border, and then once."""
    top, left, bottom, right = pads
    crop_top, crop_left = max(-top, 0), max(-left, 0)
    x = x[..., crop_top : x.shape[-2] - max(-bottom, 0), crop_left : x.shape[-1] - max(-right, 0)]
    top, left, bottom, right = (max(pad, 0) for pad in pads)
    if not (top or left or bottom or right):
        return widen(x)
    rows, columns = x.shape[-2:]
    result = np.empty((*x.shape[:-2], top + rows + bottom, left + columns + right), widened_type(x))
    result[..., :top, :] = value
    result[..., top + rows :, :] = value
    result[..., top : top + rows, :left] = value
    result[..., top : top + rows, left + columns :] = value
    result[..., top : top + rows, left : left + columns] = x
    return result


def windows(x: Array, kernel: Pair, strides: Pair, dilations: Pair, size: Pair) -> Array:
    """Read-only view `[..., C, KH, KW, OH, OW]` of `x` `[..., C, H, W]`: what each tap sees."""
    *outer, row, column = x.strides
    return as_strided(
        x,
        (*x.shape[:-2], *kernel, *size),
        (*outer, row * dilations[0], column * dilations[1], row * strides[0], column * strides[1]),
        writeable=False,
    )


def tap(x: Array, axis: int, start: int, stride: int, count: int) -> Array:
    """Every `stride`-th element of `x` along `axis`, `count` of them from `start` on: one tap of a window."""
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = slice(start, start + (count - 1) * stride + 1, stride)
    return x[tuple(index)]


def slice_elements(x: Array, starts: Extents, steps: Extents, sizes: Extents) -> Array:
    """`sizes` elements from `starts` on, every `steps`-th (negative: backwards); one of each per axis."""
    index = []
    for start, step, size in zip(starts, steps, sizes, strict=True):
        stop = start + step * size
        index.append(slice(start, stop if stop >= 0 else None, step))
    return x[tuple(index)]


def rearrange(x: Array, boxes: Sequence[tuple[int, int, Extents, Extents, Extents]], shape: Extents) -> Array:
    """The elements of x under a shape, each box in another place: of each the first element of x and of the result,
    extents, steps in x and in the result, in elements."""
    flat, result = np.ascontiguousarray(x).reshape(-1), np.empty(x.size, x.dtype)
    for source, target, extents, steps, made in boxes:
        here, there = np.array(source), np.array(target)
        for extent, step, own in zip(extents, steps, made, strict=True):
            here = np.add.outer(here, np.arange(extent) * step)
            there = np.add.outer(there, np.arange(extent) * own)
        result[there] = flat[here]
    return result.reshape(shape)


def shuffle(x: Array, groups: int) -> Array:
    """Channels of groups dealt in turn."""
    n, channels, *plane = x.shape
    return x.reshape(n, groups, channels // groups, *plane).swapaxes(1, 2).reshape(x.shape)


def stack(x: Array, kernel: int, stride: int, pads: Extents, dilation: int) -> Array:
    """Channel `c * kernel + k` of image i is channel c of image `i * stride + k * dilation - pads[0]`, or 0."""
    images, channels, *plane = x.shape
    count = (images + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1
    padded = np.zeros((images + sum(pads), *x.shape[1:]), x.dtype)
    padded[pads[0] : pads[0] + images] = x
    parts = [padded[k * dilation :: stride][:count] for k in range(kernel)]
    return np.stack(parts, 2).reshape(count, channels * kernel, *plane)


def pad(x: Array, low: Extents, high: Extents, value: float) -> Array:
    """`x` with `low` and `high` elements of `value` before and after each axis; negative ones crop."""
    shape = tuple(before + size + after for before, size, after in zip(low, x.shape, high, strict=True))
    result = np.full(shape, value, x.dtype)
    inside, kept = [], []
    for before, size, after in zip(low, x.shape, high, strict=True):
        inside.append(slice(max(before, 0), before + size + min(after, 0)))
        kept.append(slice(max(-before, 0), size + min(after, 0)))
    result[tuple(inside)] = x[tuple(kept)]
    return result


def border_places(extent: int, ends: tuple[int, int], mode: str) -> Array:
    """Which position of an axis is at each of the axis with borders."""
    places: Array = np.pad(np.arange(extent), ends, cast(Any, mode))
    return places


def border(x: Array, low: Extents, high: Extents, mode: str) -> Array:
    """Maps with rows and columns of their own before and behind them."""
    rows, columns = (
        border_places(extent, ends, mode)
        for extent, ends in zip(x.shape[-2:], zip(low, high, strict=True), strict=True)
    )
    return x[..., rows, :][..., columns]


def depth_to_space(x: Array, factor: Extents, *, near: bool) -> Array:
    """The map whose phases are channels: those of a channel beside each other (`near`), or all channels of a phase."""
    n, channels, h, w = x.shape
    down, across = factor
    own = channels // (down * across)
    shape, order = ((n, own, down, across, h, w), (0, 1, 4, 2, 5, 3)) if near else (
        (n, down, across, own, h, w), (0, 3, 4, 1, 5, 2)
    )  # fmt: skip
    return x.reshape(shape).transpose(order).reshape(n, own, h * down, w * across)


def space_to_depth(x: Array, factor: Extents, *, near: bool) -> Array:
    """The phases of a map as channels."""
    n, channels, h, w = x.shape
    down, across = factor
    order = (0, 1, 3, 5, 2, 4) if near else (0, 3, 5, 1, 2, 4)
    parts = x.reshape(n, channels, h // down, down, w // across, across).transpose(order)
    return parts.reshape(n, -1, h // down, w // across)


def interleave(parts: Sequence[Array], factor: Extents) -> Array:
    """`[..., SH*I+a, SW*J+b]` is part `a*SW+b` at `[..., I, J]`; parts may differ by one in size."""
    high, wide = factor
    rows = sum(part.shape[-2] for part in parts[::wide])
    columns = sum(part.shape[-1] for part in parts[:wide])
    result = np.empty((*parts[0].shape[:-2], rows, columns), parts[0].dtype)
    for index, part in enumerate(parts):
        result[..., index // wide :: high, index % wide :: wide] = part
    return result


ROUNDING: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
"""How a nearest neighbour is chosen from a position between two elements."""


@dataclass(frozen=True)
class ResizedAxis:
    """Where outputs of one axis look: output `o` of the map at `o * scale + offset`, clamped to the map.

    A part of the map (a tile) is given by its first output, `start`, and by the place, `origin`, of the first
    element at hand; `extent` is the size of the whole input map.
    """

    scale: float
    offset: float
    extent: int
    start: int = 0
    origin: int = 0

    def positions(self, count: int) -> Array:
        """f64 positions in the whole map of `count` outputs, clamped."""
        outputs = np.arange(self.start, self.start + count, dtype=np.float64)
        return np.clip(outputs * self.scale + self.offset, 0, self.extent - 1)

    def nearest(self, count: int, rounding: str) -> Array:
        """Index into the elements at hand of each of `count` outputs."""
        index = np.clip(ROUNDING[rounding](self.positions(count)), 0, self.extent - 1)
        return index.astype(np.intp) - self.origin

    def between(self, count: int) -> tuple[Array, Array, Array]:
        """Index of the element before, of the element after, and the f32 share of the latter."""
        positions = self.positions(count)
        low = np.floor(positions)
        high = np.minimum(low + 1, self.extent - 1)
        share = (positions - low).astype(np.float32)
        # where the share is 0 the element after need not be at hand
        high = np.where(share == 0, low, high)
        return low.astype(np.intp) - self.origin, high.astype(np.intp) - self.origin, share


def resize(x: Array, size: Pair, axes: tuple[ResizedAxis, ResizedAxis], *, mode: str, rounding: str = "floor") -> Array:
    """`[..., H, W]` to `[..., *size]` by `mode` `nearest` (with `rounding`) or `linear`."""
    x = widen(x)
    if mode == "nearest":
        rows, columns = (axis.nearest(count, rounding) for axis, count in zip(axes, size, strict=True))
        return x[..., rows[:, None], columns]
    for position, (axis, count) in enumerate(zip(axes, size, strict=True), start=-2):
        low, high, share = axis.between(count)
        share = share[:, None] if position == -2 else share
        before, after = np.take(x, low, axis=position), np.take(x, high, axis=position)
        x = before * (1 - share) + after * share
    return x


REDUCTIONS: dict[str, Callable[..., Array]] = {
    "mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "variance": np.var,
}  # fmt: skip


def max_pool(
    x: Array, kernel: Pair, *, strides: Pair = (1, 1), pads: Pads = NO_PADS, dilations: Pair = (1, 1),
    ceil_pads: Pair = (0, 0),
) -> Array:  # fmt: skip
    """Largest element of every window: `[..., H, W]` to `[..., OH, OW]`; borders never win."""
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    x = padded(x, _with_ceil(pads, ceil_pads), least)
    return _slide(np.maximum, x, kernel, strides, dilations)


def average_pool(
    x: Array, kernel: Pair, *, strides: Pair = (1, 1), pads: Pads = NO_PADS, dilations: Pair = (1, 1),
    ceil_pads: Pair = (0, 0), count_include_pad: bool = False,
) -> Array:  # fmt: skip
    """Mean of every window: `[..., H, W]` to `[..., OH, OW]`.

    The divisor counts the elements inside the map, with `count_include_pad` those on `pads` too, and never
    those on `ceil_pads` (what rounding the size up added at the bottom and right).
    """
    counted = _divisor(x.shape[-2:], pads, ceil_pads, count_include_pad)
    total = _slide(np.add, padded(x, _with_ceil(pads, ceil_pads)), kernel, strides, dilations)
    divisor = _slide(np.add, counted, kernel, strides, dilations)
    total /= np.maximum(divisor, 1).astype(total.dtype)
    return total


def _with_ceil(pads: Pads, ceil_pads: Pair) -> Pads:
    top, left, bottom, right = pads
    return top, left, bottom + ceil_pads[0], right + ceil_pads[1]


def _divisor(size: Pair, pads: Pads, ceil_pads: Pair, count_include_pad: bool) -> Array:
    """1 where an element of the padded map counts, else 0: `[PH, PW]`."""
    inside = padded(np.ones(size, np.float32), pads, 1.0 if count_include_pad else 0.0)
    return padded(inside, (0, 0, *ceil_pads), 0.0)


def _slide(combine: Callable[..., Array], x: Array, kernel: Pair, strides: Pair, dilations: Pair) -> Array:
    """`combine` over every window of padded `x` `[..., PH, PW]`: rows first, then columns."""
    size = output_size(x.shape[-2:], kernel, strides, dilations)
    for axis in (-2, -1):
        count, stride, dilation, taps = size[axis], strides[axis], dilations[axis], kernel[axis]
        result = tap(x, axis, 0, stride, count).copy()
        for index in range(1, taps):
            combine(result, tap(x, axis, index * dilation, stride, count), out=result)
        x = result
    return x


def reduce(kind: str, x: Array, axes: tuple[int, ...], *, keepdims: bool = True) -> Array:
    """`mean`, `sum`, `max`, `min` or (mean square deviation from the mean) `variance` over `axes`."""
    with np.errstate(all="ignore"):
        return np.asarray(REDUCTIONS[kind](widen(x), axis=axes, keepdims=keepdims))


def normalise(x: Array, axes: tuple[int, ...], epsilon: float, *, group: int = 0, rms: bool = False) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over `axes` of the last four, counted from the front of these, and over
    groups of so many positions of the second; the mean counts as 0 with `rms`."""
    x = widen(x)
    shape, lead = x.shape, x.ndim - 4
    summed = [lead + axis for axis in axes]
    if group:
        x = x.reshape(*shape[: lead + 1], shape[lead + 1] // group, group, *shape[lead + 2 :])
        summed = [lead + 2, *(axis + (axis > lead + 1) for axis in summed)]
    kept = [axis for axis in range(x.ndim) if axis not in summed]
    order = [*kept, *summed]
    rows = np.transpose(x, order)
    flat = np.ascontiguousarray(rows).reshape(*(x.shape[axis] for axis in kept), -1)  # sums of pairs, not one by one
    with np.errstate(all="ignore"):
        if not rms:
            flat = flat - flat.mean(axis=-1, keepdims=True, dtype=np.float32)
        variance = np.square(flat).mean(axis=-1, keepdims=True, dtype=np.float32)
        flat = flat / np.sqrt(variance + np.float32(epsilon))
    return np.transpose(flat.reshape(rows.shape), np.argsort(order)).reshape(shape)


def softmax(x: Array, axis: int) -> Array:
    """Exponentials divided by their sum along `axis`, the largest taken out first."""
    x = widen(x)
    with np.errstate(all="ignore"):
        result = np.exp(x - x.max(axis=axis, keepdims=True))
        result /= result.sum(axis=axis, keepdims=True)
    return result


def lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """`x` `[..., C, H, W]` over (bias + alpha/size * sum of squares of `size` channels around) ** beta."""
    x = widen(x)
    before, channels = (size - 1) // 2, x.shape[-3]
    squares = x * x
    total = np.zeros_like(x)
    for shift in range(-before, size - before):  # the neighbour c + shift
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            total[..., low:high, :, :] += squares[..., low + shift : high + shift, :, :]
    total *= np.float32(alpha / size)
    total += np.float32(bias)
    with np.errstate(all="ignore"):
        return x / total ** np.float32(beta)
