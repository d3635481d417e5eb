# Tests: test/runtime/study/test_difference.py
"""What can be typed behind the commands that compare runs; as `runtime/model/options.py`, with nothing but the standard
library loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from frustum.dialects.choices import POLICIES, Carry, Optimise
from frustum.runtime.model.option_texts import at_least
from frustum.runtime.model.options import Keywords, Request, option, said


@dataclass(frozen=True)
class DiffOptions:
    """Say what changed from one report (or compiled folder, which is run in mode timing) to another, unit by unit."""

    before: str = field(metadata=said("a report of --report, or a compiled folder", "A", flag=""))
    after: str = field(metadata=said("the other one", "B", flag=""))
    fail_on: Sequence[str] = field(
        default=(),
        metadata=said(
            "exit code 5 if a figure is (or has changed) so: cycles>+2%%, bytes>+1000, dram.ratio>1.1 (repeatable)",
            "CONDITION", action="append", unsaid="no condition",
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
        "DB.sqlite", flag="-o", unsaid="the name of the space, with `.sqlite`, here",
    )  # fmt: skip
    scheduler: str | None = option(
        "run points on the workers of this Dask scheduler", "ADDRESS", unsaid="workers of its own"
    )
    html: str | None = option("write the points as a page", "FILE", unsaid="nothing is written")
    json: bool = option("print all points as JSON, in place of the front as text", default=False)


@dataclass(frozen=True, kw_only=True)
class ExplainKeywords(Keywords):
    """What `frustum.explain` is asked."""

    subject: str | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "a layer or a unit; without it the whole plan", "LAYER|UNIT", flag="", unsaid="the whole plan"
        ),
    )
    most: int = option("count at most so many other ways (default 8)", "N", read=at_least(1), default=8)
    probes: int = option(
        "try at most so many values of a number of the target for what would flip the choice (default 3)",
        "N", read=at_least(0), default=3,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(Request, ExplainKeywords):
    """Say why the plan of a model, a layer or a unit is as it is, with other ways counted beside it (mode timing)."""

    json: bool = option("as JSON", default=False)


@dataclass(frozen=True)
class CompareOptions:
    """Count ours beside figures that others publish, with the bound and the source; without CASE list what there is."""

    cases: Sequence[str] = field(
        default=(),
        metadata=said("what `frustum compare` lists", "CASE", flag="", action="extend", unsaid="cases are listed"),
    )
    all: bool = option("all cases, half an hour", default=False)
    json: bool = option("as JSON", default=False)


@dataclass(frozen=True, kw_only=True)
class TreeKeywords(Keywords):
    """What `frustum.plan` and `frustum.curve` are asked: some options mean a plan as a tree."""

    policy: str | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "units of the outermost sequence: the best (`optimal`), those that rules grow (docs/fusion.md), or each"
            " operation by itself (`none`); but for `optimal` they hand everything on through DRAM",
            choices=POLICIES, unsaid="`optimal`, or what the target's options say",
        ),
    )  # fmt: skip
    cuts: str | None = option(
        "units end behind these layers and nowhere else, planned together; names as in the plan or the model",
        "LAYER,LAYER", unsaid="as the policy finds",
    )
    optimise: Optimise | None = field(
        default=None,
        metadata=said(
            "what there is least of: DRAM bytes (`bytes`, the default), cycles or energy", choices=get_args(Optimise),
            unsaid="`bytes`",
        ),
    )  # fmt: skip
    carry: Carry | None = field(
        default=None,
        metadata=said(
            "type of sums that wait between passes of a reduction: f32, the element type, or what moves the fewest"
            " bytes (`auto`, the default)",
            choices=get_args(Carry), unsaid="`auto`",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanOptions(TreeKeywords):
    """Print the plan of a model as a tree (docs/ir-plan.md), with DRAM bytes, SRAM and cycles of every node, on all
    clusters of the target."""

    output: str | None = option("write it to a file", "FILE", flag="-o", unsaid="it is printed")
    plan: Path | None = option(
        "count this one, as written by `plan` or changed", "FILE", read=Path, unsaid="one is found"
    )
    certificate: str | None = option(
        "write it with what it moves and holds, for `python -m frustum.check_plan ONNX TARGET FILE` to recount", "FILE",
        unsaid="nothing is written",
    )
    no_cache: bool = option("search anew, and keep nothing for the next time", default=False)


@dataclass(frozen=True, kw_only=True)
class CurveOptions(TreeKeywords):
    """Print DRAM bytes (or cycles or energy: --optimise) against SRAM capacity, for 64 shares of a cluster's SRAM, with
    those of the compulsory bytes."""

    csv: bool = option("as CSV", default=False)
    svg: str | None = option("draw it", "FILE", unsaid="it is printed")
    no_cache: bool = option("search anew, and keep nothing for the next time", default=False)
