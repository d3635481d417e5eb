# Tests: test/runtime/study/test_difference.py
"""What can be typed behind the commands that compare runs; as `runtime/model/options.py`, with nothing but the standard
library loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from frustum.runtime.model.options import option, said


@dataclass(frozen=True)
class DiffOptions:
    """Say what changed from one report (or compiled folder, which is run in mode timing) to another, unit by unit."""

    before: str = field(metadata=said("a report of --report, or a compiled folder", "A", flag=""))
    after: str = field(metadata=said("the other one", "B", flag=""))
    fail_on: Sequence[str] = field(
        default=(),
        metadata=said(
            "exit code 5 if a figure is (or has changed) so: cycles>+2%%, bytes>+1000, dram.ratio>1.1 (repeatable)",
            "CONDITION", action="append",
        ),
    )  # fmt: skip
    markdown: bool = option("as Markdown", default=False)
