"""Reductions over axes."""

from __future__ import annotations

from xdsl.dialects.builtin import f16

from frustum.dialects.graph import ReduceOp, shape_of
from frustum.passes.onnx.node import Converter, Ints, Node, Result


def reduction(kind: str, before: str = "", after: str = "") -> Converter:
    """A reduction of x, of |x| or of x * x (`before`), and a function of the result (`after`)."""

    def convert(node: Node) -> Result:
        x, axes = node.value(0), _axes(node)
        if before == "square":
            x = node.binary("mul", x, x)
        elif before:
            x = node.unary(before, x)
        result = node.emit(ReduceOp(kind, x, axes, bool(node.get("keepdims", 1)))) if axes else x
        return node.unary(after, result) if after else result

    return convert


def log_sum_exp(node: Node) -> Result:
    """max + log(sum(exp(x - max))), so that no exponential overflows; the maximum of infinities counts as 0."""
    x, axes = node.value(0), _axes(node)
    if not axes:
        return x
    largest = node.emit(ReduceOp("max", x, axes, True))
    end = LARGEST_F16 if node.network.element == f16 else LARGEST
    finite = node.unary("clip", largest, -end, end)
    total = node.emit(ReduceOp("sum", node.unary("exp", node.binary("sub", x, finite)), axes, True))
    result = node.binary("add", node.unary("log", total), finite)
    shape = shape_of(result)
    if node.get("keepdims", 1):
        return result
    return node.reshape(result, tuple(extent for axis, extent in enumerate(shape) if axis not in axes))


def _axes(node: Node) -> Ints:
    """From the front, in order; all where none are given."""
    rank = len(node.shape(0))
    given = node.ints("axes", 1) or ()
    axes = tuple(sorted({node.axis(axis, rank) for axis in given}))
    return tuple(range(rank)) if not axes and not node.get("noop_with_empty_axes", 0) else axes


LARGEST, LARGEST_F16 = 3.3e38, 65504.0
"""Numbers that f32 and bf16, and that f16 just hold."""

CONVERTERS: dict[str, Converter] = {
    "ReduceMean": reduction("mean"),
    "ReduceSum": reduction("sum"),
    "ReduceMax": reduction("max"),
    "ReduceMin": reduction("min"),
    "ReduceL1": reduction("sum", before="abs"),
    "ReduceL2": reduction("sum", before="square", after="sqrt"),
    "ReduceSumSquare": reduction("sum", before="square"),
    "ReduceLogSum": reduction("sum", after="log"),
    "ReduceLogSumExp": log_sum_exp,
}
