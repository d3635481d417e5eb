# Tests: test/runtime/study/test_explain.py
"""`frustum explain`: why a plan is as it is, with other ways compiled and counted beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from frustum.backend import targets
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.errors import Error
from frustum.dialects.target import Target
from frustum.passes.plan.network.known_prices import planned_once
from frustum.runtime.failures import GOOD, UsageError, message_of, say
from frustum.runtime.model import request as asked
from frustum.runtime.model.cache import built
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import Keywords, Request
from frustum.runtime.model.sources import kind_of
from frustum.runtime.progress import Progress, TerminalProgress
from frustum.runtime.report.figures import Report
from frustum.runtime.report.terminal import show
from frustum.runtime.study.explain import Way, as_in, explain_part, explain_plan, flips
from frustum.runtime.study.explain_text import Explanation
from frustum.runtime.study.options import ExplainKeywords, ExplainOptions
from frustum.runtime.study.planned import planned
from frustum.runtime.study.workers import workers
from frustum.runtime.tools.plan import networks_with


def main(options: ExplainOptions) -> int:
    with TerminalProgress() as progress, planned_once():
        found, notes = explanation(replace(options, cache=not options.no_cache), progress, on_all_cores=True)
    for line in notes:
        say(line)
    show(found.json() if options.json else found.text())
    return GOOD


def explanation(
    options: ExplainKeywords, progress: Progress = lambda stage, share: None, *, on_all_cores: bool = False
) -> tuple[Explanation, tuple[str, ...]]:
    """What is found, and what was noted while the model was compiled; UsageError for what is compiled already, and for
    names that nothing has.

    `on_all_cores`: ways are counted in processes of their own, which import the program that calls this.
    """
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

    def count_all(ways: Sequence[Way]) -> list[Way]:
        return in_processes(request, ways) if on_all_cores else [way.counted(count) for way in ways]

    own = build({})
    plan = counted(own)
    alike = as_in(plan, options.compress_weights)
    if options.subject is None:
        found = explain_plan(plan, count_all, options.most, alike)
        if found["what"] == "plan":
            found["tree"] = best_trees(request, plan)
        return Explanation(found), own.log
    found, ways = explain_part(plan, options.subject, count_all, options.most, alike)
    if ways:
        target = asked.given_target(request) or targets.load(asked.DEFAULT_TARGET)
        found["flips"] = flips(target, ways[0], count, options.probes)
    return Explanation(found), own.log


def best_trees(request: Request, plan: Report) -> dict[str, Any]:
    """What the search over trees of plans reaches, in one search, for each network; or why it has none.

    `dram_bytes` is of all networks together, None where one has no plan; `plan_bytes` what the plan moves of tensors,
    some of which may be compressed (`is_compressed`): programs and tables of addresses are not among either.
    """
    dram = plan["dram"]
    found: dict[str, Any] = {
        "plan_bytes": dram["total_bytes"] - dram["other_bytes"],
        "is_compressed": "weights" in plan,
        "dram_bytes": None,
        "networks": [],
    }
    try:
        networks, target, _ = networks_with(request)
    except Error as error:
        return {**found, "problem": message_of(error)}
    trees = [_best_tree(network, target, cache=request.cache) for network in networks]
    sizes = [each["dram_bytes"] for each in trees if "dram_bytes" in each]
    return {**found, "dram_bytes": sum(sizes) if len(sizes) == len(trees) else None, "networks": trees}


def _best_tree(network: AxisNetwork, target: Target, *, cache: bool) -> dict[str, Any]:
    facts = {"network": network.name, "compulsory_bytes": network.compulsory_bytes}
    try:
        counted = planned(network, target, cache=cache).counted
    except Error as error:
        return {**facts, "problem": message_of(error)}
    return {**facts, "dram_bytes": counted.dram_bytes, "sram_bytes": counted.sram_bytes}


def in_processes(request: Request, ways: Sequence[Way]) -> list[Way]:
    """The ways with what was counted of each, in a process for each core; UsageError where one is ended."""
    with workers(None) as (pool, cores):
        parts = [list(ways[k::cores]) for k in range(cores)]
        try:
            found = list(pool.map(partial(in_turn, request), parts))
        except BrokenProcessPool as error:
            raise UsageError("error: a process that counted was ended from outside (no memory?)") from error
    every: list[Way] = list(ways)
    for k, part in enumerate(found):
        every[k::cores] = part
    return every


def in_turn(request: Request, ways: Sequence[Way]) -> list[Way]:
    """The same in one process."""

    def count(changes: Mapping[str, Any]) -> Report:
        return counted(built(replace(request, **changes)).chain)

    with planned_once():
        return [way.counted(count) for way in ways]


def counted(chain: Chain) -> Report:
    """The report of a run in mode timing."""
    return report_of_chain(chain, execute_chain(chain, {}, "timing"))
