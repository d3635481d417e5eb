"""What installed packages add: one temporary distribution for each kind, and broken ones."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper

import frustum
from frustum.backend import targets
from frustum.dialects.plug_ins import forget
from frustum.passes.fuse.policy import parse_policy, problems_of
from frustum.passes.fuse.rules import RULES
from frustum.runtime.tools.cli import main

OWN_RULE = 91
RULE = f"""
from frustum.passes.fuse.rules import Remedy, RuleKind, at_most, rule

@rule({OWN_RULE}, RuleKind.PROFITABILITY, Remedy.STOP)
def at_most_one_layer(unit):
    "The unit has at most one layer."
    return at_most(len(unit.operators), 1, "layers")
"""
PASS = """
from xdsl.passes import ModulePass
from dataclasses import dataclass

@dataclass(frozen=True)
class Shout(ModulePass):
    name = "acme-shout"
    def apply(self, ctx, op):
        print("acme was here")
"""
OPERATOR = """
def twice(node):
    x = node.value(0)
    return node.binary("add", x, x)

CONVERTERS = {("com.acme", "Twice"): twice}
"""
Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with one entry point, and the text of its module, where Python looks for packages."""

    def put(kind: str, point: str, text: str) -> None:
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[frustum.{kind}]\n{point}\n")
        (tmp_path / "acme_plug.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()

    before = dict(RULES)
    yield put
    sys.modules.pop("acme_plug", None)
    monkeypatch.undo()
    forget()
    for number in RULES.keys() - before.keys():
        del RULES[number]


def test_a_target(install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "big.yaml").write_text("extends: edge\nname: big\nclock_hz: 900000000\n")
    install("targets", "big = acme_plug:FILE", "from pathlib import Path\nFILE = Path(__file__).with_name('big.yaml')")
    assert targets.load("big").clock_hz == 900_000_000
    assert main(["targets"]) == 0
    assert any(line.split()[:1] == ["big"] for line in capsys.readouterr().out.splitlines())
    assert frustum.targets()["big"] == frustum.targets("big")
    assert "big" not in targets.names()


def test_a_rule_by_number_and_by_name(install: Install) -> None:
    install("rules", "one = acme_plug", RULE)
    for word in (str(OWN_RULE), "at-most-one-layer"):
        made = frustum.compile(onnx_models.network(), "edge", rules=f"S1,1,4,{word}")
        assert all(len(each.layers) == 1 for each in made.units)
        assert f"rule {OWN_RULE} at-most-one-layer" in str([each.stopped_by for each in made.units])


@pytest.mark.slow
def test_a_policy(install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install("policies", "mine = acme_plug:RULES", "RULES = 'S1,1,4,8-10'")
    parsed = parse_policy("mine")
    assert parsed is not None and parsed.start == "S1" and parsed.has(9)
    assert problems_of({"policy": "mine"}) == []
    path = onnx_models.save(tmp_path, onnx_models.network(), "m.onnx")
    assert main(["run", str(path), "--target", "edge", "--policy", "mine", "--check", "-v"]) == 0
    assert "mine" in capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text("extends: edge\nname: own\noptions: {policy: mine}\n")
    assert frustum.compile(path, tmp_path / "mine.yaml").policy == "mine"


def custom() -> object:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)) for name in "xy"]
    node = helper.make_node("Twice", ["x"], ["y"], "t", domain="com.acme")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_an_operator(install: Install) -> None:
    with pytest.raises(frustum.Error, match="Twice"):
        frustum.compile(custom(), "edge", host="never")  # type: ignore[arg-type]
    install("operators", "acme = acme_plug:CONVERTERS", OPERATOR)
    x = np.float32([[1, 2, -3, 4]])
    found = frustum.run(frustum.compile(custom(), "edge", host="never"), {"x": x}).outputs["y"]  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, 2 * x)


def test_a_pass(install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install("passes", "acme-shout = acme_plug:Shout", PASS)
    frustum.compile(onnx_models.network(), "edge", pipeline="+before:frustum-fuse-layers:acme-shout")
    assert "acme was here" in capsys.readouterr().out
    from frustum.runtime.tools.opt import main as opt

    (tmp_path / "m.mlir").write_text("builtin.module {}")
    assert opt([str(tmp_path / "m.mlir"), "-p", "acme-shout"]) in (0, None)
    assert "acme was here" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "words", "message"), [
    ("targets", ["targets"], "RuntimeError: no luck"),
    ("rules", ["run", "MODEL", "--rules", "S1,1,4,77"], "RuntimeError: no luck"),
    ("policies", ["run", "MODEL", "--policy", "mine"], "RuntimeError: no luck"),
    ("operators", ["run", "CUSTOM", "--host", "never"], "RuntimeError: no luck"),
    ("passes", ["run", "MODEL", "--pipeline", "+after:frustum-fuse-layers:mine"], "RuntimeError: no luck"),
])  # fmt: skip
def test_a_broken_one_is_named_once(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: list[str], message: str
) -> None:
    install(kind, "mine = acme_plug:THING", "raise RuntimeError('no luck')")
    files = {
        "MODEL": str(onnx_models.save(tmp_path, onnx_models.network(), "m.onnx")),
        "CUSTOM": str(onnx_models.save(tmp_path, custom(), "c.onnx")),
    }
    code = main([files.get(word, word) for word in words])
    said = capsys.readouterr().err
    assert code == (0 if kind == "targets" else 2), said
    line = f"frustum: warning: plug-in 'mine' of acme 1.0 (frustum.{kind}: acme_plug:THING): {message}"
    assert said.splitlines().count(line) == 1, said
    assert "did you mean" not in said  # what was asked for is there, and broken
    assert ("is that of a plug-in that cannot be used" in said) == (kind in ("policies", "passes"))


def test_a_broken_target_that_is_asked_for_is_not_its_own_suggestion(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("targets", "mine = acme_plug:THING", "raise RuntimeError('no luck')")
    model = str(onnx_models.save(tmp_path, onnx_models.network(), "m.onnx"))
    assert main(["run", model, "--target", "mine"]) == 2
    said = capsys.readouterr().err
    assert "no target 'mine': it is that of a plug-in that cannot be used" in said and "did you mean" not in said
    assert main(["run", model, "--target", "mime"]) == 2
    assert "did you mean 'mine'?" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "extends: edge\nname: [\n", "extends: edge\nclock_hz: -1\n"])
def test_a_target_whose_file_is_wrong_is_named_once(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    install("targets", "mine = acme_plug:FILE", "from pathlib import Path\nFILE = Path(__file__).with_name('m.yaml')")
    if text is not None:
        (tmp_path / "m.yaml").write_text(text)
    model = str(onnx_models.save(tmp_path, onnx_models.network(), "m.onnx"))
    assert main(["run", model, "--target", "mine"]) == 2
    said = capsys.readouterr().err
    assert said.count("frustum: warning: plug-in 'mine' of acme 1.0 (frustum.targets: acme_plug:FILE): ") == 1
    assert f"{tmp_path / 'm.yaml'}" in said


def test_a_policy_of_rules_that_there_are_not_is_named(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("policies", "mine = acme_plug:RULES", "RULES = 'S1,1,77'")
    model = str(onnx_models.save(tmp_path, onnx_models.network(), "m.onnx"))
    assert main(["run", model, "--policy", "mine"]) == 2
    said = capsys.readouterr().err
    assert "plug-in 'mine' of acme 1.0 (frustum.policies: acme_plug:RULES): unknown rule '77'" in said
    assert "policy 'mine' is that of a plug-in that cannot be used" in said


@pytest.mark.parametrize("kind", ["targets", "policies", "operators", "passes"])
def test_one_of_the_wrong_kind_is_named(install: Install, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    install(kind, "mine = acme_plug:THING", "THING = 3")
    asked = {"targets": ("target", "mine"), "policies": ("policy", "mine"), "passes": ("pipeline", "mine")}
    name, value = asked.get(kind, ("host", "never"))
    with pytest.raises(frustum.Error):
        frustum.compile(custom() if kind == "operators" else onnx_models.network(), **{name: value})  # type: ignore[arg-type]
    assert f"plug-in 'mine' of acme 1.0 (frustum.{kind}: acme_plug:THING): " in capsys.readouterr().err


def test_what_is_not_asked_for_is_not_loaded(install: Install, tmp_path: Path) -> None:
    install("policies", "mine = acme_plug:THING", "print('loaded')")
    program = "import sys; from frustum.runtime.tools.cli import main; main(['run', '--help'])"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--policy" in found.stdout and "loaded" not in found.stdout + found.stderr
