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


@dataclass(frozen=True)
class ExploreOptions:
    """Compile models for many machines and in many ways, run them in mode timing, and keep the Pareto front."""

    models: Sequence[str] = field(
        metadata=said("a path to .onnx, zoo:NAME, or a dumped stage NN-stop.mlir", "MODEL", flag="", action="extend")
    )
    space: str = field(metadata=said("the axes (docs/explore.md)", "FILE.yaml"))
    database: str | None = option(
        "where points are kept (default: FILE.sqlite here); those that are there do not run again",
        "DB.sqlite", flag="-o",
    )  # fmt: skip
    scheduler: str | None = option("run points on the workers of this Dask scheduler", "ADDRESS")
    html: str | None = option("write the points as a page", "FILE")
    json: bool = option("print all points as JSON, in place of the front as text", default=False)
