# Tests: test/passes/onnx/test_loops.py
"""Loop and Scan whose number of steps is known when importing: their bodies once for each step, one after the other.

Source: ONNX's pages of the operators, https://onnx.ai/onnx/operators/onnx__Scan.html (from opset 9 on, without an axis
of batches) and https://onnx.ai/onnx/operators/onnx__Loop.html.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from xdsl.ir import SSAValue

from frustum.dialects.graph import ConcatOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.graph.composites.unroll_recurrences import MOST_STEPS
from frustum.passes.onnx.node import Node, Value
from frustum.passes.onnx.operators.moves import cut

Body: TypeAlias = Callable[[onnx.GraphProto, Sequence["Value | None"]], "Sequence[Value]"]
"""The outputs of a graph for its inputs."""
MOST_NODES = 640
"""Of all steps: as many layers as the longest LSTM has, which are planned one by one (8 s of a Scan of 64 x 4)."""


def unrolled(node: Node, body: Body) -> Sequence[Value]:
    """The outputs of a Scan or a Loop; Refused where the number of steps depends on the network's inputs."""
    graph: onnx.GraphProto = node.get("body")
    return _scan(node, graph, body) if node.op_type == "Scan" else _loop(node, graph, body)


def _scan(node: Node, graph: onnx.GraphProto, body: Body) -> Sequence[Value]:
    count = int(node.get("num_scan_inputs"))
    states: list[Value | None] = list(node.operands[: len(node) - count])
    given = [_rank_and_value(node, index) for index in range(len(states), len(node))]
    named = _listed(node, "scan_input_axes", count)
    axes = [node.axis(axis, rank) for axis, (rank, _) in zip(named, given, strict=True)]
    backwards = _listed(node, "scan_input_directions", count)
    extents = {_shape(value)[axis] for axis, (_, value) in zip(axes, given, strict=True)}
    if len(extents) != 1:
        raise Refused(f"its inputs have {sorted(extents)} steps")
    steps = _checked(extents.pop(), graph)
    outputs = len(graph.output) - len(states)
    made: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(steps):
        rows = [
            _row(node, value, axis, steps - 1 - step if is_back else step)
            for axis, is_back, (_, value) in zip(axes, backwards, given, strict=True)
        ]
        found = body(graph, [*states, *rows])
        states = list(found[: len(states)])
        for own, value in zip(made, found[len(states) :], strict=True):
            own.append(value)
    directions, places = _listed(node, "scan_output_directions", outputs), _listed(node, "scan_output_axes", outputs)
    stacks = [
        _stacked(node, own[::-1] if is_back else own, axis)
        for own, axis, is_back in zip(made, places, directions, strict=True)
    ]
    return [*(state for state in states if state is not None), *stacks]


def _loop(node: Node, graph: onnx.GraphProto, body: Body) -> Sequence[Value]:
    trips = node.constant(0, "the number of steps")
    start = node.constant(1, "the condition")
    goes_on = start is None or bool(start.all())
    if trips is None:
        raise Refused("the number of steps is missing")
    steps = _checked(int(trips.reshape(())) if goes_on else 0, graph)
    states: list[Value | None] = list(node.operands[2:])
    made: list[list[Value]] = [[] for _ in graph.output[1 + len(states) :]]
    for step in range(steps):
        condition, *found = body(graph, [np.asarray(step, np.int64), np.asarray(True), *states])
        states = list(found[: len(states)])
        for own, value in zip(made, found[len(states) :], strict=True):
            own.append(value)
        if not isinstance(condition, np.ndarray):
            raise Refused("whether it goes on depends on the network's inputs")
        if not condition.all():
            break
    return [*(state for state in states if state is not None), *(_stacked(node, own, 0) for own in made)]


def _checked(steps: int, graph: onnx.GraphProto) -> int:
    if not 0 < steps <= MOST_STEPS or steps * len(graph.node) > MOST_NODES:
        raise Refused(f"{steps} steps of {len(graph.node)} nodes are not supported: 1 to {MOST_STEPS} steps,"
                      f" at most {MOST_NODES} nodes")  # fmt: skip
    return steps


def _listed(node: Node, name: str, count: int) -> tuple[int, ...]:
    """An attribute of integers, one for each; 0 where nobody says."""
    return node.ints(name) or (0,) * count


def _rank_and_value(node: Node, index: int) -> tuple[int, Value]:
    value = node.operands[index]
    if value is None:
        raise Refused(f"input {index} is missing")
    return len(_shape(value)), value


def _shape(value: Value) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else shape_of(value)


def _row(node: Node, value: Value, axis: int, index: int) -> Value:
    if isinstance(value, np.ndarray):
        return np.take(value, index, axis)
    shape = shape_of(value)
    return node.like(node.reshape(cut(node, value, axis, index, 1), (*shape[:axis], *shape[axis + 1 :])), value)


def _stacked(node: Node, values: Sequence[Value], axis: int) -> Value:
    """One after the other along a new axis."""
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack([np.asarray(value) for value in values], axis)
    shape = _shape(values[0])
    place = node.axis(axis, len(shape) + 1)
    layers: list[SSAValue] = []
    for value in values:
        if _shape(value) != shape:
            raise Refused("its steps give values of several shapes")
        layer = value if isinstance(value, SSAValue) else node.weight(value, "step")
        layers.append(node.reshape(layer, (*shape[:place], 1, *shape[place:])))
    return layers[0] if len(layers) == 1 else node.emit(ConcatOp(layers, place))
