"""Models in pieces from end to end: command line, folder, chips, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from chains import branching
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from onnx import TensorProto, helper, numpy_helper
from stops import run_module, target

import frustum
from frustum.backend.file.executable import build_executable
from frustum.dialects import graph
from frustum.dialects.isa import program as p
from frustum.runtime.device.memory import AccessError
from frustum.runtime.failures import UsageError
from frustum.runtime.model.chain import Chain
from frustum.runtime.tools import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LAYERS = 6
CUT = ("--split", "outputs")


def model(outputs=(1, 3), size=12, passed=False):
    """Convolutions in a row, some of which are outputs too; with `passed` the input is an output as well."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    name = "x"
    for number in range(LAYERS):
        weight = rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(
            helper.make_node("Conv", [name, f"w{number}"], [f"v{number}"], pads=[1] * 4, name=f"Conv_{number}")
        )
        name = f"v{number}"
    shape = [1, 4, size, size]
    names = [*(f"v{number}" for number in outputs), name]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in names]
    if passed:
        values.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, shape))
        nodes.append(helper.make_node("Identity", ["x"], ["again"], name="Pass"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "net", inputs, values, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def file(tmp_path):
    onnx.save(model(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def inputs(size=12):
    return {"x": np.random.default_rng(1).standard_normal((1, 4, size, size)).astype(np.float32)}


def same(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        atol = tolerance * max(np.abs(np.asarray(array, np.float32)).max(initial=0), 1e-30)
        np.testing.assert_allclose(found[name], array, rtol=0, atol=atol, err_msg=name)


def test_a_multi_output_model_is_a_chain_that_gives_the_same():
    whole = frustum.run(frustum.compile(model(), "edge", policy="optimal", split="never"), inputs())
    chain = frustum.compile(model(), "edge", policy="optimal", split="outputs").chain
    assert isinstance(chain, Chain) and [piece.name for piece in chain.pieces] == ["model_0", "model_1", "model_2"]
    found = frustum.run(chain, inputs())
    same(found.outputs, whole.outputs)
    assert list(found.outputs) == ["v1", "v3", "v5"]
    report = found.report
    assert [each["chip"] for each in report["subgraphs"]] == [0, 0, 0]
    assert report["cycles"]["total"] == sum(each["cycles"] for each in report["subgraphs"])
    assert report["dram"]["compulsory_bytes"] == whole.report["dram"]["compulsory_bytes"]
    assert report["macs"] == whole.report["macs"]
    assert report["unsplit_peak_bytes"] == whole.report["peak_bytes"]
    for memory, peak in report["peak_bytes"].items():
        assert peak <= whole.report["peak_bytes"][memory]


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["f16", "bf16", "int8"])
def test_every_type_gives_the_same_in_pieces(dtype):
    """bf16 and integers are rounded at the same places, wherever the network is cut."""
    whole = frustum.run(frustum.compile(model(), "default", dtype, split="never"), inputs())
    found = frustum.run(frustum.compile(model(), "default", dtype, split="outputs"), inputs(), checked=True)
    assert len(found.report["subgraphs"]) == 3
    same(found.outputs, whole.outputs, {"f16": 4 * 2**-10, "bf16": 4 * 2**-7, "int8": 0}[dtype])


def test_units_of_pieces_have_names_of_their_own():
    report = frustum.run(frustum.compile(model(), "edge", policy="none", split="outputs"), inputs()).report
    names = [unit["name"] for unit in report["units"]]
    assert len(set(names)) == len(names) == LAYERS and names[0] == "model_0.u0"
    assert {layer["unit"] for layer in report["layers"]} == set(names)


def test_outputs_that_are_read_back_are_intermediate():
    """Written once as outputs, read by the next piece: nothing else is an output or an input."""
    size = 4 * 4 * 12 * 12
    dram = frustum.run(frustum.compile(model(), "edge", policy="none", split="outputs"), inputs()).report["dram"]
    assert dram["input_bytes"] == size and dram["output_bytes"] == 3 * size
    parts = ("weight", "input", "output", "intermediate", "other")
    assert sum(dram[f"{part}_bytes"] for part in parts) == dram["total_bytes"]
    assert dram["total_bytes"] == dram["read_bytes"] + dram["write_bytes"]


def test_outputs_are_handed_out_as_soon_as_their_piece_has_run():
    handed = []
    chain = frustum.compile(model(), "edge", split="outputs").chain
    found = frustum.run(chain, inputs(), on_output=lambda name, array: handed.append((name, array.copy())))
    assert [name for name, _ in handed] == ["v1", "v3", "v5"]
    same(dict(handed), found.outputs, 0)


def test_the_schedule_says_when_an_output_is_there():
    found = frustum.run(frustum.compile(model(), "manycore", placement="each", split="outputs"), inputs()).report
    first, second, third = found["subgraphs"]
    assert [each["outputs"] for each in found["subgraphs"]] == [["v1"], ["v3"], ["v5"]]
    assert first["start_cycle"] == 0 and first["stop_cycle"] == first["cycles"]
    assert second["start_cycle"] > first["stop_cycle"] and third["stop_cycle"] == found["cycles"]["total"]
    assert all(each["stop_cycle"] - each["start_cycle"] == each["cycles"] for each in found["subgraphs"])


def test_the_check_tells_of_every_output(file, tmp_path, capsys):
    report = tmp_path / "report.json"
    assert cli.main(["run", str(file), *CUT, "--target", "edge", "--check", "-v", "--report", str(report)]) == 0
    check = json.loads(report.read_text())["check"]
    assert list(check["outputs"]) == ["v1", "v3", "v5"]
    assert check["max_rel_error"] == max(each["max_rel_error"] for each in check["outputs"].values())
    assert "3 outputs compared, the worst is v" in capsys.readouterr().out


def test_integers_tell_how_exact_they_are_in_every_piece():
    """With the host in between, each piece is calibrated for itself: the report has the layers of both."""
    made = model(outputs=())
    graph = made.graph
    graph.node.insert(3, helper.make_node("Hardmax", ["v2"], ["h"], axis=1, name="Host"))
    graph.node[4].input[0] = "h"
    chain = frustum.compile(made, "edge", "int8").chain
    assert [piece.kind for piece in chain.pieces] == ["device", "host", "device"]
    report = frustum.run(chain, inputs()).report
    assert {layer["name"] for layer in report["accuracy"]} >= {f"Conv_{number}" for number in range(LAYERS)}
    assert set(report["output_snr_db"]) == {"v2", "v5"} and report["calibration_inputs"] == 8


def test_modes_count_the_same():
    chain = frustum.compile(model(), "manycore", placement="each", split="outputs").chain
    full, functional, timing = (frustum.run(chain, inputs(), mode=m) for m in ("full", "functional", "timing"))
    assert full.report["dram"] == functional.report["dram"] == timing.report["dram"]
    assert full.report["cycles"] == timing.report["cycles"] and functional.report["cycles"] is None
    assert full.report["subgraphs"] == timing.report["subgraphs"]
    assert [each["start_cycle"] for each in functional.report["subgraphs"]] == [None] * 3
    assert [each["cycles"] for each in functional.report["subgraphs"]] == [None] * 3
    same(functional.outputs, full.outputs, 0)
    assert timing.outputs == {}


def cropped(executable):
    """An executable whose stores leave out the last row of what they write."""

    def less(node):
        if isinstance(node, p.Repeat):
            return replace(node, body=tuple(map(less, node.body)))
        if not isinstance(node, p.Copy) or node.dst_view.memory != "dram":
            return node
        spans = node.box.spans
        rows = replace(spans[2], bound=spans[2].bound - 1)
        return replace(node, box=p.Box.of(*spans[:2], rows, spans[3]))

    program = replace(executable.program, body=tuple(map(less, executable.program.body)))
    return build_executable(program, executable.weights, executable.manifest["options"])


@pytest.mark.parametrize("stream", [None, 2])
def test_checked_mode_reads_the_outputs_of_every_piece(stream):
    """Each of three chips makes an output less a row; the next pieces read those on their own chips."""
    chain = frustum.compile(model(), "manycore", placement="each", split="outputs").chain
    given = inputs() if stream is None else {"x": np.stack([inputs()["x"]] * stream)}
    assert len(chain.pieces) == 3
    for number, piece in enumerate(chain.pieces):
        pieces = [*chain.pieces]
        pieces[number] = replace(piece, executable=cropped(piece.executable))
        faulty = replace(chain, pieces=tuple(pieces))
        frustum.run(faulty, given, stream=stream)
        (name,) = piece.outputs
        with pytest.raises(AccessError, match=rf"the host reads element \(0, 0, 11, 0\) of output '{name}' at"):
            frustum.run(faulty, given, stream=stream, checked=True)


def test_an_input_that_is_an_output():
    found = frustum.run(frustum.compile(model(passed=True), "edge", split="outputs"), inputs())
    np.testing.assert_array_equal(found.outputs["again"], inputs()["x"])


@pytest.mark.soak
def test_chips_take_pieces_and_what_moves_between_them_is_counted():
    one = frustum.run(frustum.compile(model(), "manycore", split="outputs"), inputs())
    each = frustum.run(frustum.compile(model(), "manycore", placement="each", split="outputs"), inputs())
    same(each.outputs, one.outputs, 0)
    assert [s["chip"] for s in each.report["subgraphs"]] == [0, 1, 2]
    moved = 2 * 4 * 4 * 12 * 12  # v1 and v3
    assert each.report["moved_between_chips_bytes"] == moved and one.report["moved_between_chips_bytes"] == 0
    assert each.report["dram"]["total_bytes"] == one.report["dram"]["total_bytes"] + 2 * moved
    assert each.report["dram"]["intermediate_bytes"] == one.report["dram"]["intermediate_bytes"] + 2 * moved
    link = target("manycore").chip_link_bytes_per_cycle
    more = each.report["cycles"]["total"] - one.report["cycles"]["total"]
    assert more == moved // link + 2 * target("manycore").chip.dram.latency_cycles
    assert each.report["dram"]["compulsory_bytes"] == one.report["dram"]["compulsory_bytes"]


def test_pieces_with_the_host_between_them(tmp_path):
    """Two chips, and between their pieces a node that the device lacks; checked against onnxruntime."""
    made = model(outputs=(1, 3))
    graph = made.graph
    graph.node.append(helper.make_node("NonZero", ["v5"], ["where"], name="Where"))
    graph.output.append(helper.make_tensor_value_info("where", TensorProto.INT64, [4, None]))
    path, report = tmp_path / "net.onnx", tmp_path / "report.json"
    onnx.save(made, path)
    options = ["--target", "manycore", "--split", "outputs", "--placement", "each", "--check", "--report", str(report)]
    assert cli.main(["run", str(path), *options]) == 0
    data = json.loads(report.read_text())
    assert [each["where"] for each in data["host"]["pieces"]] == ["device", "device", "device", "host"]
    assert [each["chip"] for each in data["subgraphs"]] == [0, 1, 2]
    assert data["moved_between_chips_bytes"] == 2 * 4 * 4 * 12 * 12 and data["unsplit_peak_bytes"]["sram"] > 0


@pytest.mark.parametrize("split", ["auto", "outputs"])
def test_what_only_the_host_reads_cuts_nothing(split, tmp_path):
    """Four results in the middle go to the host alone: one executable, whatever is cut at output branches."""
    made = model(outputs=())
    for number in range(4):
        host = helper.make_node("Hardmax", [f"v{number}"], [f"h{number}"], axis=1, name=f"Host_{number}")
        made.graph.node.append(host)
        made.graph.output.append(helper.make_tensor_value_info(f"h{number}", TensorProto.FLOAT, [1, 4, 12, 12]))
    path, report = tmp_path / "net.onnx", tmp_path / "report.json"
    onnx.save(made, path)
    assert cli.main(["run", str(path), "--target", "edge", "--split", split, "--check", "--report", str(report)]) == 0
    data = json.loads(report.read_text())
    assert [each["where"] for each in data["host"]["pieces"]] == ["device", "host"]
    assert len(data["check"]["outputs"]) == 5


@pytest.mark.soak
def test_auto_keeps_the_worked_chain_whole_and_says_why(file, tmp_path, capsys):
    reports = []
    for split in ("auto", "never"):
        report = tmp_path / f"{split}.json"
        command = ["run", str(file), "--target", "edge", "--split", split, "--mode", "timing", "--report", str(report)]
        assert cli.main(command) == 0
        reports.append(json.loads(report.read_text()))
    auto, never = reports
    assert auto["cycles"] == never["cycles"] and auto["dram"] == never["dram"] and len(auto["subgraphs"]) == 1
    log = capsys.readouterr().err
    assert "tried at output branches, after 'Conv_1', 'Conv_3'" in log and log.endswith(": it stays whole\n")


@pytest.mark.soak
def test_chips_that_are_not_there_are_refused():
    with pytest.raises(UsageError, match="manycore has chips 0 to 3"):
        frustum.compile(model(), "manycore", placement="0,1,4", split="outputs")
    with pytest.raises(UsageError, match="is of 2 pieces, and there are 3"):
        frustum.compile(model(), "manycore", placement="0,1", split="outputs")
    with pytest.raises(UsageError, match="'both'"):
        frustum.compile(model(), "manycore", placement="both", split="outputs")


def test_pieces_are_fused_again():
    chain = frustum.compile(model(outputs=(0, 1, 2, 3)), "edge", refuse="pairs", split="outputs").chain
    assert [len(e.program.layers) for e in chain.executables] == [2, 2, 2]
    assert "refuse pairs: 'Conv_0' to 'Conv_1' (2 layers): fits" in chain.log
    with pytest.raises(UsageError, match="refuse 'triples' is none of"):
        frustum.compile(model(), "edge", refuse="triples", split="outputs")


# --- the command line --------------------------------------------------------------------------------------


def small_target(folder, dram_bytes):
    text = (ROOT / "backend" / "targets" / "edge.yaml").read_text()
    path = folder / "small.yaml"
    path.write_text(text.replace("capacity_bytes: 1 GiB", f"capacity_bytes: {dram_bytes}"))
    assert f"capacity_bytes: {dram_bytes}" in path.read_text()
    return path


def test_a_target_made_too_small_shows_as_another_split_in_the_log(tmp_path, capsys):
    onnx.save(model(outputs=()), tmp_path / "net.onnx")
    small = small_target(tmp_path, 9000)
    options = ["--target", str(small), "--policy", "pyramid", "--check"]  # optimal needs no DRAM between the layers
    assert cli.main(["run", str(tmp_path / "net.onnx"), *options]) == 0
    log = capsys.readouterr().err.splitlines()
    assert log[0].startswith("split: 'Conv_0' to 'Conv_5' (6 layers) does not fit (")
    assert "cut at the articulation point nearest to half of its cost, after 'Conv_2'" in log[0]


def test_a_single_operator_that_does_not_fit_is_4_and_named(tmp_path, capsys):
    onnx.save(model(outputs=()), tmp_path / "net.onnx")
    small = small_target(tmp_path, 4096)
    assert cli.main(["run", str(tmp_path / "net.onnx"), "--target", str(small)]) == 4
    (error,) = capsys.readouterr().err.splitlines()
    assert "node 'Conv_0' (fgraph.conv)" in error and "available 4096 B of dram" in error


def test_a_compiled_folder_has_a_file_for_every_piece(file, tmp_path, capsys):
    folder = tmp_path / "out"
    options = ["--target", "manycore", *CUT, "--placement", "0,1,1"]
    assert cli.main(["compile", str(file), "-o", str(folder), *options]) == 0
    names = {"manifest.json", "net_0.frustum", "net_1.frustum", "net_2.frustum"}
    assert {path.name for path in folder.iterdir()} == names
    assert capsys.readouterr().err.startswith("split: 'Conv_0' to 'Conv_5' (6 layers) cut at output branches")
    report = tmp_path / "report.json"
    assert cli.main(["run", str(folder), "--check", "--report", str(report)]) == 0
    data = json.loads(report.read_text())
    assert [each["chip"] for each in data["subgraphs"]] == [0, 1, 1]
    assert data["unsplit_peak_bytes"]["sram"] > 0
    assert cli.main(["run", str(folder), "--placement", "each", "--report", str(report)]) == 0
    assert [each["chip"] for each in json.loads(report.read_text())["subgraphs"]] == [0, 1, 2]
    capsys.readouterr()
    assert cli.main(["inspect", str(folder), "--disassemble"]) == 0
    listing = capsys.readouterr().out
    assert all(f"net_{number}" in listing for number in range(3)) and listing.count("matrix") >= LAYERS


def test_a_pipeline_that_cuts_is_refused(file, capsys):
    assert cli.main(["run", str(file), "--pipeline", "frustum-graph-own-outputs,frustum-graph-split-outputs"]) == 2
    assert "--pipeline makes one executable, and after it the module has 3 networks" in capsys.readouterr().err
    assert cli.main(["run", str(file), "--pipeline", "frustum-allocate", "--split", "auto"]) == 2
    assert "--split is of the default pipeline" in capsys.readouterr().err


@pytest.mark.soak
def test_every_dumped_stage_of_a_cut_network_can_be_continued(file, tmp_path):
    dump = tmp_path / "dump"
    whole = tmp_path / "whole.npz"
    assert cli.main(["run", str(file), *CUT, "--target", "edge", "--dump-ir", str(dump), "--output", str(whole)]) == 0
    expected = dict(np.load(whole))
    assert {"00-imported.mlir", "01-typed.mlir", "02-split.mlir"} <= {p.name for p in dump.iterdir()}
    for stage in ("00-imported", "01-typed", "02-split"):
        found = tmp_path / f"{stage}.npz"
        assert cli.main(["run", str(dump / f"{stage}.mlir"), *CUT, "--target", "edge", "--output", str(found)]) == 0
        same(dict(np.load(found)), expected, 0)
    (piece,) = [p for p in dump.iterdir() if p.name == "net_2-4"]
    assert cli.main(["compile", str(piece / "05-lowered.mlir"), "-o", str(tmp_path / "piece")]) == 0


# --- reproducible, refused when damaged --------------------------------------------------------------------

COMPILE = "import sys; from frustum.runtime.tools.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.soak
def test_two_processes_write_the_same_bytes(file, tmp_path):
    folders = []
    for seed in ("1", "2"):
        folders.append(tmp_path / f"out{seed}")
        command = [sys.executable, "-c", COMPILE, "compile", str(file), "-o", str(folders[-1]), *CUT]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, env=environment, capture_output=True)
    first, second = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert first == second and len(first) == 4


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    onnx.save(model(), folder / "net.onnx")
    assert cli.main(["compile", str(folder / "net.onnx"), "-o", str(folder / "out"), "--target", "edge", *CUT]) == 0
    return folder / "out"


def refused(folder):
    with pytest.raises(UsageError) as caught:
        frustum.run(folder, {})
    return str(caught.value)


def test_every_byte_of_the_manifest_counts(compiled, tmp_path):
    folder = copy(compiled, tmp_path / "out")
    good = (folder / "manifest.json").read_bytes()
    for place in [*range(0, len(good), 97), *range(len(good) - 90, len(good))]:
        bad = bytearray(good)
        bad[place] ^= 1
        (folder / "manifest.json").write_bytes(bad)
        assert "manifest.json: error: " in refused(folder), place
    for keep in (0, 1, len(good) // 2, len(good) - 1):
        (folder / "manifest.json").write_bytes(good[:keep])
        assert "manifest.json: error: " in refused(folder)


def test_all_pieces_are_checked_before_the_first_runs(compiled, tmp_path):
    folder = copy(compiled, tmp_path / "out")
    last = folder / "net_2.frustum"
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    assert f"{last}: error: damaged: the checksum of section 'weights' does not match" == refused(folder)
    last.unlink()
    assert "cannot be read: No such file" in refused(folder)


def test_a_piece_of_another_model_is_refused(compiled, tmp_path):
    folder = copy(compiled, tmp_path / "out")
    other = model(size=8)
    onnx.save(other, tmp_path / "net.onnx")
    options = ["--target", "edge", *CUT]
    assert cli.main(["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "other"), *options]) == 0
    (folder / "net_1.frustum").write_bytes((tmp_path / "other" / "net_1.frustum").read_bytes())
    assert "net_1.frustum: error: damaged: it is not the file that manifest.json lists" in refused(folder)


def copy(folder, to):
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.soak
def test_joined_inputs_that_go_to_other_clusters_before_any_layer():
    """Found by the soak: the copies belonged to the layer before the unit's first, of which there was none."""
    net = Net()
    first, second = net.input(1, 4, 7, 9), net.input(1, 3, 7, 9)
    joined = net.layer(graph.ConcatOp([first, second], 1))
    x = net.conv(net.unary("relu", net.binary("add", joined, joined)), 5, (2, 3), strides=(3, 3), pads=(0, 1, 0, 1))
    out = net.binary("add", x, net.binary("add", net.weight(1, 5, 2, 1), x))
    module, given_inputs = net.module(out, net.unary("relu", second), joined)
    expected = run_module(module, given_inputs)
    for split in ("auto", "never"):
        found = frustum.run(frustum.compile(module, "default", split=split), given_inputs, checked=True)
        same(found.outputs, expected)


# --- random graphs -----------------------------------------------------------------------------------------


@settings(max_examples=settings().max_examples // 5)
@given(branching(), st.sampled_from(["one", "each"]), st.sampled_from([None, "pairs", "bidirectional"]))
def test_random_graphs_in_pieces_on_chips(drawn, placement, refuse):
    expected = run_module(drawn.module, drawn.inputs)
    four = replace(target("edge"), chips=4, chip_link_bytes_per_cycle=8)
    # pieces have the planner of tiles, whose plans may take more SRAM than a tree of the whole network
    planned = frustum.compile(drawn.module, four, policy="optimal", split="never")
    whole = frustum.run(planned, drawn.inputs)
    chain = frustum.compile(drawn.module, four, split="outputs", refuse=refuse, placement=placement).chain
    found = frustum.run(chain, drawn.inputs)
    same(found.outputs, expected)
    same(whole.outputs, expected)
    report = found.report
    assert report["dram"]["compulsory_bytes"] == whole.report["dram"]["compulsory_bytes"]
    for memory, peak in report["peak_bytes"].items():
        assert peak <= whole.report["peak_bytes"][memory]
    if chain.single is None:
        assert report["unsplit_peak_bytes"] == whole.report["peak_bytes"]
