# Tests: test/passes/onnx/test_import_sampling.py
"""GridSample with a constant grid: every result is a sum of a few elements with constant weights, so it is a product
with a constant matrix.

The smallest form is taken: one small matrix for each axis where each coordinate of the grid depends on one axis of the
result (a crop, a scaling, a flip, a turn by 90 degrees); otherwise one matrix from positions to positions, in bands of
the result's rows where these read few rows.

Source: https://onnx.ai/onnx/operators/onnx__GridSample.html and its implementation in onnx.reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import MatmulOp, is_integer, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.moves import cut, joined, turned
from frustum.passes.onnx.operators.resizing import along
from frustum.passes.weights import Array

MOST_WEIGHTS = 1 << 24
"""Of the matrices of a grid: 64 MiB in f32."""
MOST_BANDS = 64
"""Of rows of a result, each with a product of its own."""
FAR = 2.0**30
"""A coordinate that is outside of every map."""
CUBIC = -0.75
"""Source: R. Keys, "Cubic convolution interpolation for digital image processing", 1981; the constant of PyTorch."""
MODES = {"nearest": "nearest", "bilinear": "linear", "linear": "linear", "bicubic": "cubic", "cubic": "cubic"}
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class AxisWeights:
    """Along one axis of `extent` elements: index [N, .., taps], the elements of each result, and their weights."""

    index: Array
    weight: Array
    extent: int

    def rows(self, start: int, stop: int) -> AxisWeights:
        return AxisWeights(self.index[:, start:stop], self.weight[:, start:stop], self.extent)

    def of_image(self, number: int) -> AxisWeights:
        """[results, taps]"""
        index, weight = (x[number].reshape(-1, x.shape[-1]) for x in (self.index, self.weight))
        return AxisWeights(index, weight, self.extent)


def grid_sample(node: Node) -> Result:
    grid = node.constant(1, "the grid")
    mode, padding = MODES.get(node.get("mode", "linear")), node.get("padding_mode", "zeros")
    if grid is None or mode is None or padding not in PADDINGS:
        raise Refused(f"mode '{node.get('mode')}', padding_mode '{padding}' are not supported")
    x = node.value(0)
    shape = shape_of(x)
    if is_integer(x) or len(shape) < 3 or grid.shape[-1] != len(shape) - 2:
        raise Refused(f"a grid of {grid.shape} is not supported with an operand of {shape}")
    if not np.isfinite(grid).all():
        raise Refused("the grid has elements that are infinite or no numbers")
    if np.all(grid == grid[:1]):
        grid = grid[:1]
    places = np.moveaxis(grid[..., ::-1].astype(np.float32), -1, 0)
    is_aligned = bool(node.get("align_corners", 0))
    if mode == "cubic" and padding == "border" and np.any(np.abs(places) > 1):
        raise Refused("mode 'cubic' with padding_mode 'border' outside of the map means one thing to ONNX's reference,"
                      " and another to onnxruntime")  # fmt: skip
    taps = [taps_of(own, extent, mode, padding, is_aligned) for own, extent in zip(places, shape[2:], strict=True)]
    order = apart(places) if len(grid) == 1 else None
    return by_axes(node, x, taps, order) if order else by_bands(node, x, taps)


def taps_of(place: Array, extent: int, mode: str, padding: str, is_aligned: bool) -> AxisWeights:
    """What the (normalised) coordinates along one axis mean."""
    low, high = (0.0, extent - 1.0) if is_aligned else (-0.5, extent - 0.5)
    if is_aligned:
        x = (place + np.float32(1)) / np.float32(2) * np.float32(extent - 1)
    else:
        x = ((place + np.float32(1)) * np.float32(extent) - np.float32(1)) / np.float32(2)
    x = np.rint(x) if mode == "nearest" else x
    x = np.clip(x.astype(np.float64), -FAR, FAR)
    if padding != "zeros":
        outside = (x < low) | (x > high)
        inside = np.clip(x, 0, extent - 1) if padding == "border" else reflected(x, low, high)
        x = np.where(outside, inside, x)
    first = np.floor(x)
    share = (x - first)[..., None]
    first = first.astype(np.int64)[..., None]
    if mode == "nearest":
        index, weight = first, np.ones_like(share)
    elif mode == "linear":
        index, weight = first + np.arange(2), np.concatenate([1 - share, share], -1)
    else:
        index, weight = first + np.arange(-1, 3), cubic(np.abs(share - np.arange(-1, 3)))
    if padding == "zeros":
        weight = np.where((index < 0) | (index >= extent), 0, weight)
    elif padding == "reflection":
        index = np.where((index < low) | (index > high), reflected(index, low, high).astype(np.int64), index)
    return AxisWeights(np.clip(index, 0, extent - 1), weight, extent)


def reflected(x: Array, low: float, high: float) -> Array:
    """Between the borders by as many reflections as it takes."""
    if high == low:
        return np.full(x.shape, low)
    place = np.mod(x - low, 2 * (high - low))
    return low + np.minimum(place, 2 * (high - low) - place)


def cubic(distance: Array) -> Array:
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
    far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
    return np.where(distance <= 1, near, far)


def apart(places: Array) -> list[int] | None:
    """The axis of the result that each coordinate [axis, N, ..] depends on; None where one depends on several."""
    rank = len(places)
    order: list[int] = []
    for own in places[:, 0]:
        changes = [axis for axis in range(rank) if np.any(own != np.take(own, [0], axis))]
        order.append(changes[0] if len(changes) == 1 else -1 if not changes else rank)
    left = [axis for axis in range(rank) if axis not in order]
    order = [left.pop(0) if axis < 0 and left else axis for axis in order]
    return order if sorted(order) == list(range(rank)) else None


def by_axes(node: Node, x: SSAValue, taps: Sequence[AxisWeights], order: Sequence[int]) -> SSAValue:
    """Axis after axis; then the axes in the order of the result."""
    rank = len(taps)
    for axis, own in enumerate(taps):
        first = tuple(slice(None) if k == order[axis] else 0 for k in range(rank))
        matrix = matrix_of([AxisWeights(own.index[0][first], own.weight[0][first], own.extent)]).T
        if matrix.shape[0] != own.extent or not np.array_equal(matrix, np.eye(own.extent)):
            x = along(node, x, 2 + axis, matrix)
    return turned(node, x, (0, 1, *(2 + order.index(axis) for axis in range(rank))))


def by_bands(node: Node, x: SSAValue, taps: Sequence[AxisWeights]) -> SSAValue:
    """All positions at once, in bands of rows of the result."""
    shape, result = shape_of(x), taps[0].index.shape[1:-1]
    ways = [bands(taps[0], count, shape[2:]) for count in (1 << k for k in range(MOST_BANDS.bit_length()))]
    weights = [sum(band.weights for band in way) for way in ways]
    if min(weights) > MOST_WEIGHTS:
        raise Refused(f"its grid needs {min(weights):,} weights: at most {MOST_WEIGHTS:,} are supported")
    chosen = next(way for way, size in zip(ways, weights, strict=True) if size <= 2 * min(weights))
    parts = []
    for band in chosen:
        own = [each.rows(band.start, band.stop) for each in taps]
        own[0] = AxisWeights(np.clip(own[0].index - band.first, 0, band.rows - 1), own[0].weight, band.rows)
        images = range(len(own[0].index))
        matrices = np.stack([matrix_of([each.of_image(n) for each in own]) for n in images]).astype(np.float32)
        source = node.reshape(cut(node, x, 2, band.first, band.rows), (*shape[:2], matrices.shape[1]))
        weight = node.weight(matrices[0] if len(matrices) == 1 else matrices, f"grid{band.start}")
        parts.append(node.emit(MatmulOp(source, weight)))
    return node.reshape(joined(node, parts, 2), (*shape[:2], *result))


@dataclass(frozen=True)
class RowBand:
    """Rows `start` to `stop` of a result, which read `rows` rows of the operand from `first` on."""

    start: int
    stop: int
    first: int
    rows: int
    weights: int


def bands(taps: AxisWeights, count: int, shape: Ints) -> list[RowBand]:
    """So many bands of the result, or as many as it has rows."""
    images, height, *rest = taps.index.shape[:-1]
    step = ceil_div(height, count)
    found = []
    for start in range(0, height, step):
        stop = min(start + step, height)
        read = taps.index[:, start:stop][taps.weight[:, start:stop] != 0]
        first, last = (int(read.min()), int(read.max())) if read.size else (0, 0)
        size = images * (last + 1 - first) * math.prod(shape[1:]) * (stop - start) * math.prod(rest)
        found.append(RowBand(start, stop, first, last + 1 - first, size))
    return found


def matrix_of(taps: Sequence[AxisWeights]) -> Array:
    """[positions, results] of taps [results, taps] along each axis."""
    count = len(taps[0].index)
    index, weight = np.zeros((count, 1), np.int64), np.ones((count, 1))
    for own in taps:
        index = (index[:, :, None] * own.extent + own.index[:, None, :]).reshape(count, -1)
        weight = (weight[:, :, None] * own.weight[:, None, :]).reshape(count, -1)
    matrix = np.zeros((math.prod(own.extent for own in taps), count))
    np.add.at(matrix, (index, np.arange(count)[:, None]), weight)
    return matrix


CONVERTERS: dict[str, Converter] = {"GridSample": grid_sample}
