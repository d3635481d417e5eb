"""Pad: a constant border, or one made of the tensor's own elements."""

from __future__ import annotations

from xdsl.ir import SSAValue

from frustum.dialects.graph import PadOp, bounds, shape_of, tensor_of
from frustum.passes.onnx.node import Converter, Ints, Node, Refused, Result
from frustum.passes.onnx.operators.moves import MOST_PIECES, cut, joined, runs

__all__ = ["CONVERTERS"]

MOST_EXTENT = 1 << 20
"""Of an axis whose every element is looked up."""


def pad(node: Node) -> Result:
    x = node.value(0)
    low, high = _both_ends(node, len(shape_of(x)))
    if not any(low) and not any(high):
        return x
    mode = node.get("mode", "constant")
    if mode == "constant":
        value = node.constant(2, "the value")
        number = float(value.reshape(())) if value is not None else float(node.get("value", 0.0))
        if x in node.network.unsigned:
            number += bounds(tensor_of(x).element_type)[0]
        return node.emit(PadOp(x, low, high, number))
    if mode not in POSITIONS:
        raise Refused(f"mode is '{mode}'")
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if before or after:
            x = _extended(node, x, axis, before, after, mode)
    return x


def _both_ends(node: Node, rank: int) -> tuple[Ints, Ints]:
    pads = node.ints("pads", 1)
    axes = node.ints("axes", 3)
    if pads is None:
        raise Refused("the pads are missing")
    chosen = [node.axis(axis, rank) for axis in axes] if axes is not None else list(range(rank))
    if len(pads) != 2 * len(chosen):
        raise Refused(f"expected {2 * len(chosen)} pads, found {pads}")
    low, high = [0] * rank, [0] * rank
    for place, axis in enumerate(chosen):
        low[axis], high[axis] = pads[place], pads[place + len(chosen)]
    return tuple(low), tuple(high)


def _extended(node: Node, x: SSAValue, axis: int, before: int, after: int, mode: str) -> SSAValue:
    """One axis longer by elements of its own: each run of them is a slice."""
    extent = shape_of(x)[axis]
    if mode == "reflect" and extent == 1:
        raise Refused("reflect needs more than one element to reflect")
    total = extent + before + after
    if total > MOST_EXTENT:
        raise Refused(f"mode '{mode}' would make an extent of {total}: at most {MOST_EXTENT} is supported")
    positions = [POSITIONS[mode](index, extent) for index in range(-before, extent + after)]
    pieces = runs(positions)
    if len(pieces) > MOST_PIECES:
        raise Refused(f"mode '{mode}' makes {len(pieces)} pieces of axis {axis}: at most {MOST_PIECES} are supported")
    return joined(node, [cut(node, x, axis, *run) for run in pieces], axis)


def _reflected(index: int, extent: int) -> int:
    period = 2 * (extent - 1)
    place = index % period
    return min(place, period - place)


POSITIONS = {
    "edge": lambda index, extent: min(max(index, 0), extent - 1),
    "reflect": _reflected,
    "wrap": lambda index, extent: index % extent,
}

CONVERTERS: dict[str, Converter] = {"Pad": pad}
