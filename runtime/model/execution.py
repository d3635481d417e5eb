"""A run of an executable, or of a chain of pieces, and its report; and when each piece of a chain runs.

A chip runs one piece at a time.  A piece starts when its chip is free and all its inputs are in the DRAM of that
chip; a value made on another chip is moved there once, as soon as it is made, by the inter-chip DMA of the chip it is
on, which moves one value at a time.  Network inputs are everywhere before the run.  That is a list schedule over
whole pieces with the cycles measured for each alone: pieces overlap where they do not depend on each other, and the
DRAM port that a move shares with a running piece is not slowed down by it.

Pieces of the host run on no chip, one at a time, and take what its rates say.  What the device makes for them, and
what they make for the device, crosses the link between host and chip, each value once in each direction, as soon as
it is made; the link carries one value at a time, whichever way it goes.
Source: docs/techniques/machine.md, "Host".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from frustum.backend.file.executable import Executable
from frustum.dialects.choices import Mode
from frustum.dialects.extents import ceil_div
from frustum.dialects.loops import TIMES, clock
from frustum.dialects.target import Target, digest
from frustum.dialects.target.durations import link_engine, transfer_cycles
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.kernels import Array
from frustum.runtime.machine import Machine
from frustum.runtime.model.chain import Chain, DevicePiece, HostedLayer, HostPiece, checked_values
from frustum.runtime.progress import Progress
from frustum.runtime.report.counters import Counters, count
from frustum.runtime.report.figures import Report
from frustum.runtime.report.report import (
    Check,
    HostedPiece,
    HostRun,
    LayerInfo,
    Seconds,
    SplitRun,
    make_report,
    weights_held,
)  # fmt: skip
from frustum.runtime.report.units import SubgraphRun, UnitInfo
from frustum.runtime.time.timeline import Timeline

HOST = -1
"""In the place of a chip."""


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
    is_timed: bool = True


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
    loop_seconds = TIMES.seconds - loops_before
    return RanChain(outputs, runs, host_seconds, clock() - started, loop_seconds, mode != "functional")


def report_of_chain(
    chain: Chain, ran: RanChain, check: Check | None = None, seconds: Seconds | None = None,
    stream: Mapping[str, Any] | None = None,
) -> Report:
    """The report of a run of all pieces for one input; `stream`: figures of many inputs."""
    seconds = seconds or Seconds()
    layers: list[LayerInfo] = []
    units: list[UnitInfo] = []
    for piece in chain.pieces:
        if isinstance(piece, DevicePiece):
            prefix = f"{piece.name}." if len(ran.runs) > 1 else ""
            layers += layers_of(piece.executable.manifest, prefix)
            units += units_of(piece.executable.manifest, prefix)
        else:
            layers += [_hosted(each, chain.target if ran.is_timed else None) for each in piece.fallbacks]
    times = schedule_of(chain, ran)
    report = make_report(
        chain.model,
        chain.target,
        chain.dtype,
        chain.policy,
        _subgraphs(chain, ran, times),
        layers=layers,
        units=units,
        check=check,
        seconds=replace(seconds, emulate=ran.seconds, loops=(seconds.loops or 0.0) + ran.loop_seconds),
        host=_host_run(chain, ran, times),
        splitting=_splitting(chain, ran, times),
    )
    manifests = [each.manifest for each in chain.executables]
    report["stream"] = None if stream is None else dict(stream)
    report.update(target_file=chain.target_file, target_sha256=digest(chain.target))
    report["hashes"] = {name: chain.hashes.get(name) for name in ("target", "model", "pipeline")}
    report.update(accuracy_of(manifests) | weights_held(manifests))
    return report


def _hosted(layer: HostedLayer, target: Target | None) -> LayerInfo:
    """A layer of the host; what it takes where a target says that."""
    cycles = None if target is None else target.host_cycles(layer.macs, layer.bytes)
    return LayerInfo(layer.name, layer.op, None, "host", layer.reason, cycles=cycles)


def timelines_of(chain: Chain, ran: RanChain) -> list[tuple[str, int, Timeline]]:
    """The name, the first cycle and the timeline of each piece on the device that was timed."""
    times = schedule_of(chain, ran)
    return [(each.name, each.start_cycle, each.timeline) for each in _subgraphs(chain, ran, times) if each.timeline]


def _subgraphs(chain: Chain, ran: RanChain, times: ChainSchedule) -> list[SubgraphRun]:
    """The runs of the pieces on the device."""
    return [
        SubgraphRun(
            piece.name,
            piece.executable.program,
            ran.runs[piece.name].counters,
            ran.runs[piece.name].timeline,
            piece.executable.file_bytes,
            piece.chip,
            chain.passed(piece),
            start,
            tuple(name for name in chain.outputs if name in piece.outputs),
            piece.executable.manifest["options"].get("least_work"),
            piece.executable.manifest["options"].get("alternatives"),
            piece.executable.manifest["options"].get("whole_network"),
            bool(piece.executable.manifest["options"].get("may_compress")),
            piece.executable.manifest["options"].get("in_dram", {}),
        )
        for piece, (start, _) in zip(chain.pieces, times.pieces, strict=True)
        if isinstance(piece, DevicePiece)
    ]


def schedule_of(chain: Chain, ran: RanChain) -> ChainSchedule:
    """When each piece runs, what moves between chips and over the host link."""
    return schedule(works_of(chain, ran), chain.target)


def works_of(chain: Chain, ran: RanChain) -> list[PieceWork]:
    """The pieces as a schedule sees them; in mode functional all take 0 cycles.  Sizes are those in the device's types,
    which the executables say."""
    works = []
    taken = {
        each.name: each.bytes
        for executable in chain.executables
        for each in executable.program.externals_of("input")
    }
    for piece in chain.pieces:
        if isinstance(piece, DevicePiece):
            timeline = ran.runs[piece.name].timeline
            sizes = {e.name: e.bytes for e in piece.executable.program.externals_of("output")}
            works.append(PieceWork(piece.inputs, sizes, timeline.total_cycles if timeline else 0, piece.chip))
        else:
            cycles = chain.target.host_cycles(piece.macs, piece.bytes) if ran.is_timed else 0
            works.append(PieceWork(piece.inputs, {name: taken.get(name, 0) for name in piece.outputs}, cycles, HOST))
    return works


def _host_run(chain: Chain, ran: RanChain, found: ChainSchedule) -> HostRun:
    is_timed = ran.is_timed
    hosted = [piece for piece in chain.pieces if isinstance(piece, HostPiece)]
    return HostRun(
        chain.host,
        [HostedPiece(p.name, p.kind, *times) for p, times in zip(chain.pieces, found.pieces, strict=True)],
        found.crossing_bytes(to_host=True),
        found.crossing_bytes(to_host=False),
        found.link_cycles if is_timed else None,
        found.port_cycles if is_timed else None,
        ran.host_seconds,
        sum(p.macs for p in hosted),
        sum(p.bytes for p in hosted),
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


def _splitting(chain: Chain, ran: RanChain, found: ChainSchedule) -> SplitRun | None:
    """None for one executable alone: nothing is split."""
    if not ran.runs:
        return SplitRun(found.total_cycles, 0, None)
    if len(chain.pieces) < 2:
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
        LayerInfo(
            name, fact["op"], units[fact["unit"]] if 0 <= fact["unit"] < len(units) else None,
            nodes=tuple(fact.get("nodes", ())),
        )
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
            fact["kept_bytes"], fact["owners"], fact.get("predicted_cycles"), fact.get("own_cycles"), fact.get("carry"),
        )
        for number, (name, fact) in enumerate(facts)
    ]


# --- when each piece runs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PieceWork:
    """A piece as the schedule sees it."""

    inputs: tuple[str, ...]
    outputs: Mapping[str, int]
    """Values that it makes, with their bytes in DRAM."""
    cycles: int
    chip: int = 0


@dataclass(frozen=True)
class ValueMove:
    """A value on its way from one chip's DRAM to another's, or over the link to or from the host: cycles [start, stop),
    of which the link holds the DRAM port for `port_cycles`."""

    value: str
    size_bytes: int
    source: int
    destination: int
    start: int
    stop: int
    port_cycles: int = 0


@dataclass(frozen=True)
class ChainSchedule:
    """When each piece runs, as cycles [start, stop), the moves between chips, and what crosses to and from the host."""

    pieces: tuple[tuple[int, int], ...]
    moves: tuple[ValueMove, ...]
    crossings: tuple[ValueMove, ...] = ()

    @property
    def total_cycles(self) -> int:
        """When the last piece ends."""
        return max((stop for _, stop in self.pieces), default=0)

    def crossing_bytes(self, *, to_host: bool) -> int:
        """Bytes on the host link in one direction; each crosses one DRAM port."""
        return sum(each.size_bytes for each in self.crossings if (each.destination == HOST) == to_host)

    @property
    def link_cycles(self) -> int:
        """How long the host link is busy."""
        return sum(each.stop - each.start for each in self.crossings)

    @property
    def port_cycles(self) -> int:
        """How long DRAM ports are held for the host."""
        return sum(each.port_cycles for each in self.crossings)

    @property
    def moved_bytes(self) -> int:
        """Bytes that go from chip to chip; each crosses two DRAM ports."""
        return sum(move.size_bytes for move in self.moves)


def schedule(pieces: Sequence[PieceWork], target: Target) -> ChainSchedule:
    """The list schedule of pieces in the order of the chain."""
    return _Scheduler(target).run(pieces)


@dataclass
class _Scheduler:
    target: Target
    ready: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of each value that a piece made and each chip that has it, since when."""
    home: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each such value the chip that made it, and its bytes."""
    free: dict[int, int] = field(default_factory=dict)
    """Of each chip, when it has done its pieces so far."""
    mover_free: dict[int, int] = field(default_factory=dict)
    moves: list[ValueMove] = field(default_factory=list)
    crossings: list[ValueMove] = field(default_factory=list)
    hosted: list[tuple[int, int]] = field(default_factory=list)
    """When the host computes."""

    def run(self, pieces: Sequence[PieceWork]) -> ChainSchedule:
        times = []
        for piece in pieces:
            here = [self._arrival(name, piece.chip) for name in piece.inputs if name in self.home]
            if piece.chip == HOST:
                start = first_gap(self.hosted, max(here, default=0), piece.cycles)
                self.hosted.append((start, start + piece.cycles))
            else:
                start = max([self.free.get(piece.chip, 0), *here])
            stop = start + piece.cycles
            times.append((start, stop))
            if piece.chip != HOST:
                self.free[piece.chip] = stop
            for name, size_bytes in piece.outputs.items():
                self.home[name] = (piece.chip, size_bytes)
                self.ready[name, piece.chip] = stop
        return ChainSchedule(tuple(times), tuple(self.moves), tuple(self.crossings))

    def _arrival(self, name: str, chip: int) -> int:
        """When a value is in the DRAM of a chip, or in the host's memory; moved there if it was not."""
        source, size_bytes = self.home[name]
        if (name, chip) in self.ready:
            return self.ready[name, chip]
        if HOST in (source, chip):
            self._cross(name, source, chip)
        else:
            start = max(self.ready[name, source], self.mover_free.get(source, 0))
            dram = self.target.chip.dram
            link = link_engine(self.target, "chip")
            moved = transfer_cycles(self.target, link, dram, dram, size_bytes, size_bytes, size_bytes)
            stop = start + int(moved.engine)
            self.mover_free[source] = stop
            self.ready[name, chip] = stop + int(moved.latency)
            self.moves.append(ValueMove(name, size_bytes, source, chip, start, stop + int(moved.latency)))
        return self.ready[name, chip]

    def _cross(self, name: str, source: int, destination: int) -> None:
        """Over the host link; from where a value came to first, other chips get it from each other."""
        _, size_bytes = self.home[name]
        port_cycles = ceil_div(size_bytes, self.target.chip.dram.port_bytes_per_cycle)
        cycles = max(ceil_div(size_bytes, self.target.host_link_bytes_per_cycle), port_cycles)
        start = first_gap(((c.start, c.stop) for c in self.crossings), self.ready[name, source], cycles)
        self.crossings.append(
            ValueMove(name, size_bytes, source, destination, start, start + cycles, port_cycles)
        )
        self.ready[name, destination] = start + cycles
        if destination != HOST:
            self.home[name] = destination, size_bytes


def first_gap(taken: Iterable[tuple[int, int]], ready: int, cycles: int) -> int:
    """The first cycle from `ready` on from which nothing is taken for so long; `taken`: intervals [start, stop)."""
    for start, stop in sorted(taken):
        if ready + cycles <= start:
            break
        ready = max(ready, stop)
    return ready
