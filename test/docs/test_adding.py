"""The recipes of docs/adding.md: the files that they name are there, and the least examples work on a copy."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from hatchling.builders.wheel import WheelBuilder
from onnx import helper

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text()
RECIPES = dict(re.findall(r"^## (?:An? )?(.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
ASKED = {
    "pass", "ONNX operator of parts that are there", "elementwise function", "layer kind", "instruction", "target",
    "fusion rule", "policy", "option",
    *(f"plug-in: {kind}" for kind in ("target", "rule", "policy", "operator", "pass")),
}  # fmt: skip
LONGEST = 10
"""Lines of a recipe, its example apart."""
LONGEST_PLUG_IN = 20
"""Lines of all files of a plug-in, without blank ones."""
FOLDERS = ("dialects", "passes", "backend", "runtime")
COMMANDS = {
    "frustum": "import sys; from frustum.runtime.tools.cli import main; sys.exit(main(sys.argv[1:]))",
    "frustum-opt": "import sys; from frustum.runtime.tools.opt import main; sys.exit(main(sys.argv[1:]))",
    "pytest": "import sys, pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', *sys.argv[1:]]))",
}


@dataclass(frozen=True)
class Edit:
    """A block of a recipe, and where it goes."""

    file: str
    how: str
    place: str
    block: str

    def carry_out(self, root: Path) -> None:
        """Change the file as the page says; AssertionError where the page does not fit the source any more."""
        path = root / self.file
        if self.how == "new":
            assert not path.exists(), f"{self.file} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.block)
            return
        if self.how == "copy":
            text = (root / self.place).read_text()
            for line in self.block.splitlines():
                key = re.escape(line.partition(":")[0])
                text, count = re.subn(rf"^{key}:.*$", line, text, count=1, flags=re.M)
                assert count, f"{self.place} has no line '{line.partition(':')[0]}:'"
            path.write_text(text)
            return
        lines = path.read_text().splitlines(keepends=True)
        at = next((n for n, line in enumerate(lines) if self.place in line), None)
        assert at is not None, f"{self.file} has no line with {self.place}"
        lines.insert(at + (self.how == "behind"), self.block)
        path.write_text("".join(lines))


HEAD = re.compile(
    r"^`(?P<file>[\w/.]+)`"
    r"(?: \((?P<new>new)\)| \(copy of `(?P<copied>[\w/.]+)`\)|, (?P<how>behind|before) `(?P<place>[^\n]+)`)\n"
    r"```\w*\n(?P<block>.*?)^```\n",
    re.M | re.S,
)
PROOF = re.compile(r"^Proof: `(.+)` prints `(.+)`$", re.M)


def edits(recipe: str) -> list[Edit]:
    return [
        Edit(
            m["file"], "new" if m["new"] else "copy" if m["copied"] else m["how"],
            m["copied"] or m["place"] or "", m["block"],
        )
        for m in HEAD.finditer(recipe)
    ]  # fmt: skip


def steps(recipe: str) -> list[str]:
    return [line for line in recipe.splitlines() if re.match(r"\d+\. ", line)]


def test_all_recipes_are_there():
    assert set(RECIPES) == ASKED


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_short_and_has_an_example_with_a_proof(name):
    assert 2 <= len(steps(RECIPES[name])) <= LONGEST
    assert edits(RECIPES[name]) and PROOF.search(RECIPES[name])
    assert RECIPES[name].count("```") == 2 * len(edits(RECIPES[name])), "a block that nobody carries out"


@pytest.mark.parametrize("name", RECIPES)
def test_files_are_there(name):
    prose = "\n".join(steps(RECIPES[name]))
    named = re.findall(rf"`((?:{'|'.join((*FOLDERS, 'test', 'docs'))})/[\w/.]+)`", prose)
    assert named, "a recipe names files"
    assert [file for file in named if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("plug-in")])
def test_a_plug_in_is_short_and_outside_the_source(name):
    own = edits(RECIPES[name])
    assert all(edit.how == "new" and edit.file.startswith("acme_") for edit in own)
    assert sum(bool(line.strip()) for edit in own for line in edit.block.splitlines()) <= LONGEST_PLUG_IN


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source in which all examples were carried out, and the inputs of the proofs."""
    root = tmp_path_factory.mktemp("changed")
    (root / "frustum").mkdir()
    for file in (ROOT / ".dev" / "frustum").glob("*.py"):
        shutil.copy(file, root / "frustum")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.loop")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
        (root / "frustum" / folder).symlink_to(root / folder)
    shutil.copytree(ROOT / "test", root / "test", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for recipe in RECIPES.values():
        for edit in edits(recipe):
            edit.carry_out(root)
    for folder in root.glob("acme_*"):  # as pip does
        (wheel,) = WheelBuilder(str(folder)).build(directory=str(root / "wheels"), versions=["standard"])
        zipfile.ZipFile(wheel).extractall(root / "site")
    for name, domain in (("Sinh", ""), ("Atan", ""), ("Twice", "com.acme")):
        node = helper.make_node(name, ["x"], ["y"], domain=domain)
        ends = [helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for end in "xy"]
        graph = helper.make_graph([node], name.lower(), ends[:1], ends[1:])
        opset = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), root / f"{name.lower()}.onnx")
    (root / "relu.mlir").write_text(network(1))
    (root / "relus.mlir").write_text(network(5))
    (root / "bound.mlir").write_text(network(1).replace("unary <relu> %0", "bound %0 limit 0.5"))
    return root


def network(relus: int) -> str:
    """The text of so many layers one behind the other."""
    map_ = "tensor<1x8x8x8xf32>"
    layers = "".join(f"  %{n + 1} = fgraph.unary <relu> %{n} : {map_}\n" for n in range(relus))
    head = f'fgraph.network @n (%0 : {map_}) inputs ["x"] outputs ["y"] {{\n'
    return f"{head}{layers}  fgraph.output %{relus} : {map_}\n}}\n"


@pytest.mark.slow
@pytest.mark.soak(but=5)
@pytest.mark.parametrize("name", RECIPES)
def test_least_example_works(changed, name):
    for command, expected in PROOF.findall(RECIPES[name]):
        program, *arguments = shlex.split(command)
        started = [sys.executable, "-c", COMMANDS[program], *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{changed}:{changed / 'site'}"}
        done = subprocess.run(started, cwd=changed, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and expected in done.stdout, f"{command}\n{done.stdout}{done.stderr}"

