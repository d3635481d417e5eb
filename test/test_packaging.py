"""What people get who install Frustum: the files of a wheel and of a source package, and versions that are known."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from frustum.runtime.compatibility import BEYOND_ALL, outside_range, range_of, version_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("dialects", "passes", "backend", "runtime")
WARNING = r"warning: numpy [\d.]+ was not tried with this Frustum, which wants .*"
TYPED = """
import frustum
from frustum.onnx_backend import prepare
executable = frustum.compile("model.onnx", target="edge")
reveal_type(frustum.run(executable, {}))
reveal_type(executable)
reveal_type(executable.save("out"))
reveal_type(frustum.run("out").report.data["dram"]["total_bytes"])
reveal_type(frustum.targets()["edge"].clock_hz)
frustum.compile(3)
frustum.compile("model.onnx", dtype="f8")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_a_wheel_holds_all_modules_and_says_that_they_are_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"frustum/{name}" for name in ("__init__.py", "check_plan.py", "onnx_backend.py", "py.typed")} <= names
    for folder in FOLDERS:
        here = {f"frustum/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
        assert here <= names


def test_a_source_package_holds_what_its_tests_and_pages_need(tmp_path: Path) -> None:
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"examples/stops.py", "test/conftest.py", "Makefile", "README.md", "LICENSE"} <= names
    assert ".dev/frustum/py.typed" in names


def test_mypy_sees_types_through_the_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed; make check runs this test")
    # As pip installs it, outside of everything that this checkout tells mypy.
    site = tmp_path / "env" / "lib" / "python" / "site-packages"
    wheel.extractall(site)
    script = tmp_path / "script.py"
    script.write_text(TYPED)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from mypy import main; main.main(args=sys.argv[2:])"
    flags = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file=", "--no-incremental"]
    path = f"MYPYPATH={site}"
    command = ["env", path, sys.executable, "-c", code, str(site), *flags, str(script)]
    text = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert "py.typed" not in text
    assert 'Revealed type is "frustum.runtime.tools.api.Result' in text
    for kind in ("Compiled", "Path", "int"):
        assert re.search(f'Revealed type is "(\\w+\\.)*{kind}"', text), text
    assert "Any" not in "".join(line for line in text.splitlines() if "Revealed" in line)
    assert 'error: Argument 1 to "compile" has incompatible type "int"' in text
    assert "error: Argument \"dtype\" to \"compile\" has incompatible type" in text


def test_every_type_that_users_see_is_said() -> None:
    """Whatever a type checker would have to guess, each its own way, is a name in the message."""
    pytest.importorskip("pyright", reason="pyright is not installed; make check runs this test")
    command = [sys.executable, "-m", "pyright", "--verifytypes", "frustum", "--ignoreexternal", "--outputjson"]
    # pyright asks the first python on the path for the packages that it reads types of.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {"PYTHONPATH": str(ROOT / ".dev"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PATH": path}
    environment = {**os.environ, **own}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    found = json.loads(done.stdout)["typeCompleteness"]
    guessed = [
        f"{symbol['name']}: {said['message']}"
        for symbol in found["symbols"]
        if symbol["isExported"] and not (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"])
        for said in symbol["diagnostics"]
    ]
    assert guessed == []
    assert found["exportedSymbolCounts"]["withKnownType"] > 10_000  # it looked at the whole package
    assert found["completenessScore"] == 1


OURS = ("test", "dev", "docs", "lock", "pages")
"""Extras of those who work on Frustum; others are of users."""


def test_every_dependency_has_both_ends() -> None:
    for requirement in PROJECT["dependencies"]:
        name, least, beyond = range_of(requirement)
        assert () < least < beyond < BEYOND_ALL, requirement
        assert version_of(metadata.version(name)) >= least, requirement


def test_every_import_is_declared() -> None:
    """A package that only comes along with another one is gone with that one's next version."""
    extras = (PROJECT["optional-dependencies"][name] for name in PROJECT["optional-dependencies"] if name not in OURS)
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    declared = {range_of(each)[0].split(".")[0] for each in wanted}
    with_onnx = {"google"}  # protobuf: onnx's own objects and errors are of it
    found = {name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") for name in _imported(path)}
    assert found - {"frustum"} - set(sys.stdlib_module_names) - with_onnx == declared


def _imported(path: Path) -> set[str]:
    """First names of all modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize(
    ("requirement", "lines"),
    [
        ("numpy>=1.0,<99", 0),
        ("numpy<99,>=1.0", 0),
        ("numpy>=98,<99", 1),
        ("numpy>=1.0,<1.1", 1),
        ("nobody-has-this>=1,<2", 0),
        ("numpy>=98,<99; extra == 'test'", 0),
        ("numpy>=98", 1),
        ("numpy", 0),
    ],
)
def test_a_version_that_was_not_tried_is_one_line(requirement: str, lines: int) -> None:
    found = outside_range([requirement])
    assert len(found) == lines
    assert all(re.fullmatch(WARNING, line) for line in found)
