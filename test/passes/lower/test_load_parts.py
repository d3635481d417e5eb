"""Tiles of a tensor that is put together from others are loaded from these: every element moves once, and outputs are
onnxruntime's, in checked mode."""

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
from frustum.passes.lower.moves import Digit, digits_of, in_digits
from frustum.runtime.host.agreement import agreement

LIMIT = settings().max_examples // 4


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def appended(axis, heads=4, rows=512, channels=32, is_output=True):
    """A cache with some more along an axis, read by a product as the transposed second factor."""
    shapes = [[1, heads, rows, channels] for _ in range(2)]
    shapes[1][axis] = 1
    inputs = {"past": normal(*shapes[0]), "new": normal(*shapes[1])}
    whole = list(shapes[0])
    whole[axis] += 1
    inputs["q"] = normal(1, whole[1], 1, whole[3])
    nodes = [
        node("Concat", ["past", "new"], ["k"], axis=axis),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["y"]),
    ]
    shapes = {name: array.shape for name, array in inputs.items()}
    return model(nodes, shapes, ["y", "k"] if is_output else ["y"]), inputs


def in_sram_of(name, sram_bytes, clusters=None, nram_bytes=None):
    whole = target(name)
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=sram_bytes))
    if nram_bytes is not None:
        small = [replace(m, capacity_bytes=nram_bytes) for m in (cluster.core.nram, cluster.core.wram)]
        cluster = replace(cluster, core=replace(cluster.core, nram=small[0], wram=small[1]))
    return replace(whole, chip=replace(whole.chip, cluster=cluster, clusters=clusters or whole.chip.clusters))


def ran(proto, inputs, machine, dtype="f16", **options):
    """The report of a checked run that agrees with onnxruntime."""
    made = frustum.compile(proto, machine, dtype=dtype, policy="optimal", compress_weights="none", **options)
    found = frustum.run(made, inputs, checked=True)
    assert agreement(proto, inputs, found.outputs, dtype)[1].good
    return found.report


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("is_output", [True, False])
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_what_is_appended_moves_once(axis, is_output):
    report = ran(*appended(axis, is_output=is_output), in_sram_of("edge", 65536))
    assert report["dram"]["ratio"] < 1.01


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("clusters", [1, 2])
def test_in_other_types_and_several_clusters(dtype, clusters):
    report = ran(*appended(2), in_sram_of("default", 65536, clusters), dtype)
    assert report["dram"]["ratio"] < 1.01


@pytest.mark.slow
@pytest.mark.soak
def test_keys_of_several_tiles_of_queries_are_stored_once():
    """Each tile of queries loads all keys; the first one stores them."""
    inputs = {"past": normal(1, 2, 480, 32), "new": normal(1, 2, 32, 32)}
    inputs |= {"q": normal(1, 2, 256, 32), "v": normal(1, 2, 512, 32)}
    nodes = [
        node("Concat", ["past", "new"], ["k"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    proto = model(nodes, {name: array.shape for name, array in inputs.items()}, ["y", "k"])
    report = ran(proto, inputs, in_sram_of("edge", 32768, nram_bytes=8192))
    size = 2 * 512 * 32 * 2
    assert report["dram"]["write_bytes"] == 2 * 256 * 32 * 2 + size


@pytest.mark.parametrize("compression", ["none", "auto"])
def test_constants_are_parts_too(compression):
    """Keys that a network has, in front of those that it is given."""
    inputs = {"x": normal(1, 4, 500, 32), "q": normal(1, 4, 1, 32)}
    nodes = [
        node("Concat", ["own", "x"], ["k"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["y"]),
    ]
    own = {"own": np.round(normal(1, 4, 12, 32))}
    proto = model(nodes, {name: array.shape for name, array in inputs.items()}, ["y"], own)
    machine = in_sram_of("edge", 65536)
    made = frustum.compile(proto, machine, dtype="f16", policy="optimal", compress_weights=compression)
    found = frustum.run(made, inputs, checked=True)
    assert agreement(proto, inputs, found.outputs, "f16")[1].good
    assert found.report["dram"]["ratio"] < 1.01


def test_a_window_of_a_cache_is_loaded_where_it_lies():
    """The oldest keys go when new ones come: a slice of an input beside another input."""
    inputs = {"past": normal(1, 4, 512, 32), "new": normal(1, 4, 1, 32), "q": normal(1, 4, 1, 32)}
    places = {"first": np.array([1]), "stop": np.array([512]), "axis": np.array([2])}
    nodes = [
        node("Slice", ["past", *places], ["kept"]),
        node("Concat", ["kept", "new"], ["k"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["y"]),
    ]
    proto = model(nodes, {name: array.shape for name, array in inputs.items()}, ["y", "k"], places)
    assert ran(proto, inputs, in_sram_of("edge", 65536))["dram"]["ratio"] < 1.01


def test_keys_of_fewer_heads_than_clusters():
    """Clusters for which there is no head load nothing."""
    inputs = {"past": normal(1, 2, 511, 32), "new": normal(1, 2, 1, 32), "v": normal(1, 2, 512, 32)}
    inputs["q"] = normal(1, 2, 1, 32)
    nodes = [
        node("Concat", ["past", "new"], ["k"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    proto = model(nodes, {name: array.shape for name, array in inputs.items()}, ["y", "k"])
    assert ran(proto, inputs, in_sram_of("default", 32768, 4))["dram"]["ratio"] < 1.01


def test_other_policies_put_it_together_first():
    proto, inputs = appended(2)
    with_it, without = (
        frustum.run(frustum.compile(proto, in_sram_of("edge", 65536), dtype="f16", policy=policy), inputs).report
        for policy in ("optimal", "none")
    )
    size = inputs["past"].size * 2
    assert without["dram"]["total_bytes"] >= with_it["dram"]["total_bytes"] + size


@st.composite
def machines(draw):
    name = draw(st.sampled_from(["edge", "default", "df", "manycore"]))
    clusters = draw(st.integers(1, 3)) if name in ("default", "manycore") else 1
    return in_sram_of(name, draw(st.sampled_from([8192, 16384, 32768])), clusters, draw(st.sampled_from([8192, 16384])))


def part(draw, name, shape, inputs, constants):
    """The nodes that make a part, an input, a constant or what a layer makes, and its name."""
    kind = draw(st.sampled_from(["input", "input", "Relu", "Softmax", "Slice", "constant"]))
    if kind == "constant":
        constants[name] = normal(*shape)
        return [], name
    inputs[name] = normal(*shape)
    made = f"{name}_made"
    if kind == "input":
        return [], name
    if kind == "Slice":
        axis = draw(st.integers(0, 3))
        inputs[name] = normal(*(size + 3 * (k == axis) for k, size in enumerate(shape)))
        places = {"first": 1, "stop": 1 + shape[axis], "axis": axis}
        constants |= {f"{name}_{word}": np.array([value]) for word, value in places.items()}
        return [node("Slice", [name, *(f"{name}_{word}" for word in places)], [made])], made
    return [node(kind, [name], [made])], made


def reader(kind, shape, inputs, constants, rows):
    """The nodes that read the tensor `k`, and what they make."""
    n, c, h, w = shape
    turned = node("Transpose", ["k"], [f"{kind}_t"], perm=[0, 1, 3, 2])
    match kind:
        case "transposed factor":
            inputs["a"] = normal(n, c, rows, w)
            return [turned, node("MatMul", ["a", f"{kind}_t"], [kind])]
        case "factor":
            inputs["b"] = normal(n, c, rows, h)
            return [node("MatMul", ["b", "k"], [kind])]
        case "product":
            constants["w"] = normal(w, 8)
            return [node("MatMul", ["k", "w"], [kind])]
        case "convolution":
            constants["x"] = normal(4, c, 3, 3) / 5
            return [node("Conv", ["k", "x"], [kind], pads=[1, 1, 1, 1])]
        case "attention":
            inputs["q"], inputs["v"] = normal(n, c, rows, w), normal(n, c, h, w)
            scores = [node("MatMul", ["q", f"{kind}_t"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1)]
            return [turned, *scores, node("MatMul", ["p", "v"], [kind])]
        case "turned":
            return [node("Transpose", ["k"], ["other"], perm=[0, 2, 1, 3]), node("Relu", ["other"], [kind])]
    return [node(kind, ["k"], [kind])]


READERS = "transposed factor", "factor", "product", "convolution", "attention", "turned", "Relu", "Softmax"


@st.composite
def networks(draw):
    """A concatenation along any axis of parts of any kind, with several readers."""
    sizes = [1, 2], [2, 3, 12], [5, 16, 40, 64], [4, 8, 16, 32]
    shape = [draw(st.sampled_from(each)) for each in sizes]
    axis = draw(st.integers(0, 3))
    inputs, constants, nodes, parts = {}, {}, [], []
    for k in range(draw(st.integers(2, 3))):
        own = list(shape)
        own[axis] = draw(st.sampled_from([1, 2, shape[axis]]))
        made, name = part(draw, f"p{k}", own, inputs, constants)
        nodes += made
        parts.append((name, own[axis]))
    shape[axis] = sum(size for _, size in parts)
    nodes.append(node("Concat", [name for name, _ in parts], ["k"], axis=axis))
    kinds = draw(st.lists(st.sampled_from(READERS), min_size=1, max_size=3, unique=True))
    for kind in kinds:
        nodes += reader(kind, shape, inputs, constants, draw(st.sampled_from([1, 3, 20])))
    outputs = [*kinds, *(["k"] if draw(st.booleans()) else [])]
    if not inputs:
        inputs["unused"] = normal(1, 1, 2, 2)
        nodes.append(node("Relu", ["unused"], ["used"]))
        outputs.append("used")
    return model(nodes, {name: array.shape for name, array in inputs.items()}, outputs, constants), inputs


@pytest.mark.slow
@settings(max_examples=LIMIT)
@given(networks(), machines(), st.sampled_from(["f32", "f16", "bf16"]))
def test_outputs_are_right_on_any_machine(network, machine, dtype):
    try:
        ran(*network, machine, dtype, cache=False)
    except DoesNotFit:
        return


# -------------------------------------------------------------------- boxes and digits


def test_digits_divide_each_other():
    assert digits_of([2, 128, 0, 131072], 393216) == [Digit(2, 64), Digit(128, 1024), Digit(131072, 3)]
    assert digits_of([2, 6, 16], 96) is None


@pytest.mark.parametrize(("address", "places"), [(131072 + 128 * 5 + 4, [2, 5, 1]), (-256, [0, -2, 0])])
def test_addresses_are_positions(address, places):
    assert in_digits(address, [Digit(2, 64), Digit(128, 1024), Digit(131072, 3)]) == places


