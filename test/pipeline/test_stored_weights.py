"""Weights that a model dequantises stay integers up to the cores: numbers of onnxruntime, bytes of the file."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import stored_models as models
from stored_models import Graph, llama_block, product

import frustum
from frustum.runtime.tools.cli import main

SOME_BYTES = 1.02
"""Times what the file has of a block of a language model."""


def onnxruntime(model, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feeds)[0]


def run(graph, x, target="edge", dtype=None, **options):
    """Outputs in checked mode, and the report."""
    compiled = frustum.compile(graph.model(), target, dtype, **options)
    done = frustum.run(compiled, {"x": x}, mode="functional", checked=True)
    return next(iter(done.outputs.values())), done.report


def agree(graph, target="edge", packed=1, **options):
    """Against onnxruntime, all weights packed; the report."""
    shape = [each.dim_value for each in graph.inputs[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(graph.dtype)
    wanted, (found, report) = onnxruntime(graph.model(), {"x": x}), run(graph, x, target, **options)
    near = {np.float32: 2e-6, np.float16: 2e-3}[graph.dtype]
    np.testing.assert_allclose(found.astype(float), wanted, atol=near * np.abs(wanted).max(), rtol=near)
    assert report["weights"]["packed_tensors"] == packed, report["weights"]
    assert not report["weights"]["expanded_loads"]
    return report


# --- the numbers themselves --------------------------------------------------------------------------------

FORMS = {
    "blocks": {"block": 16}, "blocks of columns": {"axis": 1, "block": 16}, "channels": {"axis": 1},
    "rows": {"axis": 0}, "one": {"per": "tensor"},
}  # fmt: skip
FEW = [("int4", "blocks", False, "f32"), ("uint4", "blocks", True, "f16"), ("uint8", "channels", True, "f32")]
MANY = [  # integers of 16 bits are smaller than numbers of 32
    (kind, form, zeros, "f32" if "16" in kind else ("f32", "f16")[(number + nth + zeros) % 2])
    for number, kind in enumerate(models.INTEGERS) for nth, form in enumerate(FORMS) for zeros in (False, True)
]  # fmt: skip


def exact(kind, form, zeros, element, target="edge", k=40, n=37, dtype=None):
    """Of the identity the product is the weights: every bit is that of onnxruntime."""
    graph = product(kind, k, k, n, element=element, zeros=zeros, seed=3, **FORMS[form])
    x = np.eye(k, dtype=graph.dtype)
    found, report = run(graph, x, target, dtype)
    wanted = onnxruntime(graph.model(), {"x": x})
    np.testing.assert_array_equal(found, wanted if dtype is None else wanted.astype(np.float16).astype(np.float32))
    assert report["weights"]["packed_tensors"] == 1


@pytest.mark.parametrize("kind, form, zeros, element", FEW)
def test_weights_are_those_of_onnxruntime(kind, form, zeros, element):
    exact(kind, form, zeros, element)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("number", range(len(MANY)))
def test_weights_of_all_kinds_are_those_of_onnxruntime(number):
    exact(*MANY[number], target=("edge", "default")[number % 3 == 0])


def test_on_a_device_of_16_bits_numbers_of_32_are_rounded_once():
    exact("int8", "blocks", True, "f32", dtype="f16")


# --- layers ------------------------------------------------------------------------------------------------


def conv(kind, element="f32", block=0, axis=0, zeros=False):
    graph = Graph(element)
    x = graph.input("x", 1, 40, 9, 9)
    weights = graph.weight(kind, (24, 40, 3, 3), axis=axis, block=block, zeros=zeros)
    graph.output(graph.op("Conv", x, weights, pads=[1] * 4), 1, 24, 9, 9)
    return graph


def gemm(kind, **how):
    graph = Graph()
    x = graph.input("x", 3, 70)
    graph.output(graph.op("Gemm", x, graph.weight(kind, (33, 70), **how), graph.vector(33), transB=1), 3, 33)
    return graph


def turned(kind):
    """A transposed constant."""
    graph = Graph()
    weights = graph.op("Transpose", graph.weight(kind, (72, 100), axis=1, block=32), perm=[1, 0])
    graph.output(graph.op("MatMul", graph.input("x", 8, 100), weights), 8, 72)
    return graph


def scaled(kind):
    """With constants that would be folded into weights of numbers."""
    graph = Graph()
    x = graph.op("Mul", graph.input("x", 8, 64), graph.vector(64))
    y = graph.op("MatMul", x, graph.weight(kind, (64, 48), axis=0, block=16))
    graph.output(graph.op("Mul", y, graph.vector(48)), 8, 48)
    return graph


def twice(kind):
    """Two layers with the same weights."""
    graph = Graph()
    x, weights = graph.input("x", 8, 64), graph.weight(kind, (64, 64), axis=0, block=16)
    graph.output(graph.op("MatMul", graph.op("Relu", graph.op("MatMul", x, weights)), weights), 8, 64)
    return graph


def factor(kind):
    """A map of constants that the vector unit reads."""
    graph = Graph()
    graph.output(graph.op("Mul", graph.input("x", 1, 64, 32), graph.weight(kind, (64, 32), axis=0)), 1, 64, 32)
    return graph


def quantized(kind):
    """A product of integers: activations of 8 bits."""
    graph = Graph()

    def steps(y, scale):
        scales = [graph.constant(np.array(scale, np.float32)), graph.constant(np.array(0, np.int8))]
        return graph.op("DequantizeLinear", graph.op("QuantizeLinear", y, *scales), *scales)

    y = graph.op("MatMul", steps(graph.input("x", 8, 64), 0.03), graph.weight(kind, (64, 48), axis=1))
    graph.output(steps(y, 0.02), 8, 48)
    return graph


def test_products_of_integers_have_them_too():
    graph, x = quantized("int4"), np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    wanted, (found, report) = onnxruntime(graph.model(), {"x": x}), run(graph, x)
    np.testing.assert_allclose(found, wanted, atol=0.0201)
    assert np.mean(found == wanted) > 0.98
    assert report["weights"]["packed_tensors"] == 1
    assert 64 * 48 // 2 + 48 * 4 < report["dram"]["weight_bytes"] < 64 * 48 * 0.7


LAYERS = {
    "conv by channels": lambda: conv("int8", zeros=True), "conv in blocks": lambda: conv("int4", axis=1, block=16),
    "conv f16": lambda: conv("uint8", "f16"), "gemm in blocks": lambda: gemm("int4", axis=1, block=32),
    "gemm by channels": lambda: gemm("uint8", axis=0, zeros=True), "turned": lambda: turned("int4"),
    "scaled": lambda: scaled("int4"), "twice": lambda: twice("uint4"), "factor": lambda: factor("int8"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv in blocks", "twice", "factor"])
def test_layers_on_one_core(name):
    agree(LAYERS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("target", ["default", "manycore"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_on_several_clusters(name, target):
    agree(LAYERS[name](), target)


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("options", [
    {"weights": "shared"}, {"compress_weights": "huffman"}, {"compress_weights": "zero"}, {"policy": "none"},
    {"order": "row-major"}, {"borders": "exchange"},
])  # fmt: skip
def test_options(options):
    agree(product("uint4", 4, 128, 96, block=32, zeros=True), "default", **options)
    agree(llama_block(rows=4, d=64, ff=176, heads=2), "default", packed=7, **options)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("target", ["edge", "default"])
def test_more_inputs_than_sram_holds(target):
    graph = product("int4", 1, 12000, 512, block=32)
    report = agree(graph, target)
    assert report["dram"]["weight_bytes"] <= SOME_BYTES * graph.stored_bytes


def test_constants_that_are_made_anew_are_counted_by_the_reason():
    graph = Graph()
    weights = graph.weight("int8", (16, 16, 3, 3))
    y = graph.op("ConvTranspose", graph.input("x", 1, 16, 8, 8), weights, strides=[2, 2], pads=[1] * 4)
    graph.output(y, 1, 16, 15, 15)
    x = np.ones((1, 16, 8, 8), np.float32)
    found, report = run(graph, x, compress_weights="none")
    np.testing.assert_allclose(found, onnxruntime(graph.model(), {"x": x}), atol=1e-5)
    assert report["weights"]["expanded_loads"] == {"are made anew by ConvTranspose": 4}
    assert report["weights"]["packed_tensors"] == 0


# --- bytes and time ----------------------------------------------------------------------------------------


def moved(graph, rows, d, target, **options):
    """Bytes at the port but for code and tables, and those that the file and the interface have."""
    report = frustum.run(frustum.compile(graph.model(), target, None, **options), mode="timing").report
    dram, size = report["dram"], np.dtype(graph.dtype).itemsize
    assert dram["weight_bytes"] == report["weights"]["stored_bytes"]
    return dram["total_bytes"] - dram["other_bytes"], graph.stored_bytes + 2 * rows * d * size


@pytest.mark.parametrize("target", ["edge", "default"])
def test_a_product_moves_what_the_file_has(target):
    own, file = moved(product("int4", 1, 512, 512, block=32, element="f16"), 1, 512, target, compress_weights="none")
    assert file <= own <= SOME_BYTES * file


@pytest.mark.slow
@pytest.mark.soak(but=4)
@pytest.mark.parametrize("target", ["edge", "default"])
@pytest.mark.parametrize("rows, element, kind, zeros", [
    (16, "f16", "int4", False), (1, "f16", "uint4", True), (1, "f32", "int4", False), (16, "f32", "uint4", True),
])  # fmt: skip
def test_a_block_of_a_language_model_moves_what_the_file_has(target, rows, element, kind, zeros):
    own, file = moved(llama_block(kind, rows, element=element, zeros=zeros), rows, 256, target)
    assert file <= own <= SOME_BYTES * file


def test_a_copy_takes_stored_bytes_at_its_source_and_expanded_ones_at_its_target():
    """Cycles and energy of the same product with numbers and with integers: what differs is what moves."""
    reports = {}
    for kind in ("int8", "f16"):
        graph = Graph("f16")
        x = graph.input("x", 1, 512)
        weights = graph.weight(kind, (512, 256), per="tensor") if kind == "int8" else graph.vector(512, 256)
        graph.output(graph.op("MatMul", x, weights), 1, 256)
        compiled = frustum.compile(graph.model(), "edge", compress_weights="none")
        reports[kind] = frustum.run(compiled, mode="timing").report
    stored, raw = (reports[kind]["dram"]["weight_bytes"] for kind in ("int8", "f16"))
    assert stored <= SOME_BYTES * raw / 2
    assert reports["int8"]["cycles"]["total"] < reports["f16"]["cycles"]["total"]
    energy = {kind: report["energy_pj"] for kind, report in reports.items()}
    assert energy["int8"]["dram"] < 0.6 * energy["f16"]["dram"] and energy["int8"]["sram"] < energy["f16"]["sram"]
    assert energy["int8"]["wram"] == energy["f16"]["wram"]


def test_the_listing_and_the_file_know_them(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    onnx.save(product("int4", 2, 64, 48, block=16).model(), path)
    out = tmp_path / "compiled"
    assert main(["compile", str(path), "-o", str(out), "--target", "edge"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(out), "--disassemble"]) == 0
    assert "expand" in capsys.readouterr().out
    assert main(["run", str(out), "--mode", "timing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"]["packed_tensors"] == 1
