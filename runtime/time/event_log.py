"""The log of a run: what every engine did, when, for whom, and what held it up.

It is the one source of whatever shows a run: the terminal's waits, the report's page, traces.  A log is made from the
tables of the simulation, so it costs nothing where nobody asks for it; it holds columns of numbers, not objects, and
stays as compact when it is saved.

Source: docs/report.md, "Waits"; what holds up an operation is `critical_path.Causes`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.form import Ints
from frustum.runtime.time.critical_path import NOBODY, REASONS
from frustum.runtime.time.timeline import Timeline

SCHEMA = 1
COLUMNS = (
    "engine", "start", "end", "done", "instruction", "layer", "unit", "tile", "bytes", "source_wait",
    "destination_wait", "held_by", "why",
)  # fmt: skip


class LogError(ValueError):
    """A file that is no event log; names the file and what was found."""


@dataclass(frozen=True, eq=False)
class EventLog:
    """One run of one executable: an entry in each column for every execution of an instruction that took time, moved
    bytes, or held up another one; engine by engine, in the order of time.

    Times are in cycles from the start of the run: the engine begins at `start` and is free again at `end`; the effect
    is there at `done`.  `layer`, `unit` and `instruction` are numbers into `layers`, `units` and `instructions` (-1:
    the fetch of the code at the start); `tile` is the number of the pass through the loops around the instruction,
    the innermost fastest.  `bytes`: of a transfer what it moves, of a compute unit its operands and results.
    `source_wait`, `destination_wait`: cycles between start and end in which a transfer waited for a port.  `held_by`
    is the entry that it waited for last (-1: none), and `why` one of `REASONS`.
    """

    total_cycles: int
    clock_hz: int
    engines: tuple[str, ...]
    layers: tuple[str, ...]
    units: tuple[str, ...]
    instructions: tuple[str, ...]
    """What each instruction of the program does, in the words of docs/ir-isa.md."""
    engine: Ints
    start: Ints
    end: Ints
    done: Ints
    instruction: Ints
    layer: Ints
    unit: Ints
    tile: Ints
    bytes: Ints
    source_wait: Ints
    destination_wait: Ints
    held_by: Ints
    why: Ints

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def idle_before(self) -> Ints:
        """Cycles between the end of the entry before on the same engine, or the start of the run, and the start."""
        before = np.append(0, self.end[:-1])
        before[np.flatnonzero(np.diff(self.engine)) + 1] = 0
        return self.start - before

    def save(self, path: Path | str) -> None:
        """Write the log as compressed columns (a zip of .npy files); an `OSError` leaves nothing half-written."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        try:
            with part.open("wb") as file:
                np.savez_compressed(file, **self._columns())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def _columns(self) -> dict[str, Any]:
        """What a file has: the columns, and all else as JSON in one more."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in COLUMNS}
        about = np.array(json.dumps({"schema": SCHEMA, **own}))
        return {"about": about, **{name: _narrow(getattr(self, name)) for name in COLUMNS}}


def load(path: Path | str) -> EventLog:
    """A saved log; `LogError` if the file is none, `OSError` if it cannot be read."""
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            about: dict[str, Any] = json.loads(str(file["about"]))
            if about.pop("schema") != SCHEMA:
                raise LogError(f"{path}: an event log of another version, expected {SCHEMA}")
            columns = {name: file[name].astype(np.int64) for name in COLUMNS}
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        raise error if isinstance(error, LogError) else LogError(f"{path}: not an event log") from None
    names = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    values: dict[str, Any] = names | columns
    return EventLog(**values)


def event_log(timeline: Timeline) -> EventLog:
    """The log of a timed run."""
    times, queues, expanded = timeline.times, timeline.queues, timeline.expanded
    facts = np.array([(each.layer, each.unit) for each in expanded.instructions] + [(-1, -1)], np.int64)
    moved = timeline.cell_bytes[queues.cell]
    found = timeline.causes
    kept = (times.completion > times.start) | (moved > 0)
    kept[found.operation[found.operation >= 0]] = True
    place = np.append(np.cumsum(kept) - 1, NOBODY)
    return EventLog(
        total_cycles=times.total,
        clock_hz=timeline.machine.target.clock_hz,
        engines=tuple(map(str, timeline.engines)),
        layers=tuple(expanded.program.layers),
        units=tuple(expanded.program.units),
        instructions=tuple(each.NAME for each in expanded.instructions),
        engine=queues.engine[kept],
        start=times.start[kept],
        end=times.end[kept],
        done=times.completion[kept],
        instruction=queues.static[kept],
        layer=facts[queues.static[kept], 0],
        unit=facts[queues.static[kept], 1],
        tile=_passes(expanded)[queues.row[kept]],
        bytes=moved[kept],
        source_wait=times.waited[kept, 0],
        destination_wait=times.waited[kept, 1],
        held_by=place[found.operation[kept]],
        why=found.reason[kept],
    )


def reason(number: int) -> str:
    """In words what `why` says; "" where nothing held it up."""
    return REASONS[number] if number >= 0 else ""


def _passes(expanded: Expanded) -> Ints:
    """Of each row of both tables, and of the start behind them, the number of the pass through its loops."""
    static = np.concatenate([expanded.core.static, expanded.cluster.static])
    index = np.concatenate([expanded.core.index, expanded.cluster.index])
    counts = np.zeros((len(expanded.instructions), index.shape[1]), np.int64)
    np.maximum.at(counts, static, index + 1)
    number = np.zeros(len(static) + 1, np.int64)
    for level in range(index.shape[1]):
        number[:-1] = number[:-1] * counts[static, level] + index[:, level]
    return number


def _narrow(column: Ints) -> NDArray[Any]:
    """The same numbers in the smallest type that holds them."""
    least, most = int(column.min(initial=0)), int(column.max(initial=0))
    kinds = (np.int8, np.int16, np.int32, np.int64)
    return column.astype(next(kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max))
