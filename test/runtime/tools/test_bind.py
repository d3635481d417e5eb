"""--bind: a scalar input becomes a constant, for the compiler, the oracle, the cache, folders and the API."""

import json
from pathlib import Path

import numpy as np
import onnx_models
import onnxruntime
import pytest

import frustum
from frustum.runtime.tools import cli

X = np.random.default_rng(1).standard_normal((1, 4, 6, 6), np.float32)


def command(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def wanted(rate: int, gain: float) -> np.ndarray:
    session = onnxruntime.InferenceSession(onnx_models.rated().SerializeToString())
    return session.run(None, {"x": X, "rate": np.array(rate), "gain": np.float32([gain])})[0]


@pytest.mark.parametrize("rate", [16000, 8000])
def test_the_branch_that_is_taken_runs_on_the_device_and_is_checked(rate: int, tmp_path: Path) -> None:
    """An array of a bound input may be given, and needs not."""
    model = onnx_models.save_rated(tmp_path)
    np.savez(tmp_path / "in.npz", x=X, rate=np.int64(rate))
    bound = ("--bind", f"rate={rate}", "--bind", "gain=0.5", "--target", "edge", "--mode", "functional")
    files = ("--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz", "--report", tmp_path / "r.json")
    assert command("run", model, *bound, *files, "--check", "--checked") == 0
    assert json.loads((tmp_path / "r.json").read_text())["host"]["layers"] == []
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], wanted(rate, 0.5), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_folder_knows_what_was_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx_models.save_rated(tmp_path)
    bound = ("--bind", "rate=16000", "--bind", "gain=2", "--target", "edge")
    assert command("compile", model, *bound, "-o", tmp_path / "made") == 0
    assert json.loads((tmp_path / "made/manifest.json").read_text())["bound"] == {
        "rate": ["int64", [], 16000], "gain": ["float32", [1], 2.0]
    }  # fmt: skip
    assert command("run", tmp_path / "made", "--check=layers") == 0
    np.savez(tmp_path / "in.npz", x=X, rate=np.int64(16000))
    assert command("run", tmp_path / "made", "--input", tmp_path / "in.npz", "--check") == 0
    np.savez(tmp_path / "in.npz", x=X, rate=np.int64(1))
    capsys.readouterr()
    assert command("run", tmp_path / "made", "--input", tmp_path / "in.npz") == 2
    assert "input 'rate': found 1, it is bound to 16000" in capsys.readouterr().err
    assert command("run", tmp_path / "made", "--bind", "rate=1") == 2
    assert "is compiled already: --bind has no effect on it" in capsys.readouterr().err


def test_the_cache_tells_values_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRUSTUM_CACHE", str(tmp_path / "cache"))
    model = onnx_models.save_rated(tmp_path)
    for rate in (16000, 1, 16000):
        bound = ("--bind", f"rate={rate}", "--bind", "gain=1", "--target", "edge", "--mode", "functional")
        assert command("run", model, *bound, "--check") == 0
    assert len(list((tmp_path / "cache").glob("*/manifest.json"))) == 2


def test_inspect_says_what_runs_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx_models.save_rated(tmp_path)
    assert command("inspect", model, "--target", "edge", "--bind", "rate=1") == 0
    assert "nothing goes to the host" in capsys.readouterr().out
    assert command("inspect", model, "--bind", "rate=1") == 2
    assert "--bind needs --target" in capsys.readouterr().err


def test_of_the_api() -> None:
    bind = {"rate": 16000, "gain": np.float32(3)}
    made = frustum.compile(onnx_models.rated(), target="edge", host="never", bind=bind)
    assert [each.name for each in made.inputs] == ["x"]
    found = frustum.run(made, {"x": X, "gain": np.float32([3])}, check=True, mode="functional")
    np.testing.assert_allclose(found.outputs["y"], wanted(16000, 3), rtol=0, atol=1e-5)
    with pytest.raises(frustum.Error, match="input 'gain': found"):
        frustum.run(made, {"x": X, "gain": np.float32([4])})
    with pytest.raises(frustum.Error, match="input 'rate' has elements of INT64"):
        frustum.compile(onnx_models.rated(), bind={"rate": [1, 2]})
