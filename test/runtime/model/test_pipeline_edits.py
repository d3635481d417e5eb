"""Edits of the default pipeline do what they say, and wrong ones are pointed at."""

import numpy as np
import onnx
import pytest
from mixed_models import model, node

import frustum
from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.runtime.failures import UsageError
from frustum.runtime.model.build import build
from frustum.runtime.model.options import Request
from frustum.runtime.model.pipeline_edits import check_anchors, is_edit, parse_edits
from frustum.runtime.pipeline_text import PipelineError
from frustum.runtime.tools.cli import main
from frustum.runtime.universe import FRUSTUM


def names(text, choices=Choices()):  # noqa: B008  # frozen
    edits = parse_edits(FRUSTUM.all_passes, text)
    edited = Choices(**{**vars(choices), "edits": edits})
    return [str(step.pipeline_pass_spec()) for stop in STOPS for step in passes_to(stop, edited)]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    path = tmp_path_factory.mktemp("edits") / "chain.onnx"
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((4, 4, 3, 3), np.float32) / 6 for k in range(4)}
    nodes = [node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1, 1, 1, 1]) for k in range(4)]
    onnx.save(model(nodes, {"x0": (1, 4, 12, 12)}, ["x4"], weights), path)
    return path


def units(path, **asked):
    job = build(Request(model=path, target="edge", **asked))
    return [unit["layers"] for unit in frustum.run(job.chain, {}, mode="timing").report["units"]]


def test_entries_stand_where_they_say():
    plain = names("-frustum-schedule")
    assert "frustum-schedule" not in plain
    both = names("+before:frustum-schedule:frustum-join-sections,+after:frustum-join-sections:frustum-hoist-loads")
    at = both.index("frustum-schedule")
    # an edit sees what one before it has added
    assert both[at - 2 : at] == ["frustum-join-sections", "frustum-hoist-loads"]
    assert names("=frustum-tile-choose-runs{runs=none}").count('frustum-tile-choose-runs{runs="none"}') == 1


def test_options_that_are_not_given_stay():
    found = names("=frustum-fuse-layers{optimise=bytes}", Choices(policy="optimal", sram=0.5))
    (fuse,) = [each for each in found if each.startswith("frustum-fuse-layers")]
    assert "sram=0.5" in fuse and 'optimise="bytes"' in fuse and 'policy="optimal"' in fuse
    found = names('=frustum-fuse-layers{rules="S1,1"}', Choices(policy="optimal", sram=0.5))
    (fuse,) = [each for each in found if each.startswith("frustum-fuse-layers")]
    assert "sram=0.5" in fuse and 'rules="S1,1"' in fuse and "policy" not in fuse


@pytest.mark.parametrize(
    ("text", "message", "caret"),
    [
        ("-frustum-shedule", "unknown pass 'frustum-shedule'; did you mean 'frustum-schedule'?", 2),
        ("+before:frustum-schedule", "'+before:frustum-schedule' is no edit: an edit is +before:PASS:NEW", 1),
        ("+beside:frustum-schedule:frustum-allocate", "is no edit", 1),
        ("-frustum-schedule,=frustum-allocate", "gives 'frustum-allocate' no option", 19),
        ("=frustum-allocate{deep=1}", "pass 'frustum-allocate' has no option 'deep'", 19),
        ("+after:frustum-schedule:frustum-nothing", "unknown pass 'frustum-nothing'", 25),
        ("+after:nothing:frustum-schedule", "unknown pass 'nothing'", 8),
    ],
)
def test_wrong_entries_are_pointed_at(text, message, caret):
    with pytest.raises(PipelineError) as caught:
        parse_edits(FRUSTUM.all_passes, text)
    first = str(caught.value).splitlines()[0]
    assert message in first and first.startswith(f"pipeline:1:{caret}: error: ")


def test_all_wrong_entries_are_told_at_once():
    with pytest.raises(PipelineError) as caught:
        parse_edits(FRUSTUM.all_passes, "-one,-two")
    assert "'one'" in str(caught.value) and "'two'" in str(caught.value)


def test_passes_and_edits_do_not_mix():
    assert is_edit("-a, -b") and not is_edit("a{b=-1},c")
    with pytest.raises(UsageError, match="a list of passes or edits of the default one, not both: 'a' beside '-b'"):
        is_edit("a,-b")


def test_a_pass_that_does_not_run_cannot_be_edited():
    edits = parse_edits(FRUSTUM.all_passes, "-frustum-tile-assign-order")
    with pytest.raises(UsageError, match="'frustum-tile-assign-order' does not run behind stop 'imported'"):
        check_anchors(edits, Choices(), "imported")
    check_anchors(edits, Choices(order="bands"), "imported")
    with pytest.raises(UsageError, match="does not run behind stop 'fused'"):
        check_anchors(parse_edits(FRUSTUM.all_passes, "-frustum-fuse-layers"), Choices(), "fused")
    twice = parse_edits(FRUSTUM.all_passes, "-frustum-schedule,-frustum-schedule")
    with pytest.raises(UsageError, match="'frustum-schedule' does not run"):
        check_anchors(twice, Choices(), "imported")


@pytest.mark.slow
def test_cuts_rules_and_edits_change_the_units(chain):
    assert units(chain, cuts="x2") == [["x1", "x2"], ["x3", "x4"]]
    assert units(chain, pipeline="=frustum-fuse-layers{cuts=x1}") == [["x1"], ["x2", "x3", "x4"]]
    assert units(chain, rules="S1,1,11", thresholds="11=50") == [["x1", "x2", "x3", "x4"]]
    assert units(chain, policy="none") == [["x1"], ["x2"], ["x3"], ["x4"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cuts", "nothing"], "cuts: no layer is called 'nothing'"),
        (["--cuts", "x2", "--policy", "none"], "--cuts and --policy: one of them says where units end"),
        (["--cuts", "x2", "--rules", "S1,1"], "--cuts and --rules: one of them"),
        (["--rules", "S1,99"], "--rules: unknown rule '99'"),
        (["--rules", "S1,1", "--policy", "greedy"], "--rules: policy 'greedy' has its own rules"),
        (["--thresholds", "3=2"], "--thresholds: policy 'optimal' has no rules"),
        (["--pipeline", "-frustum-schedule,frustum-allocate"], "not both"),
        (["--pipeline", "-frustum-tile-lower-units"], "--pipeline: with these edits the module is at stop 'tiled'"),
        (["--pipeline", "frustum-schedule", "--cuts", "x2"], "--cuts is of the default pipeline"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(chain, capsys, words, message):
    assert main(["run", str(chain), "--target", "edge", "--mode", "timing", *words]) == 2
    assert message in capsys.readouterr().err
