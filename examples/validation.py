"""Ten runs that can be redone with a pencil, as a page: `python examples/validation.py > docs/validation.md`.

Every case is a small network on the machine of `pencil.yaml`, with a *sheet*: all that the engines do, with bytes and
cycles written down from the rules of docs/targets.md ("What follows from the numbers") and of nothing else.  The page
shows the emulator's counts beside the sheet's; a test holds them to be equal.

What a sheet takes as given: the plan (which pieces move in which order, as `frustum inspect --disassemble` lists it),
and the sizes of the two pages of the program, which are those of the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from validation_sheets import SHEETS, Sheet

import frustum
from frustum.runtime.model.chain import DevicePiece
from frustum.runtime.model.execution import Ran, execute
from frustum.runtime.time.event_log import event_log

MACHINE = Path(__file__).with_name("pencil.yaml")
IN_ONE_PIECE = ",".join(
    (
        '=frustum-fuse-layers{cuts=""}',  # one unit
        "+before:frustum-tile-partition:frustum-tile-force-partition{tile=0,0,0,0 depth=1}",  # of one tile
        "-frustum-hoist-loads",
        "-frustum-lower-make-address-tables",
    )
)
"""Edits of the default pipeline that leave little to work out."""

HEAD = """# Ten runs that can be redone with a pencil

For whoever wants to know whether the emulator counts what [targets.md](targets.md) says. Written by `make docs`
(`examples/validation.py`); a test holds sheets and emulator to be equal.

A *sheet* has a line for every action of an engine. The left columns are worked out by hand from the rules of
[targets.md](targets.md#what-follows-from-the-numbers); the last one is what the emulator counted. `a.free` is the cycle
in which the engine of line `a` is free again, `a.there` that in which its effect is there. A line begins when the line
before it on the same engine is free, what it reads is there, and what it overwrites is done with.

The machine is [pencil.yaml](../examples/pencil.yaml): one core, 10 bytes in a cycle and 100 cycles of latency at DRAM,
100 bytes and 50 cycles everywhere on chip; 10 lines and 10 channels in the matrix unit, 2 cycles a step; 20 lanes, so
that 10 elements of f32 take a cycle and a pass; at least 10 bytes in a contiguous run. Given with each network are the
plan (one unit, one tile, no address tables; which pieces the core takes is told) and the sizes of the two pages of the
program. All numbers are f32: 4 bytes an element.
"""


@dataclass(frozen=True)
class Action:
    """What one engine does once: bytes that it moves (of a compute unit, operands and results), and cycles."""

    bytes: int
    begins: int
    """The engine is free, and what the action needs is there."""
    busy: int
    there: int
    """Its effect."""

    @property
    def free(self) -> int:
        return self.begins + self.busy


@dataclass(frozen=True)
class Counted:
    """What the emulator says of a run."""

    actions: Mapping[str, Sequence[Action]]
    """Of each engine, in order."""
    path: Sequence[tuple[str, int]]
    """The critical path: engines, and the numbers of their actions."""
    pages: Sequence[int]
    """Bytes of the pages of the program, given."""
    report: Mapping[str, Any]


# --- counted -----------------------------------------------------------------------------------------------


def model(sheet: Sheet) -> onnx.ModelProto:
    """The network of a sheet, in f32."""
    random, kind = np.random.default_rng(0), TensorProto.FLOAT
    inputs, outputs = (
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in values.items()]
        for values in (sheet.inputs, sheet.outputs)
    )
    weights = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
        for name, shape in sheet.weights.items()
    ]
    graph = helper.make_graph(list(sheet.nodes), sheet.name, inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def counted(sheet: Sheet) -> Counted:
    """The network compiled and run."""
    compiled = frustum.compile(model(sheet), MACHINE, compress_weights="none", pipeline=IN_ONE_PIECE)
    (piece,) = compiled.chain.pieces
    assert isinstance(piece, DevicePiece), "a case has no part on the host"
    ran = execute(piece.executable, {}, "timing")
    report = frustum.run(compiled, mode="timing").report
    return Counted(*_actions(ran), piece.executable.code.page_bytes, report)


def _actions(ran: Ran) -> tuple[dict[str, list[Action]], list[tuple[str, int]]]:
    """All that took time or moved bytes, and which of it the last effect waited for, back to the start."""
    assert ran.timeline is not None, "mode timing has a timeline"
    log = event_log(ran.timeline)
    found: dict[str, list[Action]] = {}
    place: dict[int, tuple[str, int]] = {}
    for entry in range(len(log)):
        waited = int(log.source_wait[entry] + log.destination_wait[entry])
        start, end, there = (int(column[entry]) for column in (log.start, log.end, log.done))
        if log.instructions[log.instruction[entry]] == "barrier" or not log.bytes[entry]:
            continue
        mine = found.setdefault(log.engines[log.engine[entry]].rpartition(".")[2], [])
        place[entry] = log.engines[log.engine[entry]].rpartition(".")[2], len(mine)
        assert waited == 0, "no two engines of a case want a port at once"
        mine.append(Action(int(log.bytes[entry]), start, end - start, there))
    path, entry = [], int(np.argmax(log.done))
    while entry >= 0:
        path += [place[entry]] if entry in place else []
        entry = int(log.held_by[entry])
    return found, path[::-1]


# --- by hand -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """An action of a sheet: what stands there, and what that comes to."""

    name: str
    engine: str
    texts: Sequence[str]
    """Bytes, begin, busy cycles, latency."""
    action: Action


def by_hand(sheet: Sheet, pages: Sequence[int]) -> list[Line]:
    """The lines of a sheet; `pages` are given."""
    known: dict[str, Any] = {"ceil": ceil, "max": max, "page_bytes": pages, "__builtins__": {}}
    lines = []
    for text in filter(None, sheet.lines.splitlines()):
        name, engine, *texts = (cell.strip() for cell in text.split("|"))
        size, begins, busy, latency = (int(eval(each, known)) for each in texts)
        action = Action(size, begins, busy, begins + busy + latency)
        known[name] = SimpleNamespace(free=action.free, there=action.there)
        lines.append(Line(name, engine, texts, action))
    return lines


def busy(lines: Sequence[Line]) -> dict[str, list[int]]:
    """The busy cycles of each engine, action by action."""
    found: dict[str, list[int]] = {}
    for line in lines:
        found.setdefault(line.engine, []).append(line.action.busy)
    return found


def dram_bytes(lines: Sequence[Line]) -> tuple[int, int]:
    """Bytes read and written at the DRAM port: fetches and loads, and stores."""
    sizes = [(line.action.bytes, line.name.startswith("store")) for line in lines if line.engine in ("fetch", "gdma")]
    return sum(size for size, is_store in sizes if not is_store), sum(size for size, is_store in sizes if is_store)


# --- as a page ---------------------------------------------------------------------------------------------


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(number, sheet) for number, sheet in enumerate(SHEETS, 1))])


def section(number: int, sheet: Sheet) -> str:
    """A sheet and the emulator's counts beside it."""
    found = counted(sheet)
    lines = by_hand(sheet, found.pages)
    queues = {engine: iter(actions) for engine, actions in found.actions.items()}
    rows = [
        "| step | engine | bytes | begins | busy | effect | emulator: bytes, begins, busy, effect |",
        "|---|---|---|---|---|---|---|",
        *(_row(line, next(queues[line.engine])) for line in lines),
    ]
    return "\n".join([f"## {number}. {sheet.name}", "", sheet.says, "", *rows, "", *_sums(sheet, lines, found), ""])


def _row(line: Line, counted: Action) -> str:
    size, begins, busy, latency = line.texts
    worked = [(size, line.action.bytes), (begins, line.action.begins), (busy, line.action.busy)]
    cells = [f"`{line.name}`", line.engine, *(_worked(text, value) for text, value in worked)]
    theirs = counted.bytes, counted.begins, counted.busy, counted.there
    cells += [f"+ {latency} = {line.action.there}", ", ".join(map(str, theirs))]
    return "| " + " | ".join(cells) + " |"


def _worked(text: str, value: int) -> str:
    return str(value) if text == str(value) else f"`{text}` = {value}"


def _sums(sheet: Sheet, lines: Sequence[Line], found: Counted) -> list[str]:
    dram, buffers = found.report["dram"], found.report["line_buffer"]
    read, written = dram_bytes(lines)
    engines = {name.rpartition(".")[2]: each["busy"] for name, each in found.report["engines"].items()}
    rows = [
        (f"{engine}, busy cycles", f"{' + '.join(map(str, cycles))} = {sum(cycles)}", engines[engine])
        for engine, cycles in busy(lines).items()
    ]
    if sheet.steps != "0":
        rows += [
            (f"matrix unit, {what}", f"`{text}` = {worth(text)}", buffers[key])
            for what, text, key in (("steps", sheet.steps, "compute_steps"), ("writes", sheet.writes, "writes"))
        ]
    rows += [
        ("DRAM, bytes read", str(read), dram["read_bytes"]),
        ("DRAM, bytes written", str(written), dram["write_bytes"]),
        (f"critical path: {', '.join(f'`{name}`' for name in sheet.path.split())}", str(end(lines)),
         found.report["cycles"]["total"]),
    ]  # fmt: skip
    table = [f"| {what} | {hand} | {emulator} |" for what, hand, emulator in rows]
    return ["| sum | by hand | emulator |", "|---|---|---|", *table]


def worth(text: str) -> int:
    """What an expression of numbers comes to."""
    return int(eval(text, {"__builtins__": {}}))


def end(lines: Sequence[Line]) -> int:
    """When the last effect is there."""
    return max(line.action.there for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
