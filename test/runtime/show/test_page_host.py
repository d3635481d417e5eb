# Of runtime/show/page.js, where nothing ran on the device.
"""The page of a run that is wholly or partly on the host says why; its script runs on a document of stubs."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from mixed_models import model, node
from shown import drawn

from frustum.runtime.tools import cli


def wholly(folder: Path) -> Path:
    path = folder / "hosted.onnx"
    nodes = [node("Hardmax", ["x"], ["a"]), node("Hardmax", ["a"], ["y"])]
    onnx.save(onnx.shape_inference.infer_shapes(model(nodes, {"x": (1, 1000)}, ["y"])), path)
    return path


def test_a_run_wholly_on_the_host(tmp_path, capsys):
    """Exit 0, one line that says so, its time by hand, and a page with the reasons."""
    words = [str(tmp_path / "run.html"), "--report", str(tmp_path / "run.json"), "--target", "edge"]
    assert cli.main(["run", str(wholly(tmp_path)), "--html", *words]) == 0
    text = capsys.readouterr().out
    assert "All on the host: nothing of hosted.onnx runs on the device\n  2 x Hardmax: this operator is not" in text
    report = json.loads((tmp_path / "run.json").read_text())
    # each reads and writes 4000 bytes, 20 in a cycle
    assert report["cycles"]["total"] == report["host"]["cycles"] == 800
    assert [(each["where"], each["cycles"]) for each in report["layers"]] == [("host", 400)] * 2
    if shutil.which("node"):
        shown = drawn(tmp_path / "run.html", "cards", "host-p", "host-g")
        assert shown["ready"] == "1" and shown["hostOnly"] and shown["hasHost"]
        assert "800 cycles" in shown["cards"] and "nothing runs on the device" in shown["host-p"]
        assert "2 Hardmax this operator is not supported a, y" in shown["host-g"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rules", "junk"], "error: --rules: unknown rule 'junk'"),
        (["--pipeline", "-no-such-pass"], "no-such-pass"),
    ],
)
def test_options_are_checked_all_the_same(tmp_path, capsys, words, message):
    assert cli.main(["run", str(wholly(tmp_path)), *words]) == 2
    assert message in capsys.readouterr().err


def test_cuts_of_host_layers_are_refused(tmp_path, capsys):
    path = str(wholly(tmp_path))
    assert cli.main(["run", path, "--cuts", "foo"]) == 2
    assert "--cuts: no layer is called 'foo': all of the model runs on the host" in capsys.readouterr().err
    assert cli.main(["run", path, "--cuts", "a"]) == 2
    assert "--cuts: layer 'a' (Hardmax) runs on the host: this operator is not supported" in capsys.readouterr().err


def test_mode_functional_counts_no_time(tmp_path, capsys):
    path = tmp_path / "run.json"
    assert cli.main(["run", str(wholly(tmp_path)), "--mode", "functional", "--report", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["cycles"] is None and report["host"]["cycles"] is None and report["layers"][0]["cycles"] is None


def test_a_page_with_both(tmp_path):
    """The reasons of layers on the host, beside the units of the device."""
    path = tmp_path / "both.onnx"
    nodes = [node("Relu", ["x"], ["a"]), node("Hardmax", ["a"], ["y"])]
    onnx.save(onnx.shape_inference.infer_shapes(model(nodes, {"x": (4, 16)}, ["y"])), path)
    assert cli.main(["run", str(path), "--html", str(tmp_path / "run.html"), "--target", "edge", "--quiet"]) == 0
    text = (tmp_path / "run.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["reasons"] == ["this operator is not supported"] and data["runs"]
    if shutil.which("node"):
        shown = drawn(tmp_path / "run.html", "host-p")
        assert shown["ready"] == "1" and not shown["hostOnly"] and shown["host-p"].startswith("1 of 2 layers")
