# Tests: test/runtime/tools/test_compare.py
"""`frustum compare`: figures that others publish, ours beside them, each counted by one run in mode timing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from frustum.backend import targets
from frustum.runtime.failures import GOOD
from frustum.runtime.kernels import Array
from frustum.runtime.model.build import build
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import Request
from frustum.runtime.progress import Progress, TerminalProgress
from frustum.runtime.report.terminal import WIDTH, show, table
from frustum.runtime.study.options import CompareOptions
from frustum.runtime.study.published.cases import (
    HEAD,
    PUBLISHED_HEAD,
    Case,
    ComparedFigure,
    Counted,
    beside,
    cases,
    cells,
    named,
    published_cells,
    source_lines,
)  # fmt: skip

if TYPE_CHECKING:
    from onnx import ModelProto


def main(options: CompareOptions) -> int:
    """Without names or --all only what is published; nothing runs then."""
    chosen = list(cases().values()) if options.all else named(options.cases)
    if not chosen:
        rows = [each for case in cases().values() for each in case.figures()]
    else:
        with TerminalProgress() as progress:
            rows = compared(chosen, progress)
    show(json.dumps([as_json(each) for each in rows], indent=1) + "\n" if options.json else text(rows))
    return GOOD


def compared(chosen: Iterable[Case], progress: Progress = lambda stage, share: None) -> list[ComparedFigure]:
    """Each case compiled and run; what is compiled is not taken from the cache, for `seconds` are of that."""
    rows = []
    for case in chosen:

        def of_case(stage: str, share: float, name: str = case.name) -> None:
            progress(f"{name}: {stage}", share)

        rows += beside(case, count(case, of_case))
    return rows


def count(case: Case, progress: Progress = lambda stage, share: None) -> Counted:
    """One run of a case in mode timing.

    Models are made before the seconds begin.  The ranges of int8 are from one random input where the model is made
    here: neither bytes nor cycles depend on them.
    """
    model, target = case.network(), case.machine(targets.load)
    started = time.process_time()
    options = {"compress_weights": None if case.plan else "none", **case.options}
    images = [] if isinstance(model, str) or options.get("dtype") != "int8" else [random_input(model)]
    chain = build(Request(model, target, pipeline=case.pipeline, calibration=images, **options), progress).chain
    report = report_of_chain(chain, execute_chain(chain, {}, "timing"))
    seconds = time.process_time() - started
    ends = [each.bytes for made in chain.executables for each in made.program.externals_of("input", "output")]
    return Counted(report, sum(ends), seconds)


def random_input(model: ModelProto) -> dict[str, Array]:
    """Of each input of a model, in [0, 1)."""
    random = np.random.default_rng(0)
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: random.random(shape, np.float32) for name, shape in shapes.items()}


def as_json(each: ComparedFigure) -> dict[str, Any]:
    """All of a figure, and the ratio."""
    return asdict(each) | {"ratio": each.ratio}


def text(rows: Sequence[ComparedFigure]) -> str:
    """A table, and below it who publishes what; where nothing was counted, only what is published."""
    sources = [fill(line, WIDTH, subsequent_indent="  ") for line in source_lines(rows)]
    if any(each.ours is not None for each in rows):
        return "\n".join([*table([HEAD, *map(cells, rows)]), "", *sources]) + "\n"
    lines = table([PUBLISHED_HEAD, *map(published_cells, rows)])
    return "\n".join([*lines, "", "frustum compare CASE, or --all, counts ours beside it", "", *sources]) + "\n"
