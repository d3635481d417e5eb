"""Windows: one spatial axis as two, the paddings that ONNX leaves to be computed, pooling; three spatial axes.

With three axes convolution and pooling are made of layers on planes.  A maximum or an average over a window is one over
its rows and columns, then one over its slices.  A convolution is one on planes whose channels are those of all the
slices that its kernel spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from frustum.dialects.graph import ConcatOp, ConvOp, PadOp, PoolOp, ReduceOp, ScaleAttr, SliceOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.shapes import turned

DEPTH_OUT = (0, 2, 1, 3, 4)
"""n, c, d, h, w as n, d, c, h, w, and back."""


def pool_volume(
    node: Node,
    kind: str,
    x: SSAValue,
    kernel: Ints,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_pads: Ints,
    count_include_pad: bool,
) -> SSAValue:
    """x: n, c, d, h, w; the settings are of d, h, w, `pads` of all three before, then of all three after."""
    n, c, d, h, w = shape_of(x)
    low, high = pads[:3], pads[3:]
    planes = PoolOp(
        kind,
        node.reshape(x, (n, c * d, h, w)),
        kernel=kernel[1:],
        strides=strides[1:],
        pads=(*low[1:], *high[1:]),
        dilations=dilations[1:],
        ceil_pads=ceil_pads[1:],
        count_include_pad=count_include_pad,
    )
    rows, columns = shape_of(node.emit(planes))[2:]
    slices = PoolOp(
        kind,
        node.reshape(planes.result, (n, c, d, rows * columns)),
        kernel=(kernel[0], 1),
        strides=(strides[0], 1),
        pads=(low[0], 0, high[0], 0),
        dilations=(dilations[0], 1),
        ceil_pads=(ceil_pads[0], 0),
        count_include_pad=count_include_pad,
    )
    result = node.emit(slices)
    return node.reshape(result, (n, c, shape_of(result)[2], rows, columns))


def pool_by_axis(
    node: Node,
    kind: str,
    x: SSAValue,
    kernel: Ints,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_pads: Ints,
    count_include_pad: bool,
) -> SSAValue:
    """x: n, c, h, w: over the rows of each window, then over its columns."""
    for axis in range(2):
        chosen = [place == axis for place in range(2)]
        op = PoolOp(
            kind,
            x,
            kernel=tuple(k if c else 1 for k, c in zip(kernel, chosen, strict=True)),
            strides=tuple(s if c else 1 for s, c in zip(strides, chosen, strict=True)),
            pads=tuple(p if c else 0 for p, c in zip(pads, [*chosen, *chosen], strict=True)),
            dilations=tuple(d if c else 1 for d, c in zip(dilations, chosen, strict=True)),
            ceil_pads=tuple(p if c else 0 for p, c in zip(ceil_pads, chosen, strict=True)),
            count_include_pad=count_include_pad,
        )
        x = node.emit(op)
    return x


def conv_volume(
    node: Node, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, groups: int
) -> SSAValue:
    """x: n, c, d, h, w, the weights constant; the settings are of d, h, w, `pads` as for pooling."""
    weights = node.constant(1, "the weights of a convolution with three spatial axes")
    if weights is None:
        raise Refused("the weights are missing")
    x = turned(node, node.value(0), DEPTH_OUT)
    n, depth, channels, h, w = shape_of(x)
    x = node.reshape(x, (n, depth, channels, h * w))
    if pads[0] or pads[3]:
        x = node.emit(PadOp(x, (0, pads[0], 0, 0), (0, pads[3], 0, 0)))
        depth = shape_of(x)[1]
    if channels % groups:
        raise Refused(f"{channels} channels do not make {groups} groups")
    count = (depth - dilations[0] * (kernel[0] - 1) - 1) // strides[0] + 1
    parts = []
    for number in range(kernel[0]):
        sizes = (n, count, channels, h * w)
        part = SliceOp(x, (0, number * dilations[0], 0, 0), sizes, (1, strides[0], 1, 1))
        parts.append(node.reshape(node.emit(part), (n * count, groups, channels // groups, h * w)))
    joined = node.emit(ConcatOp(parts, 2)) if len(parts) > 1 else parts[0]
    planes = node.reshape(joined, (n * count, channels * kernel[0], h, w))
    flat = weights.transpose(DEPTH_OUT)
    flat = flat.reshape(flat.shape[0], math.prod(flat.shape[1:3]), *flat.shape[3:])
    result = node.emit(
        ConvOp(
            planes,
            node.weight(flat, "w"),
            node.value(2) if node.has(2) else None,
            strides=strides[1:],
            pads=(*pads[1:3], *pads[4:6]),
            dilations=dilations[1:],
            groups=groups,
        )
    )
    _, maps, rows, columns = shape_of(result)
    return turned(node, node.reshape(result, (n, count, maps, rows, columns)), DEPTH_OUT)


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
        count = -(-extent // stride)
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
