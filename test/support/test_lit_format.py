"""The lit format itself: what runs warm, what needs a shell, and that a failing test fails."""

from pathlib import Path

import pytest
from lit_format import pipe_of, run_file
from warm import Command

CONFIG = Path(__file__).parents[1] / "lit.cfg.py"


@pytest.mark.parametrize(
    ("line", "pipe"),
    [
        ("frustum-opt a.mlir", [Command(["frustum-opt", "a.mlir"])]),
        (
            "not frustum-opt 'a b.mlir' 2>&1 | filecheck c",
            [Command(["frustum-opt", "a b.mlir"], fails=True, merges=True), Command(["filecheck", "c"])],
        ),
        ("frustum-opt a.mlir > b", None),
        ("frustum-opt a.mlir && frustum-opt b.mlir", None),
        ("frustum run a.mlir", None),
        ("frustum-opt a.mlir |", [Command(["frustum-opt", "a.mlir"])]),
    ],
)
def test_what_runs_warm(line: str, pipe: list[Command] | None) -> None:
    assert pipe_of(line) == pipe


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("run", "check", "code"),
    [
        ("frustum-opt %s | filecheck %s", "CHECK: builtin.module", "PASS"),
        ("frustum-opt %s | filecheck %s", "CHECK: no such thing", "FAIL"),
        ("frustum-opt %s | not filecheck %s", "CHECK: no such thing", "PASS"),
        ("not frustum-opt %s", "", "FAIL"),
        ("frustum-opt %s --no-such-flag", "", "FAIL"),
        ("not frustum-opt %s -p nothing 2>&1 | filecheck %s", "CHECK: unknown pass 'nothing'", "PASS"),
        ("frustum-opt %s > %t && filecheck %s < %t", "CHECK: builtin.module", "PASS"),
        ("frustum-opt %s > %t && filecheck %s < %t", "CHECK: no such thing", "FAIL"),
    ],
)
def test_results(run: str, check: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "lit.cfg.py").write_text(
        CONFIG.read_text().replace("Path(__file__).resolve().parent", f"Path({str(CONFIG.parent)!r})", 1)
        + f"config.test_source_root = config.test_exec_root = {str(tmp_path)!r}\n"
    )
    (tmp_path / "a.mlir").write_text(f"// RUN: {run}\n// {check}\nbuiltin.module {{}}\n")
    result = run_file(str(tmp_path / "a.mlir"))
    assert result.code.name == code, result.output
