"""What a report calls a bound is one, in default runs and for every way to compile; ratios are those of their figures.

Quick on 100 random graphs; slow on the nine networks of the zoo, and on blocks, causes and models that are not part of
the repository.
"""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from own_count import own_count
from random_onnx import random_onnx

import frustum
from frustum.backend.pipeline import STOPS, Choices, Run
from frustum.backend.targets import load
from frustum.dialects.graph import networks_of
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.analysis.least_work import least_work
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.zoo import zoo_model

OTHERS = Path(os.environ.get("FRUSTUM_SHARED", Path(__file__).resolve().parents[3] / "shared"))
"""Where blocks and models lie that others give us."""
ZOO = (
    "squeezenet", "shufflenet", "inception_v1", "densenet121", "resnet50", "inception_v2", "alexnet", "zfnet512",
    "vgg19",
)  # fmt: skip
WAYS = (
    {"policy": "none"}, {"policy": "pyramid"}, {"optimise": "bytes"}, {"borders": "exchange"}, {"split": "outputs"},
    {"order": "row-major"}, {"weights": "shared"}, {"compress_weights": "huffman"}, {"carry": "f32"},
)  # fmt: skip
OPEN = {"ppocr-v3-det": {"shapes": {"x": (1, 3, 160, 160)}}, "mixed-ops-dynamic-batch": {"batch": 1}}
"""Models with open dimensions."""
OF_INTEGERS = ("micro-kws-qdq", "micro-kws-qoperator", "dory-dronet-int")
"""Models that the own count does not know the types of."""
SIZE = re.compile(r"(?<![\w.,])([\d,]+(?:\.\d+)?) (B|KiB|MiB|GiB)\b")
QUOTIENT = re.compile(
    r"([\d,.]+) (\w+)(?: without code and tables)?(?: are)?,? ([\d.]+) times the (?:\w+ )*([\d,.]+) (\w+)"
)
UNITS = {"sizes": SIZE, "energies": re.compile(r"[\d.]+ ([mun]?J)\b")}


def bounds(report):
    """All that depends on network, types and machine alone."""
    dram, cycles = report["dram"], report["cycles"] or {}
    keys = ("compulsory_bytes", "compressed_compulsory_bytes", "bound_bytes", "bound_by")
    return {key: dram[key] for key in keys} | {key: cycles.get(key) for key in ("roofline", "bound", "bound_terms")}


def check_figures(report):
    """Invariants of any report."""
    dram, cycles, macs = report["dram"], report["cycles"], report["macs"]
    moved = dram["total_bytes"] - dram["other_bytes"]
    assert moved >= dram["bound_bytes"] >= dram["compressed_compulsory_bytes"], dram["bound_by"]
    assert dram["compulsory_bytes"] >= dram["compressed_compulsory_bytes"]
    assert macs["executed"] >= macs["useful"]
    if dram["compulsory_bytes"]:
        assert dram["ratio"] == moved / dram["compulsory_bytes"]
        assert dram["total_ratio"] == dram["total_bytes"] / dram["compulsory_bytes"]
        assert dram["ratio_to_compressed"] == moved / dram["compressed_compulsory_bytes"] >= 1
    if cycles is not None:
        assert cycles["total"] >= cycles["bound"] >= math.floor(cycles["roofline"]), cycles["bound_by"]
        assert cycles["bound"] == max(cycles["bound_terms"].values())
    for text in (report.text(), report.text(verbose=True)):
        check_text(text)


def check_text(text):
    """A line has one prefix of sizes, and of energies; "A, r times B" says what A / B is."""
    for line in text.splitlines():
        for pattern in UNITS.values():
            assert len({found if isinstance(found, str) else found[-1] for found in pattern.findall(line)}) <= 1, line
        for left, unit, times, right, other in QUOTIENT.findall(line):
            assert unit == other, line
            numbers = [float(each.replace(",", "")) for each in (left, right)]
            slack = [10.0 ** -len(each.partition(".")[2]) for each in (left, right)]
            low, high = ((numbers[0] + s * slack[0]) / (numbers[1] - s * slack[1]) for s in (-0.5, 0.5))
            assert low - 0.0006 <= float(times) <= high + 0.0006, line


def timed(model, target="edge", **way):
    return frustum.run(frustum.compile(model, target, **way), {}, mode="timing").report


def check_bounds(model, target, ways, **always):
    """The bounds of a default run are those of every other way, and no way is below them."""
    first = timed(model, target, **always)
    if first["dram"]["bound_bytes"] is None:
        assert not first["subgraphs"], "a piece on the device tells of no bound"
        return None
    check_figures(first)
    for way in ways:
        try:
            other = timed(model, target, **{**always, **way})
        except (DoesNotFit, Unsupported):
            continue
        check_figures(other)
        assert bounds(other) == bounds(first), way
    return first


@pytest.mark.slow
@pytest.mark.parametrize("group", range(20))
def test_bounds_of_random_graphs_hold_and_are_those_of_the_graph(group):
    """Of five graphs each, the first of which is compiled in another way, too."""
    for seed in range(5 * group, 5 * group + 5):
        check_bounds(random_onnx(seed, blocks=2).model, "edge", [WAYS[group % len(WAYS)]] if seed == 5 * group else [])


def compulsory_of(model, dtype="f16", target="edge"):
    """Of the network as it is before it is planned."""
    module = import_onnx(model)
    module.attributes[TARGET] = to_attribute(load(target))
    Run().advance(module, STOPS[1:2], Choices(dtype=dtype))
    (network,) = networks_of(module)
    facts = least_work(network, load(target))
    maps = sum(facts["input_needed_bytes"]) + sum(facts["output_bytes"].values())
    return maps + sum(raw for raw, *_ in facts["weights"].values())


def others(folder):
    """Networks in a folder; pytest skips where there are none."""
    return [pytest.param(path, id=path.stem) for path in sorted((OTHERS / folder).glob("*.onnx"))]


def scripts():
    """The scripts that write these networks."""
    if str(OTHERS / "bench") not in sys.path:
        sys.path.insert(0, str(OTHERS / "bench"))
    import make_blocks
    import make_causes

    return make_blocks, make_causes


CAUSES = list(scripts()[1].CASES) if (OTHERS / "bench").is_dir() else []


def block(path):
    return scripts()[0].fill(path)


def cause(name, folder):
    scripts()[1].save(folder, name)
    return onnx.load(next(folder.glob(f"{name}*.onnx")))


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("name", ZOO)
def test_compulsory_bytes_of_networks_are_those_of_the_file(name):
    model = zoo_model(name)
    assert compulsory_of(model) == pytest.approx(own_count(model, 2), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_bounds_of_networks_hold(name):
    report = check_bounds(f"zoo:{name}", "default", [], dtype="f16")
    model = zoo_model(name)
    assert report["dram"]["compulsory_bytes"] == compulsory_of(model, target="default")
    assert report["dram"]["compulsory_bytes"] == pytest.approx(own_count(model, 2), rel=1e-3)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", ZOO)
def test_bounds_of_networks_are_those_of_the_graph(name):
    check_bounds(f"zoo:{name}", "default", [{"policy": "pyramid"}], dtype="f16")


@pytest.mark.slow
@pytest.mark.parametrize("path", others("bench/blocks"))
def test_bounds_of_blocks_hold(path):
    check_bounds_of(block(path), [])


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("path", others("bench/blocks"))
def test_bounds_of_blocks_are_those_of_the_graph(path):
    check_bounds_of(block(path), [{"policy": "none"}])


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_bounds_of_causes_hold(name, tmp_path):
    check_bounds_of(cause(name, tmp_path), [{"policy": "none"}])


def check_bounds_of(model, ways):
    assert compulsory_of(model) == pytest.approx(own_count(model, 2), rel=1e-2)
    check_bounds(model, "edge", ways, dtype="f16")


@pytest.mark.slow
@pytest.mark.parametrize("path", others("models"))
def test_bounds_of_models_hold(path):
    check_bounds(path, "default", [], **OPEN.get(path.stem, {}))
    if path.stem not in (*OPEN, *OF_INTEGERS):
        model = onnx.load(path)
        assert compulsory_of(model) == pytest.approx(own_count(model, 2), rel=1e-2)


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("path", others("models"))
def test_bounds_of_models_are_those_of_the_graph(path):
    check_bounds(path, "default", [{"policy": "none"}], **OPEN.get(path.stem, {}))


def test_a_text_whose_quotient_is_wrong_is_found():
    check_text("DRAM  1.684 MiB, 0.896 times the compulsory 1.880 MiB")
    for line in ("DRAM  1.684 MiB, 0.586 times the compulsory 1.880 MiB", "10.99 KiB of 12,345 B"):
        with pytest.raises(AssertionError):
            check_text(line)


@pytest.mark.slow
def test_weights_in_chunks_count_once_and_nothing_else_is_carried(tmp_path):
    """A hidden map in chunks: the whole constants are in no program."""
    rng = np.random.default_rng(0)
    d, hidden, rows = 320, 1280, 256
    arrays = {"a": rng.standard_normal((d, hidden)) * d**-0.5, "c": rng.standard_normal((hidden, d)) * hidden**-0.5}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "a"], ["p"]), onnx.helper.make_node("Relu", ["p"], ["r"]),
        onnx.helper.make_node("MatMul", ["r", "c"], ["y"]),
    ]  # fmt: skip
    ends = [onnx.helper.make_tensor_value_info(name, 1, (1, rows, d)) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    compiled = frustum.compile(model, "edge", "f16", policy="optimal", compress_weights="none")
    dram = frustum.run(compiled, {}, mode="timing").report["dram"]
    assert dram["compulsory_bytes"] == own_count(model, 2) == 2 * (2 * rows * d + 2 * d * hidden)
    held = [each.bytes for made in compiled.chain.executables for each in made.program.externals_of("weight")]
    assert len(held) > 2, "this network is planned in chunks"
    assert sum(held) == 2 * 2 * d * hidden <= dram["weight_bytes"]


@pytest.mark.slow
def test_a_network_that_is_cut_has_the_bounds_of_the_whole():
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        onnx.helper.make_node("Conv", ["a", "v"], ["b"], pads=[1] * 4),
    ]
    shapes = {"w": (8, 3, 3, 3), "v": (4, 8, 3, 3)}
    weights = [onnx.numpy_helper.from_array(rng.standard_normal(s, np.float32), name) for name, s in shapes.items()]
    ends = [onnx.helper.make_tensor_value_info(n, 1, (1, c, 12, 12)) for n, c in (("x", 3), ("a", 8), ("b", 4))]
    graph = onnx.helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    whole, cut = (timed(model, **way) for way in ({"split": "never"}, {"split": "outputs"}))
    assert [len(each["subgraphs"]) for each in (whole, cut)] == [1, 2]
    assert bounds(whole) == bounds(cut)
    check_figures(cut)
