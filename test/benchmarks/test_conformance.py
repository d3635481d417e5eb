"""A sample of the ONNX backend suite, in which every kind of case is; `make conformance` runs all of it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import conformance
import conformance_table
from conformance import Outcome

EVERY = {"node": 72, "simple": 12, "pytorch-operator": 18, "pytorch-converted": 28}
"""Of each kind every so manieth case."""
NODES = ("test_basic_conv_with_padding", "test_maxpool_3d_default", "test_gemm_all_attributes")


@pytest.mark.slow
@pytest.mark.soak
def test_the_sample_passes() -> None:
    names = [(kind, name) for kind, step in EVERY.items() for name in sorted(conformance.cases(kind))[::step]]
    assert len(names) >= 30
    outcomes = [conformance.run_case(kind, name) for kind, name in names]
    bad = {each.name: each.reason for each in outcomes if each.verdict != "passed"}
    known = [name for name in bad if any(word in name for word in ("bernoulli", "image_decoder", "gradient"))]
    assert bad.keys() == set(known), bad


@pytest.mark.slow
def test_layers_are_on_the_device() -> None:
    for kind, name in (*(("node", name) for name in NODES), ("pytorch-converted", "test_Conv2d_groups")):
        found = conformance.run_case(kind, name)
        assert found.verdict == "passed" and conformance_table.runs_on_device(found), found


@pytest.mark.slow
@pytest.mark.soak
def test_a_real_network_is_on_the_device() -> None:
    """Networks whose weights are all 0.02 agree or not by the width of the tiles: docs/conformance.md."""
    squeezenet = conformance.run_case("real", "test_squeezenet")
    assert squeezenet.on_host == {} and "Conv" in squeezenet.on_device
    assert squeezenet.verdict == "passed" or "Not equal to tolerance" in squeezenet.reason


@pytest.mark.slow
@pytest.mark.soak
def test_all_cases_are_there() -> None:
    counts = {kind: len(conformance.cases(kind)) for kind in conformance.KINDS}
    assert counts == {"node": 1884, "simple": 23, "pytorch-operator": 35, "pytorch-converted": 82, "real": 9}


def test_comparison_is_strict() -> None:
    import numpy as np

    one = np.float32([1.0])
    conformance.compare([one], [one * np.float32(1.0005)], 1e-3, 1e-7)
    for own, wanted in (
        ([one], [one * np.float32(1.01)]),
        ([one], [one.astype(np.float64)]),
        ([one], [one[None]]),
        ([one], [one, one]),
        ([one], [[one]]),
        ([np.array(["a"], object)], [np.array(["b"], object)]),
        ([np.array([1])], [np.array([2])]),
    ):
        with pytest.raises(AssertionError):
            conformance.compare(own, wanted, 1e-3, 1e-7)


def test_the_page_counts() -> None:
    good = Outcome("test_relu", "node", "passed", "", ["Relu"], ["Relu"], {}, ["float32"], 0.1)
    empty = {"Slice": "its result would be empty"}
    host = Outcome("test_slice", "node", "passed", "", ["Slice"], [], empty, ["float32"])
    bad = Outcome("test_unique", "node", "failed", "numbers", ["Unique"], [], {"Unique": "not supported"}, ["float32"])
    page = conformance_table.table([good, host, bad], "edge")
    assert "**2 of 3 cases pass (66.67%)**" in page
    assert "of 2 cases of one such node on f32 inputs, **1 (50.0%) pass" in page
    assert "| test_slice | Slice | passed | its result would be empty |" in page
    assert "| test_unique | failed | numbers |" in page
    assert "| Unique | 1 | 0 | 1 | 1 | not supported (1) |" in page


@pytest.mark.slow
def test_a_case_that_hangs_or_dies_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import time

    def run_case(kind: str, name: str, target: str, host: str) -> Outcome:
        if name.startswith("test_abs"):
            time.sleep(60)
        if name == "test_relu":
            os._exit(7)
        return Outcome(name, kind, "passed")

    monkeypatch.setattr(conformance, "run_case", run_case)
    monkeypatch.setattr(conformance, "LIMIT_SECONDS", 0.5)
    names = [("node", "test_relu"), ("node", "test_abs"), ("node", "test_neg")]
    monkeypatch.setattr(conformance, "case_names", lambda kinds: names)
    found = conformance.run_cases()
    assert [(each.name, each.verdict) for each in found] == [
        ("test_relu", "crashed"), ("test_abs", "hangs"), ("test_neg", "passed"),
    ]  # fmt: skip
    assert found[0].reason == "the process ended with code 7"
