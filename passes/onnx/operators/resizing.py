"""Resize: any coordinate transformation as one scale and one offset per axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.ir import SSAValue

from frustum.dialects.graph import ResizeOp, shape_of
from frustum.passes.onnx.node import Converter, Ints, Node, Refused, Result
from frustum.passes.onnx.operators.shapes import turned

__all__ = ["CONVERTERS", "AxisResize", "coordinates"]

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
    if mode not in ("nearest", "linear"):
        raise Refused(f"mode '{mode}' is not supported, only nearest and linear")
    x = node.value(0)
    axes = _axes(node, shape_of(x))
    changed = [index for index, axis in enumerate(axes) if axis.source != axis.result or axis.ratio != 1]
    if node.get("antialias", 0) and any(axis.ratio < 1 for axis in axes):
        raise Refused("antialias is not supported")
    if not changed:
        return x
    if len(changed) > 2:
        raise Refused(f"{len(changed)} axes change, at most 2 are supported")
    return _on_last_axes(node, x, axes, changed, mode)


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
    transformation = node.get("coordinate_transformation_mode", "half_pixel")
    if node.op_type == "Upsample":
        transformation = "asymmetric"
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
