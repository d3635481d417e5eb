# Tests: test/runtime/report/test_bound.py
"""Runs of sub-graphs, and what the report says of their units: counted, waited for, bounded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from frustum.dialects.isa.program import Program, instructions
from frustum.dialects.target import Target
from frustum.dialects.weights.codec import CODECS
from frustum.dialects.weights.scaled import STORED
from frustum.runtime.report import bound as bound_of
from frustum.runtime.report import counters
from frustum.runtime.report.layer_by_layer import makers_of
from frustum.runtime.report.waits import PieceTime, waits_of_units
from frustum.runtime.time.timeline import Timeline


@dataclass(frozen=True)
class UnitInfo:
    """What the manifest says of a unit: its layers, its mode, what ended its growth, its number of tiles, and the
    bytes of each cluster's SRAM that hold rows and columns of its maps for later tiles, beyond a tile's own; who makes
    tiles alone, `clusters` or `cores`."""

    name: str
    layers: tuple[str, ...]
    mode: str
    stopped_by: str | None
    tiles: int
    kept_bytes: int = 0
    owners: str = "clusters"
    predicted_cycles: int | None = None
    """What the planner's model says that it adds to the run; None where it does not say."""
    own_cycles: int | None = None
    """What the model says that it takes alone."""
    carry: str | None = None
    """The type of sums and results that wait in SRAM between parts of a reduction; None where none do."""


@dataclass(frozen=True)
class SubgraphRun:
    """One run of one executable; `timeline` is absent in mode functional."""

    name: str
    program: Program
    counters: counters.Counters
    timeline: Timeline | None = None
    executable_bytes: int = 0
    chip: int = 0
    passed: frozenset[str] = frozenset()
    """Inputs and outputs that are not the network's: another sub-graph, or the host in the run, gives or takes them."""
    start_cycle: int = 0
    """When it starts, counted from the start of the first."""
    handed: tuple[str, ...] = ()
    """Outputs of the network that are there when it ends."""
    least_work: Mapping[str, Any] | None = None
    """What its network asks at least, as `passes/analysis/least_work.py` says; None where nobody knows."""
    alternatives: Mapping[str, Mapping[str, int]] | None = None
    """What plans with least time, bytes and energy are expected to take; None where nobody looked for them."""
    whole_network: Mapping[str, Any] | None = None
    """Of a piece of a network that was cut: `pieces`, how many there are, and `least_work` of the network."""
    is_compressed: bool = False
    """Whether the compiler was free to store weights compressed."""
    in_dram: Mapping[str, str] = field(default_factory=dict)
    """Of tensors between units in DRAM by name: why no view of them is on chip, and why they are not in SRAM."""


def unit_figures(
    runs: Sequence[SubgraphRun], infos: Sequence[UnitInfo], target: Target
) -> list[dict[str, Any]]:
    """What the manifests say of each unit, with what the run that has it has counted; of several runs, units are named
    with the run's name before their own.  A unit without a layer, which its readers make themselves, has nothing."""
    counted = {
        f"{run.name}.{name}" if len(runs) > 1 else name: figures.figures
        for run in runs
        for name, figures in zip(run.program.units, run.counters.units, strict=False)
    }
    places = {
        f"{run.name}.{name}" if len(runs) > 1 else name: (run.name, number)
        for run in runs
        for number, name in enumerate(run.program.units)
    }
    timed = [PieceTime(run.name, run.timeline, run.start_cycle) for run in runs if run.timeline is not None]
    spent = waits_of_units(timed) if len(timed) == len(runs) else None
    bounds = _unit_bounds(runs, target)
    moved = _moved(runs)
    found = []
    for unit in (each for each in infos if each.layers):
        figures = asdict(unit) | {"layers": list(unit.layers)} | counted.get(unit.name, {})
        for key in ("predicted_cycles", "own_cycles", "carry"):
            if figures[key] is None:
                del figures[key]
        figures["stopped_by"] = stopped_by(unit.stopped_by, moved.get(unit.name, 0), sum(moved.values()))
        waits = None if spent is None else spent.get(places.get(unit.name, ("", -1)), [])
        found.append(figures | {"bound_cycles": bounds.get(unit.name), "waits": waits})
    return found


def through_dram(runs: Sequence[SubgraphRun]) -> list[dict[str, Any]]:
    """What moves between units through DRAM in the program as it ran, most bytes first: a tensor's name, bytes, and the
    units that write and read it; why it is there, where the program says."""
    found = [
        {
            "name": name,
            "bytes": each.bytes,
            "written_by": [_unit_name(runs, run, unit) for unit in sorted(each.written_by)],
            "read_by": [_unit_name(runs, run, unit) for unit in sorted(each.read_by)],
            "why": run.in_dram.get(name),
        }
        for run in runs
        for name, each in run.counters.through_dram.items()
    ]
    return sorted(found, key=lambda each: -each["bytes"])


def _unit_name(runs: Sequence[SubgraphRun], run: SubgraphRun, number: int) -> str:
    """As the report calls it; of several runs with the run's name before its own."""
    name = run.program.units[number] if 0 <= number < len(run.program.units) else ""
    return f"{run.name}.{name}" if len(runs) > 1 else name


def _moved(runs: Sequence[SubgraphRun]) -> dict[str, int]:
    """Bytes at the DRAM ports of each unit's layers, by the unit's name in the report."""
    found = Counter[str]()
    for run in runs:
        units = {each.layer: each.unit for each in instructions(run.program.body)}
        for layer, moved in enumerate(run.counters.layer_dram_bytes.tolist()):
            found[_unit_name(runs, run, units.get(layer, -1))] += moved
    return dict(found)


PLANNED = re.compile(r"(?P<why>.*): \d+ DRAM bytes here(?P<all>, \d+ in all)?")
"""What the search says of a unit: of its plan, before tensors between units were kept in SRAM."""


def stopped_by(planned: str | None, moved: int, whole: int) -> str | None:
    """Why a unit ends, with the bytes that its layers and all layers moved, where the plan named bytes."""
    found = PLANNED.fullmatch(planned or "")
    if found is None:
        return planned
    in_all = f", {whole} in all" if found["all"] else ""
    return f"{found['why']}: {moved} DRAM bytes here{in_all}"


def _unit_bounds(runs: Sequence[SubgraphRun], target: Target) -> dict[str, int]:
    """Of each unit the least cycles that its own products and weights allow, by the name that the report has for it."""
    found: dict[str, int] = {}
    for run in runs:
        if run.least_work is None:
            continue
        layers = dict(zip((each["name"] for each in run.least_work["layers"]), bound_of.layers_of([run.least_work]),
                          strict=False))  # fmt: skip
        shares, weights = _shares(run), weight_bytes([run])
        for number, name in enumerate(run.program.units):
            own = ((layer, share) for (unit, layer), share in shares.items() if unit == number)
            parts = [(layers[each], share) for each, share in own if each in layers]
            cycles = bound_of.unit_bound(target, parts, weights)
            found[f"{run.name}.{name}" if len(runs) > 1 else name] = cycles
    return found


def _shares(run: SubgraphRun) -> dict[tuple[int, str], float]:
    """Of each unit and layer the share of the layer's products that the unit makes; 1 of one that has none."""
    units = {each.layer: each.unit for each in instructions(run.program.body)}
    names, made = run.program.layers, run.counters.layer_macs.tolist()
    whole, own = Counter[str](), Counter[tuple[int, str]]()
    for number, name in enumerate(names):
        whole[name] += made[number]
        own[units.get(number, -1), name] += made[number]
    return {key: macs / whole[key[1]] if whole[key[1]] else 1.0 for key, macs in own.items()}


def weight_bytes(runs: Sequence[SubgraphRun]) -> dict[str, int]:
    """Bytes of every weight as it crosses the port, by the name that the network has for it."""
    suffixes = tuple(f":{form}" for form in (*CODECS, STORED))
    found: dict[str, int] = {}
    for run in runs:
        for each in run.program.externals_of("weight"):
            stem = next(
                (each.name.removesuffix(end) for end in suffixes if each.name.endswith(end)), each.name
            )
            found[stem] = each.bytes
    return found


def nram_operands(runs: Sequence[SubgraphRun]) -> dict[str, int] | None:
    """Of the layers that read a map which another layer of their unit makes (`following`), those that read it in NRAM
    (`reading`); None where a program does not know its network."""
    followers = reading = 0
    for run in runs:
        if run.least_work is None:
            return None
        behind = _followers(run)
        followers += len(behind)
        names = [_whole_layer(run, name) for name in run.program.layers]
        reading += len({(unit, names[layer]) for unit, layer in run.counters.read_in_core} & behind)
    return {"reading": reading, "following": followers}


def _whole_layer(run: SubgraphRun, name: str) -> str:
    """The network's name of a layer of the program, which may be a part that the plan has made of it."""
    assert run.least_work is not None
    known = {fact["name"] for fact in run.least_work["layers"]}
    return next((name[:end] for end in _ends(name) if name[:end] in known), name)


def _ends(name: str) -> Iterator[int]:
    yield len(name)
    while (at := name.rfind("/")) > 0:
        yield at
        name = name[:at]


def _followers(run: SubgraphRun) -> set[tuple[int, str]]:
    """Unit and name of the layers that read what another layer of their unit makes, or moves on its way; steps and
    parts of one layer have one name."""
    assert run.least_work is not None
    facts = run.least_work["layers"]
    units: dict[str, set[int]] = {}
    for unit, name in _shares(run):
        units.setdefault(_whole_layer(run, name), set()).add(unit)
    sources, _ = makers_of(facts, lambda fact: fact["name"] in units)
    found = set[tuple[int, str]]()
    for fact, own in zip(facts, sources, strict=True):
        for unit in units.get(fact["name"], ()):
            if any(unit in units[facts[each]["name"]] for each in own if facts[each]["name"] != fact["name"]):
                found.add((unit, fact["name"]))
    return found
