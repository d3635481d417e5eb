"""Why a plan is as it is: other plans at the same place, counted as the plan itself is, and what differs.

Nothing here is predicted: each way is compiled and run in mode timing, so its bytes and cycles are the emulator's.  How
many ways are counted is bounded; what was left out is said.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from frustum.dialects.choices import TREE
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.target import Target, cross_checks
from frustum.runtime.failures import UsageError, exit_code_of, message_of
from frustum.runtime.study.difference import Change, difference

Data = Mapping[str, Any]
Count = Callable[[Mapping[str, Any]], Data]
"""The report of a run in mode timing of the model compiled with these options changed."""
CountAll = Callable[[Sequence["Way"]], "list[Way]"]
"""Ways with what was counted of each."""
OPTIMAL = "optimal"
UNFORCED = {"policy": None, "rules": None, "thresholds": None}
NUMBERS = ("dram.port_bytes_per_cycle", "sram.capacity_bytes")
"""Of the target, those that are changed to see what would flip a choice."""
FACTORS = (2.0, 0.5, 4.0, 0.25)
MOST_CAUSES = 3
PART = re.compile(r"(.+)/(?:rows|parts|\d+)")
"""How the planner calls a part of a layer, whose last one has the layer's name (`passes/plan/network/trials/`)."""


@dataclass(frozen=True)
class Way:
    """Another way to compile the same model: what it is, the options that make it, and what was counted."""

    what: str
    changes: Mapping[str, Any]
    data: Data | None = None
    problem: str | None = None
    """Why it cannot be compiled; then nothing is counted."""

    def counted(self, count: Count) -> Way:
        """The same with its figures, or what speaks against it."""
        try:
            return replace(self, data=count(self.changes))
        except Exception as error:
            if exit_code_of(error) is None:
                raise
            return replace(self, problem=message_of(error))


def figures(data: Data) -> tuple[int, int]:
    """Cycles and DRAM bytes of a report."""
    return data["cycles"]["total"], data["dram"]["total_bytes"]


def units_of(data: Data) -> list[list[str]]:
    """The layers of each unit."""
    return [list(unit["layers"]) for unit in data["units"]]


# --- the whole plan ----------------------------------------------------------------------------------------


def as_in(plan: Data, compression: str | None) -> dict[str, Any]:
    """Options with which other ways are compiled as the plan was: with weights as they are, where the plan has them so
    because nothing else was better (`compression`: what was asked of weights)."""
    is_raw = compression in (None, "auto") and plan["cycles"] is not None and "weights" not in plan
    return {"compress_weights": "none"} if is_raw else {}


def explain_plan(plan: Data, count: CountAll, most: int, alike: Data = MappingProxyType({})) -> dict[str, Any]:
    """The units, and of each cut what the same cuts without it come to; at most so many ways are counted.

    Plans with and without are compiled alike, from given cuts that are planned together where policy `optimal` or
    `tree` has made the plan: `same` is the one with all of them, and what differs is said against it.  `alike`: see
    `as_in`.
    """
    if not plan["units"]:
        return {"what": "host", "model": plan["model"], "layers": _on_host(plan)}
    found: dict[str, Any] = {
        "what": "plan",
        **_summary(plan),
        "units": [_unit_facts(plan, u) for u in plan["units"]],
    }
    ends = _ends(plan)
    if len(ends) < 2:
        return found | {"same": None, "cuts": [], "left_out": []}
    spent = {unit["layers"][-1]: _spent(unit) for unit in plan["units"]}
    chosen = sorted(ends[:-1], key=lambda end: -spent[end])[: max(0, most - 1)]
    behind = [each for each in ends[:-1] if each in chosen]
    without = [
        Way(f"not cut behind '{end}'", _cut_at(plan, [each for each in ends if each != end])) for end in behind
    ]
    same, *ways = count(_with([_same(plan, ends), *without], alike))
    pairs = zip(behind, ways, strict=True)
    base = same.data or plan
    cuts = [
        {"behind": end, "without": _way_facts(base, way), **({} if way.data is None else _here(base, way.data, end))}
        for end, way in pairs
    ]
    left = [end for end in ends[:-1] if end not in chosen]
    return found | {"same": _way_facts(plan, same), "cuts": cuts, "left_out": left}


# --- a layer or a unit -------------------------------------------------------------------------------------


def explain_part(
    plan: Data, subject: str, count: CountAll, most: int, alike: Data = MappingProxyType({})
) -> tuple[dict[str, Any], list[Way]]:
    """What is known of a layer or unit, and the ways that were counted, the best first.  `alike`: see `as_in`."""
    host = [layer for layer in _on_host(plan) if layer["layer"] == subject]
    if host:
        return {"what": "host", "layers": host}, []
    unit, layer = _place_of(plan, subject)
    asked = _with(_ways_at(plan, unit, layer), alike)
    ways = count(asked[:most])
    other = [way for way in ways if way.data is not None and not _is_same_plan(plan, way.data)]
    other.sort(key=lambda way: figures(way.data or {}))
    found: dict[str, Any] = {
        "what": "layer" if layer else "unit",
        **_summary(plan),
        "unit": _unit_facts(plan, unit),
    }
    if layer is not None:
        found["layer"] = next(dict(each) for each in plan["layers"] if each["name"] == layer)
    found["ways"] = [_way_facts(plan, way) for way in other[:2]]
    found["others"] = [
        _way_facts(plan, way) for way in (*other[2:], *(way for way in ways if way not in other))
    ]
    found["left_out"] = [way.what for way in asked[most:]]
    return found, other


def _on_host(plan: Data) -> list[dict[str, str]]:
    """The layers on the host, with their operators and why they are there."""
    layers = (plan.get("host") or {}).get("layers", ())
    return [{"layer": each["name"], "op": each["op"], "reason": each["reason"]} for each in layers]


def _place_of(plan: Data, subject: str) -> tuple[Data, str | None]:
    for unit in plan["units"]:
        if unit["name"] == subject:
            return unit, None
    for unit in plan["units"]:
        if subject in unit["layers"]:
            return unit, subject
    known = [*(unit["name"] for unit in plan["units"]), *(layer["name"] for layer in plan["layers"])]
    if subject in known:
        raise UsageError(f"error: '{subject}' moves no data and takes no cycles: it is in no unit")
    raise UsageError(f"error: no layer or unit is called '{subject}'{did_you_mean(subject, known)}")


def _ways_at(plan: Data, unit: Data, layer: str | None) -> list[Way]:
    """Other cuts around the place, other borders, and every map through DRAM."""
    through_dram = Way("every map through DRAM", {**UNFORCED, "cuts": None, "policy": "none"})
    ends, behind = _ends(plan), [*itertools.dropwhile(lambda each: each is not unit, plan["units"])]
    if not (later := _named(plan, [each["layers"][-1] for each in behind if each["layers"]])):
        return [through_dram]
    layers = [*dict.fromkeys([*_named(plan, unit["layers"]), later[0]])]
    number = ends.index(later[0])
    found = []
    if number > 0:
        merged = [each for each in ends if each != ends[number - 1]]
        found.append(Way(f"not cut behind '{ends[number - 1]}'", _cut_at(plan, merged)))
    if number + 1 < len(ends):
        found.append(Way(f"not cut behind '{layers[-1]}'", _cut_at(plan, [e for e in ends if e != layers[-1]])))
    at = layers.index(layer) if layer in layers else len(layers) // 2
    for end in dict.fromkeys([*layers[max(0, at - 1) : at], *([layers[at]] if layer is not None else [])]):
        if end != layers[-1]:
            found.append(Way(f"cut behind '{end}'", _cut_at(plan, [*ends[:number], end, *ends[number:]])))
    if len(layers) > 2:
        alone = [*ends[:number], *layers, *ends[number + 1 :]]
        found.append(Way(f"each layer of {unit['name']} by itself", _cut_at(plan, alone)))
    found.append(_same(plan, ends))
    if plan["policy"] != TREE:  # whose loops say what happens at borders
        found += [Way(f"borders {word}", {"borders": word}) for word in ("exchange", "overlap")]
    return [*found, through_dram]


# --- what would flip it ------------------------------------------------------------------------------------


def flips(target: Target, way: Way, count: Count, probes: int) -> list[dict[str, Any]]:
    """Of each number of the target, the nearest tried value at which the other way is better than the plan made for
    that target, or is that plan; at most so many targets for each number, with both ways compiled and counted, each
    with weights as is best there."""
    found = []
    way = replace(way, changes={key: value for key, value in way.changes.items() if key != "compress_weights"})
    for name in NUMBERS if probes else ():
        own = _number(target, name)
        tried: dict[int, bool | None] = {}
        for factor in FACTORS:
            if len(tried) < probes and True not in tried.values():
                _try(target, name, round(own * factor), way, count, tried)
        while len(tried) < probes and True in tried.values():
            flip = min((value for value, yes in tried.items() if yes), key=lambda value: abs(value - own))
            between = [v for v, yes in tried.items() if not yes and min(own, flip) < v < max(own, flip)]
            middle = (flip + max(between, key=lambda v: abs(v - own), default=own)) // 2
            if middle in (*tried, own, flip) or not _try(target, name, middle, way, count, tried):
                break
        better = [value for value, yes in tried.items() if yes]
        nearest = min(better, key=lambda value: abs(value - own), default=None)
        asked = [{"value": value, "flips": yes} for value, yes in tried.items()]
        found.append({"number": name, "now": own, "flips_at": nearest, "tried": asked})
    return found


def _try(
    target: Target, name: str, value: int, way: Way, count: Count, tried: dict[int, bool | None]
) -> bool:
    """Count both at a target with this number; whether there is such a target that both fit."""
    changed = with_number(target, name, value)
    if changed is None:
        return False
    plan = Way("the plan", {"target": changed}).counted(count)
    if plan.data is None:
        tried[value] = None
        return True
    other = replace(way, changes={**way.changes, "target": changed}).counted(count)
    tried[value] = other.data is not None and (
        figures(other.data)[0] < figures(plan.data)[0] or _is_same_plan(plan.data, other.data)
    )
    return True


def with_number(target: Target, name: str, value: int) -> Target | None:
    """The target with this number changed; None where there can be no such target."""
    memory, key = name.split(".")
    if value < 1 or (key == "capacity_bytes" and value % target.alignment_bytes):
        return None
    chip, cluster = target.chip, target.cluster
    if memory == "dram":
        chip = replace(chip, dram=replace(chip.dram, **{key: value}))
    else:
        chip = replace(chip, cluster=replace(cluster, sram=replace(cluster.sram, **{key: value})))
    changed = replace(target, chip=chip)
    return None if cross_checks(changed) else changed


def _number(target: Target, name: str) -> int:
    memory, key = name.split(".")
    value: int = getattr(target.memory(memory), key)
    return value


# --- facts -------------------------------------------------------------------------------------------------


def _named(plan: Data, layers: Sequence[str]) -> list[str]:
    """Those of some layers that cuts can name, once: parts of a layer that the plan has made are none of the model."""
    known = {layer for unit in plan["units"] for layer in unit["layers"]}
    parts = {each[0] for layer in known if (each := PART.fullmatch(layer)) and each[1] in known}
    return list(dict.fromkeys(layer for layer in layers if layer not in parts))


def _ends(plan: Data) -> list[str]:
    return _named(plan, [unit["layers"][-1] for unit in plan["units"] if unit["layers"]])


def _cut_at(plan: Data, ends: Sequence[str]) -> dict[str, Any]:
    """Options for units that end just there, planned together if those of the plan are."""
    policy = plan["policy"] if plan["policy"] in (OPTIMAL, TREE) else None
    return {**UNFORCED, "policy": policy, "cuts": ",".join(ends)}


def _same(plan: Data, ends: Sequence[str]) -> Way:
    return Way("these cuts, given", _cut_at(plan, ends))


def _with(ways: Sequence[Way], alike: Data) -> list[Way]:
    return [replace(way, changes={**alike, **way.changes}) for way in ways]


def _is_same_plan(one: Data, other: Data) -> bool:
    return figures(one) == figures(other) and units_of(one) == units_of(other)


def _spent(unit: Data) -> int:
    """Cycles of the critical path that are the unit's."""
    return sum(wait["cycles"] for wait in unit["waits"] or ())


def _summary(plan: Data) -> dict[str, Any]:
    cycles, size = figures(plan)
    return {"model": plan["model"], "target": plan["target"], "cycles": cycles, "dram_bytes": size}


def _unit_facts(plan: Data, unit: Data) -> dict[str, Any]:
    keys = (
        "name",
        "layers",
        "mode",
        "tiles",
        "owners",
        "stopped_by",
        "kept_bytes",
        "bound_cycles",
        "predicted_cycles",
    )
    moved = sum(layer["dram_bytes"] for layer in plan["layers"] if layer["unit"] == unit["name"])
    return {key: unit.get(key) for key in keys} | {"cycles": _spent(unit), "dram_bytes": moved}


def _here(plan: Data, other: Data, end: str) -> dict[str, Any]:
    """Of what two whole plans differ by, the part of the units that a cut separates, or their layers are in, and the
    rest: units elsewhere were planned again, too."""
    (cycles, size), (before, size_before) = figures(other), figures(plan)
    own = [each for each in difference(plan, other).changes if end in each.layers]
    here = sum(int(each.cycles.change or 0) for each in own), sum(int(each.bytes.change or 0) for each in own)
    elsewhere = cycles - before - here[0], size - size_before - here[1]
    return {
        name: {"cycles": part[0], "dram_bytes": part[1]} for name, part in (("here", here), ("elsewhere", elsewhere))
    }


def _causes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """What cycles of all units went to more or less than before, the largest first; each cause once."""
    cycles, units = Counter[str](), dict[str, list[str]]()
    for change in changes:
        for cause, more in change.all_causes:
            cycles[cause] += more
            units.setdefault(cause, []).extend(change.after)
    found = sorted(((cause, n) for cause, n in cycles.items() if n), key=lambda pair: (-abs(pair[1]), pair[0]))
    return [{"units": units[cause], "cause": cause, "cycles": n} for cause, n in found[:MOST_CAUSES]]


def _way_facts(plan: Data, way: Way) -> dict[str, Any]:
    """A way beside the plan: its figures, and what differs."""
    asked = {key: value for key, value in way.changes.items() if value is not None and key != "target"}
    if way.data is None:
        return {"way": way.what, "options": asked, "problem": way.problem}
    cycles, size = figures(way.data)
    found = difference(plan, way.data)
    classes = [(each.name, int(each.change)) for each in found.classes if each.change]
    moved = sorted((pair for each in found.changes for pair in each.moved), key=lambda pair: -abs(pair[1]))
    waits = [
        {each["what"]: each["cycles"] for each in d.get("waiting") or () if each["is_wait"]}
        for d in (plan, way.data)
    ]
    more = {what: waits[1][what] - waits[0][what] for what in waits[0].keys() & waits[1].keys()}
    most = sorted((pair for pair in more.items() if pair[1]), key=lambda pair: (-abs(pair[1]), pair[0]))[:3]
    return {
        "way": way.what, "options": asked, "cycles": cycles, "dram_bytes": size, "units": units_of(way.data),
        "same_units": units_of(way.data) == units_of(plan), "bytes_by_class": dict(classes),
        "bytes_by_layer": dict(moved[:3]), "causes": _causes(found.changes), "waits": dict(most),
    }  # fmt: skip
