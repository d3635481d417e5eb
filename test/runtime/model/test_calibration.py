"""--dtype int8 on a floating-point model: ranges, integers, and how exact they are."""

import math
import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context

import frustum
from frustum.dialects import graph as g
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.quantise import QuantiseNetwork, centred_scale, scale_of_range
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.failures import UsageError
from frustum.runtime.host.oracle import random_inputs
from frustum.runtime.model.build import build
from frustum.runtime.model.calibration import (
    CALIBRATION_INPUTS,
    MOST_MACS,
    accuracy_of,
    calibrate,
    ends_of,
    inputs_within,
    joined,
    layer_values,
    macs_of,
    snr_db,
)
from frustum.runtime.model.options import Request
from frustum.runtime.reference.graph import ReferenceExecutor, network_of

ENOUGH_DB = 25


def model():
    """Convolutions (one with hard_swish, one with sigmoid), a gate, a concat, pools, a dense layer, softmax."""
    rng = np.random.default_rng(2)
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 8, 1, 1), "w3": (8, 8, 1, 1), "w4": (10, 16)}
    tensors = [
        numpy_helper.from_array((rng.standard_normal(s) / math.sqrt(math.prod(s[1:]))).astype(np.float32), name)
        for name, s in weights.items()
    ]
    tensors.append(numpy_helper.from_array(rng.standard_normal(8).astype(np.float32), "b"))
    nodes = [
        ("Conv", ["x", "w1", "b"], "c1", {"pads": [1] * 4}), ("Relu", ["c1"], "r1", {}),
        ("Conv", ["r1", "w2"], "c2", {}), ("HardSwish", ["c2"], "h2", {}),
        ("Conv", ["r1", "w3"], "c3", {}), ("Sigmoid", ["c3"], "s3", {}), ("Mul", ["h2", "s3"], "m", {}),
        ("Concat", ["m", "r1"], "k", {"axis": 1}), ("MaxPool", ["k"], "p", {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", ["p"], "a", {}), ("Flatten", ["a"], "f", {}),
        ("Gemm", ["f", "w4"], "l", {"transB": 1}), ("Softmax", ["l"], "y", {}),
    ]  # fmt: skip
    made = [helper.make_node(op, inputs, [out], name=out, **settings) for op, inputs, out, settings in nodes]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(made, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


@pytest.mark.parametrize("method", ["minmax", "percentile"])
def test_layers_become_integers_and_stay_near(method):
    module = import_onnx(model())
    Canonicalize().apply(Context(), module)
    calibrate(module, [random_inputs(module, seed) for seed in range(4)], method)
    reference = module.clone()
    QuantiseNetwork().apply(Context(), module)
    FoldQuantisation().apply(Context(), module)
    Canonicalize().apply(Context(), module)
    module.verify()
    products = [op for op in module.walk() if isinstance(op, g.ConvOp | g.MatmulOp)]
    assert len(products) == 4 and all(g.is_integer(op.results[0]) for op in products)
    assert module.attributes["frustum.dtype"].data == "int8"
    found = accuracy_of(reference, module, random_inputs(module, 77))
    assert {layer["name"] for layer in found["accuracy"]} >= {"c1", "m", "l", "y"}
    assert found["output_snr_db"]["y"] > ENOUGH_DB
    assert min(layer["snr_db"] for layer in found["accuracy"]) > ENOUGH_DB


@pytest.mark.slow
def test_the_machine_computes_what_the_reference_does():
    job = build(Request(model(), dtype="int8", target="edge"))
    assert job.chain.single.program.dtype == "int8"
    inputs = {"x": np.random.default_rng(3).random((1, 3, 12, 12), np.float32)}
    result = frustum.run(job.chain.single, inputs)
    assert result.report["output_snr_db"]["y"] > ENOUGH_DB
    assert {"name", "snr_db"} == set(result.report["accuracy"][0])
    module = import_onnx(model())
    expected = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    assert snr_db(expected, result.outputs["y"]) > ENOUGH_DB


def transformer(*, mask=False):
    """Attention of two heads, with a product before and behind it."""
    rng = np.random.default_rng(4)
    names, shape = ("wq", "wk", "wv", "wo"), (1, 24, 2, 16)
    tensors = [numpy_helper.from_array(rng.standard_normal((32, 32)).astype(np.float32) / 3, name) for name in names]
    tensors += [
        numpy_helper.from_array(np.asarray(shape, np.int64), "heads"),
        numpy_helper.from_array(np.asarray([1, 24, 32], np.int64), "whole"),
        numpy_helper.from_array(np.float32(0.25), "scale"),
        numpy_helper.from_array(rng.standard_normal((24, 24)).astype(np.float32), "mask"),
    ]
    made = [helper.make_node("MatMul", ["x", f"w{n}"], [f"{n}0"]) for n in "qkv"]
    made += [helper.make_node("Reshape", [f"{n}0", "heads"], [f"{n}1"]) for n in "qkv"]
    orders = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
    made += [helper.make_node("Transpose", [f"{n}1"], [n], perm=order) for n, order in orders.items()]
    made += [helper.make_node("MatMul", ["q", "k"], ["s0"]), helper.make_node("Mul", ["s0", "scale"], ["s1"])]
    made += [helper.make_node("Add", ["s1", "mask"], ["s2"])] if mask else []
    made += [
        helper.make_node("Softmax", ["s2" if mask else "s1"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["c"]),
        helper.make_node("Transpose", ["c"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "whole"], ["z"]), helper.make_node("MatMul", ["z", "wo"], ["y"], name="y"),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 24, 32]) for name in "xy"]
    graph = helper.make_graph(made, "net", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


def attention_in(folder):
    """The line of attention of a network that was written there in the device's types."""
    lines = (folder / "01-typed.mlir").read_text().splitlines()
    (found,) = (line for line in lines if "fgraph.attention" in line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", ["edge", "default", "df"])
def test_attention_is_one_of_integers(target, tmp_path):
    inputs = {"x": np.random.default_rng(5).random((1, 24, 32), np.float32)}
    job = build(Request(transformer(), dtype="int8", target=target, no_cache=True, dump_ir=tmp_path))
    found = attention_in(tmp_path)
    assert re.search(r"tensor<1x24x32xi8>\) -> tensor<1x24x32xi8>", found)
    assert re.search(r"scales = \[#fgraph.scale<\S+, \S+>, (#fgraph.scale<\S+, 0>, ){2}#fgraph.scale<", found)
    result = frustum.run(job.chain.single, inputs, checked=True)
    module = import_onnx(transformer())
    expected = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    assert snr_db(expected, result.outputs["y"]) > ENOUGH_DB


@pytest.mark.slow
def test_attention_with_a_mask_stays_one_of_floats(tmp_path):
    build(Request(transformer(mask=True), dtype="int8", target="edge", no_cache=True, dump_ir=tmp_path))
    assert "i8" not in attention_in(tmp_path)


def test_a_mask_of_infinite_numbers_is_none_of_integers():
    rng = np.random.default_rng(6)
    mask = np.where(rng.random((24, 24)) < 0.5, -np.inf, 3 * rng.random((24, 24))).astype(np.float32)
    mask[:, 0] = 0
    numbers = {"a": rng.standard_normal((24, 24)), "mask": mask, "b": rng.standard_normal((24, 8))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["s0"]), helper.make_node("Add", ["s0", "mask"], ["s1"]),
            helper.make_node("Softmax", ["s1"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "b"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 24, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 24, 8])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in numbers.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    job = build(Request(made, dtype="int8", target="edge", no_cache=True))
    inputs = {"x": rng.random((1, 24, 24), np.float32)}
    result = frustum.run(job.chain.single, inputs, checked=True)
    module = import_onnx(made)
    expected = ReferenceExecutor(store_of(module)).run_graph(module, inputs)["y"]
    assert snr_db(expected, result.outputs["y"]) > ENOUGH_DB


def test_a_range_around_zero_has_the_zero_point_zero():
    assert centred_scale(-2.54, 1).zero == 0
    assert centred_scale(-2.54, 1).scale == pytest.approx(0.02)
    assert centred_scale(0, 0).scale == 1


@pytest.mark.slow
def test_given_inputs_give_the_ranges():
    dark = [{"x": np.full((1, 3, 12, 12), 0.25, np.float32)}]
    module = import_onnx(model())
    calibrate(module, dark)
    (ends,) = network_of(module).attributes["frustum.input_ranges"]
    assert tuple(ends.get_values()) == (0.25, 0.25)
    exe = frustum.compile(model(), target="edge", dtype="int8", calibration=dark, calibrate="percentile").executable
    assert exe.manifest["options"]["accuracy"]["output_snr_db"]["y"] > 0


def test_ranges():
    x = np.concatenate([np.linspace(-1, 1, 300_000), [50.0, np.nan]]).astype(np.float32)
    assert ends_of(x, "minmax") == (-1, 50)
    low, high = ends_of(x, "percentile")
    assert (low, high) == (pytest.approx(-1, abs=1e-3), pytest.approx(1, abs=1e-3))
    assert joined([(-1, 2), (-3, 1)], "minmax") == (-3, 2)
    assert joined([(-1, 2), (-3, 1)], "percentile") == (-2, 1.5)


@pytest.mark.parametrize(
    ("ends", "scale", "zero"),
    [((0, 255), 1, -128), ((-255, 0), 1, 127), ((-1, 1.55), 0.01, -28), ((2, 5.1), 0.02, -128)],
)
def test_a_range_is_covered_with_zero_among_it(ends, scale, zero):
    found = scale_of_range(*ends)
    assert found.scale == pytest.approx(scale)
    assert found.zero == zero


def test_an_empty_range_has_a_scale():
    assert scale_of_range(0, 0).scale == 1


def test_snr():
    x = np.ones(10, np.float32)
    assert snr_db(x, x) == 200
    assert snr_db(x, 1.1 * x) == pytest.approx(20, abs=1e-3)
    assert snr_db(0 * x, x) == -200


def test_values_of_layers_are_real_numbers():
    module = import_onnx(model())
    found, _ = layer_values(module, random_inputs(module, 0))
    assert found["r1"].shape == (1, 8, 12, 12)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(model(), calibrate="minmax"), "--calibrate needs --dtype int8 and a floating-point model"),
        (Request(model(), dtype="f16", calibrate="minmax"), "--calibrate needs --dtype int8"),
    ],
)
def test_calibration_of_what_needs_none_is_refused(request_, message):
    with pytest.raises(UsageError, match=message):
        build(request_)


@pytest.mark.slow
def test_the_device_takes_and_gives_integers():
    """DRAM has the device's type everywhere: what the host passes is made integers by the host."""
    executable = frustum.compile(model(), target="edge", dtype="int8").executable
    externals = [e for e in executable.program.externals if e.class_ in ("input", "output")]
    assert {e.name: e.element for e in externals} == {"x": "i8", "y": "f32"}  # soft-max stays in f32
    feeds = {e.name: np.random.default_rng(1).random(e.shape, np.float32) for e in externals if e.class_ == "input"}
    result = frustum.run(executable, feeds)
    assert {array.dtype for array in result.outputs.values()} == {np.dtype(np.float32)}
    dram = result.report["dram"]
    assert dram["input_bytes"] == sum(array.size for array in feeds.values())
    assert dram["output_bytes"] == sum(array.nbytes for array in result.outputs.values())


@pytest.mark.parametrize(
    ("macs", "count"),
    [(0, 8), (1_000_000, 8), (2_500_000_000, 8), (2_600_000_000, 7), (8_300_000_000, 2), (15_000_000_000, 1)],
)
def test_large_networks_are_calibrated_on_fewer_random_inputs(macs, count):
    assert inputs_within(macs) == count
    assert count == 1 or count * macs <= MOST_MACS


def test_work_of_a_network():
    convolutions = 12 * 12 * 8 * (3 * 9 + 8 + 8)
    assert macs_of(import_onnx(model())) == convolutions + 16 * 10


@pytest.mark.parametrize("transposed", [False, True])
def test_work_of_a_matrix_product(transposed):
    shape = (7, 5) if transposed else (5, 7)
    weight = numpy_helper.from_array(np.ones(shape, np.float32), "w")
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=int(transposed))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, size]) for n, size in (("x", 5), ("y", 7)))
    graph = helper.make_graph([node], "net", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    assert macs_of(import_onnx(made)) == 3 * 5 * 7


@pytest.mark.slow
@pytest.mark.soak
def test_the_report_tells_on_how_many_inputs_and_how_long(monkeypatch):
    job = build(Request(model(), dtype="int8", target="edge"))
    assert 0 < job.seconds.calibrate < job.seconds.compile
    assert job.chain.single.manifest["options"]["accuracy"]["calibration_inputs"] == CALIBRATION_INPUTS
    monkeypatch.setattr("frustum.runtime.model.calibration.MOST_MACS", 3 * macs_of(import_onnx(model())))
    few = build(Request(model(), dtype="int8", target="edge"))
    feeds = {"x": np.random.default_rng(3).random((1, 3, 12, 12), np.float32)}
    assert frustum.run(few.chain.single, feeds).report["calibration_inputs"] == 3
    assert build(Request(model(), target="edge")).seconds.calibrate < job.seconds.calibrate / 10


def test_ranges_do_not_depend_on_runs_side_by_side(monkeypatch):
    """As many at once as there are, and one after the other: the same ranges, to the last bit."""
    found = []
    for at_once in (1, 4):
        monkeypatch.setattr("frustum.runtime.model.calibration.RUNS_AT_ONCE", at_once)
        module = import_onnx(model())
        calibrate(module, [random_inputs(module, seed) for seed in range(6)], "percentile")
        found.append(str(network_of(module)))
    assert found[0] == found[1] and "frustum.range" in found[0]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_signal_to_noise_of_large_arrays_is_that_of_the_definition(dtype):
    rng = np.random.default_rng(5)
    x = rng.normal(0, 50, (3, 300, 700)).astype(dtype)
    y = (x + rng.normal(0, 3, x.shape)).astype(dtype)
    signal, noise = np.square(x.astype(np.float64)).sum(), np.square(x.astype(np.float64) - y).sum()
    assert snr_db(x, y) == pytest.approx(10 * math.log10(signal / noise))


def test_signal_to_noise_beside_infinite_numbers():
    expected, found = np.array([1, -np.inf, 2], np.float32), np.array([1.1, -np.inf, 2], np.float32)
    assert snr_db(expected, found) == pytest.approx(snr_db(expected[::2], found[::2]))
    assert snr_db(expected, expected) == 200
    for odd in (0, np.inf):
        assert snr_db(expected, np.array([1, odd, 2], np.float32)) == -200
        assert snr_db(np.array([1, odd, 2], np.float32), expected) == -200


def test_what_is_no_number_is_outside_the_range():
    for odd in (np.nan, np.inf, -np.inf):
        assert ends_of(np.array([1, odd, -3], np.float32), "minmax") == (-3, 1)
    assert ends_of(np.array([np.nan], np.float32), "minmax") == ends_of(np.array([], np.float32), "minmax") == (0, 0)
