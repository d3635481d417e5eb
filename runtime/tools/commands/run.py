"""`frustum run`: compile (or load), emulate, report."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frustum.runtime.failures import GOOD, Differs, UsageError, say
from frustum.runtime.files import check_writable_file, write_file
from frustum.runtime.host.agreement import Model, agreement
from frustum.runtime.host.inputs import HostArray, read_inputs
from frustum.runtime.kernels import BFLOAT16, Array
from frustum.runtime.machine import InputError
from frustum.runtime.model.chain import Interface, checked_values, flattened, in_types, random_values
from frustum.runtime.model.execution import RanChain, execute_chain, report_of_chain
from frustum.runtime.model.sources import kind_of
from frustum.runtime.progress import Progress, TerminalProgress
from frustum.runtime.report.terminal import nan_text, show
from frustum.runtime.tools.commands.job import Job, job_of

if TYPE_CHECKING:
    from frustum.runtime.host.oracle import Agreement
    from frustum.runtime.report.report import Check

STDOUT = "-"
"""In place of a file's name."""


def main(options: argparse.Namespace) -> int:
    """What can be refused is refused before the long work starts."""
    _refuse_contradictions(options)
    for path in (options.output, options.report):
        if path is not None and path != STDOUT:
            check_writable_file(Path(path))
    given = read_inputs(Path(options.input)) if options.input else None
    with TerminalProgress() as progress:
        job = job_of(options, given, lambda inputs: _check_before(options, inputs, given), progress)
        model = job.model_for_check(options.model) if options.check else None
        inputs = _inputs(options, job, given)
        ran = execute_chain(job.chain, inputs, options.mode, options.checked, progress)
        checked = _agreement(job, model, inputs, ran, progress) if model else None
    for line in job.log:
        say(line)
    if options.output:
        write_file(Path(options.output), lambda path: _write_arrays(path, ran.outputs))
    report = report_of_chain(job.chain, ran, checked[0] if checked else None, job.seconds)
    if options.report and options.report != STDOUT:
        write_file(Path(options.report), lambda path: path.write_text(report.json(), encoding="utf-8"))
    if checked and checked[0].nan_in_both:
        say(f"{options.model}: warning: {nan_text(report.data['check'])}")
    show(report.json() if options.report == STDOUT else report.text())
    if checked and not checked[1].good:
        raise Differs(_difference(options.model, job, *checked))
    return GOOD


def _refuse_contradictions(options: argparse.Namespace) -> None:
    if options.output == STDOUT:
        raise UsageError(f"error: --output {STDOUT}: arrays are written to a file, not to stdout")
    if options.input and options.input_seed is not None:
        raise UsageError("error: --input and --input-seed: one of them gives the inputs")
    if options.mode != "timing":
        return
    for name, value in (("--check", options.check), ("--output", options.output), ("--input", options.input)):
        if value:
            raise UsageError(
                f"error: {name} needs --mode full or functional: mode timing computes no numbers"
            )


def _check_before(
    options: argparse.Namespace, inputs: Sequence[Interface] | None, given: Mapping[str, Array] | None
) -> None:
    """What is found before anything is compiled: wrong arrays, and with --check a file that onnxruntime rejects."""
    _check_inputs(options, inputs, given)
    if options.check and kind_of(options.model) == "onnx":
        from frustum.runtime.host.oracle import check_loads

        check_loads(Path(options.model))


def _check_inputs(
    options: argparse.Namespace, inputs: Sequence[Interface] | None, given: Mapping[str, Array] | None
) -> None:
    """UsageError where the arrays of --input are not what the model takes."""
    if given is not None and inputs is not None:
        with _blaming(options.input):
            checked_values(inputs, in_types(inputs, given))


def _inputs(
    options: argparse.Namespace, job: Job, given: Mapping[str, Array] | None
) -> dict[str, HostArray]:
    if given is None:
        return random_values(job.chain.inputs, options.input_seed or 0)
    with _blaming(options.input):
        return checked_values(job.chain.inputs, in_types(job.chain.inputs, given))


@contextmanager
def _blaming(file: str) -> Iterator[None]:
    """Errors in the inputs name the file that they came from."""
    try:
        yield
    except InputError as error:
        raise UsageError(f"{file}: error: {error}") from error


def _agreement(
    job: Job, model: Model, inputs: Mapping[str, Array], ran: RanChain, progress: Progress
) -> tuple[Check, Agreement]:
    progress("compare", 0.0)
    return agreement(model, inputs, ran.outputs, job.chain.dtype)


def _difference(name: str, job: Job, check: Check, found: Agreement) -> str:
    return (
        f"{name}: error: output '{found.worst}' differs from {check.reference}: relative error"
        f" {found.max_rel_error:.3g}, at most {found.tolerance:g} is allowed in {job.chain.dtype}"
    )


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """An .npz file without pickles: numbers of types that numpy cannot store as such in f32, text as text."""
    plain = {name: _storable(array) for name, array in flattened(arrays).items()}
    with path.open("wb") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]  # numpy's types expect no `file`


def _storable(array: Array) -> Array:
    if array.dtype.kind == "O":
        return array.astype(str)
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype == BFLOAT16 else array
