"""A run of an executable, or of a chain of pieces, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from frustum.backend.file.executable import Executable
from frustum.dialects.loops import TIMES, clock
from frustum.dialects.target import digest
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.kernels import Array
from frustum.runtime.machine import Machine, Mode
from frustum.runtime.model.chain import Chain, DevicePiece, chain_of, checked_values
from frustum.runtime.model.placement import HOST, PieceWork, Schedule, schedule
from frustum.runtime.progress import Progress
from frustum.runtime.report.counters import Counters, count
from frustum.runtime.report.report import (
    Check,
    HostedPiece,
    HostRun,
    LayerInfo,
    Report,
    Seconds,
    SplitRun,
    SubgraphRun,
    UnitInfo,
    make_report,
    weights_held,
)
from frustum.runtime.time.timeline import Timeline


@dataclass(frozen=True)
class Ran:
    """What came out of a run of one executable."""

    machine: Machine
    outputs: dict[str, Array]
    timeline: Timeline | None
    counters: Counters
    seconds: float


@dataclass(frozen=True)
class RanChain:
    """What came out of a run of a chain: outputs by name, the runs of its executables, what the host did."""

    outputs: dict[str, HostArray]
    runs: dict[str, Ran] = field(default_factory=dict)
    """By piece."""
    host_seconds: float = 0.0
    seconds: float = 0.0
    """Without making the machine code of loops, which took `loop_seconds`."""
    loop_seconds: float = 0.0


def execute(
    executable: Executable,
    inputs: Mapping[str, Array],
    mode: Mode = "full",
    checked: bool = False,
    progress: Progress | None = None,
    passed: frozenset[str] = frozenset(),
) -> Ran:
    """Decode, run, count; `InputError` if the inputs are not the network's.  `passed` as `count` takes it."""
    started = clock()
    machine = Machine(executable)
    if progress is not None:
        _prepare(machine, mode, progress)
    result = machine.run(inputs, mode, checked, progress)
    tables = result.timeline.tables if result.timeline else None
    counters = count(machine.expanded, machine.target, executable.code.page_bytes, tables, passed)
    return Ran(machine, result.outputs, result.timeline, counters, clock() - started)


def _prepare(machine: Machine, mode: Mode, progress: Progress) -> None:
    """What a run would do before its first step, told as what it is: load the loops, decode the instructions."""
    progress("load", 0.0)
    if mode != "timing":
        import_module("frustum.runtime.device.functional")
    if mode != "functional":
        import_module("frustum.runtime.time.event_loop")
    progress("decode", 0.0)
    _ = machine.expanded
    if mode != "timing":
        progress("decode", 0.5)
        _ = machine.plan


def execute_chain(
    chain: Chain,
    inputs: Mapping[str, HostArray],
    mode: Mode = "full",
    checked: bool = False,
    progress: Progress | None = None,
    hand: Callable[[str, HostArray], None] = lambda name, value: None,
) -> RanChain:
    """Run the pieces in their order; mode timing leaves those of the host out.

    `hand` gets each output of the whole as soon as the piece that makes it has run.
    """
    started, loops_before = clock(), TIMES.seconds
    values: dict[str, HostArray] = {} if mode == "timing" else checked_values(chain.inputs, inputs)
    runs: dict[str, Ran] = {}
    host_seconds = 0.0
    for piece in chain.pieces:
        given = {name: values[name] for name in piece.inputs} if mode != "timing" else {}
        if isinstance(piece, DevicePiece):
            passed = chain.passed(piece)
            runs[piece.name] = ran = execute(piece.executable, given, mode, checked, progress, passed)
            given = ran.outputs
        elif mode != "timing":
            began = time.perf_counter()
            given = piece.model.run(given)
            host_seconds += time.perf_counter() - began
        values.update(given)
        for name in piece.outputs:
            if name in given and name in chain.outputs:
                hand(name, given[name])
    outputs = {} if mode == "timing" else {name: values[name] for name in chain.outputs}
    return RanChain(outputs, runs, host_seconds, clock() - started, TIMES.seconds - loops_before)


def report_of(
    executable: Executable, ran: Ran, check: Check | None = None, seconds: Seconds | None = None
) -> Report:
    """The report of the run; `seconds` without `emulate` is completed."""
    chain = chain_of(executable)
    (piece,) = chain.pieces
    return report_of_chain(chain, RanChain(ran.outputs, {piece.name: ran}, seconds=ran.seconds), check, seconds)


def report_of_chain(
    chain: Chain,
    ran: RanChain,
    check: Check | None = None,
    seconds: Seconds | None = None,
) -> Report:
    """The report of a run of all pieces."""
    seconds = seconds or Seconds()
    runs: list[SubgraphRun] = []
    layers: list[LayerInfo] = []
    units: list[UnitInfo] = []
    times = schedule_of(chain, ran)
    starts = {piece.name: start for piece, (start, _) in zip(chain.pieces, times.pieces, strict=True)}
    for piece in chain.pieces:
        if not isinstance(piece, DevicePiece):
            layers += [LayerInfo(f.name, f.op, None, "host", f.reason) for f in piece.fallbacks]
            continue
        executable, own = piece.executable, ran.runs[piece.name]
        runs.append(
            SubgraphRun(
                piece.name,
                executable.program,
                own.counters,
                own.timeline,
                executable.file_bytes,
                piece.chip,
                chain.passed(piece),
                starts[piece.name],
                tuple(name for name in chain.outputs if name in piece.outputs),
            )
        )
        prefix = f"{piece.name}." if len(ran.runs) > 1 else ""
        layers += layers_of(executable.manifest, prefix)
        units += units_of(executable.manifest, prefix)
    report = make_report(
        chain.model,
        chain.target,
        chain.dtype,
        chain.policy,
        runs,
        layers=layers,
        units=units,
        check=check,
        seconds=replace(seconds, emulate=ran.seconds, loops=(seconds.loops or 0.0) + ran.loop_seconds),
        host=_host_run(chain, ran, times),
        splitting=_splitting(chain, ran, times),
    )
    report.data.update(target_file=chain.target_file, target_sha256=digest(chain.target))
    report.data.update(accuracy_of(each.manifest for each in chain.executables))
    report.data.update(weights_held(each.manifest for each in chain.executables))
    return report


def schedule_of(chain: Chain, ran: RanChain) -> Schedule:
    """When each piece runs, what moves between chips and over the host link; in mode functional all pieces take 0
    cycles.  Sizes are those in the device's types, which the executables say."""
    works = []
    taken = {
        each.name: each.bytes
        for executable in chain.executables
        for each in executable.program.externals
        if each.class_ == "input"
    }
    for piece in chain.pieces:
        if isinstance(piece, DevicePiece):
            timeline = ran.runs[piece.name].timeline
            sizes = {e.name: e.bytes for e in piece.executable.program.externals if e.class_ == "output"}
            works.append(PieceWork(piece.inputs, sizes, timeline.total_cycles if timeline else 0, piece.chip))
        else:
            works.append(PieceWork(piece.inputs, {name: taken.get(name, 0) for name in piece.outputs}, 0, HOST))
    return schedule(works, chain.target)


def _host_run(chain: Chain, ran: RanChain, found: Schedule) -> HostRun:
    is_timed = all(each.timeline is not None for each in ran.runs.values())
    return HostRun(
        chain.host,
        [HostedPiece(p.name, p.kind, *times) for p, times in zip(chain.pieces, found.pieces, strict=True)],
        found.crossing_bytes(to_host=True),
        found.crossing_bytes(to_host=False),
        found.link_cycles if is_timed else None,
        found.port_cycles if is_timed else None,
        ran.host_seconds,
    )


def accuracy_of(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How exact the integers of all executables are, as their manifests tell; nothing where none does.

    Pieces of one network all tell of the whole of it; pieces with the host between them each of its own layers and
    outputs, from the inputs that calibration gave it.
    """
    found = [m["options"]["accuracy"] for m in manifests if "accuracy" in m["options"]]
    if not found:
        return {}
    layers = {layer["name"]: layer for each in found for layer in each["accuracy"]}
    outputs = {name: snr for each in found for name, snr in each["output_snr_db"].items()}
    inputs = min(each["calibration_inputs"] for each in found)
    return {"accuracy": list(layers.values()), "output_snr_db": outputs, "calibration_inputs": inputs}


def _splitting(chain: Chain, ran: RanChain, found: Schedule) -> SplitRun | None:
    """None for one executable alone, or none: nothing is split."""
    if not ran.runs or len(chain.pieces) < 2:
        return None
    uncut = chain.unsplit_peak_bytes
    if len(ran.runs) == 1:
        (alone,) = ran.runs.values()
        uncut = alone.counters.peak_bytes
    return SplitRun(found.total_cycles, found.moved_bytes, uncut)


def layers_of(manifest: Mapping[str, Any], prefix: str = "") -> list[LayerInfo]:
    """What a manifest says of the layers; `prefix` goes before the names of units."""
    units = [f"{prefix}{unit}" for unit in manifest["units"]]
    facts = manifest["options"].get("layers", [])
    return [
        LayerInfo(name, fact["op"], units[fact["unit"]] if 0 <= fact["unit"] < len(units) else None)
        for name, fact in zip(manifest["layers"], facts, strict=False)
    ]


def units_of(manifest: Mapping[str, Any], prefix: str = "") -> list[UnitInfo]:
    """What a manifest says of the units; `prefix` goes before their names."""
    members: dict[int, list[str]] = {}
    for name, fact in zip(manifest["layers"], manifest["options"].get("layers", []), strict=False):
        members.setdefault(fact["unit"], []).append(name)
    facts = zip(manifest["units"], manifest["options"].get("units", []), strict=False)
    return [
        UnitInfo(
            prefix + name, tuple(members.get(number, [])), fact["mode"], fact["stopped_by"] or None, fact["tiles"],
            fact["kept_bytes"],
        )
        for number, (name, fact) in enumerate(facts)
    ]
