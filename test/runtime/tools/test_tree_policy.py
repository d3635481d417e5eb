"""What users ask of `--policy tree`: machines of several chips, models in pieces or of views alone, cuts, plans given
back, edits of the pipeline, reports; and what it refuses by name."""

from __future__ import annotations

import json

import mixed_models
import onnx
import planned_models
import pytest
from mixed_models import node
from recurrent_models import model_of

from frustum.runtime.tools.cli import main

EDGE = ["--target", "edge"]
TREE = ("--policy", "tree")
TWO_CHIPS = "extends: edge\nname: two_chips\nchips: 2\nchip_link_bytes_per_cycle: 4\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    planned_models.save(place, "residual", planned_models.residual())
    planned_models.save(place, "two", planned_models.residual(2))
    planned_models.save(place, "mixed", mixed_models.sandwich(8, 12))
    nodes = [node("Transpose", ["x"], ["y"], perm=[1, 0])]
    planned_models.save(place, "views", mixed_models.model(nodes, {"x": (6, 4)}, ["y"]))
    (place / "two_chips.yaml").write_text(TWO_CHIPS)
    return place


@pytest.fixture
def run(place, capsys):
    """Exit code, report and what stderr has of a run that is checked."""

    def run(model, *words, target="edge", policy=TREE, check=("--check", "--checked")):
        report = place / "report.json"
        report.unlink(missing_ok=True)
        words = [*words, "--target", target, *policy, "--no-cache", "--quiet", *check]
        code = main(["run", str(place / f"{model}.onnx"), "--report", str(report), *map(str, words)])
        found = json.loads(report.read_text()) if report.exists() else None
        return code, found, capsys.readouterr().err

    return run


def executables(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix == ".frustum"}


@pytest.mark.parametrize("target", ["edge", pytest.param("default", marks=pytest.mark.slow)])
def test_models_of_views_alone(target, run):
    code, report, err = run("views", target=target)
    assert (code, report["units"], report["check"]["max_abs_error"]) == (0, [], 0), err


def test_pieces_on_chips_and_a_stream_through_them(place, run):
    chips = place / "two_chips.yaml"
    code, report, err = run("residual", target=chips)
    assert code == 0 and report["subgraphs"][0]["chip"] == 0, err
    code, report, err = run("mixed", "--placement", "each", target=chips)
    assert (code, [each["chip"] for each in report["subgraphs"]]) == (0, [0, 1]), err


@pytest.mark.slow
def test_a_stream_is_split_into_pieces_of_equal_cost(place, run):
    code, report, err = run("two", "--placement", "each", "--stream", 3, target=place / "two_chips.yaml")
    assert (code, len(report["subgraphs"]), report["stream"]["inputs"]) == (0, 2, 3), err
    assert report["stream"]["cycles_per_input"] < report["cycles"]["total"]


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("mixed", "edge"),
        pytest.param("residual", "edge", marks=pytest.mark.slow),
        ("views", "edge"),
        *(pytest.param("two", target, marks=pytest.mark.slow) for target in ("default", "manycore")),
    ],
)
def test_a_plan_given_back_is_the_same_executable(model, target, place, tmp_path, capsys):
    """For time the machine judges between plans, and may take another one than the first of two networks."""
    file = str(place / f"{model}.onnx")
    words, plan = ["--target", target, "--no-cache"], tmp_path / "found.plan"
    optimise = ["--optimise", "bytes" if model == "two" else "time"]
    assert main(["compile", file, *words, *optimise, "--policy", "tree", "-o", str(tmp_path / "found")]) == 0
    if model == "views":
        plan.write_text('plan @views for "edge" {\n}\n')
    else:
        assert main(["plan", file, *words, *optimise, "-o", str(plan)]) == 0
    assert main(["compile", file, *words, "--plan", str(plan), "-o", str(tmp_path / "given")]) == 0
    assert executables(tmp_path / "found") == executables(tmp_path / "given") != {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('plan @net for "edge" {{ }}', "no network is called @net (networks here: residual)"),
        ('plan @residual for "default" {{ compute a0 }}', "it is planned for default: say --target default"),
        ('{plan}{plan}', "two plans are of @residual"),
        (None, "cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_plans_that_are_for_something_else(text, said, place, tmp_path, capsys):
    file, found = tmp_path / "given.plan", tmp_path / "found.plan"
    words = [str(place / "residual.onnx"), *EDGE, "--no-cache"]
    assert main(["plan", *words, "-o", str(found)]) == 0
    if text is not None:
        file.write_text(text.format(plan=found.read_text()))
    assert main(["compile", *words, "--plan", str(file), "-o", str(tmp_path / "x")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_cuts_of_all_pieces(run):
    code, report, err = run("residual", "--cuts", "a0")
    assert (code, [unit["layers"][-1] for unit in report["units"]]) == (0, ["a0", "y"]), err
    code, report, err = run("mixed", "--cuts", report["layers"][0]["name"])
    assert code == 2 and "cuts: no layer is called 'a0'" in err
    code, _, err = run("mixed", "--cuts", "first")
    assert code in (0, 2) and "no layer is named" not in err


def test_edits_of_the_pipeline(run):
    edits = "=frustum-plan-search{cuts=a0},+after:frustum-plan-search:frustum-plan-check,-frustum-hoist-loads"
    code, report, err = run("residual", "--pipeline", edits)
    assert (code, len(report["units"])) == (0, 2), err
    code, _, err = run("residual", "--pipeline", "-frustum-plan-search")
    assert code == 2 and "with these edits the module is at stop 'imported', not 'fused'" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--order", "row-major"), "--order row-major: in policy 'tree' the loops of the plan say in which order"),
        (("--borders", "overlap"), "--borders overlap: in policy 'tree' the loops of the plan say what happens"),
        (("--weights", "shared"), "--weights shared: policy 'tree' has what all clusters need in each"),
        (("--rules", "S1,1"), "--rules: policy 'tree' has its own rules"),
        (("--thresholds", "11=75"), "policy 'tree' has no rules, so no thresholds"),
        (("--plan", "x.plan", "--cuts", "a0"), "--plan and --cuts: a plan that is given is as it is"),
        (("--plan", "x.plan", "--optimise", "bytes"), "--plan and --optimise: a plan that is given is as it is"),
    ],
)
def test_what_has_no_effect_is_refused(words, said, run):
    code, _, err = run("residual", *words)
    assert code == 2 and f"error: {said}" in err.replace("--policy: ", "")


def test_reports_are_filled(place, run):
    code, report, err = run("residual", "--cuts", "a0", "--mode", "timing", check=())
    assert code == 0, err
    cycles, dram, (first, last) = report["cycles"], report["dram"], report["units"]
    assert 0 < cycles["roofline"] <= cycles["bound"] <= cycles["total"] and cycles["bound_by"]
    assert 0 < dram["bound_bytes"] <= dram["total_bytes"] - dram["other_bytes"] and dram["maps"] == 2
    assert report["macs"]["useful"] == report["macs"]["executed"] and report["macs"]["recomputed"] == 0
    assert last["stopped_by"] is None and first["stopped_by"].startswith("cut before 'b0': ")
    for unit in (first, last):
        assert 0 < unit["bound_cycles"] <= unit["predicted_cycles"] and unit["recomputed_bytes"] == 0
    assert main(["plan", str(place / "residual.onnx"), *EDGE, "--cuts", "a0"]) == 0


@pytest.mark.slow
def test_rolling_bytes_and_tiles_of_units(place, run):
    target = planned_models.machine(place, 8)
    code, report, err = run("residual", "--optimise", "bytes", "--mode", "timing", target=target, check=())
    assert code == 0, err
    assert max(unit["tiles"] for unit in report["units"]) > 1
    assert any(unit["kept_bytes"] for unit in report["units"])


def test_a_unit_whose_readers_make_it_is_not_reported(place, capsys):
    """The sums of a softmax alone: no instruction makes them."""
    model, plan = planned_models.save(place, "perceptron", planned_models.perceptron()), place / "apart.plan"
    text = "{ compute first, up, down } { compute y.sums } { compute y }"
    plan.write_text(f'plan @perceptron for "edge" {{ resident down {text} }}')
    report = place / "apart.json"
    words = ["run", model, *EDGE, "--plan", str(plan), "--no-cache", "--check", "--report", str(report)]
    assert main(words) == 0, capsys.readouterr().err
    assert [unit["layers"] for unit in json.loads(report.read_text())["units"]] == [["first", "up", "down"], ["y"]]


@pytest.mark.parametrize("op", ["LSTM", pytest.param("GRU", marks=pytest.mark.slow)])
def test_recurrences_are_counted_once_for_each_step(op, place, run):
    onnx.save(model_of(op)[0], place / "steps.onnx")
    code, report, err = run("steps", "--mode", "timing", check=())
    assert code == 0, err
    macs, dram = report["macs"], report["dram"]
    assert dram["ratio"] == 1.0 and dram["compulsory_bytes"] == dram["layer_by_layer_bytes"]
    assert macs["executed"] * 2 / 3 < macs["useful"] < macs["executed"]  # the first step has a state of zeros


def test_integers_cross_the_port(run):
    code, report, err = run("residual", "--dtype", "int8", "--mode", "timing", check=())
    assert (code, report["dram"]["input_bytes"]) == (0, 8 * 24 * 24), err


def test_a_list_of_passes_says_its_policy(run):
    passes = ("frustum-graph-canonicalize,frustum-plan-search,frustum-lower-plan,frustum-lower-choose-line-buffer,"
              "frustum-lower-compress-weights{codec=none},frustum-join-sections,frustum-lower-make-address-tables,"
              "frustum-allocate,frustum-hoist-loads,frustum-schedule")  # fmt: skip
    code, report, err = run("residual", "--pipeline", passes, policy=())
    assert (code, report["policy"]) == (0, "tree"), err
