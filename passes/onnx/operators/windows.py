"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from frustum.dialects.graph import PoolOp, ReduceOp, ScaleAttr
from frustum.passes.onnx.node import Converter, Ints, Node, Refused, Result
from frustum.passes.onnx.operators.planes import on_plane, pair, resolve_pads, spatial_rank
from frustum.passes.onnx.operators.volumes import pool_by_axis, pool_volume

__all__ = ["CONVERTERS", "ceil_pad", "pooled"]

LARGEST_WINDOW = 4096
"""Windows that span more elements are taken apart, rows first: a whole one might not fit a core's memory."""


def ceil_pad(extent: int, kernel: int, stride: int, dilation: int, low: int, high: int) -> int:
    """What ceil_mode adds after the padding: enough for a last window that starts inside extent and low pad."""
    span = dilation * (kernel - 1) + 1
    count = -(-(extent + low + high - span) // stride) + 1
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
    kernel = pair(node.ints("kernel_shape"), rank, 1)
    strides = pair(node.ints("strides"), rank, 1)
    dilations = pair(node.ints("dilations"), rank, 1)
    plane = pair(node.shape(0)[2:], rank, 1)
    pads = resolve_pads(node, plane, kernel, strides, dilations, rank)
    extra: Ints = (0,) * len(plane)
    if node.get("ceil_mode", 0) and node.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        axes = zip(
            plane, kernel, strides, dilations, pads[: len(plane)], pads[len(plane) :], strict=True
        )
        extra = tuple(ceil_pad(*axis) for axis in axes)

    include_pad = kind == "avg" and bool(node.get("count_include_pad", 0))
    if rank == 3:
        return pool_volume(
            node, kind, x, kernel,
            strides=strides, pads=pads, dilations=dilations, ceil_pads=extra, count_include_pad=include_pad,
        )  # fmt: skip

    span = math.prod(dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True))
    if span > LARGEST_WINDOW and scales is None and min(kernel) > 1:
        return pool_by_axis(
            node, kind, x, kernel,
            strides=strides, pads=pads, dilations=dilations, ceil_pads=extra, count_include_pad=include_pad,
        )  # fmt: skip

    def layer(x: SSAValue) -> SSAValue:
        op = PoolOp(
            kind,
            x,
            kernel=kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_pads=extra,
            count_include_pad=include_pad,
            scales=scales,
        )
        return node.emit(op)

    return on_plane(node, x, layer)


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
