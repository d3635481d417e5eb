"""frustum: what goes wrong, in which words, with which exit code; nothing half-written is left behind."""

import errno
import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.hoist_loads import HoistLoads
from frustum.backend.memory.allocation import Allocate
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.lower.lower_tiles import LowerTiles
from frustum.passes.tile.lower_units import LowerUnits
from frustum.runtime.failures import message_of
from frustum.runtime.tools import cli

EDGE = Path(__file__).parents[3] / "backend" / "targets" / "edge.yaml"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return onnx_models.save(tmp_path)


@pytest.fixture
def fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs a command that fails with one line and leaves the folder as it was; gives what it says."""

    def check(*arguments: object, code: int = 2, lines: int = 1) -> str:
        before = _tree(tmp_path)
        capsys.readouterr()
        try:
            found = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            found = stop.code
        out, err = capsys.readouterr()
        assert found == code, err
        assert out == ""
        assert len(err.splitlines()) == lines, err
        assert "Traceback" not in err
        assert _tree(tmp_path) == before
        return err.rstrip("\n")

    return check


def _tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


# --- models ------------------------------------------------------------------------------------------------


def test_no_such_file(fails) -> None:
    assert fails("run", "nowhere/a.onnx") == (
        "nowhere/a.onnx: error: cannot be read: No such file or directory (MODEL is a path to .onnx, zoo:NAME, a"
        " compiled folder, or a dumped stage NN-stop.mlir)"
    )


def test_the_name_of_a_zoo_network_without_zoo(fails) -> None:
    assert fails("run", "squeezenet").endswith("; did you mean 'zoo:squeezenet'?")


def test_unknown_zoo_network(fails) -> None:
    assert fails("run", "zoo:resnet5").startswith(
        "zoo:resnet5: error: no such network; did you mean 'resnet50'? (there are alexnet, "
    )


@pytest.mark.parametrize("content", [b"", b"hello, world\n", b"\x00" * 100, bytes(range(256))])
def test_not_an_onnx_file(content: bytes, fails, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    for command in (["run", path], ["compile", path, "-o", tmp_path / "out"], ["inspect", path]):
        assert fails(*command) == f"{path}: error: not an ONNX file, or not all of it"


def test_truncated_file(model: str, fails) -> None:
    whole = Path(model).read_bytes()
    for length in (len(whole) // 3, len(whole) // 2, len(whole) - 1):
        Path(model).write_bytes(whole[:length])
        assert fails("run", model) == f"{model}: error: not an ONNX file, or not all of it"


def test_missing_external_data(fails, tmp_path: Path) -> None:
    model = onnx_models.save_external(tmp_path)
    assert cli.main(["run", model, "--mode", "timing", "--target", "edge"]) == 0
    (tmp_path / "small.data").unlink()
    message = fails("run", model)
    assert message.startswith("small.onnx: error: tensor 'w': external data file 'small.data' is missing in ")


@pytest.mark.parametrize("location", ["../small.data", "/etc/passwd"])
def test_external_data_outside_the_folder(location: str, fails, tmp_path: Path) -> None:
    model = onnx_models.save_external(tmp_path, location)
    assert fails("run", model) == (
        f"small.onnx: error: tensor 'w': external data '{location}' is outside the model's folder"
    )


def test_several_unsupported_operators_in_one_message(fails, tmp_path: Path) -> None:
    extra = (
        onnx.helper.make_node("NonZero", ["y"], ["z1"], "find"),
        onnx.helper.make_node("Frobnicate", ["y"], ["z2"], "frob"),
        onnx.helper.make_node("Mystery", ["y"], ["z3"], "own", domain="com.example"),
    )
    model = onnx_models.save(tmp_path, onnx_models.network(extra=extra))
    message = fails("run", model, "--host", "never", lines=3)
    starts = "node 'find' (NonZero)", "node 'frob' (Frobnicate)", "node 'own' (com.example"
    for line, start in zip(message.splitlines(), starts, strict=True):
        assert line.startswith(f"small.onnx: {start}")
        assert ": error: " in line
    on_host = fails("run", model, lines=2)  # what ONNX defines the host runs
    for line, start in zip(on_host.splitlines(), starts[1:], strict=True):
        assert line.startswith(f"small.onnx: {start}")
        assert line.endswith("error: this operator is not supported: neither the device nor the host knows it")


@pytest.mark.parametrize("opset", [98, 99])
def test_unknown_opset(opset: int, fails, tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(opset=opset))
    assert re.fullmatch(rf"small.onnx: error: opset {opset}: allowed are 1 to \d+", fails("run", model))


def test_open_dimensions(fails, tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, onnx_models.network(("n", 3, "h", 8)))
    expected = "small.onnx: error: open dimensions: 'h' of input 'x': bind them, as with --dim h=128"
    assert fails("run", model) == expected
    assert fails("compile", model, "-o", tmp_path / "out", "--batch", 1) == expected


def test_a_shape_that_the_model_contradicts(model: str, fails) -> None:
    assert "input 'x' is 1x3x8x8 in the file, which 1x4x8x8 does not fit" in fails(
        "run", model, "--shape", "x=1x4x8x8"
    )
    assert "there is no input 'z': the inputs are 'x'" in fails("run", model, "--shape", "z=1x3x8x8")


# --- targets -----------------------------------------------------------------------------------------------


def test_unknown_target(model: str, fails) -> None:
    wanted = (
        "frustum: error: no target 'egde'; did you mean 'edge'?"
        " (shipped: default, df, edge, line64, manycore, units4; or a file that ends in .yaml)"
    )
    assert fails("run", model, "--target", "egde") == wanted
    assert fails("targets", "egde") == wanted


def test_target_file_that_is_not_there(model: str, fails) -> None:
    assert (
        fails("run", model, "--target", "no.yaml")
        == "no.yaml: error: cannot be read: No such file or directory"
    )


def test_broken_target_points_at_every_fault(model: str, fails, tmp_path: Path) -> None:
    text = EDGE.read_text().replace("event_slots: 64", "event_slots: many").replace("in_flight:", "inflight:")
    (tmp_path / "t.yaml").write_text(text)
    message = fails("run", model, "--target", tmp_path / "t.yaml", lines=9)
    line = next(n for n, found in enumerate(text.splitlines(), 1) if "event_slots" in found)
    assert f"{tmp_path}/t.yaml:{line}:18: error: chip.cluster.event_slots: found 'many'" in message
    assert "has no key 'inflight'; did you mean 'in_flight'?" in message
    assert "^" in message


def _target(folder: Path, memory: str, size: int) -> Path:
    """`edge` with a memory of another size."""
    head, tail = re.split(
        rf"(?<=\n)(?=      ?  ?{memory}:|    {memory}:|  {memory}:)", EDGE.read_text(), maxsplit=1
    )
    path = folder / f"{memory}.yaml"
    path.write_text(head + re.sub(r"capacity_bytes: \d+ .iB", f"capacity_bytes: {size}", tail, count=1))
    return path


TOO_LARGE = {
    "sram": onnx_models.one_node("Softmax", (1, 997)),  # a prime: it has no equal parts
    "nram": onnx_models.one_node("Conv", (1, 1, 64, 64), (1, 1, 11, 11)),
    "wram": onnx_models.one_node("Conv", (1, 1, 64, 64), (1, 1, 11, 11)),
    "dram": onnx_models.network(),
}
"""What 256 bytes of a memory (1024 of DRAM) are too little for, however it is cut."""


@pytest.mark.slow
@pytest.mark.parametrize("memory", TOO_LARGE)
def test_too_little_memory_is_4(memory: str, fails, tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path, TOO_LARGE[memory])
    target = _target(tmp_path, memory, 1024 if memory == "dram" else 256)
    for command in (["run", model], ["compile", model, "-o", tmp_path / "out"]):
        message = fails(*command, "--target", target, "--policy", "optimal", code=4)
        assert message.startswith(f"{model}: error: ")
        assert "not fit" in message
        assert "needed" in message
        assert "available" in message


@pytest.mark.slow
def test_too_little_memory_for_the_code_is_4(model: str, fails, tmp_path: Path) -> None:
    target = tmp_path / "t.yaml"
    target.write_text(
        EDGE.read_text().replace("instruction_memory_bytes: 32 KiB", "instruction_memory_bytes: 256")
    )
    assert "256 B of instruction memory" in fails("run", model, "--target", target, code=4)


# --- inputs and outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": np.zeros((1, 3, 9, 8), np.float32)},
            "input 'x' is 1x3x8x8 in the file, which 1x3x9x8 does not fit",
        ),
        (
            {"x": np.zeros((3, 8, 8), np.float32)},
            "input 'x' is 1x3x8x8 in the file, which 3x8x8 does not fit",
        ),
        ({"x": np.zeros((1, 3, 8, 8))}, "error: input 'x': found float64 1x3x8x8, expected float32 1x3x8x8"),
        ({"z": np.zeros((1, 3, 8, 8), np.float32)}, "there is no input 'z': the inputs are 'x'"),
        ({}, "error: input 'x': missing; given: nothing"),
    ],
)
def test_wrong_inputs(arrays: dict, message: str, model: str, fails, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    assert message in fails("run", model, "--input", tmp_path / "in.npz")


def test_wrong_inputs_of_what_is_compiled(model: str, fails, tmp_path: Path) -> None:
    cli.main(["compile", model, "-o", str(tmp_path / "compiled")])
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros((1, 3, 9, 8), np.float32))
    assert fails("run", tmp_path / "compiled", "--input", path) == (
        f"{path}: error: input 'x': found float32 1x3x9x8, expected float32 1x3x8x8"
    )


def test_missing_npz(model: str, fails) -> None:
    assert (
        fails("run", model, "--input", "no.npz") == "no.npz: error: cannot be read: No such file or directory"
    )


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off"])
def test_npz_that_is_none(content: bytes, model: str, fails, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    assert fails("run", model, "--input", path).startswith(
        f"{path}: error: not an .npz file of arrays by input name"
    )


def test_npz_of_python_objects_is_not_loaded(model: str, fails, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.array([print], object))
    assert "it holds Python objects" in fails("run", model, "--input", path)


def test_an_array_that_nobody_takes_is_not_unpacked(model: str, fails, tmp_path: Path, monkeypatch) -> None:
    """A thousand bytes of zeros are one byte of a file."""
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda *_: pytest.fail("an array is unpacked"))
    path = tmp_path / "in.npz"
    many = np.zeros((1, 3, 1 << 10, 1 << 10), np.float32)
    for arrays, said in (
        ({"x": onnx_models.image(), "junk": many}, "no input 'junk'"),
        ({"x": many}, "does not fit"),
        ({"x": onnx_models.image().astype(np.float64)}, "found float64"),
    ):
        np.savez_compressed(path, **arrays)
        for dtype in ("f32", "int8"):
            assert said in fails("run", model, "--input", path, "--dtype", dtype)


def test_a_header_that_is_longer_than_any_is_not_read(model: str, fails, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + (1 << 20).to_bytes(4, "little") + b" " * (1 << 20))
        archive.writestr("readme.txt", "no array")
    said = fails("run", model, "--input", tmp_path / "in.npz")
    assert "'x.npy' has a header of 1,048,576 bytes: at most 10,000 are read" in said


def test_no_memory_has_words() -> None:
    assert message_of(MemoryError()) == "frustum: error: this computer has not enough memory for it"
    assert message_of(MemoryError("of 3 GiB")) == "frustum: error: of 3 GiB"


def test_npy_is_no_npz(model: str, fails, tmp_path: Path) -> None:
    path = tmp_path / "in.npy"
    np.save(path, onnx_models.image())
    assert "not an .npz file of arrays by input name" in fails("run", model, "--input", path)


@pytest.mark.parametrize("option", ["--output", "--report"])
def test_unwritable_files_are_refused_before_the_model_is_read(option: str, fails, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "no" / "f", f"{tmp_path}/no: No such file or directory"),
        (tmp_path / "file" / "f", f"{tmp_path}/file: Not a directory"),
        (tmp_path, "it is a folder"),
    ):
        assert fails("run", "no.onnx", option, path) == f"{path}: error: cannot be written: {reason}"


@pytest.mark.parametrize("option", ["-o", "--dump-ir"])
def test_unwritable_folders_are_refused_before_the_model_is_compiled(
    option: str, model: str, fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frustum.runtime.model.build.compile_pieces", None)
    (tmp_path / "file").touch()
    rest = ["-o", tmp_path / "good"] if option != "-o" else []
    for path, reason in (
        (tmp_path / "no" / "d", f"{tmp_path}/no: No such file or directory"),
        (tmp_path / "file", "it is a file, not a folder"),
    ):
        message = fails("compile", model, option, path, *rest)
        assert message == f"{path}: error: cannot be written: {reason}"


def test_a_folder_with_other_things_is_not_replaced(model: str, fails, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "it holds other files (and no manifest.json)" in fails("compile", model, "-o", tmp_path / "mine")


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(
    model: str, fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("frustum.runtime.model.compiled_folder.write_executable", full)
    folder = tmp_path / "out"
    assert (
        fails("compile", model, "-o", folder)
        == f"{folder}: error: cannot be written: No space left on device"
    )
    monkeypatch.setattr("numpy.savez", full)
    path = tmp_path / "out.npz"
    assert (
        fails("run", model, "--output", path) == f"{path}: error: cannot be written: No space left on device"
    )


# --- the command line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "frustum: error: the following arguments are required: COMMAND"),
        (["run"], "frustum run: error: the following arguments are required: MODEL"),
        (["compile", "m"], "frustum compile: error: the following arguments are required: -o"),
        (["walk"], "argument COMMAND: invalid choice: 'walk' (choose from "),
        (["run", "m", "--batch", "0"], "argument --batch: '0' is not an integer of at least 1"),
        (["run", "m", "--batch", "-1"], "argument --batch: '-1' is not an integer of at least 1"),
        (["run", "m", "--batch", "two"], "argument --batch: 'two' is not an integer of at least 1"),
        (["run", "m", "--input-seed", "x"], "argument --input-seed: 'x' is not an integer of at least 0"),
        (["run", "m", "--dtype", "int4"], "argument --dtype: invalid choice: 'int4' (choose from "),
        (["run", "m", "--calibrate", "most"], "argument --calibrate: invalid choice: 'most' (choose from "),
        (["run", "m", "--carry", "f16"], "argument --carry: invalid choice: 'f16' (choose from "),
        (["run", "m", "--policy", "best"], "argument --policy: invalid choice: 'best' (choose from "),
        (["run", "m", "--targe", "edge"], "unrecognized arguments: --targe edge"),
        (["run", "m.mlir", "--check", "m.onnx"], "m.onnx; a file to check against is --check=FILE.onnx, in one word"),
        *(
            (
                ["run", "m", "--shape", text],
                f"argument --shape: '{text}' is not of the form INPUT=1x3x160x224",
            )
            for text in ("x", "x=", "=1x3", "x=1xax3", "x=1x0x3", "x=1,3,8,8", "x=-1x3")
        ),
        (
            ["run", "m", "--mode", "timing", "--check"],
            "frustum: error: --check needs --mode full or functional",
        ),
        (
            ["run", "m", "--mode", "timing", "--output", "f"],
            "frustum: error: --output needs --mode full or functional",
        ),
        (
            ["run", "m", "--input", "f", "--input-seed", "1"],
            "frustum: error: --input and --input-seed: one of them",
        ),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, fails) -> None:
    assert message in fails(*arguments)


def test_unknown_pass_in_the_pipeline(model: str, fails) -> None:
    assert fails("run", model, "--pipeline", "frustum-alocate", lines=3) == (
        "pipeline:1:1: error: unknown pass 'frustum-alocate'; did you mean 'frustum-allocate'?\n"
        "frustum-alocate\n^~~~~~~~~~~~~~~"
    )


def test_a_pipeline_that_ends_early_or_comes_too_early(model: str, fails) -> None:
    assert fails("run", model, "--pipeline", "frustum-graph-canonicalize") == (
        "frustum: error: --pipeline ends at stop 'imported': an executable needs all passes to 'fixed'"
    )
    message = fails("run", model, "--pipeline", "frustum-fuse-layers,frustum-lower-tiles")
    assert message.startswith("frustum: error: after pass 'frustum-lower-tiles': ")


@pytest.mark.parametrize(("option", "value"), [("--dtype", "f16"), ("--policy", "none")])
def test_options_that_a_pipeline_replaces(option: str, value: str, model: str, fails) -> None:
    assert f"error: {option} is of the default pipeline" in fails(
        "run", model, "--pipeline", "", option, value
    )


def test_weights_seed_is_for_the_zoo(model: str, fails) -> None:
    assert fails("run", model, "--weights-seed", 1) == "frustum: error: --weights-seed is for zoo: models"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate=1.5", "rated.onnx: error: input 'rate' has elements of INT64: 1.5 is none"),
        ("rate=1e19", "rated.onnx: error: input 'rate' has elements of INT64: 1e+19 is none"),
        ("gain=1e39", "rated.onnx: error: input 'gain' has elements of FLOAT: 1e+39 is none"),
        ("x=1", "rated.onnx: error: input 'x' is 1x4x6x6: --bind gives one number to a scalar"),
        ("rat=1", "rated.onnx: error: there is no input 'rat' to bind: the inputs are 'x', 'rate', 'gain'"),
    ],
)
def test_a_value_that_an_input_cannot_have(text: str, message: str, tmp_path: Path, fails) -> None:
    assert fails("run", onnx_models.save_rated(tmp_path), "--bind", text) == message


def test_a_value_given_twice_and_none(tmp_path: Path, fails) -> None:
    model = onnx_models.save_rated(tmp_path)
    assert fails("run", model, "--bind", "rate=1", "--bind", "rate=2") == "frustum: error: --bind gives 'rate' twice"
    expected = "argument --bind: 'rate=fast' is not of the form INPUT=16000, INPUT=0.5 or INPUT=true"
    assert expected in fails("run", model, "--bind", "rate=fast")


def test_an_input_with_another_value_than_the_bound_one(tmp_path: Path, fails) -> None:
    model = onnx_models.save_rated(tmp_path)
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 4, 6, 6), np.float32), rate=np.int64(8000), gain=np.float32([2]))
    message = fails("run", model, "--bind", "rate=16000", "--input", tmp_path / "in.npz")
    assert message == f"{tmp_path / 'in.npz'}: error: input 'rate': found 8000, it is bound to 16000"


def test_a_shape_given_twice(model: str, fails) -> None:
    message = fails("run", model, "--shape", "x=1x3x8x8", "--shape", "x=2x3x8x8")
    assert message == "frustum: error: --shape gives 'x' twice"


# --- what is compiled, or dumped ---------------------------------------------------------------------------


@pytest.fixture
def compiled(model: str, tmp_path: Path) -> Path:
    options = ["--target", "edge", "--policy", "optimal", "--dump-ir", str(tmp_path / "ir")]
    assert cli.main(["compile", model, "-o", str(tmp_path / "compiled"), *options]) == 0
    return tmp_path / "compiled"


def test_damaged_executables(compiled: Path, fails) -> None:
    file = compiled / "small.frustum"
    whole = file.read_bytes()
    for place in (20, len(whole) // 3, len(whole) - 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert fails("run", compiled).startswith(f"{file}: error: ")
        assert fails("inspect", file).startswith(f"{file}: error: ")
    file.write_bytes(whole[:-10])
    assert "damaged: " in fails("run", compiled)
    file.unlink()
    assert fails("run", compiled) == f"{file}: error: cannot be read: No such file or directory"


def test_damaged_manifests(compiled: Path, fails, tmp_path: Path) -> None:
    path = compiled / "manifest.json"
    good = json.loads(path.read_text())
    path.write_text("{")
    assert fails("run", compiled).startswith(f"{path}: error: damaged: ")
    piece = good["pieces"][0]
    changes = (
        {"schema": 99},
        {"pieces": []},
        {"pieces": [piece | {"file": "../small.onnx"}]},
        {"pieces": [piece | {"kind": "cloud"}]},
        {"machine": {}},
        {"inputs": []},
    )
    for change in changes:
        path.write_text(json.dumps(good | change))
        assert fails("run", compiled).startswith(f"{path}: error: ")
    path.unlink()
    assert fails("run", compiled) == f"{compiled}: error: not a compiled folder: it has no manifest.json"


@pytest.mark.parametrize("options", [["--batch", "2"], ["--target", "edge"], ["--shape", "x=1x3x8x8"]])
def test_options_of_the_compiler_after_it(options: list[str], compiled: Path, fails) -> None:
    assert fails("run", compiled, *options) == (
        f"{compiled}: error: is compiled already: {options[0]} has no effect on it"
    )
    assert fails("compile", compiled, "-o", compiled) == f"{compiled}: error: is compiled already"


def test_nothing_to_check_against(compiled: Path, model: str, fails, tmp_path: Path) -> None:
    assert "there is no model to check against" in fails("run", compiled / "small.frustum", "--check")
    stage = tmp_path / "ir/02-fused.mlir"
    assert "a stage has no model to check against: --check=FILE.onnx says" in fails("run", stage, "--check")
    assert "'layer' is none of outputs, layers, FILE.onnx" in fails("run", stage, "--check=layer")
    twice = "--check=a.onnx", "--check-against", "b.onnx"
    assert "error: --check=a.onnx and --check-against b.onnx: one of them" in fails("run", stage, *twice)
    assert "absent.onnx: error: cannot be read" in fails("run", stage, "--check=absent.onnx")
    Path(model).unlink()
    assert fails("run", compiled, "--check") == (
        f"{model}: error: the model is not there any more, so there is nothing to check against: --check-against"
        " names it"
    )


def test_options_that_come_too_late_for_a_stage(compiled: Path, fails, tmp_path: Path) -> None:
    imported, fused = tmp_path / "ir/00-imported.mlir", tmp_path / "ir/02-fused.mlir"
    assert fails("run", imported, "--batch", 2).endswith("--batch has no effect on what is imported already")
    assert fails("run", fused, "--policy", "none").endswith("--policy none has no effect at stop 'fused'")
    assert fails("run", fused, "--dtype", "f16").endswith("--dtype f16 has no effect at stop 'fused'")
    assert fails("run", fused, "--target", "default").endswith(
        "at stop 'fused' it is made for edge: --target default comes too late"
    )
    assert "there are no instructions in it" in fails("inspect", fused, "--disassemble")


def test_stages_that_are_wrong(compiled: Path, fails, tmp_path: Path) -> None:
    stage = tmp_path / "ir/02-fused.mlir"
    text = stage.read_text()
    stage.write_text(text.replace("fgraph.conv", "fgraph.cnov"))
    message = fails("run", stage, lines=3)
    assert message.startswith(f"{stage}:")
    assert "error: Operation fgraph.cnov is not registered; did you mean 'fgraph.conv'?" in message
    stage.write_text("builtin.module {}\n")
    assert fails("run", stage) == f"{stage}: error: there is not exactly one network in it"
    stage.write_text(text)
    stage.with_suffix(".safetensors").unlink()
    assert "02-fused.safetensors: error: cannot read the weights: No such file" in fails("run", stage)


STRAY = """func.func @main(%x : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {
  %r = fgraph.unary <relu> %x : tensor<1x4x8x8xf32>
  %s = fgraph.unary <exp> %r : tensor<1x4x8x8xf32> loc("exponent")
  func.return %s : tensor<1x4x8x8xf32>
}
"""
ALONE = "stands in no network and is not compiled: frustum-graph-outline makes networks of such layers"


def test_layers_in_no_network_are_named_one_by_one(fails, tmp_path: Path) -> None:
    stage = tmp_path / "host.mlir"
    stage.write_text(STRAY)
    assert fails("run", stage, lines=3).splitlines() == [
        f"{stage}:2:8: warning: 'fgraph.unary' op {ALONE}",
        f"{stage}:3:8: warning: 'fgraph.unary' op (\"exponent\") {ALONE}",
        f"{stage}: error: there is not exactly one network in it (2 layers stand in none: frustum-graph-outline makes "
        "networks of such layers)",
    ]


def test_layers_in_no_network_do_not_keep_a_network_from_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = tmp_path / "host.mlir"
    network = """fgraph.network @n (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y"] {
      %y = fgraph.unary <relu> %x : tensor<1x4x8x8xf32>
      fgraph.output %y : tensor<1x4x8x8xf32>
    }
    """
    stage.write_text(STRAY + network)
    assert cli.main(["run", str(stage), "--target", "edge", "--mode", "timing"]) == 0
    assert [line.partition(" op")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"{stage}:{line}:8: warning: 'fgraph.unary'" for line in (2, 3)
    ]


def test_outlined_layers_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from frustum.runtime.tools import opt

    stage, outlined = tmp_path / "host.mlir", tmp_path / "outlined.mlir"
    stage.write_text(STRAY)
    assert opt.main([str(stage), "-p", "frustum-graph-outline", "-o", str(outlined)]) == 0
    assert cli.main(["run", str(outlined), "--target", "edge"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("main_0 on edge, f32")
    assert err == ""


# --- our own mistakes --------------------------------------------------------------------------------------


@pytest.fixture
def crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the compiler fail; where reproducers go."""

    def compile_module(*_: object, **__: object) -> None:
        raise KeyError("surprise\nand more")

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("frustum.runtime.model.build.compile_pieces", compile_module)
    monkeypatch.delenv("FRUSTUM_DEBUG", raising=False)
    return tmp_path / "tmp"


def test_internal_errors_are_1_with_a_reproducer(
    crash: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", model, "--target", "edge"]) == 1
    out, err = capsys.readouterr()
    (folder,) = crash.iterdir()
    file = folder / "reproducer.mlir"
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("frustum: internal error: KeyError: ")
    assert f"a reproducer is in {file}" in err
    text = file.read_text()
    assert text.startswith("// RUN: frustum-opt %s -p 'frustum-graph-unroll-recurrences,frustum-graph-find-attention,")
    assert f"\n// frustum run {model} --target edge\n" in text
    assert folder.stat().st_mode & 0o077 == 0, "nobody else can enter the folder"
    assert "// KeyError: " in text
    assert "fgraph.network @small" in text


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("from_text", [False, True])
def test_a_reproducer_runs_to_the_same_error(
    pipeline: bool,
    from_text: bool,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from frustum.backend.pipeline import Choices, passes_to, stops_after
    from frustum.passes.graph.choose_layout import ChooseLayout
    from frustum.runtime.tools import opt

    if from_text:
        stages = tmp_path / "stages"
        words = ["compile", model, "-o", tmp_path / "out", "--target", "edge", "--dump-ir", stages]
        words += ["--policy", "optimal"]
        assert cli.main([*map(str, words)]) == 0
        model = str(stages / "01-typed.mlir")
    steps = [step for stop in stops_after("typed" if from_text else "imported") for step in passes_to(stop, Choices())]
    text = ",".join(str(step.pipeline_pass_spec()) for step in steps)

    def choose(self: ChooseLayout, *_: object) -> None:
        raise KeyError(f"planted in {self.layout}")

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(ChooseLayout, "choose", choose)
    monkeypatch.delenv("FRUSTUM_DEBUG", raising=False)
    own = ["--pipeline", text] if pipeline else []
    assert cli.main(["run", model, "--target", "edge", *own]) == 1
    assert "internal error: KeyError: 'planted in auto'" in capsys.readouterr().err
    (folder,) = (tmp_path / "tmp").iterdir()
    file = folder / "reproducer.mlir"
    first = file.read_text().splitlines()[0]
    assert first == "// RUN: frustum-opt %s -p 'frustum-graph-choose-layout'"
    assert 'funit.unit "u0"' in file.read_text()
    assert 'loc("' in file.read_text()
    if from_text:
        for each in stages.iterdir():
            each.unlink()
    assert opt.main([str(file), "-p", "frustum-graph-choose-layout"]) == 1
    assert capsys.readouterr().err.startswith(
        "frustum-opt: internal error in pass 'frustum-graph-choose-layout': KeyError: 'planted in auto'\n"
    )
    assert opt.main([str(file), "-p", "frustum-graph-measure-weights"]) == 0, "the weights are beside it"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("step", [Canonicalize, FuseLayers, LowerUnits, LowerTiles, Allocate, HoistLoads])
def test_a_reproducer_of_any_part_of_the_pipeline_is_replayed(
    step: type, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from frustum.runtime.tools import opt

    def apply(self: object, *_: object) -> None:
        raise RuntimeError(f"planted in {step.__name__}")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(step, "apply", apply)
    monkeypatch.delenv("FRUSTUM_DEBUG", raising=False)
    assert cli.main(["run", model, "--target", "edge"]) == 1
    assert f"internal error: RuntimeError: planted in {step.__name__} (" in capsys.readouterr().err
    (file,) = tmp_path.glob("frustum-crash-*/reproducer.mlir")
    command = shlex.split(file.read_text().splitlines()[0].removeprefix("// RUN: "))
    assert command[:3] == ["frustum-opt", "%s", "-p"] and command[3].startswith(step.name)
    assert opt.main([str(file), *command[2:]]) == 1
    said = f"frustum-opt: internal error in pass '{step.name}': RuntimeError: planted in {step.__name__}\n"
    assert capsys.readouterr().err.startswith(said)


def test_debugging_shows_the_traceback(
    crash: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRUSTUM_DEBUG", "1")
    assert cli.main(["run", model]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert cli.main(["run", "no.onnx"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_interrupted(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("frustum.runtime.model.build.compile_pieces", interrupt)
    assert cli.main(["run", model]) == 130
    assert capsys.readouterr().err == "frustum: interrupted\n"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("written", "options", "file"),
    [
        (0, [], "00-imported"),
        (1, [], "01-typed"),
        (1, ["--pipeline", "frustum-graph-canonicalize"], "01-frustum-graph-canonicalize"),
    ],
)
def test_a_disk_that_fills_while_stages_are_dumped_is_no_internal_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: int,
    options: list[str],
    file: str,
) -> None:
    """Whole files of stops before it stay, and weights that are whole."""
    from frustum.passes import weights

    left = [written]

    class FullDisk(weights.ModulePrinter):
        def print_op(self, op: object) -> None:
            if isinstance(op, ModuleOp):
                if left[0] == 0:
                    self.print_string("half of")
                    raise OSError(errno.ENOSPC, "No space left on device")
                left[0] -= 1
            super().print_op(op)

    monkeypatch.setattr(weights, "ModulePrinter", FullDisk)
    dump, model = tmp_path / "dump", onnx_models.save(tmp_path)
    assert cli.main(["compile", model, "-o", str(tmp_path / "out"), "--dump-ir", str(dump), *options]) == 2
    assert capsys.readouterr().err == f"{dump / file}.mlir: error: cannot be written: No space left on device\n"
    assert sorted(each.suffix for each in dump.iterdir()) == [".mlir"] * written + [".safetensors"] * (written + 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["targets"], ["targets", "edge"], ["--help"], ["--version"], ["inspect", "MODEL"], ["run", "MODEL"]]
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_stdout_is_no_internal_error(model: str, command: list[str]) -> None:
    words = [model if word == "MODEL" else word for word in command]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "frustum.runtime.tools.cli", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.stderr == "frustum: error: stdout cannot be written: No space left on device\n"
    assert done.returncode == 2
