# Tests: test/runtime/study/test_explain.py
"""`frustum explain`: why a plan is as it is, with other ways compiled and counted beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from frustum.backend import targets
from frustum.runtime.failures import GOOD, UsageError, say
from frustum.runtime.model import request as asked
from frustum.runtime.model.cache import built
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import Request
from frustum.runtime.model.sources import kind_of
from frustum.runtime.progress import TerminalProgress
from frustum.runtime.report.report import Report
from frustum.runtime.report.terminal import show
from frustum.runtime.study.explain import explain_part, explain_plan, flips
from frustum.runtime.study.explain_text import lines_of
from frustum.runtime.study.options import ExplainOptions


def main(options: ExplainOptions) -> int:
    """UsageError for what is compiled already, and for names that nothing has."""
    for word, given in (("--pipeline", options.pipeline), ("--dump-ir", options.dump_ir)):
        if given is not None:
            raise UsageError(
                f"error: {word}: explain compiles the model in other ways, with the default pipeline"
            )
    if kind_of(str(options.model)) in ("folder", "executable"):
        raise UsageError(f"{options.model}: error: is compiled already: explain takes the model itself")
    words = {each.name: getattr(options, each.name) for each in fields(Request)}
    request = Request(**words | {"cache": not options.no_cache})

    with TerminalProgress() as progress:

        def build(changes: Mapping[str, Any]) -> Chain:
            return built(replace(request, **changes), progress).chain

        def count(changes: Mapping[str, Any]) -> Report:
            return counted(build(changes))

        own = build({})
        plan = counted(own)
        if options.subject is None:
            found = explain_plan(plan, count, options.most)
        else:
            found, ways = explain_part(plan, options.subject, count, options.most)
            if ways:
                target = asked.given_target(request) or targets.load(asked.DEFAULT_TARGET)
                found["flips"] = flips(target, ways[0], count, options.probes)
    for line in own.log:
        say(line)
    show(json.dumps(found, indent=1) + "\n" if options.json else "\n".join(lines_of(found)) + "\n")
    return GOOD


def counted(chain: Chain) -> Report:
    """The report of a run in mode timing."""
    return report_of_chain(chain, execute_chain(chain, {}, "timing"))
