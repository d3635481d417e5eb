"""Softmax, norms and attention over long rows, of small and large numbers, are as near to the exact results as those of
onnxruntime, where sums are carried in f32."""

from __future__ import annotations

import numpy as np
import pytest
from long_reductions import HEAD, errors, exact, inputs, model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from programs import machine

import frustum

SCALES = [0.01, 1, 30]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("kind", "length"), [("softmax", 12288), ("layer_norm", 6000), ("attention", 2048)])
@pytest.mark.parametrize("scale", SCALES)
def test_no_error_is_twice_that_of_onnxruntime(kind, length, dtype, scale):
    ours, theirs = errors(kind, length, scale, dtype, "edge")
    assert ours <= 2 * theirs


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("length", [300, 2048])
@pytest.mark.parametrize("scale", SCALES)
def test_nor_is_that_of_a_plan_as_a_tree(length, dtype, scale):
    """Where sums wait in f32, and scores are sums."""
    ours, theirs = errors("attention", length, scale, dtype, "edge", policy="tree")
    assert ours <= 2 * theirs


@pytest.mark.slow
@pytest.mark.parametrize("carry", ["element", "f32"])
def test_keys_that_stream_give_the_same(carry):
    ours, theirs = errors("attention", 8192, 1, "f16", "edge", carry)
    assert ours <= (2 if carry == "f32" else 40) * theirs


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["optimal", "tree"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_row_that_is_masked_altogether_is_zero(dtype, policy):
    """As ONNX says it since opset 24: of keys that are all hidden nothing is taken."""
    kept = "f16" if dtype == "f32" else dtype
    feeds = inputs("attention", 64, 1, kept)
    element = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]
    made = model("attention", feeds, element)
    made.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, (4, 64)))
    made.graph.node[0].input.append("mask")
    del made.opset_import[:]
    made.opset_import.append(helper.make_opsetid("", 24))
    mask = np.ones((4, 64), bool)
    mask[2] = False
    if dtype == "f32":
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    compiled = frustum.compile(made, "edge", dtype, carry="f32", host="never", policy=policy)
    found = frustum.run(compiled, {**feeds, "mask": mask}, checked=True).outputs["y"]
    assert found.shape == (1, 1, 4, HEAD)
    assert not found[0, 0, 2].any()
    np.testing.assert_allclose(found[0, 0, [0, 1, 3]].astype(np.float32), exact("attention", feeds)[0, 0, [0, 1, 3]],
                               atol=0.05)  # fmt: skip


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_softmax_that_no_core_holds_runs_on_the_device(axis, dtype):
    shape = [3, 2, 2]
    shape[axis] = 40_000
    node = helper.make_node("Softmax", ["x"], ["y"], axis=axis)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    made = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    compiled = frustum.compile(made, "edge", dtype, host="never")
    result = frustum.run(compiled, check=True, checked=True)
    assert result.report.data["dram"]["ratio"] <= (1.01 if axis == 2 else 6)  # SRAM holds a row


NORM = {"epsilon": 1e-3}
SHARED = [
    ("GroupNormalization", (1, 16, 24, 80), {"num_groups": 4, **NORM}, 1),
    ("GroupNormalization", (2, 16, 24, 24), {"num_groups": 1, **NORM}, 1),
    ("InstanceNormalization", (1, 4, 96, 80), NORM, 4),
    ("Softmax", (4, 7680), {"axis": 1}, 1),
    ("Softmax", (1, 7680), {"axis": 1}, 1),
]
"""Most times that the operand crosses the port of DRAM, read or written: parts of instances that wait are not
kept in SRAM (12 times all that must be moved before, 2.5 times now)."""


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("kind", "extent", "attributes", "times"), SHARED)
def test_clusters_share_what_none_of_them_holds(kind, extent, attributes, times):
    """What is reduced together is more than a cluster's SRAM, and all but in the last case more than that of all
    clusters: each holds a part, and few are read again."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(extent).astype(np.float16)
    names, own = ["scale", "bias"] if kind != "Softmax" else [], extent[1:2]
    given = [helper.make_tensor(name, TensorProto.FLOAT16, own, rng.standard_normal(own)) for name in names]
    node = helper.make_node(kind, ["x", *names], ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, extent) for name in "xy"]
    graph = helper.make_graph([node], "shared", values[:1], values[1:], given)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    target = machine(4, 2, capacity=12 * 1024)
    assert x.nbytes / extent[0] > target.cluster.sram.capacity_bytes
    compiled = frustum.compile(made, target, "f16", carry="f32", host="never", compress_weights="none")
    run = frustum.run(compiled, {"x": x}, checked=True)
    (wanted,) = ReferenceEvaluator(made).run(None, {"x": x})
    atol = 4 * float(np.finfo(np.float16).eps) * np.abs(wanted).max()
    np.testing.assert_allclose(run.outputs["y"].astype(np.float32), wanted.astype(np.float32), atol=atol)
    dram = run.report["dram"]
    assert dram["input_bytes"] + dram["intermediate_bytes"] <= times * x.nbytes
