"""A model in pieces: run, reported, written to a folder and read again."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_models import controlled, model, node, sandwich, transformer

import frustum
from frustum.backend.targets import load
from frustum.runtime.machine import InputError
from frustum.runtime.model.chain import Chain, chain_of
from frustum.runtime.report.figures import Report
from frustum.runtime.tools.cli import main


def oracle(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True))


def agree(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape), name
        scale = max(np.abs(wanted).max(initial=0), 1e-6) if wanted.dtype.kind == "f" else 1
        assert np.abs(found[name].astype(float) - wanted).max(initial=0) <= 1e-4 * scale, name


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((1, 32, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def chain() -> Chain:
    found = frustum.compile(sandwich(), target="default").chain
    assert isinstance(found, Chain)
    return found


def test_the_chain_gives_what_the_model_gives(chain: Chain, x: np.ndarray) -> None:
    assert [piece.kind for piece in chain.pieces] == ["device", "host", "device"]
    result = frustum.run(chain, {"x": x})
    agree(result.outputs, oracle(sandwich(), {"x": x}))


def test_the_report_tells_what_fell_back_and_why(chain: Chain, x: np.ndarray) -> None:
    report = frustum.run(chain, {"x": x}).report
    host = report["host"]
    whole = 4 * 32 * 32 * 32  # r1 goes to the host while the model runs, h comes back
    assert (host["mode"], host["to_host_bytes"], host["from_host_bytes"]) == ("auto", whole, whole)
    assert host["moved_bytes"] == 2 * whole
    assert host["layers"] == [{"name": "h", "op": "Hardmax", "reason": "this operator is not supported"}]
    assert {layer["name"]: layer["where"] for layer in report["layers"]}["h"] == "host"
    assert [each["where"] for each in host["pieces"]] == ["device", "host", "device"]
    before, hosted, after = ((each["start_cycle"], each["stop_cycle"]) for each in host["pieces"])
    each_way = whole // load("default").host_link_bytes_per_cycle
    took = -(-2 * whole // 10)  # it reads a map and writes one, 10 bytes in a cycle
    assert hosted == (before[1] + each_way, before[1] + each_way + took) and after[0] == hosted[1] + each_way
    assert (host["cycles"], host["macs"], host["bytes"]) == (took, 0, 2 * whole)
    assert {layer["name"]: layer["cycles"] for layer in report["layers"]}["h"] == took
    assert report["cycles"]["total"] == after[1] and host["link_cycles"] == 2 * each_way
    assert host["port_cycles"] == 2 * -(-whole // 102)
    assert report["cycles"]["total"] > 0 and len(report["subgraphs"]) == 2


def test_timing_needs_no_values_to_know_what_crosses_the_link(chain: Chain, x: np.ndarray) -> None:
    result, full = frustum.run(chain, {}, mode="timing"), frustum.run(chain, {"x": x})
    assert result.outputs == {}
    for part in ("cycles", "dram", "energy_pj"):
        assert result.report[part] == full.report[part]
    assert {**result.report["host"], "seconds": 0} == {**full.report["host"], "seconds": 0}
    text = Report(full.report).text(verbose=True)
    assert "26,215 cycles to compute 0 MACs, 262,144 B read and written" in text


def test_without_time_only_bytes_are_known(chain: Chain, x: np.ndarray) -> None:
    report = frustum.run(chain, {"x": x}, mode="functional").report
    assert report["cycles"] is report["host"]["link_cycles"] is report["host"]["pieces"][0]["start_cycle"] is None
    assert report["host"]["moved_bytes"] == 2 * 4 * 32 * 32 * 32


def detour(operator: str) -> dict:
    """The report of two convolutions of 8 maps of 32 x 32 with a node between them."""
    w = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node(operator, ["a"], ["b"]),
        node("Conv", ["b", "w"], ["y"], pads=[1] * 4),
    ]  # fmt: skip
    found = frustum.compile(model(nodes, {"x": (1, 8, 32, 32)}, ["y"], {"w": w}), target="edge", policy="none")
    return frustum.run(found, {}, mode="timing").report


def test_a_detour_over_the_host_costs_the_link_and_the_port_and_never_makes_a_ratio_better() -> None:
    plain, hosted = detour("Relu"), detour("Hardmax")
    size = 4 * 8 * 32 * 32
    assert hosted["host"]["link_cycles"] == 2 * size // 4
    assert hosted["cycles"]["total"] >= plain["cycles"]["total"] + 2 * size // 4 + hosted["host"]["cycles"]
    assert hosted["host"]["cycles"] == -(-2 * size // 20)
    assert hosted["dram"]["compulsory_bytes"] == plain["dram"]["compulsory_bytes"]
    assert hosted["cycles"]["roofline"] == plain["cycles"]["roofline"]
    # read by the host and written by it, beside what the convolutions write and read
    assert hosted["dram"]["intermediate_bytes"] == 4 * size
    assert hosted["energy_pj"]["dram"] == 160 * hosted["dram"]["total_bytes"]
    assert hosted["host"]["dram_energy_pj"] == 160 * 2 * size
    assert plain["dram"]["intermediate_bytes"] <= 4 * size and hosted["dram"]["ratio"] >= plain["dram"]["ratio"]


def test_wrong_inputs_are_named(chain: Chain, x: np.ndarray) -> None:
    for given_, message in (
        ({}, "input 'x': missing"),
        ({"x": x[:, :1]}, "input 'x': found float32 1x1x32x32, expected float32 1x32x32x32"),
        ({"x": x, "z": x}, "input 'z': the network has no such input; it has x"),
    ):
        with pytest.raises(InputError, match=message):
            frustum.run(chain, given_)


def test_all_on_the_host(x: np.ndarray) -> None:
    whole = frustum.compile(sandwich(), host="only").chain
    assert isinstance(whole, Chain) and whole.executables == ()
    result = frustum.run(whole, {"x": x})
    agree(result.outputs, oracle(sandwich(), {"x": x}))
    host, cycles = result.report["host"], result.report["cycles"]
    # two convolutions of 32 x 32 channels, 3 x 3, on 32 x 32 positions: 10 products in a cycle
    assert host["macs"] == 2 * 32**4 * 9 and cycles["total"] == host["cycles"] == -(-host["macs"] // 10)
    assert (result.report["dtype"], cycles["bound"], cycles["roofline"]) == ("host", None, 0)
    assert {layer["where"] for layer in result.report["layers"]} == {"host"}


def test_a_loop_takes_its_count_at_run_time() -> None:
    proto = controlled()
    found = frustum.compile(proto)
    for count in (0, 3):
        inputs = {"x": np.float32([[1, -2, 3, 4]]), "n": np.array(count)}
        agree(frustum.run(found, inputs).outputs, oracle(proto, inputs))


@pytest.mark.slow
@pytest.mark.soak
def test_a_transformer_runs_on_the_device_from_ids_to_words() -> None:
    proto = transformer()
    found = frustum.compile(proto, target="edge").chain
    assert isinstance(found, Chain)
    assert [piece.kind for piece in found.pieces] == ["device"] and not found.fallbacks
    mask = np.ones((1, 48), np.int64)
    mask[:, 40:] = 0
    inputs = {"ids": np.random.default_rng(1).integers(0, 100, (1, 48)), "mask": mask}
    agree(frustum.run(found, inputs).outputs, oracle(proto, inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuts", "code", "words"),
    [("c2", 0, ""), ("c1,c2", 0, ""), ("c3", 2, "no layer is called 'c3'"), ("c1,h", 2, "layer 'h' (Hardmax) runs on")],
)
def test_units_end_in_any_piece(tmp_path: Path, capsys, cuts: str, code: int, words: str) -> None:
    path = tmp_path / "mixed.onnx"
    onnx.save(sandwich(4, 8), path)
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), "--cuts", cuts, "--target", "edge"]) == code
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_weights_in_a_file_of_their_own_come_along(tmp_path: Path) -> None:
    path = tmp_path / "mixed.onnx"
    rng = np.random.default_rng(2)
    constants = {
        "w": rng.standard_normal((32, 32, 3, 3), np.float32) / 32,
        "e": rng.standard_normal((32, 32), np.float32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Einsum", ["c", "e"], ["m"], equation="nchw,cd->ndhw"),
        node("Conv", ["m", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    proto = model(nodes, {"x": (1, 32, 32, 32)}, ["y"], constants)
    onnx.save(proto, path, save_as_external_data=True, location="mixed.data", size_threshold=0)
    assert main(["run", str(path), "--check", "--mode", "functional"]) == 0
    assert main(["compile", str(path), "-o", str(tmp_path / "out")]) == 0
    (tmp_path / "mixed.data").unlink()
    x_ = rng.standard_normal((1, 32, 32, 32)).astype(np.float32)
    plain = model(nodes, {"x": (1, 32, 32, 32)}, ["y"], constants)
    agree(frustum.run(tmp_path / "out", {"x": x_}, mode="functional").outputs, oracle(plain, {"x": x_}))


def test_constants_may_be_bound(x: np.ndarray) -> None:
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": (1, 32, 32, 32), "w": (8, 32, 3, 3)}, ["y"])
    w = np.random.default_rng(4).standard_normal((8, 32, 3, 3)).astype(np.float32)
    exe = frustum.compile(proto, constants={"w": w})
    agree(frustum.run(exe, {"x": x}).outputs, oracle(proto, {"x": x, "w": w}))
    with pytest.raises(Exception, match=r"there is no input 'v' to bind: the inputs are 'x', 'w'"):
        frustum.compile(proto, constants={"v": w})
    with pytest.raises(Exception, match=r"input 'w' is bound to DOUBLE, the model has it as FLOAT"):
        frustum.compile(proto, constants={"w": w.astype(float)})


def test_one_executable_is_a_chain_too() -> None:
    exe = frustum.compile(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]), target="edge").executable
    assert chain_of(exe).single is exe


# --- random graphs: two operators of the device, two of the host --------------------------------------------

OPERATORS = (("Relu", 1), ("Hardmax", 1), ("Add", 2), ("Mod", 2))


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Nodes that read any values before them; several inputs and outputs, among them inputs and values read later."""
    values = [f"x{index}" for index in range(draw(st.integers(1, 2)))]
    inputs = {name: (2, 6) for name in values}
    nodes = []
    for number in range(draw(st.integers(1, 7))):
        operator, count = draw(st.sampled_from(OPERATORS))
        operands = [draw(st.sampled_from(values)) for _ in range(count)]
        extra = {"fmod": 1} if operator == "Mod" else {}
        nodes.append(node(operator, operands, [f"v{number}"], **extra))
        values.append(f"v{number}")
    outputs = draw(st.lists(st.sampled_from(values[len(inputs):]), min_size=1, max_size=3, unique=True))
    return model(nodes, inputs, outputs)


@pytest.mark.slow
@given(graphs(), st.integers(0, 9))
@settings(max_examples=settings().max_examples // 2)
def test_any_graph_in_pieces_is_the_graph(proto: onnx.ModelProto, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {v.name: rng.standard_normal((2, 6)).astype(np.float32) for v in proto.graph.input}
    from frustum.passes.onnx import place_host as islands

    patch = pytest.MonkeyPatch()
    patch.setattr(islands, "host_is_cheaper", lambda island, target: "")  # else all of it is too small to move
    try:
        found = frustum.compile(proto, target="edge")
    finally:
        patch.undo()
    with np.errstate(all="ignore"):
        expected = oracle(proto, inputs)
    result = frustum.run(found, {name: inputs[name] for name in inputs})
    for name, wanted in expected.items():
        np.testing.assert_allclose(result.outputs[name], wanted, rtol=1e-5, atol=1e-6)


# --- folders -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.onnx"
    onnx.save(sandwich(), path)
    assert main(["compile", str(path), "-o", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def test_a_folder_holds_the_pieces(folder: Path, x: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [(p["kind"], p["file"]) for p in manifest["pieces"]] == [
        ("device", "mixed_0.frustum"),
        ("host", "mixed_1.onnx"),
        ("device", "mixed_2.frustum"),
    ]
    agree(frustum.run(folder, {"x": x}).outputs, oracle(sandwich(), {"x": x}))
    assert main(["run", str(folder), "--check"]) == 0
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "Hardmax" in shown and "mixed_2" in shown
    onnx.checker.check_model(onnx.load(folder / "mixed_1.onnx"), full_check=False)


def test_the_same_model_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    assert main(["compile", str(tmp_path / "mixed.onnx"), "-o", str(tmp_path / "again")]) == 0
    for file in folder.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_host_piece_is_refused(damage: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "mixed_1.onnx"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    assert main(["run", str(folder)]) == 2
    expected = "cannot be read" if damage == "gone" else "damaged: it is not the file that manifest.json lists"
    assert capsys.readouterr().err.startswith(f"{path}: error: {expected}")


def test_pieces_in_a_wrong_order_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest["pieces"].reverse()
    monkeypatch.setattr("frustum.runtime.model.compiled_folder.read_manifest", lambda folder: manifest)
    assert main(["run", str(folder)]) == 2
    assert "damaged: piece 'mixed_2' reads 'h', which nothing gives" in capsys.readouterr().err
