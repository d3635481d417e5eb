"""A policy that a target file stores: used, reported, refused by name, and set aside by the command line."""

from __future__ import annotations

import mixed_models
import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper

from frustum.backend import targets
from frustum.dialects.target import TargetError
from frustum.runtime.model.build import build
from frustum.runtime.model.options import Request
from frustum.runtime.tools import cli


def stored(tmp_path, options):
    path = tmp_path / "mine.yaml"
    path.write_text(targets.path("edge").read_text() + f"\noptions: {options}\n")
    return path


def manifest(tmp_path, options, **asked):
    request = Request(onnx_models.network(), stored(tmp_path, options), **asked)
    return build(request).chain.single.manifest["options"]


@pytest.mark.slow
def test_a_stored_policy_is_used_and_reported(tmp_path):
    found = manifest(tmp_path, '{rules: "S1,1,4"}')
    assert found["policy"] == "custom"
    assert all(unit["stopped_by"] for unit in found["units"])
    assert manifest(tmp_path, "{policy: none}")["policy"] == "none"
    units = manifest(tmp_path, "{policy: none}")["units"]
    assert {unit["stopped_by"] for unit in units} == {"policy none"}


def test_the_command_line_wins(tmp_path):
    assert manifest(tmp_path, '{rules: "S1,1,4"}', policy="none")["policy"] == "none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            '{rules: "S1,1,2"}',
            r"85:18: error: options\.rules: rule 1 forward-only and rule 2 .* exclude each other",
        ),
        ("{policy: best}", r"85:19: error: options\.policy: found 'best', allowed none, pyramid, "),
        (
            '{policy: pyramid, thresholds: "11=60"}',
            r"85:40: error: options\.thresholds: threshold 60 of rule 11 redundancy",
        ),
    ],
)
def test_a_wrong_one_is_refused(tmp_path, options, message):
    with pytest.raises(TargetError, match=message):
        manifest(tmp_path, options)


# --- the element type that a target file stores -------------------------------------------------------------


def program_dtype(tmp_path, options, model=None, **asked):
    request = Request(model or onnx_models.network(), stored(tmp_path, options), **asked)
    return build(request).chain.single.program.dtype


@pytest.mark.slow
def test_a_stored_element_type_is_the_default_of_a_run(tmp_path):
    assert program_dtype(tmp_path, "{dtype: f16}") == "f16"
    assert program_dtype(tmp_path, "{dtype: int8}") == "int8"
    assert program_dtype(tmp_path, "{dtype: model}") == "f32"
    assert program_dtype(tmp_path, "{dtype: f16}", dtype="bf16") == "bf16"
    assert program_dtype(tmp_path, "{dtype: f16}", dtype="model") == "f32"


@pytest.mark.slow
def test_a_stored_element_type_gives_way_to_types_that_are_there(tmp_path, capsys):
    """Models of integers and stages have theirs."""
    integers = [helper.make_tensor_value_info("x", TensorProto.INT8, (1, 3, 8, 8))]
    weight = np.arange(-54, 54, dtype=np.int8).reshape(4, 3, 3, 3)
    conv = mixed_models.node("ConvInteger", ["x", "w"], ["y"])
    quantised = mixed_models.model([conv], integers, ["y"], {"w": weight})
    assert program_dtype(tmp_path, "{dtype: f16}", quantised) == "int8"
    onnx.save(onnx_models.network(), tmp_path / "m.onnx")
    target, dump = stored(tmp_path, "{dtype: f16}"), tmp_path / "dump"
    dumped = ["run", str(tmp_path / "m.onnx"), "--target", str(target), "--dump-ir", str(dump)]
    assert cli.main([*dumped, "--dtype", "bf16"]) == 0
    for stage, dtype in (("00-imported", "f32"), ("01-typed", "bf16"), ("05-lowered", "bf16")):
        capsys.readouterr()
        assert cli.main(["run", str(dump / f"{stage}.mlir"), "--target", str(target)]) == 0
        assert f"mine.yaml, {dtype}," in capsys.readouterr().out  # long titles are folded


@pytest.mark.slow
def test_a_stored_element_type_acts_around_the_host(tmp_path):
    chain = build(Request(mixed_models.sandwich(), stored(tmp_path, "{dtype: f16}"))).chain
    assert {piece.kind for piece in chain.pieces} == {"device", "host"} and chain.dtype == "f16"
