# Tests: test/passes/onnx/test_old_meanings.py
"""Operators that meant something else in older opsets, which ONNX's version converter does not know, in today's words.

| operator | until opset | meant |
|---|---|---|
| Hardmax | 12 | one 1 in each row of the matrix that the operand is, flattened at `axis` (1 if it is left out) |
| Resize | 10 | samples at output / scale; nearest: the one before; the one after where the scale is below 1 |

Of the last ONNX's text does not say it, onnxruntime has it so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper, numpy_helper

from frustum.passes.weights import Array

Constants = Mapping[str, Array]
SCALES = 1
"""The operand of Resize 10 that says how much larger each axis becomes."""


def keep_old_meanings(graph: GraphProto, opset: int, kept: Mapping[str, str]) -> None:
    """Rewrites the converted nodes of a graph that was of an older opset, but for those whose results are `kept`."""
    rewrites = {name: make for name, (last, make) in OLD.items() if opset <= last}
    if not any(node.op_type in rewrites for node in graph.node):
        return
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if _is_row(tensor)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Constant":
            rows = (attribute.t for attribute in node.attribute if attribute.name == "value" and _is_row(attribute.t))
            constants.update((node.output[0], numpy_helper.to_array(tensor)) for tensor in rows)
        is_old = node.op_type in rewrites and not node.domain and not kept.keys() & set(node.output)
        nodes += rewrites[node.op_type](node, constants) if is_old else [node]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _is_row(tensor: onnx.TensorProto) -> bool:
    """Whether it may be scales of axes."""
    return len(tensor.dims) == 1 and tensor.data_type == onnx.TensorProto.FLOAT


def _hardmax(node: NodeProto, constants: Constants) -> list[NodeProto]:
    x, y = node.input[0], node.output[0]
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    return [
        helper.make_node("Shape", [x], [f"{y}/shape"], f"{node.name or y}/shape"),
        helper.make_node("Flatten", [x], [f"{y}/rows"], f"{node.name or y}/rows", axis=axis),
        helper.make_node("Hardmax", [f"{y}/rows"], [f"{y}/one"], node.name, axis=1),
        helper.make_node("Reshape", [f"{y}/one", f"{y}/shape"], [y], f"{node.name or y}/reshape"),
    ]


def _resize(node: NodeProto, constants: Constants) -> list[NodeProto]:
    scales = constants.get(node.input[-1]) if len(node.input) > SCALES else None
    if scales is None or not ((scales < 1).any() and (scales > 1).any()):
        is_smaller = scales is not None and bool((scales < 1).any())
        return [_placed(node, node.input[0], node.output[0], is_smaller=is_smaller)]
    y = node.output[0]
    found = []
    for way, own, given, result in (
        ("smaller", np.minimum(scales, 1), node.input[0], f"{y}/smaller"),
        ("larger", np.maximum(scales, 1), f"{y}/smaller", y),
    ):
        name = f"{y}/scales/{way}"
        found.append(helper.make_node("Constant", [], [name], name, value=numpy_helper.from_array(own)))
        placed = _placed(node, given, result, is_smaller=way == "smaller")
        placed.input[-1] = name
        found.append(placed)
    return found


def _placed(node: NodeProto, x: str, y: str, *, is_smaller: bool) -> NodeProto:
    placed = NodeProto()
    placed.CopyFrom(node)
    placed.input[0], placed.output[0] = x, y
    words = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if is_smaller else "floor"}
    others = [attribute for attribute in node.attribute if attribute.name not in words]
    del placed.attribute[:]
    placed.attribute.extend(others)
    placed.attribute.extend(helper.make_attribute(*item) for item in words.items())
    return placed


OLD: dict[str, tuple[int, Callable[[NodeProto, Constants], list[NodeProto]]]] = {
    "Hardmax": (12, _hardmax),
    "Resize": (10, _resize),
}
"""By operator the last opset in which it meant that, and what it is since."""
