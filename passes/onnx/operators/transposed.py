"""Transposed convolution: one convolution per place in a stride, and their results interleaved.

Output position o gets x[i] * w[k] wherever i * stride + k * dilation - pad = o. Of the outputs o = stride * j + a,
for a fixed a, the taps k are those with (a + pad - k * dilation) divisible by the stride, and tap k reads
i = j + (a + pad - k * dilation) / stride: a convolution of stride 1 with every such tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import ConvOp, InterleaveOp
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.windows import on_plane, pair, spatial_rank
from frustum.passes.weights import Array


@dataclass(frozen=True)
class AxisPart:
    """Along one axis: the taps of a sub-kernel in order, their distance, and the padding before and after."""

    taps: Ints
    dilation: int
    low: int
    high: int


def axis_parts(extent: int, kernel: int, stride: int, dilation: int, pad: int, length: int) -> list[AxisPart]:
    """The convolutions along one axis whose results, interleaved, are the `length` outputs."""
    parts = []
    count = min(stride, length)
    for place in range(count):
        offsets = {
            (place + pad - tap * dilation) // stride: tap
            for tap in range(kernel)
            if (place + pad - tap * dilation) % stride == 0
        }
        starts = sorted(offsets)
        outputs = (length - place + count - 1) // count
        distance = starts[1] - starts[0] if len(starts) > 1 else 1
        first = starts[0] if starts else 0
        reach = distance * (len(starts) - 1) if starts else 0
        taps = tuple(offsets[start] for start in starts)
        parts.append(AxisPart(taps, distance, -first, outputs - extent + first + reach))
    return parts


def transposed_pads(
    extent: int, kernel: int, stride: int, dilation: int, extra: int, length: int, auto_pad: str
) -> tuple[int, int]:
    """Padding before and after that makes the output `length` long; the larger half is where auto_pad says."""
    total = stride * (extent - 1) + extra + dilation * (kernel - 1) + 1 - length
    low = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return low, total - low


def conv_transpose(node: Node) -> Result:
    rank = spatial_rank(node)
    weights = node.constant(1, "the kernel")
    if weights is None:
        raise Refused("the kernel is missing")
    groups = int(node.get("group", 1))
    kernel = grouped_kernel(weights, groups)
    parts = [_parts(node, axis, rank, kernel.shape[2:]) for axis in (0, 1)]
    bias = node.value(2) if node.has(2) else None
    return on_plane(node, node.value(0), lambda x: _layer(node, x, kernel, bias, groups, parts))


def grouped_kernel(weights: Array, groups: int) -> Array:
    """[C, M/groups, ..] as a convolution has it, [M, C/groups, KH, KW]."""
    if weights.ndim == 3:
        weights = weights[:, :, None, :]
    channels, per_group, height, width = weights.shape
    if channels % groups:
        raise Refused(f"{channels} channels do not divide into {groups} groups")
    split = weights.reshape(groups, channels // groups, per_group, height, width)
    return split.swapaxes(1, 2).reshape(groups * per_group, channels // groups, height, width)


def _parts(node: Node, axis: int, rank: int, kernel: Ints) -> list[AxisPart]:
    """The convolutions along axis 0 or 1 of the plane."""
    extent = pair(node.shape(0)[2:], rank, 1)[axis]
    stride = pair(node.ints("strides"), rank, 1)[axis]
    dilation = pair(node.ints("dilations"), rank, 1)[axis]
    extra = pair(node.ints("output_padding"), rank, 0)[axis]
    auto_pad = node.get("auto_pad", "NOTSET")
    span = dilation * (kernel[axis] - 1) + 1
    lengths = node.ints("output_shape")
    if lengths is not None:
        length = pair(lengths[-rank:], rank, 1)[axis]
        low, _ = transposed_pads(extent, kernel[axis], stride, dilation, extra, length, auto_pad)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        length = extent * stride
        low, _ = transposed_pads(extent, kernel[axis], stride, dilation, extra, length, auto_pad)
    else:
        pads = (node.ints("pads") or (0,) * (2 * rank)) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        low, high = pair(pads[:rank], rank, 0)[axis], pair(pads[rank:], rank, 0)[axis]
        length = stride * (extent - 1) + extra + span - low - high
    if length < 1:
        raise Refused(f"its output would have the extent {length}")
    return axis_parts(extent, kernel[axis], stride, dilation, low, length)


def _layer(
    node: Node,
    x: SSAValue,
    kernel: Array,
    bias: SSAValue | None,
    groups: int,
    parts: Sequence[list[AxisPart]],
) -> SSAValue:
    results = []
    for rows, columns in product(*parts):
        op = ConvOp(
            x,
            node.weight(_sub_kernel(kernel, rows.taps, columns.taps), "w"),
            bias,
            pads=(rows.low, columns.low, rows.high, columns.high),
            dilations=(rows.dilation, columns.dilation),
            groups=groups,
        )
        results.append(node.emit(op))
    factor = (len(parts[0]), len(parts[1]))
    return results[0] if factor == (1, 1) else node.emit(InterleaveOp(results, factor))


def _sub_kernel(kernel: Array, rows: Ints, columns: Ints) -> Array:
    """The kernel's taps at rows x columns; one tap of zeros where there are none."""
    if not rows or not columns:
        return np.zeros((*kernel.shape[:2], max(len(rows), 1), max(len(columns), 1)), kernel.dtype)
    return np.ascontiguousarray(kernel[:, :, list(rows)][:, :, :, list(columns)])


CONVERTERS: dict[str, Converter] = {"ConvTranspose": conv_transpose}
