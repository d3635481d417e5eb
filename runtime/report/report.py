"""The report of a run: schema 1 of `--report`, and what `terminal.py` prints from it.

A report is built from what counted and what timed each sub-graph's run, and from what the compiler wrote into the
manifest.  Parts that do not exist in a run are null: `cycles` and `engines` without a timeline, `check` when
nothing was compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from frustum.dialects.isa.program import MEMORIES, instructions
from frustum.dialects.target import Target
from frustum.dialects.target.durations import byte_energy_pj
from frustum.runtime.report import bound as bound_of
from frustum.runtime.report import counters
from frustum.runtime.report.compulsory import NetworkFacts, network_facts
from frustum.runtime.report.dram_bound import dram_bound
from frustum.runtime.report.figures import Report
from frustum.runtime.report.flows import added, listed
from frustum.runtime.report.layer_by_layer import layer_by_layer
from frustum.runtime.report.units import (
    SubgraphRun,
    UnitInfo,
    nram_operands,
    through_dram,
    unit_figures,
)
from frustum.runtime.report.waiting import by_sentence, waiting

SCHEMA = 1
ON_CHIP = MEMORIES[1:]
WITHOUT_DEVICE: dict[str, int | float | None] = {
    "roofline": 0.0, "ratio": None, "bound": None, "bound_by": None, "bound_terms": None, "address": 0,
    "address_without_tables": 0,
}  # fmt: skip
"""Of the cycles of a run that is wholly on the host."""
WEIGHT_SUMS = ("raw_bytes", "stored_bytes", "compressed_tensors", "packed_tensors", "shared_tensors")
WEIGHT_LOADS = ("raw_loads", "expanded_loads")
LINE_BUFFER = {
    "writes": "line_writes", "writes_split": "line_writes_split", "compute_steps": "compute_steps",
    "discarded": "discarded_windows",
}  # fmt: skip
"""What the report calls counters of the line buffers."""


@dataclass(frozen=True)
class LayerInfo:
    """What the manifest says of a layer; `where` is `device` or `host`."""

    name: str
    op: str
    unit: str | None = None
    where: str = "device"
    reason: str = ""
    """Why it is on the host."""
    nodes: tuple[str, ...] = ()
    """The model's nodes that it stands for, where that is not one of its own name."""
    cycles: int | None = 0
    """What it takes there; None where nothing was timed."""


@dataclass(frozen=True)
class Check:
    """How far the outputs are from the reference's, relative to its largest magnitude: the worst, and each by name."""

    max_abs_error: float | None
    max_rel_error: float | None
    """None where nothing was compared, as for the other."""
    reference: str
    outputs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of each output `max_abs_error` and `max_rel_error`."""
    nan_in_both: int = 0
    """Of the `numbers` of all outputs; they agree, but say nothing."""
    numbers: int = 0
    why: str = ""
    """Why it is not onnxruntime alone that the outputs are compared with."""
    not_compared: Sequence[str] = ()
    """Outputs that the host alone computed."""


@dataclass(frozen=True)
class SplitRun:
    """What running in several sub-graphs costs and saves."""

    total_cycles: int
    """From the start of the first to the end of the last, moves between chips included."""
    moved_bytes: int
    """From the DRAM of one chip to that of another: each crosses two ports."""
    unsplit_peak_bytes: Mapping[str, int] | None
    """Of each memory on chip the peak of the network in one piece; None where that does not fit, or nobody knows."""


@dataclass(frozen=True)
class HostedPiece:
    """A piece of the model: its name, its kind (`device`, `host`), and when it runs, in cycles."""

    name: str
    where: str
    start_cycle: int
    stop_cycle: int


@dataclass(frozen=True)
class HostRun:
    """What the host did besides feeding the device."""

    mode: str
    """never, auto, only"""
    pieces: Sequence[HostedPiece]
    """In order."""
    to_host_bytes: int
    """Over the host link during the run, from the device's DRAM; what the host reads after the run is not in it."""
    from_host_bytes: int
    """Over the host link during the run; what the host writes before the run is not in it."""
    link_cycles: int | None
    """How long the link is busy; None where nothing was timed."""
    port_cycles: int | None
    """How long the DRAM port is held meanwhile."""
    seconds: float
    macs: int = 0
    bytes: int = 0
    """What the host's layers read and write."""


    @property
    def cycles(self) -> int | None:
        """Of its pieces together; None where nothing was timed."""
        own = (piece.stop_cycle - piece.start_cycle for piece in self.pieces if piece.where == "host")
        return None if self.link_cycles is None else sum(own)


@dataclass(frozen=True)
class Seconds:
    """Wall time of the parts of the job, and of the passes of the compiler."""

    import_: float | None = None
    compile: float | None = None
    emulate: float | None = None
    passes: Mapping[str, float] = field(default_factory=dict)
    calibrate: float | None = None
    """Of the compiling, what the calibration took."""
    loops: float | None = None
    """Making the machine code of loops, or loading it; in none of the others."""
    cached: bool = False
    """Whether it was compiled before, and `compile` is what reading that took."""


def make_report(
    model: str, target: Target, dtype: str, policy: str, runs: Sequence[SubgraphRun], *,
    layers: Sequence[LayerInfo] = (), units: Sequence[UnitInfo] = (), check: Check | None = None,
    seconds: Seconds | None = None, host: HostRun | None = None, splitting: SplitRun | None = None,
) -> Report:  # fmt: skip
    """The report of a job whose sub-graphs ran one after the other, or as `splitting` says."""
    splitting = splitting or _one_after_the_other(runs)
    to_host, from_host = (host.to_host_bytes, host.from_host_bytes) if host else (0, 0)
    # at DRAM ports beside those of the programs: from chip to chip (at both ports), to and from the host
    passing = splitting.moved_bytes + to_host, splitting.moved_bytes + from_host
    facts, peaks, uncut = (
        network_facts(runs),
        [run.counters.peak_bytes for run in runs],
        splitting.unsplit_peak_bytes,
    )
    inside = nram_operands(runs)
    data = {
        "schema": SCHEMA, "model": model, "target": target.name, "dtype": dtype, "policy": policy,
        "clock_hz": target.clock_hz,
        "dram": _dram(runs, target, facts, *passing),
        "cycles": _cycles(runs, target, facts, splitting.total_cycles, host),
        "macs": {
            "useful": sum(facts.useful_macs(_total(runs, "useful_macs")).values()),
            "recomputed": _total(runs, "recomputed_macs"),
            "executed": sum(int(run.counters.layer_macs.sum()) for run in runs),
        },
        "engines": _engines(runs, splitting.total_cycles),
        "flows": listed(added(run.counters.flows for run in runs)),
        "sram": _sram(runs),
        "nram_operand_share": inside["reading"] / inside["following"] if inside and inside["following"] else None,
        "nram_operands": inside,
        "peak_bytes": {name: max((peak[name] for peak in peaks), default=0) for name in ON_CHIP},
        "waiting": _waiting(runs, splitting.total_cycles),
        "energy_pj": _energy(runs, target, sum(passing)),
        "line_buffer": {name: _total(runs, counter) for name, counter in LINE_BUFFER.items()},
        "address_cache": {
            name: sum(run.counters.address_cache[name] for run in runs) for name in ("tables", "loads", "evictions")
        },
        "alternatives": _alternatives(runs),
        "layers": _layers(runs, layers),
        "units": unit_figures(runs, units, target),
        "subgraphs": [_subgraph(run) for run in runs],
        "unsplit_peak_bytes": None if uncut is None else {name: uncut[name] for name in ON_CHIP},
        "moved_between_chips_bytes": splitting.moved_bytes,
        "host": _host(host, layers, target),
        "check": asdict(check) if check else None,
        "seconds": _seconds(seconds or Seconds()),
    }  # fmt: skip
    return Report(data)


def _total(runs: Sequence[SubgraphRun], counter: str) -> int:
    return sum(getattr(run.counters, counter) for run in runs)


def _subgraph(run: SubgraphRun) -> dict[str, Any]:
    cycles = None if run.timeline is None else run.timeline.total_cycles
    return {
        "name": run.name,
        "executable_bytes": run.executable_bytes,
        "peak_sram_bytes": run.counters.peak_bytes["sram"],
        "chip": run.chip,
        "cycles": cycles,
        "start_cycle": None if cycles is None else run.start_cycle,
        "stop_cycle": None if cycles is None else run.start_cycle + cycles,
        "outputs": list(run.handed),
    }


def _alternatives(runs: Sequence[SubgraphRun]) -> dict[str, dict[str, int | bool]] | None:
    """What plans for time, bytes and energy were predicted to take, summed; None where some run does not say."""
    said = [run.alternatives for run in runs if run.alternatives is not None]
    if not said or len(said) < len(runs):
        return None
    return {
        name: {**{figure: sum(int(each[name][figure]) for each in said) for figure in figures}, "predicted": True}
        for name, figures in said[0].items()
    }


def _sram(runs: Sequence[SubgraphRun]) -> dict[str, int]:
    """Bytes at the ports of all SRAMs."""
    flows = added(run.counters.flows for run in runs)
    return {
        "read_bytes": sum(flow.read_bytes for (_, source, _), flow in flows.items() if source == "sram"),
        "write_bytes": sum(flow.written_bytes for (_, _, target), flow in flows.items() if target == "sram"),
    }


def _one_after_the_other(runs: Sequence[SubgraphRun]) -> SplitRun:
    cycles = sum(run.timeline.total_cycles for run in runs if run.timeline is not None)
    return SplitRun(cycles, 0, dict(runs[0].counters.peak_bytes) if len(runs) == 1 else None)


def _dram(
    runs: Sequence[SubgraphRun], target: Target, facts: NetworkFacts, passing_out: int, passing_in: int
) -> dict[str, Any]:
    """Sums over sub-graphs and chips."""
    read = _total(runs, "dram_read_bytes") + passing_out
    write = _total(runs, "dram_write_bytes") + passing_in
    by_class = {
        name: sum(run.counters.dram_bytes_by_class[name] for run in runs) for name in counters.CLASSES
    }
    by_class["intermediate"] += passing_out + passing_in
    compulsory, stored = facts.compulsory_bytes, facts.stored_bytes
    moved = read + write - by_class["other"]
    return {
        "read_bytes": read,
        "write_bytes": write,
        "total_bytes": read + write,
        **{f"{name}_bytes": size for name, size in by_class.items()},
        "compulsory_bytes": compulsory,
        "ratio": moved / compulsory if compulsory else None,
        "total_ratio": (read + write) / compulsory if compulsory else None,
        "compressed_compulsory_bytes": stored,
        "ratio_to_compressed": moved / stored if stored else None,
        **_dram_bound(target, facts),
        **_layer_by_layer(runs, facts),
        "through_dram": through_dram(runs),
    }


def _layer_by_layer(runs: Sequence[SubgraphRun], facts: NetworkFacts) -> dict[str, int | None]:
    """What moves where no map stays on chip, how many maps there are, and how many of them are in DRAM now."""
    if facts.networks is None:
        return {"layer_by_layer_bytes": None, "maps": None, "maps_in_dram": None}
    found = layer_by_layer(facts.compulsory_bytes, facts.networks)
    stored = sum(len(run.program.externals_of("intermediate")) for run in runs)
    return {"layer_by_layer_bytes": found.bytes, "maps": found.maps, "maps_in_dram": min(stored, found.maps)}


def _dram_bound(target: Target, facts: NetworkFacts) -> dict[str, Any]:
    """The bound and its argument.  Null where a piece does not tell what its network asks."""
    if facts.networks is None:
        return {"bound_bytes": None, "bound_by": None}
    stored, memory = facts.stored_bytes, bound_of.on_chip_bytes(target)
    passed = facts.given | facts.handed
    found = dram_bound(memory, stored, facts.networks, passed, is_compressed=stored != facts.compulsory_bytes)
    return {"bound_bytes": found.bytes, "bound_by": found.by}


def _cycles(
    runs: Sequence[SubgraphRun], target: Target, facts: NetworkFacts, total: int, host: HostRun | None
) -> dict[str, int | float | None] | None:
    """Null where something was not timed.  The host's time is part of the total, and of no bound."""
    if host is not None and not runs:
        return None if host.cycles is None else {"total": total} | WITHOUT_DEVICE
    timelines = [run.timeline for run in runs if run.timeline is not None]
    if not runs or len(timelines) < len(runs):
        return None
    macs = facts.useful_macs(_total(runs, "useful_macs"))
    roofline = counters.roofline_cycles(target, macs, runs[0].program.dtype, facts.stored_bytes)
    return {
        "total": total,
        "roofline": roofline,
        "ratio": total / roofline if roofline else None,
        **_bound(target, facts, roofline),
        "address": _total(runs, "address_cycles"),
        "address_without_tables": _total(runs, "address_cycles_without_tables"),
    }


def _bound(target: Target, facts: NetworkFacts, roofline: float) -> dict[str, Any]:
    """The bound, the term that binds, and all terms; null where a piece does not tell what its network asks."""
    if facts.networks is None:
        return {"bound": None, "bound_by": None, "bound_terms": None}
    layers = bound_of.layers_of(facts.networks)
    found = bound_of.bound(target, facts.stored_bytes, layers, facts.weight_bytes, roofline)
    return {"bound": found.cycles, "bound_by": found.by, "bound_terms": found.terms}


def _engines(runs: Sequence[SubgraphRun], total_cycles: int) -> dict[str, dict[str, int]] | None:
    """Those of the same name on all chips together.  Whoever is neither busy nor stalled is idle: also while another
    chip runs, or a value is on its way between chips or to the host."""
    if not runs or any(run.timeline is None for run in runs):
        return None
    totals: dict[str, dict[str, int]] = {}
    for run in runs:
        assert run.timeline is not None
        times = run.timeline.times
        columns = times.busy, times.stalled, run.timeline.engine_bytes
        for name, *figures in zip(run.timeline.engines, *(each.tolist() for each in columns), strict=True):
            total = totals.setdefault(str(name), {"busy": 0, "stalled": 0, "idle": 0, "bytes": 0})
            for key, figure in zip(("busy", "stalled", "bytes"), figures, strict=True):
                total[key] += figure
    chips = len({run.chip for run in runs})
    for total in totals.values():
        total["idle"] = chips * total_cycles - total["busy"] - total["stalled"]
    return totals


def _waiting(runs: Sequence[SubgraphRun], total_cycles: int) -> list[dict[str, Any]] | None:
    """The critical path of all pieces in words; null where something was not timed."""
    timelines = [run.timeline for run in runs if run.timeline is not None]
    if not runs or len(timelines) < len(runs):
        return None
    return by_sentence((each for timeline in timelines for each in waiting(timeline)), total_cycles)


def _host(host: HostRun | None, layers: Sequence[LayerInfo], target: Target) -> dict[str, Any] | None:
    """What fell back to the host, why, and what it cost; null where nobody asked."""
    if host is None:
        return None
    moved = host.to_host_bytes + host.from_host_bytes
    over_the_link = ("to_host_bytes", "from_host_bytes", "link_cycles", "port_cycles")
    untimed = {"start_cycle": None, "stop_cycle": None} if host.link_cycles is None else {}
    return {
        "mode": host.mode,
        "cycles": host.cycles,
        "macs": host.macs,
        "bytes": host.bytes,
        "moved_bytes": moved,
        **{name: getattr(host, name) for name in over_the_link},
        "dram_energy_pj": float(byte_energy_pj(target.memory("dram"), moved)),
        "seconds": host.seconds,
        "pieces": [vars(piece) | untimed for piece in host.pieces],
        "layers": [
            {"name": each.name, "op": each.op, "reason": each.reason}
            for each in layers
            if each.where == "host"
        ],
    }


def _energy(runs: Sequence[SubgraphRun], target: Target, passing_bytes: int) -> dict[str, float]:
    total: dict[str, float] = {"total": 0.0}
    for run in runs:
        for name, energy in run.counters.energy_pj.items():
            total[name] = total.get(name, 0.0) + energy
    if passing_bytes:
        moved = float(byte_energy_pj(target.memory("dram"), passing_bytes))
        total["dram"] = total.get("dram", 0.0) + moved
        total["total"] += moved
    return total


def _layers(runs: Sequence[SubgraphRun], infos: Sequence[LayerInfo]) -> list[dict[str, Any]]:
    """In the manifest's order, then what only a program knows."""
    cycles: dict[str, int | None] = {}
    dram_bytes: dict[str, int] = {}
    for run in runs:
        names = run.program.layers
        layer_cycles = np.zeros(len(names), np.int64) if run.timeline is None else run.timeline.layer_cycles
        for number, name in enumerate(names):
            before = cycles.get(name) or 0
            cycles[name] = None if run.timeline is None else before + int(layer_cycles[number])
            dram_bytes[name] = dram_bytes.get(name, 0) + int(run.counters.layer_dram_bytes[number])
    known: dict[str, LayerInfo] = {}
    for info in infos:  # steps of one layer have one name
        first = known.setdefault(info.name, info)
        known[info.name] = replace(first, nodes=tuple(dict.fromkeys((*first.nodes, *info.nodes))))
    for name, unit in _units_of_layers(runs).items():
        known.setdefault(name, LayerInfo(name, "", unit))
    return [
        {
            "name": name, "op": info.op, "unit": info.unit, "where": info.where,
            "cycles": cycles.get(name, info.cycles), "dram_bytes": dram_bytes.get(name, 0),
            **({"nodes": list(info.nodes)} if info.nodes else {}),
        }
        for name, info in known.items()
    ]  # fmt: skip


def _units_of_layers(runs: Sequence[SubgraphRun]) -> dict[str, str | None]:
    """The layers of the programs, each with the unit that its first instruction names."""
    found: dict[str, str | None] = {}
    for run in runs:
        names = dict(enumerate(run.program.units))
        units = {each.layer: each.unit for each in reversed(list(instructions(run.program.body)))}
        found |= {name: names.get(units.get(number, -1)) for number, name in enumerate(run.program.layers)}
    return found


def _seconds(seconds: Seconds) -> dict[str, Any]:
    parts = {name: getattr(seconds, name) for name in ("compile", "emulate", "calibrate", "loops")}
    return {"import": seconds.import_, **parts, "passes": dict(seconds.passes), "cached": seconds.cached}


def weights_held(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`weights` of all executables together, as the compiler noted them in the manifests; empty where it did not.

    `raw_bytes` are those of the tensors, `stored_bytes` those in DRAM; `raw_loads` counts by reason what stays raw, and
    `expanded_loads` what the model has as integers with scales and is loaded as numbers.
    """
    noted = [manifest["options"]["weights"] for manifest in manifests if "weights" in manifest["options"]]
    if not noted:
        return {}
    loads: dict[str, Counter[str]] = {name: Counter() for name in WEIGHT_LOADS}
    for each in noted:
        for name, reasons in loads.items():
            reasons.update(each.get(name, {}))
    sums = {name: sum(each.get(name, 0) for each in noted) for name in WEIGHT_SUMS}
    by_reason = {name: dict(sorted(reasons.items())) for name, reasons in loads.items()}
    return {"weights": {"codec": noted[0]["codec"], **sums, **by_reason}}
