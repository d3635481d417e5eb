# Tests: test/passes/onnx/test_import_operators.py
"""Windows: one spatial axis as two, the paddings that ONNX leaves to be computed, pooling; three spatial axes.

With three axes convolution and pooling are made of layers on planes.  A maximum or an average over a window is one over
its rows and columns, then one over its slices.  A convolution is one on planes whose channels are those of all the
slices that its kernel spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import (
    ConcatOp,
    ConvOp,
    PadOp,
    PoolOp,
    ReduceOp,
    ScaleAttr,
    SliceOp,
    StackOp,
    shape_of,
)
from frustum.dialects.graph.views import SLICES_FIRST
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.moves import turned

VOLUME_RANK = 5
DEPTH_OUT = (0, 2, 1, 3, 4)
"""n, c, d, h, w as n, d, c, h, w, and back."""


@dataclass(frozen=True)
class NodeWindows:
    """The windows of a node: a number for each spatial axis; `pads` of all axes before, then of all after."""

    kernel: Ints
    strides: Ints
    pads: Ints
    dilations: Ints
    ceil_pads: Ints

    def of_axes(self, *axes: int | None) -> NodeWindows:
        """Windows on a plane: along these axes of the node, one element along None."""

        def chosen(values: Ints, otherwise: int) -> Ints:
            return tuple(otherwise if axis is None else values[axis] for axis in axes)

        rank = len(self.kernel)
        low, high = self.pads[:rank], self.pads[rank:]
        return NodeWindows(
            chosen(self.kernel, 1), chosen(self.strides, 1), (*chosen(low, 0), *chosen(high, 0)),
            chosen(self.dilations, 1), chosen(self.ceil_pads, 0),
        )  # fmt: skip

    @property
    def is_nothing(self) -> bool:
        """Windows of one element, one at every position."""
        return {*self.kernel, *self.strides} == {1} and not any((*self.pads, *self.ceil_pads))

    @property
    def spans(self) -> Ints:
        return tuple(d * (size - 1) + 1 for d, size in zip(self.dilations, self.kernel, strict=True))


def windows_of(node: Node, kernel: Ints, shape: Ints, rank: int) -> NodeWindows:
    """The windows of a `kernel` over the spatial axes of an operand of that shape."""
    strides, dilations = pair(node.ints("strides"), rank, 1), pair(node.ints("dilations"), rank, 1)
    pads = resolve_pads(node, pair(shape[2:], rank, 1), kernel, strides, dilations, rank)
    return NodeWindows(kernel, strides, pads, dilations, (0,) * len(kernel))


@dataclass(frozen=True)
class WindowPool:
    """What a pooling computes of its windows; `scales` are those of integers that an average is computed of."""

    node: Node
    kind: str
    count_include_pad: bool
    scales: Sequence[ScaleAttr] | None = None

    def on_map(self, x: SSAValue, windows: NodeWindows) -> SSAValue:
        """x: n, c, h, w."""
        op = PoolOp(
            self.kind, x, kernel=windows.kernel, strides=windows.strides, pads=windows.pads,
            dilations=windows.dilations, ceil_pads=windows.ceil_pads, count_include_pad=self.count_include_pad,
            scales=self.scales,
        )  # fmt: skip
        return self.node.emit(op)

    def by_axis(self, x: SSAValue, windows: NodeWindows) -> SSAValue:
        """Over the rows of each window, then over its columns."""
        return self.on_map(self.on_map(x, windows.of_axes(0, None)), windows.of_axes(None, 1))

    def on_volume(self, x: SSAValue, windows: NodeWindows) -> SSAValue:
        """x: n, c, d, h, w; of one image by way of its slices."""
        n, c, d, h, w = shape_of(x)
        if n == 1:
            slices = as_slices(self.node, x)
            for part in (windows.of_axes(1, 2), windows.of_axes(0)):
                if not part.is_nothing:
                    slices = self.on_map(slices, part)
            return as_volume(self.node, slices)
        planes = self.on_map(self.node.reshape(x, (n, c * d, h, w)), windows.of_axes(1, 2))
        rows, columns = shape_of(planes)[2:]
        slices = self.node.reshape(planes, (n, c, d, rows * columns))
        result = self.on_map(slices, windows.of_axes(0, None))
        return self.node.reshape(result, (n, c, shape_of(result)[2], rows, columns))


def conv_volume(node: Node, windows: NodeWindows, groups: int) -> SSAValue:
    """x: n, c, d, h, w, the weights constant."""
    weights = node.constant(1, "the weights of a convolution with three spatial axes")
    if weights is None:
        raise Refused("the weights are missing")
    slices, planes = windows.of_axes(0), windows.of_axes(1, 2)
    if shape_of(node.value(0))[0] == 1 and min(slices.pads) >= 0:
        return conv_slices(node, weights, slices, planes, groups)
    x = turned(node, node.value(0), DEPTH_OUT)
    n, depth, channels, h, w = shape_of(x)
    x = node.reshape(x, (n, depth, channels, h * w))
    low, high = slices.pads
    if low or high:
        x = node.emit(PadOp(x, (0, low, 0, 0), (0, high, 0, 0)))
        depth = shape_of(x)[1]
    if channels % groups:
        raise Refused(f"{channels} channels do not make {groups} groups")
    (size,), (stride,), (dilation,) = slices.kernel, slices.strides, slices.dilations
    count = (depth - slices.spans[0]) // stride + 1
    parts = []
    for number in range(size):
        part = SliceOp(x, (0, number * dilation, 0, 0), (n, count, channels, h * w), (1, stride, 1, 1))
        parts.append(node.reshape(node.emit(part), (n * count, groups, channels // groups, h * w)))
    joined = node.emit(ConcatOp(parts, 2)) if len(parts) > 1 else parts[0]
    flat = weights.transpose(DEPTH_OUT)
    flat = flat.reshape(flat.shape[0], math.prod(flat.shape[1:3]), *flat.shape[3:])
    x, bias = node.reshape(joined, (n * count, channels * size, h, w)), node.value(2) if node.has(2) else None
    result = node.emit(
        ConvOp(
            x, node.weight(flat, "w"), bias, strides=planes.strides, pads=planes.pads, dilations=planes.dilations,
            groups=groups,
        )
    )  # fmt: skip
    _, maps, rows, columns = shape_of(result)
    return turned(node, node.reshape(result, (n, count, maps, rows, columns)), DEPTH_OUT)


def conv_slices(
    node: Node, weights: NDArray[np.generic], slices: NodeWindows, planes: NodeWindows, groups: int
) -> SSAValue:
    """The same of one image: on its slices, each with its neighbours' channels beside its own."""
    x = as_slices(node, node.value(0))
    if shape_of(x)[1] % groups:
        raise Refused(f"{shape_of(x)[1]} channels do not make {groups} groups")
    (size,), (stride,), (dilation,) = slices.kernel, slices.strides, slices.dilations
    if not slices.is_nothing:
        x = node.emit(StackOp(x, size, stride, slices.pads, dilation))
    flat = weights.reshape(weights.shape[0], weights.shape[1] * size, *weights.shape[3:])
    bias = node.value(2) if node.has(2) else None
    settings = planes.strides, planes.pads, planes.dilations, groups
    return as_volume(node, node.emit(ConvOp(x, node.weight(flat, "w"), bias, *settings)))


def as_slices(node: Node, x: SSAValue) -> SSAValue:
    """The slices [D, C, H, W] of a volume [1, C, D, H, W]."""
    return turned(node, node.reshape(x, shape_of(x)[1:]), SLICES_FIRST)


def as_volume(node: Node, slices: SSAValue) -> SSAValue:
    """The volume [1, C, D, H, W] of slices [D, C, H, W]."""
    x = turned(node, slices, SLICES_FIRST)
    return node.reshape(x, (1, *shape_of(x)))


def spatial_rank(node: Node, most: int = 2) -> int:
    """How many spatial axes the node's operand has: 1 to `most`."""
    rank = len(node.shape(0)) - 2
    if not 1 <= rank <= most:
        allowed = "3 and 4" if most == 2 else "3 to 5"
        raise Refused(f"operands of {rank + 2} dimensions are not supported, only {allowed}")
    return rank


def pair(values: Ints | None, rank: int, default: int) -> Ints:
    """One value per axis of a plane, `default` where the node gives none or has no such axis."""
    given = values if values is not None else (default,) * rank
    if len(given) != rank:
        raise Refused(f"expected {rank} values, found {given}")
    return (default,) * (2 - rank) + given  # three axes stay three


def resolve_pads(node: Node, plane: Ints, kernel: Ints, strides: Ints, dilations: Ints, rank: int) -> Ints:
    """Of every axis before it, then of every axis after it, from `pads` or `auto_pad`: of a plane [top, left, bottom,
    right]; an operand of one spatial axis is a plane of one row.
    """
    auto_pad = node.get("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        return (0,) * (2 * len(plane))
    if auto_pad == "NOTSET":
        pads = node.ints("pads") or (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise Refused(f"expected {2 * rank} pads, found {pads}")
        return pads if rank > 1 else (0, pads[0], 0, pads[1])
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise Refused(f"auto_pad is '{auto_pad}'")
    low, high = [], []
    for extent, size, stride, dilation in zip(plane, kernel, strides, dilations, strict=True):
        count = ceil_div(extent, stride)
        total = max(0, (count - 1) * stride + dilation * (size - 1) + 1 - extent)
        low.append(total // 2 if auto_pad == "SAME_UPPER" else total - total // 2)
        high.append(total - low[-1])
    return (*low, *high)


def on_plane(node: Node, x: SSAValue, layer: Callable[[SSAValue], SSAValue]) -> SSAValue:
    """`layer` applied to [N, C, H, W]; an operand [N, C, L] is one row of such."""
    shape = shape_of(x)
    if len(shape) == 4:
        return layer(x)
    result = layer(node.reshape(x, (*shape[:2], 1, shape[2])))
    n, c, h, w = shape_of(result)
    return node.reshape(result, (n, c, h * w))


LARGEST_WINDOW = 4096
"""Windows that span more elements are taken apart, rows first: a whole one might not fit a core's memory."""


def ceil_pad(extent: int, kernel: int, stride: int, dilation: int, low: int, high: int) -> int:
    """What ceil_mode adds after the padding: enough for a last window that starts inside extent and low pad."""
    span = dilation * (kernel - 1) + 1
    count = ceil_div(extent + low + high - span, stride) + 1
    if (count - 1) * stride >= extent + low:
        count -= 1
    return max(0, (count - 1) * stride + span - extent - low - high)


def pool(kind: str) -> Converter:
    return lambda node: pooled(node, kind, node.value(0))


def pooled(node: Node, kind: str, x: SSAValue, scales: Sequence[ScaleAttr] | None = None) -> SSAValue:
    """`scales` are those of integers that an average is computed of."""
    rank = spatial_rank(node, most=2 if scales else 3)
    if node.wants(1):
        raise Refused("its second output, the indices, is not supported")
    shape = node.shape(0)
    windows = windows_of(node, pair(node.ints("kernel_shape"), rank, 1), shape, rank)
    plane, count = pair(shape[2:], rank, 1), len(windows.kernel)
    if node.get("ceil_mode", 0) and node.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        ends = windows.pads[:count], windows.pads[count:]
        axes = zip(plane, windows.kernel, windows.strides, windows.dilations, *ends, strict=True)
        windows = replace(windows, ceil_pads=tuple(ceil_pad(*axis) for axis in axes))
    made = WindowPool(node, kind, kind == "avg" and bool(node.get("count_include_pad", 0)), scales)
    if rank == 3:
        return made.on_volume(x, windows)
    if math.prod(windows.spans) > LARGEST_WINDOW and scales is None and min(windows.kernel) > 1:
        return made.by_axis(x, windows)
    return on_plane(node, x, lambda x: made.on_map(x, windows))


def global_pool(kind: str) -> Converter:
    def convert(node: Node) -> Result:
        axes = tuple(range(2, len(node.shape(0))))
        return node.emit(ReduceOp(kind, node.value(0), axes)) if axes else node.value(0)

    return convert


CONVERTERS: dict[str, Converter] = {
    "MaxPool": pool("max"),
    "AveragePool": pool("avg"),
    "GlobalAveragePool": global_pool("mean"),
    "GlobalMaxPool": global_pool("max"),
}
