"""Convolution and pooling with three spatial axes, made of layers on planes.

A maximum or an average over a window is one over its rows and columns, then one over its slices.  A convolution is
one on planes whose channels are those of all the slices that its kernel spans.
"""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from frustum.dialects.graph import ConcatOp, ConvOp, PadOp, PoolOp, SliceOp, shape_of
from frustum.passes.onnx.node import Ints, Node, Refused
from frustum.passes.onnx.operators.shapes import turned

__all__ = ["conv_volume", "pool_by_axis", "pool_volume"]

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
