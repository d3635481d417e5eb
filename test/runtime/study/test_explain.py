"""Every number of an explanation is what a run with the options that it names counts; bad names are refused."""

import json
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import onnx
import pytest
from mixed_models import model, node

import frustum
from frustum.backend import targets
from frustum.runtime.model.options import Request
from frustum.runtime.study.difference import Change, Figure
from frustum.runtime.study.explain import Way, _causes, as_in, explain_part, explain_plan, flips, with_number
from frustum.runtime.study.explain_text import lines_of
from frustum.runtime.tools.cli import main
from frustum.runtime.tools.explain import best_trees

MACHINE = ["--target", "edge", "--no-cache"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "chain.onnx"
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((4, 4, 3, 3), np.float32) / 6 for k in range(3)}
    nodes = [node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1, 1, 1, 1]) for k in range(3)]
    onnx.save(model(nodes, {"x0": (1, 4, 12, 12)}, ["x3"], weights), path)
    return str(path)


def printed(words, capsys):
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def recounted(chain, options, capsys):
    """Cycles, bytes and units of a run with these options."""
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    data = json.loads(printed(["run", chain, *MACHINE, "--mode", "timing", "--json", *words], capsys))
    return data["cycles"]["total"], data["dram"]["total_bytes"], [unit["layers"] for unit in data["units"]]


@pytest.mark.slow
def test_the_plan_and_each_cut_are_recounted(chain, capsys):
    found = json.loads(printed(["explain", chain, "--policy", "optimal", *MACHINE, "--json"], capsys))
    assert found["what"] == "plan" and len(found["cuts"]) == len(found["units"]) - 1 > 0
    units = [unit["layers"] for unit in found["units"]]
    assert recounted(chain, {"policy": "optimal"}, capsys) == (found["cycles"], found["dram_bytes"], units)
    assert found["tree"]["plan_bytes"] <= found["dram_bytes"]
    assert f"{found['tree']['dram_bytes']:,} DRAM bytes; every plan moves" in "\n".join(lines_of(found))
    pairs = [(found, found["same"]), *((found["same"], cut["without"]) for cut in found["cuts"])]
    for base, way in pairs:
        counted = recounted(chain, way["options"], capsys)
        assert counted == (way["cycles"], way["dram_bytes"], way["units"])
        assert sum(way["bytes_by_class"].values()) == way["dram_bytes"] - base["dram_bytes"]
    for cut in found["cuts"]:
        for key in ("cycles", "dram_bytes"):
            assert cut["here"][key] + cut["elsewhere"][key] == cut["without"][key] - found["same"][key]
    text = "\n".join(lines_of(found))
    assert f"{found['cuts'][0]['without']['dram_bytes']:,} DRAM bytes" in text
    assert "in the units beside this cut; " in text and "two whole plans" in text


def test_a_cause_that_went_up_here_and_down_there_is_named_once():
    changes = [
        Change((), (unit,), (), Figure("bytes", 0, 0), Figure("cycles", 0, 0), (), (), (("gdma waits", n), *more))
        for unit, n, more in (("u0", 100, [("bus waits", 7)]), ("u1", -100, []), ("u2", 5, []))
    ]
    assert _causes(changes) == [
        {"units": ["u0"], "cause": "bus waits", "cycles": 7},
        {"units": ["u0", "u1", "u2"], "cause": "gdma waits", "cycles": 5},
    ]


def test_ways_have_weights_as_the_plan_has_them():
    """What was tried for the plan and was no better is not tried again for each way; what was asked for is."""
    raw, packed = {"cycles": {"total": 1}}, {"cycles": {"total": 1}, "weights": {"codec": "auto"}}
    assert as_in(raw, None) == as_in(raw, "auto") == {"compress_weights": "none"}
    assert as_in(packed, None) == as_in(raw, "huffman") == as_in({"cycles": None}, None) == {}
    asked = []

    def count(ways):
        asked.extend(way.changes["compress_weights"] for way in ways)
        return [replace(way, problem="not counted here") for way in ways]

    names = {"model": "m", "target": "t", "policy": "optimal", "host": None, "layers": []}
    units = [{"name": f"u{k}", "layers": [f"l{k}"], "waits": []} for k in range(2)]
    plan = report(100, "l0") | names | {"units": units}
    explain_plan(plan, count, 8, as_in(raw, None))
    explain_part(plan, "u0", count, 8, as_in(raw, None))
    assert len(asked) > 2 and set(asked) == {"none"}


@pytest.mark.slow
def test_the_next_best_ways_of_a_layer_are_recounted(chain, capsys):
    words = ["explain", chain, "x2", *MACHINE, "--json", "--probes", "0"]
    found = json.loads(printed(words, capsys))
    assert found["what"] == "layer" and "x2" in found["unit"]["layers"] and len(found["ways"]) == 2
    assert found["ways"][0]["cycles"] <= found["ways"][1]["cycles"] and found["flips"] == []
    for way in found["ways"]:
        assert recounted(chain, way["options"], capsys) == (way["cycles"], way["dram_bytes"], way["units"])
    bounded = json.loads(printed([*words, "--most", "1"], capsys))
    assert len(bounded["left_out"]) + len(bounded["ways"] + bounded["others"]) == len(
        found["ways"] + found["others"]
    )
    assert bounded["left_out"] and "not counted" in "\n".join(lines_of(bounded))


PLAN = {"dram": {"total_bytes": 9000, "other_bytes": 2000}}
"""Of a report: what is not of tensors is programs."""


def trees_of(model, **settings):
    found = best_trees(Request(model=model, **{"target": "edge", **settings}), PLAN)
    said = {"what": "plan", "model": "m", "target": "t", "cycles": 1, "dram_bytes": 9000, "units": [], "tree": found}
    return found, lines_of({**said, "same": None, "cuts": [], "left_out": []})


def test_what_a_tree_reaches_is_beside_the_plan(chain):
    found, lines = trees_of(chain)
    (tree,) = found["networks"]
    (planned,) = frustum.plan(chain, "edge")
    assert found["dram_bytes"] == tree["dram_bytes"] == planned.counted.dram_bytes
    assert tree["sram_bytes"] == planned.counted.sram_bytes
    assert tree["dram_bytes"] >= tree["compulsory_bytes"] == planned.network.compulsory_bytes
    change = tree["dram_bytes"] - 7000
    assert f"  {change:+,} bytes, {tree['dram_bytes'] / 7000:.2f} x: of tensors the plan below moves 7,000" in lines
    assert f"{tree['dram_bytes']:,} DRAM bytes; every plan moves {tree['compulsory_bytes']:,}" in "\n".join(lines)


def test_why_there_is_no_tree_is_said(chain):
    tiny = with_number(targets.load("edge"), "sram.capacity_bytes", 256)
    found, lines = trees_of(chain, target=tiny)
    assert found["dram_bytes"] is None and "256 B of SRAM" in found["networks"][0]["problem"]
    assert any("@chain: none: " in line and "256 B of SRAM" in line for line in lines)
    found, lines = trees_of(chain, dtype="int8")
    assert found["networks"] == [] and "int8" in found["problem"] and "none: " in lines[2]


def test_a_process_that_is_ended_is_named(chain, capsys, monkeypatch):
    class Broken:
        def map(self, work, parts):
            raise BrokenProcessPool

    monkeypatch.setattr("frustum.runtime.tools.explain.workers", lambda scheduler: nullcontext((Broken(), 2)))
    assert main(["explain", chain, "--policy", "optimal", *MACHINE]) == 2
    assert "was ended from outside" in capsys.readouterr().err


def test_a_name_that_nothing_has_is_refused(chain, capsys):
    assert main(["explain", chain, "x22", *MACHINE]) == 2
    assert "no layer or unit is called 'x22'; did you mean 'x2'?" in capsys.readouterr().err
    assert main(["explain", chain, *MACHINE, "--pipeline", "frustum-set-target"]) == 2
    assert "--pipeline" in capsys.readouterr().err


def test_a_layer_on_the_host_says_why(chain, capsys):
    found = json.loads(printed(["explain", chain, "x2", *MACHINE, "--host", "only", "--json"], capsys))
    (layer,) = found["layers"]
    assert found["what"] == "host" and layer["op"] == "Conv" and layer["reason"]


def test_a_model_on_the_host_says_why_of_each_layer(chain, capsys):
    words = ["explain", chain, *MACHINE, "--host", "only"]
    found = json.loads(printed([*words, "--json"], capsys))
    assert found["what"] == "host" and [each["layer"] for each in found["layers"]] == ["x1", "x2", "x3"]
    assert printed(words, capsys).count(" (Conv) is on the host: ") == 3


def test_the_nearest_value_that_flips_is_searched():
    """A machine on which the other way is better from 13 bytes a cycle on."""
    target = targets.load("edge")

    def count(changes):
        if "cuts" not in changes:
            return report(100, "plan")
        return report(90 if changes["target"].chip.dram.port_bytes_per_cycle >= 13 else 100, "other")

    dram, sram = flips(target, Way("other", {"cuts": "a"}), count, 6)
    tried = {each["value"]: each["flips"] for each in dram["tried"]}
    assert dram["now"] == 8 and dram["flips_at"] == 13 and tried[13] and not tried[12]
    assert sram["flips_at"] is None and len(sram["tried"]) == 4


def test_a_target_that_cannot_be_is_not_tried():
    target = targets.load("edge")
    assert with_number(target, "dram.port_bytes_per_cycle", 0) is None
    assert with_number(target, "sram.capacity_bytes", 1001) is None
    assert with_number(target, "dram.port_bytes_per_cycle", 16) == replace(
        target, chip=replace(target.chip, dram=replace(target.chip.dram, port_bytes_per_cycle=16))
    )


def report(cycles, layer):
    """What `flips` reads of a report."""
    return {"cycles": {"total": cycles}, "dram": {"total_bytes": cycles}, "units": [{"layers": [layer]}]}


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """Squeeze and excitation, of which the clusters of `default` reduce rows first: parts of a layer of the model."""
    path = tmp_path_factory.mktemp("explain") / "gated.onnx"
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape, np.float32) / 12 for name, shape in
               {"w": (96, 16, 3, 3), "v": (96, 96, 1, 1), "u": (16, 96, 1, 1)}.items()}  # fmt: skip
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("GlobalAveragePool", ["a"], ["m"]),
        node("Conv", ["m", "v"], ["s"]), node("Sigmoid", ["s"], ["g"]), node("Mul", ["a", "g"], ["b"]),
        node("Conv", ["b", "u"], ["y"]),
    ]  # fmt: skip
    for number, each in enumerate(nodes):
        each.name = f"layer{number}"
    onnx.save(model(nodes, {"x": (1, 16, 48, 48)}, ["y"], weights), path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["", "layer1", "layer1/rows"])
def test_parts_of_layers_that_the_plan_has_made_are_no_cuts(gated, subject, capsys):
    words = ["explain", gated, *filter(None, [subject]), "--target", "default", "--policy", "optimal", "--no-cache"]
    found = json.loads(printed([*words, "--json", "--probes", "0"], capsys))
    if subject:
        ways, units = found["ways"] + found["others"], [found["unit"]]
    else:
        ways, units = [found["same"], *(cut["without"] for cut in found["cuts"])], found["units"]
    assert ways and not any("problem" in way for way in ways)
    assert "layer1/rows" not in json.dumps([way["options"] for way in ways])
    assert subject == "layer1" or any("layer1/rows" in unit["layers"] for unit in units)
