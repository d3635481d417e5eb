"""Windows over some positions of a map end where these do, and not where the map itself ends."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import frustum

TOLERANCE = 2e-2  # of f16, relative to the largest magnitude


@pytest.mark.slow
@pytest.mark.soak(but=6)
@pytest.mark.parametrize("target", ["edge", "default", "df"])
@pytest.mark.parametrize(("starts", "step"), [((0, 1), 1), ((3, 2), 1), ((2, 2), 2)])
@pytest.mark.parametrize("is_beside", [True, False])
def test_what_lies_beside_a_pick_is_not_read(target, starts, step, is_beside):
    """Of the picked map only what is picked is loaded; checked mode stops where more is read."""
    rng = np.random.default_rng(0)
    size = 24, 8
    stops = [first + extent * step for first, extent in zip(starts, size, strict=True)]
    whole = 1, 3, stops[0] + 2, stops[1] + 3
    numbers = {"first": starts, "stop": stops, "axes": (2, 3), "steps": (step, step)}
    constants = [numpy_helper.from_array(np.array(each, np.int64), name) for name, each in numbers.items()]
    channels = 3 + 2 * is_beside
    kernel = rng.standard_normal((4, channels, 3, 3)).astype(np.float32) / channels
    nodes = [helper.make_node("Slice", ["z", *numbers], ["picked"])]
    inputs = {"z": whole}
    if is_beside:
        nodes += [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Concat", ["a", "picked"], ["c"], axis=1)]
        inputs["x"] = 1, 2, *size
    nodes.append(helper.make_node("Conv", ["c" if is_beside else "picked", "w"], ["y"], pads=[1] * 4))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, *size))]
    graph = helper.make_graph(nodes, "picks", values, made, [*constants, numpy_helper.from_array(kernel, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()}
    run = frustum.run(frustum.compile(model, target, "f16"), given, checked=True, check=True)
    assert run.report["check"]["max_rel_error"] <= TOLERANCE
