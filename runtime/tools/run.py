# Tests: test/runtime/tools/test_cli_errors.py
"""`frustum run`: compile (or load), emulate, report.

The compiler is loaded only where something is compiled: an executable needs nothing of it.  What runs and reports is
loaded behind the first look into the cache, so that the time left is told before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frustum.backend.file.executable import ExecutableError
from frustum.dialects.loops import TIMES
from frustum.dialects.share_done import know
from frustum.runtime.course import Course
from frustum.runtime.device.memory import AccessError
from frustum.runtime.failures import GOOD, Differs, UsageError, say
from frustum.runtime.files import check_writable_file, write_file
from frustum.runtime.model.cache import built
from frustum.runtime.model.options import FileInputs, RunOptions, refuse_compiled, refuse_two_forms
from frustum.runtime.model.sources import Job, Origin, kind_of
from frustum.runtime.progress import Progress, TerminalProgress
from frustum.runtime.report.terminal import has_colours, judge_texts, nan_text, show

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.runtime.host.inputs import ArchivedInputs, HostArray
    from frustum.runtime.host.oracle import Agreement
    from frustum.runtime.kernels import Array
    from frustum.runtime.model.chain import Interface
    from frustum.runtime.model.execution import RanChain
    from frustum.runtime.report.figures import Report
    from frustum.runtime.report.report import Check
    from frustum.runtime.tools.check_layers import Checked

STDOUT = "-"
"""In place of a file's name."""


def main(options: RunOptions) -> int:
    """What can be refused is refused before the long work starts."""
    options = _with_model_for_check(options)
    _refuse_contradictions(options)
    for path in (options.output, options.report, options.trace, options.html):
        if path is not None and path != STDOUT:
            check_writable_file(Path(path))
    name, given = str(options.model), _arrays(options)
    with TerminalProgress(quiet=options.quiet, course=Course(options.mode)) as progress:
        job = _job(options, given, lambda inputs: _check_before(options, inputs, given), progress)
        model = _model_for_check(options, job) if options.check else None
        know(**job.chain.sizes)
        inputs = _inputs(options, job, given)
        check, found, layers = None, None, None
        ran, made, outputs = _run_or_blame(options, job, model, inputs, progress)
        if model is not None:
            from frustum.runtime.host.agreement import agreement, together

            progress("compare", 0.0)
            pairs = [({**job.chain.bound, **each}, made) for each, made in zip(inputs, outputs, strict=True)]
            check, found = together([agreement(model, *pair, job.chain.dtype, job.chain.of_device) for pair in pairs])
        if model is not None and options.check == "layers":
            from frustum.runtime.tools.check_layers import check_layers

            layers = check_layers(job, model, inputs[0], ["run", name, "--check=layers"])
    for line in () if options.quiet else job.log:
        say(line)
    if options.output:
        write_file(Path(options.output), lambda path: _write_arrays(path, made))
    report = _report(options, job, ran, check, len(inputs))
    if layers is not None:
        report["check"] |= layers.data()
    _draw(options, report, inputs[0])
    _tell(options, report, layers)
    if layers is not None:
        layers.raise_faults(name)
    if check and found and not found.good:
        raise Differs(_difference(name, job, check, found))
    return GOOD


def _run_or_blame(
    options: RunOptions, job: Job, model: ModelProto | Path | None, inputs: Sequence[Mapping[str, HostArray]],
    progress: Progress,
) -> tuple[RanChain, dict[str, HostArray], list[dict[str, HostArray]]]:  # fmt: skip
    """`_run`.  Where the machine stops, and layers are checked: the layers before that, and `Differs` says who was
    wrong."""
    try:
        return _run(options, job, inputs, progress)
    except (AccessError, ExecutableError):
        if model is None or options.check != "layers":
            raise
        from frustum.runtime.tools.check_layers import check_layers

        layers = check_layers(job, model, inputs[0], ["run", str(options.model), "--check=layers"])
        if not options.quiet:
            show(f"{layers.text()}\n")
        layers.raise_faults(str(options.model))
        raise


def _report(options: RunOptions, job: Job, ran: RanChain, check: Check | None, inputs: int) -> Report:
    """What came of the run for so many inputs, which can be drawn."""
    from frustum.runtime.model.execution import report_of_chain
    from frustum.runtime.model.stream import times_of
    from frustum.runtime.show.drawing import RunDrawing

    is_timed = options.stream is not None and options.mode != "functional"
    stream = times_of(job.chain, ran, inputs).figures if is_timed else None
    report = report_of_chain(job.chain, ran, check, job.seconds, stream)
    report.drawing = RunDrawing(job.chain, ran, options.mode, options.stream is not None, job.model_at_hand)
    return report


def _draw(options: RunOptions, report: Report, inputs: Mapping[str, HostArray]) -> None:
    """The files that show the run."""
    if options.trace:
        traced = report.trace()
        write_file(Path(options.trace), lambda path: path.write_bytes(traced))
    if options.annotate:
        report.annotate(options.annotate)
    if options.html:
        from frustum.runtime.tools.curve import kept_curves

        shapes = {name: array.shape for name, array in inputs.items()} if options.input else {}
        text = report.html(options.dump_ir, kept_curves(replace(options, shapes={**shapes, **options.shapes})))
        write_file(Path(options.html), lambda path: path.write_text(text, encoding="utf-8"))


def _tell(options: RunOptions, report: Report, layers: Checked | None) -> None:
    """Write and print what came of the run."""
    if options.report and options.report != STDOUT:
        write_file(Path(options.report), lambda path: path.write_text(report.json(), encoding="utf-8"))
    check = report["check"]
    if check:
        _say_what_was_checked(str(options.model), check)
    if options.json or options.report == STDOUT:
        show(report.json())
    elif not options.quiet:
        show(report.text(options.verbose, has_colours()))
        if layers is not None:
            show(f"\n{layers.text()}\n")


def _say_what_was_checked(name: str, check: Mapping[str, Any]) -> None:
    """Warnings of what is compared with another than onnxruntime, with nothing, or says nothing."""
    if check["max_rel_error"] is None:
        say(f"{name}: warning: {check['reference']}")
    else:
        for text in judge_texts(check):
            say(f"{name}: warning: {text}")
    if check["nan_in_both"]:
        say(f"{name}: warning: {nan_text(check)}")


def _run(
    options: RunOptions, job: Job, inputs: Sequence[Mapping[str, HostArray]], progress: Progress
) -> tuple[RanChain, dict[str, HostArray], list[dict[str, HostArray]]]:
    """The run that is counted, the outputs as they are written, and those of each input."""
    from frustum.runtime.model.execution import execute_chain
    from frustum.runtime.model.stream import check_streams, execute_stream

    if options.stream is not None:
        check_streams(job.chain)
        return execute_stream(job.chain, inputs, options.mode, options.checked, progress)
    ran = execute_chain(job.chain, inputs[0], options.mode, options.checked, progress)
    return ran, ran.outputs, [ran.outputs]


def _with_model_for_check(options: RunOptions) -> RunOptions:
    """`--check=FILE.onnx` as the two options that it stands for; --check-against checks."""
    check, model = options.check, options.check_against
    if check not in (None, "outputs", "layers"):
        if model is not None:
            raise UsageError(f"error: --check={check} and --check-against {model}: one of them names the model")
        check, model = "outputs", check
    return replace(options, check=check or ("outputs" if model else None), check_against=model)


def _model_for_check(options: RunOptions, job: Job) -> ModelProto | Path:
    """What the oracle runs: the model that was named for it, or else what MODEL was made from."""
    if options.check_against is None:
        return job.model_for_check(str(options.model))
    return Origin(str(options.check_against), options.weights_seed or 0).load()


def _refuse_contradictions(options: RunOptions) -> None:
    if options.output == STDOUT:
        raise UsageError(f"error: --output {STDOUT}: arrays are written to a file, not to stdout")
    if options.input and options.input_seed is not None:
        raise UsageError("error: --input and --input-seed: one of them gives the inputs")
    is_stream = options.stream is not None
    if options.html == STDOUT:
        raise UsageError(f"error: --html {STDOUT}: the page is written to a file, not to stdout")
    if options.trace or options.html or options.annotate:
        _refuse_drawings(options, is_stream)
    refuse_two_forms(options)
    for name in ("check", "output", "input"):
        if options.mode == "timing" and getattr(options, name):
            raise UsageError(f"error: --{name} needs --mode full or functional: mode timing computes no numbers")


def _refuse_drawings(options: RunOptions, is_stream: bool) -> None:
    """Files that cannot show this run."""
    from frustum.runtime.show.drawing import refuse_drawing

    if options.trace:
        refuse_drawing("trace", options.mode, is_stream, "--")
    if options.html:
        refuse_drawing("html", options.mode, is_stream, "--")
    if options.annotate:
        from frustum.runtime.show.annotate import refuse_annotation

        name = str(options.model)
        refuse_annotation(Path(options.annotate), Path(name) if kind_of(name) == "onnx" else None, "--")


def _job(
    options: RunOptions,
    given: ArchivedInputs | None,
    see: Callable[[Sequence[Interface] | None], None],
    progress: Progress,
) -> Job:
    """The chain of the options' MODEL; the shapes of `given` inputs are bound, `see` as in `build`."""
    name = str(options.model)
    kind = kind_of(name)
    if kind in ("folder", "executable"):
        from frustum.runtime.model.chain import placed
        from frustum.runtime.model.compiled_folder import open_compiled
        from frustum.runtime.report.report import Seconds

        refuse_compiled(options)
        chain, origin = open_compiled(Path(name))
        return Job(placed(chain, options.placement), origin, None, Seconds())
    if kind == "stage" and options.check and options.check_against is None:
        raise UsageError(
            f"{name}: error: a stage has no model to check against: --check=FILE.onnx says which it is"
        )
    first, streams = options.input_seed or 0, options.stream is not None
    layers = options.check == "layers"
    request = replace(options, calibration_seed=first, streams=streams, cache=not (options.no_cache or layers))
    request = replace(request, keeps_modules=layers)
    if given is not None and given.stand_ins and kind != "stage":
        shapes = {name: array.shape for name, array in _each(options, _open(given, options.bind))[0].items()}
        calibration = FileInputs(
            given.path, options.stream or 1, lambda: _each(options, _without_bound(options, given.read(), options.bind))
        )
        request = replace(request, calibration=calibration, shapes={**shapes, **options.shapes})
    loops_before = TIMES.seconds
    job = built(request, progress, see)
    return replace(job, seconds=replace(job.seconds, loops=TIMES.seconds - loops_before))


def _check_before(
    options: RunOptions, inputs: Sequence[Interface] | None, given: ArchivedInputs | None
) -> None:
    """What is found before anything is compiled: wrong arrays, and with --check a file that onnxruntime rejects."""
    if given is not None and inputs is not None:
        _check_given(options, inputs, given, options.bind)
    model = options.check_against or str(options.model)
    if options.check and kind_of(model) == "onnx":
        from frustum.runtime.host.oracle import check_loads

        check_loads(Path(model))


def _arrays(options: RunOptions) -> ArchivedInputs | None:
    """The arrays of --input, not unpacked yet."""
    if not options.input:
        return None
    from frustum.runtime.host.inputs import ArchivedInputs

    return ArchivedInputs.open(Path(options.input))


def _open(given: ArchivedInputs, bound: Mapping[str, Any]) -> dict[str, Array]:
    """What stands for the arrays of inputs that are not bound."""
    return {name: array for name, array in given.stand_ins.items() if name not in bound}


def _without_bound(options: RunOptions, given: Mapping[str, Array], bound: Mapping[str, Any]) -> dict[str, Array]:
    from frustum.runtime.machine import InputError
    from frustum.runtime.model.chain import without_bound

    try:
        return without_bound(given, bound)
    except InputError as error:
        raise UsageError(f"{options.input}: error: {error}") from error


def _check_given(
    options: RunOptions, inputs: Sequence[Interface], given: ArchivedInputs, bound: Mapping[str, Any]
) -> None:
    """UsageError where arrays have other names, shapes or types than the model takes; nothing is unpacked for that."""
    for each in _each(options, _open(given, bound)):
        _given_inputs(options, inputs, each)


def _inputs(options: RunOptions, job: Job, given: ArchivedInputs | None) -> list[dict[str, HostArray]]:
    """Those of each input of the stream, or of the only one; random ones from seeds that count on."""
    if given is None:
        from frustum.runtime.model.chain import random_values

        first = options.input_seed or 0
        return [random_values(job.chain.inputs, first + number) for number in range(options.stream or 1)]
    _check_given(options, job.chain.inputs, given, job.chain.bound)
    read = _without_bound(options, given.read(), job.chain.bound)
    return [_given_inputs(options, job.chain.inputs, each) for each in _each(options, read)]


def _each(options: RunOptions, given: Mapping[str, Array]) -> list[dict[str, HostArray]]:
    """The arrays of the file for each input."""
    if options.stream is None:
        return [dict(given)]
    from frustum.runtime.model.stream import split_inputs

    return split_inputs(given, options.stream, str(options.input))


def _given_inputs(
    options: RunOptions, inputs: Sequence[Interface], given: Mapping[str, Array]
) -> dict[str, HostArray]:
    """UsageError, with the name of the file, where the arrays of --input are not what the model takes."""
    from frustum.runtime.machine import InputError
    from frustum.runtime.model.chain import checked_values, in_types

    try:
        return checked_values(inputs, in_types(inputs, given))
    except InputError as error:
        raise UsageError(f"{options.input}: error: {error}") from error


def _difference(name: str, job: Job, check: Check, found: Agreement) -> str:
    return (
        f"{name}: error: output '{found.worst}' differs from {check.reference}: relative error"
        f" {found.max_rel_error:.3g}, at most {found.tolerance:g} is allowed in {job.chain.dtype}; {found.difference}"
    )


def _write_arrays(path: Path, arrays: Mapping[str, HostArray]) -> None:
    """An .npz file without pickles: numbers of types that numpy cannot store as such in f32, text as text."""
    import numpy as np

    from frustum.runtime.model.chain import flattened

    plain: dict[str, Any] = {name: _storable(array) for name, array in flattened(arrays).items()}
    with path.open("wb") as file:
        np.savez(file, **plain)


def _storable(array: Array) -> Array:
    from frustum.runtime.kernels import BFLOAT16

    if array.dtype.kind == "O":
        return array.astype(str)
    return array.astype("f4") if array.dtype.kind == "V" or array.dtype == BFLOAT16 else array
