"""`frustum run --check=layers`: every layer against onnxruntime, and who was wrong.

Each piece of the device runs twice on the machine, with its layers accumulated and isolated (`layer_errors.py`); its
accesses are checked for order and its code is decoded.  Where anything is wrong, `find_pass.py` names who did it, and
the module before that pass is written with the line that shows it.  A machine that stops, at damaged weights or at an
address outside a memory, is a fault of the instruction at which it does; layers before it are compared.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.pipeline import STOPS, Run, stop_of
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.weights import write_module
from frustum.runtime.check.observe import writer_of
from frustum.runtime.check.plain import Execution, plain_value
from frustum.runtime.failures import Differs
from frustum.runtime.host.agreement import changed_batch
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.host.layer_values import OracleValues
from frustum.runtime.host.oracle import TOLERANCES
from frustum.runtime.kernels import Array
from frustum.runtime.machine import Machine
from frustum.runtime.model.build import count_run
from frustum.runtime.model.chain import DevicePiece, checked_values
from frustum.runtime.model.sources import Job, Uncompiled
from frustum.runtime.tools.find_pass import IMPORT, Culprit, find_pass, machine_of, wrong_in_code
from frustum.runtime.tools.layer_errors import (
    Error,
    Errors,
    Key,
    WantedValue,
    errors_of_machine,
    errors_of_module,
    wanted_of,
    who_wrote,
)  # fmt: skip

LOWER_TILES = "frustum-lower-tiles"
BEFORE = 64
"""So many places of the program order before an instruction its operands are looked at; the last time counts."""


@dataclass(frozen=True)
class LayerRow:
    """A layer of the table."""

    layer: str
    value: str
    isolated: Error
    accumulated: Error


@dataclass(frozen=True)
class Checked:
    """What came of a check: the table, and the lines that say what is wrong (none: nothing)."""

    rows: Sequence[LayerRow]
    faults: Sequence[str]
    tolerance: float

    def text(self) -> str:
        """The table for a terminal."""
        width = max([len(row.layer) for row in self.rows] + [5])
        lines = [f"Layers against onnxruntime (at most {self.tolerance:g})"]
        lines.append(f"  {'layer':{width}}  isolated  accumulated  value")
        for row in self.rows:
            mark = "  <- differs" if row.isolated.relative > self.tolerance else ""
            one, all_ = row.isolated.relative, row.accumulated.relative
            lines.append(f"  {row.layer:{width}}  {one:8.2g}  {all_:11.2g}  {row.value}{mark}")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The same for the report: `layers` and `faults`."""
        layers = [
            {"layer": r.layer, "value": r.value, "isolated": r.isolated.relative, "accumulated": r.accumulated.relative}
            for r in self.rows
        ]
        return {"layers": layers, "faults": list(self.faults)}

    def raise_faults(self, name: str) -> None:
        """`Differs` where anything is wrong."""
        if self.faults:
            raise Differs("\n".join(f"{name}: error: {fault}" for fault in self.faults))


def check_layers(
    job: Job, model: ModelProto | Path, inputs: Mapping[str, HostArray], words: Sequence[str]
) -> Checked:
    """`words`: of the command, for what is written."""
    given = {name: array for name, array in inputs.items() if isinstance(array, np.ndarray)} | dict(job.chain.bound)
    oracle = OracleValues(model, given, *changed_batch(model, given))
    values: dict[str, HostArray] = checked_values(job.chain.inputs, inputs)
    rows, faults = list[LayerRow](), list[str]()
    dtype = job.chain.dtype if job.chain.dtype in TOLERANCES else "f32"
    for piece in job.chain.pieces:
        own = {name: values[name] for name in piece.inputs}
        if not isinstance(piece, DevicePiece):
            values |= piece.model.run(own)
            continue
        source = next((each for each in job.sources if piece.name in each.pieces), None)
        check = _CheckedPiece(Machine(piece.executable), source, own, oracle, dtype)
        values |= check.outputs
        rows += check.rows()
        if (fault := check.fault()) is not None:
            faults.append(fault + _written(check, model, words))
        if check.isolated.stopped:
            break  # nothing is there for the pieces behind it
    return Checked(rows, faults, TOLERANCES[dtype])


class _CheckedPiece:
    """One executable on its inputs."""

    def __init__(
        self, machine: Machine, source: Uncompiled | None, inputs: Mapping[str, Any], oracle: OracleValues, dtype: str
    ) -> None:
        self.machine, self.source, self.inputs, self.oracle, self.dtype = machine, source, inputs, oracle, dtype
        self.wanted: dict[Key, WantedValue] = {}
        self.found: Culprit | None = None
        if source is not None and stop_of(source.module) in STOPS[: STOPS.index("tiled") + 1]:
            typed = source.module.clone()
            if stop_of(typed) == STOPS[0]:
                Run().advance(typed, ["typed"], source.choices)
            self.wanted = self._wanted(typed)
        self.accumulated, self.outputs = self._errors(machine, isolated=False)
        self.isolated, _ = self._errors(machine, isolated=True)

    def rows(self) -> list[LayerRow]:
        pairs = ((key, error) for key, error in self.isolated.layers.items())
        return [LayerRow(e.layer, e.value, e, self.accumulated.layers.get(key, e)) for key, e in pairs]

    def _wanted(self, module: ModuleOp) -> dict[Key, WantedValue]:
        return wanted_of(module, self.inputs, self.oracle, self.dtype)

    def _errors(self, one: Machine | ModuleOp, isolated: bool, **more: Any) -> tuple[Errors, dict[str, Array]]:
        if isinstance(one, Machine):
            return errors_of_machine(one, self.inputs, self.wanted, self.dtype, isolated, **more)
        is_typed = stop_of(one) != STOPS[0]
        wanted = self.wanted if is_typed else self._wanted(one)
        return errors_of_module(one, self.inputs, wanted, self.dtype, isolated)

    # --- what is wrong -------------------------------------------------------------------------------------

    def judge(self, one: Machine | ModuleOp) -> str | None:
        """What is wrong with the numbers: of a layer by itself, or else of an output."""
        isolated, _ = self._errors(one, isolated=True)
        if (error := isolated.first_wrong) is not None:
            return self._words(error, one)
        if isolated.stopped:
            return isolated.stopped
        accumulated, outputs = self._errors(one, isolated=False)
        return self._output_wrong(outputs, one) or (
            self._words(accumulated.first_wrong, one) if accumulated.first_wrong else None
        )

    def _words(self, error: Error, one: Machine | ModuleOp) -> str:
        index = ", ".join(map(str, error.index))
        text = f"layer '{error.layer}': {error.value}[{index}] is {error.found:.6g}, not {error.expected:.6g}"
        who = who_wrote(one, error) if isinstance(one, Machine) else ""
        return f"{text}, written by {who}" if who else text

    def _output_wrong(self, outputs: Mapping[str, Array], one: Machine | ModuleOp) -> str | None:
        for name, array in outputs.items():
            expected = self.oracle.arrays.get(name)
            if expected is None or expected.size != array.size:
                continue
            error = Error(name, name)
            magnitude = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
            error.see(array, expected.reshape(array.shape), magnitude, lambda at: at)
            if error.relative > TOLERANCES[self.dtype]:
                index = ", ".join(map(str, error.index))
                text = f"output {name}[{index}] is {error.found:.6g}, not {error.expected:.6g}"
                who = _writer(one, name, error) if isinstance(one, Machine) else None
                return f"{text}, written by {who}" if who else text
        return None

    def fault(self) -> str | None:
        """Who was wrong, in a line; None where nobody was."""
        wrong = self.judge(self.machine)
        static = wrong_in_code(self.machine.executable)
        if wrong is None and static is None:
            return None
        if self.source is None or self.source.is_edited:
            what = wrong or (static.what if static else "")
            return f"{what}; no pass is named: MODEL is not compiled by the default pipeline"
        try:
            self.found = find_pass(self.source.module, self.source.choices, count_run, self.judge)
        except DoesNotFit:
            return f"{wrong}; no pass is named: the model does not fit as one executable"
        if self.found is None:
            self.found = static
        if self.found is None:
            return f"{wrong}; no pass is named: compiled anew it is right"
        who, what = self._blamed(self.found), wrong or self.found.what
        return f"{what}; {who} (stop '{self.found.stop}'): {self.found.what}"

    def _blamed(self, found: Culprit) -> str:
        """The pass; the kernel where that is wrong, and not what the pass made for it."""
        if found.culprit not in (LOWER_TILES, IMPORT):
            return f"by {found.culprit}"
        machine = machine_of(found.moment.module) if found.moment is not None else self.machine
        error = self._errors(machine, isolated=True)[0].first_wrong
        if error is None or error.who is None:
            return f"by {found.culprit}"
        row, unit = error.who
        rows, expanded = machine.expanded.core, machine.expanded
        instruction = expanded.instructions[int(rows.static[row])]
        values: list[float | None] = []

        def at(memories: Any, place: int) -> None:
            if rows.seq[row] - BEFORE <= place < rows.seq[row]:
                values.append(plain_value(instruction, Execution(expanded, memories, row, unit), error.at))

        self._errors(machine, isolated=True, at=at)
        plain, kernel = values[-1] if values else None, f"the kernel of '{type(instruction).__name__.lower()}'"
        if plain is None and found.culprit == IMPORT:
            return f"by {IMPORT}"
        if plain is None:
            return f"by {found.culprit} or {kernel}, which cannot be told apart here"
        is_right = abs(plain - error.expected) <= TOLERANCES[self.dtype] * max(error.magnitude, 1e-30)
        return f"by {kernel} in the emulator" if is_right else f"by {found.culprit}"


def _writer(machine: Machine, name: str, error: Error) -> str | None:
    external = next((e for e in machine.program.externals_of("output") if e.name == name), None)
    if external is None:
        return None
    number = int(np.ravel_multi_index(error.index, external.shape)) if external.shape else 0
    size = external.bytes // max(1, int(np.prod(external.shape)))
    return writer_of(machine.expanded, external.address + number * size)


def _written(check: _CheckedPiece, model: ModelProto | Path, words: Sequence[str]) -> str:
    """Write the module before the pass, and say where."""
    found = check.found
    if found is None or found.moment is None or found.moment.step is None or found.moment.before is None:
        return ""
    folder = Path(tempfile.mkdtemp(prefix="frustum-check-"))
    write_test(folder, found, check.inputs, model, words)
    return f" ({folder / 'test.mlir'} shows it)"


def write_test(
    folder: Path, found: Culprit, inputs: Mapping[str, Any], model: ModelProto | Path, words: Sequence[str]
) -> None:
    """A lit test, which fails as long as the pass is wrong, with its weights and inputs beside it."""
    moment = found.moment
    assert moment is not None and moment.step is not None and moment.before is not None
    write_module(moment.before, folder / "test.mlir")
    arrays: dict[str, Any] = {name: np.asarray(array, _storable(array)) for name, array in inputs.items()}
    np.savez(folder / "inputs.npz", **arrays)
    passes = ",".join(str(step.pipeline_pass_spec()) for step in (moment.step, *moment.later))
    against = shlex.quote(str(model.resolve())) if isinstance(model, Path) else words[1]
    run = f"frustum run %s --pipeline '{passes}' --input %S/inputs.npz --check-against {against}"
    head = [
        f"// RUN: frustum-opt %s -p '{moment.step.pipeline_pass_spec()}'", f"// RUN: {run}",
        f"// {moment.step.name}: {found.what}", f"// found by: frustum {shlex.join(words)}",
    ]  # fmt: skip
    path = folder / "test.mlir"
    path.write_text("\n".join(head) + "\n" + path.read_text(encoding="utf-8"), encoding="utf-8")


def _storable(array: Array) -> Any:
    return np.float32 if array.dtype.kind == "V" else array.dtype
