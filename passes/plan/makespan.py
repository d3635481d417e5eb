"""What units that follow each other take together: two resources, the DRAM stream and the chain of layers.

The DRAM stream brings weights ahead of the chain, by a few units (`model.AHEAD`) and as far as they find room in SRAM;
maps in DRAM come when they are made.  A unit begins when the one before is done and its maps are there, and ends when
its cores have done everything, but no sooner than a part of that (`model.LAST_PART`) behind the last of its weights.
Source: docs/techniques/machine.md, "Transfers" (chunks, latency); docs/optimal.md, "What is least".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target
from frustum.passes.plan.cost import CostParts
from frustum.passes.plan.model import AHEAD, LAST_PART, ROOM, ROOM_IN_CORES, START_CYCLES


@dataclass(frozen=True)
class UnitWork:
    """Cycles of a unit by itself: of its cores, of what clusters send each other behind them, of the DRAM port for
    weights, for maps that it loads and for maps that it stores; in so many passes over its tiles.  Bytes of a cluster's
    SRAM: in use while it runs, and of these what weights take that may come earlier.  `streams`: cycles in which its
    cores wait for weights that come while their layer computes."""

    work: int
    sends: int
    weights: int
    loads: int
    stores: int
    passes: int = 1
    used_bytes: int = 0
    early_bytes: int = 0
    streams: int = 0

    def with_sends(self, cycles: int) -> UnitWork:
        """The same where clusters send each other something for so many cycles."""
        return replace(self, sends=cycles)

    @property
    def is_held(self) -> bool:
        """Most of its weights stay in SRAM: what stays of streamed ones are a few numbers for each channel."""
        return self.early_bytes > self.weights


@dataclass(frozen=True)
class UnitTimes:
    """When a unit is done, and when the DRAM stream has brought all that it loads (`stream`); what each waited for
    last: (whether it is the stream, of which unit: -1, the start)."""

    chain: float
    stream: float
    chain_behind: tuple[bool, int]
    stream_behind: tuple[bool, int]


def times_of(units: Sequence[UnitWork], target: Target) -> list[UnitTimes]:
    """Of units that follow each other."""
    found: list[UnitTimes] = []
    starts = first_places(units, room_of(target))
    latency = target.chip.dram.latency_cycles

    def chain_of(k: int) -> float:
        return found[k].chain if k >= 0 else START_CYCLES

    for number, (unit, start) in enumerate(zip(units, starts, strict=True)):
        before = number - 1
        stream, stream_behind = (found[before].stream, (True, before)) if found else (0.0, (False, -1))
        moved = unit.weights + unit.loads
        if unit.weights and start > 0 and chain_of(start - 1) > stream:
            stream, stream_behind = chain_of(start - 1), (False, start - 1)
        early = unit.weights * unit.is_held
        if unit.loads and before >= 0 and chain_of(before) > stream + early:
            stream, stream_behind = chain_of(before) - early, (False, before)
        first = stream + latency
        stream += moved
        chain, chain_behind = chain_of(before) + unit.work + unit.streams, (False, before)
        late = 0.0
        if moved and unit.passes == 1:
            # All of a map comes before anything; of weights what the pieces need next.
            needed = unit.work if unit.loads else LAST_PART * unit.work
            late = stream + latency + needed * unit.is_held
            if unit.loads:
                late = max(late, first + unit.loads + unit.work)
        elif moved:
            # What stays comes before anything, of maps the first tiles; the last are made behind the last.
            at_first = first + early + unit.loads / unit.passes + unit.work
            late = max(at_first, stream + latency + unit.work / unit.passes)
        if late > chain:
            chain, chain_behind = late, (True, number)
        stored = unit.stores / unit.passes + latency if unit.stores else 0.0
        found.append(UnitTimes(chain + unit.sends + stored, stream, chain_behind, stream_behind))
    return found


def own_cycles(unit: UnitWork, target: Target) -> int:
    """Of a unit alone: as if all others took no time and its weights were there when it begins; or what it keeps the
    DRAM port busy, if that is longer."""
    latency, passes = target.chip.dram.latency_cycles, unit.passes
    first, last = (moved / passes + latency if moved else 0.0 for moved in (unit.loads, unit.stores))
    busy = unit.work + first
    if passes > 1 and unit.loads:  # what is loaded and stored meanwhile
        busy = max(busy, unit.loads + unit.stores + unit.work / passes + latency)
    return round(max(busy + unit.sends + last, unit.weights + unit.loads + unit.stores))


def room_of(target: Target) -> int:
    """Bytes of a cluster in which weights wait beside all else."""
    cluster = target.cluster
    in_cores = cluster.cores * cluster.core.wram.capacity_bytes
    return int(ROOM * cluster.sram.capacity_bytes + ROOM_IN_CORES * in_cores)


def first_places(units: Sequence[UnitWork], capacity_bytes: int) -> list[int]:
    """Of each unit the first one in whose time its weights may be loaded: as they find room beside all that is in SRAM
    since then."""
    used = [unit.used_bytes for unit in units]
    found = []
    for number, unit in enumerate(units):
        start = number
        while (
            unit.is_held
            and start > max(0, number - AHEAD)
            and used[start - 1] + unit.early_bytes <= capacity_bytes
        ):
            start -= 1
            used[start] += unit.early_bytes
        found.append(start)
    return found


def added_cycles(units: Sequence[UnitWork], target: Target) -> list[int]:
    """What each unit adds to the run: its share of the longest way from the end of the last unit back to the start."""
    times, added = times_of(units, target), [0.0] * len(units)
    is_stream, number = False, len(units) - 1
    while number >= 0:
        own = times[number]
        at = own.stream if is_stream else own.chain
        before_stream, before = own.stream_behind if is_stream else own.chain_behind
        behind = START_CYCLES if not before_stream else 0.0
        if before >= 0:
            behind = times[before].stream if before_stream else times[before].chain
        added[number] += at - behind
        is_stream, number = before_stream, before
    if units:
        added[0] += START_CYCLES
    return [round(cycles) for cycles in added]


def work_of_parts(parts: CostParts, target: Target) -> UnitWork:
    """The cycles of a unit's cost."""
    sizes = parts.weight_bytes, parts.loaded_bytes, parts.stored_bytes
    weights, loads, stores = (port_cycles(size, target) for size in sizes)
    own = parts.passes, parts.used_bytes, parts.early_bytes
    return UnitWork(parts.work_cycles, parts.send_cycles, weights, loads, stores, *own, parts.stream_cycles)


def port_cycles(size_bytes: int, target: Target) -> int:
    """Of the DRAM port for so many bytes in long runs: it serves whole chunks."""
    chunk, rate = target.transfers.chunk_bytes, target.chip.dram.port_bytes_per_cycle
    full, rest = divmod(size_bytes, chunk)
    return full * ceil_div(chunk, rate) + ceil_div(rest, rate)
