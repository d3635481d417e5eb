"""frustum warm-up, and the seconds that making machine code takes."""

import json
import subprocess
import sys
from pathlib import Path

import onnx_models
import pytest

from frustum.dialects import loops
from frustum.runtime.tools import cli


def test_warm_up_says_what_it_did_and_where_it_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["warm-up"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("loops: ") and " functions compiled, " in out and out.count("\n") == 1
    assert "; kept in /" in out
    assert err == ""


RUNS = """
import sys
import numpy as np
import frustum
from frustum.dialects import loops
from numba.core import sigutils

for dtype, codec in (("f32", "none"), ("f16", "auto"), ("bf16", "zero"), ("int8", "none")):
    executable = frustum.compile(sys.argv[1], "edge", dtype=dtype, compress_weights=codec).executable
    (name, shape), *_ = [(each.name, each.shape) for each in executable.program.externals if each.class_ == "input"]
    frustum.run(executable, {name: np.ones(shape, np.float32)})
declared, called = {}, {}
for function, signature in loops.ENTRIES:
    name = f"{function.py_func.__module__}.{function.py_func.__name__}"
    declared.setdefault(name, set()).add(sigutils.normalize_signature(signature)[0])
    called[name] = set(function.signatures)
print(len(called), [name for name in called if not called[name] <= declared[name]])
"""


@pytest.mark.slow
def test_runs_call_loops_as_they_are_declared(tmp_path: Path) -> None:
    """So what `warm-up` compiled is all that a run needs; in a process in which no test called a loop itself."""
    command = [sys.executable, "-c", RUNS, onnx_models.save(tmp_path)]
    count, wrong = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(maxsplit=1)
    assert int(count) >= 5
    assert wrong == "[]\n"


def test_making_machine_code_is_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loop that takes an hour to compile makes no part of the run any longer."""
    from frustum.runtime import machine

    hour, run = 3600.0, machine.Machine.run

    def slow(self: machine.Machine, *arguments: object, **named: object) -> object:
        found = run(self, *arguments, **named)  # type: ignore[arg-type]
        monkeypatch.setattr("time.perf_counter", lambda: before() + hour)
        loops.TIMES.seconds += hour
        return found

    from time import perf_counter as before

    monkeypatch.setattr(machine.Machine, "run", slow)
    report = tmp_path / "report.json"
    assert cli.main(["run", onnx_models.save(tmp_path), "--target", "edge", "--report", str(report)]) == 0
    seconds = json.loads(report.read_text())["seconds"]
    assert hour <= seconds["loops"] < hour + 600
    assert 0 < seconds["emulate"] < 600
    assert 0 < seconds["compile"] < 600
    assert f", loops {seconds['loops']:.2f} s\n" in capsys.readouterr().out
