"""The table of agreement with onnxruntime."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import agreement_table as agreement


def test_networks_are_named_with_their_type_and_batch() -> None:
    assert agreement.job_of("zoo:alexnet") == agreement.Job("zoo:alexnet", "zoo:alexnet")
    found = agreement.job_of("zoo:alexnet:f16x4")
    assert found == agreement.Job("zoo:alexnet batch 4", "zoo:alexnet", ("--dtype", "f16", "--batch", "4"))
    assert agreement.job_of("a/b.onnx:int8").options == ("--dtype", "int8")


def test_open_dimensions_are_bound(tmp_path: Path) -> None:
    onnx.save(onnx_models.network(("batch", 3, 8, 8)), tmp_path / "a.onnx")
    onnx.save(onnx_models.network(("batch", 3, 8, 8)), tmp_path / "b.onnx")
    onnx.save(onnx_models.network(), tmp_path / "c.onnx")
    np.savez(tmp_path / "b.io.npz", **{"in:x": np.zeros((2, 3, 8, 8), np.float32), "out:y": np.zeros(3)})
    options = [job.options for job in agreement.jobs_in(tmp_path)]
    assert options == [("--shape", "x=1x3x8x8"), ("--shape", "x=2x3x8x8"), ()]


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_is_a_row(tmp_path: Path) -> None:
    onnx.save(onnx_models.network(), tmp_path / "c.onnx")
    (job,) = agreement.jobs_in(tmp_path)
    found = agreement.row(job, "edge", *agreement.run(job, "edge", 0))
    assert len(found) == len(agreement.HEAD) and found[:3] == ["c", "edge", "f32"] and found[5] == "0"
    assert float(found[3]) <= 1e-4 and float(found[6]) > 0.9  # of raw bytes: compressed weights may take less


def test_a_run_that_fails_is_a_row() -> None:
    job = agreement.Job("nothing", "nothing.onnx")
    found = agreement.row(job, "edge", *agreement.run(job, "edge", 0))
    assert len(found) == len(agreement.HEAD) and found[5] == "2" and found[3] == "-"
