"""A run as a trace for Perfetto (https://ui.perfetto.dev): TrackEvent protobuf.

Tracks stand in a tree: piece of the model, cluster, core, engine.  A slice is one execution of an instruction, named by
its layer; its arguments say unit, tile, bytes, and what held it up.  Counters show the bytes in use of each memory on
chip, and the bytes that cross the DRAM ports.  Arrows go from the load of data to what computes with them and on to
their store.  One cycle is one nanosecond of the trace.

The package `perfetto` (Apache-2.0; 1.9 MB, 0.1 s to import) is needed for it alone: `pip install frustum[trace]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frustum.runtime.show.residence import residences
from frustum.runtime.time.critical_path import REASONS
from frustum.runtime.time.event_log import EventLog, event_log
from frustum.runtime.time.timeline import Timeline

SEQUENCE = 1
"""All packets are of one writer."""
CLEARED, NEEDS_NAMES = 1, 2
"""Flags of a packet: names begin anew; it refers to names that were said before."""
RESULT = REASONS.index("result")
MOST_SAMPLES = 2000
"""Of a counter."""
EXPLICIT = 3
"""Tracks below one another in the order of their ranks."""


def trace_bytes(pieces: Sequence[tuple[str, int, Timeline]]) -> bytes:
    """The bytes of the trace of a run of pieces: their names, when they start in cycles, what they did.

    Needs the package `perfetto`.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    writer = _TraceWriter(Trace())
    for name, start, timeline in pieces:
        _PieceTrace(writer, name, start, timeline).write()
    data: bytes = writer.trace.SerializeToString()
    return data


@dataclass
class _TraceWriter:
    """A trace while it is written: numbers of tracks, flows and names."""

    trace: Any
    tracks: int = 0
    flows: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def packet(self, time: int | None = None) -> Any:
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = SEQUENCE
        if len(self.trace.packet) == 1:
            packet.sequence_flags = CLEARED
        if time is not None:
            packet.timestamp = time
        return packet

    def track(self, name: str, parent: int | None = None, rank: int = 0, unit: str | None = None) -> int:
        """A new track; with a `unit` it is a counter."""
        self.tracks += 1
        descriptor = self.packet().track_descriptor
        descriptor.uuid, descriptor.name = self.tracks, name
        if parent is not None:
            descriptor.parent_uuid = parent
            descriptor.sibling_order_rank = rank
        if unit is None:
            descriptor.child_ordering = EXPLICIT
        else:
            descriptor.counter.unit_name = unit
        return self.tracks

    def name(self, packet: Any, text: str) -> int:
        """The number of a name, which the packet says where it is new."""
        packet.sequence_flags |= NEEDS_NAMES
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            said = packet.interned_data.event_names.add()
            said.iid, said.name = self.names[text], text
        return self.names[text]

    def count(self, track: int, samples: Iterable[tuple[int, int]]) -> None:
        for time, value in samples:
            event = self.packet(time).track_event
            event.type, event.track_uuid, event.counter_value = COUNTER, track, value


BEGIN, END, COUNTER = 1, 2, 4
"""Types of events: a slice begins, it ends, a counter has a value."""


@dataclass
class _PieceTrace:
    """One piece of the model while its part of the trace is written."""

    writer: _TraceWriter
    name: str
    start: int
    timeline: Timeline

    def write(self) -> None:
        log = event_log(self.timeline)
        root = self.writer.track(self.name)
        engines = self.engine_tracks(log, root)
        self.write_slices(log, engines, _flows(log))
        self.write_memories(root, len(engines))
        dram = self.writer.track("DRAM bytes per cycle", root, len(engines) + 1, "B/cycle")
        self.writer.count(dram, self.later(_bandwidth(log)))

    def later(self, samples: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        return ((time + self.start, value) for time, value in samples)

    def engine_tracks(self, log: EventLog, root: int) -> list[int]:
        """The track of each engine, below those of its cluster and core."""
        above: dict[tuple[str, ...], int] = {(): root}
        found = []
        for number, name in enumerate(log.engines):
            *places, kind = name.split(".")
            for depth in range(1, len(places) + 1):
                key = tuple(places[:depth])
                if key not in above:
                    above[key] = self.writer.track(key[-1], above[key[:-1]], number)
            found.append(self.writer.track(kind, above[tuple(places)], number))
        return found

    def write_slices(self, log: EventLog, engines: Sequence[int], flows: dict[int, list[tuple[int, bool]]]) -> None:
        works = np.flatnonzero((log.end > log.start) & ~_are_barriers(log))
        names = [*log.layers, "code"]
        units = [*log.units, ""]
        columns = [
            each[works].tolist()
            for each in (log.engine, log.start, log.end, log.layer, log.unit, log.tile, log.bytes, log.held_by, log.why,
                         log.instruction)
        ]  # fmt: skip
        holders = log.layer.tolist()
        instructions = [*log.instructions, "fetch"]
        for entry, engine, start, end, layer, unit, tile, size, held, why, number in zip(
            works.tolist(), *columns, strict=True
        ):
            packet = self.writer.packet(start + self.start)
            event = packet.track_event
            event.type, event.track_uuid = BEGIN, engines[engine]
            event.name_iid = self.writer.name(packet, names[layer])
            for key, value in (("tile", tile), ("bytes", size)):
                said = event.debug_annotations.add()
                said.name, said.int_value = key, value
            waits = f"{REASONS[why]} of {names[holders[held]]}" if held >= 0 else "nothing"
            for key, text in (("unit", units[unit]), ("does", instructions[number]), ("held up by", waits)):
                said = event.debug_annotations.add()
                said.name, said.string_value = key, text
            for flow, is_end in flows.get(entry, ()):
                (event.terminating_flow_ids if is_end else event.flow_ids).append(flow + self.writer.flows)
            event = self.writer.packet(end + self.start).track_event
            event.type, event.track_uuid = END, engines[engine]
        self.writer.flows += len(log)

    def write_memories(self, root: int, rank: int) -> None:
        """Of each memory on chip the bytes that are in use; where a buffer is written while the last reader of the one
        before it finishes, both are."""
        changes: dict[str, list[tuple[int, int]]] = {}
        for each in residences(self.timeline):
            size = each.end - each.address
            changes.setdefault(each.memory, []).extend([(each.start, size), (each.stop, -size)])
        for number, (memory, found) in enumerate(sorted(changes.items())):
            track = self.writer.track(f"{memory.upper()} in use", root, rank + 2 + number, "B")
            times, steps = np.array(sorted(found), np.int64).T
            self.writer.count(track, self.later(_thinned(times, np.cumsum(steps))))


def _are_barriers(log: EventLog) -> Any:
    kinds = np.array([each == "barrier" for each in log.instructions] + [False], bool)
    return kinds[log.instruction]


def _flows(log: EventLog) -> dict[int, list[tuple[int, bool]]]:
    """Of each entry the arrows that begin and end at it: from what it waited for last, where that was data."""
    drawn = np.append((log.end > log.start) & ~_are_barriers(log), False)
    ends = np.flatnonzero((log.why == RESULT) & drawn[:-1] & drawn[log.held_by])
    found: dict[int, list[tuple[int, bool]]] = {}
    for number, (end, start) in enumerate(zip(ends.tolist(), log.held_by[ends].tolist(), strict=True), 1):
        found.setdefault(start, []).append((number, False))
        found.setdefault(end, []).append((number, True))
    return found


def _bandwidth(log: EventLog) -> list[tuple[int, int]]:
    """Mean bytes per cycle between DRAM and the chip, in equal stretches of the run."""
    if not log.total_cycles:
        return []
    bins = min(MOST_SAMPLES, log.total_cycles)
    moves = np.array([name.rpartition(".")[2] in ("gdma", "fetch", "iodma") for name in log.engines])[log.engine]
    at = np.minimum((log.end[moves] * bins) // max(1, log.total_cycles), bins - 1)
    moved = np.bincount(at, log.bytes[moves], bins)
    edges = np.arange(bins) * log.total_cycles // bins
    return list(zip(edges.tolist(), np.rint(moved * bins / log.total_cycles).astype(int).tolist(), strict=True))


def _thinned(times: Any, values: Any) -> Iterator[tuple[int, int]]:
    """The last value of each cycle; of many the largest of each stretch."""
    last = np.append(np.diff(times) > 0, True)
    times, values = times[last], values[last]
    for some, found in zip(
        np.array_split(times, MOST_SAMPLES) if len(times) > MOST_SAMPLES else times[:, None],
        np.array_split(values, MOST_SAMPLES) if len(times) > MOST_SAMPLES else values[:, None],
        strict=True,
    ):
        yield int(some[0]), int(found.max())
