"""Windows on planes: one spatial axis as two, and the paddings that ONNX leaves to be computed."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from frustum.dialects.graph import shape_of
from frustum.passes.onnx.node import Ints, Node, Refused

__all__ = ["on_plane", "pair", "resolve_pads", "spatial_rank"]


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
