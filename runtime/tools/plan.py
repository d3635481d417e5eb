# Tests: test/runtime/tools/test_plan.py
"""`frustum plan`: the plan of a model as a tree, with what each node moves and holds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.dialects.target import Target
from frustum.passes.onnx.import_onnx import INT8, import_onnx
from frustum.runtime.failures import GOOD, UsageError
from frustum.runtime.files import cannot_write
from frustum.runtime.model import request as asked
from frustum.runtime.model.options import Keywords, Request, flag_of, options_of, with_stored_dtype
from frustum.runtime.report.terminal import show
from frustum.runtime.study.options import PlanOptions
from frustum.runtime.study.planned import CountedPlan, planned

TAKEN = {"model", "target", "dtype", "shapes", "dims", "batch", "bind", "host", "weights_seed"}
"""Options of `compile` that say something of the network or the machine, and not of how the present planner plans."""


def main(options: PlanOptions) -> int:
    networks, target = networks_of_request(options)
    if options.plan is None:
        found = [planned(network, target) for network in networks]
    else:
        found = [given_plan(Path(options.plan), networks, target)]
    text = "\n".join(each.text() for each in found)
    if options.output is None:
        show(text)
        return GOOD
    with cannot_write(Path(options.output)):
        Path(options.output).write_text(text, "utf-8")
    return GOOD


def networks_of_request(options: Keywords) -> tuple[list[AxisNetwork], Target]:
    """The networks of a model on the device, each for the search; UsageError for options that have no meaning here."""
    refuse_others(options)
    request = Request(**{each.name: getattr(options, each.name) for each in fields(Keywords)})
    target = asked.given_target(request) or targets.load(asked.DEFAULT_TARGET)
    request = with_stored_dtype(request, target)
    if request.dtype == INT8:
        raise UsageError("error: --dtype int8: plans as trees are made for floating point and for models of integers")
    loaded = asked.load(request, target)
    if loaded.text is not None:
        raise UsageError(f"{request.model}: error: is a stage: plan takes the model itself")
    dtype = None if request.dtype in (None, "model") else request.dtype
    if loaded.placement is None:
        assert loaded.module is not None
        modules = [loaded.module]
    else:
        parts = [part for part in loaded.placement.parts if part.kind != "host"]
        stem = Path(str(request.model)).stem
        modules = [import_onnx(p.model, network=f"{stem}_{k}", whole=p.whole) for k, p in enumerate(parts)]
    found = [network for module in modules for network in networks_to_plan(module, target, dtype)]
    if not found:
        raise UsageError(f"{request.model}: error: all of it runs on the host: there is nothing to plan")
    return found, target


def refuse_others(options: Keywords) -> None:
    taken = ", ".join(flag_of(each) for each, _ in options_of(Keywords) if each.name in TAKEN - {"model"})
    for each, said in options_of(Keywords):
        value = getattr(options, each.name)
        if said.is_typed and each.name not in TAKEN and value not in (None, (), {}, False):
            raise UsageError(f"error: {flag_of(each)} has no effect on a plan as a tree; of compile's options: {taken}")


def given_plan(file: Path, networks: list[AxisNetwork], target: Target) -> CountedPlan:
    """The plan in a file, counted; errors name line and column."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: error: cannot be read: {error}") from error
    known = {network.name: network for network in networks}

    def extents(name: str) -> dict[str, int]:
        if name not in known:
            raise UsageError(f"{file}: error: it is a plan of @{name}; the model has @{', @'.join(known)}")
        return extents_of(known[name])

    plan = read_plan(text, extents, str(file))
    if plan.target != target.name:
        raise UsageError(f"{file}: error: it is planned for {plan.target}: say --target {plan.target}, or plan again")
    try:
        return planned(known[plan.name], target, plan.node)
    except PlanError as error:
        raise plan.located(error) from None
