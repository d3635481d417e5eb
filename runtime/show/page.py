"""One page of a run, for a browser: figures, pictures, tables; a single file that asks no network.

Here is what the page shows, as one JSON value; `page.js` draws it, so that no name from a model is ever read as HTML.
All figures are those of the report, of the event log and of the program that ran.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from frustum.dialects.isa.program import MEMORIES, instructions
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.execution import Ran, RanChain
from frustum.runtime.report.counters import peaks
from frustum.runtime.report.figures import DrawnCurve, Report
from frustum.runtime.report.screen import kind_of_reason, screen
from frustum.runtime.show.frustum import frustums
from frustum.runtime.show.gantt import gantt
from frustum.runtime.show.residence import residences
from frustum.runtime.time.event_log import event_log

MOST_BUFFERS = 4000
"""That a memory map draws of one run; the largest in bytes x cycles."""
MOST_LINES, LONGEST_LINE, MOST_IR = 5, 220, 500_000
"""Of IR: lines for a layer at a stop, characters of a line, and of all."""
KEPT = ("model", "target", "target_file", "dtype", "policy", "clock_hz", "dram", "cycles", "macs", "peak_bytes",
        "energy_pj", "layers", "check", "hashes", "host")  # fmt: skip
"""What the page shows of the report as it is."""


def page(
    chain: Chain, ran: RanChain, report: Report, stops: Path | None = None, curves: Sequence[DrawnCurve] = ()
) -> str:  # fmt: skip
    """The page; `stops`: the folder of `--dump-ir`.  Every executable's run must have been timed."""
    data = page_data(chain, ran, report, stops, curves)
    room = files(__package__)
    text = (room / "page.html").read_text(encoding="utf-8")
    parts = {name: (room / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    # in a script element only `<` can end the data
    parts["data"] = json.dumps(data, separators=(",", ":"), default=int).replace("<", "\\u003c")
    for name, part in parts.items():
        head, _, tail = text.partition(f"{{{{{name}}}}}")
        text = head + part + tail
    return text


def page_data(
    chain: Chain, ran: RanChain, report: Report, stops: Path | None = None, curves: Sequence[DrawnCurve] = ()
) -> dict[str, Any]:  # fmt: skip
    """All that the page shows."""
    data: Mapping[str, Any] = report
    begins = {each["name"]: each["start_cycle"] or 0 for each in data["subgraphs"]}
    is_alone = len(ran.runs) == 1
    macs_per_cycle, bytes_per_cycle = _peaks(chain, ran)
    macs = Counter[str]()
    for name, each in ran.runs.items():
        macs.update(_unit_macs(each, "" if is_alone else f"{name}."))
    return {
        "text": screen(data),
        "reasons": [kind_of_reason(each["reason"]) for each in (data["host"] or {"layers": []})["layers"]],
        "report": {name: data[name] for name in KEPT if name in data},
        "peaks": {"macs_per_cycle": macs_per_cycle, "bytes_per_cycle": bytes_per_cycle},
        "units": _units(data, macs),
        "graph": [edge for each in chain.executables for edge in _graph(each.manifest)],
        "runs": [
            {"name": name, "start": begins.get(name, 0), **_run(each, "" if is_alone else f"{name}.")}
            for name, each in ran.runs.items()
            if each.timeline is not None
        ],
        "curves": [{"name": each.name, "svg": each.svg()} for each in curves],
        "ir": snippets(stops, {each["name"] for each in data["layers"]}) if stops else [],
    }


def _peaks(chain: Chain, ran: RanChain) -> tuple[float, int]:
    dtypes = {each.machine.program.dtype for each in ran.runs.values()}
    return peaks(chain.target, min(dtypes)) if dtypes else (0, 0)


def _unit_macs(ran: Ran, prefix: str) -> dict[str, int]:
    """Products that each unit really made; a layer counts for the unit that its first instruction is of."""
    program, found = ran.machine.program, Counter[str]()
    units = {each.layer: each.unit for each in reversed(list(instructions(program.body)))}
    for layer, macs in enumerate(ran.counters.layer_macs.tolist()):
        if layer in units and units[layer] < len(program.units):
            found[prefix + program.units[units[layer]]] += macs
    return found


def _units(data: Mapping[str, Any], macs: Mapping[str, int]) -> list[dict[str, Any]]:
    """The report's units with their bytes at DRAM ports, products, and cycles of the critical path."""
    moved = Counter[str]()
    for layer in data["layers"]:
        moved[layer["unit"]] += layer["dram_bytes"]
    return [
        {
            **{key: each[key] for key in ("name", "layers", "mode", "stopped_by", "tiles", "owners", "bound_cycles")},
            "dram_bytes": moved[each["name"]], "macs": macs.get(each["name"], 0),
            "cycles": sum(wait["cycles"] for wait in each["waits"] or ()),
            "waits": sorted(each["waits"] or (), key=lambda wait: -wait["cycles"])[:6],
        }
        for each in data["units"]
    ]  # fmt: skip


def _graph(manifest: Mapping[str, Any]) -> list[list[Any]]:
    """Edges between layers by name: who makes a map, who reads it."""
    layers = (manifest["options"].get("least_work") or {}).get("layers", [])
    return [[layers[read]["name"], each["name"]] for each in layers for read in each["reads"] if read >= 0]


def _run(ran: Ran, prefix: str) -> dict[str, Any]:
    """The pictures of one executable's run; layers and units are numbers into its names."""
    timeline, program = ran.timeline, ran.machine.program
    assert timeline is not None, "nothing was timed"
    lying = sorted(residences(timeline), key=lambda each: (each.address - each.end) * (each.stop - each.start))
    drawn = lying[:MOST_BUFFERS]
    return {
        "total": timeline.total_cycles,
        "layers": list(program.layers), "units": [prefix + name for name in program.units],
        "gantt": gantt(event_log(timeline)),
        "frustums": frustums(ran.machine.expanded),
        "capacities": dict(zip(MEMORIES[1:], ran.machine.capacities[1:], strict=True)),
        "buffers": [
            [each.memory, each.place, each.address, each.end - each.address, each.start, each.stop - each.start,
             each.layer, each.unit]
            for each in drawn
        ],
        "buffers_left_out": len(lying) - len(drawn),
    }  # fmt: skip


def snippets(folder: Path, layers: set[str]) -> list[dict[str, Any]]:
    """Of each dumped stop the lines whose location names a layer, as far as there is room: longer lines are cut."""
    found, room = [], MOST_IR
    for file in sorted(folder.rglob("*.mlir")):
        lines: dict[str, list[list[Any]]] = {}
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            name = _located(line)
            if name in layers and len(lines.get(name, ())) < MOST_LINES and room > 0:
                text = line.strip()
                text = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ..."
                lines.setdefault(name, []).append([number, text])
                room -= len(text)
        found.append({"stop": str(file.relative_to(folder)), "lines": lines})
    return found


def _located(line: str) -> str:
    """The name of the last location of a line."""
    _, mark, rest = line.rpartition('loc("')
    return rest.partition('"')[0] if mark else ""
