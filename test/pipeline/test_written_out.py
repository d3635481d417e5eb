"""Networks that the other planner's passes write out, or refuse, are planned as trees without being asked."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import frustum
from frustum.passes.errors import Unsupported
from frustum.passes.lower.tree.lower_plan import LowerPlan
from frustum.passes.lower.tree.spans import NotLowered

HIDDEN = 6


def recurrent(steps, operator="LSTM", gates=4):
    """One layer of few channels, which begins with zeros."""
    rng = np.random.default_rng(steps)
    shapes = {"w": (1, gates * HIDDEN, 5), "r": (1, gates * HIDDEN, HIDDEN)}
    weights = [
        numpy_helper.from_array(0.4 * rng.standard_normal(s).astype(np.float32), name) for name, s in shapes.items()
    ]
    node = helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=HIDDEN)
    return model(node, weights, (steps, 1, 5), (steps, 1, 1, HIDDEN))


def transposed(kernel, stride, pad):
    rng = np.random.default_rng(kernel)
    weight = numpy_helper.from_array(rng.standard_normal((4, 3, kernel, kernel)).astype(np.float32), "w")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride] * 2, pads=[pad] * 4)
    size = (6 - 1) * stride + kernel - 2 * pad
    return model(node, [weight], (1, 4, 6, 6), (1, 3, size, size))


def model(node, weights, taken, made):
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", taken), ("y", made))]
    graph = helper.make_graph([node], "net", values[:1], values[1:], weights)
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(found)
    return found


def policy_of(compiled):
    return compiled.chain.executables[0].manifest["options"]["policy"]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    "network",
    [recurrent(66), recurrent(12), recurrent(66, "GRU", 3), recurrent(40, "RNN", 1), transposed(12, 6, 3)],
    ids=["lstm_66", "lstm_12", "gru_66", "rnn_40", "transposed_12_6"],
)
def test_it_is_a_tree_on_the_device_and_right(network):
    compiled = frustum.compile(network, "edge")
    assert policy_of(compiled) == "tree"
    report = frustum.run(compiled, check=True, checked=True).report.data
    assert len(compiled.chain.pieces) == len(compiled.chain.executables), "nothing is on the host"
    assert report["cycles"]["bound"] <= report["cycles"]["total"]


def test_few_steps_are_left_to_both_planners():
    """Two steps are written out to twice the products."""
    compiled = frustum.compile(recurrent(2), "edge")
    frustum.run(compiled, check=True, checked=True)


def test_what_becomes_no_program_as_a_tree_is_planned_in_the_other_way(monkeypatch):
    def refuse(self, ctx, op):
        raise NotLowered("no")

    monkeypatch.setattr(LowerPlan, "apply", refuse)
    compiled = frustum.compile(recurrent(20, "RNN", 1), "edge", host="never")
    assert policy_of(compiled) == "optimal"
    with pytest.raises(Unsupported, match="66 steps are not supported"):
        frustum.compile(recurrent(66, "RNN", 1), "edge", host="never")


def test_stops_are_those_of_the_tree(tmp_path):
    frustum.compile(recurrent(12), "edge", dump_ir=tmp_path)
    typed, fused = ((tmp_path / f"{stop}.mlir").read_text("utf-8", "replace") for stop in ("01-typed", "02-fused"))
    assert typed.count("fgraph.matmul") == 5 and "fgraph.recurrence" in typed
    assert "fplan.plan" in fused


def test_a_network_has_one_bound_whoever_plans_it():
    network = transposed(9, 3, 3)
    found = [
        frustum.run(frustum.compile(network, "edge", **own), {}, mode="timing").report.data
        for own in ({}, {"policy": "optimal"})
    ]
    assert found[0]["policy"] == "tree"
    bounds = [(each["cycles"]["bound_terms"], each["dram"]["bound_bytes"]) for each in found]
    assert bounds[0] == bounds[1]
