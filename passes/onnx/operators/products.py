# Tests: test/passes/onnx/test_import_operators.py
"""Convolutions, transposed ones too, and matrix products.

Transposed convolution: one convolution per place in a stride, and their results interleaved; with three spatial axes
those of the depth on slices of the volume that have their neighbours beside them.

Output position o gets x[i] * w[k] wherever i * stride + k * dilation - pad = o. Of the outputs o = stride * j + a,
for a fixed a, the taps k are those with (a + pad - k * dilation) divisible by the stride, and tap k reads
i = j + (a + pad - k * dilation) / stride: a convolution of stride 1 with every such tap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import ConvOp, InterleaveOp, MatmulOp, StackOp, WeightOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.moves import cut, joined
from frustum.passes.onnx.operators.windows import (
    as_slices,
    as_volume,
    conv_volume,
    on_plane,
    pair,
    spatial_rank,
    windows_of,
)
from frustum.passes.weights import Array


def conv(node: Node) -> Result:
    rank = spatial_rank(node, most=3)
    weight_shape = node.shape(1)
    if len(weight_shape) != rank + 2:
        raise Refused(f"the weights are {weight_shape}, the operand has {rank} spatial axes")
    kernel = pair(weight_shape[2:], rank, 1)
    declared = node.ints("kernel_shape")
    if declared is not None and declared != weight_shape[2:]:
        raise Refused(f"kernel_shape is {declared}, the weights are {weight_shape}")
    windows, groups = windows_of(node, kernel, node.shape(0), rank), int(node.get("group", 1))
    if rank == 3:
        return conv_volume(node, windows, groups)
    w = kernel_on_plane(node)
    bias = node.value(2) if node.has(2) else None

    def layer(x: SSAValue) -> SSAValue:
        settings = windows.strides, windows.pads, windows.dilations
        return node.emit(ConvOp(x, w, bias, *settings, groups))

    return on_plane(node, node.value(0), layer)


def kernel_on_plane(node: Node) -> SSAValue:
    """The weights with two spatial axes."""
    weights = node.operands[1]
    if isinstance(weights, np.ndarray) and weights.ndim == 3:
        return node.weight(weights[:, :, None, :], "w")
    w = node.value(1)
    shape = shape_of(w)
    return node.reshape(w, (*shape[:2], 1, shape[2])) if len(shape) == 3 else w


def gemm(node: Node) -> Result:
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    a, b, alpha = scaled_factors(node, alpha)
    addend = node.operands[2] if node.has(2) else None
    columns = node.shape(1)[0 if node.get("transB", 0) else 1]
    bias = None
    if alpha == 1.0 and isinstance(addend, np.ndarray) and _is_row(addend.shape, columns):
        bias, addend = node.weight(_row(addend, beta, columns), "bias"), None
    elif (alpha, beta) == (1.0, 1.0) and _is_constant_row(addend, columns):
        assert isinstance(addend, SSAValue)
        bias, addend = addend, None
    op = MatmulOp(a, b, bias, trans_a=bool(node.get("transA", 0)), trans_b=bool(node.get("transB", 0)))
    result = node.emit(op)
    if alpha != 1.0:
        result = node.binary("mul", result, node.scalar(alpha, "alpha"))
    if addend is None:
        return result
    if isinstance(addend, np.ndarray):
        return node.binary("add", result, node.weight(addend * addend.dtype.type(beta), "c"))
    scaled = addend if beta == 1.0 else node.binary("mul", addend, node.scalar(beta, "beta"))
    return node.binary("add", result, scaled)


def scaled_factors(node: Node, alpha: float) -> tuple[SSAValue, SSAValue, float]:
    """Both factors with alpha in a constant one, and what of alpha is left."""
    if alpha == 1.0:
        return node.value(0), node.value(1), 1.0
    for index in (1, 0):
        array = node.operands[index]
        if isinstance(array, np.ndarray):
            scaled = node.weight(array * array.dtype.type(alpha), "scaled")
            return (node.value(0), scaled, 1.0) if index else (scaled, node.value(1), 1.0)
    return node.value(0), node.value(1), alpha


def _is_constant_row(addend: object, columns: int) -> bool:
    """Whether it is a weight of one number per column: a dequantised bias."""
    return (
        isinstance(addend, SSAValue)
        and isinstance(addend.owner, WeightOp)
        and shape_of(addend) == (columns,)
    )


def _is_row(shape: Ints, columns: int) -> bool:
    """Whether a tensor of this shape adds the same numbers to every row."""
    return all(extent == 1 for extent in shape[:-1]) and (not shape or shape[-1] in (1, columns))


def _row(addend: Array, beta: float, columns: int) -> Array:
    row = addend if beta == 1.0 else addend * addend.dtype.type(beta)
    return np.broadcast_to(row.reshape(-1), (columns,))


def matmul(node: Node) -> Result:
    return product_of(node, node.value(0), node.value(1))


def product_of(node: Node, a: SSAValue, b: SSAValue, *, trans_a: bool = False, trans_b: bool = False) -> SSAValue:
    """A vector is a matrix of one row (left) or one column (right), whose axis the result has not."""
    left, right = shape_of(a), shape_of(b)
    if not left or not right:
        raise Refused(f"operands of shapes {left} and {right} have no product")
    if len(left) == 1:
        a = node.reshape(a, (1, *left))
    if len(right) == 1:
        b = node.reshape(b, (*right, 1))
    result = node.emit(MatmulOp(*_same_batches(node, a, b), trans_a=trans_a, trans_b=trans_b))
    shape = shape_of(result)
    if len(right) == 1:
        shape = shape[:-1]
    if len(left) == 1:
        shape = (*shape[:-2], *shape[-1:]) if len(right) > 1 else shape[:-1]
    return node.reshape(result, shape)


def _same_batches(node: Node, a: SSAValue, b: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Operands each of whose batches is one product's, or all of the result's: products with ones where not."""
    left, right = shape_of(a)[:-2], shape_of(b)[:-2]
    try:
        batch = np.broadcast_shapes(left, right)
    except ValueError as error:
        raise Refused(f"batches {left} and {right} do not broadcast") from error

    def filled(operand: SSAValue, own: Ints) -> SSAValue:
        is_one = math.prod(own) in (1, math.prod(batch))
        return operand if is_one else node.binary("mul", operand, node.ones((*batch, 1, 1), (a, b)))

    return filled(a, left), filled(b, right)


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
    rank = spatial_rank(node, most=3)
    weights = node.constant(1, "the kernel")
    if weights is None:
        raise Refused("the kernel is missing")
    groups = int(node.get("group", 1))
    kernel = grouped_kernel(weights, groups)
    parts = [_parts(node, axis, rank, kernel.shape[2:]) for axis in range(kernel.ndim - 2)]
    bias = node.value(2) if node.has(2) else None
    if rank == 3:
        volumes = [cut(node, node.value(0), 0, number, 1) for number in range(node.shape(0)[0])]
        return joined(node, [_volume(node, x, kernel, bias, groups, parts) for x in volumes], 0)
    return on_plane(node, node.value(0), lambda x: _layer(node, x, kernel, bias, groups, parts))


def grouped_kernel(weights: Array, groups: int) -> Array:
    """[C, M/groups, ..] as a convolution has it, [M, C/groups, KH, KW], or with the depth before these."""
    if weights.ndim == 3:
        weights = weights[:, :, None, :]
    channels, per_group, *window = weights.shape
    if channels % groups:
        raise Refused(f"{channels} channels do not divide into {groups} groups")
    split = weights.reshape(groups, channels // groups, per_group, *window)
    return split.swapaxes(1, 2).reshape(groups * per_group, channels // groups, *window)


def _parts(node: Node, axis: int, rank: int, kernel: Ints) -> list[AxisPart]:
    """The convolutions along one axis of the plane, or of the volume."""
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


def _volume(
    node: Node,
    x: SSAValue,
    kernel: Array,
    bias: SSAValue | None,
    groups: int,
    parts: Sequence[list[AxisPart]],
) -> SSAValue:
    """Of a volume [1, C, D, H, W]: on its slices, each with the neighbours that a place in the stride of the depth
    reads beside it; the places of a slice side by side are slices one behind the other."""
    slices, results = as_slices(node, x), []
    for part in parts[0]:
        taps = part.taps or (0,)
        flat = kernel[:, :, list(taps)] * np.asarray(bool(part.taps), kernel.dtype)
        flat = flat.reshape(kernel.shape[0], -1, *kernel.shape[3:])
        size = shape_of(slices)[0] + min(0, part.low) + min(0, part.high)
        if size < 1:
            raise Refused("some of its slices are made of none of the operand's")
        near = cut(node, slices, 0, max(0, -part.low), size)
        if len(taps) > 1 or part.low > 0 or part.high > 0:
            ends = max(0, part.low), max(0, part.high)
            near = node.emit(StackOp(near, len(taps), 1, ends, part.dilation))
        results.append(_layer(node, near, flat, bias, groups, parts[1:]))
    counts = [shape_of(each)[0] for each in results]
    maps = shape_of(results[0])[1:]
    if len(set(counts)) == 1:
        return as_volume(node, node.reshape(joined(node, results, 1), (sum(counts), *maps)))
    rows = [node.reshape(each, (1, 1, count, math.prod(maps))) for each, count in zip(results, counts, strict=True)]
    return as_volume(node, node.reshape(node.emit(InterleaveOp(rows, (len(rows), 1))), (sum(counts), *maps)))


def _sub_kernel(kernel: Array, rows: Ints, columns: Ints) -> Array:
    """The kernel's taps at rows x columns; one tap of zeros where there are none."""
    if not rows or not columns:
        return np.zeros((*kernel.shape[:2], max(len(rows), 1), max(len(columns), 1)), kernel.dtype)
    return np.ascontiguousarray(kernel[:, :, list(rows)][:, :, :, list(columns)])


CONVERTERS: dict[str, Converter] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "Gemm": gemm, "MatMul": matmul,
}  # fmt: skip
