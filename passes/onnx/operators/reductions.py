"""Reductions over axes."""

from __future__ import annotations

from frustum.dialects.graph import ReduceOp, shape_of
from frustum.passes.onnx.node import Converter, Node, Result

__all__ = ["CONVERTERS"]


def reduction(kind: str, before: str = "", after: str = "") -> Converter:
    """A reduction of x, of |x| or of x * x (`before`), and a function of the result (`after`)."""

    def convert(node: Node) -> Result:
        x = node.value(0)
        rank = len(shape_of(x))
        given = node.ints("axes", 1) or ()
        axes = tuple(sorted({node.axis(axis, rank) for axis in given}))
        if not axes and not node.get("noop_with_empty_axes", 0):
            axes = tuple(range(rank))
        if before == "square":
            x = node.binary("mul", x, x)
        elif before:
            x = node.unary(before, x)
        result = node.emit(ReduceOp(kind, x, axes, bool(node.get("keepdims", 1)))) if axes else x
        return node.unary(after, result) if after else result

    return convert


CONVERTERS: dict[str, Converter] = {
    "ReduceMean": reduction("mean"),
    "ReduceSum": reduction("sum"),
    "ReduceMax": reduction("max"),
    "ReduceMin": reduction("min"),
    "ReduceL1": reduction("sum", before="abs"),
    "ReduceL2": reduction("sum", before="square", after="sqrt"),
    "ReduceSumSquare": reduction("sum", before="square"),
    "ReduceLogSum": reduction("sum", after="log"),
}
