"""`--compress-weights` and `--weights`: the same outputs, what the report says of them, and where they are refused."""

import json

import numpy as np
import onnx_models
import pytest

import frustum
from frustum.runtime.failures import UsageError
from frustum.runtime.report.report import weights_held
from frustum.runtime.report.terminal import render
from frustum.runtime.tools.cli import main

pytestmark = pytest.mark.slow

SQUEEZENET = ("zoo:squeezenet", "default", "f16")


MOST_RATIO = 0.865
"""DRAM bytes of SqueezeNet in f16 with the defaults, to those with weights as they are: 0.8615 with plans for time,
which may move hardly more than the fewest (0.86 and less with plans for bytes)."""


@pytest.fixture(scope="module")
def ways():
    raw = {"compress_weights": "none"}
    options = (raw, {"compress_weights": "huffman"}, raw | {"weights": "shared"})
    executables = [frustum.compile(*SQUEEZENET, **each).executable for each in options]
    (name,) = (e.name for e in executables[0].program.externals if e.class_ == "input")
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    return [frustum.run(executable, {name: image}, mode="functional") for executable in executables]


@pytest.mark.soak
def test_outputs_are_the_same(ways):
    """To the bit where units are cut alike; compressed weights leave room for other units, which add up in another
    order in f16 (the same bits for the same units: test/pipeline/test_compressed_weights.py)."""
    plain, compressed, shared = ways
    for name, array in plain.outputs.items():
        np.testing.assert_array_equal(shared.outputs[name], array)
        np.testing.assert_allclose(compressed.outputs[name], array, rtol=0, atol=5e-3 * np.abs(array).max())


@pytest.mark.soak
def test_the_report_says_what_moved_and_what_there_is(ways):
    plain, compressed, shared = (way.report for way in ways)
    assert "weights" not in plain
    said = compressed["weights"]
    assert said["codec"] == "huffman" and said["shared_tensors"] == 0 < said["compressed_tensors"]
    assert said["raw_bytes"] == plain["dram"]["weight_bytes"] and said["stored_bytes"] < 0.9 * said["raw_bytes"]
    assert compressed["dram"]["weight_bytes"] == said["stored_bytes"]
    assert {r["dram"]["compulsory_bytes"] for r in (plain, compressed, shared)} == {plain["dram"]["compulsory_bytes"]}
    assert shared["weights"]["codec"] == "none" and shared["weights"]["shared_tensors"] > 0
    assert " MiB of weights take " in render(compressed) and "(huffman: " in render(compressed)
    assert " shared)" in render(shared) and "of weights take" not in render(plain)


def test_by_default_weights_are_compressed_where_that_is_better(ways):
    """In fewer bytes and no more cycles; the ratio to raw bytes falls below 1, that to what is stored does not."""
    plain, default = ways[0].report, frustum.run(frustum.compile(*SQUEEZENET), {}, mode="timing").report
    before = frustum.run(frustum.compile(*SQUEEZENET, compress_weights="none"), {}, mode="timing").report
    assert default["dram"]["total_bytes"] <= MOST_RATIO * plain["dram"]["total_bytes"]
    assert default["cycles"]["total"] <= before["cycles"]["total"]
    assert default["weights"]["codec"] == "auto"
    for memory, peak in default["peak_bytes"].items():
        assert peak <= before["peak_bytes"][memory]
    dram, raw = default["dram"], plain["dram"]
    saved = default["weights"]["raw_bytes"] - default["weights"]["stored_bytes"]
    assert dram["compulsory_bytes"] == raw["compulsory_bytes"] == raw["compressed_compulsory_bytes"]
    assert dram["compressed_compulsory_bytes"] <= dram["compulsory_bytes"] - saved  # the least form is a bound
    moved = dram["total_bytes"] - dram["other_bytes"]
    assert dram["ratio"] == moved / dram["compulsory_bytes"] < 1
    assert dram["ratio_to_compressed"] == moved / dram["compressed_compulsory_bytes"] >= 1
    assert raw["ratio"] == raw["ratio_to_compressed"] >= 1
    assert default["cycles"]["roofline"] < before["cycles"]["roofline"]
    told, of_plain = (" ".join(render(each).split()) for each in (default, plain))
    assert " with each weight in its smallest form" in told and " with each weight in its smallest form" not in of_plain


def test_the_reference_to_beat_has_weights_as_they_are():
    x = {"x": onnx_models.image()}
    compiled = frustum.compile(onnx_models.network(), "edge", policy="none").executable
    assert "weights" not in frustum.run(compiled, x).report
    assert compiled.manifest["options"]["compress_weights"] == "none"
    asked = frustum.compile(onnx_models.network(), "edge", policy="none", compress_weights="huffman").executable
    assert asked.manifest["options"]["compress_weights"] == "huffman"


def test_several_executables_are_summed():
    one = {"codec": "zero", "raw_bytes": 10, "stored_bytes": 6, "compressed_tensors": 1, "raw_loads": {"a": 1}}
    two = one | {"shared_tensors": 2, "packed_tensors": 4, "raw_loads": {"a": 1, "b": 3}, "expanded_loads": {"c": 2}}
    total = {"codec": "zero", "raw_bytes": 20, "stored_bytes": 12, "compressed_tensors": 2, "shared_tensors": 2}
    total |= {"packed_tensors": 4, "expanded_loads": {"c": 2}}
    manifests = [{"options": {"weights": each}} for each in (one, two)]
    assert weights_held([*manifests, {"options": {}}]) == {"weights": total | {"raw_loads": {"a": 2, "b": 3}}}
    assert weights_held([{"options": {}}]) == {}


def test_the_command_line_reaches_the_report(tmp_path, capsys):
    report = tmp_path / "report.json"
    command = ["run", "zoo:squeezenet", "--dtype", "bf16", "--mode", "timing", "--report", str(report)]
    assert main([*command, "-v", "--compress-weights", "auto"]) == 0
    assert json.loads(report.read_text())["weights"]["codec"] == "auto"
    assert "of weights take" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "value"), [("compress_weights", "gzip"), ("weights", "lost")])
def test_unknown_ways_are_refused(option, value):
    with pytest.raises(UsageError, match=f"{option} '{value}' is none of"):
        frustum.compile(*SQUEEZENET, **{option: value})


def test_what_is_lowered_or_compiled_is_past_it(tmp_path, capsys):
    command = ["compile", "zoo:squeezenet", "-o", str(tmp_path / "out"), "--dump-ir", str(tmp_path / "ir")]
    assert main(command) == 0
    stage = str(tmp_path / "ir" / "05-lowered.mlir")
    assert main(["run", stage, "--weights", "shared"]) == 2
    assert "--weights shared has no effect at stop 'lowered'" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "out"), "--compress-weights", "zero"]) == 2
    assert "is compiled already: --compress-weights has no effect" in capsys.readouterr().err
    pipeline = ["--pipeline", "frustum-graph-canonicalize"]
    assert main(["run", "zoo:squeezenet", *pipeline, "--compress-weights", "zero"]) == 2
    assert "--compress-weights is of the default pipeline" in capsys.readouterr().err


@pytest.mark.parametrize("compress", ["zero", "huffman", "auto"])
def test_small_weights_whose_slots_are_columns_are_compressed(compress):
    """A slot of a matrix's column is a strided view, which has no bytes of its own."""
    x = {"x": onnx_models.image()}
    plain = frustum.run(frustum.compile(onnx_models.network(), "edge"), x)
    found = frustum.run(frustum.compile(onnx_models.network(), "edge", compress_weights=compress), x)
    assert found.outputs["y"].tobytes() == plain.outputs["y"].tobytes()
