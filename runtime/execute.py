"""A run of an executable, and its report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frustum.backend.executable import Executable
from frustum.runtime.counters import Counters, count
from frustum.runtime.kernels import Array
from frustum.runtime.machine import Machine, Mode
from frustum.runtime.progress import Progress
from frustum.runtime.report import Check, LayerInfo, Report, Seconds, SubgraphRun, UnitInfo, make_report
from frustum.runtime.timeline import Timeline


@dataclass(frozen=True)
class Ran:
    """What came out of a run."""

    machine: Machine
    outputs: dict[str, Array]
    timeline: Timeline | None
    counters: Counters
    seconds: float


def execute(
    executable: Executable,
    inputs: Mapping[str, Array],
    mode: Mode = "full",
    checked: bool = False,
    progress: Progress | None = None,
) -> Ran:
    """Decode, run, count; `InputError` if the inputs are not the network's."""
    started = time.perf_counter()
    machine = Machine(executable)
    result = machine.run(inputs, mode, checked, progress)
    tables = result.timeline.tables if result.timeline else None
    counters = count(machine.expanded, machine.target, executable.code.page_bytes, tables)
    return Ran(machine, result.outputs, result.timeline, counters, time.perf_counter() - started)


def report_of(
    executable: Executable, ran: Ran, check: Check | None = None, seconds: Seconds | None = None
) -> Report:
    """The report of the run; `seconds` without `emulate` is completed."""
    options = executable.manifest["options"]
    seconds = seconds or Seconds()
    program = executable.program
    run = SubgraphRun(program.name, program, ran.counters, ran.timeline, executable.file_bytes)
    report = make_report(
        options.get("model", program.name),
        ran.machine.target,
        program.dtype,
        options.get("policy", ""),
        [run],
        layers=layers_of(executable.manifest),
        units=units_of(executable.manifest),
        check=check,
        seconds=Seconds(seconds.import_, seconds.compile, ran.seconds, seconds.passes),
    )
    report.data.update(options.get("accuracy", {}))
    return report


def layers_of(manifest: Mapping[str, Any]) -> list[LayerInfo]:
    """What a manifest says of the layers."""
    units = manifest["units"]
    facts = manifest["options"].get("layers", [])
    return [
        LayerInfo(name, fact["op"], units[fact["unit"]] if 0 <= fact["unit"] < len(units) else None)
        for name, fact in zip(manifest["layers"], facts, strict=False)
    ]


def units_of(manifest: Mapping[str, Any]) -> list[UnitInfo]:
    """What a manifest says of the units."""
    members: dict[int, list[str]] = {}
    for name, fact in zip(manifest["layers"], manifest["options"].get("layers", []), strict=False):
        members.setdefault(fact["unit"], []).append(name)
    facts = zip(manifest["units"], manifest["options"].get("units", []), strict=False)
    return [
        UnitInfo(
            name, tuple(members.get(number, [])), fact["mode"], fact["stopped_by"] or None, fact["tiles"]
        )
        for number, (name, fact) in enumerate(facts)
    ]
