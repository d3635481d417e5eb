# Tests: test/runtime/tools/test_plan.py
"""`frustum plan`: the plan of a model as a tree, with what each node moves and holds."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import fields
from pathlib import Path

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_of_model
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.parse import extents_of, read_plans
from frustum.dialects.plan.text import plan_text
from frustum.dialects.target import Target, digest
from frustum.passes.onnx.import_onnx import INT8
from frustum.passes.plan.tree.wishes import Wishes
from frustum.runtime.failures import GOOD, UsageError
from frustum.runtime.files import check_writable_file, write_file
from frustum.runtime.model import request as asked
from frustum.runtime.model.check_plan import COUNTS, FORMAT, OPTIONS, node_claims, outermost
from frustum.runtime.model.identity import model_digest
from frustum.runtime.model.options import Keywords, Request, flag_of, options_of, with_stored_dtype
from frustum.runtime.model.plan_units import AskedUnits
from frustum.runtime.report.terminal import show
from frustum.runtime.study.options import PlanOptions
from frustum.runtime.study.planned import CountedPlan, planned

WISHED = "policy", "rules", "thresholds", "cuts", "optimise", "carry"
"""Options of `compile` that ask something of a plan."""
TAKEN = {"model", "target", "dtype", "shapes", "dims", "batch", "bind", "host", "weights_seed", *WISHED}
"""These, and those that say something of the network or the machine, but not of how the present planner plans."""


def main(options: PlanOptions) -> int:
    for file in (options.output, options.certificate):
        if file is not None:
            check_writable_file(Path(file))
    networks, target, request = networks_of_request(options, TAKEN | {"plan"})
    if options.plan is None:
        found = [
            planned(network, target, wishes=wishes, cache=not options.no_cache)
            for network, wishes in wished(networks, target, request)
        ]
    else:
        refuse_wishes(request)
        found = given_plans(Path(options.plan), networks, target)
    if options.certificate is not None:
        if len(found) < len(networks):
            raise UsageError(f"{options.plan}: error: --certificate wants all plans: {_lack(networks, found)}")
        text = certificate(found, target, request)
        write_file(Path(options.certificate), lambda place: place.write_text(text, "utf-8"))
    text = "\n".join(each.text() for each in found)
    if options.output is not None:
        write_file(Path(options.output), lambda place: place.write_text(text, "utf-8"))
    elif options.certificate is None:
        show(text)
    return GOOD


def networks_of_request(options: Keywords, taken: Set[str] = TAKEN) -> tuple[list[AxisNetwork], Target, Request]:
    """The networks of a model on the device, each for the search, and what was asked, with the target's element type.

    UsageError for options that have no meaning here.
    """
    refuse_others(options, taken)
    return networks_with(Request(**{each.name: getattr(options, each.name) for each in fields(Keywords)}))


def networks_with(request: Request) -> tuple[list[AxisNetwork], Target, Request]:
    """The same, whatever is said of the present planner."""
    target = asked.given_target(request) or targets.load(asked.DEFAULT_TARGET)
    request = with_stored_dtype(request, target)
    if request.dtype == INT8:
        raise UsageError("error: --dtype int8: plan calibrates nothing; give it a model of integers")
    loaded = asked.load(request, target)
    if loaded.text is not None:
        raise UsageError(f"{request.model}: error: is a stage: plan takes the model itself")
    model = loaded.module if loaded.placement is None else loaded.placement
    assert model is not None
    dtype = None if request.dtype in (None, "model") else request.dtype
    found = networks_of_model(model, target, dtype, request.carry or "auto")
    if not found:
        raise UsageError(f"{request.model}: error: there is nothing to plan: all of it runs on the host, or is views")
    return found, target, request


def wished(networks: list[AxisNetwork], target: Target, request: Request) -> list[tuple[AxisNetwork, Wishes]]:
    """Each network with what is asked of its plan; its layers may be in another order.

    UsageError and PolicyError where a policy, or a cut, is none.
    """
    policy, rules, thresholds = asked.policy_of(request, target)
    units = AskedUnits(policy, rules, thresholds, request.cuts).of(networks, target)
    optimise, carry = request.optimise or "bytes", request.carry or "auto"
    return [(network, Wishes(optimise, target, carry, cuts)) for network, cuts in units]


def refuse_wishes(request: Request) -> None:
    """UsageError for what has no effect on a plan that is given."""
    for each, _ in options_of(Keywords):
        if each.name in WISHED and getattr(request, each.name) is not None:
            raise UsageError(f"error: {flag_of(each)} has no effect on a plan that is given (--plan)")


def refuse_others(options: Keywords, known: Set[str]) -> None:
    taken = ", ".join(flag_of(each) for each, _ in options_of(Keywords) if each.name in known - {"model"})
    for each, said in options_of(Keywords):
        value = getattr(options, each.name)
        if said.is_typed and each.name not in known and value not in (None, (), {}, False):
            raise UsageError(f"error: {flag_of(each)} has no effect on a plan as a tree; of compile's options: {taken}")


def given_plans(file: Path, networks: list[AxisNetwork], target: Target) -> list[CountedPlan]:
    """The plans in a file, counted; errors name line and column."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{file}: error: cannot be read: {reason}") from error
    known = {network.name: network for network in networks}

    def extents(name: str) -> dict[str, int]:
        if name not in known:
            raise UsageError(f"{file}: error: it is a plan of @{name}; the model has @{', @'.join(known)}")
        return extents_of(known[name])

    found: dict[str, CountedPlan] = {}
    for plan in read_plans(text, extents, str(file)):
        if plan.target != target.name:
            own = plan.target
            raise UsageError(f"{file}: error: it is planned for {own}: say --target {own}, or plan again")
        if plan.name in found:
            raise UsageError(f"{file}: error: two plans are of @{plan.name}")
        try:
            found[plan.name] = planned(known[plan.name], target, plan.node)
        except PlanError as error:
            raise plan.located(error) from None
    return [found[name] for name in known if name in found]


def _lack(networks: list[AxisNetwork], found: list[CountedPlan]) -> str:
    known = {each.network.name for each in found}
    return f"there is none of @{', @'.join(each.name for each in networks if each.name not in known)}"


def certificate(plans: list[CountedPlan], target: Target, request: Request) -> str:
    """What `frustum.check_plan` recounts: the plans with their claims, and all that their networks follow from."""
    said = {name: getattr(request, name) for name in OPTIONS}
    claims = {
        "format": FORMAT,
        "model": {"sha256": model_digest(request.model, request.weights_seed or 0)},
        "target": {"name": target.name, "sha256": digest(target)},
        "options": {"dtype": "model"} | {name: value for name, value in said.items() if value not in (None, {})},
        "plans": [
            {
                "network": each.network.name,
                **{name: getattr(each.counted, name) for name in COUNTS},
                "nodes": [node_claims(node, each.counted) for node in outermost(each.tree)],
                "plan": plan_text(each.network.name, target.name, each.tree).splitlines(),
            }
            for each in plans
        ],
    }
    return json.dumps(claims, indent=1) + "\n"
