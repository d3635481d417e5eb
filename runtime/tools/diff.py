# Tests: test/runtime/study/test_difference.py
"""`frustum diff`: what changed between two reports, or two compiled folders, which are run for it (mode timing)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frustum.runtime.failures import GOOD, UsageError, WorseThanAllowed
from frustum.runtime.files import cannot_read
from frustum.runtime.report.report import SCHEMA
from frustum.runtime.report.terminal import show
from frustum.runtime.study.difference import Condition, ConditionError, difference, parse_condition
from frustum.runtime.study.options import DiffOptions

KEYS = ("dram", "cycles", "layers", "units")
"""What a report has at least."""


def main(options: DiffOptions) -> int:
    """WorseThanAllowed where a condition of --fail-on is met."""
    conditions = conditions_of(options.fail_on)
    before, after = report_at(Path(options.before)), report_at(Path(options.after))
    found = difference(before, after, (options.before, options.after))
    show(found.text(markdown=options.markdown))
    refuse_worse(conditions, before, after, options.after)
    return GOOD


def conditions_of(texts: Sequence[str]) -> list[Condition]:
    """Those of --fail-on."""
    try:
        return [parse_condition(text) for text in texts]
    except ConditionError as error:
        raise UsageError(f"error: --fail-on: {error}") from error


def refuse_worse(
    conditions: Sequence[Condition], before: Mapping[str, Any], after: Mapping[str, Any], name: str
) -> None:
    """WorseThanAllowed with the conditions that are met."""
    try:
        met = [each.text for each in conditions if each.holds(before, after)]
    except ConditionError as error:
        raise UsageError(f"error: --fail-on: {error}") from error
    if met:
        raise WorseThanAllowed(f"{name}: error: {' and '.join(met)}")


def report_at(path: Path) -> dict[str, Any]:
    """The report in a file, or of a run of a compiled folder in mode timing."""
    if path.is_dir():
        from frustum.runtime.model.compiled_folder import open_folder
        from frustum.runtime.model.execution import execute_chain, report_of_chain

        chain, _ = open_folder(path)
        return report_of_chain(chain, execute_chain(chain, {}, "timing", False))
    with cannot_read(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: error: not a report: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or any(key not in data for key in KEYS):
        raise UsageError(f"{path}: error: not a report of schema {SCHEMA}, nor a compiled folder")
    return data
