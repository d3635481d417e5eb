"""The yardstick of plans (`benchmarks/plans.py`)."""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import onnx_models
import plans
import pytest

import frustum
from frustum.backend import targets

FIGURES = {
    "commit": "a" * 40, "policy": None, "defaults": False, "dtype": "f16", "dram_bytes": 1000, "cycles": 1000,
    "code_bytes": 1000, "compile_seconds": 4.0, "sha256": "s", "model": "m", "machine": "t",
}  # fmt: skip


def figures(**others: Any) -> dict[str, Any]:
    return {**FIGURES, **others}


def test_sets_and_folders_are_their_models(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx", "a.io.npz"):
        (tmp_path / name).touch()
    found = list(plans.models(["zoo", str(tmp_path), "generated:3"]))
    assert found[0] == "zoo:alexnet" and len(found) == 9 + 2 + 1
    assert found[9:] == [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "generated:3"]
    assert len(list(plans.models(["generated"]))) == 40


def test_keys_have_no_place(tmp_path: Path) -> None:
    assert plans.Case("zoo:vgg19", "edge").key == "zoo:vgg19 edge"
    case = plans.Case(str(tmp_path / "blocks" / "unet.onnx"), str(tmp_path / "soma16.yaml"))
    assert case.key == "blocks/unet soma16"


def test_two_by_two_is_edge_with_linked_clusters() -> None:
    found, edge = plans.machine("two_by_two"), targets.load("edge")
    assert (found.chip.clusters, found.cluster.cores, found.cluster.sram.capacity_bytes) == (2, 2, 256 * 1024)
    assert found.cluster.cdma == targets.load("default").cluster.cdma is not None
    assert found.core == edge.core and found.chip.dram == edge.chip.dram


@pytest.mark.slow
def test_generated_networks_are_the_same_each_time_and_larger_than_those_of_tests() -> None:
    import family_runs

    def elements(model: onnx.ModelProto) -> int:
        shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input]
        return max(map(math.prod, shapes))

    model, again = plans.generated(9), plans.generated(9)
    assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert elements(model) >= 16 * elements(family_runs.random_case("mlp", 9).model)


def test_what_is_worse_is_found_by_its_figure() -> None:
    before = {key: figures() for key in ("same", "bytes", "cycles", "code", "time", "fails", "other", "keys", "gone")}
    now = {
        "same": figures(dram_bytes=1009, cycles=1029, compile_seconds=5.9),
        "bytes": figures(dram_bytes=1011, sha256="other"),
        "cycles": figures(cycles=1031, dram_bytes=500),
        "code": figures(code_bytes=1040),
        "time": figures(compile_seconds=6.1),
        "fails": {"commit": "b", "policy": None, "defaults": False, "failure": "DoesNotFit: all of it"},
        "other": figures(model="another", cycles=9000),
        "keys": figures(machine="more keys"),
        "new": figures(cycles=9000),
    }
    found = plans.compared(now, before)
    assert found.worse == {
        "dram_bytes": ["bytes"], "cycles": ["cycles"], "code_bytes": ["code"], "compile_seconds": ["time"],
    }  # fmt: skip
    assert (found.fail_now, found.differ, found.same) == (["fails"], ["other"], 5)
    text = "\n".join(plans.tables(found, now, before))
    assert "| bytes | dram_bytes | 1,000 | 1,011 | 1.011 |" in text
    assert "| fails | failure | - | DoesNotFit: all of it | - |" in text
    assert "| dram_bytes | 6 | 1.0000 | 0.500 | 1.011 | 1 | 1 |" in text
    assert "1 are of another model or type: not compared: other\n1 are of a machine with another checksum: keys" in text


def test_short_compilations_and_slow_ones_are_not_worse() -> None:
    short = plans.compared({"a": figures(compile_seconds=0.9)}, {"a": figures(compile_seconds=0.1)})
    assert short.worse["compile_seconds"] == [] and not short.is_worse
    slow = plans.compared({"a": figures(compile_seconds=90.0)}, {"a": figures()})
    assert slow.worse["compile_seconds"] == ["a"] and not slow.is_worse
    failure = {"failure": "more than 300 s"}
    assert plans.compared({"a": failure}, {"a": figures()}).is_worse
    mended = plans.compared({"a": figures(), "b": failure}, {"a": failure, "b": failure})
    assert (mended.failed_before, mended.fail_still, mended.is_worse) == (["a"], ["b"], False)


def test_what_was_measured_is_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measure(case: plans.Case, *_: object) -> dict[str, Any]:
        asked.append(case.key)
        if case.key == "zoo:vgg19 edge" and len(asked) == 2:
            raise KeyboardInterrupt
        return figures(policy=case.policy, commit="c" * 40)

    monkeypatch.setattr(plans, "figures_of", measure)
    monkeypatch.setattr(plans, "code_commit", lambda: "c" * 40)
    words = ["zoo:alexnet", "zoo:vgg19", "--targets", "edge", "--json", str(tmp_path / "now.json")]
    with pytest.raises(KeyboardInterrupt):
        plans.main(words)
    assert list(plans.read(tmp_path / "now.json")) == ["zoo:alexnet edge"]
    assert plans.main(words) == 0 and asked == ["zoo:alexnet edge", "zoo:vgg19 edge", "zoo:vgg19 edge"]
    assert plans.main(words) == 0 and len(asked) == 3
    assert plans.main([*words, "--policy", "greedy"]) == 0 and len(asked) == 5
    before = {key: {**each, "cycles": 900} for key, each in plans.read(tmp_path / "now.json").items()}
    (tmp_path / "before.json").write_text(json.dumps(before))
    assert plans.main([*words[-2:], "--against", str(tmp_path / "before.json")]) == 1 and len(asked) == 5
    out = capsys.readouterr().out
    assert "| zoo:alexnet edge | cycles | 900 | 1,000 | 1.111 |" in out
    assert "now: commit cccccccc, policy greedy" in out and "before: commit cccccccc, policy greedy" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to measure, or both --json and --against to compare two files"),
        (["nothing.onnx"], "neither a set, a folder nor a model: nothing.onnx"),
        (["zoo:alexnet", "--against", "nothing.json"], "--against: no file nothing.json"),
    ],
)
def test_what_is_not_there_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plans.main(words)
    assert message in capsys.readouterr().err


def test_commit_is_of_the_code_with_a_checksum_of_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(path: str, text: str) -> str:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        git("add", ".")
        git("commit", "-m", path)
        return plans.code_commit()

    git("init")
    for folder in plans.CODE:
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(frustum, "__path__", [str(tmp_path)])
    first = commit("passes/one.py", "1")
    assert len(first) == 40
    assert commit("docs/page.md", "text") == first
    (tmp_path / "passes/one.py").write_text("2")
    changed = plans.code_commit()
    (tmp_path / "passes/two.py").write_text("2")
    more = plans.code_commit()
    assert {changed[:41], more[:41]} == {f"{first}+"} and changed != more
    assert len(commit("passes/one.py", "3")) == 40 != first


def test_a_case_that_takes_too_long_or_dies_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "code_commit", lambda: "c")
    case, stamp = plans.Case("zoo:vgg19", "edge", "greedy"), {"commit": "c", "policy": "greedy", "defaults": False}
    assert plans.figures_of(case, 0.01, os.environ) == {**stamp, "failure": "more than 0.01 s"}
    script = tmp_path / "dies.py"
    script.write_text("import os; os.abort()")
    monkeypatch.setattr(plans, "__file__", str(script))
    assert plans.figures_of(case, 60, os.environ) == {**stamp, "failure": "the process ended with code -6"}


@pytest.mark.slow
def test_a_case_is_measured_in_a_process(tmp_path: Path) -> None:
    onnx.save(onnx_models.network(("batch", 3, 8, 8)), tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_text("no model")
    kept = tmp_path / "now.json"
    assert plans.main([str(tmp_path), "--targets", "edge", "--json", str(kept)]) == 0
    found = plans.read(kept)
    good, bad = (found[f"{tmp_path.name}/{name} edge"] for name in "ab")
    compiled = frustum.compile(
        tmp_path / "a.onnx", "edge", "f16", shapes={"x": (1, 3, 8, 8)}, compress_weights="none", split="never"
    )
    report = frustum.run(compiled, {}, mode="timing").report
    assert good["cycles"] == report["cycles"]["total"]
    assert good["dram_bytes"] + good["other_bytes"] == report["dram"]["total_bytes"]
    assert good["code_bytes"] == len(compiled.executable.code.bytes)
    assert good["sha256"] == plans.executable_sum(compiled)
    assert "DecodeError" in bad["failure"] and bad["commit"] == good["commit"] == plans.code_commit()


@pytest.mark.slow
def test_models_of_integers_keep_their_types() -> None:
    assert plans.measured(plans.Case("generated:39", "edge"))["dtype"] == "int8"
