"""The ladder of machines sees a step that is slower (`benchmarks/ladder.py`)."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measured(cycles: int) -> Any:
    return SimpleNamespace(report={"cycles": {"total": cycles}}, megabytes=1.0)


def test_a_slower_step_is_a_miss_even_behind_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is compared with the least so far, not with its neighbour."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    ladder: Any = importlib.import_module("ladder")
    cycles = iter([200, 100, 101, 102, 100])
    monkeypatch.setattr(ladder, "targets", lambda network, along: [(str(step), None) for step in range(5)])
    monkeypatch.setattr(ladder, "of_network", lambda network, target: measured(next(cycles)))
    verdicts = [row[-1] for row in ladder.climb("vgg5", "sram")]
    assert verdicts == ["", "", "", "MISSED", ""]
    sys.modules.pop("ladder")
