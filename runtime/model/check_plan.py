"""Recounts the plans of a certificate (`frustum plan --certificate`), pass by pass, and refuses what does not hold.

    python -m frustum.check_plan ONNX TARGET FILE

Uses the importer, the operations' axes, and the rules and counts of `dialects/plan`: nothing of the search, the
evaluator or the lowering.  Exit codes: 0 all claims hold, 2 a file is wrong or cannot be read, 3 a claim does not hold,
4 a plan takes more SRAM than the target has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_of_model
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.choices import Dtype, HostMode
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.plan.check import PlanError, title
from frustum.dialects.plan.clusters import check_clusters, distributed_in
from frustum.dialects.plan.count import Counted, count
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.dialects.plan.tree import Node, layers_in
from frustum.dialects.plan.tree import Sequence as InOrder
from frustum.dialects.target import Target, digest
from frustum.passes.onnx.binding import bound_scalars, with_dims
from frustum.passes.onnx.import_onnx import INT8
from frustum.passes.onnx.loading import load_model
from frustum.passes.onnx.place_host import import_or_place
from frustum.runtime.failures import BAD_INPUT, GOOD, Differs, UsageError, exit_code_of, message_of, say
from frustum.runtime.files import cannot_read
from frustum.runtime.model.identity import ZOO_PREFIX, model_digest
from frustum.runtime.model.sources import read_zoo
from frustum.runtime.report.terminal import show

FORMAT = "frustum plan certificate 1"
Json = Mapping[str, Any]
Kind = tuple[str, Callable[[Any], bool]]
"""What a value has to be, in words and as a test."""


def _one_of(words: Sequence[str]) -> Kind:
    return f"one of {', '.join(words)}", lambda value: value in words


def _number(least: int) -> Kind:
    return f"a whole number of at least {least}", lambda value: type(value) is int and value >= least


def _each(words: str, kind: Kind) -> Kind:
    return f"{words}: {kind[0]} each", lambda value: isinstance(value, dict) and all(map(kind[1], value.values()))


TEXT: Kind = "a text", lambda value: isinstance(value, str)
COUNT = _number(0)
OBJECT: Kind = "an object", lambda value: isinstance(value, dict)
OBJECTS: Kind = "a list", lambda value: isinstance(value, list)
LINES: Kind = "a list of lines", lambda value: isinstance(value, list) and all(map(TEXT[1], value))
SHAPE: Kind = "a list of extents", lambda value: isinstance(value, list) and all(map(_number(1)[1], value))
SCALAR: Kind = "a number, true or false", lambda value: isinstance(value, bool | int | float)

OPTIONS = {
    "dtype": _one_of([each for each in get_args(Dtype) if each != INT8]),
    "host": _one_of(get_args(HostMode)),
    "batch": _number(1),
    "weights_seed": COUNT,
    "dims": _each("extents by name", COUNT),
    "shapes": _each("shapes by input", SHAPE),
    "bind": _each("values by input", SCALAR),
}
"""What fixes types and shapes, as for `frustum plan`; what was not said is absent."""
COUNTS = ("read_bytes", "write_bytes", "link_bytes", "sram_bytes")
CERTIFICATE: dict[str, Kind] = {
    "format": _one_of([FORMAT]), "model": OBJECT, "target": OBJECT, "options": OBJECT, "plans": OBJECTS,
}  # fmt: skip
MODEL = {"sha256": TEXT}
TARGET = {"name": TEXT, "sha256": TEXT}
PLAN: dict[str, Kind] = {"network": TEXT, **dict.fromkeys(COUNTS, COUNT), "nodes": OBJECTS, "plan": LINES}
NODE: dict[str, Kind] = {"title": TEXT, "dram_bytes": COUNT, "link_bytes": COUNT, "sram_bytes": COUNT}
"""What objects of a certificate have: all of it, and nothing else."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(prog="python -m frustum.check_plan", description="Check the claims of a plan's certificate.")
    parser.add_argument("model", metavar="ONNX", help="the model that was planned, or zoo:NAME")
    parser.add_argument("target", metavar="TARGET", help="the machine: NAME or FILE.yaml")
    parser.add_argument("file", metavar="FILE", help="the certificate")
    said = parser.parse_args(arguments)
    try:
        show("".join(f"{line}\n" for line in check(said.model, said.target, Path(said.file))))
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        say(message_of(error, said.file))
        return code
    return GOOD


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} ({self.prog} --help shows what there is)\n")


def check(model: str, target: str, file: Path) -> list[str]:
    """What holds, a line for each plan.

    Raises UsageError where the file is no certificate, Differs where a claim is wrong, DoesNotFit where the target has
    too little SRAM.
    """
    claims = read(file)
    machine = targets.load(target)
    _same(file, "target", claims["target"]["name"], machine.name)
    _same(file, f"SHA-256 of target {machine.name}", claims["target"]["sha256"], digest(machine))
    options = claims["options"]
    found = model_digest(model, options.get("weights_seed", 0))
    _same(file, f"SHA-256 of {model}", claims["model"]["sha256"], found)
    networks = networks_of(model, machine, options)
    _same(file, "networks", [plan["network"] for plan in claims["plans"]], [each.name for each in networks])
    return [
        check_plan(file, plan, network, machine) for plan, network in zip(claims["plans"], networks, strict=True)
    ]


# ------------------------------------------------------------ the file


def read(file: Path) -> Json:
    """The claims, each of its kind; UsageError where one is missing or not known."""
    try:
        with cannot_read(file):
            claims = json.loads(file.read_text("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: error: is no certificate: {error}") from None
    where = f"{file}: error: certificate"
    _check(where, claims, CERTIFICATE)
    _check(f"{where}: model", claims["model"], MODEL)
    _check(f"{where}: target", claims["target"], TARGET)
    _check(f"{where}: options", claims["options"], OPTIONS, is_whole=False)
    for k, plan in enumerate(claims["plans"]):
        _check(f"{where}: plans[{k}]", plan, PLAN)
        for n, node in enumerate(plan["nodes"]):
            _check(f"{where}: plans[{k}]: nodes[{n}]", node, NODE)
    return claims


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key stands twice among {', '.join(key for key, _ in pairs)}")
    return found


def _check(where: str, value: object, kinds: Mapping[str, Kind], is_whole: bool = True) -> None:
    """UsageError unless the value is an object with these keys; with some of them where it need not be whole."""
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected an object with {', '.join(kinds)}")
    for key in value:
        if key not in kinds:
            raise UsageError(f"{where}: no such key: {key}{did_you_mean(key, list(kinds))}")
    for key, (words, is_of_kind) in kinds.items():
        if key not in value and is_whole:
            raise UsageError(f"{where}: {key} is missing")
        if key in value and not is_of_kind(value[key]):
            raise UsageError(f"{where}: {key}: expected {words}, found {json.dumps(value[key])[:40]}")


# ------------------------------------------------------------ the network


def networks_of(model: str, target: Target, options: Json) -> list[AxisNetwork]:
    """The networks on the device, as `frustum plan` with these options has them."""
    is_zoo = model.startswith(ZOO_PREFIX)
    seed, dtype = options.get("weights_seed", 0), options.get("dtype")
    loaded = load_model(read_zoo(model, seed) if is_zoo else Path(model))
    loaded.file = model if is_zoo else loaded.file
    given = {name: options.get(name) for name in ("batch", "shapes")}
    loaded = with_dims(loaded, options.get("dims", {}), given["batch"], given["shapes"] or {})
    found = import_or_place(
        loaded,
        target,
        options.get("host", "auto"),
        batch=given["batch"],
        shapes=given["shapes"],
        constants=bound_scalars(loaded, options.get("bind", {})),
        exact=dtype in (None, "model"),
    )
    return networks_of_model(found, target, None if dtype == "model" else dtype)


# ------------------------------------------------------------ the claims


def check_plan(file: Path, claims: Json, network: AxisNetwork, target: Target) -> str:
    """Recount a plan; a line that says what holds."""
    where, text = f"{file}: @{network.name}", "\n".join(claims["plan"])
    plan = read_plan(text, lambda _: extents_of(network), where)
    _same(file, "network of the plan", plan.name, network.name)
    _same(file, "target of the plan", plan.target, target.name)
    try:
        counted = count(network, plan.node)
        check_clusters(plan.node, target)
    except PlanError as error:
        raise Differs(str(plan.located(error))) from None
    for name in COUNTS:
        _same(file, f"@{network.name}: {name}", claims[name], getattr(counted, name))
    found = [node_claims(node, counted) for node in outermost(plan.node)]
    _same(file, f"@{network.name}: nodes", len(claims["nodes"]), len(found))
    for claim, own in zip(claims["nodes"], found, strict=True):
        for name in NODE:
            _same(file, f"@{network.name}: {own['title']}: {name}", claim[name], own[name])
    counted.check_fit(where, target.cluster.sram.capacity_bytes)
    moved = f"{counted.read_bytes:,} B read and {counted.write_bytes:,} B written"
    moved += f", {counted.link_bytes:,} B received over links" if any(distributed_in(plan.node)) else ""
    return f"@{network.name} on {target.name}: {moved}, at most {counted.sram_bytes:,} B of SRAM"


def outermost(plan: Node) -> tuple[Node, ...]:
    """The nodes of the outermost sequence."""
    return plan.children if isinstance(plan, InOrder) else (plan,)


def node_claims(node: Node, counted: Counted) -> dict[str, Any]:
    """What a certificate says of a node: bytes of residents around it are not of it."""
    name = title(node) if not isinstance(node, InOrder) else f"{{ {next(layers_in(node), '')}"
    moved, received, held = (each[id(node)] for each in (counted.moved, counted.received, counted.held))
    return {"title": name, "dram_bytes": moved, "link_bytes": received, "sram_bytes": held}


def _same(file: Path, what: str, claimed: object, found: object) -> None:
    if claimed != found:
        raise Differs(f"{file}: error: {what}: claimed {_shown(claimed)}, found {_shown(found)}")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.exit(main())
