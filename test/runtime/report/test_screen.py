"""One screen says what was fused, what it saves, what the run waits for; its numbers are those of the report."""

import io
import json
import re

import numpy as np
import onnx
import pytest
from mixed_models import model, node
from networks import Net

import frustum
from frustum.backend.targets import load
from frustum.dialects import graph as g
from frustum.dialects.graph import networks_of
from frustum.passes.analysis.least_work import least_work
from frustum.runtime.report import terminal
from frustum.runtime.report.figures import Report
from frustum.runtime.report.layer_by_layer import layer_by_layer
from frustum.runtime.report.screen import MOST_UNITS, screen
from frustum.runtime.tools.cli import main

ESCAPE = "\033["


@pytest.fixture(scope="module")
def report(squeezenet):
    return frustum.run(squeezenet, {}, mode="timing").report


def test_the_screen_is_one_screen_and_says_what_matters(report):
    text = screen(report)
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert "layer by layer" in text and "maps stay on chip" in text and "Units that take most" in text
    assert f"{report['cycles']['total']:,} cycles" in text
    assert " 0 B" not in text and ESCAPE not in text
    rest = len(report["units"]) - MOST_UNITS
    said = [line for line in lines if re.fullmatch(r"  and -?\d+ more", line)]
    assert said == ([f"  and {rest} more"] if rest > 0 else [])


def test_sentences_add_up_and_their_shares_are_those_of_the_run(report):
    found = report["waiting"]
    assert [each["cycles"] for each in found] == sorted((each["cycles"] for each in found), reverse=True)
    total = report["cycles"]["total"]
    assert 0.9 * total <= sum(each["cycles"] for each in found) <= total
    assert all(each["share"] == each["cycles"] / total for each in found)
    names = {unit["name"] for unit in report["units"]}
    assert all(set(each["units"]) <= names for each in found)
    assert any(each["is_wait"] for each in found) and any(not each["is_wait"] for each in found)


def test_colours_are_the_same_words(report):
    painted = screen(report, colours=True)
    assert ESCAPE in painted and re.sub(r"\033\[\d+m", "", painted) == screen(report)


@pytest.mark.parametrize(
    ("is_terminal", "variables", "wanted"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_when_there_are_colours(monkeypatch, is_terminal, variables, wanted):
    stdout = io.StringIO()
    stdout.isatty = lambda: is_terminal
    monkeypatch.setattr(terminal.sys, "stdout", stdout)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert terminal.has_colours() is wanted


def test_layer_by_layer_is_what_a_pencil_says():
    """x (1x4x8x8) -> conv a -> relu b -> add c of b and a -> output: a is written once and read twice, b once."""
    net = Net()
    x = net.input(1, 4, 8, 8)
    a = net.conv(x, 4, [1, 1])
    b = net.layer(g.UnaryOp("relu", net.layer(g.ReshapeOp(a, (1, 4, 4, 16)))))
    module, _ = net.module(net.binary("add", net.layer(g.ReshapeOp(b, (1, 4, 8, 8))), a))
    found = layer_by_layer(1000, [least_work(networks_of(module)[0], load("edge"))])
    size = 4 * 4 * 8 * 8
    assert (found.bytes, found.maps) == (1000 + 3 * size + 2 * size, 2)


def test_the_plan_without_fusion_moves_what_layer_by_layer_says_or_more(tmp_path):
    path = tmp_path / "chain.onnx"
    weights = {f"w{k}": np.ones((4, 4, 1, 1), np.float32) for k in range(3)}
    nodes = [node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(3)]
    onnx.save(model(nodes, {"x0": (1, 4, 8, 8)}, ["x3"], weights), path)
    found = frustum.run(frustum.compile(path, "edge", policy="none"), {}, mode="timing").report["dram"]
    assert found["layer_by_layer_bytes"] == found["total_bytes"] - found["other_bytes"]
    assert found["maps"] == found["maps_in_dram"] == 2
    plain = frustum.compile(path, "edge", compress_weights="none")
    fused = frustum.run(plain, {}, mode="timing").report["dram"]
    assert fused["layer_by_layer_bytes"] == found["layer_by_layer_bytes"] and fused["maps_in_dram"] == 0


def test_what_runs_on_the_host_alone_says_so_first(tmp_path, capsys):
    path = tmp_path / "host.onnx"
    onnx.save(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]), path)
    assert main(["run", str(path), "--host", "only"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[4] == f"All on the host: nothing of {path.name} runs on the device"
    assert "DRAM" not in text and "On chip" not in text


def test_options_of_what_is_printed(tmp_path, capsys):
    path = tmp_path / "small.onnx"
    onnx.save(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]), path)
    words = ["run", str(path), "--target", "edge"]
    assert main([*words, "--quiet"]) == 0 and capsys.readouterr().out == ""
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert screen(data) == Report(data).text()
    assert main([*words, "-v"]) == 0
    assert "Engines (mean share of the cycles)" in capsys.readouterr().out
    for wrong in (["--quiet", "--json"], ["--quiet", "-v"], ["--json", "-v"]):
        assert main([*words, *wrong]) == 2
