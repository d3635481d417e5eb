"""Attributes beside operations are declared in `dialects/module.py`, all of them and nowhere else."""

import ast
import re
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

from frustum.dialects import module

SOURCE = Path(module.__file__).parents[1]
FILES = [p for room in ("dialects", "passes", "backend", "runtime") for p in (SOURCE / room).rglob("*.py")]
NAMES = {name: value for name, value in vars(module).items() if name.isupper()}


def literals(path: Path) -> set[str]:
    """The texts of a file that are such a name as a whole."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if re.fullmatch(r"frustum\.[a-z_]+", text)}


ELSEWHERE = {"frustum.kept"}  # a domain of ONNX


@pytest.mark.slow
def test_names_are_written_in_one_file():
    found = {path.relative_to(SOURCE).as_posix(): literals(path) - ELSEWHERE for path in FILES}
    assert {path for path, names in found.items() if names} == {"dialects/module.py"}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_name_is_the_constants_and_used(name):
    assert NAMES[name] == f"frustum.{name.lower()}"
    uses = sum(len(re.findall(rf"\b{name}\b", path.read_text())) for path in FILES)
    assert uses > 1, "nobody reads it"


def test_table_names_all():
    table = module.__doc__
    for name, value in NAMES.items():
        assert f"`{value.removeprefix('frustum.')}`" in table or name.startswith("UNIT_"), name


def test_lists_go_there_and_back():
    op = ModuleOp([], {"a": module.texts(["x", "y"]), "b": module.numbers([3, 4])})
    assert module.texts_of(op, "a") == ("x", "y")
    assert module.numbers_of(op, "b") == (3, 4)
    assert module.texts_of(op, "b") == module.texts_of(op, "c") == ()
