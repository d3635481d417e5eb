# Tests: test/passes/onnx/test_import_operators.py
"""Resize: nearest and linear as a layer of its own, any coordinate transformation as one scale and one offset per axis;
everything else that is a weighted sum along each axis as a product with a constant matrix.

The matrix of an axis has a row for each result: the weights of linear or cubic interpolation at its position, widened
for `antialias` where the axis shrinks, renormalised for `exclude_outside`; positions outside repeat the border.
Source: the ONNX operator Resize; cubic convolution after Keys, "Cubic Convolution Interpolation for Digital Image
Processing", IEEE Trans. ASSP 29(6), 1981, with the parameter `cubic_coeff_a`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from frustum.dialects.graph import MatmulOp, ResizeOp, is_integer, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.moves import turned
from frustum.passes.onnx.operators.windows import VOLUME_RANK, as_slices, as_volume

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class AxisKernel:
    """How neighbours are weighted."""

    mode: Literal["linear", "cubic"]
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False

    @property
    def radius(self) -> int:
        """So many neighbours on each side are looked at, if the axis does not shrink."""
        return 2 if self.mode == "cubic" else 1

    def weights(self, distance: Matrix) -> Matrix:
        """Of neighbours at these distances, not yet normalised."""
        x, a = np.abs(distance), self.cubic_a
        if self.mode == "linear":
            return np.clip(1 - x, 0, 1)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def interpolation_matrix(positions: Matrix, source: int, ratio: float, kernel: AxisKernel) -> Matrix:
    """[results, source]: the weight of every element of an axis of `source` for the result at each position.

    `ratio`: result extent to source extent, as the file gives it; below 1 `antialias` widens the kernel by 1 / ratio.
    """
    scale = min(ratio, 1.0) if kernel.antialias else 1.0
    base = np.ceil(positions) - 1  # a position on an element prefers the one on its left
    first = int(np.floor(-kernel.radius / scale)) + 1
    taps = np.arange(first, 2 - first)
    index = base[:, None] + taps
    weights = kernel.weights((index - positions[:, None]) * scale)
    outside = (index < 0) | (index >= source)
    if kernel.exclude_outside:
        weights[outside] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    found = np.zeros((len(positions), source))
    rows = np.broadcast_to(np.arange(len(positions))[:, None], index.shape)
    np.add.at(found, (rows, np.clip(index, 0, source - 1).astype(np.int64)), weights)
    return found


def crop_positions(source: int, result: int, start: float, stop: float) -> tuple[Matrix, NDArray[np.bool_]]:
    """Positions of `tf_crop_and_resize`, the region of interest in shares of the axis, and which lie outside."""
    last = source - 1
    if result > 1:
        found = start * last + np.arange(result) * (stop - start) * last / (result - 1)
    else:
        found = np.array([0.5 * (start + stop) * last])
    return found, (found < 0) | (found > last)


CROP = "tf_crop_and_resize"
WHOLE = (0.0, 1.0)
"""The region of interest that is all of an axis."""
NUDGE = 2.0**-17
"""Keeps a position that is an integer, but for rounding in f32, from falling to the wrong side of it."""
NUDGES = {"floor": NUDGE, "ceil": -NUDGE, "round_prefer_floor": -NUDGE, "round_prefer_ceil": NUDGE}


@dataclass(frozen=True)
class AxisResize:
    """One axis: its extent before and after, and the ratio the file gives."""

    source: int
    result: int
    ratio: float


def coordinates(axis: AxisResize, transformation: str) -> tuple[float, float]:
    """(scale, offset): output index o reads input position o * scale + offset."""
    step = 1 / axis.ratio
    if transformation == "asymmetric":
        return step, 0.0
    if transformation == "align_corners":
        last = axis.source * axis.ratio - 1  # not rounded to a whole number, as the definition has it
        return ((axis.source - 1) / last, 0.0) if axis.result > 1 else (0.0, 0.0)
    if transformation == "pytorch_half_pixel" and axis.result == 1:
        return 0.0, 0.0
    if transformation in ("half_pixel", "pytorch_half_pixel"):
        return step, 0.5 * step - 0.5
    if transformation == "half_pixel_symmetric":
        covered = axis.result / (axis.ratio * axis.source)
        return step, axis.source / 2 * (1 - covered) + 0.5 * step - 0.5
    raise Refused(f"coordinate_transformation_mode '{transformation}' is not supported")


def resize(node: Node) -> Result:
    mode = node.get("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise Refused(f"mode '{mode}' is not supported, only nearest, linear and cubic")
    x = node.value(0)
    axes = _axes(node, shape_of(x))
    crops = _transformation(node) == CROP
    changed = [index for index, axis in enumerate(axes) if axis.source != axis.result or axis.ratio != 1]
    if crops:
        changed = [index for index in range(len(axes)) if index in changed or _region(node, axes)[index] != WHOLE]
    if not changed:
        return x
    widened = bool(node.get("antialias", 0)) and any(axis.ratio < 1 for axis in axes)
    of_volume = len(axes) == VOLUME_RANK and len(changed) > 2 and changed[0] >= 2
    if mode != "nearest" and (mode == "cubic" or widened or crops or (len(changed) > 2 and not of_volume)):
        return _by_matrices(node, x, axes, changed, mode)
    if widened:
        raise Refused("antialias of mode nearest is not supported")
    if of_volume:
        return _on_volume(node, x, axes, mode)
    if len(changed) > 2:
        raise Refused(f"{len(changed)} axes change, at most 2 are supported in mode nearest")
    return _on_last_axes(node, x, axes, changed, mode)


def _by_matrices(node: Node, x: SSAValue, axes: list[AxisResize], changed: list[int], mode: str) -> SSAValue:
    """One product for each axis that changes, the axis turned to the end and back."""
    if is_integer(x):
        raise Refused(f"mode '{mode}' of integers is not supported")
    kernel = AxisKernel(
        "cubic" if mode == "cubic" else "linear", node.get("cubic_coeff_a", -0.75), bool(node.get("antialias", 0)),
        bool(node.get("exclude_outside", 0)),
    )  # fmt: skip
    outside: dict[int, NDArray[np.bool_]] = {}
    for number in changed:
        axis = axes[number]
        if _transformation(node) == CROP:
            positions, outside[number] = crop_positions(axis.source, axis.result, *_region(node, axes)[number])
        else:
            scale, offset = coordinates(axis, _transformation(node))
            positions = np.arange(axis.result, dtype=np.float64) * scale + offset
        matrix = interpolation_matrix(positions, axis.source, axis.ratio, kernel)
        if number in outside:
            matrix[outside[number]] = 0
        x = along(node, x, number, matrix)
    beyond = float(node.get("extrapolation_value", 0.0))
    if beyond and any(each.any() for each in outside.values()):
        x = node.binary("add", x, node.weight(_mask(outside, shape_of(x)) * np.float32(beyond), "outside"))
    return x


def along(node: Node, x: SSAValue, axis: int, matrix: NDArray[np.float64]) -> SSAValue:
    """The product of one axis with a matrix [results, operands]."""
    rank = len(shape_of(x))
    perm = (*(each for each in range(rank) if each != axis), axis)
    moved = turned(node, x, perm)
    shape = shape_of(moved)
    flat = node.reshape(moved, (math.prod(shape[:-1]), shape[-1]))
    weight = node.weight(np.ascontiguousarray(matrix.T, np.float32), f"along{axis}")
    found = node.reshape(node.emit(MatmulOp(flat, weight)), (*shape[:-1], len(matrix)))
    return turned(node, found, tuple(perm.index(each) for each in range(rank)))


def _mask(outside: dict[int, NDArray[np.bool_]], shape: Ints) -> NDArray[np.float32]:
    """1 where a result is outside on any axis."""
    found = np.zeros(shape, np.float32)
    for axis, is_outside in outside.items():
        found[(slice(None),) * axis + (is_outside,)] = 1
    return found


def _region(node: Node, axes: list[AxisResize]) -> list[tuple[float, float]]:
    """Of every axis the start and the stop of the region of interest, in shares of it."""
    roi = node.constant(1, "the region of interest")
    given = node.ints("axes")
    chosen = [node.axis(axis, len(axes)) for axis in given] if given else list(range(len(axes)))
    if roi is None or roi.size != 2 * len(chosen):
        raise Refused(f"coordinate_transformation_mode '{CROP}' needs {2 * len(chosen)} numbers of roi")
    ends = roi.reshape(2, -1).astype(np.float64).tolist()
    found = [WHOLE] * len(axes)
    for axis, start, stop in zip(chosen, *ends, strict=True):
        found[axis] = (start, stop)
    return found


def _transformation(node: Node) -> str:
    found: str = node.get("coordinate_transformation_mode", "half_pixel")
    return "asymmetric" if node.op_type == "Upsample" else found


def _axes(node: Node, shape: Ints) -> list[AxisResize]:
    """What becomes of every axis, from `scales` or `sizes`."""
    given = node.ints("axes")
    chosen = [node.axis(axis, len(shape)) for axis in given] if given else list(range(len(shape)))
    upsample = node.op_type == "Upsample"
    scales = node.constant(1 if upsample else 2, "the scales")
    axes = [AxisResize(extent, extent, 1.0) for extent in shape]
    if scales is not None and scales.size:
        for axis, ratio in zip(chosen, scales.reshape(-1).tolist(), strict=True):
            axes[axis] = AxisResize(shape[axis], math.floor(shape[axis] * ratio + NUDGE), ratio)
        return axes
    sizes = node.constant(3, "the sizes")
    if sizes is None:
        raise Refused("both scales and sizes are missing")
    wanted = [int(size) for size in sizes.reshape(-1)]
    ratios = [size / shape[axis] for axis, size in zip(chosen, wanted, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        common = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [common] * len(ratios)
        wanted = [math.floor(common * shape[axis] + 0.5) for axis in chosen]
    for axis, ratio, size in zip(chosen, ratios, wanted, strict=True):
        axes[axis] = AxisResize(shape[axis], size, ratio)
    return axes


def _on_volume(node: Node, x: SSAValue, axes: list[AxisResize], mode: str) -> SSAValue:
    """x: n, c, d, h, w: rows and columns of its slices, then the slices as rows; of one image by way of its slices."""
    n, c, d, h, w = shape_of(x)
    depth, *plane = axes[2:]
    slices = as_slices(node, x) if n == 1 else node.reshape(x, (n, c * d, h, w))
    slices = _resize_plane(node, slices, plane, mode)
    maps = tuple(axis.result for axis in plane)
    lines = (1, 1, d, c * math.prod(maps)) if n == 1 else (n, c, d, math.prod(maps))
    rows = _resize_plane(node, node.reshape(slices, lines), [depth, AxisResize(lines[3], lines[3], 1.0)], mode)
    if n == 1:
        return as_volume(node, node.reshape(rows, (depth.result, c, *maps)))
    return node.reshape(rows, (n, c, depth.result, *maps))


def _on_last_axes(node: Node, x: SSAValue, axes: list[AxisResize], changed: list[int], mode: str) -> SSAValue:
    """The axes that change become height and width, the others batch and channels."""
    rank = len(axes)
    if rank == 4 and changed[0] >= 2:
        plane = [2, 3]
    else:
        others = [axis for axis in reversed(range(rank)) if axis not in changed]
        plane = sorted([*changed, *others[: 2 - len(changed)]])
    kept = [axis for axis in range(rank) if axis not in plane]
    perm = tuple([*kept, *plane])
    moved = turned(node, x, perm)
    sizes = tuple(axes[axis].source for axis in plane)
    batch = tuple(axes[axis].source for axis in kept)
    front = batch if len(batch) == 2 else (1, math.prod(batch))
    flat = node.reshape(moved, (*front, *(1,) * (2 - len(sizes)), *sizes))
    resized = _resize_plane(node, flat, [axes[axis] for axis in plane], mode)
    target = tuple(axes[axis].result for axis in perm)
    inverse = tuple(perm.index(axis) for axis in range(rank))
    return turned(node, node.reshape(resized, target), inverse)


def _resize_plane(node: Node, x: SSAValue, axes: list[AxisResize], mode: str) -> SSAValue:
    transformation = _transformation(node)
    rounding = node.get("nearest_mode", "round_prefer_floor") if mode == "nearest" else "floor"
    if node.op_type == "Upsample":
        rounding = "floor"
    axes = [AxisResize(1, 1, 1.0)] * (2 - len(axes)) + axes
    places = [coordinates(axis, transformation) for axis in axes]
    nudge = NUDGES[rounding] if mode == "nearest" else 0.0
    op = ResizeOp(
        mode,
        x,
        tuple(axis.result for axis in axes),
        scale=tuple(scale for scale, _ in places),
        offset=tuple(offset + nudge for _, offset in places),
        rounding=rounding,
    )
    return node.emit(op)


CONVERTERS: dict[str, Converter] = {"Resize": resize, "Upsample": resize}
