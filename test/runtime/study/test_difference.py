"""What changed between two reports adds up to what their totals say, and conditions hold when they should."""

import copy
import json

import numpy as np
import onnx
import pytest
from mixed_models import model, node

from frustum.runtime.study.difference import (
    ConditionError,
    Figure,
    difference,
    parse_condition,
    value_of,
)
from frustum.runtime.tools.cli import main


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    path = tmp_path_factory.mktemp("diff") / "chain.onnx"
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((4, 4, 3, 3), np.float32) / 6 for k in range(4)}
    nodes = [node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1, 1, 1, 1]) for k in range(4)]
    onnx.save(model(nodes, {"x0": (1, 4, 12, 12)}, ["x4"], weights), path)
    return path


@pytest.fixture(scope="module")
def files(chain, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    for name, words in {"none": ["--policy", "none"], "one": ["--cuts", "x4"], "two": ["--cuts", "x2"]}.items():
        path = str(folder / f"{name}.json")
        assert main(["run", str(chain), "--target", "edge", "--mode", "timing", *words, "--report", path]) == 0
    return folder


@pytest.fixture(scope="module")
def reports(files):
    return {path.stem: json.loads(path.read_text()) for path in files.iterdir()}


@pytest.mark.parametrize(("before", "after"), [("none", "one"), ("one", "two"), ("two", "none")])
def test_changes_of_units_add_up_to_those_of_the_totals(reports, before, after):
    found = difference(reports[before], reports[after])
    totals = {figure.name: figure.change for figure in found.totals}
    assert sum(change.cycles.change for change in found.changes) == totals["cycles"]
    of_classes = sum(figure.change for figure in found.classes if figure.name != "other")
    assert sum(change.bytes.change for change in found.changes) == of_classes
    for change in found.changes:
        if len(change.causes) < 3:
            assert sum(cycles for _, cycles in change.causes) == change.cycles.change
    assert found.alike == {"model": True, "target": True, "pipeline": False}


def test_units_that_share_layers_belong_together(reports):
    (change,) = difference(reports["one"], reports["two"]).changes
    assert (change.before, change.after, set(change.layers)) == (("u0",), ("u0", "u1"), {"x1", "x2", "x3", "x4"})
    assert change.is_regrouped
    assert difference(reports["one"], reports["one"]).changes == ()


def test_a_unit_that_only_got_slower_is_told_with_its_cause(reports):
    slow = copy.deepcopy(reports["two"])
    wait = {"engine": "cluster0.gdma", "for": "port", "on": "dram", "why": "turn", "cycles": 77}
    slow["units"][1]["waits"].append(wait)
    (change,) = difference(reports["two"], slow).changes
    assert (change.before, change.cycles.change, change.causes) == (
        ("u1",), 77, (("gdma waits for the port of dram", 77),),
    )  # fmt: skip
    text = difference(reports["two"], slow, ("a", "b")).text()
    assert "1 of 2 groups of units changed" in text and "+77 cycles: gdma waits for the port of dram" in text


def test_the_keys_that_differ_are_named(reports):
    slow = copy.deepcopy(reports["two"])
    slow["cycles"]["total"] += 1
    slow["seconds"]["emulate"] = 1e9
    assert difference(reports["two"], slow).keys == ("cycles.total",)
    assert "keys of the report that differ: cycles.total" in difference(reports["two"], slow).text()
    assert "keys of the report" not in difference(reports["two"], reports["two"]).text()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("cycles>+2%", True), ("cycles>+300%", False), ("cycles>+10", True), ("cycles<-5%", False),
        ("bytes>1000", True), ("dram.ratio>=1", True), ("cycles.ratio<1", False), (" bytes <= -1 ", False),
    ],
)  # fmt: skip
def test_conditions(reports, condition, holds):
    assert parse_condition(condition).holds(reports["one"], reports["none"]) is holds
    assert not parse_condition("cycles>+0%").holds(reports["one"], reports["one"])


@pytest.mark.parametrize("text", ["cycles", "cycles>", "cycles>2%", "cycles=>2", "", "cycles>+2%%"])
def test_what_is_no_condition(text):
    with pytest.raises(ConditionError, match=r"cycles>\+2%"):
        parse_condition(text)


def test_a_figure_that_is_not_there_is_no_condition(reports):
    with pytest.raises(ConditionError, match=r"'nothing'"):
        parse_condition("nothing>1").holds(reports["one"], reports["two"])
    assert value_of(reports["one"], "dram") is None and Figure("a", None, 1.0).percent is None


def test_the_command(files, capsys):
    words = ["diff", str(files / "one.json"), str(files / "none.json")]
    assert main(words) == 0
    assert "they are compiled with other options" in capsys.readouterr().out
    assert main([*words, "--markdown", "--fail-on", "cycles>+2%", "--fail-on", "bytes<0"]) == 5
    captured = capsys.readouterr()
    assert "| bytes |" in captured.out and captured.err.strip().endswith("error: cycles>+2%")


def test_compiled_folders_are_run(chain, files, tmp_path, capsys):
    folder = tmp_path / "compiled"
    assert main(["compile", str(chain), "--target", "edge", "--cuts", "x2", "-o", str(folder)]) == 0
    assert main(["diff", str(files / "two.json"), str(folder), "--fail-on", "cycles>+0"]) == 0
    assert "all 2 units are what they were" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not a report"), ("[]", "not a report of schema 1"), ('{"schema": 1}', "not a report of schema 1")],
)
def test_what_is_no_report(files, tmp_path, capsys, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main(["diff", str(files / "one.json"), str(path)]) == 2
    assert f"{path}: error: {message}" in capsys.readouterr().err
    assert main(["diff", str(tmp_path / "none"), str(path)]) == 2
    assert main(["diff", str(path), str(path), "--fail-on", "x"]) == 2
