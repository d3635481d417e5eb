# Tests: test/runtime/study/test_explain.py
"""`frustum explain`: why a plan is as it is, with other ways compiled and counted beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from frustum.backend import targets
from frustum.passes.plan.network.known_prices import planned_once
from frustum.runtime.failures import GOOD, UsageError, say
from frustum.runtime.model import request as asked
from frustum.runtime.model.cache import built
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import Keywords, Request
from frustum.runtime.model.sources import kind_of
from frustum.runtime.progress import Progress, TerminalProgress
from frustum.runtime.report.figures import Report
from frustum.runtime.report.terminal import show
from frustum.runtime.study.explain import explain_part, explain_plan, flips
from frustum.runtime.study.explain_text import Explanation
from frustum.runtime.study.options import ExplainKeywords, ExplainOptions


def main(options: ExplainOptions) -> int:
    with TerminalProgress() as progress, planned_once():
        found, notes = explanation(replace(options, cache=not options.no_cache), progress)
    for line in notes:
        say(line)
    show(found.json() if options.json else found.text())
    return GOOD


def explanation(
    options: ExplainKeywords, progress: Progress = lambda stage, share: None
) -> tuple[Explanation, tuple[str, ...]]:
    """What is found, and what was noted while the model was compiled; UsageError for what is compiled already, and for
    names that nothing has."""
    for word, given in (("--pipeline", options.pipeline), ("--dump-ir", options.dump_ir)):
        if given is not None:
            raise UsageError(
                f"error: {word}: explain compiles the model in other ways, with the default pipeline"
            )
    if isinstance(options.model, str | Path) and kind_of(str(options.model)) in ("folder", "executable"):
        raise UsageError(f"{options.model}: error: is compiled already: explain takes the model itself")
    request = Request(**{each.name: getattr(options, each.name) for each in fields(Keywords)})

    def build(changes: Mapping[str, Any]) -> Chain:
        return built(replace(request, **changes), progress).chain

    def count(changes: Mapping[str, Any]) -> Report:
        return counted(build(changes))

    own = build({})
    plan = counted(own)
    if options.subject is None:
        return Explanation(explain_plan(plan, count, options.most)), own.log
    found, ways = explain_part(plan, options.subject, count, options.most)
    if ways:
        target = asked.given_target(request) or targets.load(asked.DEFAULT_TARGET)
        found["flips"] = flips(target, ways[0], count, options.probes)
    return Explanation(found), own.log


def counted(chain: Chain) -> Report:
    """The report of a run in mode timing."""
    return report_of_chain(chain, execute_chain(chain, {}, "timing"))
