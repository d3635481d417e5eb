"""`frustum plan` and `frustum curve`: the tree as text and back, counted again when edited, and what goes wrong."""

import csv
import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import mixed_models
import numpy as np
import onnx
import planned_models
import pytest
from onnx import TensorProto, helper

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects.plan.count import count
from frustum.dialects.plan.cycles import timed
from frustum.dialects.plan.parse import extents_of, read_plan, read_plans
from frustum.dialects.plan.text import plan_text
from frustum.dialects.plan.tree import Loop, layers_in, nodes_in
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.plan.tree.wishes import Wishes
from frustum.runtime.study.planned import Curve, per_byte
from frustum.runtime.tools.cli import main


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `residual.onnx`, `tight16.yaml`, and the plan of one on the other."""
    folder = tmp_path_factory.mktemp("plans")
    model = planned_models.save(folder, "residual", planned_models.residual())
    target = planned_models.machine(folder, 16)
    assert main(["plan", model, "--target", target, "--dtype", "f16", "-o", str(folder / "found.plan")]) == 0
    return folder


@pytest.fixture
def plan(place: Path, capsys: pytest.CaptureFixture[str]):
    """`frustum plan` of that model; exit code, what is printed, and what is said."""

    def run(*arguments: object, command: str = "plan") -> tuple[int, str, str]:
        words = [command, str(place / "residual.onnx"), "--target", str(place / "tight16.yaml"), "--dtype", "f16"]
        try:
            code = main([*words, *map(str, arguments)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def moved(text: str) -> int:
    """What the first line of a plan says."""
    found = re.search(r"// ([\d,]+) B moved", text.splitlines()[0])
    assert found is not None
    return int(found[1].replace(",", ""))


def held(text: str) -> int:
    found = re.search(r"([\d,]+) B held", text.splitlines()[0])
    assert found is not None
    return int(found[1].replace(",", ""))


# --- the tree, and the tree again ---------------------------------------------------------------------------


def test_the_text_is_the_tree_and_counts_the_same(place, plan):
    text = (place / "found.plan").read_text()
    target = targets.load(str(place / "tight16.yaml"))
    (network,) = networks_to_plan(import_onnx(place / "residual.onnx"), target, "f16")
    read = read_plan(text, lambda _: extents_of(network))
    assert (read.name, read.target) == ("residual", "tight16")
    assert list(layers_in(read.node)) == [layer.name for layer in network.layers]
    assert read_plan(plan_text(read.name, read.target, read.node)).node == read.node
    counted = count(network, read.node)
    assert (moved(text), held(text)) == (counted.dram_bytes, counted.sram_bytes)
    assert plan("--plan", place / "found.plan") == (0, text, "")


def test_comments_stand_in_one_column(place):
    lines = (place / "found.plan").read_text().splitlines()
    assert len({line.index("//") for line in lines if "//" in line}) == 1


EDITS = {
    "a resident left out": (r"resident x .*\n", "\n"),
    "weights left in DRAM": (r"resident \"a0.*\n", "\n"),
    "halos computed again": (r"rolling", "recomputed"),
    "each layer by itself": (r"compute a0, b0, y", "compute a0 compute b0, y"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_is_counted(edit, place, plan, tmp_path):
    text = (place / "found.plan").read_text()
    edited = tmp_path / "edited.plan"
    edited.write_text(re.sub(*EDITS[edit], text))
    assert edited.read_text() != text
    code, out, _ = plan("--plan", edited)
    assert code == 0
    assert moved(out) > moved(text)


def test_another_step_moves_or_holds_something_else(place, plan, tmp_path):
    text = (place / "found.plan").read_text()
    (step,) = (int(found) for found in re.findall(r"for y.y step (\d+)", text))
    edited = tmp_path / "edited.plan"
    edited.write_text(text.replace(f"step {step} of 12", f"step {step // 2}"))
    code, out, _ = plan("--plan", edited)
    assert code == 0 and f"step {step // 2} of 12" in out
    assert moved(out) == moved(text) and held(out) < held(text)  # rolling halos: no row moves twice


def test_cycles_are_those_of_the_machine(place, plan):
    text = (place / "found.plan").read_text()
    target = targets.load(str(place / "tight16.yaml"))
    (network,) = networks_to_plan(import_onnx(place / "residual.onnx"), target, "f16")
    tree = read_plan(text, lambda _: extents_of(network)).node
    counted = timed(network, tree, target)
    printed = [int(found.replace(",", "")) for found in re.findall(r" ([\d,]+) cycles$", text, re.MULTILINE)]
    bodies = [id(node.body) for node in nodes_in(tree) if isinstance(node, Loop)]
    nodes = [id(node) for node in nodes_in(tree) if id(node) not in bodies]
    assert printed == [math.ceil(counted.taken[node]) for node in nodes] and len(printed) > 1
    assert printed[0] == counted.cycles >= counted.dram_bytes / target.chip.dram.port_bytes_per_cycle
    slow = place / "slow.yaml"
    slow.write_text((place / "tight16.yaml").read_text().replace("chip: {", "chip: {dram: {port_bytes_per_cycle: 1}, "))
    code, out, _ = plan("--plan", place / "found.plan", "--target", slow)
    assert code == 0 and moved(out) == moved(text)
    found = re.search(r"([\d,]+) cycles", out)
    assert int(found[1].replace(",", "")) > 2 * printed[0]


def cycles(text: str) -> int:
    found = re.search(r"([\d,]+) cycles", text.splitlines()[0])
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.slow
def test_least_time_takes_fewer_cycles_and_least_bytes_move_fewer(place, tmp_path, capsys):
    model, found = planned_models.save(tmp_path, "perceptron", planned_models.perceptron(96)), {}
    for what in ("bytes", "time"):
        words = ["plan", model, "--target", str(place / "tight16.yaml"), "--dtype", "f16", "--optimise", what]
        assert main(words) == 0
        found[what] = capsys.readouterr().out
    assert cycles(found["time"]) < cycles(found["bytes"]) and moved(found["bytes"]) <= moved(found["time"])
    assert main(words[:-2]) == 0
    assert capsys.readouterr().out == found["bytes"], "where nothing is said, bytes count"


def test_a_curve_of_time_never_rises(plan, place):
    code, out, _ = plan("--csv", "--optimise", "time", command="curve")
    head, *lines = csv.reader(io.StringIO(out.strip()))
    assert code == 0 and head == ["sram_bytes", "cycles", "compulsory_cycles"]
    found = [int(line[1]) for line in lines]
    assert found == sorted(found, reverse=True) and found[-1] >= int(lines[-1][2]) > 0


# --- what goes wrong ----------------------------------------------------------------------------------------


WRONG = {
    "an axis": ("for y.y", "for y.z", r"edited.plan:\d+:\d+: error: .*y\.z"),
    "a layer": ("compute a0", "compute a1", r"edited.plan:\d+:\d+: error: compute a1, b0, y: no layer is called a1"),
    "a tensor": ("resident x", "resident z", r"edited.plan:\d+:\d+: error: resident z: no tensor is called z"),
    "an extent": ("of 12 rolling", "of 13 rolling", r"edited.plan:\d+:\d+: error: .*end at 13, the extent .* is 12"),
    "a word": ("rolling", "rollin", r"edited.plan:\d+:\d+: error: .*found 'rollin'; did you mean 'rolling'"),
    "a network": ("@residual", "@other", r"edited.plan: error: it is a plan of @other; the model has @residual"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_a_plan_is_said_where_it_is(what, place, plan, tmp_path):
    old, new, said = WRONG[what]
    text = (place / "found.plan").read_text()
    edited = tmp_path / "edited.plan"
    edited.write_text(text.replace(old, new))
    assert edited.read_text() != text
    code, out, err = plan("--plan", edited)
    assert (code, out) == (2, "")
    assert re.search(said, err) and "Traceback" not in err


def test_a_plan_for_another_machine_is_refused(place, plan, tmp_path):
    edited = tmp_path / "edited.plan"
    edited.write_text((place / "found.plan").read_text().replace('"tight16"', '"edge"'))
    code, out, err = plan("--plan", edited)
    assert (code, out) == (2, "")
    assert err.endswith("edited.plan: error: it is planned for edge: say --target edge, or plan again\n")


def test_a_plan_that_takes_more_sram_than_there_is_does_not_fit(place, plan, tmp_path):
    edited = tmp_path / "edited.plan"
    edited.write_text((place / "found.plan").read_text().replace("compute a0, b0, y", "resident a0 compute a0, b0, y"))
    large = re.sub(r"for y.y step \d+", "for y.y step 12", edited.read_text())
    edited.write_text(large)
    code, out, err = plan("--plan", edited)
    assert (code, out) == (4, "")
    assert re.search(r"plan @residual: what is resident .* does not fit: needed \d+ B, available 16384 B of SRAM", err)


def test_files_that_cannot_be_read_or_written(plan, tmp_path):
    (tmp_path / "bytes.plan").write_bytes(b"\xff\xfe")
    for arguments, said in (
        (("--plan", tmp_path / "none.plan"), "none.plan: error: cannot be read: No such file or directory"),
        (("--plan", tmp_path), "error: cannot be read: Is a directory"),
        (("--plan", tmp_path / "bytes.plan"), "bytes.plan: error: cannot be read: it is not UTF-8 text"),
        (("-o", tmp_path / "no" / "a.plan"), "a.plan: error: cannot be written"),
        (("-o", tmp_path), "error: cannot be written: it is a folder"),
        (("--certificate", tmp_path / "no" / "a.json"), "a.json: error: cannot be written"),
    ):
        code, out, err = plan(*arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err and len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.plan"]


@pytest.mark.parametrize("command", ["plan", "curve"])
@pytest.mark.parametrize(
    "option", [("--order", "serpentine"), ("--borders", "exchange"), ("--split", "never"), ("--pipeline", "")]
)
def test_options_without_meaning_are_named(option, command, plan):
    code, out, err = plan(*option, command=command)
    assert (code, out) == (2, "")
    said = f"frustum: error: {option[0]} has no effect on a plan as a tree; of compile's options: --target"
    assert err.startswith(said)


@pytest.mark.parametrize(
    "option",
    [("--policy", "none"), ("--rules", "S1,1"), ("--optimise", "bytes"), ("--cuts", "a0"), ("--carry", "f32")],
)
def test_nothing_is_asked_of_a_plan_that_is_given(option, place, plan):
    code, out, err = plan("--plan", place / "found.plan", *option)
    assert (code, out) == (2, "")
    assert err == f"frustum: error: {option[0]} has no effect on a plan that is given (--plan)\n"


def test_models_and_types_that_are_not_planned(place, plan, tmp_path, capsys):
    code, _, err = plan("--dtype", "int8")
    assert code == 2 and "--dtype int8: plan calibrates nothing; give it a model of integers" in err
    code, _, err = plan("--host", "only")
    assert code == 2 and err.endswith("error: there is nothing to plan: all of it runs on the host, or is views\n")
    assert main(["plan", "zoo:resnet5"]) == 2
    assert "no such network; did you mean 'resnet50'?" in capsys.readouterr().err


# --- models of all kinds ------------------------------------------------------------------------------------


def test_element_types_count(tmp_path, capsys):
    model, found = open_product(tmp_path), {}
    for dtype in ("f32", "bf16", "f16", "model"):
        assert main(["plan", model, "--target", "edge", "--dtype", dtype]) == 0
        found[dtype] = moved(capsys.readouterr().out)
    assert found["model"] == found["f32"] == 2 * found["f16"] == 2 * found["bf16"]


def test_parts_of_a_model_are_plans_of_one_file(tmp_path, capsys):
    model, file = tmp_path / "mixed.onnx", tmp_path / "mixed.plan"
    onnx.save(mixed_models.sandwich(8, 12), model)
    words = ["plan", str(model), "--target", "edge"]
    assert main([*words, "-o", str(file)]) == 0
    assert [each.name for each in read_plans(file.read_text())] == ["mixed_0", "mixed_2"]
    assert main([*words, "--plan", str(file)]) == 0
    assert capsys.readouterr().out == file.read_text()
    first = tmp_path / "first.plan"
    first.write_text(file.read_text().partition("\n\n")[0])
    assert main([*words, "--plan", str(first), "--certificate", str(tmp_path / "c.json")]) == 2
    assert "first.plan: error: --certificate wants all plans: there is none of @mixed_2" in capsys.readouterr().err
    first.write_text(file.read_text() + first.read_text())
    assert main([*words, "--plan", str(first)]) == 2
    assert "first.plan: error: two plans are of @mixed_0" in capsys.readouterr().err


def test_a_model_of_views_alone_has_nothing_to_plan(tmp_path, capsys):
    nodes = [mixed_models.node("Transpose", ["x"], ["y"], perm=[1, 0])]
    model = planned_models.save(tmp_path, "turned", mixed_models.model(nodes, {"x": (4, 6)}, ["y"]))
    assert main(["plan", model]) == 2
    assert capsys.readouterr().err.endswith(
        "turned.onnx: error: there is nothing to plan: all of it runs on the host, or is views\n"
    )


def test_a_weight_called_as_a_layer_has_a_name_of_its_own(tmp_path, capsys):
    nodes = [helper.make_node("MatMul", ["x", "product"], ["y"], "product")]
    weights = {"product": np.ones((16, 8), np.float32)}
    model = planned_models.save(tmp_path, "alike", mixed_models.model(nodes, {"x": (4, 16)}, ["y"], weights))
    file = tmp_path / "alike.plan"
    file.write_text('plan @alike for "edge" { resident "product#2" compute product }')
    assert main(["plan", model, "--target", "edge", "--plan", str(file)]) == 0
    assert re.search(r'resident "product#2" +// 512 B moved', capsys.readouterr().out)


def open_product(tmp_path: Path) -> str:
    """A product whose rows are `n`."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 16))
    nodes = [mixed_models.node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.ones((16, 8), np.float32)}
    return planned_models.save(tmp_path, "open", mixed_models.model(nodes, [value], ["y"], weights))


def test_shapes_are_those_that_are_asked_for(tmp_path, capsys):
    model = open_product(tmp_path)
    for options in (("--dim", "n=7"), ("--shape", "x=7x16"), ("--batch", "7")):
        assert main(["plan", model, "--target", "edge", *options]) == 0
        assert moved(capsys.readouterr().out) == 4 * (7 * 16 + 16 * 8 + 7 * 8), options


@pytest.mark.slow
def test_networks_of_the_zoo_are_planned(capsys):
    assert main(["plan", "zoo:alexnet", "--target", "edge", "--dtype", "f16"]) == 0
    out = capsys.readouterr().out
    assert out.startswith('plan @zoo_alexnet for "edge" {')
    weights, image = 2 * 60_965_224, 2 * 3 * 224 * 224
    assert 0.99 * (weights + image) < moved(out) < 1.05 * (weights + image)


# --- the curve ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(place: Path) -> list[tuple[int, int, int]]:
    """SRAM, DRAM and compulsory bytes."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        words = [str(place / "residual.onnx"), "--target", str(place / "tight16.yaml"), "--dtype", "f16"]
        assert main(["curve", *words, "--csv", "--svg", str(place / "curve.svg")]) == 0
    head, *lines = csv.reader(io.StringIO(out.getvalue().strip()))
    assert head == ["sram_bytes", "dram_bytes", "compulsory_bytes"]
    return [(int(a), int(b), int(c)) for a, b, c in lines]


def test_more_sram_moves_no_more_bytes(rows, place):
    assert all(a[0] < b[0] and a[1] >= b[1] for a, b in itertools.pairwise(rows))
    assert rows[-1][0] == 16 * 1024 and len(rows) <= 65
    compulsory = 2 * 8 * (24 * 24 + 12 * 12 + 2 * 8 * 9)
    assert {row[2] for row in rows} == {compulsory} and rows[-1][1] >= compulsory
    assert rows[-1][1] == moved((place / "found.plan").read_text())


def test_the_curve_as_text_and_as_a_drawing(rows, place, plan):
    code, out, _ = plan(command="curve")
    assert code == 0
    _, _, *lines = out.splitlines()
    shown = [line.split() for line in lines]
    assert [(int(a.replace(",", "")), int(b.replace(",", ""))) for a, b, *_ in shown] == [row[:2] for row in rows]
    assert all(float(ratio) >= 1 and set(bar) == {"#"} for _, _, ratio, bar in shown)
    root = ElementTree.parse(place / "curve.svg").getroot()
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(line.attrib["points"].split()) == len(rows)


def test_curves_are_of_what_there_is_least_of():
    curve = Curve("net", [64, 128], [60, 50], 100, "time", 0.25)
    assert curve.csv() == "sram_bytes,cycles,compulsory_cycles\n64,60,25\n128,50,25\n"
    assert curve.text().splitlines()[:2] == ["net: compulsory 25 cycles", "  SRAM bytes        cycles  ratio"]
    assert [ratio for _, _, ratio in curve.rows()] == [2.4, 2.0]
    assert "60 cycles</text>" in curve.svg() and "DRAM" not in curve.svg()


def test_what_a_byte_takes_is_what_the_machine_says():
    target = targets.load("edge")
    dram, sram = target.chip.dram, target.cluster.sram
    assert per_byte(Wishes("bytes", target)) == 1
    assert per_byte(Wishes("time", target)) == 1 / dram.port_bytes_per_cycle
    assert per_byte(Wishes("energy", target)) == dram.energy_pj_per_byte + sram.energy_pj_per_byte


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "curve"])
def test_clusters_without_links_are_planned_as_one(command, tmp_path, capsys):
    """Bytes that clusters would receive of each other have no way; a plan and a curve are those of one cluster."""
    model, found = planned_models.save(tmp_path, "perceptron", planned_models.perceptron()), []
    for clusters in (1, 2):
        target = tmp_path / f"apart{clusters}" / "apart.yaml"
        target.parent.mkdir()
        target.write_text(planned_models.TARGET.format(name="apart", kib=16).replace(
            "chip: {", f"chip: {{clusters: {clusters}, "
        ))
        assert main([command, model, "--target", str(target)]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] and "over clusters" not in found[1]


def test_a_curve_that_cannot_be_written(plan, tmp_path):
    code, out, err = plan("--svg", tmp_path / "no" / "curve.svg", command="curve")
    assert (code, out) == (2, "") and "curve.svg: error: cannot be written" in err


def test_points_of_a_drawing_stay_inside():
    for moved_bytes in ([100], [100, 100], [4000, 100]):
        curve = Curve("net", range(64, 64 + len(moved_bytes)), moved_bytes, 100)
        root = ElementTree.fromstring(curve.svg())
        (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert all(48 <= x <= 592 and 48 <= y <= 312 for x, y in points), points
