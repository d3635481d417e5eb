"""`frustum inspect MODEL --target T`: what runs where is what a compilation makes of it."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_models
import pytest
from mixed_models import sandwich

import frustum
from frustum.backend import targets
from frustum.runtime.tools.cli import main
from frustum.runtime.tools.coverage import coverage_of


def test_layers_and_macs_are_those_of_the_compiled_program(tmp_path: Path) -> None:
    model = onnx_models.save(tmp_path)
    found = coverage_of(model, targets.load("edge"))
    report = frustum.run(frustum.compile(model, target="edge", cache=False), mode="timing").report
    assert found.on_host == ()
    assert {each.name for each in found.layers} == {each["name"] for each in report["layers"]}
    assert found.macs == report["macs"]["useful"] > 0
    conv = next(each for each in found.layers if each.op == "Conv")
    assert conv.shape[0] == 1 and len(conv.shape) == 4


def test_nodes_of_the_host_have_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mixed.onnx"
    onnx.save(sandwich(), path)
    found = coverage_of(str(path), targets.load("edge"))
    report = frustum.run(frustum.compile(path, target="edge", cache=False), mode="functional").report
    assert [(f.name, f.op, f.reason) for f in found.on_host] == [
        (each["name"], each["op"], each["reason"]) for each in report["host"]["layers"]
    ]
    assert found.layers
    assert main(["inspect", str(path), "--target", "edge"]) == 0
    text = capsys.readouterr().out
    assert "On the host, and why\n  h   Hardmax   " in text
    assert "1 nodes go to the host" in text and "Layers of the device" in text
    assert frustum.inspect(path, target=targets.load("edge")) + "\n" == text


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("words", [["{made}"], ["{made}/manifest.json"], ["{model}", "--disassemble"]])
def test_only_models_are_looked_at_for_a_target(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, made = onnx_models.save(tmp_path), tmp_path / "made"
    compiled = frustum.compile(model, target="edge", cache=False)
    compiled.save(made)
    said = [word.format(model=model, made=made) for word in words]
    assert main(["inspect", *said, "--target", "edge"]) == 2
    assert "--target is for models that are not compiled yet" in capsys.readouterr().err
    with pytest.raises(frustum.Error, match="target is for models: this is compiled already"):
        frustum.inspect(compiled, target="edge")
