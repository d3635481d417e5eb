"""The bound on cycles against a script that knows the ONNX file alone, and against what runs take."""

from math import ceil
from random import Random

import numpy as np
import onnx
import pytest
from cycle_bound import bound as bound_again
from onnx import TensorProto, helper, numpy_helper

import frustum
from frustum.backend.targets import load
from frustum.passes.zoo import zoo_model
from frustum.runtime.report.bound import (
    DRAM_PORT,
    MATRIX,
    NO_ROOM,
    ROOFLINE,
    STEPS,
    VECTOR,
    WEIGHTS_FIRST,
    Layer,
    Work,
    bound,
    layers_of,
)

TERMS = {
    ("squeezenet", "default"): (27_674, 12_803, 0), ("shufflenet", "default"): (30_710, 8_556, 0),
    ("alexnet", "default"): (1_198_967, 137_126, 863_940),
    ("squeezenet", "edge"): (347_942, 699_298, None), ("alexnet", "edge"): (15_282_030, None, 15_576_555),
}  # fmt: skip
"""DRAM port with two latencies, matrix passes, no room; worked out apart from both programs, on 2026-11-22; the
port of `default` carries 102 B in each cycle, since 2026-11-29."""


def timed(model, target, **more):
    compiled = frustum.compile(model, target, "f16", compress_weights="none", **more)
    return frustum.run(compiled, {}, mode="timing").report


def same(report, again):
    """To a cycle or two: terms are rounded.  Of its input a run may read an edge that no window covers."""
    terms = report["cycles"]["bound_terms"]
    assert report["dram"]["compulsory_bytes"] == pytest.approx(again["compulsory"], rel=1e-3)
    assert terms[DRAM_PORT] == pytest.approx(again[DRAM_PORT], rel=1e-3, abs=2)
    for name in (MATRIX, VECTOR, NO_ROOM):
        assert again[name] * 0.98 - 2 <= terms[name] <= again[name] + 2, name  # rows that a pool drops need no work
    greatest = max(again[name] for name in terms if name in again)
    assert greatest * 0.98 - 2 <= report["cycles"]["bound"] <= greatest * 1.001 + 2


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("name, target", TERMS)
def test_networks_have_the_bound_that_the_file_has(name, target):
    model = zoo_model(name)
    report = timed(model, target, policy="none")
    same(report, bound_again(model, load(target), 2))
    cycles = report["cycles"]
    for term, known in zip((DRAM_PORT, MATRIX, NO_ROOM), TERMS[name, target], strict=True):
        assert known is None or cycles["bound_terms"][term] == pytest.approx(known, rel=2e-2), term
    assert cycles["roofline"] <= cycles["bound"] == max(cycles["bound_terms"].values()) <= cycles["total"]
    assert cycles["bound_terms"][cycles["bound_by"]] == cycles["bound"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", ["default", "edge"])
def test_random_networks_have_it_too_and_no_run_is_below_it(seed, target):
    model = random_model(Random(seed))
    report = timed(model, target)
    same(report, bound_again(model, load(target), 2))
    assert report["cycles"]["bound"] <= report["cycles"]["total"]
    assert sum(w["cycles"] for unit in report["units"] for w in unit["waits"]) == report["cycles"]["total"]


def random_model(random):
    """Convolutions of all kinds, poolings, a branch that is added or concatenated, and a product at the end."""
    nodes, weights = [], []

    def add(kind, inputs, **attributes):
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], f"n{len(nodes)}", **attributes))
        return f"v{len(nodes) - 1}"

    def weight(*shape):
        weights.append(numpy_helper.from_array(np.full(shape, 0.01, np.float32), f"w{len(weights)}"))
        return weights[-1].name

    def conv(x, channels, out, size, stride=1, groups=1):
        w, b = weight(out, channels // groups, size, size), weight(out)
        return add(
            "Conv", [x, w, b], kernel_shape=[size] * 2, strides=[stride] * 2, pads=[size // 2] * 4, group=groups
        )

    channels = random.choice([8, 24, 40])
    x = conv("input", 3, channels, 3)
    for _ in range(random.randint(2, 5)):
        kind = random.choice(["plain", "depthwise", "groups", "pool", "add", "concat"])
        out = random.choice([16, 48, 72])
        if kind == "plain":
            x, channels = conv(x, channels, out, random.choice([1, 3, 5])), out
        elif kind == "depthwise":
            x = conv(x, channels, channels, 3, groups=channels)
        elif kind == "groups":
            x, channels = conv(x, channels, out, 1, groups=8), out
        elif kind == "pool":
            x = add("MaxPool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        else:
            a, b = conv(x, channels, out, 1), conv(x, channels, out, 3)
            x = add("Add", [a, b]) if kind == "add" else add("Concat", [a, b], axis=1)
            channels = out if kind == "add" else 2 * out
    x = add("Flatten", [add("GlobalAveragePool", [x])])
    x = add("Gemm", [x, weight(10, channels), weight(10)], transB=1)
    extent = random.choice([14, 20, 33])
    given = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, extent, extent])
    made = helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "random", [given], [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return model


def test_depthwise_layers_are_shared_so_that_both_units_end_together():
    work = Work()
    work.matrix, work.either = 100.0, [(300.0, 100.0), (50.0, 200.0)]
    best = min(
        max(100 + a * 300 + b * 50, (1 - a) * 100 + (1 - b) * 200)
        for a in np.linspace(0, 1, 201)
        for b in np.linspace(0, 1, 201)
    )
    assert work.cycles(1) == pytest.approx(best, rel=0.01) and work.cycles(4) == work.cycles(1) / 4


def test_attention_takes_both_units():
    """4 heads, 1,024 x 1,024 pairs: products of 32 steps for 64 x 64 scores, and of 1,024 for 64 rows and up to 64
    channels, 2 cycles each; one comparison for each score."""
    module = helper.make_model(helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["y"])], "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4, 1024, 32)) for name in "qkv"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 1024, 32))],
    ), opset_imports=[helper.make_opsetid("", 23)], ir_version=10)  # fmt: skip
    cycles = timed(module, "default")["cycles"]
    fills = 4 * 1024 // 64
    assert cycles["bound_terms"][MATRIX] == fills * (1024 // 64 * 32 + 1024) * 2 // 16
    assert cycles["bound_terms"][VECTOR] == max(cycles["bound_terms"][MATRIX], 4 * 1024 * 1024 // 64 // 16)
    assert cycles["bound_terms"][MATRIX] < cycles["total"]


def test_parts_of_a_product_count_each_and_layers_of_several_pieces_once():
    """A piece with two parts of one product of one name, and another piece that has the first of them, too."""
    part = {"name": "p", "reads": [], "mix": "all", "macs": 64, "matrix": 8}
    pieces = [{"inputs": [], "layers": layers, "outputs": []} for layers in ([part, part], [part])]
    assert [layer.matrix for layer in layers_of(pieces)] == [8, 8]


def test_work_waits_for_weights_that_all_of_its_operand_needs():
    """Three products in a row: the third needs all weights of the first, the second some of them."""
    target = load("default")
    layers = [Layer((None,), "all", ("a",), 16e3, 0, 1), Layer((0,), "all", ("b",), 16e3, 0, 1)]
    layers.append(Layer((1,), "all", ("c",), 160e3, 0, 1))
    sizes = {"a": 4096 * 1000, "b": 4096 * 10, "c": 4096 * 10}
    terms = bound(target, 0, layers, sizes, 0.0).terms
    assert terms[WEIGHTS_FIRST] == ceil(4096 * 1000 / 102) + 10_000 and terms[ROOFLINE] == 0
    grouped = [layers[0], layers[1]._replace(mix="groups"), layers[2]]
    assert bound(target, 0, grouped, sizes, 0.0).terms[WEIGHTS_FIRST] == ceil(1020 * 4096 / 102)


def test_what_does_not_fit_cannot_be_loaded_while_a_layer_is_unfinished():
    target = load("edge")
    layers = [Layer((None,), "all", ("a",), 4e6, 0, 1), Layer((0,), "all", ("b",), 4e6, 0, 1)]
    layers.append(Layer((1,), "all", ("c",), 0, 0, 1))
    sizes = {"a": 0, "b": 0, "c": 3 << 20}
    assert bound(target, 0, layers, sizes, 0.0).terms[NO_ROOM] == 1_000_000 + (2 << 20) // 8


@pytest.mark.slow
@pytest.mark.soak
def test_the_share_of_layers_that_read_nram_is_of_those_that_follow_another():
    report = timed(zoo_model("squeezenet"), "edge", policy="pyramid")
    share = report["nram_operand_share"]
    assert share is not None and 0 <= share <= 1
    assert timed(zoo_model("squeezenet"), "edge", policy="none")["nram_operand_share"] is None
    assert report["sram"]["read_bytes"] > 0 and report["sram"]["write_bytes"] > 0


def lstm(rows):
    """64 steps of 64 numbers for each row of a batch."""
    shapes = {"w": (1, 256, 64), "r": (1, 256, 64)}
    weights = [numpy_helper.from_array(np.full(shape, 0.01, np.float32), name) for name, shape in shapes.items()]
    ends = [("x", (64, rows, 64)), ("y", (64, 1, rows, 64))]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=64)
    graph = helper.make_graph([node], "lstm", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("target", "rows", "step"),
    [
        # a gate is 64 inputs of 2 cycles, for 16 columns at a time: 2,048 cycles of a core, 512 of four
        ("edge", 1, 512 + 2),
        # for 64 columns at a time: 512 cycles of a core, 32 of sixteen; or two latencies of 20
        ("default", 1, 40 + 4),
        # 8 rows are lines of the same passes, and need nothing of each other
        ("default", 8, 32 + 4),
    ],
)
def test_steps_of_a_recurrence_wait_for_each_other(target, rows, step):
    """The first begins with zeros, and needs no product."""
    cycles = timed(lstm(rows), target)["cycles"]
    assert cycles["bound_terms"][STEPS] == 63 * step
    assert cycles["total"] >= cycles["bound"] >= 63 * step
