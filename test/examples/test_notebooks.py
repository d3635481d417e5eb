"""The notebooks run as scripts, from their first cell to their last."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = ["chip", "first_run", "plan"]


def test_all_notebooks_are_known():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted([*NOTEBOOKS, "small_model"])


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("marimo") is None, reason="marimo is not installed (the extra `docs`)")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, tmp_path):
    path = FOLDER / f"{name}.py"
    # As `python NOTEBOOK` does, with the values of all cells looked at.
    code = f"""import runpy, sys
sys.path.insert(0, {str(FOLDER)!r})
app = runpy.run_path({str(path)!r}, run_name="notebook")["app"]
outputs, names = app.run()
print(sum(output is not None for output in outputs), len(outputs))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = sum(isinstance(each, ast.FunctionDef) for each in ast.parse(path.read_text()).body)
    shown, found = map(int, done.stdout.splitlines()[-1].split())
    assert found == cells and shown >= 4
