"""frustum: what its commands do when all is well, and the exit codes 0 and 3."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto

from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.dialects.choices import TREE
from frustum.passes.fuse.policy import DEFAULT
from frustum.runtime.host import oracle
from frustum.runtime.host.oracle import oracle_outputs
from frustum.runtime.model.compiled import Compiled
from frustum.runtime.tools import cli

KEYS = {
    "schema", "model", "target", "dtype", "policy", "dram", "cycles", "macs", "engines", "peak_bytes", "energy_pj",
    "line_buffer", "layers", "units", "subgraphs", "check", "seconds",
}  # fmt: skip
HEAVY = ("numpy", "onnx", "onnxruntime", "xdsl", "ruamel", "numba")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return onnx_models.save(tmp_path)


def frustum(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def report_of(tmp_path: Path, *arguments: object) -> dict:
    """The report of a run that went well."""
    path = tmp_path / "report.json"
    assert frustum("run", *arguments, "--report", path) == 0
    return json.loads(path.read_text())


# --- run ---------------------------------------------------------------------------------------------------


def test_a_run_prints_its_report_and_nothing_else(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert frustum("run", model, "--check") == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"small.onnx on default, f32, policy {DEFAULT}\n")
    assert "against onnxruntime" in out
    assert err == ""


@pytest.mark.slow
def test_a_stage_and_a_folder_are_checked_against_a_model_that_is_named(model: str, tmp_path: Path) -> None:
    assert frustum("compile", model, "-o", tmp_path / "made", "--target", "edge", "--dump-ir", tmp_path / "ir") == 0
    moved = Path(model).rename(tmp_path / "moved.onnx")
    for stage in ("00-imported", "02-fused", "04-placed", "06-fixed"):
        assert report_of(tmp_path, tmp_path / f"ir/{stage}.mlir", f"--check={moved}")["check"] is not None
    assert report_of(tmp_path, tmp_path / "made", "--check-against", moved)["check"]["max_rel_error"] <= 1e-4


def test_the_report_has_all_keys_of_schema_1(model: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, model, "--check", "--target", "edge", "--policy", "none")
    assert report.keys() >= KEYS
    assert (report["schema"], report["model"], report["target"]) == (1, "small.onnx", "edge")
    assert (report["dtype"], report["policy"]) == ("f32", "none")
    assert report["check"]["max_rel_error"] <= 1e-4
    assert report["check"]["reference"].startswith("onnxruntime ")
    assert min(report["seconds"][key] for key in ("import", "compile", "emulate")) > 0
    assert "frustum-fuse-layers" in report["seconds"]["passes"]
    assert report["seconds"]["calibrate"] == 0
    assert {layer["name"] for layer in report["layers"]} >= {"conv", "dense"}
    assert {layer["where"] for layer in report["layers"]} == {"device"}
    names = [name for unit in report["units"] for name in unit["layers"]]
    assert names == [layer["name"] for layer in report["layers"]]
    assert {layer["unit"] for layer in report["layers"]} == {unit["name"] for unit in report["units"]}
    (subgraph,) = report["subgraphs"]
    assert subgraph["executable_bytes"] > 0
    assert subgraph["peak_sram_bytes"] == report["peak_bytes"]["sram"]


def test_int8_tells_its_calibration(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(tmp_path, model, "--dtype", "int8", "--target", "edge")
    assert 0 < report["seconds"]["calibrate"] < report["seconds"]["compile"]
    assert report["calibration_inputs"] == 8
    assert " s of it), emulate " in capsys.readouterr().out
    assert frustum("compile", model, "--dtype", "int8", "--target", "edge", "-o", tmp_path / "folder") == 0
    assert capsys.readouterr().out.endswith(" s of it)\n")


def test_outputs_of_given_inputs(model: str, tmp_path: Path) -> None:
    x = onnx_models.image()
    np.savez(tmp_path / "in.npz", x=x)
    assert frustum("run", model, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz") == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found.files == ["y"]
        np.testing.assert_allclose(found["y"], oracle_outputs(model, {"x": x})["y"], atol=1e-5)


def test_given_inputs_bind_open_dimensions(tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(("n", onnx_models.CHANNELS, "h", "w")))
    np.savez(tmp_path / "in.npz", x=onnx_models.image(batch=2))
    assert frustum("run", model, "--check", "--input", tmp_path / "in.npz") == 0


@pytest.mark.slow
def test_shape_and_batch_bind_open_dimensions(tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(("n", onnx_models.CHANNELS, "h", 8)))
    assert frustum("run", model, "--check", "--shape", "x=1x3x6x8") == 0
    assert frustum("run", model, "--check", "--shape", "x=2x3x6x8", "--batch", 2) == 0


@pytest.mark.slow
def test_an_open_leading_dimension_is_1_which_one_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(("n", 3, 8, 8)))
    said = "batch: 1, as the first dimension of 'x' (n) is open; --batch N says another\n"
    assert frustum("run", model, "--quiet", "--check") == 0
    assert capsys.readouterr().err == ""
    for command in (["run", model], ["explain", model], ["compile", model, "-o", tmp_path / "made"]):
        assert frustum(*command) == 0
        assert capsys.readouterr().err == said
    assert Compiled.of(tmp_path / "made").notes == (said.strip(),)
    assert frustum("run", model, "--batch", 1) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_compile_prints_as_much_as_is_asked(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert frustum("compile", model, "-o", made, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert frustum("compile", model, "-o", made, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((made / "manifest.json").read_text())
    assert frustum("compile", model, "-o", made, "-v") == 0
    shown = capsys.readouterr().out
    assert frustum("inspect", made) == 0
    assert shown.endswith(capsys.readouterr().out)
    assert frustum("compile", model, "-o", made, "--quiet", "-v") == 2


def test_batch_of_a_model_that_says_1(model: str, tmp_path: Path) -> None:
    assert frustum("run", model, "--check", "--batch", 3, "--output", tmp_path / "out.npz") == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["y"].shape == (3, onnx_models.CLASSES)


@pytest.mark.slow
def test_seeds_change_inputs_and_are_repeated(model: str, tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((0, 0, 1)):
        frustum("run", model, "--input-seed", seed, "--output", tmp_path / f"{number}.npz")
        with np.load(tmp_path / f"{number}.npz") as file:
            found.append(file["y"])
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "model"])
def test_types_on_the_device(dtype: str, model: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, model, "--check", "--dtype", dtype, "--output", tmp_path / "out.npz")
    assert report["dtype"] == ("f32" if dtype == "model" else dtype)
    with np.load(tmp_path / "out.npz") as found:
        assert found["y"].dtype == np.float32, "outputs come in the model's type"


@pytest.mark.slow
@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_models_in_16_bits(element: int, tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(element=element))
    report = report_of(tmp_path, model, "--check", "--output", tmp_path / "out.npz")
    assert report["dtype"] == ("f16" if element == TensorProto.FLOAT16 else "bf16")
    assert report_of(tmp_path, model, "--check", "--dtype", "f32")["dtype"] == "f32"


@pytest.mark.slow
def test_bf16_inputs_in_a_file_are_two_bytes_or_f32(tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(element=TensorProto.BFLOAT16))
    from frustum.runtime.kernels import BFLOAT16

    found = []
    for array in (onnx_models.image(), onnx_models.image().astype(BFLOAT16)):
        np.savez(tmp_path / "in.npz", x=array)
        assert frustum("run", model, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz") == 0
        with np.load(tmp_path / "out.npz") as file:
            found.append(file["y"])
    assert np.array_equal(*found)


@pytest.mark.slow
def test_modes(model: str, tmp_path: Path) -> None:
    functional = report_of(tmp_path, model, "--mode", "functional", "--check")
    assert functional["cycles"] is None
    timing = report_of(tmp_path, model, "--mode", "timing")
    assert timing["check"] is None
    full = report_of(tmp_path, model, "--checked")
    assert timing["cycles"] == full["cycles"]
    assert functional["dram"] == timing["dram"] == full["dram"]


def test_numbers_that_differ_are_3_with_everything_written(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(oracle.TOLERANCES, "f16", 1e-9)
    report, output = tmp_path / "r.json", tmp_path / "o.npz"
    options = ["--dtype", "f16", "--check", "--report", report, "--output", output]
    assert frustum("run", model, *options) == 3
    out, err = capsys.readouterr()
    assert err.startswith(f"{model}: error: output 'y' differs from onnxruntime ")
    assert "at most 1e-09 is allowed in f16" in err
    assert "against onnxruntime" in out
    assert json.loads(report.read_text())["check"]["max_rel_error"] > 1e-9
    assert output.exists()


# --- compile -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiled_folder_runs_and_is_checked(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    assert frustum("compile", model, "-o", folder, "--target", "edge") == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["model"], manifest["target"]) == ("small.onnx", "edge") and manifest["policy"] in (DEFAULT, TREE)
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "small.frustum"]
    report = report_of(tmp_path, folder, "--check")
    assert (report["target"], report["model"]) == ("edge", "small.onnx")
    direct = report_of(tmp_path, model, "--check", "--target", "edge")
    for section in ("dram", "cycles", "macs", "layers", "units", "check", "subgraphs"):
        assert report[section] == direct[section]


@pytest.mark.slow
def test_a_batch_of_a_compiled_folder_is_checked_too(model: str, tmp_path: Path) -> None:
    assert frustum("compile", model, "-o", tmp_path / "compiled", "--batch", 2) == 0
    assert frustum("run", tmp_path / "compiled", "--check") == 0


def test_the_executable_alone_runs(model: str, tmp_path: Path) -> None:
    frustum("compile", model, "-o", tmp_path / "compiled")
    assert frustum("run", tmp_path / "compiled" / "small.frustum") == 0


@pytest.mark.slow
def test_compiling_again_replaces_the_folder(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    assert frustum("compile", model, "-o", folder) == 0
    first = (folder / "small.frustum").read_bytes()
    assert frustum("compile", model, "-o", folder) == 0
    assert (folder / "small.frustum").read_bytes() == first
    assert frustum("compile", model, "-o", folder, "--target", "edge") == 0
    assert (folder / "small.frustum").read_bytes() != first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["compiled", "small.onnx"]


# --- stages ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_dumped_stop_continues_to_the_same_executable(model: str, tmp_path: Path) -> None:
    ir, folder = tmp_path / "ir", tmp_path / "compiled"
    assert frustum("compile", model, "-o", folder, "--policy", "none", "--dtype", "f16", "--dump-ir", ir) == 0
    wanted = (folder / "small.frustum").read_bytes()
    stops = sorted(ir.glob("*.mlir"))
    assert [stop.name for stop in stops] == [
        "00-imported.mlir", "01-typed.mlir", "02-fused.mlir", "03-tiled.mlir", "04-placed.mlir",
        "05-lowered.mlir", "06-fixed.mlir",
    ]  # fmt: skip
    for stop in stops:
        assert stop.with_suffix(".safetensors").exists()
        options = ["--dtype", "f16"] if stop.name.startswith("00") else []
        assert frustum("compile", stop, "-o", folder, *options) == 0
        assert (folder / "small.frustum").read_bytes() == wanted, stop


@pytest.mark.slow
def test_a_stage_may_be_dumped_into_its_own_folder(model: str, tmp_path: Path) -> None:
    ir = tmp_path / "ir"
    frustum("compile", model, "-o", tmp_path / "a", "--dump-ir", ir)
    assert frustum("compile", ir / "02-fused.mlir", "-o", tmp_path / "b", "--dump-ir", ir) == 0
    assert (tmp_path / "a/small.frustum").read_bytes() == (tmp_path / "b/small.frustum").read_bytes()


@pytest.mark.slow
def test_a_pipeline_of_ones_own(model: str, tmp_path: Path) -> None:
    default_passes = [each for stop in STOPS for each in passes_to(stop, Choices("f16", "none"))]
    passes = ",".join(str(each.pipeline_pass_spec()) for each in default_passes)
    own = report_of(tmp_path, model, "--check", "--pipeline", passes, "--dump-ir", tmp_path / "ir")
    default = report_of(tmp_path, model, "--check", "--dtype", "f16", "--policy", "none")
    for section in ("dtype", "policy", "dram", "cycles", "units", "check"):
        assert own[section] == default[section]
    names = [stage.stem for stage in sorted((tmp_path / "ir").glob("*.mlir"))]
    assert names == ["00-imported", *(f"{n:02}-{each.name}" for n, each in enumerate(default_passes, 1))]


# --- targets, inspect, help --------------------------------------------------------------------------------


def test_targets_are_listed_and_printed_with_their_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert frustum("targets") == 0
    listing = capsys.readouterr().out
    for name in ("default", "edge", "df", "line64", "units4", "manycore"):
        assert f"\n  {name} " in listing
    assert frustum("targets", "edge") == 0
    text = capsys.readouterr().out
    assert text == (Path(__file__).parents[3] / "backend/targets/edge.yaml").read_text()
    assert "# A small embedded NPU" in text


def test_a_target_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    frustum("targets", "edge")
    text = capsys.readouterr().out
    file.write_text(text.replace("name: edge", "name: mine"))
    assert frustum("targets", file) == 0
    assert re.fullmatch(
        rf"{file}: a target without errors, sha256 [0-9a-f]{{64}}\n  target .*\n  mine  .* a small embedded NPU\n",
        capsys.readouterr().out,
    )
    file.write_text(text.replace("cores: 4", "cores: 0") + "options: {policy: gredy}\n")
    assert frustum("targets", file) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("error:") == 2 and "did you mean 'greedy'?" in err and "   ^\n" in err


@pytest.mark.slow
def test_two_machines_never_look_alike(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edge = Path(__file__).parents[3] / "backend/targets/edge.yaml"
    file = tmp_path / "copy.yaml"
    file.write_text(edge.read_text().replace("in_flight: 4", "in_flight: 3"))
    shipped = report_of(tmp_path, model, "--target", "edge")
    assert capsys.readouterr().out.startswith("small.onnx on edge, ")
    copy = report_of(tmp_path, model, "--target", file)
    assert capsys.readouterr().out.startswith(f"small.onnx on {file},")
    assert (shipped["target"], shipped["target_file"]) == ("edge", None)
    assert (copy["target"], copy["target_file"]) == ("edge", str(file))
    assert len(shipped["target_sha256"]) == 64 and shipped["target_sha256"] != copy["target_sha256"]
    frustum("compile", model, "--target", file, "-o", tmp_path / "compiled")
    manifest = json.loads((tmp_path / "compiled" / "manifest.json").read_text())
    assert (manifest["target_file"], manifest["target_sha256"]) == (file.name, copy["target_sha256"])
    again = report_of(tmp_path, tmp_path / "compiled")
    assert (again["target_file"], again["target_sha256"]) == (file.name, copy["target_sha256"])


def test_the_report_on_stdout_is_alone_there(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frustum("run", model, "--target", "edge", "--report", "-") == 0
    assert json.loads(capsys.readouterr().out)["target"] == "edge"
    assert not Path("-").exists()


def test_outputs_that_are_nan_here_and_there_are_pointed_out(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tmp_path / "nan.npz"
    np.savez(inputs, x=np.full((1, 3, 8, 8), np.nan, np.float32))
    report = report_of(tmp_path, model, "--target", "edge", "--input", inputs, "--check")
    out, err = capsys.readouterr()
    assert err == f"{model}: warning: 5 of 5 outputs are NaN in both\n"
    assert "\n  5 of 5 outputs are NaN in both\n" in out
    assert (report["check"]["nan_in_both"], report["check"]["numbers"]) == (5, 5)


def test_inspect_a_manifest(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frustum("compile", model, "-o", tmp_path / "compiled", "--target", "edge")
    capsys.readouterr()
    manifest = tmp_path / "compiled" / "manifest.json"
    assert frustum("inspect", manifest) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{manifest}: the manifest of a compiled folder\n")
    for line in ("  model          small.onnx\n", "  target         edge\n", "  origin         ../small.onnx\n"):
        assert line in text
    assert "input 'x'    float32   1x3x8x8\n" in text and "  small   device   small.frustum   " in text
    manifest.write_text("{}")
    assert frustum("inspect", manifest) == 2
    assert "not the manifest of a compiled folder" in capsys.readouterr().err


def test_inspect_an_executable(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frustum("compile", model, "-o", tmp_path / "compiled", "--target", "edge", "--policy", DEFAULT)
    capsys.readouterr()
    assert frustum("inspect", tmp_path / "compiled") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"small for edge, f32, policy {DEFAULT}\n")
    assert "input 'x'    float32   1x3x8x8\n" in text
    for word in ("Sizes", "Instructions, loops not unrolled", "conv ", "MACs"):
        assert word in text
    assert frustum("inspect", tmp_path / "compiled" / "small.frustum") == 0
    assert capsys.readouterr().out == text
    assert frustum("inspect", tmp_path / "compiled", "--disassemble") == 0
    assert "conv.matrix" in capsys.readouterr().out


def test_inspect_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(("n", 3, 8, 8)))
    assert frustum("inspect", model) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{model}: 6 nodes, opset ai.onnx 17\n")
    assert "input 'x'    FLOAT   nx3x8x8\n" in text
    assert frustum("inspect", "zoo:squeezenet") == 0
    assert "Conv " in capsys.readouterr().out


def test_inspect_a_stage(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frustum("compile", model, "-o", tmp_path / "compiled", "--dump-ir", tmp_path / "ir")
    capsys.readouterr()
    assert frustum("inspect", tmp_path / "ir/02-fused.mlir") == 0
    text = capsys.readouterr().out
    assert "a module at stop 'fused'" in text
    assert "funit.unit" in text
    units = text.partition("Units: their partition, layers, and what ended their growth\n")[2].partition("\n\n")[0]
    assert "  u0   tile [1, " in units and "   conv, pool, mean   cut before " in units
    assert frustum("inspect", tmp_path / "ir/01-typed.mlir") == 0
    assert "Units" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom frustum.runtime.tools import cli\n"
        f"try: cli.main({arguments!r})\nexcept SystemExit as exit: assert exit.code == 0\n"
        f"assert not [name for name in {HEAVY!r} if name in sys.modules]"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "frustum" in result.stdout


def test_every_command_has_its_file() -> None:
    tools = Path(cli.__file__).parent
    assert [name for name in cli.COMMANDS if not (tools / f"{name.replace('-', '_')}.py").is_file()] == []
