"""A policy that a target file stores: used, reported, refused by name, and set aside by the command line."""

from __future__ import annotations

import onnx_models
import pytest

from frustum.backend import targets
from frustum.runtime.build import build
from frustum.runtime.failures import UsageError
from frustum.runtime.request import Request


def stored(tmp_path, options):
    path = tmp_path / "mine.yaml"
    path.write_text(targets.path("edge").read_text() + f"\noptions: {options}\n")
    return path


def manifest(tmp_path, options, **asked):
    request = Request(onnx_models.network(), stored(tmp_path, options), **asked)
    return build(request).executable.manifest["options"]


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
            "target edge: error: options: rule 1 forward-only and rule 2 .* exclude each other",
        ),
        ("{policy: best}", "target edge: error: options: unknown policy 'best'"),
        (
            '{policy: pyramid, thresholds: "11=60"}',
            "target edge: error: options: threshold 60 of rule 11 redundancy",
        ),
    ],
)
def test_a_wrong_one_is_refused(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        manifest(tmp_path, options)
