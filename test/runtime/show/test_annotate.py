"""Annotated models open, keep what they compute and where their weights lie, and have the report's figures."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import frustum
from frustum.runtime.show.annotate import PREFIX, annotate, explorer_graph
from frustum.runtime.tools import cli

CYCLES, BYTES = "frustum.cycles", "frustum.dram_bytes"


def properties(owner) -> dict[str, str]:
    return {each.key: each.value for each in owner.metadata_props}


def run(*words: object) -> int:
    return cli.main(["run", *map(str, words), "--target", "edge", "--quiet"])


def test_a_copy_has_the_figures_of_the_report_and_computes_the_same(tmp_path: Path) -> None:
    path, copy, report = onnx_models.save(tmp_path), tmp_path / "copy.onnx", tmp_path / "report.json"
    assert run(path, "--annotate", copy, "--report", report) == 0
    onnx.checker.check_model(str(copy), full_check=True)
    made, data = onnx.load(copy), json.loads(report.read_text())
    found = {node.name: properties(node) for node in made.graph.node}
    layers = {layer["name"]: layer for layer in data["layers"]}
    assert layers.keys() <= found.keys()
    for name, facts in found.items():
        if name not in layers:
            assert facts == {}, "the rectifier is part of the convolution"
            continue
        assert facts["frustum.unit"] == layers[name]["unit"] and facts["frustum.where"] == "device"
        assert (int(facts[CYCLES]), int(facts[BYTES])) == (layers[name]["cycles"], layers[name]["dram_bytes"])
    totals = properties(made)
    assert int(totals[CYCLES]) == data["cycles"]["total"] and int(totals[BYTES]) == data["dram"]["total_bytes"]
    assert (totals["frustum.target"], totals["frustum.dtype"]) == ("edge", "f32")
    x = {"x": onnx_models.image()}
    for a, b in zip(ReferenceEvaluator(path).run(None, x), ReferenceEvaluator(made).run(None, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_second_annotation_replaces_the_first_and_leaves_what_others_wrote() -> None:
    model = onnx_models.network()
    model.graph.node[0].metadata_props.add(key="theirs", value="1")
    model.metadata_props.add(key="theirs", value="2")
    layer = {"name": "conv", "unit": "u0", "where": "device", "dram_bytes": 5, "cycles": 7}
    report = {"target": "edge", "dtype": "f32", "policy": "none", "dram": {"total_bytes": 9}, "cycles": {"total": 8}}
    annotate(model, {**report, "layers": [layer]})
    annotate(model, {**report, "layers": [{**layer, "cycles": None, "unit": None, "where": "host"}], "cycles": None})
    assert properties(model.graph.node[0]) == {"theirs": "1", "frustum.where": "host", BYTES: "5"}
    expected = {"theirs": "2", BYTES: "9", **{f"{PREFIX}{k}": report[k] for k in ("target", "dtype", "policy")}}
    assert properties(model) == expected


def test_layers_of_one_node_are_added_up_and_longer_names_win() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], "a"), helper.make_node("Relu", ["a"], ["a/b"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1])],
                              [helper.make_tensor_value_info("a/b", 1, [1])])  # fmt: skip
    model = helper.make_model(graph)
    facts = {"unit": "u0", "where": "device", "cycles": 2}
    names = {"a": 1, "a/x": 10, "a/b": 100, "a/b/y": 1000, "ab": 10000}
    layers = [{**facts, "name": name, "dram_bytes": size} for name, size in names.items()]
    annotate(model, {"layers": layers, "target": "t", "dtype": "f32", "policy": "none", "dram": {"total_bytes": 0},
                     "cycles": None})  # fmt: skip
    assert [properties(node)[BYTES] for node in model.graph.node] == ["11", "1100"]
    assert [properties(node)[CYCLES] for node in model.graph.node] == ["4", "4"]


def test_weights_beside_the_model_stay_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, copy = tmp_path / "large.onnx", tmp_path / "copy.onnx"
    onnx.save(onnx_models.network(), path, save_as_external_data=True, location="weights", size_threshold=0)
    size = (tmp_path / "weights").stat().st_size
    (tmp_path / "away").mkdir()
    assert run(path, "--annotate", tmp_path / "away" / "copy.onnx") == 2
    message = capsys.readouterr().err
    assert "weights of large.onnx lie in files beside it (weights)" in message and str(tmp_path) in message
    assert run(path, "--annotate", copy) == 0
    assert (tmp_path / "weights").stat().st_size == size
    onnx.checker.check_model(str(copy))
    for a, b in zip(onnx.load(copy).graph.initializer, onnx_models.network().graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))
    proto = onnx.load(copy, load_external_data=False)
    assert all(each.data_location == onnx.TensorProto.EXTERNAL for each in proto.graph.initializer)


def test_model_explorer_has_nodes_edges_units_and_figures(tmp_path: Path) -> None:
    path = onnx_models.save(tmp_path)
    result = frustum.run(frustum.compile(path, "edge"), mode="timing")
    result.report.annotate(tmp_path / "graph.json")
    data = json.loads((tmp_path / "graph.json").read_text())
    assert data == explorer_graph(onnx.load(path), result.report)
    (graph,) = data["graphs"]
    nodes = {each["id"]: each for each in graph["nodes"]}
    assert [each["label"] for each in graph["nodes"]] == ["Input", *(n.op_type for n in onnx.load(path).graph.node)]
    assert len(nodes) == len(graph["nodes"])
    for each in graph["nodes"]:
        for edge in each["incomingEdges"]:
            outputs = {one["id"] for one in nodes[edge["sourceNodeId"]]["outputsMetadata"]}
            assert edge["sourceNodeOutputId"] in outputs
    edges = sum(len(each["incomingEdges"]) for each in graph["nodes"])
    assert edges == len(onnx.load(path).graph.node), "a chain: each node reads one map"
    units = {layer["name"]: layer["unit"] for layer in result.report["layers"]}
    for each in graph["nodes"]:
        facts = {pair["key"]: pair["value"] for pair in each["attrs"]}
        assert each["namespace"] == units.get(facts["name"], "")
        assert (CYCLES in facts) == (facts["name"] in units)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("copy.txt", "a name that ends in .onnx is for Netron, one in .json for Model Explorer"),
        ("-", "a name that ends in .onnx"),
        ("none/copy.onnx", "cannot be written"),
        ("small.onnx", "is the model itself, which stays as it is"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_runs(tmp_path: Path, capsys, name: str, message: str) -> None:
    path = Path(onnx_models.save(tmp_path))
    path = path.rename(tmp_path / "small.onnx")
    before = path.read_bytes()
    assert run(path, "--annotate", name if name == "-" else tmp_path / name) == 2
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.slow
def test_without_a_model_there_is_nothing_to_annotate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_models.save(tmp_path)
    words = ["compile", path, "-o", tmp_path / "made", "--target", "edge", "--dump-ir", tmp_path / "ir"]
    assert cli.main([str(word) for word in words]) == 0
    capsys.readouterr()
    stage = tmp_path / "ir" / "05-lowered.mlir"
    assert cli.main(["run", str(stage), "--quiet", "--annotate", str(tmp_path / "copy.onnx")]) == 2
    assert "there is no model to annotate: --annotate needs the .onnx file or zoo:NAME" in capsys.readouterr().err
    assert not (tmp_path / "copy.onnx").exists()
