"""What is moved elsewhere is stored there at once: DRAM has inputs and outputs alone, and these are onnxruntime's, in
checked mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_models import model, node
from stops import target

import frustum
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.host.agreement import agreement

LIMIT = settings().max_examples // 4
OPSET = 23
"""The first with rotary embedding."""


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def machine_of(name, sram_bytes, clusters=None):
    whole = target(name)
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=sram_bytes))
    return replace(whole, chip=replace(whole.chip, cluster=cluster, clusters=clusters or whole.chip.clusters))


def ran(nodes, inputs, outputs, machine, constants=None, dtype="f16", policy="optimal"):
    """The report of a checked run that agrees with onnxruntime."""
    shapes = {name: array.shape for name, array in inputs.items()}
    proto = model(nodes, shapes, outputs, constants, OPSET)
    made = frustum.compile(proto, machine, dtype=dtype, policy=policy, compress_weights="none", cache=False)
    found = frustum.run(made, inputs, checked=True)
    assert agreement(proto, inputs, found.outputs, dtype)[1].good
    return found.report


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clusters"), [("edge", 1), ("default", 2)])
def test_halves_that_are_turned_are_stored_beside_each_other(name, clusters):
    inputs = {"x": normal(1, 4, 128, 32)}
    tables = {"c": normal(1, 128, 16), "s": normal(1, 128, 16)}
    nodes = [node("RotaryEmbedding", ["x", "c", "s"], ["y"])]
    report = ran(nodes, inputs, ["y"], machine_of(name, 32768, clusters), tables)
    assert report["dram"]["ratio"] < 1.01


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 2, 3])
def test_parts_are_stored_beside_each_other(axis):
    """Along any axis; of several readers of a part the other one still finds it."""
    inputs = {"a": normal(2, 4, 64, 32), "b": normal(2, 4, 64, 32)}
    nodes = [
        node("Relu", ["a"], ["p"]),
        node("Tanh", ["b"], ["q"]),
        node("Concat", ["p", "q"], ["y"], axis=axis),
        node("Softmax", ["p"], ["z"], axis=2),
    ]
    report = ran(nodes, inputs, ["y", "z"], machine_of("edge", 16384), dtype="f32")
    size = inputs["a"].size * 4
    assert report["dram"]["write_bytes"] <= 4 * size  # both parts, one for the other reader, its result


@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (0, 3, 2, 1)])
def test_what_is_turned_around_is_stored_so(perm):
    inputs = {"x": normal(1, 8, 64, 32)}
    nodes = [node("Tanh", ["x"], ["t"]), node("Transpose", ["t"], ["y"], perm=perm)]
    report = ran(nodes, inputs, ["y"], machine_of("edge", 16384))
    assert report["dram"]["ratio"] == 1


def test_other_policies_move_it():
    inputs = {"x": normal(1, 8, 64, 32)}
    nodes = [node("Tanh", ["x"], ["t"]), node("Transpose", ["t"], ["y"], perm=(0, 2, 1, 3))]
    assert ran(nodes, inputs, ["y"], machine_of("edge", 16384), policy="none")["dram"]["ratio"] == 2


@st.composite
def networks(draw):
    """Parts that layers make, some cut or turned around, beside each other along any axis."""
    shape = [draw(st.sampled_from(each)) for each in ([1, 2], [2, 3, 12], [5, 16, 40], [4, 8, 32])]
    axis = draw(st.integers(0, 3))
    inputs, constants, nodes, parts, outputs = {}, {}, [], [], ["y"]
    for k in range(draw(st.integers(1, 3))):
        own, name, made, part = list(shape), f"x{k}", f"m{k}", f"p{k}"
        own[axis] = draw(st.sampled_from([1, 2, shape[axis]]))
        layer = draw(st.sampled_from(["Relu", "Tanh", "Softmax"]))
        nodes.append(node(layer, [name], [made]))
        kind = draw(st.sampled_from(["as it is", "cut", "turned"]))
        if kind == "cut":
            along = draw(st.integers(2, 3))
            inputs[name] = normal(*(size + 3 * (d == along) for d, size in enumerate(own)))
            places = {"first": 1, "stop": 1 + own[along], "axis": along}
            constants |= {f"{name}_{word}": np.array([value]) for word, value in places.items()}
            nodes.append(node("Slice", [made, *(f"{name}_{word}" for word in places)], [part]))
        elif kind == "turned":
            a, b = draw(st.sampled_from([(1, 2), (2, 3), (1, 3)]))
            perm = [{a: b, b: a}.get(d, d) for d in range(4)]
            inputs[name] = normal(*(own[d] for d in perm))
            nodes.append(node("Transpose", [made], [part], perm=perm))
        else:
            inputs[name] = normal(*own)
            part = made
        parts.append(part)
        if draw(st.booleans()):
            nodes.append(node("Sigmoid", [made], [f"z{k}"]))
            outputs.append(f"z{k}")
    nodes.append(node("Concat", parts, ["y"], axis=axis))
    return nodes, inputs, outputs, constants


@st.composite
def machines(draw):
    name = draw(st.sampled_from(["edge", "default", "df", "manycore"]))
    clusters = draw(st.integers(1, 3)) if name in ("default", "manycore") else 1
    return machine_of(name, draw(st.sampled_from([8192, 16384, 32768])), clusters)


@pytest.mark.slow
@settings(max_examples=LIMIT)
@given(networks(), machines(), st.sampled_from(["f32", "f16", "bf16"]))
def test_outputs_are_right_on_any_machine(network, machine, dtype):
    nodes, inputs, outputs, constants = network
    try:
        ran(nodes, inputs, outputs, machine, constants, dtype)
    except DoesNotFit:
        return
